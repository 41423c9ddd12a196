//! A job under Slurm: planned without nodes, uploaded once to the directory that all of them share, and submitted.
//!
//! Its batch job begins with `allocation.py`, which finds out which ranks each node has and becomes the job supervisor.
//! That starts ranks as on any other nodes; what it starts on another node is a step of the batch job.

pub mod options;

use super::directory::{DirectoryContents, File, record_of, variables, write};
use super::plan::describe;
use super::request::{JobOptions, JobProgram};
use crate::cluster::member::Member;
use crate::cluster::operator::now;
use crate::cluster::session::Session;
use crate::cluster::target::Target;
use crate::error::{Error, ErrorKind, NodeError};
use crate::event::{Event, Events, Phase, Step};
use crate::inventory::{Bind, Cluster};
use crate::job::cleanup::{end_ranks, stored_result};
use crate::launch::description::{LaunchDescription, LaunchHost};
use crate::launch::env_file::environment;
use crate::launch::placement::{Placement, Share};
use crate::launch::programs::{self, ALLOCATION, REMOTE_SHELL_OF_SLURM, command};
use crate::launch::{self, LaunchRequest, Launcher};
use crate::model::fault::Fault;
use crate::model::launcher::LauncherName;
use crate::node::gpus::GpuRequest;
use crate::random;
use crate::record::{InSlurm, JobResult, JobState, Record, stored};
use crate::runtime::spec::{ContainerSpec, Sbatch};
use crate::secret::Secret;
use crate::sync::NodeProject;
use crate::sync::upload::Project;
use anyhow::Context as _;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

/// Where the port at which ranks find one another is taken from, at random: below those that systems give out
/// (ip_local_port_range).
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// How often the project is sent at most, while files of it change.
const UPLOADS: usize = 5;

/// The variables by which Open MPI's own launchers use the nodes that they are given, over the job's remote shell,
/// and do not look for the allocation themselves.
const OPEN_MPI: [(&str, &str); 4] =
    [("OMPI_MCA_plm", "rsh"), ("OMPI_MCA_ras", "^slurm"), ("PRTE_MCA_plm", "ssh"), ("PRTE_MCA_ras", "^slurm")];

/// A job that is to be submitted.
pub struct BatchJob {
    /// The job's id.
    pub id: String,
    /// What every rank runs.
    pub program: JobProgram,
    /// How.
    pub options: JobOptions,
    cluster: Cluster,
    /// The batch job, without its workspace, which is known after the upload.
    container: ContainerSpec,
    record: Record,
    environment: BTreeMap<String, Secret>,
    /// The contents of `launch.json`, except the nodes.
    launch: String,
}

impl BatchJob {
    /// Plans a job.
    ///
    /// # Errors
    /// What jobs under Slurm have not; an `env_file` that cannot be read; a variable that only the launcher may set.
    pub fn new(target: &Target, program: JobProgram, options: JobOptions, id: String) -> Result<BatchJob, Error> {
        let inventory = &target.inventory;
        let (cluster, node) = (inventory.cluster.clone(), inventory.master());
        let launcher = launch::launcher(options.launcher, options.controller);
        let mut environment = environment(node, &mut options.env_files.clone())?;
        environment.extend(options.env.clone());
        launcher.check_variables(environment.keys().map(String::as_str))?;
        let sbatch = options::options(&inventory.slurm.clone().unwrap_or_default(), &options, &cluster)?;
        let job_dir = format!("{}/{id}", cluster.jobs_dir);
        let first = LaunchHost { node: "", address: Ipv4Addr::LOCALHOST.into(), ranks: 0 };
        let port = PORTS.start + random::below(PORTS.len() as u64) as u16;
        let request = LaunchRequest {
            hosts: &[],
            first,
            rendezvous_port: port,
            port: cluster.port,
            // allocation.py finds it
            interface: "",
            start_timeout: cluster.start_timeout,
            stall_timeout: options.stall_timeout,
            job_dir: &job_dir,
            rank_program: programs::RANK_SUPERVISOR,
            kept: None,
        };
        let ranks = options.resources.ranks.map_or(0, |ranks| ranks.max);
        let [python, program_of_batch] = command(&job_dir, ALLOCATION);
        let name = format!("{}-{id}", cluster.master);
        let own = OPEN_MPI.map(|(name, value)| format!("{name}={value}"));
        let own = own.into_iter().filter(|_| options.launcher != LauncherName::Srun);
        let variables = launcher.container_environment(&id, &request);
        let title = program.title.clone().unwrap_or_else(|| program.name.clone());
        let container = ContainerSpec {
            env: variables.into_iter().chain(cluster.layout(&name).variables()).chain(own).collect(),
            name,
            sbatch: Sbatch { name: title, options: sbatch },
            ..ContainerSpec::master(
                &cluster,
                node,
                GpuRequest::None,
                vec![python, program_of_batch, ranks.to_string()],
                &id,
            )
        };
        // allocation.py adds the nodes
        let launch = LaunchDescription { slurm: true, ..describe(&cluster, launcher, &request, &options) };
        let launch = stored::write("launch.json", &launch).map_err(Error::Local)?;
        let record = record(&cluster, &container, &program, &options, &id, &node.name);
        Ok(BatchJob { id, program, options, cluster, container, record, environment, launch })
    }

    /// Returns the options of sbatch.
    pub fn sbatch(&self) -> &[String] {
        &self.container.sbatch.options
    }

    /// Returns its launcher.
    pub fn launcher(&self) -> &'static Launcher {
        launch::launcher(self.options.launcher, self.options.controller)
    }

    /// Asks Slurm whether it would take the job. Changes nothing.
    ///
    /// # Errors
    /// With the words of sbatch.
    pub async fn check(&self, login: &Member) -> Result<(), Error> {
        Ok(login.runtime().await?.check(&self.container).await?)
    }

    /// Uploads the job to the directory that its nodes will share, and submits it. `open`: the ids of the jobs of the
    /// project that have not ended.
    ///
    /// # Errors
    /// Why it could not be submitted; then nothing of it is left.
    pub async fn submit(&self, login: &Member, open: &[&str], session: &Session, events: &Events) -> Result<(), Error> {
        events.send(Event::Job { id: self.id.clone(), state: JobState::Starting });
        let prepared = tokio::select! {
            prepared = self.prepare(login, open, events) => prepared,
            error = session.cancellation.cancelled() => Err(error),
        };
        let submitted = async {
            let container = ContainerSpec { workspace: prepared?, ..self.container.clone() };
            let submitting = async { login.runtime().await?.create_and_start(&container).await };
            events.step(&login.node.name, Step::write("submitting the job"), submitting).await?;
            Ok(())
        };
        let submitted: Result<(), Error> = submitted.await;
        if let Err(error) = &submitted {
            self.abandon(login, error).await;
        }
        submitted
    }

    /// Uploads the project and writes the job's directory. Returns the project's directory.
    async fn prepare(&self, login: &Member, open: &[&str], events: &Events) -> Result<Option<String>, Error> {
        events.phase(Phase::Preparing);
        let directory = self.upload(login, open, events).await?;
        let mut others: Vec<File<'_>> = programs::ON_EVERY_NODE.into_iter().chain(programs::ON_FIRST_NODE).collect();
        others.retain(|(_, name, _)| *name != REMOTE_SHELL_OF_SLURM.1);
        others.extend([REMOTE_SHELL_OF_SLURM, (0o600, "launch.json", self.launch.as_str())]);
        others.extend(self.program.files.iter().map(|(name, text)| (0o644, *name, text.as_ref())));
        let launcher = self.launcher().unpinned_description().to_string();
        let (record, environment) = (&self.record, &variables(&self.cluster, &self.record, &self.environment, 1.0));
        let contents =
            DirectoryContents { record, launcher: &launcher, environment, is_shared: false, others: &others };
        write(&self.cluster, login, contents).await?;
        Ok(directory)
    }

    /// Uploads the project, if the job has one, and again while its files change. Returns its directory.
    async fn upload(&self, login: &Member, open: &[&str], events: &Events) -> Result<Option<String>, Error> {
        let Some(mut project) = self.program.project.clone() else { return Ok(None) };
        let BatchJob { cluster, program, id, .. } = self;
        let on_login = NodeProject { cluster, transport: &login.transport, name: &program.name, job: id };
        for number in 1.. {
            let upload = async |project: &Project| {
                let compared = on_login.compare(project, open, events).await?;
                let directory = compared.workspace.directory.clone();
                on_login.upload(project, compared, events).await?;
                Ok::<_, NodeError>(directory)
            };
            let step = Step::write("uploading the project");
            match events.step(&login.node.name, step, upload(&project)).await {
                Err(error) if error.kind == ErrorKind::FileChanged && number < UPLOADS => {
                    let earlier = project.files.clone();
                    let refreshed = tokio::task::spawn_blocking(move || earlier.refresh()).await;
                    project.files = refreshed.context("cannot read the project")??;
                }
                uploaded => return Ok(Some(uploaded?)),
            }
        }
        unreachable!("the last upload returns")
    }

    /// Removes what a job has left that could not be submitted, and records why. Where another job has its id nothing
    /// is this job's.
    async fn abandon(&self, login: &Member, error: &Error) {
        if matches!(error, Error::Nodes { failed, .. } if failed.iter().any(|one| one.kind == ErrorKind::JobExists)) {
            return;
        }
        if let Ok(runtime) = login.runtime().await {
            let _ = runtime.remove(&self.container.name).await;
        }
        // its environment may be secret
        let _ = end_ranks(&self.cluster, &self.id, login).await;
        let never = JobResult {
            stopped: matches!(error, Error::Signal(_)),
            launcher: Some(1),
            ..JobResult::ended_by(Fault::NotSubmitted { error: error.to_string() }, now())
        };
        let _ = stored_result(&self.cluster, &self.id, login, &never).await;
    }
}

/// Returns the job's record as it is until Slurm has allocated its nodes.
fn record(
    cluster: &Cluster,
    container: &ContainerSpec,
    program: &JobProgram,
    options: &JobOptions,
    id: &str,
    login: &str,
) -> Record {
    let ranks = options.resources.ranks.map_or(0, |ranks| ranks.max);
    let cwd = match program.project {
        Some(_) => cluster.layout(&container.name).workspace,
        None if program.files.is_empty() => "/".into(),
        None => format!("{}/{id}", cluster.jobs_dir),
    };
    Record {
        id: id.to_owned(),
        created: now(),
        placement: Placement { shares: vec![Share { node: login.to_owned(), ranks, ..Share::default() }] },
        // GPUs and cores are those that Slurm gives
        bind: Some(options.bind.unwrap_or(Bind::None)),
        cwd,
        ranks,
        port: cluster.port,
        slurm: Some(InSlurm::default()),
        ..record_of(cluster, program, options)
    }
}
