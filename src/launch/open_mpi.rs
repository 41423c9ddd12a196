//! Settings that Open MPI needs in hmaster, both if `horovodrun` starts it and if hvdctl does.
//!
//! Open MPI 4 starts its daemons itself (ORTE), Open MPI 5 leaves that to PRRTE; the same settings have other names
//! there (<https://docs.open-mpi.org/en/v5.0.x/mca.html>). Both sets are given, since each version only reads its own,
//! and as environment, so that the argument vector is the same.

use super::LaunchRequest;
use std::time::Duration;

/// Process names of the daemons of Open MPI 4 and 5.
pub(super) const DAEMONS: &[&str] = &["orted", "prted"];

/// Prefixes of the variables that Open MPI reads.
pub(super) const READS: &[&str] = &["OMPI_MCA_", "PRTE_MCA_", "PMIX_MCA_"];

/// The environment that Open MPI needs in any container. Docker denies the system call by which ranks of one container
/// copy from each other; Open MPI 4 then falls back to another mechanism and prints a line of complaint for each
/// message.
pub(super) fn container_environment() -> Vec<(&'static str, String)> {
    vec![("OMPI_MCA_btl_vader_single_copy_mechanism", "none".into())]
}

/// The environment by which its daemons and its ranks choose an interface, or a network. Without it they try all of
/// them, the loopback and Docker's own among them, and hang.
pub(super) fn interface(interface: Option<&str>) -> Vec<(&'static str, String)> {
    let names = ["OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_oob_tcp_if_include", "PRTE_MCA_prte_if_include"];
    interface.into_iter().flat_map(|interface| names.map(|name| (name, interface.to_owned()))).collect()
}

/// The environment that gives ranks time to save when `mpirun` itself is asked to end. Its daemons wait between SIGCONT and
/// SIGTERM, and as long again before SIGKILL (`orte/mca/odls/base/odls_base_default_fns.c`; seen with 4.1.4): together
/// that is `grace`.
pub fn time_to_end(grace: Duration) -> [(&'static str, String); 2] {
    let seconds = (grace.as_secs() / 2).max(1).to_string();
    ["OMPI_MCA_odls_base_sigkill_timeout", "PRTE_MCA_odls_base_sigkill_timeout"].map(|name| (name, seconds.clone()))
}

/// The environment that any `mpirun` in hmaster needs.
pub(super) fn environment(request: &LaunchRequest<'_>) -> Vec<(&'static str, String)> {
    let mut all = container_environment();
    all.extend(interface(Some(request.interface).filter(|_| request.hosts.len() > 1)));
    // otherwise its daemons leave their sshd sessions and are not ended when the network is cut
    all.push(("OMPI_MCA_orte_leave_session_attached", "1".into()));
    all.push(("PRTE_MCA_prte_leave_session_attached", "1".into()));
    all
}
