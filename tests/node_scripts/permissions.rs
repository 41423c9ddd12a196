//! The users who can change and enter the directories of a node, and the way in which these are created and closed. A
//! second user is needed, and so root.

use super::{FACTS, Machine};
use hvdctl::node::facts::Facts;
use hvdctl::node::permissions::Permissions;
use std::fs::{self, Permissions as Mode};
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

/// The user of Debian's that no test runs as.
const STRANGER: u32 = 1;

/// A machine with the directories of a node, all closed; `None` without root.
fn machine() -> Option<Machine> {
    rustix::process::geteuid().is_root().then(|| {
        let machine = Machine::new(&[]);
        for (name, mode) in [
            ("", 0o711),
            ("ssh", 0o700),
            ("jobs", 0o700),
            ("jobs/.worker@lab", 0o700),
            ("projects", 0o755),
            ("data", 0o755),
        ] {
            fs::create_dir_all(machine.path(name)).unwrap();
            set_mode(&machine, name, mode);
        }
        machine
    })
}

fn set_mode(machine: &Machine, name: &str, mode: u32) {
    fs::set_permissions(machine.path(name), Mode::from_mode(mode)).unwrap();
}

fn give(machine: &Machine, name: &str, user: u32, group: u32) {
    lchown(machine.path(name), Some(user), Some(group)).unwrap();
}

fn state(machine: &Machine, name: &str) -> (u32, u32, u32) {
    let metadata = fs::metadata(machine.path(name)).unwrap();
    (metadata.mode() & 0o7777, metadata.uid(), metadata.gid())
}

fn permissions(machine: &Machine, variables: &str) -> Permissions {
    Facts::parse(&machine.prints(FACTS, variables)).permissions
}

/// Returns the paths that others can change, as hvdctl reports them, without the path of the machine.
fn exposed(machine: &Machine, variables: &str) -> Vec<String> {
    let place = machine.dir.path().display().to_string();
    let told = permissions(machine, variables).exposed.into_iter();
    told.map(|exposed| exposed.to_string().replace("other users can change ", "").replace(&place, "")).collect()
}

#[test]
fn directories_that_others_can_change_are_told() {
    let Some(machine) = machine() else { return };
    let clean = Permissions::default();
    assert_eq!(permissions(&machine, ""), clean);
    // the parent of all of them
    give(&machine, "", STRANGER, 0);
    let all = "cluster.ssh_dir, cluster.jobs_dir, cluster.projects_dir, cluster.data_dir";
    assert_eq!(exposed(&machine, ""), [format!("{all}:  belongs to daemon (mode 711)")]);
    // the login that hvdctl uses can become root anyway
    assert_eq!(permissions(&machine, "HVDCTL_LOGIN=1:1"), clean);
    assert_eq!(exposed(&machine, "HVDCTL_LOGIN=2:2").len(), 1);
    give(&machine, "", 0, 0);
    // in a directory that is sticky others replace nothing; but they may create what is missing
    set_mode(&machine, "", 0o1777);
    assert_eq!(permissions(&machine, ""), clean);
    fs::remove_dir(machine.path("data")).unwrap();
    let create = "cluster.data_dir: it is missing, and others can create it in  (owner root, mode 1777)";
    assert_eq!(exposed(&machine, ""), [create]);
    set_mode(&machine, "", 0o777);
    assert_eq!(exposed(&machine, ""), [format!("{all}: every user can write to  (owner root, mode 777)")]);
    set_mode(&machine, "", 0o711);
    assert_eq!(permissions(&machine, ""), clean, "data_dir is missing where only root can create it");
    // a directory itself is never sticky
    set_mode(&machine, "projects", 0o1777);
    assert_eq!(
        exposed(&machine, ""),
        ["cluster.projects_dir: every user can write to /projects (owner root, mode 1777)"]
    );
}

#[test]
fn every_link_on_the_way_is_followed() {
    let Some(machine) = machine() else { return };
    // data -> disk/link -> ../target/data, and nothing of it is the stranger's
    for name in ["disk", "target", "target/data"] {
        fs::create_dir(machine.path(name)).unwrap();
        set_mode(&machine, name, 0o755);
    }
    fs::remove_dir(machine.path("data")).unwrap();
    symlink(machine.path("disk/link"), machine.path("data")).unwrap();
    symlink("../target/data", machine.path("disk/link")).unwrap();
    assert_eq!(permissions(&machine, ""), Permissions::default());
    for (name, fault) in [
        ("data", "the link /data belongs to daemon"),
        ("disk", "/disk belongs to daemon (mode 755)"),
        ("disk/link", "the link /disk/link belongs to daemon"),
        ("target", "/target belongs to daemon (mode 755)"),
        ("target/data", "/target/data belongs to daemon (mode 755)"),
    ] {
        give(&machine, name, STRANGER, 0);
        assert_eq!(exposed(&machine, ""), [format!("cluster.data_dir: {fault}")]);
        give(&machine, name, 0, 0);
    }
    // one that leads nowhere yet, and one that leads to itself
    fs::remove_dir(machine.path("target/data")).unwrap();
    assert_eq!(exposed(&machine, ""), [""; 0]);
    set_mode(&machine, "target", 0o1777);
    assert_eq!(exposed(&machine, "").len(), 1);
    fs::remove_file(machine.path("disk/link")).unwrap();
    symlink("link", machine.path("disk/link")).unwrap();
    assert_eq!(exposed(&machine, ""), [""; 0]);
}

#[test]
fn a_group_in_which_nobody_else_is_gives_nothing() {
    let Some(machine) = machine() else { return };
    give(&machine, "", 0, 50);
    set_mode(&machine, "", 0o2775);
    let users = "root:x:0:0::/:/bin/sh\nana:x:7:7::/:/bin/sh\nbob:x:8:8::/:/bin/sh";
    let told = |members: &str, users: &str, login: &str| {
        let group = format!("staff:x:50:{members}");
        machine.stub(
            "getent",
            &format!("case $*:$# in group*:2) echo '{group}' ;; passwd*:2) exit 0 ;; *) printf '{users}\\n' ;; esac"),
        );
        exposed(&machine, login).len()
    };
    let ana = "HVDCTL_LOGIN=7:7";
    assert_eq!(told("", users, ""), 0, "an empty one");
    assert_eq!(told("ana", users, ana), 0, "that of the login");
    assert_eq!(told("root", users, ""), 0);
    assert_eq!(told("ana", users, ""), 1);
    assert_eq!(told("ana,bob", users, ana), 1);
    assert_eq!(told("unlisted", users, ana), 1, "a member whom nobody knows");
    assert_eq!(told("", &users.replace("8:8", "8:50"), ana), 1, "bob's own group");
    assert_eq!(told("", &users.replace("7:7", "7:50"), ana), 0, "the login's own group");
    machine.stub("getent", "exit 2");
    assert_eq!(exposed(&machine, ana).len(), 1, "not known");
    // the bits of the group are those of the ACL's mask
    told("", users, "");
    machine.stub("ls", "echo 'drwxrwxr-x+ 2 root staff 4096 Jan 1 00:00 x'");
    assert_eq!(exposed(&machine, "").len(), 1);
}

#[test]
fn a_path_is_told_as_it_is() {
    let Some(machine) = machine() else { return };
    fs::create_dir(machine.path("it s")).unwrap();
    give(&machine, "it s", STRANGER, 0);
    let variables = format!("data_dir='{}'", machine.path("it s").display());
    set_mode(&machine, "it s", 0o755);
    assert_eq!(exposed(&machine, &variables), ["cluster.data_dir: /it s belongs to daemon (mode 755)"]);
}

#[test]
fn what_is_open_is_closed_once_and_what_is_missing_created() {
    let Some(machine) = machine() else { return };
    fs::remove_dir_all(machine.path("jobs")).unwrap();
    fs::remove_dir(machine.path("projects")).unwrap();
    let place = |names: &[&str]| names.iter().map(|name| machine.path(name).display().to_string()).collect::<Vec<_>>();
    let prepare = |unclosed: &[String], login: &str| {
        let variables = format!("{login} unclosed='{}'", unclosed.join("\n"));
        machine.prints(&["node/close.sh", "node/directories.sh"], &variables);
    };
    let fresh = permissions(&machine, "");
    assert_eq!(fresh.missing, place(&["jobs", "jobs/.worker@lab", "projects"]));
    assert_eq!(fresh.unclosed, [""; 0], "nobody is told of a fresh node");
    prepare(&[], "");
    assert_eq!(permissions(&machine, ""), Permissions::default());
    assert_eq!((state(&machine, "jobs").0, state(&machine, "jobs/.worker@lab").0), (0o700, 0o700));
    assert_eq!(state(&machine, "projects").0, 0o755);

    // as an earlier hvdctl, and Docker, have left them
    let open = ["projects/.p@lab", "projects/p", "projects/p+j1", "data/.d@lab", "data/d"];
    let others = ["projects/q", "projects/.q@lab2", "data/.e@lab2", "jobs/j1"];
    for name in open.iter().chain(&others) {
        fs::create_dir(machine.path(name)).unwrap();
        set_mode(&machine, name, 0o755);
    }
    set_mode(&machine, "jobs", 0o755);
    fs::create_dir(machine.path("elsewhere")).unwrap();
    fs::create_dir(machine.path("projects/.l@lab")).unwrap();
    set_mode(&machine, "projects/.l@lab", 0o700);
    symlink(machine.path("elsewhere"), machine.path("projects/l")).unwrap();
    let mut expected = place(&[&["jobs"], &open[..]].concat());
    expected.sort();
    for (login, mode, group) in [("", 0o700, 0), ("HVDCTL_LOGIN=7:7", 0o750, 7), ("HVDCTL_LOGIN=7:100", 0o700, 0)] {
        machine.stub(
            "getent",
            "case $* in 'group 7') echo ana:x:7: ;; 'group 100') echo users:x:100:bob ;; *) echo ana:x:7:7::/:/bin/sh \
             ;; esac",
        );
        let mut found = permissions(&machine, login).unclosed;
        found.sort();
        assert_eq!(found, expected, "{login}");
        prepare(&found, login);
        assert_eq!(permissions(&machine, login), Permissions::default(), "{login}");
        for name in open {
            let is_record = name.contains('@');
            let expected = if is_record { (0o700, 0, 0) } else { (mode, 0, group) };
            assert_eq!(state(&machine, name), expected, "{login} {name}");
        }
        assert_eq!(state(&machine, "jobs").0, 0o700);
        for name in others {
            assert_eq!(state(&machine, name).0, 0o755, "{name} is not this cluster's, or is below a closed one");
        }
        assert_eq!(state(&machine, "elsewhere").0, 0o755, "a link is not followed");
        for name in ["jobs"].iter().chain(&open) {
            set_mode(&machine, name, 0o755);
            give(&machine, name, 0, 0);
        }
    }
    // one that is removed meanwhile
    prepare(&place(&["projects/gone"]), "");
}

#[test]
fn what_is_written_without_facts_is_not_written_where_others_can_change_it() {
    let Some(machine) = machine() else { return };
    let scripts: [(&[&str], &str); 2] = [
        (&["node/close.sh", "node/permissions.sh", "bench/past_write.sh"], "past='{}'"),
        (
            &["node/close.sh", "node/permissions.sh", "ledger/system.sh", "ledger/append.sh"],
            "most=65536 entries='{\"x\":1}'",
        ),
    ];
    // the stranger's lock on the directory is none on the ledger
    set_mode(&machine, "jobs", 0o755);
    let mut stranger = Command::new("flock");
    stranger.arg(machine.path("jobs")).args(["sh", "-c", "echo locked; exec cat"]).uid(STRANGER);
    let mut stranger = stranger.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    stranger.stdout.as_mut().unwrap().read_exact(&mut [0; 7]).unwrap();
    for (scripts, variables) in &scripts {
        machine.prints(scripts, variables);
    }
    drop(stranger.stdin.take());
    stranger.wait().unwrap();
    assert_eq!(state(&machine, "jobs/.ledger.lock@lab").0, 0o600);
    let before = fs::read(machine.path("jobs/.ledger@lab")).unwrap();
    give(&machine, "jobs", STRANGER, 0);
    for (scripts, variables) in &scripts {
        let message = machine.fails(scripts, variables);
        assert!(message.starts_with("other users can change ") && message.contains("/jobs belongs to "), "{message}");
    }
    assert_eq!(fs::read(machine.path("jobs/.ledger@lab")).unwrap(), before);
}
