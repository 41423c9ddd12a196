//! Which values of single fields are refused, where and in which words, and the odd ones that are not.

use super::{CLUSTER_FIELDS, DEFAULTS_FIELDS, Faults, Inventory, NODE_FIELDS};
use std::path::Path;

fn parse(text: &str) -> Result<Inventory, Faults> {
    Inventory::parse(text, Path::new("inventory.toml"))
}

/// `line:column: message` of each fault.
fn faults(text: &str) -> Vec<String> {
    let faults = parse(text).expect_err(text);
    faults.faults.iter().map(|f| format!("{}:{}: {}", f.line, f.column, f.message)).collect()
}

/// A valid inventory if this is a valid host.
fn with_host(host: &str) -> String {
    format!("[cluster]\nname = 'lab'\n[[node]]\nhost = {host:?}\n")
}

/// Values that are refused: under the field and what is expected of it, each value and what is said to be found.
const REFUSED: &str = r#"
cluster.name: 1 to 63 letters, digits, `_`, `.` or `-`, the first a letter or digit
  "" -> ""
  "-lab" -> "-lab"
  "a/b" -> "a/b"
  5 -> the integer 5
cluster.image: an image as Docker names it, like "horovod/horovod:latest"
  "" -> ""
  " " -> " "
  "-v" -> "-v"
  "a b" -> "a b"
  "a:b:c" -> "a:b:c"
  "a@sha256:xyz" -> "a@sha256:xyz"
  "a//b" -> "a//b"
  "a/Horovod" -> "a/Horovod"; its path is written in lower case
cluster.port: a port from 1 to 65535
  70000 -> 70000
  0 -> 0
  -1 -> -1
  99999999999999999999999999 -> 99999999999999999999999999
  0x -> 0x
  "12345" -> the string "12345"
  12345.0 -> the float 12345.0
  true -> true
  2024-01-01 -> the date 2024-01-01
  [1] -> an array
  { a = 1 } -> a table
cluster.worker: a container's name: 2 to 63 letters, digits, `_`, `.` or `-`, the first a letter or digit
  "" -> ""
  "w" -> "w"
  "-w" -> "-w"
  "a b" -> "a b"
  5 -> the integer 5
cluster.master: a container's name: 2 to 63 letters, digits, `_`, `.` or `-`, the first a letter or digit
  "größe" -> "größe"
  "a\u001b[31m" -> "a\u{1b}[31m"
  "m123456789m123456789m123456789m123456789m123456789m1234567890123" -> "m123456789m123456789m123456789m123456789m123456789m123456789"…; it is 64 characters long
cluster.ssh_dir: an absolute path of a folder on the nodes, without `:`
  "/" -> "/"; hvdctl needs a folder of its own
  "/etc" -> "/etc"; hvdctl needs a folder of its own
  "/root/.ssh" -> "/root/.ssh"; hvdctl needs a folder of its own
  "" -> ""; it does not begin with `/`
  "ssh" -> "ssh"; it does not begin with `/`
  "~/ssh" -> "~/ssh"; it does not begin with `/`
cluster.projects_dir: an absolute path of a folder on the nodes, without `:`
  "/a:b" -> "/a:b"; Docker's mounts cannot hold a `:`
  "/a\nb" -> "/a\nb"; it contains a control character
cluster.jobs_dir: an absolute path of a folder on the nodes, without `:`
  "/a/" -> "/a/"; it must be written without `//`, `.`, `..` and a `/` at the end
  "//a" -> "//a"; it must be written without `//`, `.`, `..` and a `/` at the end
  "/a/../b" -> "/a/../b"; it must be written without `//`, `.`, `..` and a `/` at the end
cluster.key_type: "rsa" or "ed25519"
  "dsa" -> "dsa"
  4096 -> the integer 4096
cluster.controller: "gloo" or "mpi"
  "MPI" -> "MPI"
cluster.shm_size: a size of at least 64k, like "512m", "8g" or a number of bytes
  8 -> 8
  "8" -> "8"
  "8x" -> "8x"
  "g" -> "g"
  "1.5g" -> "1.5g"
  "-8g" -> "-8g"
  "99999999999t" -> "99999999999t"
  8.0 -> the float 8.0
cluster.ssh_config: the path of a file on this machine
  "" -> ""
  "~bob/c" -> "~bob/c"; only `~/` is understood
cluster.connect_timeout_s: 1 to 600 whole seconds
  0 -> 0
  601 -> 601
cluster.command_timeout_s: 1 to 86400 whole seconds
  1.5 -> the float 1.5
cluster.start_timeout_s: 1 to 86400 whole seconds
  "30s" -> the string "30s"
cluster.stop_grace_s: 0 to 3600 whole seconds
  -1 -> -1
node.host: what ssh is given: an alias, a name or an address
  "" -> ""
  "-oProxyCommand=id" -> "-oProxyCommand=id"
  "a b" -> "a b"
  "a;b" -> "a;b"
  "$(id)" -> "$(id)"
  "a\u0000" -> "a\0"
  "größe" -> "größe"
  "root@a" -> "root@a"; the user goes into `user`
  "ssh://a" -> "ssh://a"; it is not written as a URL
  "a:22" -> "a:22"; with `:` it would have to be an IPv6 address; a port goes into `ssh_port`
  "[::1]:22" -> "[::1]:22"; an IPv6 address is written without brackets here, and the port goes into `ssh_port`
  1 -> the integer 1
node.name: 1 to 253 letters, digits, `_`, `.`, `:`, `%` or `-`, the first no `-` or `.`
  "" -> ""
  "-a" -> "-a"
  "a b" -> "a b"
  "a,b" -> "a,b"
  "a/b" -> "a/b"
  ".." -> ".."
  "a\tb" -> "a\tb"
node.user: a user's name: letters, digits, `.`, `_`, `@`, `+`, `\` or `-`, the first no `-`
  "" -> ""
  "-oProxyCommand=x" -> "-oProxyCommand=x"
  "a b" -> "a b"
  1000 -> the integer 1000
node.ssh_port: a port from 1 to 65535
  0 -> 0
  65536 -> 65536
node.identity: the path of a file on this machine
  "" -> ""
  "keys/" -> "keys/"; that is a folder
  "a\u0000" -> "a\0"; it contains a control character
  ["a"] -> an array
node.gpus: a number of GPUs from 0 to 1024 or "auto"
  -1 -> -1
  1025 -> 1025
  "all" -> "all"
  "4" -> "4"
  true -> true
  4.0 -> the float 4.0
node.slots: a number of slots from 1 to 1024
  0 -> 0
  1025 -> 1025
  "auto" -> the string "auto"
node.address: an IPv4 or IPv6 address that other machines can reach
  "node1" -> "node1"
  "10.0.0.256" -> "10.0.0.256"
  "10.0.0.1/24" -> "10.0.0.1/24"
  "0.0.0.0" -> "0.0.0.0"
  "ff02::1" -> "ff02::1"
node.interface: a network interface like "eth0": 1 to 15 letters, digits, `.`, `_`, `@`, `:` or `-`, the first no `-`
  "" -> ""
  "eth0 " -> "eth0 "
  "abcdefghijklmnop" -> "abcdefghijklmnop"; it is 16 characters long
node.master: true or false
  "yes" -> the string "yes"
  1 -> the integer 1
"#;

#[test]
fn refused_values() {
    let (mut table, mut field, mut expected) = ("", "", "");
    let mut tried = Vec::new();
    for line in REFUSED.lines().filter(|line| !line.is_empty()) {
        let Some((value, found)) = line.strip_prefix("  ").and_then(|line| line.split_once(" -> ")) else {
            let (path, rest) = line.split_once(": ").expect("a field and what is expected");
            (table, field) = path.split_once('.').expect("a table and a field");
            expected = rest;
            tried.push(path);
            continue;
        };
        // The field under test comes last, in place of a good value if it is one that must be there.
        let name = if (table, field) == ("cluster", "name") { "" } else { "name = 'lab'\n" };
        let host = if (table, field) == ("node", "host") { "" } else { "host = 'a'\n" };
        let (cluster, node) = (format!("[cluster]\n{name}"), format!("[[node]]\n{host}"));
        let check = |table: &str, text: String| {
            let (line, column) = (text.lines().count(), field.len() + 4);
            let message = format!("{line}:{column}: {table}.{field}: expected {expected}, found {found}");
            assert_eq!(faults(&text), [message], "{text}");
        };
        match table {
            "cluster" => check(table, format!("{node}{cluster}{field} = {value}")),
            _ => check(table, format!("{cluster}{node}{field} = {value}")),
        }
        if table == "node" && DEFAULTS_FIELDS.contains(&field) {
            check("defaults", format!("{cluster}{node}[defaults]\n{field} = {value}"));
        }
    }
    let all = CLUSTER_FIELDS.iter().map(|field| format!("cluster.{field}"));
    for field in all.chain(NODE_FIELDS.iter().map(|field| format!("node.{field}"))) {
        assert!(tried.contains(&&field[..]), "{field}");
    }
}

#[test]
fn hosts_that_ssh_takes() {
    for host in ["a", "node-1.example.com", "node_1", "10.0.0.1", "::1", "fe80::1%eth0"] {
        let inventory = parse(&with_host(host)).expect(host);
        assert_eq!(inventory.nodes[0].name, host);
    }
    assert!(faults(&with_host(&"h".repeat(254)))[0].ends_with("hhh\"…; it is 254 characters long"));
}

#[test]
fn images_that_docker_takes() {
    for image in [
        "a",
        "horovod/horovod",
        "horovod/horovod:0.28.1-gpu",
        "hvdctl-lab/horovod",
        "a__b/c--d.e_f:T_1.x",
        "localhost/x:1",
        "localhost:5000/x/y",
        "REG.example.com:5000/x",
        "[::1]:5000/x",
        "a@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
        "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
    ] {
        assert_eq!(
            parse(&format!("cluster = {{ name = 'lab', image = {image:?} }}\n[[node]]\nhost = 'a'"))
                .expect(image)
                .cluster
                .image,
            image
        );
    }
}
