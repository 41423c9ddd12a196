//! Arguments of `pool`.

use super::HostsFormat;
use clap::{Args, Subcommand, ValueHint};

/// Options of `pool`.
#[derive(Debug, Args)]
#[command(after_help = POOL)]
pub struct Pool {
    /// Subcommand
    #[command(subcommand)]
    pub what: Option<PoolCommand>,
}

/// The subcommands of `pool`.
#[derive(Debug, Subcommand)]
pub enum PoolCommand {
    /// Pick the best nearby nodes of one kind, and print an inventory of them
    Pick(PoolPick),
}

const POOL: &str = "\
A pool is a directory that several owners of nodes reach by ssh ([pool] in the inventory). `hvdctl grade --publish` \
writes one signed file for each of your nodes there. The list shows the nodes of all members, and each file that does \
not match what a member signed, with the reason. docs/reference/pool.md has the steps.";

/// Options of `pool pick`.
#[derive(Debug, Args)]
#[command(after_help = PICK)]
pub struct PoolPick {
    /// Number of ranks, also written -np N
    #[arg(long = "np", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub np: u32,
    /// User to log in as on the nodes, also in the inventory [default: that of your SSH configuration]
    #[arg(long, value_name = "USER", value_hint = ValueHint::Username)]
    pub user: Option<String>,
    /// Node to use as the master, which gets the cluster's private key: NODE or OWNER/NODE [default: one of yours]
    #[arg(long, value_name = "NODE")]
    pub master: Option<String>,
    /// Print the nodes in the format of another tool, as hosts does [default: an inventory]
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<HostsFormat>,
}

const PICK: &str = "\
Only nodes whose files are valid and whose grade is not F are candidates. hvdctl logs in to each, accepts no host key \
but the published one, checks that root there has named the same owner, and measures the round trip to every other \
one. A group is of one kind. Distance (below 2 ms, below 20 ms, more) takes precedence over grades. Nothing is changed \
on any node.

The master is a node of yours, because its owner gets the cluster's private key, and with it root in the workers of \
all others. To use another master, name a node whose owner you trust with that: --master.

Exit codes: 0 picked; 1 no group has a master and enough slots.

Examples:
  hvdctl pool pick -np 8 > pool.toml && hvdctl -i pool.toml doctor
  horovodrun -H \"$(hvdctl pool pick -np 8 --format horovod)\" -np 8 python train.py";
