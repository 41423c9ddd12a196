//! Uploads a project to a node: only what differs is sent, what was deleted is deleted there, and the node proves by
//! content hash that it has the same files. A job that is running keeps the files it was started with.

use crate::error::{ErrorKind, NodeError};
use crate::event::transfer::TransferProgress;
use crate::event::{Events, Message, Step};
use crate::inventory::Cluster;
use crate::paths::WORKSPACE;
use crate::sync::difference::{HAS, MANY};
use crate::sync::files::{NAMED, ProjectFiles};
use crate::sync::manifest::{Difference, Manifest, ManifestEntry, Selection};
use crate::sync::project::earlier_origin;
use crate::sync::tree::pattern;
use crate::sync::{NodeProject, too_many};
use crate::text::failure::{self, FileFailure};
use crate::text::nodeset::printable;
use crate::text::units::{count, human};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const COMPARE: &str = concat!(
    include_str!("../scripts/node/close.sh"),
    include_str!("../scripts/node/marked.sh"),
    include_str!("../scripts/upload/common.sh"),
    include_str!("../scripts/upload/compare.sh")
);
const APPLY: &str = concat!(
    include_str!("../scripts/upload/common.sh"),
    include_str!("../scripts/upload/receive.sh"),
    include_str!("../scripts/upload/apply.sh")
);
const MANIFEST: &str =
    concat!(include_str!("../scripts/upload/common.sh"), include_str!("../scripts/upload/manifest.sh"));
const PREPARE: &str =
    concat!(include_str!("../scripts/upload/common.sh"), include_str!("../scripts/upload/prepare.sh"));
const MERGE: &str = concat!(
    include_str!("../scripts/node/marked.sh"),
    include_str!("../scripts/upload/common.sh"),
    include_str!("../scripts/upload/merge.sh")
);

/// Exit codes of `upload/apply.sh`: what arrived differs from what was sent; what is in place does.
const DIFFERENT: i32 = 3;
const MISPLACED: i32 = 4;

/// From how many bytes on the first upload to a node is noted.
const LARGE: u64 = 1 << 30;

/// Time limit for copying a project's directory, with all that jobs wrote there, to a separate one for a job.
const COPY_LIMIT: Duration = Duration::from_secs(3600);

/// A project to be uploaded.
#[derive(Debug, Clone)]
pub struct Project {
    /// Its files.
    pub files: ProjectFiles,
    /// The place of the files, see [`origin`](super::project::origin). A project of the same name from another place
    /// does not replace this one.
    pub origin: String,
    /// Set if it replaces a project of the same name from another place.
    pub shared: bool,
    /// The other mounts of the containers, by their paths there: links may lead to them.
    pub mounts: Vec<String>,
}

/// A project's directory on a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Workspace {
    /// The directory that the job mounts.
    pub directory: String,
    /// Set if the project's directory was created just now.
    pub is_new: bool,
    /// Set if the job has a directory to itself, because another job uses the project's directory with other files.
    pub is_separate: bool,
}

/// The state of a project on a node.
#[derive(Debug, Default)]
pub struct ProjectComparison {
    /// The directory in which the job will find the project.
    pub workspace: Workspace,
    /// The hash of the manifest of what it has.
    has: Option<String>,
    /// Set if the node has exactly the project's files.
    is_same: bool,
    /// Number of further files and directories for which there is room, if that is limited.
    inodes: Option<u64>,
}

/// The result of an upload to a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Uploaded {
    /// Number of files and links sent.
    pub sent: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Number of files removed.
    pub removed: usize,
}

impl NodeProject<'_> {
    /// Compares a project with what the node has of it, creates its directory, and merges the separate directories of
    /// earlier jobs, except for those of `running` jobs.
    ///
    /// # Errors
    /// If the comparison fails, the name is another project's, or hvdctl did not create the directory.
    pub async fn compare(
        &self,
        project: &Project,
        running: &[&str],
        events: &Events,
    ) -> Result<ProjectComparison, NodeError> {
        let NodeProject { cluster, transport, name, job } = self;
        let directory = format!("{}/{name}", cluster.projects_dir);
        let operation = format!("compare the project with {directory}");
        let (shared, running) = (if project.shared { "shared" } else { "" }, running.join(" "));
        let earlier = earlier_origin(&project.origin);
        let argv = self.argv(COMPARE, &[&project.files.hash, &project.origin, &earlier, shared, &running]);
        let compared = self.run(&argv, &[], &operation, project.files.manifest.size()).await;
        let output = compared.map_err(|error| with_hint(cluster, error))?.stdout;
        self.warn_of_unmerged(&output, events);
        let mut comparison = ProjectComparison::parse(&output).map_err(|refusal| {
            let hint = match refusal {
                ProjectRefusal::Origin(_) => {
                    format!(
                        "choose another name with --as NAME; or, if it is the same project, confirm that: --as {name}"
                    )
                }
                ProjectRefusal::Foreign => {
                    format!("choose another name with --as NAME; or use this directory: --as {name}")
                }
            };
            NodeError::failed(transport.node(), &operation, refusal).hint(hint)
        })?;
        let workspace = &mut comparison.workspace;
        workspace.directory = if workspace.is_separate { format!("{directory}+{job}") } else { directory };
        Ok(comparison)
    }

    /// Uploads what the node lacks according to [`NodeProject::compare`].
    ///
    /// # Errors
    /// If the node cannot store the files (disk full, above all) or ends up with others; its earlier files are intact
    /// then.
    pub async fn upload(
        &self,
        project: &Project,
        comparison: ProjectComparison,
        events: &Events,
    ) -> Result<Uploaded, NodeError> {
        let NodeProject { cluster, transport, job, .. } = self;
        let ProjectComparison { workspace, has, is_same, inodes } = comparison;
        if is_same {
            return Ok(Uploaded::default());
        }
        project.note(has.is_none(), events);
        let ProjectFiles { manifest, hash, differences, .. } = &project.files;
        let difference = match &has {
            Some(has) => differences.get(manifest, has, (transport, &self.argv(MANIFEST, &[HAS]))).await?,
            None => differences.all(manifest),
        };
        let (missing, removed) = (difference.missing.clone(), difference.removed);
        let sent =
            manifest.select(&missing).filter(|(_, entry)| !matches!(entry, ManifestEntry::Directory { .. })).count();
        let bytes = project.files.stored(&missing);
        let operation = format!("upload the project to {}", workspace.directory);
        if let Some(cause) = too_many("it has", missing.count() as u64, inodes, &cluster.projects_dir) {
            let hint = "remove files there (df -i), exclude files in .hvdctlignore, or set cluster.projects_dir to \
                        another disk";
            return Err(NodeError::failed(transport.node(), &operation, cause).kind(ErrorKind::NoSpace).hint(hint));
        }
        let _step = events
            .begin(transport.node(), Step::transfer(format!("uploading {}, {}", count(sent, "file"), human(bytes))));

        if !difference.gone.is_empty() {
            self.prepare(project, &difference, &operation).await?;
        }
        let (arrived, placed) = (manifest.arrived(&missing), manifest.placed(workspace.is_separate));
        let (job, copying) = if workspace.is_separate { (*job, COPY_LIMIT) } else { ("", Duration::ZERO) };
        let argv = self.argv(APPLY, &[hash, &arrived, &placed, job]);
        let process = transport.spawn_receiver(&argv, &operation).await?;
        let limits = (transport.limit(), self.limit(manifest.size()) + copying);
        let mut progress = TransferProgress::new(transport.node(), events);
        let report = |done| progress.report("uploading", done, bytes);
        let output = process.feed(project.files.stream(missing), limits, report).await;
        let output = output.map_err(|e| transport.broken(&operation, &e));
        let output = output.and_then(|output| transport.succeeded(output, &operation));
        let output = output.map_err(|error| with_hint(cluster, error))?;
        let proof = String::from_utf8_lossy(&output.stdout);
        if proof.split_whitespace().next() != Some(hash) {
            let cause = format!("the node has files with the hash {}, this machine {hash}", proof.trim());
            return Err(NodeError::failed(transport.node(), &operation, cause));
        }
        Ok(Uploaded { sent, bytes, removed })
    }

    /// Tells the node what it removes.
    async fn prepare(&self, project: &Project, difference: &Arc<Difference>, operation: &str) -> Result<(), NodeError> {
        let NodeProject { cluster, transport, .. } = self;
        let none = Selection::none(project.files.manifest.0.len());
        let process = transport.spawn_receiver(&self.argv(PREPARE, &[]), operation).await?;
        let pieces = project.files.prepare(difference, none);
        let output = process.feed(pieces, (transport.limit(), self.limit(MANY)), |_| ()).await;
        let output = output.map_err(|e| transport.broken(operation, &e));
        output
            .and_then(|output| transport.succeeded(output, operation))
            .map(drop)
            .map_err(|error| with_hint(cluster, error))
    }

    /// Merges the separate directory of the job, which has ended, into the project's.
    ///
    /// # Errors
    /// If the script fails.
    pub async fn merge(&self, events: &Events) -> Result<(), NodeError> {
        let operation = "merge the job's outputs into the project directory";
        let output = self.run(&self.argv(MERGE, &[self.job]), &[], operation, 0).await?;
        self.warn_of_unmerged(&output.stdout, events);
        Ok(())
    }

    /// Warns of each separate directory that a script could not merge, by its `kept` records.
    fn warn_of_unmerged(&self, output: &[u8], events: &Events) {
        let (node, name) = (self.transport.node(), self.name);
        for cause in String::from_utf8_lossy(output).split('\0').filter_map(|record| record.strip_prefix("kept ")) {
            let text = format!("cannot merge the outputs of a job into project {name}: {cause}");
            events.warn(Message::of(node, text));
        }
    }
}

impl Project {
    /// Notes what the operator may not expect of an upload, once for all nodes.
    fn note(&self, is_first: bool, events: &Events) {
        let ProjectFiles { manifest, notes, noted, .. } = &self.files;
        noted.project.call_once(|| {
            notes.iter().cloned().chain(note_of_links(manifest, &self.mounts)).for_each(|note| events.note(note));
        });
        let stored = self.files.stored(&manifest.all());
        if is_first && stored > LARGE {
            noted.size.call_once(|| events.note(note_of_size(manifest, stored)));
        }
    }
}

/// Returns a note about links that lead out of the project, to what the nodes may not have. `mounts`: directories in
/// the containers.
fn note_of_links(manifest: &Manifest, mounts: &[String]) -> Option<String> {
    let is_mounted = |target: &str| mounts.iter().any(|mount| Path::new(target).starts_with(mount));
    let links: Vec<_> = manifest.links_out(WORKSPACE).into_iter().filter(|(_, target)| !is_mounted(target)).collect();
    let named: Vec<_> =
        links.iter().take(NAMED).map(|(name, target)| printable(&format!("{name} -> {target}"))).collect();
    let (leads, more) = (if links.len() == 1 { "leads" } else { "lead" }, if links.len() > NAMED { ", …" } else { "" });
    (!links.is_empty()).then(|| {
        format!(
            "{} {leads} out of the project; files outside it are not uploaded: {}{more}\n  hint: push it with `hvdctl \
             data push`, mount it in the containers with `mounts` of the inventory, or copy it into the project",
            count(links.len(), "link"),
            named.join(", ")
        )
    })
}

/// Returns a note about what is large in a project.
fn note_of_size(manifest: &Manifest, stored: u64) -> String {
    let largest = manifest.largest();
    let named: Vec<_> = largest.iter().map(|(name, size)| format!("{} ({})", printable(name), human(*size))).collect();
    let most = if named.is_empty() { String::new() } else { format!(", most of it in {}", named.join(", ")) };
    let line = largest.first().map_or_else(|| "NAME".to_owned(), |(name, _)| pattern(Path::new(name)));
    format!(
        "the first upload sends {} to each node{most}\n  hint: exclude it with a line in .hvdctlignore: {line}",
        human(stored)
    )
}

/// A reason why a project is not uploaded to a directory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum ProjectRefusal {
    #[error("another project has this name there, uploaded from {0}")]
    Origin(String),
    #[error("the directory exists and was not created by hvdctl")]
    Foreign,
}

impl ProjectComparison {
    /// Reads the records of `upload/compare.sh`.
    fn parse(output: &[u8]) -> Result<ProjectComparison, ProjectRefusal> {
        let mut comparison = ProjectComparison::default();
        let ProjectComparison { workspace, has, is_same, inodes } = &mut comparison;
        for record in String::from_utf8_lossy(output).split('\0') {
            let fields: Vec<&str> = record.splitn(5, ' ').collect();
            match fields[..] {
                ["same"] => *is_same = true,
                ["inodes", free] => *inodes = Some(free.parse().unwrap_or(0)),
                ["new"] => workspace.is_new = true,
                ["busy"] => workspace.is_separate = true,
                ["has", hash] => *has = Some(hash.into()),
                ["origin", .., origin] => return Err(ProjectRefusal::Origin(origin.into())),
                ["foreign"] => return Err(ProjectRefusal::Foreign),
                _ => {}
            }
        }
        Ok(comparison)
    }
}

/// Gives an error whose cause is known its kind and a hint.
fn with_hint(cluster: &Cluster, error: NodeError) -> NodeError {
    let dir = &cluster.projects_dir;
    let is_misplaced = error.kind == ErrorKind::CommandFailed { status: MISPLACED };
    let (kind, hint) = match (failure::files(&error.message), error.kind) {
        (Some(FileFailure::Occupied), kind) => {
            (kind, "a job wrote where the project now has something else: move it away on the node".to_owned())
        }
        (Some(FileFailure::NoSpace), _) if is_misplaced => (
            ErrorKind::NoSpace,
            format!("free space below {dir} on the node (df -h, df -i) and try again: the upload is incomplete"),
        ),
        (_, kind) if is_misplaced => (
            kind,
            format!(
                "a job or a user may have changed it meanwhile: try again; {dir} needs a file system that keeps modes"
            ),
        ),
        (Some(FileFailure::NoSpace), _) => (
            ErrorKind::NoSpace,
            format!(
                "free space below {dir} on the node (df -h, or df -i if there are too many files), or set \
                 cluster.projects_dir to a larger disk; the earlier files are intact"
            ),
        ),
        (Some(FileFailure::Vanished), _)
        | (None, ErrorKind::FileChanged | ErrorKind::CommandFailed { status: DIFFERENT }) => {
            let hint = "a program keeps changing files of the project: end it, or exclude its files in .hvdctlignore";
            (ErrorKind::FileChanged, hint.to_owned())
        }
        (None, ErrorKind::TimedOut) => (
            ErrorKind::TimedOut,
            "check the node's disk and network; cluster.command_timeout_s gives it more time".to_owned(),
        ),
        (None, _) => return error,
    };
    error.kind(kind).hint(hint)
}

#[cfg(test)]
mod tests;
