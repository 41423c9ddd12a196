//! The logins between workers, and the addresses on which they listen: every fault with the reason that ssh gave.

use crate::pool::node_command;
use crate::process::{Done, Running, eventually, s};
use crate::state::{Lab, NODES, Restore, address, inspect, no_job_is_left, node_sh, on, ours};
use crate::watch::{Watcher, has};
use serde_json::{Value, json};
use std::time::Duration;

/// Returns the listeners on the workers' port of a node.
fn listeners(node: &str) -> String {
    on(node, "ss -Hltn 'sport = :12345' | awk '{ print $4 }'")
}

/// `verify` that has to fail before anything is launched, and its one row of FROM, TO, REASON and PAIRS.
#[track_caller]
fn fails_with(lab: &Lab, row: [&str; 4]) -> Done {
    let done = lab.hvdctl(&["verify"]).code(1);
    let rows: Vec<&str> = done.out.lines().collect();
    let cells: Vec<&str> = rows[1].split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
    assert_eq!(
        (rows[0].split_whitespace().collect::<Vec<_>>().join(" ").as_str(), cells.as_slice()),
        ("FROM TO REASON PAIRS", row.as_slice()),
        "{}",
        done.out
    );
    assert_eq!(rows.len(), 3, "{}", done.out);
    assert!(rows[2].starts_with("failed: ") && rows[2].contains("nothing was launched"), "{}", done.out);
    for node in NODES {
        assert!(!ours(node).contains("hmaster"), "{}", ours(node));
        assert_eq!(on(node, "ls /opt/horovod/jobs 2>/dev/null; :"), "", "a job was begun");
    }
    done
}

/// A rule that drops or rejects what comes to node2's worker from node1, until it is dropped itself.
fn firewall(target: &str) -> Restore<impl FnMut()> {
    let from = address("node1");
    let rule = move |how: &str, target: &str| {
        let words = format!("iptables -w 10 {how} INPUT -p tcp --dport 12345 -s {from} -j {target}");
        node_sh("node2", &words, &[]).code(0);
    };
    rule("-I", target);
    let target = target.to_owned();
    Restore(move || rule("-D", &target))
}

/// Processes and files of a check in the workers while it runs; none may be left afterwards.
fn traces() -> String {
    let look = |node: &&str| {
        let agents = on(node, "pgrep -ax ssh-agent; pgrep -af '[h]vdctl-reach' | grep -v 'sh -c'; :");
        let files = "docker exec hworker sh -c 'ls -d /tmp/hvdctl-reach.* /tmp/ssh-* 2>/dev/null; :'";
        format!("{agents}{}", on(node, files))
    };
    NODES.iter().map(look).collect()
}

#[test]
fn a_worker_listens_on_the_clusters_address_only() {
    let lab = Lab::up();
    for node in NODES {
        assert_eq!(listeners(node), format!("{}:12345\n", address(node)), "{node}");
    }
    // a worker of before, which listens on every address, is replaced
    let id = inspect("node2", "hworker")["Id"].to_string();
    on("node2", "ip address add 10.99.0.2/24 dev eth0");
    let restore = Restore(|| {
        on("node2", "ip address del 10.99.0.2/24 dev eth0");
    });
    lab.hvdctl(&["up"]).code(0).says(&["nothing to do"]);
    lab.edit("host = \"node2\"", "host = \"node2\"\naddress = \"10.99.0.2\"");
    lab.hvdctl(&["up"]).code(0).says(&["node1: unchanged", "node2: recreated hworker (address)"]);
    assert_ne!(inspect("node2", "hworker")["Id"].to_string(), id);
    assert_eq!(listeners("node2"), "10.99.0.2:12345\n");
    lab.edit("address = \"10.99.0.2\"", "address = \"10.99.0.3\"");
    let done = lab.hvdctl(&["up"]).code(3);
    done.complains(&["node2: cannot find its address", "10.99.0.3", "hint: set `address` or `interface`"]);
    drop(restore);
}

#[test]
fn an_ipv6_address_is_listened_on_and_logged_in_to() {
    let lab = Lab::empty();
    let disabled = NODES.map(|node| on(node, "sysctl -n net.ipv6.conf.eth0.disable_ipv6"));
    let restore = Restore(|| {
        for (i, node) in NODES.iter().enumerate() {
            let undo = "ip address del \"fd99::$1/64\" dev eth0; sysctl -qw net.ipv6.conf.eth0.disable_ipv6=\"$2\" \
                net.ipv6.conf.lo.disable_ipv6=\"$2\"";
            node_sh(node, undo, &[&(i + 1).to_string(), disabled[i].trim()]).code(0);
        }
    });
    for (i, node) in NODES.iter().enumerate() {
        // a node's traffic to itself uses lo
        on(node, "sysctl -qw net.ipv6.conf.eth0.disable_ipv6=0 net.ipv6.conf.lo.disable_ipv6=0");
        on(node, &format!("ip address add fd99::{}/64 dev eth0 nodad", i + 1));
    }
    for (i, node) in NODES.iter().enumerate() {
        lab.edit(&format!("host = \"{node}\""), &format!("host = \"{node}\"\naddress = \"fd99::{}\"", i + 1));
    }
    lab.hvdctl(&["up"]).code(0);
    for (i, node) in NODES.iter().enumerate() {
        assert_eq!(listeners(node), format!("[fd99::{}]:12345\n", i + 1));
        let found = on("node1", &format!("ssh-keygen -F '[fd99::{}]:12345' -f /opt/horovod/ssh/known_hosts", i + 1));
        assert!(found.contains("hvdctl:lab"), "{node}: {found}");
    }
    // the lab's network carries no IPv6 from node to node: the master logs in to itself
    let ssh = "docker exec hworker ssh -o BatchMode=yes -o StrictHostKeyChecking=yes -o ConnectTimeout=5 -p 12345 \
        fd99::1 hostname";
    assert_eq!(on("node1", ssh), "node1\n");
    // launchers cannot be given them, and that is reported before anything hangs
    lab.hvdctl(&["verify"])
        .code(1)
        .complains(&["launchers are given IPv4 addresses only, but fd99::1 is an IPv6 address", "hint: "]);
    drop(restore);
}

#[test]
fn every_reason_is_reported_and_nothing_is_launched() {
    let lab = Lab::up();
    // what is dropped is waited for
    lab.edit("connect_timeout_s = 10", "connect_timeout_s = 5");
    let document: Value = serde_json::from_str(&lab.hvdctl(&["verify", "--json"]).ok()).unwrap();
    let pair = |from: &str, to: &str| json!({ "from": from, "to": to, "reason": null });
    let both = [pair("node1", "node2"), pair("node2", "node1")];
    assert_eq!(document["logins"], json!({ "ok": true, "absent": [], "failed": [], "pairs": both }));
    on("node1", "rm -rf /opt/horovod/jobs/*");
    on("node2", "rm -rf /opt/horovod/jobs/*");

    let wall = firewall("DROP");
    let done = fails_with(&lab, ["node1", "node2", "Connection timed out", "1"]);
    done.complains(&["hint: allow TCP port 12345"]);
    let document: Value = serde_json::from_str(&lab.hvdctl(&["verify", "--json"]).code(1).out).unwrap();
    assert_eq!(
        (&document["ok"], &document["job"], &document["logins"]["ok"]),
        (&json!(false), &json!(null), &json!(false))
    );
    let failed = json!([{ "from": ["node1"], "to": ["node2"], "reason": "Connection timed out", "pairs": 1 }]);
    assert_eq!(document["logins"]["failed"], failed);
    assert_eq!(document["logins"]["pairs"][1], pair("node2", "node1"));
    assert_eq!(document["faults"], json!(["node1 → node2: Connection timed out (1 pair)"]));
    drop(wall);

    let wall = firewall("REJECT --reject-with tcp-reset");
    fails_with(&lab, ["node1", "node2", "Connection refused", "1"]);
    drop(wall);

    on("node2", "docker stop -t 1 hworker");
    fails_with(&lab, ["–", "node2", "its worker is not running: hvdctl up", "–"]);
    lab.hvdctl(&["up"]).code(0);

    // another host key than the pinned one, which the directory does not show
    on(
        "node2",
        "cd /opt/horovod/ssh && cp -p ssh_host_ed25519_key ../test-key && rm -f ../test-new* &&
         ssh-keygen -q -t ed25519 -N '' -f ../test-new && cat ../test-new >ssh_host_ed25519_key && docker restart -t 1 \
         hworker",
    );
    eventually(s(5), || !listeners("node2").is_empty());
    fails_with(&lab, ["node1", "node2", "Host key verification failed: Host key has changed", "1"])
        .complains(&["hint: run `hvdctl keys push`"]);
    on(
        "node2",
        "cd /opt/horovod/ssh && cat ../test-key >ssh_host_ed25519_key && rm ../test-* && docker restart -t 1 hworker",
    );
    eventually(s(5), || !listeners("node2").is_empty());

    on("node2", "sed -i '/hvdctl:lab/d' /opt/horovod/ssh/authorized_keys");
    fails_with(&lab, ["node1", "node2", "Permission denied (publickey).", "1"])
        .complains(&["hint: run `hvdctl keys push`"]);
    lab.hvdctl(&["keys", "push"]).code(0);

    // the port of the inventory has changed since
    lab.edit("[defaults]", "port = 12346\n[defaults]");
    lab.hvdctl(&["verify"]).code(1).says(&["node1", "node2", "its worker is out of date (port): hvdctl up"]);
    lab.hvdctl(&["up"]).code(0);
    lab.hvdctl(&["run", "-np", "2", "--", "true"]).code(0);
    assert_eq!(traces(), "");
    no_job_is_left();
}

#[test]
fn the_key_is_seen_nowhere_and_nothing_is_left_even_of_a_killed_check() {
    let lab = Lab::up();
    assert_eq!(traces(), "");
    let private = on("node1", "cat /opt/horovod/ssh/id_ed25519");
    let lines: Vec<&str> = private.lines().filter(|line| !line.starts_with("-----") && line.len() > 20).collect();
    // the first line of an unencrypted key is the same for all, and the second begins with the public half
    let pieces: Vec<&str> = lines[2..].iter().map(|line| &line[..40]).collect();
    assert!(pieces.len() >= 2, "{}", lines.len());

    // the dropped packets make the check last until its limit
    let wall = firewall("DROP");
    for killed in [false, true] {
        let watchers = NODES.map(|node| Watcher::start_every(Duration::from_millis(100), Some(node), &[]));
        let mut verify = lab.start(&["verify"]);
        assert!(eventually(s(10), || traces().contains("ssh-agent")), "no agent was seen");
        assert!(traces().contains("/tmp/hvdctl-reach."), "{}", traces());
        // the files in the workers meanwhile: a socket, and ssh's messages
        for node in NODES {
            // over standard input, so that the watcher does not see this command
            let grep = "docker exec -i hworker grep -rlF -f - /tmp /run /var/tmp /dev/shm 2>/dev/null; :";
            let found = Running::start(node_command(node, &["sh", "-c", grep]), format!("{}\n", pieces[0]).as_bytes())
                .end(s(10))
                .code(0);
            assert_eq!(found.out, "", "the key lies in a file of {node}'s worker");
        }
        if killed {
            verify.signal("KILL");
            verify.end(s(5)).code(137);
        } else {
            assert!(verify.runs(), "it was watched while it ran");
            verify.end(s(40)).code(1);
            // at its own end, and not some time later
            assert_eq!(traces(), "");
        }
        for (node, watcher) in NODES.iter().zip(watchers) {
            let seen = watcher.stop();
            assert!(has(&seen, "ssh-agent") && has(&seen, "BatchMode=yes"), "{node}: the check was not seen");
            for piece in &pieces {
                assert!(
                    !has(&seen, piece),
                    "a part of the private key was an argument or in the environment on {node}"
                );
            }
        }
        // that of a killed hvdctl continues until its limit
        assert!(eventually(s(40), || traces().is_empty()), "left behind: {}", traces());
    }
    drop(wall);
    assert_eq!(on("node2", "ls /opt/horovod/ssh | grep '^id_'; :"), "", "only the master has the key");
}
