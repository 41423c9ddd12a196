//! The directory of a pool, and whose a node is.

use super::Machine;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;

const READ_POOL: &[&str] = &["pool/enter.sh", "pool/read.sh"];
const PUBLISH: &[&str] = &["pool/enter.sh", "pool/publish.sh"];

/// A pool with a file, and its variables for the scripts.
fn pool() -> (Machine, String) {
    let machine = Machine::new(&[("pool/a.node", "content of a")]);
    let variables = format!("path='{}' most=1024 blocks=32 files='b.node eA=='", machine.path("pool").display());
    (machine, variables)
}

#[test]
fn a_pool_is_read_with_the_options_that_every_tar_has() {
    let (machine, variables) = pool();
    let real = ["/usr/bin/tar", "/bin/tar"].into_iter().find(|path| Path::new(path).exists()).unwrap();
    // as BusyBox's: it knows no long options of GNU tar
    let refuse = "case \"$*\" in *' --'*) echo 'tar: unrecognized option' >&2; exit 1 ;; esac";
    machine.stub("tar", &format!("{refuse}\nexec {real} \"$@\""));
    let read = machine.prints(READ_POOL, &variables);
    assert!(read.starts_with("file a.node\nfiles\n./a.node\0"), "{read}");
    assert!(read.contains("content of a\0") && read.ends_with("\0tar 0\n\n"), "{read}");
    // none that fails is an empty pool
    machine.stub("tar", "echo 'tar: invalid option' >&2; exit 1");
    assert_eq!(machine.prints(READ_POOL, &variables), "file a.node\nfiles\ntar 1\ntar: invalid option\n");
    // a file is removed while find looks at it
    machine.repair();
    machine.stub("find", "cd \"$PWD\" && [ -e ../again ] || { : >../again; echo 'find: No such file' >&2; exit 1; }");
    assert!(machine.prints(READ_POOL, &variables).ends_with("\0tar 0\n\n"));
    machine.break_tool("find", "*", "broken");
    assert_eq!(machine.fails(READ_POOL, &variables), "find: broken\nfind: broken\n");
}

#[test]
fn a_pool_that_may_not_be_used_says_which_directory() {
    let (machine, variables) = pool();
    let place = machine.path("pool").display().to_string();
    machine.break_tool("mktemp", "*", "failed to create file via template './.hvdctl.XXXXXX': Permission denied");
    assert_eq!(machine.fails(PUBLISH, &variables), format!("Permission denied: {place}\n"));
    machine.repair();
    machine.stub("mv", "echo \"mv: in $LC_ALL\" >&2; exit 1");
    assert_eq!(machine.fails(PUBLISH, &variables), "mv: in C\n", "its words are looked for");
    machine.repair();
    machine.break_tool("ls", "*", "cannot access '/srv/pool/.': Permission denied");
    for scripts in [READ_POOL, PUBLISH] {
        assert_eq!(machine.fails(scripts, &variables), format!("Permission denied: {place}\n"));
    }
    machine.repair();
    let in_file = variables.replace("/pool'", "/pool/a.node'");
    assert_eq!(machine.fails(READ_POOL, &in_file), format!("Not a directory: {place}/a.node\n"));
    let missing = variables.replace("/pool'", "/none'");
    assert!(machine.fails(READ_POOL, &missing).starts_with("there is no directory /"));
    machine.prints(PUBLISH, &variables);
    assert_eq!(fs::read_to_string(machine.path("pool/b.node")).unwrap(), "x");
}

#[test]
fn what_a_killed_publication_has_left_is_removed_by_the_next_one_of_its_login() {
    let (machine, variables) = pool();
    let leave = |name: &str, age: &str| {
        let path = machine.path("pool").join(name);
        fs::write(&path, "").unwrap();
        assert!(Command::new("touch").args(["-d", age]).arg(&path).status().unwrap().success());
        path
    };
    let old = leave(".hvdctl.aB3xYz", "2 hours ago");
    let others = leave(".hvdctl.123456", "2 hours ago");
    chown(&others, Some(12_345), None).unwrap();
    let new = leave(".hvdctl.under1", "1 minute ago");
    let not_ours = leave(".hvdctl.notes.txt", "2 hours ago");
    machine.prints(PUBLISH, &variables);
    assert!(!old.exists() && others.exists() && new.exists() && not_ours.exists());
    // what is written is on the disk before it has its name
    machine.stub("sync", "echo \"$*\" >>\"${0%/*}/synced\"");
    machine.stub("mv", "[ -s \"${0%/*}/synced\" ] && exec /bin/mv \"$@\"");
    machine.prints(PUBLISH, &variables);
    assert!(fs::read_to_string(machine.path("tools/synced")).unwrap().starts_with("./.hvdctl."));
}

const CLAIM: &[&str] = &["pool/claim.sh"];
const OWNER: &[&str] = &["pool/owner.sh"];

#[test]
fn root_says_whose_a_node_is_and_the_host_keys_are_printed() {
    let machine = Machine::new(&[
        ("ssh/a.pub", "ssh-ed25519 AAAA root@host with spaces\n"),
        ("ssh/b.pub", "ssh-rsa BBBB\nsecond line\n"),
        ("etc/x", ""),
    ]);
    let place = |name: &str| machine.path(name).display().to_string();
    machine.stub(
        "sshd",
        &format!("echo port 22; printf 'hostkey %s\\n' {} {} {}", place("ssh/a"), place("ssh/b"), place("ssh/none")),
    );
    let variables = |key: &str| format!("file='{}' key='{key}'", place("etc/hvdctl/pool-owner.pub"));
    for key in ["ssh-ed25519 AAAA", "ssh-ed25519 BBBB"] {
        // once more by the same owner
        for _ in 0..2 {
            assert_eq!(machine.prints(CLAIM, &variables(key)), "ssh-ed25519 AAAA\nssh-rsa BBBB\n");
            assert_eq!(fs::read_to_string(place("etc/hvdctl/pool-owner.pub")).unwrap(), format!("{key}\n"));
        }
        // somebody who has root there, too
        assert!(machine.fails(CLAIM, &variables("ssh-ed25519 EVIL")).contains("has another owner's key"));
        if key.ends_with("AAAA") {
            fs::remove_file(place("etc/hvdctl/pool-owner.pub")).unwrap();
        }
    }
    let facts =
        |name: &str| fs::metadata(place(name)).map(|facts| (facts.uid(), facts.gid(), facts.mode() & 0o7777)).unwrap();
    assert_eq!(facts("etc/hvdctl"), (0, 0, 0o755));
    assert_eq!(facts("etc/hvdctl/pool-owner.pub"), (0, 0, 0o644));
    assert_eq!(machine.prints(OWNER, &variables("x").replace("key='x'", "")), "ssh-ed25519 BBBB\n");
    // what was cut off is replaced, and nothing is left
    fs::write(place("etc/hvdctl/pool-owner.pub.new"), "half").unwrap();
    machine.prints(CLAIM, &variables("ssh-ed25519 BBBB"));
    assert_eq!(fs::read_dir(place("etc/hvdctl")).unwrap().count(), 1);
    // without sshd those that it has by default
    machine.stub("sshd", "exit 1");
    machine.stub("head", "for last in \"$@\"; do :; done; echo \"$last x\" >>\"${0%/*}/read\"");
    machine.prints(CLAIM, &variables("ssh-ed25519 BBBB"));
    let read = fs::read_to_string(machine.path("tools/read")).unwrap_or_default();
    assert!(read.lines().all(|line| line.starts_with("/etc/ssh/ssh_host_")), "{read}");
    machine.repair();
    machine.stub("mv", "echo 'mv: No space left on device' >&2; exit 1");
    assert_eq!(machine.fails(CLAIM, &variables("ssh-ed25519 BBBB")), "mv: No space left on device\n");
    assert_eq!(fs::read_to_string(place("etc/hvdctl/pool-owner.pub")).unwrap(), "ssh-ed25519 BBBB\n");
}

#[test]
fn an_owner_that_others_than_root_could_have_written_is_not_believed() {
    let machine = Machine::new(&[("etc/hvdctl/pool-owner.pub", "ssh-ed25519 AAAA\n"), ("other/pool-owner.pub", "x")]);
    let (etc, directory, file) =
        (machine.path("etc"), machine.path("etc/hvdctl"), machine.path("etc/hvdctl/pool-owner.pub"));
    let variables = format!("file='{}'", file.display());
    assert_eq!(machine.prints(OWNER, &variables), "ssh-ed25519 AAAA\n");
    for place in [&etc, &directory, &file] {
        let refused = || {
            assert_eq!(
                machine.fails(OWNER, &variables),
                format!("users other than root can change {}\n", place.display())
            )
        };
        let usual = fs::metadata(place).unwrap().permissions();
        for mode in [0o775, 0o757] {
            fs::set_permissions(place, fs::Permissions::from_mode(mode)).unwrap();
            refused();
        }
        fs::set_permissions(place, usual).unwrap();
        chown(place, Some(12_345), None).unwrap();
        refused();
        chown(place, Some(0), None).unwrap();
    }
    machine.prints(OWNER, &variables);
    // a directory like /tmp lets nobody replace what is root's
    fs::set_permissions(&etc, fs::Permissions::from_mode(0o1777)).unwrap();
    machine.prints(OWNER, &variables);
    fs::remove_file(&file).unwrap();
    symlink(machine.path("other/pool-owner.pub"), &file).unwrap();
    assert_eq!(machine.fails(OWNER, &variables), format!("users other than root can change {}\n", file.display()));
    fs::remove_file(&file).unwrap();
    assert_eq!(machine.fails(OWNER, &variables), format!("there is no {}\n", file.display()));
}
