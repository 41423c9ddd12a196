//! Another user of a node, who has a login and nothing else, for the tests of the scripts.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

const UID: u32 = 65_534;

/// Returns a program of that user; `None` where these tests do not run as root, who alone can become another user.
pub(crate) fn stranger(program: &str) -> Option<Command> {
    let mut command = Command::new(program);
    command.uid(UID).gid(UID).current_dir("/");
    rustix::process::geteuid().is_root().then_some(command)
}

/// Returns the paths below a directory, which is open itself, that this user can list, read, write or execute.
pub(crate) fn accessible(directory: &Path) -> Vec<String> {
    fs::set_permissions(directory.parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
    let Some(mut find) = stranger("find") else { return Vec::new() };
    let is_any = ["-mindepth", "1", "(", "-readable", "-o", "-writable", "-o", "-executable", ")", "!", "-type", "l"];
    let found = find.arg(directory).args(is_any).output().unwrap();
    String::from_utf8(found.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// Returns the paths below a directory that others than root may write to, or that are setuid or setgid.
pub(crate) fn with_open_modes(directory: &Path) -> Vec<String> {
    let found = Command::new("find").arg(directory).args(["!", "-type", "l", "-perm", "/6022"]).output().unwrap();
    String::from_utf8(found.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// A process.
pub(crate) struct Process(pub Child);

impl Process {
    /// Starts a process that says it is of a job, in a root directory of its own; as another user unless `is_root`.
    pub(super) fn of_job(root: &Path, is_root: bool) -> Process {
        // the process has the variable from its start, and the files of /proc are root's since it has changed its user
        let program = format!(
            "import os, sys; os.chroot(sys.argv[1]); {} print(flush=True); sys.stdin.read()",
            match is_root {
                true => String::new(),
                false => format!("os.setgroups([]); os.setgid({UID}); os.setuid({UID});"),
            }
        );
        let mut command = Command::new("python3");
        command.args(["-c", &program]).arg(root).env("HVDCTL_JOB", "j0").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process(command.spawn().unwrap());
        std::io::Read::read_exact(process.0.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        process
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
