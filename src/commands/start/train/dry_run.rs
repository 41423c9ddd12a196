//! `train --dry-run` and `run --dry-run`: the plan of a job as text and as a document.

use crate::commands::Outcome;
use crate::document::End;
use crate::grade::best::Choice;
use crate::grade::speed;
use crate::launch::NodeCommand;
use crate::launch::placement::{Placement, Share};
use crate::schedule::ShownPlan;
use crate::start::in_worker::NodeCores;
use crate::text::argument::ProgramArgument;
use crate::text::quote;
use crate::text::result::ResultText;
use crate::text::table::{Table, key, text};
use schemars::JsonSchema;
use serde::Serialize;

/// The only line of `train --dry-run` and `run --dry-run`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DryRun {
    /// `end`.
    pub event: End,
    /// The exit code.
    pub code: u8,
    /// Always true.
    pub dry_run: bool,
    /// Which ranks would be where; none under Slurm, which chooses that.
    pub placement: Placement,
    /// The commands that would be started on the nodes.
    pub launch: Vec<NodeCommand>,
    /// The cores and threads of the ranks on each node whose worker is up.
    pub cores: Vec<NodeCores>,
    /// The speed of each node with ranks: `HVDCTL_SPEED`.
    pub speeds: Vec<NodeSpeed>,
    /// Why these nodes were chosen; null without `--best`.
    pub best: Option<Choice>,
    /// Under Slurm, the options of sbatch.
    #[serde(rename = "sbatch", skip_serializing_if = "Vec::is_empty")]
    pub submission: Vec<String>,
    /// The command of each rank.
    pub command: Vec<ProgramArgument>,
}

impl DryRun {
    /// The plan of a job with this command, of which nothing else is known.
    pub fn of(command: Vec<ProgramArgument>) -> DryRun {
        DryRun {
            event: End::End,
            code: 0,
            dry_run: true,
            placement: Placement::default(),
            launch: Vec::new(),
            cores: Vec::new(),
            speeds: Vec::new(),
            best: None,
            submission: Vec::new(),
            command,
        }
    }
}

/// Returns what a dry run says of a plan as text and as a document. `best`: why these nodes, if they were chosen.
pub fn outcome(command: &[ProgramArgument], shown: ShownPlan<'_>, best: Option<Choice>) -> Outcome {
    let ShownPlan { placed, placement, commands, cores, submission, submitted_by } = shown;
    let Some(plan) = placed else {
        let text = format!("{submitted_by} {}\neach rank: {}\n", quote::command(&submission), quote::command(command));
        return Outcome::ok(text, DryRun { submission, ..DryRun::of(command.to_vec()) });
    };
    let address = |share: &Share| {
        let host = plan.hosts.all().find(|host| host.observed.name() == share.node);
        host.map_or_else(String::new, |host| host.endpoint.address.to_string())
    };
    let with_ranks = plan.hosts.all().filter(|host| host.ranks > 0);
    let speeds =
        with_ranks.map(|host| NodeSpeed { node: host.observed.name().to_owned(), speed: host.speed }).collect();
    let details = DryRunDetails { cores, speeds, best };
    placed_outcome(command, &placement, address, commands, details)
}

/// How fast a node is.
#[derive(Debug, Serialize, JsonSchema)]
pub struct NodeSpeed {
    /// The node's name.
    pub node: String,
    /// Its measured speed relative to the fastest node of the job; 1 if it is not known.
    pub speed: f64,
}

/// The details of a dry run about the nodes.
pub(in crate::commands) struct DryRunDetails {
    /// The cores and threads of their ranks.
    pub(in crate::commands) cores: Vec<NodeCores>,
    /// Their speeds.
    pub(in crate::commands) speeds: Vec<NodeSpeed>,
    /// Why these nodes, if they were chosen.
    pub(in crate::commands) best: Option<Choice>,
}

/// Formats the plan of a job whose nodes are allocated. `address`: that of a share's node.
pub(in crate::commands) fn placed_outcome(
    command: &[ProgramArgument],
    placement: &Placement,
    address: impl Fn(&Share) -> String,
    commands: &[NodeCommand],
    DryRunDetails { cores, speeds, best }: DryRunDetails,
) -> Outcome {
    let row = |share: &Share| {
        let ranks = match share.ranks {
            0 => "–".to_owned(),
            1 => share.first.to_string(),
            ranks => format!("{}-{}", share.first, share.first + ranks - 1),
        };
        vec![share.node.clone(), ranks, address(share)]
    };
    let columns = [key("NODE"), key("RANKS"), text("ADDRESS")];
    let mut text = ResultText::from(Table::new(columns, placement.shares.iter().map(row)));
    text.extend(placement.shares.iter().filter(|share| share.ranks > 0).map(|share| core_line(share, &cores)));
    let slower = speeds.iter().filter(|slower| slower.speed != 1.0);
    text.extend(slower.map(|of| format!("speed of {}: HVDCTL_SPEED={}\n", of.node, speed::variable(of.speed))));
    for NodeCommand { node, argv, variables } in commands {
        let on = if commands.len() > 1 { format!(" on {node}") } else { String::new() };
        let argv = quote::command(argv);
        if variables.is_empty() {
            text.push_str(&format!("launcher{on}: {argv}\n"));
        }
        text.extend(variables.iter().map(|env| format!("rank{on}: env {} {argv}\n", quote::command(env))));
    }
    text.push_str(&format!("each rank: {}\n", quote::command(command)));
    let (placement, launch, command) = (placement.clone(), commands.to_vec(), command.to_vec());
    Outcome::ok(text, DryRun { placement, launch, cores, speeds, best, ..DryRun::of(command) })
}

/// Formats the cores and threads of a node's ranks.
fn core_line(share: &Share, cores: &[NodeCores]) -> String {
    let node = &share.node;
    let Some(cores) = cores.iter().find(|cores| cores.node == *node) else {
        return format!("cores on {node}: not known until its worker is up\n");
    };
    let of_rank = |(cpus, rank): (&String, u32)| format!("{cpus} for rank {rank}");
    let bound = match cores.bind.as_str() {
        "none" => "all for every rank".to_owned(),
        _ => cores.cpus.iter().zip(share.first..).map(of_rank).collect::<Vec<_>>().join(", "),
    };
    format!("cores on {node}: {bound}; bind {}, OMP_NUM_THREADS={}\n", cores.bind, cores.threads)
}
