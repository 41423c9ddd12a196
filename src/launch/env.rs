//! No launcher: hvdctl starts every rank, with the variables that frameworks read. `docs/guide/launchers.md` has the
//! table with sources.

use super::description::{Argument, Start};
use super::torchrun::INTERFACE_VARIABLES;
use super::{BASE, LaunchRequest, Launcher};

/// Every rank.
pub static LAUNCHER: Launcher = Launcher {
    program: "env",
    start: Start::PerRank,
    arguments: |request| request.rank_command(),
    variables,
    rank: &["RANK"],
    local_rank: &["LOCAL_RANK"],
    size: &["WORLD_SIZE"],
    interface_variables: INTERFACE_VARIABLES,
    init: "the initialization of its framework",
    verify_with: &["torch"],
    ..BASE
};

fn variables(request: &LaunchRequest<'_>) -> Vec<(&'static str, Argument)> {
    let port = request.rendezvous_port;
    vec![
        // PyTorch (torch.distributed, env://), Accelerate, DeepSpeed
        ("RANK", Argument::Rank {}),
        ("LOCAL_RANK", Argument::LocalRank {}),
        ("WORLD_SIZE", Argument::Ranks {}),
        ("LOCAL_WORLD_SIZE", Argument::LocalRanks {}),
        ("NODE_RANK", Argument::Node {}),
        ("GROUP_RANK", Argument::Node {}),
        ("MASTER_ADDR", Argument::FirstAddress {}),
        ("MASTER_PORT", Argument::RendezvousPort { port }),
        // tf.distribute
        ("TF_CONFIG", Argument::TfConfig { port }),
        // jax.distributed.initialize()
        ("JAX_COORDINATOR_ADDRESS", Argument::FirstEndpoint { port }),
        ("JAX_NUM_PROCESSES", Argument::Ranks {}),
        ("JAX_PROCESS_ID", Argument::Rank {}),
    ]
}
