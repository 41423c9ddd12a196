//! The lab as the tests see it: the nodes, an inventory of the test's own, and hvdctl run from a folder of its own.

use crate::process::{Done, Running, eventually, run, s};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard};

/// The image on the nodes.
pub const IMAGE: &str = "hvdctl-lab/horovod:latest";
/// Both nodes, the master first.
pub const NODES: [&str; 2] = ["node1", "node2"];

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The lab with nothing of hvdctl's on it, for one test alone.
pub struct Lab {
    dir: tempfile::TempDir,
    _turn: MutexGuard<'static, ()>,
}

impl Lab {
    /// Waits for its turn and empties the nodes. The key pair is RSA, as users have it.
    #[track_caller]
    pub fn empty() -> Lab {
        Lab::with("")
    }

    /// The same with Ed25519 keys, for tests that are not about keys: an RSA pair takes a debug build many seconds.
    #[track_caller]
    pub fn quick() -> Lab {
        Lab::with("key_type = \"ed25519\"\n")
    }

    /// Both nodes up, with Ed25519 keys.
    #[track_caller]
    pub fn up() -> Lab {
        let lab = Lab::quick();
        lab.hvdctl(&["up"]).code(0);
        lab
    }

    #[track_caller]
    fn with(cluster: &str) -> Lab {
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(|broken| broken.into_inner());
        let lab_dir = lab_dir();
        assert!(lab_dir.join("ssh_config").is_file(), "there is no lab: scripts/lab up");
        let lab = Lab { dir: tempfile::Builder::new().prefix("hvdctl-test.").tempdir().unwrap(), _turn: turn };
        let text = format!(
            "[cluster]\nname = \"lab\"\nimage = \"{IMAGE}\"\nssh_config = \"{}\"\nconnect_timeout_s = 6\n{cluster}\n\
             [defaults]\nuser = \"workshop\"\ngpus = 1\n\n[[node]]\nhost = \"node1\"\n\n[[node]]\nhost = \"node2\"\n",
            lab_dir.join("ssh_config").display()
        );
        fs::write(lab.inventory(), text).unwrap();
        lab.clean();
        lab
    }

    /// The folder that hvdctl is run in.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The inventory, which lies in that folder.
    pub fn inventory(&self) -> PathBuf {
        self.path().join("inventory.toml")
    }

    /// Replaces words of the inventory.
    #[track_caller]
    pub fn edit(&self, from: &str, to: &str) {
        let text = fs::read_to_string(self.inventory()).unwrap();
        assert!(text.contains(from), "no {from:?} in\n{text}");
        fs::write(self.inventory(), text.replacen(from, to, 1)).unwrap();
    }

    /// A project's folder with these files.
    pub fn project(&self, name: &str, files: &[(&str, &str)]) -> PathBuf {
        let root = self.path().join("projects").join(name);
        fs::create_dir_all(&root).unwrap();
        for (file, text) in files {
            let file = root.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        root
    }

    /// hvdctl with this lab's inventory.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = hvdctl_in(self.path());
        command.args(args);
        command
    }

    /// Runs hvdctl to its end.
    #[track_caller]
    pub fn hvdctl(&self, args: &[&str]) -> Done {
        run(self.command(args), s(240))
    }

    /// Starts hvdctl and leaves it running.
    #[track_caller]
    pub fn start(&self, args: &[&str]) -> Running {
        Running::start(self.command(args), &[])
    }

    /// `down --purge`, and what shows that nothing is left of hvdctl's on the nodes.
    #[track_caller]
    pub fn clean(&self) {
        for node in NODES {
            // what a test that failed half-way may have left
            node_sh(
                node,
                "docker ps -aq --filter label=hvdctl-test | xargs -r docker rm -f
                 for p in $(grep -lz '^HVDCTL_TEST=' /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3); do kill -9 $p; done
                 kill -CONT $(pidof dockerd) 2>/dev/null; rm -f /run/hvdctl/lab.lease
                 node-engine start; for i in $(seq 300); do docker version >/dev/null 2>&1 && break; sleep 0.1; done
                 iptables -w 10 -S INPUT | grep -E '^-A INPUT -s [0-9./]+ -j DROP$' | while read -r _ rule; do
                   iptables -w 10 -D $rule
                 done
                 awk '$2 ~ \"^/opt/horovod/\" { print $2 }' /proc/mounts | xargs -r -n 1 umount -l
                 rm -rf /opt/horovod/test-*",
                &[],
            )
            .code(0);
        }
        self.hvdctl(&["down", "--purge", "-y"]).code(0);
        for node in NODES {
            // keys of a cluster of another name, or of none, would stay: they are not hvdctl's to remove
            node_sh(node, "rm -rf /opt/horovod", &[]).code(0);
            assert_eq!(ours(node), "", "containers of hvdctl on {node} after down --purge");
            assert_eq!(rank_processes(node), "", "processes of a run on {node} after down --purge");
        }
    }
}

/// The lab's own folder.
pub fn lab_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(".lab")
}

/// hvdctl, run in a folder, with nothing in its environment that could lead it elsewhere.
pub fn hvdctl_in(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hvdctl"));
    command.current_dir(dir);
    for name in ["HVDCTL_INVENTORY", "HVDCTL_IMAGE", "DOCKER_HOST", "CLICOLOR_FORCE", "XDG_CONFIG_HOME"] {
        command.env_remove(name);
    }
    command
}

/// A shell's words as root on a node, with arguments.
#[track_caller]
pub fn node_sh(node: &str, script: &str, args: &[&str]) -> Done {
    let mut command = Command::new("docker");
    command.args(["exec", &container(node), "sh", "-c", script, "sh"]).args(args);
    run(command, s(60))
}

/// What they print, where they end well.
#[track_caller]
pub fn on(node: &str, script: &str) -> String {
    node_sh(node, script, &[]).ok()
}

/// The lab's container that is the node.
pub fn container(node: &str) -> String {
    format!("hvdctl-lab-{node}")
}

/// `docker inspect` of a container on a node.
#[track_caller]
pub fn inspect(node: &str, name: &str) -> Value {
    let text = node_sh(node, "docker inspect -- \"$1\"", &[name]).ok();
    serde_json::from_str::<Value>(&text).unwrap()[0].clone()
}

/// A container's id on a node.
#[track_caller]
pub fn id_of(node: &str, name: &str) -> String {
    inspect(node, name)["Id"].as_str().unwrap().to_owned()
}

/// Name and state of the containers of this cluster on a node, a line each. Others may use the lab at the same time, under
/// another cluster's name and with folders of their own.
#[track_caller]
pub fn ours(node: &str) -> String {
    on(node, "docker ps -a --filter label=hvdctl.cluster=lab --format '{{.Names}} {{.State}}' | sort")
}

/// The processes of this cluster's runs on a node, and those that follow a run's log for hvdctl; a line each. The
/// containers of other clusters have another folder for their runs.
#[track_caller]
pub fn rank_processes(node: &str) -> String {
    on(
        node,
        r#"for p in $(grep -lz '^HVDCTL_JOB=' /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3); do
             [ ! -e "/proc/$p/root/opt/horovod/jobs" ] || echo "$p $(tr '\0' ' ' <"/proc/$p/cmdline" 2>/dev/null)"
           done | grep -v '^[0-9]* $'
           for p in $(pgrep -x 'orted|mpirun|horovodrun'); do
             [ ! -e "/proc/$p/root/opt/horovod/jobs" ] || echo "$p $(tr '\0' ' ' <"/proc/$p/cmdline" 2>/dev/null)"
           done | grep -v '^[0-9]* $'
           pgrep -af 'tail -c .*/opt/horovod/jobs/[0-9]' | grep -v 'pgrep\|sh -c'
           :"#,
    )
}

/// Waits until nobody else's run is under way: what the test is about to break is the whole node.
pub fn others_are_done() {
    let runs = "docker ps --filter label=hvdctl.role=master --format '{{.Label \"hvdctl.cluster\"}}' | grep -vx lab; :";
    eventually(s(300), || NODES.iter().all(|node| on(node, runs).is_empty()));
}

/// The UUIDs of a node's GPUs, by the node itself.
#[track_caller]
pub fn gpu_uuids(node: &str) -> Vec<String> {
    let listed = on(node, "nvidia-smi -L");
    listed.lines().filter_map(|l| l.split("UUID: ").nth(1)).map(|u| u.trim_end_matches(')').to_owned()).collect()
}

/// Asserts that nothing of a run is left on the nodes.
#[track_caller]
pub fn no_run_is_left() {
    for node in NODES {
        // a container that is being removed and a process that was just killed need a moment
        let containers = || ours(node).lines().any(|name| name.starts_with("hmaster") || name.starts_with("hworker-"));
        eventually(s(5), || rank_processes(node).is_empty() && !containers());
        assert_eq!(rank_processes(node), "", "processes of the run are left on {node}");
        assert!(!containers(), "containers of the run are left on {node}: {}", ours(node));
    }
}

/// Asserts that an hvdctl that has ended left no ssh master and no folder for one on this machine.
#[track_caller]
pub fn no_session_is_left(pid: u32) {
    let left = || sessions_of(pid);
    eventually(s(3), || left().is_empty());
    assert_eq!(left(), Vec::<String>::new(), "of hvdctl {pid} on this machine");
}

/// The folders and processes of an hvdctl's ssh sessions on this machine.
pub fn sessions_of(pid: u32) -> Vec<String> {
    let name = format!("hvdctl-ssh.{pid}.");
    let mut left: Vec<String> = fs::read_dir("/tmp")
        .unwrap()
        .flatten()
        .map(|e| e.path().display().to_string())
        .filter(|path| path.contains(&name))
        .collect();
    for process in fs::read_dir("/proc").unwrap().flatten() {
        let words = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let words = String::from_utf8_lossy(&words).replace('\0', " ");
        if words.contains(&name) {
            left.push(words);
        }
    }
    left
}

/// Puts something back when a test is over, however it ends.
pub struct Restore<F: FnMut()>(pub F);

impl<F: FnMut()> Drop for Restore<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}
