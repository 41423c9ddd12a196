//! Places in the containers and on this machine, and names of files there, that several subjects have to agree on.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// Mount point of the project in the containers; [`crate::inventory::Layout`] has that of processes, too.
pub const WORKSPACE: &str = "/workspace";
/// Mount point of the pushed data in the containers.
pub const DATA: &str = "/data";
/// Mount point of the cluster's keys in the containers.
pub const CONTAINER_SSH: &str = "/root/.ssh";
/// The prefix of the paths that a job's supervisor uses in its container.
pub const CONTAINER_RUN: &str = "/run/hvdctl";
/// File name of the workers' private host key; the public key has `.pub` appended.
pub const HOST_KEY: &str = "ssh_host_ed25519_key";
/// The shell of the sessions of a worker's sshd (`worker/start.sh`), which have the environment of the image.
pub const SESSION_SHELL: &str = "/run/hvdctl/sh";
/// Name of the file with the public keys that may log in to a worker.
pub const AUTHORIZED_KEYS: &str = "authorized_keys";

/// Returns hvdctl's directory of what it keeps on the operator's machine, `$XDG_STATE_HOME/hvdctl`; `None` without a
/// home.
pub fn state_directory() -> Option<PathBuf> {
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let state = state.or_else(|| std::env::home_dir().map(|home| home.join(".local/state")));
    state.map(|state| state.join("hvdctl"))
}

/// Returns a builder of temporary directories that only their owner can enter, whatever the umask. Those of
/// [`tempfile::tempdir`] are as open as the umask lets them be.
pub fn private_directory() -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    builder.permissions(Permissions::from_mode(0o700));
    builder
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_directories_are_closed() {
        let directory = private_directory().prefix("x").tempdir().unwrap();
        assert_eq!(directory.path().metadata().unwrap().permissions().mode() & 0o7777, 0o700);
    }
}
