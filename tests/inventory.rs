//! The inventory file: what is accepted, what is refused with which messages, and that no input makes it panic.

use hvdctl::inventory::{
    Bench, Bind, Cluster, Container, Controller, Device, EngineChoice, Faults, Gpus, Inventory, KeyType, LauncherName,
    Mount, Node, Pull, RuntimeChoice, TABLES, Ulimit, names,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

const EXAMPLE: &str = include_str!("../inventory.example.toml");

fn parse(text: &str) -> Result<Inventory, Faults> {
    Inventory::parse(text, Path::new("inventory.toml"))
}

/// `line:column: message` of each fault.
fn faults(text: &str) -> Vec<String> {
    match parse(text) {
        Ok(inventory) => panic!("expected faults in\n{text}\nfound {inventory:#?}"),
        Err(faults) => faults.faults.iter().map(|f| format!("{}:{}: {}", f.line, f.column, f.message)).collect(),
    }
}

/// A valid inventory with this line in `[cluster]`, as its line 3.
fn in_cluster(line: &str) -> String {
    format!("[cluster]\nname = \"lab\"\n{line}\n[[node]]\nhost = \"a\"\n")
}

/// A valid inventory with this line in its only `[[node]]`, as its line 5.
fn in_node(line: &str) -> String {
    format!("[cluster]\nname = \"lab\"\n[[node]]\nhost = \"a\"\n{line}\n")
}

/// A valid inventory with these nodes, from line 3 on.
fn with_nodes(nodes: &str) -> String {
    format!("[cluster]\nname = \"lab\"\n{nodes}")
}

#[test]
fn the_smallest_has_the_documented_defaults() {
    let inventory = parse(&in_node("")).expect("valid");
    let cluster = Cluster {
        engine: EngineChoice::Auto,
        name: "lab".into(),
        image: "horovod/horovod:latest".into(),
        pull: Pull::Missing,
        runtime: RuntimeChoice::Container,
        state_dir: None,
        network: None,
        network_range: None,
        network_port: 51820,
        network_interface: "hmesh".into(),
        port: 12345,
        worker: "hworker".into(),
        master: "hmaster".into(),
        ssh_dir: "/opt/horovod/ssh".into(),
        projects_dir: "/opt/horovod/projects".into(),
        jobs_dir: "/opt/horovod/jobs".into(),
        data_dir: "/opt/horovod/data".into(),
        key_type: KeyType::Rsa,
        launcher: LauncherName::Horovodrun,
        controller: Controller::Gloo,
        bind: None,
        shm_size: 8 * 1024 * 1024 * 1024,
        ssh_config: None,
        connect_timeout: Duration::from_secs(10),
        command_timeout: Duration::from_secs(60),
        start_timeout: Duration::from_secs(120),
        stop_grace: Duration::from_secs(10),
        stall_warning: Duration::from_secs(1800),
        sample: Duration::from_secs(5),
        stall_timeout: Duration::ZERO,
        idle_margin: Duration::from_secs(30),
        isolated_after: Duration::from_secs(180),
        restart_pause: Duration::from_secs(2),
        elastic_timeout: Duration::from_secs(600),
        worker_idle: Duration::from_secs(60),
        keep_alive: Duration::from_secs(15),
        connection_idle: Duration::from_secs(600),
    };
    let node = Node {
        engine: None,
        name: "a".into(),
        host: "a".into(),
        user: None,
        ssh_port: None,
        identity: None,
        jump: None,
        gpus: Gpus::Auto,
        slots: None,
        address: None,
        interface: None,
        endpoint: None,
        owner: None,
        host_key: None,
        container: Container::default(),
        master: true,
    };
    assert_eq!(
        inventory,
        Inventory {
            cluster,
            bench: Bench::default(),
            pool: None,
            slurm: None,
            nodes: vec![node],
            groups: BTreeMap::new()
        }
    );
}

#[test]
#[expect(clippy::too_many_lines, reason = "an inventory with all fields, and what it is read as")]
fn every_field_is_read() {
    let text = r#"
[cluster]
name = "Lab_1.a-b"
image = "registry.example.com:5000/team/horovod:0.28@sha256:0123456789abcdef0123456789abcdef"
pull = "never"
network_port = 51_821
network_interface = "hmesh-2"
port = 0x1234
worker = "w1"
master = "m1"
ssh_dir = "/srv/h/ssh"
projects_dir = "/srv/h/projects"
jobs_dir = "/srv/h/jobs of ours"
data_dir = "/srv/h/data"
key_type = "ed25519"
controller = "mpi"
bind = "core"
shm_size = "512m"
ssh_config = "ssh_config"
connect_timeout_s = 600
command_timeout_s = 1
start_timeout_s = 1_000
stop_grace_s = 0
stall_warning_s = 60
sample_s = 1
stall_timeout_s = 604800
idle_margin_s = 0
isolated_after_s = 0
restart_pause_s = 300
elastic_timeout_s = 60
worker_idle_s = 5
keep_alive_s = 1
connection_idle_s = 0
[defaults]
user = "workshop"
ssh_port = 2222
identity = "keys/id"
jump = "ana@gate:2222,[fd00::1]:22"
gpus = 4
slots = 2
interface = "eth0"
mounts = ["/data:/data:ro", { source = "/s:1", target = "/scratch" }]
devices = ["/dev/infiniband", "/dev/a:/dev/b:rm"]
ulimits = { memlock = -1, nofile = { soft = 1024, hard = 4096 } }
cap_add = ["NET_RAW"]
env = { NCCL_DEBUG = "INFO", OMP_NUM_THREADS = 4 }
env_file = "secrets.env"
[groups]
one = "größe"
all = ["@one", "10.0.0.2"]
[[node]]
host = "fe80::1%eth0"
name = "größe"
[[node]]
host = "10.0.0.2"
user = 'DOMAIN\user'
ssh_port = 22
identity = "/keys/id"
jump = "none"
gpus = "auto"
slots = 1024
address = "fd00::2"
interface = "ib0.8001"
mounts = []
devices = ["/dev/c:r"]
ulimits = { stack = 1 }
cap_add = ["SYS_PTRACE", "NET_ADMIN"]
env = { NCCL_DEBUG = "", B = "x" }
env_file = "/e"
master = true
"#;
    let inventory = Inventory::parse(text, Path::new("/etc/hvdctl/inventory.toml")).expect("valid");
    let cluster = Cluster {
        engine: EngineChoice::Auto,
        name: "Lab_1.a-b".into(),
        image: "registry.example.com:5000/team/horovod:0.28@sha256:0123456789abcdef0123456789abcdef".into(),
        pull: Pull::Never,
        runtime: RuntimeChoice::Container,
        state_dir: None,
        network: None,
        network_range: None,
        network_port: 51821,
        network_interface: "hmesh-2".into(),
        port: 0x1234,
        worker: "w1".into(),
        master: "m1".into(),
        ssh_dir: "/srv/h/ssh".into(),
        projects_dir: "/srv/h/projects".into(),
        jobs_dir: "/srv/h/jobs of ours".into(),
        data_dir: "/srv/h/data".into(),
        key_type: KeyType::Ed25519,
        launcher: LauncherName::Horovodrun,
        controller: Controller::Mpi,
        bind: Some(Bind::Core),
        shm_size: 512 * 1024 * 1024,
        ssh_config: Some("/etc/hvdctl/ssh_config".into()),
        connect_timeout: Duration::from_secs(600),
        command_timeout: Duration::from_secs(1),
        start_timeout: Duration::from_secs(1000),
        stop_grace: Duration::ZERO,
        stall_warning: Duration::from_secs(60),
        sample: Duration::from_secs(1),
        stall_timeout: Duration::from_secs(604_800),
        idle_margin: Duration::ZERO,
        isolated_after: Duration::ZERO,
        restart_pause: Duration::from_secs(300),
        elastic_timeout: Duration::from_secs(60),
        worker_idle: Duration::from_secs(5),
        keep_alive: Duration::from_secs(1),
        connection_idle: Duration::ZERO,
    };
    let mount =
        |source: &str, target: &str, read_only| Mount { source: source.into(), target: target.into(), read_only };
    let device = |source: &str, target: &str, permissions: &str| Device {
        source: source.into(),
        target: target.into(),
        permissions: permissions.into(),
    };
    let limit = |name: &str, soft, hard| (name.to_owned(), Ulimit { soft, hard });
    let variable = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let first = Node {
        engine: None,
        name: "größe".into(),
        host: "fe80::1%eth0".into(),
        user: Some("workshop".into()),
        ssh_port: Some(2222),
        identity: Some("/etc/hvdctl/keys/id".into()),
        jump: Some("ana@gate:2222,[fd00::1]:22".into()),
        gpus: Gpus::Count(4),
        slots: Some(2),
        address: None,
        interface: Some("eth0".into()),
        endpoint: None,
        owner: None,
        host_key: None,
        container: Container {
            mounts: vec![mount("/data", "/data", true), mount("/s:1", "/scratch", false)],
            devices: vec![device("/dev/infiniband", "/dev/infiniband", "rwm"), device("/dev/a", "/dev/b", "rm")],
            activate: Vec::new(),
            ulimits: [limit("memlock", -1, -1), limit("nofile", 1024, 4096)].into(),
            cap_add: vec!["NET_RAW".into()],
            env: [variable("NCCL_DEBUG", "INFO"), variable("OMP_NUM_THREADS", "4")].into(),
            env_file: Some("/etc/hvdctl/secrets.env".into()),
        },
        master: false,
    };
    let second = Node {
        engine: None,
        name: "10.0.0.2".into(),
        host: "10.0.0.2".into(),
        user: Some(r"DOMAIN\user".into()),
        ssh_port: Some(22),
        identity: Some("/keys/id".into()),
        jump: Some("none".into()),
        gpus: Gpus::Auto,
        slots: Some(1024),
        address: Some("fd00::2".parse().expect("an address")),
        interface: Some("ib0.8001".into()),
        endpoint: None,
        owner: None,
        host_key: None,
        container: Container {
            mounts: Vec::new(),
            devices: vec![device("/dev/c", "/dev/c", "r")],
            activate: Vec::new(),
            ulimits: [limit("memlock", -1, -1), limit("nofile", 1024, 4096), limit("stack", 1, 1)].into(),
            cap_add: vec!["SYS_PTRACE".into(), "NET_ADMIN".into()],
            env: [variable("B", "x"), variable("NCCL_DEBUG", ""), variable("OMP_NUM_THREADS", "4")].into(),
            env_file: Some("/e".into()),
        },
        master: true,
    };
    assert_eq!(inventory.master(), &second);
    let groups = [("all", vec!["größe".to_owned(), "10.0.0.2".to_owned()]), ("one", vec!["größe".to_owned()])];
    let groups = groups.map(|(name, nodes)| (name.to_owned(), nodes)).into();
    assert_eq!(
        inventory,
        Inventory { cluster, bench: Bench::default(), pool: None, slurm: None, nodes: vec![first, second], groups }
    );
}

#[test]
fn paths_start_from_home_or_the_inventorys_directory() {
    let home = PathBuf::from(std::env::var_os("HOME").expect("a home"));
    for (value, expected) in [
        ("~/.ssh/id", home.join(".ssh/id")),
        ("id", "lab/id".into()),
        ("./keys/id", "lab/./keys/id".into()),
        ("/keys/id", "/keys/id".into()),
        ("my key", "lab/my key".into()),
    ] {
        let text = in_node(&format!("identity = {value:?}"));
        let inventory = Inventory::parse(&text, Path::new("lab/inventory.toml")).expect("valid");
        assert_eq!(inventory.nodes[0].identity, Some(expected), "{value}");
    }
    let inventory = parse(&in_cluster("ssh_config = \"c\"")).expect("valid");
    assert_eq!(inventory.cluster.ssh_config, Some("c".into()), "no directory in the file's name");
}

#[test]
fn the_master() {
    for (nodes, master) in [
        ("[[node]]\nhost = 'a'\n[[node]]\nhost = 'b'\n", "a"),
        ("[[node]]\nhost = 'a'\n[[node]]\nhost = 'b'\nmaster = true\n", "b"),
        ("[[node]]\nhost = 'a'\nmaster = true\n[[node]]\nhost = 'b'\nmaster = false\n", "a"),
        ("[[node]]\nhost = 'a'\nmaster = false\n[[node]]\nhost = 'b'\n", "b"),
    ] {
        let inventory = parse(&with_nodes(nodes)).expect("valid");
        assert_eq!(inventory.master().name, master, "{nodes}");
        assert_eq!(inventory.nodes.iter().filter(|node| node.master).count(), 1, "{nodes}");
    }
}

#[test]
fn this_machine_alone() {
    let inventory = Inventory::local("box", "horovod/horovod:0.28");
    assert_eq!(inventory.cluster, Cluster { image: "horovod/horovod:0.28".into(), ..Cluster::default() });
    assert_eq!(inventory.cluster.name, "local");
    assert_eq!(inventory.nodes.len(), 1);
    let master = inventory.master();
    assert_eq!(
        (&master.name[..], &master.host[..], &master.gpus, master.master),
        ("box", "localhost", &Gpus::Auto, true)
    );
}

#[test]
fn other_ways_to_write_the_same() {
    let expected = parse(&in_node("gpus = 1")).expect("valid");
    for text in [
        "\u{feff}[cluster]\nname = \"lab\"\n[[node]]\nhost = \"a\"\ngpus = 1",
        "[cluster]\r\nname = \"lab\"\r\n[[node]]\r\nhost = \"a\"\r\ngpus = 1\r\n",
        "cluster.name = 'lab'\nnode = [{ host = 'a', gpus = 0x1 }]",
        "cluster = { \"na\\u006De\" = 'lab' }\n[[node]]\nhost = '''a'''\ngpus = +1",
        "[[node]]\nhost = 'a'\n[defaults]\ngpus = 1\n[cluster]\nname = 'lab'",
    ] {
        assert_eq!(parse(text).as_ref(), Ok(&expected), "{text}");
    }
    for (size, bytes) in [
        ("'8g'", 8 << 30),
        ("'8G'", 8 << 30),
        ("'8GiB'", 8 << 30),
        ("'64k'", 64 << 10),
        ("'1t'", 1 << 40),
        ("'65536'", 65536),
        ("65536", 65536),
        ("0x10000", 65536),
    ] {
        let inventory = parse(&in_cluster(&format!("shm_size = {size}"))).expect("valid");
        assert_eq!(inventory.cluster.shm_size, bytes, "{size}");
    }
}

#[test]
fn unknown_fields_and_tables() {
    let cluster = names("cluster").join(", ");
    let node = names("node").join(", ");
    let defaults = names("defaults").join(", ");
    let tables = TABLES.join(", ");
    for (text, expected) in [
        (in_node("gpu = 1"), format!("5:1: node.gpu: unknown field; did you mean `gpus`? (known: {node})")),
        (in_node("port = 22"), format!("5:1: node.port: unknown field; did you mean `ssh_port`? (known: {node})")),
        (in_node("image = 'a'"), format!("5:1: node.image: unknown field; it belongs in [cluster] (known: {node})")),
        (in_node("colour = 1"), format!("5:1: node.colour: unknown field (known: {node})")),
        (in_node("a.b = 1"), format!("5:1: node.a: unknown field (known: {node})")),
        (in_node("'a b' = 1"), format!("5:1: node.\"a b\": unknown field (known: {node})")),
        (in_node("\"\\u001b\" = 1"), format!("5:1: node.\"\\u{{1b}}\": unknown field (known: {node})")),
        (
            in_cluster("slots = 1"),
            format!("3:1: cluster.slots: unknown field; it belongs in [defaults] or [[node]] (known: {cluster})"),
        ),
        (
            in_cluster("connect_timeout = 1"),
            format!(
                "3:1: cluster.connect_timeout: unknown field; did you mean `connect_timeout_s`? (known: {cluster})"
            ),
        ),
        (
            in_node("[defaults]\nhost = 'a'"),
            format!(
                "6:1: defaults.host: unknown field; it belongs in [[node]] or [pool] or [slurm] (known: {defaults})"
            ),
        ),
        (
            format!("port = 1\n{}", in_node("")),
            format!("1:1: port: unknown field; it belongs in [cluster] (known: {tables})"),
        ),
        (
            in_node("[default]\ngpus = 1"),
            format!("5:2: default: unknown field; did you mean `defaults`? (known: {tables})"),
        ),
        (in_node("[extra]\na = 1"), format!("5:2: extra: unknown field (known: {tables})")),
        (in_node("[group]\na = 1"), format!("5:2: group: unknown field; did you mean `groups`? (known: {tables})")),
    ] {
        assert_eq!(faults(&text), [expected], "{text}");
    }
}

#[test]
fn what_is_missing() {
    const CLUSTER: &str = "1:1: cluster: missing; expected a table [cluster] with at least a `name`";
    const NODE: &str = "1:1: node: missing; expected at least one [[node]] with a `host`";
    const NAME: &str = "cluster.name: missing; expected 1 to 63 letters, digits, `_`, `.` or `-`, \
                        the first a letter or digit";
    const HOST: &str = "node.host: missing; expected a host as for ssh: an alias, a name or an address";
    for (text, expected) in [
        ("", vec![CLUSTER.to_owned(), NODE.to_owned()]),
        ("\u{feff}", vec![CLUSTER.to_owned(), NODE.to_owned()]),
        ("[[node]]\nhost = 'a'\n", vec![CLUSTER.to_owned()]),
        ("[cluster]\nname = 'lab'\n", vec![NODE.to_owned()]),
        ("# all\n[cluster]\n[[node]]\nhost = 'a'\n[[node]]\n", vec![format!("2:1: {NAME}"), format!("5:1: {HOST}")]),
        ("cluster.port = 1\nnode = [{}]\n", vec![format!("1:1: {NAME}"), format!("2:9: {HOST}")]),
    ] {
        assert_eq!(faults(text), expected, "{text}");
    }
}

#[test]
fn tables_that_are_something_else() {
    const NODE: &str = "node: expected [[node]] with two brackets, once for each machine, found";
    for (text, expected) in [
        ("cluster = 5\n[[node]]\nhost = 'a'", "1:11: cluster: expected one table [cluster], found 5"),
        ("[[node]]\nhost = 'a'\n[[cluster]]\nname = 'x'", "3:1: cluster: expected one table [cluster], found an array"),
        (
            "defaults = []\n[cluster]\nname = 'x'\n[[node]]\nhost = 'a'",
            "1:12: defaults: expected one table [defaults], found an array",
        ),
        ("node = []\n[cluster]\nname = 'x'", &format!("1:8: {NODE} an array")),
        ("node = 'a'\n[cluster]\nname = 'x'", &format!("1:8: {NODE} \"a\"")),
        (
            "node = [{ host = 'a' }, 'b']\n[cluster]\nname = 'x'",
            "1:25: node: expected a table for each machine, found \"b\"",
        ),
        (
            "[cluster]\nname = 'x'\n[node]\nhost = 'a'",
            "3:1: node: expected [[node]] with two brackets, once for each machine, found a table",
        ),
    ] {
        assert_eq!(faults(text), [expected], "{text}");
    }
}

#[test]
fn text_that_is_no_toml() {
    for (text, expected) in [
        ("[cluster]\nname = lab\n", vec!["2:8: not TOML: string values must be quoted, expected literal string"]),
        ("[cluster]\nname =\n", vec!["2:7: not TOML: string values must be quoted, expected literal string"]),
        ("[cluster", vec!["1:9: not TOML: unclosed table, expected `]`"]),
        ("# größe\r\na = 'ü\r\n", vec!["2:8: not TOML: invalid literal string, expected `'`"]),
        (
            "cluster:\n  name: lab\n",
            vec!["1:9: not TOML: key with no value, expected `=`", "2:9: not TOML: key with no value, expected `=`"],
        ),
        // One line, one fault; and nothing is said about fields that may have been lost.
        (
            "x = 1 y = 2\nz",
            vec![
                "1:9: not TOML: unexpected key or value, expected newline, `#`",
                "2:2: not TOML: key with no value, expected `=`",
            ],
        ),
    ] {
        assert_eq!(faults(text), expected, "{text}");
    }
    // A duplicate key is all that is wrong with the text as TOML, so the rest is judged too.
    assert_eq!(
        faults(&in_cluster("port = 1\nport = 2\nworker = 5")),
        [
            "4:1: not TOML: duplicate key",
            "5:10: cluster.worker: expected a container's name: 2 to 63 letters, digits, `_`, `.` or `-`, \
         the first a letter or digit, found 5",
        ]
    );
}

#[test]
fn all_faults_at_once_as_they_are_shown() {
    let text = "\u{feff}[cluster]\r\nname = \"lab\"\r\n\r\n\tport = 70000  # high\r\n[[node]]\r\n\
                host = \"größe\"\r\n[[node]]\r\nhost = \"a\"\r\ngpu = 1\r\nslots = '''\r\n1'''\r\n";
    let faults = parse(text).expect_err("faults");
    assert_eq!(
        faults.to_string(),
        "\
inventory.toml: 4 faults
  inventory.toml:4:9: cluster.port: expected a port from 1 to 65535, found 70000
    4 |  port = 70000  # high
      |         ^^^^^
  inventory.toml:6:8: node.host: expected a host as for ssh: an alias, a name or an address, found \"größe\"
    6 | host = \"größe\"
      |        ^^^^^^^
  inventory.toml:9:1: node.gpu: unknown field; did you mean `gpus`? \
(known: host, name, user, ssh_port, identity, jump, engine, gpus, slots, address, interface, endpoint, owner, host_key, master, mounts, \
devices, ulimits, cap_add, activate, env, env_file)
    9 | gpu = 1
      | ^^^
  inventory.toml:10:9: node.slots: expected a number of slots from 1 to 1024, found \"1\"
    10 | slots = '''
       |         ^^^"
    );
    let one = parse("[cluster]\nname = 'lab'").expect_err("a fault").to_string();
    assert_eq!(
        one,
        "inventory.toml: 1 fault\n  inventory.toml:1:1: node: missing; expected at least one [[node]] with a `host`"
    );
}

#[test]
fn excerpts_are_short_and_safe() {
    let faults = parse(&in_cluster("port = '\u{202e}' # high")).expect_err("a fault");
    assert_eq!(faults.faults[0].excerpt.as_deref(), Some("3 | port = '\u{fffd}' # high\n  |        ^^^"));
    assert!(faults.faults[0].message.ends_with(r#"found "\u{202e}""#), "{faults}");

    let inline = format!("node = [{}{{ host = 5 }}, {}]", "{ host = 'a' }, ".repeat(20), "{ host = 'b' }, ".repeat(20));
    let faults = parse(&format!("{inline}\n[cluster]\nname = 'lab'")).expect_err("faults");
    let fault = faults.faults.iter().find(|fault| fault.message.contains("found 5")).expect("that fault");
    assert_eq!((fault.line, fault.column, &fault.excerpt), (1, 338, &None), "{faults}");
}

#[test]
fn files() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("inventory.toml");
    let refused = |file: &Path| {
        let error = Inventory::load(file).expect_err("no inventory").to_string();
        error.replace(&format!("{}/", directory.path().display()), "")
    };
    assert_eq!(refused(&file), "inventory.toml: cannot be read: No such file or directory (os error 2)");
    assert!(refused(directory.path()).ends_with(": cannot be read: Is a directory (os error 21)"));
    std::fs::write(&file, b"[cluster]\nname = \"gr\xf6\xdfe\"\n").expect("written");
    assert_eq!(refused(&file), "inventory.toml:2: expected UTF-8 text");
    std::fs::write(&file, in_cluster("ssh_config = 'c'")).expect("written");
    let inventory = Inventory::load(&file).expect("valid");
    assert_eq!(inventory.cluster.ssh_config, Some(directory.path().join("c")));
}

#[test]
fn as_json_it_looks_like_the_file() {
    let inventory = parse(&in_node("gpus = 2\naddress = '10.0.0.1'")).expect("valid");
    let json = serde_json::to_value(&inventory).expect("JSON");
    let fields = |value: &serde_json::Value| {
        let mut fields: Vec<String> = value.as_object().expect("an object").keys().cloned().collect();
        fields.sort();
        fields
    };
    let sorted = |fields: &[&str]| {
        let mut fields: Vec<String> = fields.iter().map(|field| (*field).to_owned()).collect();
        fields.sort();
        fields
    };
    assert_eq!(fields(&json["cluster"]), sorted(&names("cluster")));
    assert_eq!(fields(&json["nodes"][0]), sorted(&names("node")));
    assert_eq!(json["cluster"]["connect_timeout_s"], 10);
    assert_eq!(json["cluster"]["key_type"], "rsa");
    assert_eq!(json["nodes"][0]["gpus"], 2);
    assert_eq!(json["nodes"][0]["address"], "10.0.0.1");
}

/// Each listed field is one that the reader reads: it refuses a wrong type there, as a known field.
#[test]
fn the_lists_of_fields_are_the_readers() {
    for (table, fields) in ["bench", "cluster", "defaults", "node", "pool", "slurm"].map(|table| (table, names(table)))
    {
        for field in fields {
            let heading = if table == "node" { "[[node]]".to_owned() } else { format!("[{table}]") };
            let found = faults(&format!("{heading}\n{field} = 2024-01-01\n"));
            let expected = format!("2:{}: {table}.{field}: expected ", field.len() + 4);
            assert!(found.iter().any(|f| f.starts_with(&expected) && f.ends_with("found 2024-01-01")), "{found:?}");
        }
    }
    for field in names("defaults") {
        assert!(names("node").contains(&field), "{field}");
    }
}

/// The example with every field in force that it only shows.
fn example_in_full() -> String {
    let in_force = |line: &str| match line.strip_prefix("# ") {
        Some(rest) if is_field(rest) => rest.to_owned(),
        _ => line.to_owned(),
    };
    EXAMPLE.lines().map(in_force).collect::<Vec<_>>().join("\n")
}

/// Returns true if a line, maybe a comment's, sets a field.
fn is_field(line: &str) -> bool {
    let Some((field, value)) = line.split_once(" = ") else { return false };
    field.chars().all(|c| c.is_ascii_lowercase() || c == '_') && !value.is_empty()
}

#[test]
fn the_example_is_valid_and_names_every_field_with_its_default() {
    let example = parse(EXAMPLE).unwrap_or_else(|faults| panic!("{faults}"));
    let smallest = parse("[cluster]\nname = 'lab'\n[[node]]\nhost = 'node1'\n[[node]]\nhost = 'node2'\n");
    assert_eq!(Ok(&example), smallest.as_ref(), "every value in it is the default");

    let full = example_in_full();
    let inventory = parse(&full).unwrap_or_else(|faults| panic!("{faults}"));
    assert_ne!(inventory, example, "what is commented out is not the default");
    let table: toml::Table = full.parse().expect("TOML");
    let nodes = table["node"].as_array().expect("nodes");
    let named = |name: &str, field: &str| match name {
        "node" => nodes.iter().any(|node| node.get(field).is_some()),
        _ => table[name].get(field).is_some(),
    };
    assert!(table["groups"].as_table().is_some_and(|groups| groups.len() > 1));
    for (name, fields) in ["bench", "cluster", "defaults", "node", "pool", "slurm"].map(|table| (table, names(table))) {
        for field in fields {
            // what the other runtime has is shown, and cannot be in force
            let is_shown = EXAMPLE.lines().any(|line| line.starts_with(&format!("#   {field} = ")));
            assert!(named(name, field) || is_shown, "{name}.{field} is not in the example");
        }
    }
    assert_eq!(table.len(), TABLES.len());
}
