//! Rules on several nodes or fields at once: ranges, groups, and values that contradict each other.

use super::{Faults, Inventory};
use std::path::Path;

fn parse(text: &str) -> Result<Inventory, Faults> {
    Inventory::parse(text, Path::new("inventory.toml"))
}

/// `line:column: message` of each fault.
fn faults(text: &str) -> Vec<String> {
    let faults = parse(text).expect_err(text);
    faults.faults.iter().map(|f| format!("{}:{}: {}", f.line, f.column, f.message)).collect()
}

/// A valid inventory with these nodes, from line 3 on.
fn with_nodes(nodes: &str) -> String {
    format!("[cluster]\nname = \"lab\"\n{nodes}")
}

/// A valid inventory with this line in `[cluster]`, as its line 3.
fn in_cluster(line: &str) -> String {
    format!("[cluster]\nname = \"lab\"\n{line}\n[[node]]\nhost = \"a\"\n")
}

#[test]
fn what_does_not_fit_together() {
    for (text, expected) in [
        (
            in_cluster("worker = 'hmaster'"),
            "3:10: cluster.worker: `worker` and `master` must not overlap, found \"hmaster\" and \"hmaster\"",
        ),
        (
            in_cluster("worker = 'same'\nmaster = 'same'"),
            "4:10: cluster.master: `worker` and `master` must not overlap, found \"same\" and \"same\"",
        ),
        (
            in_cluster("ssh_dir = '/opt/horovod/jobs'"),
            "3:11: cluster.ssh_dir: `ssh_dir` and `jobs_dir` must not overlap, \
             found \"/opt/horovod/jobs\" and \"/opt/horovod/jobs\"",
        ),
        (
            in_cluster("jobs_dir = '/opt/horovod/projects/jobs'"),
            "3:12: cluster.jobs_dir: `projects_dir` and `jobs_dir` must not overlap, \
             found \"/opt/horovod/projects\" and \"/opt/horovod/projects/jobs\"",
        ),
        (
            in_cluster("data_dir = '/opt/horovod/ssh/data'"),
            "3:12: cluster.data_dir: `ssh_dir` and `data_dir` must not overlap, \
             found \"/opt/horovod/ssh\" and \"/opt/horovod/ssh/data\"",
        ),
        (
            with_nodes("[[node]]\nhost = 'a'\n[[node]]\nhost = 'b'\n[[node]]\nhost = 'a'\n"),
            "8:8: node.host: duplicate node \"a\"; line 4 has the same host, port and user",
        ),
        (
            with_nodes("[[node]]\nhost = 'a'\n[[node]]\nhost = 'A'\nname = 'b'\n"),
            "6:8: node.host: duplicate node \"A\"; line 4 has the same host, port and user",
        ),
        (
            with_nodes("[[node]]\nhost = '::1'\n[[node]]\nhost = '0:0::1'\nname = 'b'\n"),
            "6:8: node.host: duplicate node \"0:0::1\"; line 4 has the same host, port and user",
        ),
        (
            with_nodes("[[node]]\nhost = '10.0.0.1'\n[[node]]\nhost = '::ffff:10.0.0.1'\nname = 'b'\n"),
            "6:8: node.host: duplicate node \"::ffff:10.0.0.1\"; line 4 has the same host, port and user",
        ),
        (
            with_nodes(
                "[defaults]\nssh_port = 2\n[[node]]\nhost = 'a'\n[[node]]\nhost = 'a'\nname = 'b'\nssh_port = 2",
            ),
            "8:8: node.host: duplicate node \"a\"; line 6 has the same host, port and user",
        ),
        (
            with_nodes("[[node]]\nhost = 'a'\nssh_port = 1\n[[node]]\nhost = 'a'\nssh_port = 2\n"),
            "7:8: node.host: duplicate node \"a\"; line 4 has the same name; give each a `name`",
        ),
        (
            with_nodes("[[node]]\nhost = 'a'\nname = 'x'\n[[node]]\nhost = 'b'\nname = 'x'\n"),
            "8:8: node.name: duplicate node \"x\"; line 5 has the same name",
        ),
        (
            with_nodes("[[node]]\nhost = 'x'\n[[node]]\nhost = 'b'\nname = 'x'\n"),
            "7:8: node.name: duplicate node \"x\"; line 4 has the same name",
        ),
        (
            with_nodes("[[node]]\nhost = 'a'\naddress = '10.0.0.1'\n[[node]]\nhost = 'b'\naddress = '10.0.0.1'\n"),
            "8:11: node.address: duplicate node \"b\"; line 5 has the same address",
        ),
        (
            with_nodes("[[node]]\nhost = 'a'\nmaster = true\n[[node]]\nhost = 'b'\nmaster = true\n"),
            "8:10: node.master: expected one master, found a second one; the first is on line 5",
        ),
        (
            with_nodes("[[node]]\nhost = 'a'\nmaster = false\n"),
            "5:10: node.master: expected a node that may be the master, found `master = false` on every node",
        ),
    ] {
        assert_eq!(faults(&text), [expected], "{text}");
    }
    let same_host = "[[node]]\nhost = 'a'\nname = 'x'\n[[node]]\nhost = 'a'\nname = 'y'\nuser = 'other'\n";
    assert!(parse(&with_nodes(same_host)).is_ok(), "another user may be another machine behind an alias");
}

#[test]
fn entries_of_lists_are_there_once_and_apart_from_the_jobs_directory() {
    for (line, expected) in [
        ("gpus = [1, '1']", "5:12: node.gpus: duplicate entry \"1\""),
        ("mounts = ['/a:/c', '/b:/c']", "5:20: node.mounts: duplicate entry \"/c\""),
        ("devices = ['/dev/a', '/dev/b:/dev/a']", "5:22: node.devices: duplicate entry \"/dev/a\""),
        ("cap_add = ['NET_RAW', 'NET_RAW']", "5:23: node.cap_add: duplicate entry \"NET_RAW\""),
        (
            "mounts = ['/a:/opt/horovod/jobs/x']",
            "5:10: node.mounts: \"/opt/horovod/jobs/x\" in the container is reserved for hvdctl",
        ),
    ] {
        assert_eq!(faults(&with_nodes(&format!("[[node]]\nhost = 'a'\n{line}\n"))), [expected], "{line}");
    }
}

#[test]
fn ranges_are_many_nodes() {
    let text = with_nodes(
        "[defaults]\ngpus = 2\n[[node]]\nhost = 'head'\n[[node]]\nhost = 'gpu[08-10,12].lan'\nname = 'g[1-4]'\n\
         address = '10.0.0.[1-4]'\nslots = 1\n",
    );
    let inventory = parse(&text).expect("valid");
    let reported: Vec<String> = inventory
        .nodes
        .iter()
        .map(|node| format!("{} {} {:?} {:?} {:?}", node.name, node.host, node.address, node.slots, node.gpus))
        .collect();
    assert_eq!(
        reported,
        [
            "head head None None Count(2)",
            "g1 gpu08.lan Some(10.0.0.1) Some(1) Count(2)",
            "g2 gpu09.lan Some(10.0.0.2) Some(1) Count(2)",
            "g3 gpu10.lan Some(10.0.0.3) Some(1) Count(2)",
            "g4 gpu12.lan Some(10.0.0.4) Some(1) Count(2)",
        ]
    );
    assert_eq!(inventory.master().name, "head");
    let racks = "[[node]]\nhost = 'rack[1-2]-gpu[1-8/4].lan'\nname = 'r[1-2]g[1-2]'\naddress = \
        '10.0.[1-2].[1,5]'\n[groups]\n\
                 second = 'r2g[1-2]'\n";
    let inventory = parse(&with_nodes(racks)).expect("valid");
    let reported: Vec<String> = inventory
        .nodes
        .iter()
        .map(|node| format!("{} {} {}", node.name, node.host, node.address.expect("an address")))
        .collect();
    assert_eq!(
        reported,
        [
            "r1g1 rack1-gpu1.lan 10.0.1.1",
            "r1g2 rack1-gpu5.lan 10.0.1.5",
            "r2g1 rack2-gpu1.lan 10.0.2.1",
            "r2g2 rack2-gpu5.lan 10.0.2.5"
        ]
    );
    assert_eq!(inventory.groups["second"], ["r2g1", "r2g2"]);
    let alone = parse(&with_nodes("[[node]]\nhost = 'n[1-2]'\n")).expect("valid");
    assert_eq!(alone.master().name, "n1", "the first is the master unless another says so");
    assert!(parse(&with_nodes("[[node]]\nhost = 'n[7]'\nmaster = true\n")).is_ok(), "a range of one is one");

    for (nodes, expected) in [
        ("[[node]]\nhost = 'n[1-3]'\nname = 'm[1-2]'\n", "5:8: node.name: expected as many as hosts (3), found 2"),
        (
            "[[node]]\nhost = 'n[1-3]'\naddress = '10.0.0.1'\n",
            "5:11: node.address: expected as many as hosts (3), found 1",
        ),
        ("[[node]]\nhost = 'n'\nname = 'm[1-2]'\n", "5:8: node.name: expected as many as hosts (1), found 2"),
        (
            "[[node]]\nhost = 'a'\n[[node]]\nhost = 'n[1-3]'\nmaster = true\n",
            "7:10: node.master: expected a [[node]] of its own for the master, found one that stands for 3 machines",
        ),
        (
            "[[node]]\nhost = 'n[1-3]'\n[[node]]\nhost = 'n2'\n",
            "6:8: node.host: duplicate node \"n2\"; line 4 has the same host, port and user",
        ),
        (
            "[[node]]\nhost = 'a2'\n[[node]]\nhost = 'n[1-3]'\nname = 'a[1-3]'\n",
            "7:8: node.name: duplicate node \"a2\"; line 4 has the same name",
        ),
        (
            "[[node]]\nhost = 'n[1-3,2]'\n",
            "4:8: node.host: duplicate node \"n2\"; line 4 has the same host, port and user",
        ),
        (
            "[[node]]\nhost = 'a'\naddress = '10.0.0.2'\n[[node]]\nhost = 'n[1-3]'\naddress = '10.0.0.[1-3]'\n",
            "8:11: node.address: duplicate node \"n2\"; line 5 has the same address",
        ),
        (
            "[[node]]\nhost = 'n[0-5999]'\n[[node]]\nhost = 'm[0-5999]'\n",
            "6:8: node.host: an inventory has at most 10000 machines",
        ),
    ] {
        assert_eq!(faults(&with_nodes(nodes)), [expected], "{nodes}");
    }
}

#[test]
fn groups_of_nodes() {
    let with = |groups: &str| with_nodes(&format!("[[node]]\nhost = 'n[1-4]'\n[groups]\n{groups}\n"));
    let groups = parse(&with("b = ['@a', 'n4', '!n1']\na = 'n[1-3],!n2'\nrest = '!@a'")).expect("valid").groups;
    let reported: Vec<String> = groups.iter().map(|(name, nodes)| format!("{name}: {}", nodes.join(" "))).collect();
    assert_eq!(reported, ["a: n1 n3", "b: n3 n4", "rest: n2 n4"]);
    let many = |count: usize| with(&(0..count).map(|i| format!("g{i} = 'n1'\n")).collect::<String>());
    assert_eq!(parse(&many(256)).expect("valid").groups.len(), 256);
    assert_eq!(faults(&many(257)), ["5:1: groups: expected at most 256 groups, found 257"]);

    const EXPECTED: &str = "expected nodes as for --on, like \"gpu[01-08],!gpu03\", or a list of such, found";
    for (groups, expected) in [
        ("a = 1", format!("6:5: groups: {EXPECTED} 1")),
        ("a = []", format!("6:5: groups: {EXPECTED} an array")),
        ("a = ['n1', 2]", format!("6:12: groups: {EXPECTED} 2")),
        ("a = 'n5'", "6:5: groups.a: expected nodes, found \"n5\"; no node is named n5 (nodes: n[1-4])".into()),
        (
            r#"a = "n[1-2]\u0000,!n2""#,
            r#"6:5: groups.a: expected nodes, found "n[1-2]\0,!n2"; no node is named "n1\0" (nodes: n[1-4])"#.into(),
        ),
        (
            "a = ['n1', '@c']\nb = 'n2'",
            "6:5: groups.a: expected nodes, found \"n1,@c\"; there is no group c (groups: @a, @b)".into(),
        ),
        ("a = 'n1,!n1'", "6:5: groups.a: expected nodes, found \"n1,!n1\"; no node is left".into()),
        ("a = '@a'", "6:5: groups.a: these groups refer to each other in a cycle: @a".into()),
        (
            "a = '@b'\nb = ['n1', '@c']\nc = '@b'\nd = '@a'\ne = 'n1'",
            "6:5: groups.a: these groups refer to each other in a cycle: @a, @b, @c, @d".into(),
        ),
        (
            "'a b' = 'n1'",
            "6:1: groups: expected 1 to 63 letters, digits, `_`, `.` or `-`, the first a letter or digit, \
             found \"a b\""
                .into(),
        ),
    ] {
        assert_eq!(faults(&with(groups)), [expected], "{groups}");
    }
    // if a node could not be read, it is unknown whether a name is one
    let unsure = with_nodes("[[node]]\nhost = 'a;b'\n[groups]\na = 'n1'\nb = 1\n");
    assert_eq!(faults(&unsure).len(), 2, "{:?}", faults(&unsure));
    assert_eq!(
        faults(&with_nodes("[[groups]]\n[[node]]\nhost = 'a'")),
        [format!("3:1: groups: expected a table, each value {EXPECTED} an array").replace("value expected ", "value ")]
    );
}
