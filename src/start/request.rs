//! The request for a job: its program, its resources and how it is watched.

use super::roles::JobRole;
use crate::cluster::target::Target;
use crate::error::Error;
use crate::inventory::Node;
use crate::job::supervision::WatchOptions;
use crate::launch::env_file::EnvFiles;
use crate::launch::placement::{MapBy, RankCount, place};
use crate::launch::{self, KeptRanks};
use crate::model::launcher::{Bind, Controller, ElasticMode, LauncherName};
use crate::node::network;
use crate::secret::Secret;
use crate::sync::commit::{Commit, GitReport};
use crate::sync::files::ProjectFiles;
use crate::sync::upload::Project;
use crate::sync::{program, project};
use crate::text::argument::ProgramArgument;
use anyhow::Context as _;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The program of every rank of a job.
#[derive(Debug, Clone, Default)]
pub struct JobProgram {
    /// The job's name, if it was given one.
    pub title: Option<String>,
    /// The name of the project, the program or the check.
    pub name: String,
    /// The program and its arguments, byte for byte.
    pub command: Vec<ProgramArgument>,
    /// Set if that is the default of a project.
    pub is_default_command: bool,
    /// The project that is uploaded and mounted first; the program starts in it.
    pub project: Option<Project>,
    /// The commit of the project, if it is in a repository of git.
    pub commit: Option<Commit>,
    /// Further files for the job's directory, name and text. A program without a project starts there.
    pub files: Vec<(&'static str, Cow<'static, str>)>,
}

impl JobProgram {
    /// Returns whether it is a check of hvdctl's own.
    pub fn is_check(&self) -> bool {
        !self.files.is_empty() && self.project.is_none()
    }

    /// Returns whether it is a notebook: a program of hvdctl's own in a project.
    pub fn is_notebook(&self) -> bool {
        !self.files.is_empty() && self.project.is_some()
    }

    /// Returns the program of a command that needs no project.
    pub fn of_command(title: Option<String>, command: Vec<ProgramArgument>) -> JobProgram {
        let program = command.first().map(ToString::to_string).unwrap_or_default();
        let name = project::directory_name(&file_name(Path::new(&program)));
        JobProgram { title, name, command, ..JobProgram::default() }
    }
}

/// A project whose command every rank of a job runs.
#[derive(Debug)]
pub struct ProjectRequest {
    /// The job's name, if it was given one.
    pub title: Option<String>,
    /// The directory of the project on this machine.
    pub root: PathBuf,
    /// Its name on the nodes, if it was given one; then it replaces another project of that name.
    pub name: Option<String>,
    /// The program and its arguments, byte for byte.
    pub command: Vec<ProgramArgument>,
    /// Set if that is the default of the project.
    pub is_default_command: bool,
    /// The commands of further roles.
    pub other_commands: Vec<Vec<ProgramArgument>>,
}

impl ProjectRequest {
    /// Returns the name of its directory.
    pub fn directory(&self) -> String {
        file_name(&self.root)
    }

    /// Reads its files, and checks that they allow the command to start.
    ///
    /// # Errors
    /// A file that cannot be read, and a program that cannot start.
    pub async fn files(&self) -> Result<ProjectFiles, Error> {
        let root = self.root.clone();
        let commands: Vec<_> = std::iter::once(&self.command).chain(&self.other_commands).cloned().collect();
        let read = move || {
            let mut files = ProjectFiles::read(&root)?;
            for command in &commands {
                let note = program::check(command, |name| files.head(name, program::HEAD))?;
                files.notes.extend(note);
            }
            Ok(files)
        };
        tokio::task::spawn_blocking(read).await.context("cannot read the project")?
    }

    /// Reads the program of the job, with the files and the commit of the project. `nodes`: those of the job.
    ///
    /// # Errors
    /// As [`ProjectRequest::files`].
    pub async fn program(self, nodes: Vec<Node>) -> Result<JobProgram, Error> {
        let root = self.root.clone();
        let of_git = tokio::task::spawn_blocking(move || GitReport::read(&root));
        let files = self.files().await?;
        let commit =
            of_git.await.context("cannot ask git for the commit")?.map(|report| report.commit(&files.manifest));
        let (origin, mounts) = (project::origin(&self.root), common_mounts(nodes));
        let shared = self.name.is_some();
        let name = project::directory_name(&self.name.unwrap_or_else(|| file_name(&self.root)));
        let project = Some(Project { origin, files, shared, mounts });
        let ProjectRequest { title, command, is_default_command, .. } = self;
        Ok(JobProgram { title, name, command, is_default_command, project, commit, files: Vec::new() })
    }
}

/// Returns what is mounted in the containers of all nodes, by its path there. What only some nodes have is missing on
/// the others.
fn common_mounts(nodes: Vec<Node>) -> Vec<String> {
    let mounts = nodes.into_iter().map(|node| node.container.mounts.into_iter().map(|mount| mount.target));
    let common = mounts.map(BTreeSet::from_iter).reduce(|all, of_node| &all & &of_node);
    common.unwrap_or_default().into_iter().collect()
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The resources that a job asks of the nodes.
#[derive(Debug, Clone, Copy)]
pub struct ResourceRequest {
    /// The number of ranks; `None`: one on every slot.
    pub ranks: Option<RankCount>,
    /// How they are spread over the nodes.
    pub map_by: MapBy,
    /// GPUs (or slots, where there are no GPUs) of each node; `None`: whole nodes. 0: a rank on each node that has
    /// nothing for itself.
    pub per_node: Option<u32>,
}

/// How a job is run.
#[derive(Debug, Clone)]
pub struct JobOptions {
    /// The resources that it asks of the nodes.
    pub resources: ResourceRequest,
    /// The launcher, which starts the ranks.
    pub launcher: LauncherName,
    /// Horovod's controller, for `horovodrun`.
    pub controller: Controller,
    /// Which cores the ranks are bound to; `None`: as the GPUs suggest.
    pub bind: Option<Bind>,
    /// The operator's options for what schedules the job.
    pub submission: Vec<String>,
    /// How often it may be restarted after a failure.
    pub restarts: u32,
    /// The fate of its ranks when nodes leave or join; `None`: the launcher keeps them if it can.
    pub elastic: Option<ElasticMode>,
    /// How often nodes may leave or join while its ranks are kept; `None`: without limit.
    pub changes: Option<u32>,
    /// How long a rank may keep the others waiting; zero: forever.
    pub stall_timeout: Duration,
    /// Bytes that the log may take on each node.
    pub log_max: Option<u64>,
    /// If set, the log keeps every state of progress bars.
    pub log_progress: bool,
    /// Environment of the ranks; takes precedence over the inventory's.
    pub env: BTreeMap<String, Secret>,
    /// The inventory's files with variables that were read already.
    pub env_files: EnvFiles,
    /// The roles of the job, in their order; empty for a job of one program. With roles, launcher and command of the job
    /// are those of the first one, and the roles have sizes in place of `resources`.
    pub roles: Vec<JobRole>,
    /// How it is watched.
    pub watch: WatchOptions,
}

impl JobOptions {
    /// The least number of ranks, if the job is elastic.
    pub fn min_ranks(&self) -> Option<u32> {
        self.resources.ranks.and_then(|ranks| ranks.min)
    }

    /// The limits of an elastic job whose launcher keeps the ranks that are left when nodes leave or join. `timeout`:
    /// how long it may have too few.
    pub fn kept_ranks(&self, timeout: Duration) -> Option<KeptRanks> {
        let RankCount { min, max } = self.resources.ranks?;
        let can_keep = launch::launcher(self.launcher, self.controller).keeps_ranks;
        let kept = KeptRanks { min: min?, max, timeout, changes: self.changes };
        (can_keep && self.elastic != Some(ElasticMode::Restart)).then_some(kept)
    }

    /// Returns true if its ranks may be started more than once.
    pub fn may_restart(&self) -> bool {
        self.restarts > 0 || self.min_ranks().is_some()
    }
}

/// Checks what can be known without asking a node.
///
/// # Errors
/// More ranks than slots, if the inventory gives all slots.
pub fn check_ranks(target: &Target, ranks: Option<RankCount>, per_node: Option<u32>) -> Result<(), Error> {
    let at_most = per_node.unwrap_or(u32::MAX);
    let known: Option<Vec<(String, u32)>> =
        target.nodes().iter().map(|n| network::known_slots(n).map(|s| (n.name.clone(), s.min(at_most)))).collect();
    let (Some(ranks), Some(slots)) = (ranks, known) else { return Ok(()) };
    let all = slots.iter().fold(0u32, |sum, (_, slots)| sum.saturating_add(*slots));
    place(&slots, ranks.on(all), MapBy::Slot).map(drop)
}
