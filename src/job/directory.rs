//! The job's directory on a node, `JOBS/ID`: the record, the environment of the ranks, and the programs that supervise them.

use super::plan::{HostAssignment, JobPlan};
use super::request::{Cwd, JobOptions, Program};
use crate::cluster::nodes::{now, operator};
use crate::error::NodeError;
use crate::job::record::Record;
use crate::launch::{launcher, programs};
use crate::model::launcher::LauncherName;
use crate::paths::WORKSPACE;
use crate::transport::node::{Script, Transport};
use base64::Engine as _;
use std::borrow::Cow;
use std::collections::BTreeMap;
use zeroize::Zeroizing;

const START: &str = include_str!("../scripts/job_start.sh");

/// The file with the ranks' environment; `job_end.sh` removes it.
pub(super) const ENVIRONMENT: &str = "env.json";

/// What is written to the directory of a job.
pub(super) struct Content<'a> {
    pub(super) plan: &'a JobPlan,
    pub(super) program: &'a Program,
    pub(super) options: &'a JobOptions,
}

impl Content<'_> {
    /// Creates the directory on a node of the job.
    ///
    /// # Errors
    /// With the node's words.
    pub(super) async fn write(&self, host: &HostAssignment) -> Result<(), NodeError> {
        let jobs_dir = &self.plan.target.cluster().jobs_dir;
        unpack(&host.observed.member.transport, jobs_dir, &self.plan.id, &self.files(host)).await
    }

    /// The files, as `job_start.sh` reads them.
    fn files(&self, host: &HostAssignment) -> Zeroizing<String> {
        let record = serde_json::to_string(&self.record(host)).unwrap_or_default();
        let environment = environment(self.plan, self.options, host);
        let environment = Zeroizing::new(serde_json::to_string(&environment).unwrap_or_default());
        let launcher =
            launcher(self.options.launcher, self.options.controller).rank_description(&host.endpoint.interface);
        let launcher = serde_json::to_string(&launcher).unwrap_or_default();
        let port = self.plan.target.cluster().port;
        let known_hosts = self.plan.shared_port.map(|shared| known_hosts(host, shared, port));
        let mut files = vec![
            (0o600, "job.json", record.as_str()),
            (0o600, ENVIRONMENT, environment.as_str()),
            (0o644, "launcher.json", launcher.as_str()),
        ];
        files.extend(programs::ON_EVERY_NODE);
        if host.launches {
            files.push((0o600, "launch.json", self.plan.launch.as_str()));
            files.extend(programs::ON_FIRST_NODE);
            files.extend(known_hosts.as_deref().map(|text| (0o644, "known_hosts", text)));
        }
        files.extend(self.program.files.iter().map(|(name, text)| (0o644, *name, *text)));
        // the ranks' log, whose mode keeps it from others; where it exists, all of the other files do
        files.push((0o600, "log", ""));
        archive(&files)
    }

    fn record(&self, host: &HostAssignment) -> Record {
        let Content { plan, program, options } = self;
        let cluster = plan.target.cluster();
        Record {
            id: plan.id.clone(),
            cluster: cluster.name.clone(),
            name: program.title.clone().unwrap_or_else(|| program.name.clone()),
            project: program.project.as_ref().map(|_| program.name.clone()),
            restarts: options.restarts,
            min_ranks: options.min_ranks(),
            max_ranks: plan.max_ranks,
            operator: operator(),
            created: now(),
            launcher: options.launcher,
            controller: (options.launcher == LauncherName::Horovodrun).then_some(options.controller),
            placement: plan.placement.clone(),
            command: program.command.clone(),
            bind: options.bind,
            cwd: match program.cwd {
                Cwd::Workspace => WORKSPACE.into(),
                Cwd::Job => format!("{}/{}", cluster.jobs_dir, plan.id),
                Cwd::Root => "/".into(),
            },
            ranks: host.ranks,
            port: Some(cluster.port),
            interface: host.endpoint.interface.clone(),
            grace: cluster.stop_grace.as_secs(),
            stall: options.stall_timeout.as_secs(),
            idle_margin: cluster.idle_margin.as_secs(),
            log_max: options.log_max,
            ulimits: host.observed.member.node.container.ulimits.clone(),
        }
    }
}

/// The ranks' environment: the operator's own variables, over the GPUs that the job has, over the inventory's, over those of its
/// `env_file`.
pub(super) fn environment<'a>(
    plan: &'a JobPlan,
    options: &'a JobOptions,
    host: &'a HostAssignment,
) -> BTreeMap<&'a str, Cow<'a, str>> {
    let node = &host.observed.member.node;
    let gpus = (!host.gpus.is_empty()).then(|| ("CUDA_VISIBLE_DEVICES", Cow::Owned(host.gpus.join(","))));
    let file = node.container.env_file.as_ref().and_then(|path| plan.env_files.get(path));
    let secret = file.into_iter().flatten().map(|(name, value)| (name.as_str(), value.expose().into()));
    let plain = node.container.env.iter().map(|(name, value)| (name.as_str(), value.as_str().into()));
    let own = options.env.iter().map(|(name, value)| (name.as_str(), value.expose().into()));
    secret.chain(plain).chain(gpus).chain(own).collect()
}

/// Creates the directory of a job with these files (mode, name, text), of which the last is called `log`.
///
/// # Errors
/// With the node's words.
pub(super) async fn create(
    transport: &Transport,
    jobs_dir: &str,
    id: &str,
    files: &[(u32, &str, &str)],
) -> Result<(), NodeError> {
    unpack(transport, jobs_dir, id, &archive(files)).await
}

async fn unpack(transport: &Transport, jobs_dir: &str, id: &str, files: &str) -> Result<(), NodeError> {
    let script = Script::new(START).with("jobs_dir", jobs_dir).with("id", id).with("files", files);
    let tried = format!("create the directory of the job in {jobs_dir}");
    transport.script(&script, &tried).await.map(|_| ())
}

/// Packs files (mode, name of less than 100 bytes, text) into a tar archive in base64. They may be secrets: the archive is allocated
/// at its full size, because one that grows leaves its old bytes in memory.
fn archive(files: &[(u32, &str, &str)]) -> Zeroizing<String> {
    const BLOCK: usize = 512;
    let size: usize = files.iter().map(|(_, _, text)| BLOCK + text.len().next_multiple_of(BLOCK)).sum();
    let mut whole = Zeroizing::new(Vec::with_capacity(size + 2 * BLOCK));
    let archive: &mut Vec<u8> = &mut whole;
    for (mode, name, text) in files {
        let mut header = tar::Header::new_gnu();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(tar::EntryType::Regular);
        header.set_mode(*mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(text.len() as u64);
        header.set_cksum();
        archive.extend_from_slice(header.as_bytes());
        archive.extend_from_slice(text.as_bytes());
        archive.resize(archive.len().next_multiple_of(BLOCK), 0);
    }
    archive.resize(archive.len() + 2 * BLOCK, 0);
    Zeroizing::new(base64::engine::general_purpose::STANDARD.encode(&*whole))
}

/// The workers' pinned host keys for the port of the job's own workers; `ssh.sh` finds them there.
fn known_hosts(host: &HostAssignment, from: u16, to: u16) -> String {
    let pinned = host.observed.facts.key_files.get("known_hosts").map_or("", |file| file.text.as_str());
    pinned.replace(&format!("]:{from}"), &format!("]:{to}"))
}

#[cfg(test)]
mod tests;
