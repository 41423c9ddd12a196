//! The lab as a test sees it: a pair of nodes, an inventory of the test's own, and hvdctl run in a directory of its
//! own.

use crate::documented;
pub use crate::pool::{NODES, lab_dir, node_sh, shared_file};
use crate::pool::{Pair, THIRD, both_sh, node_command};
use crate::process::{Done, Running, eventually, run, s};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Set under `scripts/test --full`. It is known when the tests are compiled.
pub const FULL: bool = option_env!("HVDCTL_TEST_FULL").is_some();

/// The image on the nodes: the full one with `scripts/test --full`, else the quick one.
pub const IMAGE: &str = if FULL { FULL_IMAGE } else { "hvdctl-lab/horovod:quick" };

/// The image as users have it.
pub const FULL_IMAGE: &str = "hvdctl-lab/horovod:latest";

/// The image of Debian 13, without Horovod.
pub const MODERN_IMAGE: &str = "hvdctl-lab/horovod:modern";

/// The controllers that a test covers: this one, and with `scripts/test --full` both.
pub fn controllers(default: &'static str) -> Vec<&'static str> {
    if FULL { vec!["--gloo", "--mpi"] } else { vec![default] }
}

const RESET: &str = include_str!("reset.sh");
const KEPT: &str = include_str!("kept.sh");

/// A pair of nodes for one test alone, and a directory of the test's own with an inventory.
pub struct Lab {
    dir: tempfile::TempDir,
    _pair: Pair,
}

impl Lab {
    /// Two nodes without anything of hvdctl, and RSA as the type of keys, which is the default.
    #[track_caller]
    pub fn with_rsa_keys() -> Lab {
        let lab = Lab::check_out("");
        lab.reset();
        lab
    }

    /// Two nodes without anything of hvdctl, and Ed25519 keys, for tests that are not about keys: an RSA pair takes a
    /// debug build many seconds.
    #[track_caller]
    pub fn empty() -> Lab {
        let lab = Lab::check_out(ED25519);
        lab.reset();
        lab
    }

    /// Both nodes up, with Ed25519 keys. Workers of an earlier test are reused if it changed nothing in them.
    #[track_caller]
    pub fn up() -> Lab {
        let lab = Lab::check_out(ED25519);
        let program = fs::metadata(env!("CARGO_BIN_EXE_hvdctl")).unwrap();
        let key = format!("{}-{}-{}", program.ino(), program.mtime_nsec(), IMAGE);
        let print = |word: &str| both_sh(KEPT, &[word, &key]).map(Done::ok);
        let file = lab_dir().join("up");
        let kept = print("check");
        if kept.iter().all(|print| !print.is_empty()) && fs::read_to_string(&file).is_ok_and(|was| was == kept.concat())
        {
            return lab;
        }
        lab.reset();
        lab.hvdctl(&["up"]).code(0);
        fs::write(file, print("record").concat()).unwrap();
        lab
    }

    /// Both nodes up with the image as users have it; each launch imports PyTorch.
    #[track_caller]
    pub fn up_with_full_image() -> Lab {
        Lab::up_with(FULL_IMAGE)
    }

    /// Both nodes up with another image.
    #[track_caller]
    pub fn up_with(image: &str) -> Lab {
        let lab = Lab::empty();
        lab.edit(IMAGE, image);
        lab.hvdctl(&["up"]).code(0);
        lab
    }

    /// Three nodes up with another image.
    #[track_caller]
    pub fn three_up(image: &str) -> Lab {
        let lab = Lab::three_empty(image);
        lab.hvdctl(&["up"]).code(0);
        lab
    }

    /// Three nodes without anything of hvdctl, and an inventory with another image.
    #[track_caller]
    pub fn three_empty(image: &str) -> Lab {
        let lab = Lab::of(Pair::check_out_with(&[NODES[0], NODES[1], THIRD]), ED25519);
        lab.reset();
        node_sh(THIRD, RESET, &[]).code(0);
        lab.edit(IMAGE, image);
        lab.edit("host = \"node2\"\n", &format!("host = \"node2\"\n\n[[node]]\nhost = \"{THIRD}\"\n"));
        lab
    }

    #[track_caller]
    fn check_out(cluster: &str) -> Lab {
        Lab::of(Pair::check_out(), cluster)
    }

    #[track_caller]
    fn of(pair: Pair, cluster: &str) -> Lab {
        let lab = Lab { dir: tempfile::Builder::new().prefix("hvdctl-test.").tempdir().unwrap(), _pair: pair };
        let text = format!(
            "[cluster]\nname = \"lab\"\nimage = \"{}\"\nssh_config = \"{}\"\nconnect_timeout_s = 10\nconnection_idle_s \
             = 0\n{cluster}\n\
             [defaults]\nuser = \"workshop\"\ngpus = 1\n\n[[node]]\nhost = \"node1\"\n\n[[node]]\nhost = \"node2\"\n",
            IMAGE,
            lab_dir().join("ssh_config").display()
        );
        fs::write(lab.inventory(), text).unwrap();
        lab
    }

    /// The directory that hvdctl is run in.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The inventory, which lies in that directory.
    pub fn inventory(&self) -> PathBuf {
        self.path().join("inventory.toml")
    }

    /// Replaces a text in the inventory.
    #[track_caller]
    pub fn edit(&self, from: &str, to: &str) {
        let text = fs::read_to_string(self.inventory()).unwrap();
        assert!(text.contains(from), "no {from:?} in\n{text}");
        fs::write(self.inventory(), text.replacen(from, to, 1)).unwrap();
    }

    /// A project's directory with these files.
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

    /// Runs hvdctl to its end. What it writes with `--json` is held against its types.
    #[track_caller]
    pub fn hvdctl(&self, args: &[&str]) -> Done {
        let done = run(self.command(args), s(240));
        if args.contains(&"--json") {
            documented::hold(args, &done.out);
        }
        done
    }

    /// Starts hvdctl and leaves it running.
    #[track_caller]
    pub fn start(&self, args: &[&str]) -> Running {
        Running::start(self.command(args), &[])
    }

    /// Empties both nodes. With `scripts/test --full`, hvdctl empties them first, whatever the test before left there.
    #[track_caller]
    fn reset(&self) {
        if FULL && NODES.iter().all(|node| on(node, "[ ! -e /run/hvdctl-test-up ] || echo up") == "up\n") {
            self.hvdctl(&["down", "--purge", "-y"]).code(0);
            assert_eq!(NODES.map(ours), ["", ""], "containers after down --purge");
        }
        for done in both_sh(RESET, &[]) {
            done.code(0);
        }
    }
}

impl Drop for Lab {
    /// Ends the ssh masters that outlive the commands of this test.
    fn drop(&mut self) {
        for socket in fs::read_dir(self.path().join("hvdctl")).into_iter().flatten().flatten() {
            let _ = Command::new("ssh").args(["-O", "exit", "-S"]).arg(socket.path()).arg("node").output();
        }
    }
}

/// The setting of `[cluster]` for keys that are generated fast.
const ED25519: &str = "key_type = \"ed25519\"\n";

/// hvdctl, run in a directory, with nothing in its environment that could lead it elsewhere.
pub fn hvdctl_in(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hvdctl"));
    // the connections that outlive a command, where a test has them, are not those of the person who runs the tests
    command.current_dir(dir).env("XDG_RUNTIME_DIR", dir).env("DOCKER_CONFIG", dir);
    for name in ["HVDCTL_INVENTORY", "HVDCTL_IMAGE", "DOCKER_HOST", "CLICOLOR_FORCE", "XDG_CONFIG_HOME"] {
        command.env_remove(name);
    }
    command
}

/// Runs a shell script on a node, and returns its output if it succeeds.
#[track_caller]
pub fn on(node: &str, script: &str) -> String {
    node_sh(node, script, &[]).ok()
}

/// Puts a file into the directories of all jobs on a node: `/opt/horovod/jobs/$HVDCTL_JOB/NAME` for the ranks of each.
#[track_caller]
pub fn tell_jobs(node: &str, name: &str, text: &str) {
    let script = "for job in /opt/horovod/jobs/*/; do [ -d \"$job\" ] || continue; printf '%s\\n' \"$2\" \
        >\"$job$1.new\" && mv \"$job$1.new\" \"$job$1\"; done";
    node_sh(node, script, &[name, text]).code(0);
}

/// The node's address on the pair's network.
#[track_caller]
pub fn address(node: &str) -> String {
    // the own name is 127.0.1.1 there
    on(node, "ip -o -4 addr show dev eth0 | sed -n '1s/.* inet \\([^/]*\\).*/\\1/p'").trim().to_owned()
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

/// Name and state of the containers of this cluster on a node, a line each.
#[track_caller]
pub fn ours(node: &str) -> String {
    on(node, "docker ps -a --filter label=hvdctl.cluster=lab --format '{{.Names}} {{.State}}' | sort")
}

/// The processes of this cluster's jobs on a node, and those that follow a job's log for hvdctl; a line each. The
/// containers of other clusters have another directory for their jobs.
#[track_caller]
pub fn rank_processes(node: &str) -> String {
    on(
        node,
        r#"for p in $(grep -lz '^HVDCTL_JOB=' /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3) \
             $(pgrep -x 'orted|prted|mpirun|prterun|horovodrun|torchrun'); do
             [ -e "/proc/$p/root/opt/horovod/jobs" ] && echo "$p $(tr '\0' ' ' <"/proc/$p/cmdline" 2>/dev/null)"
           done 2>/dev/null | grep -v '^[0-9]* $'
           pgrep -af 'tail -c [+][0-9]* -f log' | grep -v 'pgrep\|sh -c'
           :"#,
    )
}

/// The processes of a node whose command line matches, a line each, as `pgrep -af` lists them.
#[track_caller]
pub fn processes(node: &str, pattern: &str) -> String {
    let done = run(node_command(node, &["pgrep", "-af", "--", pattern]), s(30));
    assert!(done.code <= 1, "pgrep: {}", done.err);
    done.out
}

/// The files below these directories of a node that hold this text, sorted. One is planted, so that a search that fails
/// is noticed.
#[track_caller]
pub fn files_with(node: &str, text: &str, directories: &str) -> Vec<String> {
    let script = format!(
        "d=/opt/hvdctl-test && mkdir -p $d && printf %s \"$1\" >$d/planted && grep -rlF -- \"$1\" {directories} $d \
         2>/dev/null; rm -r $d"
    );
    let found = node_sh(node, &script, &[text]).ok();
    let mut found: Vec<String> = found.lines().map(str::to_owned).collect();
    found.sort();
    found.dedup();
    let planted = found.iter().position(|file| file == "/opt/hvdctl-test/planted");
    found.remove(planted.expect("the search does not find what was planted"));
    found
}

/// The UUIDs of a node's GPUs, by the node itself.
#[track_caller]
pub fn gpu_uuids(node: &str) -> Vec<String> {
    let listed = on(node, "nvidia-smi -L");
    listed.lines().filter_map(|l| l.split("UUID: ").nth(1)).map(|u| u.trim_end_matches(')').to_owned()).collect()
}

/// Asserts that nothing of a job is left on the nodes.
#[track_caller]
pub fn no_job_is_left() {
    for node in NODES {
        // a container that is being removed and a process that was just killed need a moment
        // one that has exited goes with the next job if no hvdctl watched its own
        let is_up = |name: &&str| !name.ends_with(" exited");
        let of_job = |name: &str| name.starts_with("hmaster") || name.starts_with("hworker-");
        let containers = || ours(node).lines().filter(is_up).any(of_job);
        eventually(s(5), || rank_processes(node).is_empty() && !containers());
        assert_eq!(rank_processes(node), "", "processes of the job are left on {node}");
        assert!(!containers(), "containers of the job are left on {node}: {}", ours(node));
    }
}

/// Asserts that an hvdctl that has ended left no ssh master and no directory for one on this machine.
#[track_caller]
pub fn no_session_is_left(pid: u32) {
    let left = || sessions_of(pid);
    eventually(s(3), || left().is_empty());
    assert_eq!(left(), Vec::<String>::new(), "of hvdctl {pid} on this machine");
}

/// The directories and processes of an hvdctl's ssh sessions on this machine.
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
