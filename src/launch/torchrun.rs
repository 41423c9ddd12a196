//! PyTorch's `torchrun`: an agent on each node starts the ranks there.
//!
//! A job of fixed size uses the static rendezvous: the number of each node is given, so that ranks are where the
//! placement says and rank 0 is on the first node. The dynamic one (c10d) numbers the nodes by their host names
//! (`torch/distributed/elastic/rendezvous/dynamic_rendezvous.py`, `_mark_rendezvous_complete`). The agents restart
//! nothing: `--restarts` starts all of them again. The options are written with underscores, as PyTorch 1 takes no
//! others.

use super::description::{Argument, Start};
use super::{BASE, LaunchRequest, Launcher};

/// An agent on each node.
pub static LAUNCHER: Launcher = Launcher {
    program: "torchrun",
    start: Start::PerNode,
    arguments,
    reads: READS,
    rank: &["RANK"],
    local_rank: &["LOCAL_RANK"],
    size: &["WORLD_SIZE"],
    interface_variables: INTERFACE_VARIABLES,
    init: "init_process_group",
    verify_with: &["torch"],
    ..BASE
};

/// Gloo, NCCL and TensorPipe choose an interface themselves, often one without a route to the other nodes.
pub(super) const INTERFACE_VARIABLES: &[&str] = &["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"];

/// Prefixes of the variables that the agents read: options that no argument sets (`PET_LOG_DIR`), settings of PyTorch
/// and of the agents, and the level of their log.
const READS: &[&str] = &["PET_", "TORCH_", "TORCHELASTIC_", "USE_LIBUV", "LOGLEVEL"];

fn arguments(request: &LaunchRequest<'_>) -> Vec<Argument> {
    let arguments = vec![
        "torchrun".into(),
        "--nnodes".into(),
        Argument::Nodes {},
        "--node_rank".into(),
        Argument::Node {},
        "--nproc_per_node".into(),
        Argument::LocalRanks {},
        "--master_addr".into(),
        Argument::FirstAddress {},
        "--master_port".into(),
        Argument::RendezvousPort { port: request.rendezvous_port },
        "--max_restarts".into(),
        "0".into(),
        "--no_python".into(),
    ];
    arguments.into_iter().chain(request.rank_command()).collect()
}
