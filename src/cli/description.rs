//! Properties of each command, in one place: exit codes, output, signals, locks, and the nodes that it needs.

use super::{Command, Data, Env, Image, Jobs, JobsCommand, Keys, Lock, Slurm, Waiting};
use std::time::Duration;

/// The commands for jobs under Slurm, as messages name them; tests/described compares them with the descriptions.
pub const FOR_SLURM: &str =
    "train, run, verify, jobs, attach, logs, top, stack, report, stop, fetch, lock and disconnect";

/// The properties of a command that concern its process and its nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// The origin of its exit code.
    pub exit: ExitCode,
    /// The form of its standard output.
    pub output: OutputForm,
    /// Its reaction to the first signal.
    pub signal: SignalPolicy,
    /// The locks that it takes; `None` for a command that takes none.
    pub locks: Option<Locks>,
    /// The nodes that it works on.
    pub nodes: NodeUse,
    /// Set if it also supports jobs under Slurm.
    pub is_for_slurm: bool,
}

/// The origin of hvdctl's exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitCode {
    /// Its own (docs/reference/common.md, "Exit codes").
    Own,
    /// The exit code of a program, with codes above 124 for failures of hvdctl itself.
    Program,
}

/// The form of a command's standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputForm {
    /// Its result, once.
    Result,
    /// Ranks' output as it comes, with `--json` as one line per event.
    Lines,
}

/// The reaction of a command to the first signal; the second always ends it at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignalPolicy {
    /// It ends at once.
    Exit,
    /// It changes nodes, and finishes its current step.
    FinishStep,
    /// It works on a job, which it stops or leaves running.
    LeaveToJob,
}

/// The nodes that a command works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeUse {
    /// None.
    None,
    /// The nodes of an inventory, which is required.
    OfInventory,
    /// The nodes of an inventory; without one, this machine.
    OrThisMachine,
}

/// The locks of a command.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Locks {
    /// The command, as the locks show it to others.
    pub purpose: String,
    /// Time limit for other commands' locks; `None` to fail at once.
    pub wait: Option<Duration>,
}

impl Locks {
    fn of(purpose: impl Into<String>, waiting: Waiting) -> Option<Locks> {
        Some(Locks { purpose: purpose.into(), wait: waiting.limit() })
    }
}

/// A command that shows what it reads.
const READS: Description = Description {
    exit: ExitCode::Own,
    output: OutputForm::Result,
    signal: SignalPolicy::Exit,
    locks: None,
    nodes: NodeUse::OrThisMachine,
    is_for_slurm: false,
};

/// [`READS`] for jobs, including those under Slurm.
const READS_JOBS: Description = Description { is_for_slurm: true, ..READS };

/// A command that changes nodes in steps.
fn changes(purpose: impl Into<String>, waiting: Waiting) -> Description {
    Description { signal: SignalPolicy::FinishStep, locks: Locks::of(purpose, waiting), ..READS }
}

/// A command that starts a job and takes its result apart.
fn measures(purpose: &str, waiting: Waiting) -> Description {
    Description { signal: SignalPolicy::LeaveToJob, locks: Locks::of(purpose, waiting), ..READS }
}

/// A command that shows the output of a job.
fn shows_job(exit: ExitCode, locks: Option<Locks>) -> Description {
    Description { exit, output: OutputForm::Lines, signal: SignalPolicy::LeaveToJob, locks, ..READS_JOBS }
}

impl Command {
    /// Returns what is particular to this command.
    pub fn description(&self) -> Description {
        match self {
            Command::Init(_) | Command::Completions(_) | Command::Man(_) | Command::Schema | Command::Export(_) => {
                Description { nodes: NodeUse::None, ..READS }
            }
            Command::Keys(keys) => Description { nodes: NodeUse::OfInventory, ..keys.description() },
            Command::Up(options) => changes("hvdctl up", options.waiting),
            Command::Down(options) => changes("hvdctl down", options.waiting),
            Command::Doctor(options) if options.fix => changes("hvdctl doctor --fix", options.waiting),
            Command::Image(image) => image.description(),
            Command::Slurm(slurm) => Description { nodes: NodeUse::OfInventory, ..slurm.description() },
            Command::Data(data) => data.description(),
            Command::Env(env) => Description { nodes: NodeUse::OfInventory, ..env.description() },
            Command::Verify(options) => {
                Description { is_for_slurm: true, ..measures("hvdctl verify", options.waiting) }
            }
            Command::Bench(options) => {
                Description { nodes: NodeUse::OfInventory, ..measures("hvdctl bench", options.waiting) }
            }
            Command::Train(options) => {
                let purpose = format!("hvdctl train {}", options.project.display());
                shows_job(ExitCode::Program, Locks::of(purpose, options.waiting))
            }
            Command::Run(options) => {
                let purpose = format!("hvdctl run {}", options.command[0]);
                shows_job(ExitCode::Program, Locks::of(purpose, options.waiting))
            }
            Command::Notebook(options) => {
                let purpose = format!("hvdctl notebook {}", options.project.display());
                let own = shows_job(ExitCode::Program, Locks::of(purpose, options.waiting));
                Description { is_for_slurm: false, ..own }
            }
            Command::Attach(_) => shows_job(ExitCode::Program, None),
            Command::Logs(_) => shows_job(ExitCode::Own, None),
            Command::Top(_) => Description { signal: SignalPolicy::Exit, ..shows_job(ExitCode::Own, None) },
            Command::Exec(_) | Command::Shell(_) => Description { exit: ExitCode::Program, ..READS },
            Command::Disconnect => Description { nodes: NodeUse::OfInventory, ..READS_JOBS },
            // its marks, what stop ends and what prune removes need no lock
            Command::Drain(_) => READS,
            Command::Stop(_) | Command::Fetch(_) | Command::Report(_) | Command::Stack(_) => READS_JOBS,
            Command::Jobs(Jobs { what: Some(JobsCommand::Prune(_)) | None, .. }) => READS_JOBS,
            Command::Lock(Lock::Status | Lock::Release) => READS_JOBS,
            Command::Pool(_) => Description { nodes: NodeUse::OfInventory, ..READS },
            Command::Doctor(_) | Command::Grade(_) | Command::Status(_) | Command::Hosts(_) => READS,
        }
    }
}

impl Slurm {
    fn description(&self) -> Description {
        match self {
            Slurm::Up(options) => changes("hvdctl slurm up", options.waiting),
            Slurm::Down(options) => changes("hvdctl slurm down", options.waiting),
            Slurm::Status => READS,
            Slurm::Exec(_) => Description { exit: ExitCode::Program, ..READS },
        }
    }
}

impl Keys {
    fn description(&self) -> Description {
        match self {
            Keys::Generate(options) => changes("hvdctl keys generate", options.waiting),
            Keys::Push(options) => changes("hvdctl keys push", options.waiting),
            Keys::Rotate(options) => changes("hvdctl keys rotate", options.waiting),
            Keys::Status => READS,
        }
    }
}

impl Image {
    fn description(&self) -> Description {
        match self {
            Image::Status(_) => READS,
            Image::Push(options) => changes("hvdctl image push", options.waiting),
            Image::Pull(options) => changes("hvdctl image pull", options.waiting),
            Image::Build(options) => {
                let project = options.project.as_deref().map(|project| format!(" {}", project.display()));
                changes(format!("hvdctl image build{}", project.unwrap_or_default()), options.waiting)
            }
            Image::Prune(options) => changes("hvdctl image prune", options.waiting),
        }
    }
}

impl Data {
    fn description(&self) -> Description {
        match self {
            Data::Status => READS,
            Data::Push(options) => {
                changes(format!("hvdctl data push {}", options.directory.display()), options.waiting)
            }
            Data::Rm(options) => changes(format!("hvdctl data rm {}", options.name), options.waiting),
        }
    }
}

impl Env {
    fn description(&self) -> Description {
        match self {
            Env::List => READS,
            Env::Create(options) => {
                let file = options.file.as_deref().map(|file| format!(" {}", file.display()));
                changes(format!("hvdctl env create{}", file.unwrap_or_default()), options.waiting)
            }
            Env::Rm(options) => changes(format!("hvdctl env rm {}", options.name), options.waiting),
        }
    }
}
