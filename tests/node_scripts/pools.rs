//! The directory of a pool.

use super::Machine;
use std::fs;
use std::path::Path;

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
