//! The values of single fields that are refused, with the place and the words of the message, and odd ones that are
//! not.

use super::{EngineChoice, Faults, Gpus, Inventory, LauncherName, Pool, RuntimeChoice, names};
use clap::ValueEnum as _;
use std::path::{Path, PathBuf};

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
  5 -> 5
cluster.image: an image as Docker names it, its path in lower case, like "horovod/horovod:latest"
  "" -> ""
  " " -> " "
  "-v" -> "-v"
  "a b" -> "a b"
  "a:b:c" -> "a:b:c"
  "a@sha256:xyz" -> "a@sha256:xyz"
  "a//b" -> "a//b"
  "a/Horovod" -> "a/Horovod"
cluster.pull: "missing" or "always" or "peers" or "never"
  "Always" -> "Always"
  true -> true
cluster.port: a port from 1 to 65535
  70000 -> 70000
  0 -> 0
  -1 -> -1
  99999999999999999999999999 -> 99999999999999999999999999
  0x -> 0x
  "12345" -> "12345"
  12345.0 -> 12345.0
  true -> true
  2024-01-01 -> 2024-01-01
  [1] -> an array
  { a = 1 } -> a table
cluster.network: "wireguard"
  "WireGuard" -> "WireGuard"
  "vxlan" -> "vxlan"
  true -> true
cluster.network_range: a range of private IPv4 addresses like "10.90.0.0/16", of 8 to 65536 addresses
  7 -> 7
  true -> true
cluster.network_port: a port from 1 to 65535
  0 -> 0
  "51820" -> "51820"
cluster.network_interface: hmesh, or a name that begins so, of at most 15 lower-case letters, digits, `_` and `-`
  "" -> ""
  "wg0" -> "wg0"
  "eth0" -> "eth0"
  "hmesh.1" -> "hmesh.1"
  "hmesh-Lab" -> "hmesh-Lab"
  "hmesh-0123456789" -> "hmesh-0123456789"; it is 16 characters long
  7 -> 7
cluster.worker: a container's name: 2 to 63 letters, digits, `_`, `.` or `-`, the first a letter or digit
  "" -> ""
  "w" -> "w"
  "-w" -> "-w"
  "a b" -> "a b"
  5 -> 5
cluster.master: a container's name: 2 to 63 letters, digits, `_`, `.` or `-`, the first a letter or digit
  "größe" -> "größe"
  "a\u001b[31m" -> "a\u{1b}[31m"
  "m123456789m123456789m123456789m123456789m123456789m1234567890123" -> "m123456789m123456789m123456789m123456789m123456789m123456789"…; it is 64 characters long
cluster.ssh_dir: an absolute path of a directory on the nodes, without `:`
  "/" -> "/"; hvdctl needs a directory of its own
  "/etc" -> "/etc"; hvdctl needs a directory of its own
  "/root/.ssh" -> "/root/.ssh"; hvdctl needs a directory of its own
  "" -> ""; a path is absolute, without `//`, `.`, `..`, control characters and a `/` at the end
  "ssh" -> "ssh"; a path is absolute, without `//`, `.`, `..`, control characters and a `/` at the end
  "~/ssh" -> "~/ssh"; a path is absolute, without `//`, `.`, `..`, control characters and a `/` at the end
cluster.projects_dir: an absolute path of a directory on the nodes, without `:`
  "/a:b" -> "/a:b"
  "/a\nb" -> "/a\nb"; a path is absolute, without `//`, `.`, `..`, control characters and a `/` at the end
cluster.jobs_dir: an absolute path of a directory on the nodes, without `:`
  "/a/" -> "/a/"; a path is absolute, without `//`, `.`, `..`, control characters and a `/` at the end
  "//a" -> "//a"; a path is absolute, without `//`, `.`, `..`, control characters and a `/` at the end
  "/a/../b" -> "/a/../b"; a path is absolute, without `//`, `.`, `..`, control characters and a `/` at the end
cluster.data_dir: an absolute path of a directory on the nodes, without `:`
  "data" -> "data"; a path is absolute, without `//`, `.`, `..`, control characters and a `/` at the end
  7 -> 7
cluster.key_type: "rsa" or "ed25519"
  "dsa" -> "dsa"
  4096 -> 4096
cluster.runtime: "container" or "process"
  "docker" -> "docker"
  true -> true
cluster.state_dir: an absolute path of a directory on the nodes, of letters, digits, `_`, `.`, `@`, `+`, `-` and `/`
  "~/x" -> "~/x"; a path is absolute, without `//`, `.`, `..`, control characters and a `/` at the end
  "/a b" -> "/a b"
  "/tmp" -> "/tmp"; hvdctl needs a directory of its own
cluster.engine: "auto" or "docker" or "podman"
  "Docker" -> "Docker"
  "containerd" -> "containerd"
node.engine: "auto" or "docker" or "podman"
  "" -> ""
  true -> true
cluster.launcher: "horovodrun" or "torchrun" or "mpirun" or "env"
  "slurm" -> "slurm"
cluster.controller: "gloo" or "mpi"
  "MPI" -> "MPI"
cluster.bind: "numa" or "core" or "none"
  "socket" -> "socket"
  false -> false
cluster.shm_size: a size of at least 64k, like "512m", "8g" or a number of bytes
  8 -> 8
  "8" -> "8"
  "8x" -> "8x"
  "g" -> "g"
  "1.5g" -> "1.5g"
  "-8g" -> "-8g"
  "99999999999t" -> "99999999999t"
  8.0 -> 8.0
cluster.ssh_config: the path of a file on this machine
  "" -> ""
  "~bob/c" -> "~bob/c"; only `~/` is expanded
cluster.connect_timeout_s: whole seconds from 1 to 600
  0 -> 0
  601 -> 601
cluster.command_timeout_s: whole seconds from 1 to 86400
  1.5 -> 1.5
cluster.start_timeout_s: whole seconds from 1 to 86400
  "30s" -> "30s"
cluster.stop_grace_s: whole seconds from 0 to 3600
  -1 -> -1
cluster.stall_warning_s: whole seconds from 0 to 604800
  -1 -> -1
  604801 -> 604801
cluster.stall_timeout_s: whole seconds from 0 to 604800
  "30m" -> "30m"
  604801 -> 604801
cluster.sample_s: whole seconds from 0 to 3600
  3601 -> 3601
  0.5 -> 0.5
cluster.idle_margin_s: whole seconds from 0 to 86400
  86401 -> 86401
cluster.isolated_after_s: whole seconds from 0 to 86400
  -1 -> -1
cluster.restart_pause_s: whole seconds from 0 to 300
  0.5 -> 0.5
  301 -> 301
cluster.elastic_timeout_s: whole seconds from 0 to 604800
  -1 -> -1
  604801 -> 604801
cluster.worker_idle_s: whole seconds from 5 to 86400
  4 -> 4
  86401 -> 86401
cluster.keep_alive_s: whole seconds from 1 to 600
  0 -> 0
  601 -> 601
cluster.connection_idle_s: whole seconds from 0 to 86400
  86401 -> 86401
node.host: a host as for ssh: an alias, a name or an address
  "" -> ""
  "-oProxyCommand=id" -> "-oProxyCommand=id"
  "a b" -> "a b"
  "a;b" -> "a;b"
  "$(id)" -> "$(id)"
  "a\u0000" -> "a\0"
  "größe" -> "größe"
  "root@a" -> "root@a"; set the user as `user`
  "ssh://a" -> "ssh://a"; set a port as `ssh_port`, and write an IPv6 address without brackets
  "n[1-" -> "n[1-"; a bracket is not closed
  "n[a-b]" -> "n[a-b]"; "a" is not a number of up to 9 digits
  "n[3-1]" -> "n[3-1]"; the range 3-1 is empty
  "n[0-99999]" -> "n[0-99999]"; with the range 0-99999 there are more than 10000 names
  "n[1-2];x" -> "n[1-2];x"
  "a:22" -> "a:22"; set a port as `ssh_port`, and write an IPv6 address without brackets
  "[::1]:22" -> "[::1]:22"; set a port as `ssh_port`, and write an IPv6 address without brackets
  1 -> 1
node.name: 1 to 253 letters, digits, `_`, `.`, `:`, `%` or `-`, the first not `-` or `.`
  "" -> ""
  "-a" -> "-a"
  "a b" -> "a b"
  "a,b" -> "a,b"
  "a/b" -> "a/b"
  ".." -> ".."
  "a\tb" -> "a\tb"
node.user: a user's name: letters, digits, `.`, `_`, `@`, `+`, `\` or `-`, the first not `-`
  "" -> ""
  "-oProxyCommand=x" -> "-oProxyCommand=x"
  "a b" -> "a b"
  1000 -> 1000
node.ssh_port: a port from 1 to 65535
  0 -> 0
  65536 -> 65536
node.identity: the path of a file on this machine
  "" -> ""
  "keys/" -> "keys/"
  "a\u0000" -> "a\0"
  ["a"] -> an array
node.jump: jump hosts as `ssh -J` takes them, like "ana@gate:2222" or "gate,[fd00::1]:22", or "none"
  "" -> ""
  "-oProxyCommand=x" -> "-oProxyCommand=x"
  "gate, inner" -> "gate, inner"
  "gate,,inner" -> "gate,,inner"
  "fd00::1" -> "fd00::1"
  "gate:0" -> "gate:0"
  "[fd00::1]22" -> "[fd00::1]22"
  "a\"b" -> "a\"b"
node.gpus: a number of GPUs from 0 to 1024, "auto", "all", "none", or a list of indices and UUIDs
  -1 -> -1
  1025 -> 1025
  "some" -> "some"
  "4" -> "4"
  true -> true
  4.0 -> 4.0
  [] -> an array
node.gpus: an index from 0 to 1023 or a UUID as `nvidia-smi -L` shows it
  ["all"] -> +1 "all"
  [1024] -> +1 1024
  ["01"] -> +1 "01"
  [0, -1] -> +4 -1
  ["GPU-x"] -> +1 "GPU-x"
  ["GPU-1,GPU-2"] -> +1 "GPU-1,GPU-2"
  ["MIG-"] -> +1 "MIG-"
  ["MIG-GPU-1/7"] -> +1 "MIG-GPU-1/7"
  ["MIG-3g.20gb"] -> +1 "MIG-3g.20gb"
  [0, [1]] -> +4 an array
node.slots: a number of slots from 1 to 1024
  0 -> 0
  1025 -> 1025
  "auto" -> "auto"
node.address: an IPv4 or IPv6 address that other machines can reach
  "node1" -> "node1"
  "10.0.0.256" -> "10.0.0.256"
  "10.0.0.1/24" -> "10.0.0.1/24"
  "0.0.0.0" -> "0.0.0.0"
  "ff02::1" -> "ff02::1"
node.endpoint: a host and a UDP port, like "gpu.example.org:51820", "203.0.113.5" or "[fd00::1]:51820"
  "" -> ""
  "a b" -> "a b"
  "a:0" -> "a:0"
  7 -> 7
node.interface: a network interface like "eth0": 1 to 15 letters, digits, `.`, `_`, `@`, `:` or `-`
  "" -> ""
  "eth0 " -> "eth0 "
  "abcdefghijklmnop" -> "abcdefghijklmnop"; it is 16 characters long
node.owner: a name in the file of allowed signers, like "ana@example.com": letters, digits, `@`, `.`, `_`, `+` or `-`, the first a letter or digit
  "" -> ""
  "*" -> "*"
node.host_key: a public key as in /etc/ssh/ssh_host_ed25519_key.pub, without its comment: ssh-ed25519, ssh-rsa or ecdsa-sha2-nistp256 (-nistp384, -nistp521), a space, and base64
  "" -> ""; the base64 is not that of a key of this type
  "ssh-rsa AAAAC3NzaC1lZDI1NTE5AAAA" -> "ssh-rsa AAAAC3NzaC1lZDI1NTE5AAAA"; the base64 is not that of a key of this type
  "ssh-dss AAAAB3NzaC1kc3M=" -> "ssh-dss AAAAB3NzaC1kc3M="
node.mounts: a list of at most 64, each a mount like "/data:/data:ro" or { source = "/data", target = "/data", read_only = true }
  "/a:/b" -> "/a:/b"
node.mounts: a mount like "/data:/data:ro" or { source = "/data", target = "/data", read_only = true }
  ["/a"] -> +1 "/a"
  ["/a:/b:/c:ro"] -> +1 "/a:/b:/c:ro"
  ["/a:/b:rx"] -> +1 "/a:/b:rx"
  ["data:/b"] -> +1 "data:/b"
  ["/a:b"] -> +1 "/a:b"
  ["/a/../b:/c"] -> +1 "/a/../b:/c"; a path is absolute, without `//`, `.`, `..`, control characters and a `/` at the end
  ["/a:/b\u0000"] -> +1 "/a:/b\0"; a path is absolute, without `//`, `.`, `..`, control characters and a `/` at the end
  ["/a:/"] -> +1 "/a:/"; / in the container is reserved for the image or hvdctl
  ["/a:/workspace"] -> +1 "/a:/workspace"; /workspace in the container is reserved for the image or hvdctl
  ["/a:/etc/hosts"] -> +1 "/a:/etc/hosts"; /etc/hosts in the container is reserved for the image or hvdctl
  ["/a:/root/.ssh/x"] -> +1 "/a:/root/.ssh/x"; /root/.ssh/x in the container is reserved for the image or hvdctl
  [{ source = "/a" }] -> +1 a table; missing field `target`
  [{ source = "/a", target = "b" }] -> +1 a table; a path is absolute, without `//`, `.`, `..`, control characters and a `/` at the end
  [{ source = "/a", target = "/b", ro = true }] -> +1 a table; unknown field `ro`, expected one of `source`, `target`, `read_only`
  [{ source = 1, target = "/b" }] -> +1 a table; invalid type: integer `1`, expected a string
  [{ source = "/a", target = "/b", read_only = 1 }] -> +1 a table; invalid type: integer `1`, expected a boolean
  [1] -> +1 1
node.devices: a device like "/dev/infiniband" or "/dev/fuse:/dev/fuse:rwm"
  [""] -> +1 ""; a device lies below /dev, and permissions are some of `rwm`
  ["/etc/passwd"] -> +1 "/etc/passwd"; a device lies below /dev, and permissions are some of `rwm`
  ["/dev/a:/dev/b:x"] -> +1 "/dev/a:/dev/b:x"; a device lies below /dev, and permissions are some of `rwm`
  [{ source = "/dev/a" }] -> +1 a table
node.ulimits: a table, each value a number, -1 for no limit, or { soft = 1024, hard = 4096 }
  -1 -> -1
  ["memlock"] -> an array
node.ulimits: a number, -1 for no limit, or { soft = 1024, hard = 4096 }
  { memlock = -2 } -> +12 -2; numbers start at -1, and `soft` is at most `hard`
  { memlock = "-1" } -> +12 "-1"
  { nofile = { soft = 2, hard = 1 } } -> +11 a table; numbers start at -1, and `soft` is at most `hard`
  { nofile = { soft = -1, hard = 1 } } -> +11 a table; numbers start at -1, and `soft` is at most `hard`
  { nofile = { soft = 2 } } -> +11 a table; it needs the numbers `soft` and `hard`
  { nofile = { soft = 2, hard = 3, x = 1 } } -> +11 a table; it needs the numbers `soft` and `hard`
node.ulimits: the name of a limit (core, cpu, data, fsize, locks, memlock, msgqueue, nice, nofile, nproc, rss, rtprio, rttime, sigpending, stack)
  { mem = 1 } -> +2 "mem"
node.cap_add: a list of at most 64, each a capability as in capabilities(7), without CAP_, like "NET_RAW"
  "NET_RAW" -> "NET_RAW"
node.cap_add: a capability as in capabilities(7), without CAP_, like "NET_RAW"
  ["CAP_NET_RAW"] -> +1 "CAP_NET_RAW"
  ["net_raw"] -> +1 "net_raw"
  ["ALL"] -> +1 "ALL"
node.activate: a list of at most 64, each a line of bash
  "x" -> "x"
node.activate: a line of bash
  ["a\nb"] -> +1 "a\nb"
  [""] -> +1 ""
node.env: a table, each value a string or a whole number
  "A=1" -> "A=1"
node.env: a string or a whole number
  { A = true } -> +6 true
  { A = ["1"] } -> +6 an array
  { A = "\u0000" } -> +6 "\0"
node.env: the name of a variable: letters, digits and `_`, the first not a digit
  { "" = 1 } -> +2 ""
  { 1A = 1 } -> +2 "1A"
  { "A B" = 1 } -> +2 "A B"
  { HVDCTL_JOB = 1 } -> +2 "HVDCTL_JOB"; hvdctl or the launcher sets it for every rank
  { HOROVOD_LOCAL_RANK = 1 } -> +2 "HOROVOD_LOCAL_RANK"; hvdctl or the launcher sets it for every rank
node.env_file: the path of a file on this machine
  "" -> ""
  "secrets/" -> "secrets/"
bench.min_busbw: a number of GB/s above 0, up to 10000, like 1.25
  0 -> 0
  0.0 -> 0.0
  -1.5 -> -1.5
  10000.1 -> 10000.1
  nan -> nan
  inf -> inf
  "1.25" -> "1.25"
  "1 GB/s" -> "1 GB/s"
  true -> true
  [1] -> an array
pool.host: a machine as [user@]host[:port], like "ana@gate:2222" or "[fd00::1]:22"
  "" -> ""
  "-oProxyCommand=id" -> "-oProxyCommand=id"
  "a b" -> "a b"
  "gate:0" -> "gate:0"
  "gate:70000" -> "gate:70000"; a port is a number from 1 to 65535
  "ssh://gate" -> "ssh://gate"; a port is a number from 1 to 65535
  "fd00::1" -> "fd00::1"; a port is a number from 1 to 65535
pool.path: an absolute path of a directory
  "" -> ""; a path is absolute, without `//`, `.`, `..`, control characters and a `/` at the end
  "pool" -> "pool"; a path is absolute, without `//`, `.`, `..`, control characters and a `/` at the end
  "/tmp" -> "/tmp"; hvdctl needs a directory of its own
  "/root/.ssh" -> "/root/.ssh"; hvdctl needs a directory of its own
pool.allowed_signers: the path of a file on this machine
  "" -> ""
  "~bob/members" -> "~bob/members"; only `~/` is expanded
pool.key: the path of a file on this machine
  "keys/" -> "keys/"
  true -> true
pool.owner: a name in the file of allowed signers, like "ana@example.com": letters, digits, `@`, `.`, `_`, `+` or `-`, the first a letter or digit
  "" -> ""
  "*@example.com" -> "*@example.com"
  "a,b" -> "a,b"
  "a\u001b" -> "a\u{1b}"
pool.lifetime_s: whole seconds from 3600 to 2592000
  3599 -> 3599
  2592001 -> 2592001
slurm.host: a machine as [user@]host[:port], like "ana@gate:2222" or "[fd00::1]:22"
  "a b" -> "a b"
slurm.state_dir: an absolute path of a directory on the nodes, of letters, digits, `_`, `.`, `@`, `+`, `-` and `/`
  "~/hvdctl" -> "~/hvdctl"; a path is absolute, without `//`, `.`, `..`, control characters and a `/` at the end
slurm.launcher: "horovodrun" or "torchrun" or "mpirun" or "env" or "srun"
  "sbatch" -> "sbatch"
slurm.activate: a list of at most 64, each a line of bash
  "module load CUDA" -> "module load CUDA"
slurm.partition: a value as sbatch takes it, without spaces
  "a b" -> "a b"
slurm.account: a value as sbatch takes it, without spaces
  "" -> ""
slurm.qos: a value as sbatch takes it, without spaces
  1 -> 1
slurm.constraint: a value as sbatch takes it, without spaces
  "a\nb" -> "a\nb"
slurm.time: a value as sbatch takes it, without spaces
  10 -> 10
slurm.gres: a value as sbatch takes it, without spaces
  4 -> 4
slurm.options: a list of at most 64, each an option of sbatch, like "--exclude=node3"
  "--exclusive" -> "--exclusive"
node.master: true or false
  "yes" -> "yes"
  1 -> 1
"#;

/// One line of [`REFUSED`].
struct Refused {
    table: &'static str,
    field: &'static str,
    expected: &'static str,
    value: &'static str,
    /// The offset of the fault in the value, in characters.
    offset: usize,
    found: &'static str,
}

fn refused() -> Vec<Refused> {
    let (mut table, mut field, mut expected) = ("", "", "");
    let mut all = Vec::new();
    for line in REFUSED.lines().filter(|line| !line.is_empty()) {
        let Some((value, found)) = line.strip_prefix("  ").and_then(|line| line.split_once(" -> ")) else {
            let (path, rest) = line.split_once(": ").expect("a field and what is expected");
            (table, field) = path.split_once('.').expect("a table and a field");
            expected = rest;
            continue;
        };
        let placed = found.strip_prefix('+').and_then(|rest| rest.split_once(' '));
        let (offset, found) = placed.map_or((0, found), |(offset, found)| (offset.parse().expect("a number"), found));
        all.push(Refused { table, field, expected, value, offset, found });
    }
    all
}

impl Refused {
    /// An inventory in which the field comes last, instead of a good value if it is one that must be there.
    fn file(&self, table: &str) -> String {
        let name = if (self.table, self.field) == ("cluster", "name") { "" } else { "name = 'lab'\n" };
        let host = if (self.table, self.field) == ("node", "host") { "" } else { "host = 'a'\n" };
        let (cluster, node) = (format!("[cluster]\n{name}"), format!("[[node]]\n{host}"));
        let path = if (table, self.field) == ("pool", "path") { "" } else { "path = '/srv/pool'\n" };
        let line = format!("{} = {}", self.field, self.value);
        match table {
            "cluster" => format!("{node}{cluster}{line}"),
            "node" => format!("{cluster}{node}{line}"),
            "pool" => format!("{cluster}{node}[pool]\n{path}{line}"),
            table => format!("{cluster}{node}[{table}]\n{line}"),
        }
    }
}

/// Field, value, and a file with it for each that is refused.
pub(super) fn files() -> Vec<(String, &'static str, String)> {
    refused().iter().map(|one| (format!("{}.{}", one.table, one.field), one.value, one.file(one.table))).collect()
}

#[test]
fn refused_values() {
    let all = refused();
    let mut differ = Vec::new();
    for one in &all {
        let Refused { field, expected, found, .. } = one;
        let mut check = |table: &str| {
            let text = one.file(table);
            let (line, column) = (text.lines().count(), field.len() + 4 + one.offset);
            let message = format!("{line}:{column}: {table}.{field}: expected {expected}, found {found}");
            let found = faults(&text);
            if found != [message.as_str()] {
                differ.push(format!("expected {message}\nfound    {found:?}"));
            }
        };
        check(one.table);
        if one.table == "node" && names("defaults").contains(field) {
            check("defaults");
        }
    }
    assert!(differ.is_empty(), "{}", differ.join("\n"));
    let tried = |table: &str, field: &str| all.iter().any(|one| (one.table, one.field) == (table, field));
    for table in ["cluster", "bench", "node", "pool", "slurm"] {
        for field in names(table) {
            assert!(tried(table, field), "{table}.{field}");
        }
    }
}

#[test]
fn a_pool_needs_a_path_and_its_machine_is_any_that_ssh_takes() {
    let pool = |text: &str| parse(&format!("{}[pool]\n{text}", with_host("a"))).map(|it| it.pool);
    assert_eq!(pool(""), Ok(None));
    let missing = pool("host = 'gate'\n").expect_err("no path").to_string();
    assert!(missing.contains("pool.path: missing; expected an absolute path of a directory"), "{missing}");
    let pool = |host: &str| pool(&format!("path = '/srv/pool'\n{host}")).unwrap().unwrap();
    assert_eq!(pool("").machine(), None);
    for (text, user, host, port) in [
        ("gate", None, "gate", None),
        ("ana@gate:2222", Some("ana"), "gate", Some(2222)),
        ("ana@example.com@10.0.0.1", Some("ana@example.com"), "10.0.0.1", None),
        ("[fd00::1]:22", None, "fd00::1", Some(22)),
        ("ana@[fd00::1]", Some("ana"), "fd00::1", None),
    ] {
        let machine = pool(&format!("host = '{text}'")).machine().unwrap();
        let found = (machine.user.as_deref(), machine.host.as_str(), machine.ssh_port);
        assert_eq!((machine.name.as_str(), found), (format!("pool at {text}").as_str(), (user, host, port)));
    }
    let text = "[cluster]\nname = 'a'\n[[node]]\nhost = 'a'\n[pool]\npath = '/srv/pool'\nkey = 'id'\n";
    let Pool { key, allowed_signers, .. } =
        Inventory::parse(text, Path::new("/lab/inventory.toml")).unwrap().pool.unwrap();
    assert_eq!([key.unwrap(), allowed_signers], ["/lab/id", "/lab/allowed_signers"].map(PathBuf::from));
}

#[test]
fn bandwidths_are_whole_or_have_fractions() {
    let least =
        |value: &str| parse(&format!("{}[bench]\nmin_busbw = {value}\n", with_host("a"))).map(|it| it.bench.min_busbw);
    for (value, bytes) in [("2", 2_000_000_000), ("0.5", 500_000_000), ("1e-12", 1), ("10_000", 10_000_000_000_000)] {
        assert_eq!(least(value), Ok(Some(bytes)), "{value}");
    }
    assert_eq!(parse(&with_host("a")).unwrap().bench.min_busbw, None);
    // also where no node can be read
    assert_eq!(faults("[cluster]\nname = 'lab'\n[bench]\nmin_bw = 1\n[[node]]\nhost = 5\n").len(), 2);
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
fn gpus_as_nvidia_smi_names_them() {
    for gpu in [
        "7",
        "GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77",
        "MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f",
        // before driver 470
        "MIG-GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77/7/0",
    ] {
        let text = format!("cluster = {{ name = 'lab' }}\n[[node]]\nhost = 'a'\ngpus = [{gpu:?}]");
        assert_eq!(parse(&text).expect(gpu).nodes[0].gpus, Gpus::List(vec![gpu.to_owned()]));
    }
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

#[test]
fn an_inventory_can_name_every_launcher() {
    for launcher in LauncherName::value_variants() {
        let of_cluster = format!("[cluster]\nname = 'lab'\nlauncher = '{launcher}'\n[[node]]\nhost = 'a'\n");
        assert_eq!(parse(&of_cluster).is_ok(), *launcher != LauncherName::Srun, "{launcher}");
        let of_slurm = format!("[cluster]\nname = 'lab'\n[slurm]\nlauncher = '{launcher}'\n");
        assert!(parse(&of_slurm).is_ok(), "{launcher}");
    }
}

/// The names that serde knows for a type, as it says of a wrong one.
fn variants<T: serde::de::DeserializeOwned>() -> Vec<String> {
    let said = serde_json::from_str::<T>("\"\"").map(drop).unwrap_err().to_string();
    said.split('`').skip(3).step_by(2).map(str::to_owned).collect()
}

#[test]
fn an_inventory_can_name_every_engine_and_runtime() {
    let (engines, runtimes) = (variants::<EngineChoice>(), variants::<RuntimeChoice>());
    assert!(engines.contains(&"podman".into()) && runtimes.contains(&"process".into()), "{engines:?}, {runtimes:?}");
    for engine in engines {
        let of_node =
            format!("[cluster]\nname = 'lab'\nengine = '{engine}'\n[[node]]\nhost = 'a'\nengine = '{engine}'\n");
        assert!(parse(&of_node).is_ok(), "{engine}");
    }
    // a table selects Slurm
    for runtime in runtimes.into_iter().filter(|runtime| runtime != "slurm") {
        let of_cluster = format!("[cluster]\nname = 'lab'\nruntime = '{runtime}'\n[[node]]\nhost = 'a'\n");
        assert!(parse(&of_cluster).is_ok(), "{runtime}");
    }
}
