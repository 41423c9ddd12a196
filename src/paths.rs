//! Places in the containers and names of files there that several subjects have to agree on.

/// Where a project is seen in the containers.
pub const WORKSPACE: &str = "/workspace";
/// Where the containers see the cluster's keys.
pub const CONTAINER_SSH: &str = "/root/.ssh";
/// The workers' host key, private half; the public one has `.pub` behind it.
pub const HOST_KEY: &str = "ssh_host_ed25519_key";
