//! `train --dry-run` and `run --dry-run`: the plan of a job as text and as a document.

use crate::commands::Outcome;
use crate::document::End;
use crate::grade::best::Choice;
use crate::grade::speed;
use crate::launch::NodeCommand;
use crate::launch::placement::{Placement, Share};
use crate::model::launcher::LauncherName;
use crate::schedule::ShownPlan;
use crate::start::in_worker::NodeCores;
use crate::start::roles::JobRole;
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
    /// The roles, in their order; none for a job of one program. With roles, `launch` and `command` are those of the
    /// first one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<PlannedRole>,
}

/// A role of a job that would be started.
#[derive(Debug, Serialize, JsonSchema)]
pub struct PlannedRole {
    /// Its name.
    pub name: String,
    /// The number of its ranks; 0 under Slurm, if it depends on the nodes.
    pub ranks: u32,
    /// The launcher of its ranks.
    pub launcher: LauncherName,
    /// The commands that would be started on the nodes; none under Slurm.
    pub launch: Vec<NodeCommand>,
    /// The command of each of its ranks.
    pub command: Vec<ProgramArgument>,
}

impl PlannedRole {
    fn of(role: &JobRole, ranks: u32, launch: Vec<NodeCommand>) -> PlannedRole {
        let (name, command) = (role.project.name.clone(), role.project.command.clone());
        PlannedRole { name, ranks, launcher: role.launcher, launch, command }
    }
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
            roles: Vec::new(),
        }
    }
}

/// Returns what a dry run says of a plan as text and as a document. `roles`: those of a job that has some; `best`: why
/// these nodes, if they were chosen.
pub fn outcome(
    (command, roles): (&[ProgramArgument], &[JobRole]),
    shown: ShownPlan<'_>,
    best: Option<Choice>,
) -> Outcome {
    let ShownPlan { placed, placement, commands, cores, submission, submitted_by } = shown;
    let Some(plan) = placed else {
        let each: String = match roles {
            [] => each_rank("", command),
            roles => roles.iter().map(|role| each_rank(&role.project.name, &role.project.command)).collect(),
        };
        let text = format!("{submitted_by} {}\n{each}", quote::command(&submission));
        let roles =
            roles.iter().map(|role| PlannedRole::of(role, role.size.ranks().unwrap_or(0), Vec::new())).collect();
        return Outcome::ok(text, DryRun { submission, roles, ..DryRun::of(command.to_vec()) });
    };
    let address = |share: &Share| {
        let host = plan.hosts.all().find(|host| host.observed.name() == share.node);
        host.map_or_else(String::new, |host| host.endpoint.address.to_string())
    };
    let with_ranks = plan.hosts.all().filter(|host| host.ranks > 0);
    let speeds =
        with_ranks.map(|host| NodeSpeed { node: host.observed.name().to_owned(), speed: host.speed }).collect();
    let details = DryRunDetails { cores, speeds, best };
    let roles = roles.iter().enumerate().zip(commands);
    let roles =
        roles.map(|((number, role), launch)| PlannedRole::of(role, launch_ranks(&placement, number), launch.clone()));
    let commands = commands.first().map(Vec::as_slice).unwrap_or_default();
    placed_outcome(command, &placement, address, commands, (details, roles.collect()))
}

/// Returns the number of ranks of a role.
fn launch_ranks(placement: &Placement, role: usize) -> u32 {
    placement.shares.iter().filter_map(|share| share.roles.get(role)).sum()
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
    (DryRunDetails { cores, speeds, best }, roles): (DryRunDetails, Vec<PlannedRole>),
) -> Outcome {
    let row = |share: &Share| {
        let mut row = vec![share.node.clone(), numbers(share.first, share.ranks), address(share)];
        if !roles.is_empty() {
            row.push(roles_of(share, placement, &roles));
        }
        row
    };
    let mut columns = vec![key("NODE"), key("RANKS"), text("ADDRESS")];
    columns.extend((!roles.is_empty()).then(|| text("ROLES")));
    let mut text = ResultText::from(Table::new(columns, placement.shares.iter().map(row)));
    text.extend(placement.shares.iter().filter(|share| share.ranks > 0).map(|share| core_line(share, &cores)));
    let slower = speeds.iter().filter(|slower| slower.speed != 1.0);
    text.extend(slower.map(|of| format!("speed of {}: HVDCTL_SPEED={}\n", of.node, speed::variable(of.speed))));
    if roles.is_empty() {
        text.extend(started(commands, command, ""));
    }
    text.extend(roles.iter().flat_map(|of| started(&of.launch, &of.command, &format!("{} ", of.name))));
    let (placement, launch, command) = (placement.clone(), commands.to_vec(), command.to_vec());
    Outcome::ok(text, DryRun { placement, launch, cores, speeds, best, roles, ..DryRun::of(command) })
}

/// Formats so many numbers from the first one on.
fn numbers(first: u32, count: u32) -> String {
    match count {
        0 => "–".to_owned(),
        1 => first.to_string(),
        count => format!("{first}-{}", first + count - 1),
    }
}

/// Formats the ranks of roles on a node, as they are numbered in their roles.
fn roles_of(share: &Share, placement: &Placement, roles: &[PlannedRole]) -> String {
    let there = share.roles.iter().zip(roles).enumerate().filter(|(_, (ranks, _))| **ranks > 0);
    let of_role = |(number, (ranks, role)): (usize, (&u32, &PlannedRole))| {
        format!("{} {}", role.name, numbers(placement.ranks_before(number, share), *ranks))
    };
    there.map(of_role).collect::<Vec<_>>().join(", ")
}

/// Formats what is started on the nodes, for a role or for all ranks.
fn started(commands: &[NodeCommand], command: &[ProgramArgument], role: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for NodeCommand { node, argv, variables } in commands {
        let on = if commands.len() > 1 { format!(" on {node}") } else { String::new() };
        let argv = quote::command(argv);
        if variables.is_empty() {
            lines.push(format!("{role}launcher{on}: {argv}\n"));
        }
        lines.extend(variables.iter().map(|env| format!("{role}rank{on}: env {} {argv}\n", quote::command(env))));
    }
    lines.push(each_rank(role.trim_end(), command));
    lines
}

/// Formats the command of each rank, or of each rank of a role.
fn each_rank(role: &str, command: &[ProgramArgument]) -> String {
    let of = if role.is_empty() { String::new() } else { format!(" of {role}") };
    format!("each rank{of}: {}\n", quote::command(command))
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
