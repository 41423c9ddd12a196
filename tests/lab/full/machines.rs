//! node1 and node2 of the lab outside of the pool, for tests that need machines of another kind.

use crate::process::{Done, run, s};
use crate::state::Restore;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Tests run at once, and there is one node1.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The right to make node1 and node2. They are removed when it is dropped.
pub struct Machines {
    _removed: Restore<fn()>,
    _only: MutexGuard<'static, ()>,
}

impl Machines {
    /// Waits until no other test has them.
    pub fn reserve() -> Machines {
        let only = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        Machines { _removed: Restore(|| drop(lab(&["up", "--nodes", "0"]))), _only: only }
    }

    /// Makes them with these machine options of `scripts/lab up`.
    #[track_caller]
    pub fn up(options: &[&str]) -> Machines {
        let machines = Machines::reserve();
        lab(&[&["up"], options].concat()).ok();
        machines
    }
}

/// The checkout whose lab this is.
pub fn checkout() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// `scripts/lab` with these arguments. The first node of a distribution builds its image.
pub fn lab(args: &[&str]) -> Done {
    let mut command = Command::new(checkout().join("scripts/lab"));
    command.args(args);
    run(command, s(1200))
}

/// Runs a shell script as root on one of them, and returns its output.
#[track_caller]
pub fn on(node: &str, script: &str) -> String {
    lab(&["sh", node, "sh", "-ec", script]).ok()
}
