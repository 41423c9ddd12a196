//! The keeper as hmaster runs it, with a folder of this machine for another node.

use super::*;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// The clock of the other node is so many seconds ahead.
const AHEAD: f64 = 3600.0;

/// Runs a keeper in a folder, whose launcher fails at once and whose way to the other node is this `ssh`.
fn kept(here: &Path, ssh: &str) -> Ending {
    let keeping = serde_json::json!({
        "launcher": ["sh", "-c", "exit 1", "-np", "", "-H", ""],
        "node": "a", "address": "10.0.0.1", "ranks": 1,
        "workers": [{ "node": "b", "address": "10.0.0.2", "ranks": 1 }],
        "restarts": 0, "own_workers": false, "port": 22, "grace": 1,
    });
    let keeping = keeping.to_string();
    let files = [
        (KEEPER_FILE, KEEPER),
        (SUPERVISOR, RANK),
        ("collectives.py", COLLECTIVES),
        ("reap.py", REAP),
        ("ssh", ssh),
        ("launch.json", &keeping),
    ];
    for (name, text) in files {
        fs::write(here.join(name), text).unwrap();
    }
    fs::set_permissions(here.join("ssh"), Permissions::from_mode(0o755)).unwrap();
    let kept = Command::new("timeout").args(["30", "python3"]).arg(here.join(KEEPER_FILE)).output().unwrap();
    assert_eq!(kept.status.code(), Some(1), "{kept:?}");
    let text = fs::read_to_string(here.join("result.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn the_rank_that_failed_first_is_to_blame_though_its_node_is_slow_to_say_good_bye() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (here, there) = (here.path(), there.path());
    let failed = now();
    // the follower fails by itself 2 s later, and the way back from the culprit takes 3 s to close
    fs::write(here.join("states"), format!("{failed} 0 s \n{} 0 x 1\n", failed + 2.0)).unwrap();
    fs::write(there.join("states"), format!("{} 1 s \n{0} 1 x 7\n", failed + AHEAD)).unwrap();
    let other_clock = format!(
        "import runpy, time\nhere = time.time\ntime.time = lambda: here() + {AHEAD}\n\
         runpy.run_path('{}', run_name='__main__')\n",
        there.join("reap.py").display()
    );
    fs::write(there.join("reap.py"), REAP).unwrap();
    fs::write(there.join("other.py"), other_clock).unwrap();

    let ending = kept(here, &format!("#!/bin/sh\npython3 {} 1\nexec sleep 3\n", there.join("other.py").display()));
    assert_eq!((ending.started, ending.exits.len(), ending.silent.len()), (2, 2, 0), "{ending:?}");
    let first = ending.first_failure(2).unwrap();
    assert_eq!((first.rank, first.node.as_str(), first.code), (1, "b", 7), "{ending:?}");
}

#[test]
fn a_connection_that_leads_nowhere_is_given_up_for_another() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (here, there) = (here.path(), there.path());
    fs::write(there.join("states"), "1.0 1 s \n1.0 1 x 7\n").unwrap();
    fs::write(there.join("reap.py"), REAP).unwrap();
    // over the one that stands nothing comes, and like ssh's master it holds the streams of a client that was killed
    let ssh = format!(
        "#!/bin/sh\ncase \"$*\" in *' -S /run/'*) sleep 40 & wait ;; esac\nexec python3 {} 1\n",
        there.join("reap.py").display()
    );
    let ending = kept(here, &ssh);
    assert_eq!((ending.started, ending.exits.len(), ending.silent.len()), (1, 1, 0), "{ending:?}");
}
