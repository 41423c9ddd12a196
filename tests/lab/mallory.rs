//! The attacks of a stranger on everything that is hvdctl's: a user `mallory` of the nodes without any right, a user of
//! the operator's machine, the ranks of another job, and those of another cluster's job. `mallory.py` tries it while
//! hvdctl works; every attack that succeeds must be in the table of docs/reference/security.md, and everything in the
//! table must succeed.

use crate::images::{PUSHED, build, relays, without_image};
use crate::pool::node_command;
use crate::process::{Done, Running, run, s};
use crate::state::{Lab, NODES, Restore, address, lab_dir, no_job_is_left, node_sh, on, shared_file};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

pub const PROBE: &str = include_str!("mallory.py");

/// The page with the table, and the heading above it.
const PAGE: &str = include_str!("../../docs/reference/security.md");
const HEADING: &str = "## What a stranger on a node can do";

/// The file at which mallory stops.
pub const STOP: &str = "/run/mallory-stops";

/// A file that everybody may read, which shows that the search finds something.
const PLANTED: &str = "/var/tmp/planted-for-mallory";

/// The user without any rights that every Linux has, for the operator's machine.
const NOBODY: u32 = 65534;

/// The variable of the processes of this test on the operator's machine.
const MARK: &str = "HVDCTL_TEST_MALLORY";

/// Names that differ in each run, and their names in the table.
pub const NAMES: [(&str, &str); 12] = [
    (r"\d{8}-\d{6}-[0-9a-f]{4}", "ID"),
    (r"@(lab|other)\b", "@CLUSTER"),
    (r"\b(lab|other)\.lease", "CLUSTER.lease"),
    (r"/projects/(\.?)(first|second|third)\b", r"/projects/\1NAME"),
    (r"/data/(\.?)set\b", r"/data/\1NAME"),
    (r"/data/NAME/.*", "/data/NAME/…"),
    (r"/horovod/other\b", "/horovod/CLUSTER"),
    (r"hvdctl-ssh\.\d+\.\w+", "hvdctl-ssh.PID"),
    (r"stage\.\d+", "stage.PID"),
    (r"(hvdctl-ssh\.PID)/m\w{6}", r"\1/mRANDOM"),
    (r"/\.tmp\w{6}\b", "/.tmpRANDOM"),
    (r"\b[0-9a-f]{32}\b", "HASH"),
];

/// A user of a node, or of this machine, who tries everything.
pub struct Stranger {
    who: &'static str,
    running: Running,
}

impl Stranger {
    /// Starts one on a node, with `more` settings of mallory.py.
    #[track_caller]
    pub fn on_node(node: &str, more: &Value) -> Stranger {
        on(node, &format!("rm -f {STOP}; echo x >{PLANTED} && chmod 644 {PLANTED}"));
        let ids: Vec<u32> =
            on(node, "id -u mallory; id -g mallory").lines().map(|line| line.parse().unwrap()).collect();
        let mut settings = json!({
            "user": ids, "limit": 600, "stop": STOP, "names": NAMES,
            "places": ["/run", "/tmp", "/var/tmp", "/dev/shm", "/home", "/opt"],
            "own": ["/opt/horovod", "/run/hvdctl", "/etc/hvdctl", PLANTED],
        });
        settings.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Stranger::start("node", node_command(node, &["python3", "-c", PROBE, &settings.to_string()]))
    }

    fn here(operator: &Operator) -> Stranger {
        operator.write("home/planted", "x");
        let path = |name| operator.path(name);
        let names = [("home", "~"), ("tmp", "$TMPDIR"), ("hvdctl", "$XDG_RUNTIME_DIR/hvdctl"), ("results", "RESULTS")];
        let names = names.map(|(name, text)| (format!("^{}\\b", path(name)), text.to_owned()));
        let others = NAMES.map(|(pattern, text)| (pattern.to_owned(), text.to_owned()));
        let names = [&names[..], &others].concat();
        let settings = json!({
            "user": [NOBODY, NOBODY], "limit": 600, "stop": path("stop"), "mark": MARK,
            "places": [path("home"), path("tmp")], "own": [path("hvdctl"), path("results"), path("home/planted")],
            "names": names,
        });
        let mut command = Command::new("python3");
        command.args(["-c", PROBE, &settings.to_string()]);
        Stranger::start("operator", command)
    }

    fn start(who: &'static str, command: Command) -> Stranger {
        let mut running = Running::start(command, &[]);
        running.until(&["tries\n"], s(30));
        Stranger { who, running }
    }

    /// Lets those on the nodes stop, and mallory in any container of hvdctl's there.
    #[track_caller]
    pub fn stop_all() {
        NODES.iter().for_each(|node| drop(stop(node).code(0)));
    }

    /// Waits for the end, and returns what has succeeded. The file that was planted must be among it.
    #[track_caller]
    pub fn end(self) -> BTreeSet<String> {
        let done = self.running.end(s(30)).code(0);
        let (planted, gains): (BTreeSet<String>, _) =
            gains(self.who, &done.out).into_iter().partition(|line| line.contains("planted"));
        assert!(planted.iter().any(|line| line.contains(": read ")), "it finds nothing: {}", done.out);
        gains
    }
}

fn stop(node: &str) -> Done {
    let inside = "for w in $(docker ps -q --filter label=hvdctl.cluster); do docker exec $w touch";
    node_sh(node, &format!("touch {STOP}; {inside} {STOP}; done"), &[])
}

/// Stops whoever still tries when the test is over, however it ends.
pub fn strangers_stop() -> impl Drop {
    Restore(|| NODES.iter().for_each(|node| drop(stop(node))))
}

/// Texts as mallory.py wants them: it must not find them in its own command line.
pub fn backwards(secrets: &[&str]) -> Vec<String> {
    secrets.iter().map(|secret| secret.chars().rev().collect()).collect()
}

/// The lines of the probe's output that say what has succeeded.
#[track_caller]
pub fn gains(who: &str, out: &str) -> BTreeSet<String> {
    assert!(out.contains("tries\n") && out.contains("tried "), "{who}: {out}");
    // what a login writes is not hvdctl's
    let is_gain = |line: &&str| *line != "tries" && !line.starts_with("tried ") && !line.contains(" /run/motd.dynamic");
    let lines = out.lines().filter(is_gain);
    lines.map(|line| format!("{who}: {line}")).collect()
}

/// The lines that the table of the page allows: `| WHO | RIGHT, RIGHT | WHAT, WHAT | REASON |`, with each WHAT in
/// backquotes.
fn allowed() -> BTreeSet<String> {
    let section = PAGE.split_once(HEADING).unwrap_or_else(|| panic!("docs/reference/security.md has no {HEADING:?}")).1;
    let section = section.split("\n## ").next().unwrap();
    let mut allowed = BTreeSet::new();
    for line in section.lines().filter(|line| line.starts_with("| ") && line.contains('`')) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        assert_eq!(cells.len(), 4, "{line}");
        for right in cells[1].split(", ") {
            for what in cells[2].split('`').skip(1).step_by(2) {
                allowed.insert(format!("{}: {right} {what}", cells[0]));
            }
        }
    }
    assert!(!allowed.is_empty(), "the table of docs/reference/security.md is empty");
    allowed
}

/// Compares what was gained with what the table allows: each gain must be in it, and all that is there for `whole` must
/// have been gained. Others were not tried with everything.
#[track_caller]
pub fn compare(gained: &BTreeSet<String>, whole: &[&str]) {
    let allowed = allowed();
    let list = |lines: Vec<&String>| lines.into_iter().map(|line| format!("  {line}\n")).collect::<String>();
    let more = list(gained.difference(&allowed).collect());
    let is_of_whole = |line: &str| whole.iter().any(|who| line.starts_with(&format!("{who}: ")));
    // some ports are open for a moment only
    let must = |line: &&String| is_of_whole(line) && !line.contains(": connect ");
    let stale = list(allowed.difference(gained).filter(must).collect());
    assert!(
        more.is_empty() && stale.is_empty(),
        "succeeded, and docs/reference/security.md does not allow it:\n{more}allowed there, and did not succeed:\n{stale}"
    );
}

/// The gains of a rank in the output of hvdctl.
#[track_caller]
pub fn gains_of_rank(who: &str, done: &Done) -> BTreeSet<String> {
    let lines = done.out.lines().filter_map(|line| line.split_once("] ").map(|(_, rest)| format!("{rest}\n")));
    gains(who, &lines.collect::<String>())
}

/// The operator, whose home and temporary directory others may enter: what protects the files there are hvdctl's own
/// modes.
struct Operator {
    lab: Lab,
    /// The inventory of both nodes, and that of node1 alone.
    whole: String,
    half: String,
}

impl Operator {
    fn new() -> Operator {
        let lab = Lab::empty();
        lab.edit("gpus = 1", "gpus = 0\nslots = 3");
        lab.edit("connection_idle_s = 0", "connection_idle_s = 60");
        for (name, mode) in [("", 0o755), ("home", 0o755), ("tmp", 0o1777), ("pool", 0o755)] {
            let directory = lab.path().join(name);
            fs::create_dir_all(&directory).unwrap();
            fs::set_permissions(directory, Permissions::from_mode(mode)).unwrap();
        }
        let whole = fs::read_to_string(lab.inventory()).unwrap();
        let half = whole[..whole.rfind("[[node]]").unwrap()].to_owned();
        Operator { lab, whole, half }
    }

    fn path(&self, name: &str) -> String {
        self.lab.path().join(name).to_str().unwrap().to_owned()
    }

    fn write(&self, name: &str, text: &str) -> String {
        fs::write(self.path(name), text).unwrap();
        self.path(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.lab.command(args);
        command.env("HOME", self.path("home")).env("TMPDIR", self.path("tmp")).env(MARK, "1");
        command.env_remove("XDG_STATE_HOME");
        command
    }

    #[track_caller]
    fn hvdctl(&self, args: &[&str]) -> Done {
        run(self.command(args), s(240))
    }

    #[track_caller]
    fn start(&self, args: &[&str]) -> Running {
        Running::start(self.command(args), &[])
    }

    /// Returns a line of the table if the operator's hvdctl uses an inventory that a stranger has put where all users may
    /// write: it chooses the machines on which hvdctl logs in, with the operator's agent, password and project.
    fn in_a_strangers_directory(&self) -> Option<String> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let directory = self.lab.path().join("trap");
        fs::create_dir(&directory).unwrap();
        let inventory = directory.join("inventory.toml");
        let node = format!("[[node]]\nhost = \"127.0.0.1\"\nssh_port = {}\n", listener.local_addr().unwrap().port());
        let text = "[cluster]\nname = \"lab\"\nimage = \"x\"\nconnect_timeout_s = 1\n\n";
        fs::write(&inventory, format!("{text}{node}")).unwrap();
        [&directory, &inventory].iter().for_each(|path| chown(path, Some(NOBODY), Some(NOBODY)).unwrap());
        let mut command = self.command(&["status"]);
        command.current_dir(&directory);
        let done = run(command, s(60));
        assert_ne!(done.code, 0, "{}", done.out);
        let line = "operator: name the nodes in ./inventory.toml";
        listener.accept().is_ok().then(|| line.to_owned())
    }

    /// Keys, an image and data, both by relays.
    fn push(&self) {
        let data = self.lab.path().join("set");
        fs::create_dir_all(data.join("ward")).unwrap();
        fs::write(data.join("ward/patients.csv"), "name,age\n").unwrap();
        // so much that relays pay
        fs::File::create(data.join("large")).unwrap().set_len(256 << 20).unwrap();
        open_to_all(&data);
        self.hvdctl(&["keys", "push"]).code(0);
        self.hvdctl(&["image", "push", PUSHED]).code(0).complains(&["relays received"]);
        self.hvdctl(&["data", "push", data.to_str().unwrap()]).code(0).complains(&["relays received"]);
        assert_eq!(NODES.map(relays), ["", ""]);
    }

    /// An elastic job on node1 with secrets, which node2 joins. Another cluster's job there, as long as all others run.
    /// Then the first one again, with a part of both nodes, and a second job beside it.
    fn start_jobs(&self) -> [Running; 3] {
        let first =
            self.lab.project("first", &[("train.py", WAITS), (".env", "TOKEN=hidden"), ("package/__init__.py", "")]);
        let second = self.lab.project("second", &[("mallory.py", PROBE)]);
        open_to_all(&first);
        open_to_all(&second);
        let secrets = self.write("secrets", "TOKEN=word\nOTHER=of-the-environment\n");
        fs::set_permissions(&secrets, Permissions::from_mode(0o600)).unwrap();
        self.write("inventory.toml", &self.half);
        self.hvdctl(&["up"]).code(0);

        let job = ["train", first.to_str().unwrap(), "--env-file", &secrets, "--launcher", "env", "-np"];
        let program = ["--", "python3", "train.py"];
        let mut elastic = self.start(&[&job[..], &["1:4"], &program].concat());
        elastic.until(&["[0 node1] attempt 0 word"], s(120));
        let other = self.write("other.toml", &self.half.replacen("name = \"lab\"\n", OTHER, 1));
        self.hvdctl(&["-i", &other, "up"]).code(0);
        let settings = json!({
            "limit": 300, "stop": STOP, "names": NAMES, "job": "HVDCTL_JOB", "places": [],
            "own": ["/opt/horovod/jobs", "/opt/horovod/projects", "/opt/horovod/data", "/data"],
            "ignore": "/jobs/$HVDCTL_JOB(/|$)",
        });
        let settings = settings.to_string();
        let one = ["-np", "1", "--launcher", "env", "--gpus-per-node", "1", "--", "python3"];
        let mut foreign = self.start(&[&["-i", &other, "run"], &one[..], &["-c", PROBE, &settings]].concat());
        foreign.until(&["tries"], s(120));
        self.write("inventory.toml", &self.whole);
        self.hvdctl(&["up"]).code(0).complains(&["node2 joins job "]);
        elastic.until(&["[0 node1] attempt 1 word"], s(60));
        go();
        elastic.end(s(60)).code(0).complains(&["node2 joined"]);
        NODES.iter().for_each(|node| drop(on(node, "rm /opt/horovod/projects/first/go")));

        let shared = ["2", "--map-by", "node", "--gpus-per-node", "1"];
        let mut waiting = self.start(&[&job[..], &shared, &program].concat());
        waiting.until(&["[0 node1] attempt 0 word", "[1 node2] attempt 0 word"], s(120));
        let second = ["train", second.to_str().unwrap()];
        let mut beside = self.start(&[&second[..], &one, &["mallory.py", &settings]].concat());
        beside.until(&["tries"], s(120));
        [waiting, beside, foreign]
    }

    /// Publishes both nodes in a pool of one member, and picks them.
    fn publish_and_pick(&self) {
        let mut keygen = Command::new("ssh-keygen");
        keygen.args(["-q", "-t", "ed25519", "-N", "", "-f", &self.path("member")]);
        run(keygen, s(30)).code(0);
        let public = fs::read_to_string(self.path("member.pub")).unwrap();
        self.write("members", &format!("ana namespaces=\"hvdctl-pool\" {public}"));
        // the nodes by their addresses, as others reach them
        let [config, known, key] =
            [lab_dir().join("ssh_config"), lab_dir().join("known_hosts"), shared_file("id_ed25519")]
                .map(|path| path.display().to_string());
        let own = fs::read_to_string(&config).unwrap();
        let text = format!("{own}Host *\nUser workshop\nIdentityFile {key}\nUserKnownHostsFile {known}\n");
        let addresses = self.write("ssh_config", &text);
        let pool = format!(
            "[pool]\npath = \"{}\"\nallowed_signers = \"members\"\nkey = \"member\"\n\n[defaults]",
            self.path("pool")
        );
        let text = self.whole.replacen("[defaults]", &pool, 1).replacen(&config, &addresses, 1);
        let member = self.write("member.toml", &text);
        self.hvdctl(&["-i", &member, "grade", "--publish"]).code(0);
        let picked = self.hvdctl(&["-i", &member, "pool", "pick", "-np", "4"]).code(0);
        picked.says(&NODES.map(address).each_ref().map(String::as_str));
    }
}

/// Files as Windows' file systems show them: everybody may write.
fn open_to_all(root: &Path) {
    fs::set_permissions(root, Permissions::from_mode(0o777)).unwrap();
    for entry in fs::read_dir(root).unwrap().flatten() {
        match entry.file_type().unwrap().is_dir() {
            true => open_to_all(&entry.path()),
            false => fs::set_permissions(entry.path(), Permissions::from_mode(0o666)).unwrap(),
        }
    }
}

/// The program of the first job: it waits for a file in its project.
const WAITS: &str = "
import os, time
open('output', 'a').write('x')
print('attempt', os.environ['HVDCTL_RESTART'], os.environ['TOKEN'], flush=True)
while not os.path.exists('go'): time.sleep(0.1)
";

/// Lets the first job end.
fn go() {
    NODES.iter().for_each(|node| drop(on(node, "touch /opt/horovod/projects/first/go")));
}

/// The name of another cluster on node1, whose operator has pushed nothing, and what differs in its inventory.
const OTHER: &str = "name = \"other\"\nport = 12399\nworker = \"hworker-other\"\nmaster = \"hmaster-other\"\n\
                     ssh_dir = \"/opt/horovod/other/ssh\"\n";

#[test]
fn a_stranger_gets_only_what_is_listed() {
    let operator = Operator::new();
    let _stop = strangers_stop();
    without_image();
    let _images = Restore(without_image);
    build("node1", "first", 96);
    let secrets = json!({ "secrets": backwards(&["of-the-environment"]) });
    let [one, two] = NODES.map(|node| Stranger::on_node(node, &secrets));
    let strangers = [one, two, Stranger::here(&operator)];

    let obeyed = operator.in_a_strangers_directory();
    operator.push();
    let [waiting, beside, foreign] = operator.start_jobs();
    let writable = "cd /opt/horovod && find projects data -perm /022 ! -type l; test -e data/set";
    let writable = NODES.map(|node| on(node, writable));
    operator.hvdctl(&["fetch", "first", "-o", &operator.path("results")]).code(0);
    operator.publish_and_pick();

    operator.write("stop", "");
    Stranger::stop_all();
    let mut gained: BTreeSet<String> = strangers.into_iter().flat_map(Stranger::end).collect();
    gained.extend(obeyed);
    gained.extend(gains_of_rank("another job", &beside.end(s(60)).code(0)));
    gained.extend(gains_of_rank("another cluster", &foreign.end(s(60)).code(0)));

    compare(&gained, &["node", "operator", "another job", "another cluster"]);
    assert_eq!(writable, ["", ""], "what group or others may write");

    // whoever holds every lock that there is to get stops nobody
    let holders = NODES.map(|node| Stranger::on_node(node, &json!({ "hold": true })));
    operator.hvdctl(&["up"]).code(0).says(&["nothing to do"]);
    go();
    waiting.end(s(60)).code(0);
    Stranger::stop_all();
    holders.into_iter().for_each(|holder| drop(holder.end()));
    no_job_is_left();
    operator.hvdctl(&["-i", &operator.path("other.toml"), "down", "--purge", "-y"]).code(0);
}
