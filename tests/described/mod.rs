//! The lists of commands in the reference, from what `cli::Command::description` says of each.

use clap::{CommandFactory, Parser};
use hvdctl::cli::{Cli, Description, ExitCode, FOR_SLURM, Locks, NodeUse, SignalPolicy, rewrite};

/// A command as it is typed, with what is particular to it.
pub struct Described {
    /// The command without what it needs, as in `keys push`.
    pub name: String,
    /// The shortest command line.
    line: String,
    /// Set if it has the option `--wait`.
    waits: bool,
    pub description: Description,
}

impl Described {
    fn new(name: &str, waits: bool) -> Described {
        let arguments = match name {
            "completions" => " bash",
            "data push" | "notebook" => " .",
            "data rm" | "drain" | "env rm" | "init" => " n",
            "exec" => " -- true",
            "export jobset" | "export mpijob" | "export sbatch" | "train" => " . -np 1",
            "pool pick" => " -np 1",
            "run" => " -np 1 -- true",
            "slurm exec" => " -- squeue",
            _ => "",
        };
        let line = format!("hvdctl {name}{arguments}");
        let parsed = Cli::try_parse_from(rewrite(line.split(' ').map(Into::into)));
        let parsed = parsed.unwrap_or_else(|error| panic!("{line}: {error}"));
        Described { name: name.to_owned(), line, waits, description: parsed.command.description() }
    }
}

/// All commands that can be called, in the order of `--help`, and `doctor --fix`, which differs from `doctor`.
pub fn all() -> Vec<Described> {
    fn collect(command: &clap::Command, before: &str, found: &mut Vec<Described>) {
        let name = format!("{before}{}", command.get_name());
        let waits = command.get_arguments().any(|argument| argument.get_id() == "wait");
        if !command.is_subcommand_required_set() {
            found.push(Described::new(&name, waits && name != "doctor"));
        }
        if name == "doctor" {
            found.push(Described::new("doctor --fix", waits));
        }
        for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
            collect(below, &format!("{name} "), found);
        }
    }
    let mut found = Vec::new();
    Cli::command().get_subcommands().for_each(|command| collect(command, "", &mut found));
    assert!(found.len() > 40, "{}", found.len());
    found
}

/// The generated block of this name; `None` if it is not one of a list of commands.
pub fn block(name: &str) -> Option<String> {
    type Group = fn(&Description) -> &'static str;
    let (heads, group, groups): (_, Group, &[&str]) = match name {
        "nodes of each command" => ("| without an inventory | commands |", nodes, &NODES),
        "commands under Slurm" => ("| under Slurm | commands |", under_slurm, &UNDER_SLURM),
        "signals" => ("| first SIGINT, SIGTERM or SIGHUP | commands |", signal, &SIGNALS),
        "locks" => ("| locks the nodes | commands |", locks, &LOCKS),
        "exit codes" => ("| exit code | commands |", exit, &EXITS),
        _ => return None,
    };
    let all = all();
    let is_long = !["nodes of each command", "commands under Slurm"].contains(&name);
    let row = |wanted: &&str| {
        if is_long && Some(wanted) == groups.last() {
            return format!("| {wanted} | {OTHERS} |\n");
        }
        let members = all.iter().filter(|command| group(&command.description) == *wanted);
        let members: Vec<String> = members.map(|command| format!("`{}`", command.name)).collect();
        assert!(!members.is_empty(), "{name}: no command is {wanted}");
        format!("| {wanted} | {} |\n", members.join(", "))
    };
    Some(format!("{heads}\n|---|---|\n{}", groups.iter().map(row).collect::<String>()))
}

const NODES: [&str; 3] = ["works on this machine", "fails: it needs one", "works: it needs no node"];

fn nodes(of: &Description) -> &'static str {
    match of.nodes {
        NodeUse::OrThisMachine => NODES[0],
        NodeUse::OfInventory => NODES[1],
        NodeUse::None => NODES[2],
    }
}

const UNDER_SLURM: [&str; 3] = ["works", "refused", "works: it needs no node"];

fn under_slurm(of: &Description) -> &'static str {
    match (of.nodes, of.is_for_slurm) {
        (NodeUse::None, _) => UNDER_SLURM[2],
        (_, true) => UNDER_SLURM[0],
        (_, false) => UNDER_SLURM[1],
    }
}

/// Stands for the commands that no other row of the list names.
const OTHERS: &str = "all others";

const SIGNALS: [&str; 4] = [
    "stops the job ([Stopping](how-jobs-behave.md#stopping)); SIGHUP leaves it running",
    "ends the command; the job continues",
    "finishes the current step on each node",
    "ends the command",
];

fn signal(of: &Description) -> &'static str {
    match (of.signal, &of.locks) {
        (SignalPolicy::LeaveToJob, Some(_)) => SIGNALS[0],
        (SignalPolicy::LeaveToJob, None) => SIGNALS[1],
        (SignalPolicy::FinishStep, _) => SIGNALS[2],
        (SignalPolicy::Exit, _) => SIGNALS[3],
    }
}

const LOCKS: [&str; 3] = [
    "until the command ends",
    "until the ranks of its job run; then the job's `hmaster` shows that the nodes are allocated",
    "not at all, and is not delayed by locks",
];

fn locks(of: &Description) -> &'static str {
    match (&of.locks, of.signal) {
        (Some(_), SignalPolicy::LeaveToJob) => LOCKS[1],
        (Some(_), _) => LOCKS[0],
        (None, _) => LOCKS[2],
    }
}

const EXITS: [&str; 2] = ["that of the program, or 125 if hvdctl itself failed", "hvdctl's own"];

fn exit(of: &Description) -> &'static str {
    match of.exit {
        ExitCode::Program => EXITS[0],
        ExitCode::Own => EXITS[1],
    }
}

/// The commands in a text as `a, b and c`.
fn listed(text: &str) -> Vec<&str> {
    let mut names: Vec<_> = text.split(", ").flat_map(|part| part.split(" and ")).map(str::trim).collect();
    names.sort_unstable();
    names
}

#[test]
fn the_end_of_the_help_names_the_same_commands_and_codes() {
    let help = Cli::command().get_after_help().unwrap().to_string();
    let between = |before: &str, after: &str| {
        let (_, rest) = help.split_once(before).unwrap_or_else(|| panic!("{help}"));
        rest.split_once(after).unwrap_or_else(|| panic!("{help}")).0.to_owned()
    };
    let all = all();
    let mut need_one: Vec<_> = all
        .iter()
        .filter(|command| command.description.nodes == NodeUse::OfInventory)
        .map(|command| command.name.split(' ').next().unwrap())
        .collect();
    need_one.sort_unstable();
    need_one.dedup();
    assert_eq!(listed(&between("except ", ", which need one")), need_one);
    let mut programs: Vec<_> = all
        .iter()
        .filter(|command| command.description.exit == ExitCode::Program)
        .map(|command| command.name.as_str())
        .collect();
    programs.sort_unstable();
    assert_eq!(listed(&between("125 ", ": hvdctl itself failed")), programs);
    let mut for_slurm: Vec<_> = all
        .iter()
        .filter(|command| command.description.is_for_slurm)
        .map(|command| command.name.split(' ').next().unwrap())
        .collect();
    for_slurm.sort_unstable();
    for_slurm.dedup();
    assert_eq!(listed(FOR_SLURM), for_slurm);
    let page = include_str!("../../docs/reference/common.md");
    let section = page.split_once("## Exit codes").unwrap().1.split_once("## Signals").unwrap().0;
    for code in [0, 1, 2, 3, 4, 5, 125, 130, 143] {
        assert!(help.contains(&format!("{code}")) && section.contains(&format!("{code}")), "{code}");
    }
}

/// A command that needs an inventory needs it with all of its subcommands: the help names only their common part.
#[test]
fn subcommands_need_an_inventory_alike() {
    let all = all();
    for command in &all {
        let word = command.name.split(' ').next();
        let is_alike = |other: &&Described| other.name.split(' ').next() == word;
        for other in all.iter().filter(is_alike) {
            assert_eq!(command.description.nodes, other.description.nodes, "{} and {}", command.name, other.name);
        }
    }
}

#[test]
fn a_command_that_can_wait_for_locks_takes_some_and_is_named_in_them() {
    for Described { line, waits, description, .. } in all() {
        assert_eq!(description.locks.is_some(), waits, "{line}");
        if let Some(Locks { purpose, .. }) = description.locks {
            assert_eq!(purpose, line.replace(" -np 1", "").replace(" -- ", " "), "{line}");
        }
    }
}
