//! A job for a site's Slurm: planned without nodes, uploaded once to the directory that all of them share, and submitted.
//!
//! Its batch job is the job supervisor, which first finds out which ranks each node has (`allocation.py`). It starts ranks
//! as on any other nodes; what it starts on another node is a step of the batch job.

pub mod options;
mod role_nodes;

use crate::cluster::member::Member;
use crate::cluster::operator::now;
use crate::cluster::site::Site;
use crate::cluster::target::Target;
use crate::error::{Error, NodeError};
use crate::event::{Events, Phase, Step};
use crate::files::PackedFile;
use crate::inventory::{Bind, Cluster, Controller};
use crate::job::cleanup::JobNodes;
use crate::job::manage;
use crate::launch;
use crate::launch::description::{LaunchDescription, RoleDescription};
use crate::launch::env_file::environment;
use crate::launch::placement::{Placement, Share};
use crate::launch::programs::{self, JOB_SUPERVISOR, REMOTE_SHELL_OF_SLURM, command};
use crate::model::fault::Fault;
use crate::model::launcher::LauncherName;
use crate::node::gpus::GpuRequest;
use crate::record::list::Job;
use crate::record::{JobResult, Record, Scheduled, stored};
use crate::runtime::batch::BatchRequest;
use crate::runtime::spec::ContainerSpec;
use crate::secret::Secret;
use crate::start::directory::{DirectoryContents, directory_of_ranks, record_of, role_environment, variables, write};
use crate::start::execute::{abandon, begin};
use crate::start::parts::{unplaced_launcher_file, unplaced_parts};
use crate::start::plan::{check_commands, describe};
use crate::start::prepare::upload_to_all;
use crate::start::request::{JobOptions, JobProgram};
use crate::start::roles::JobRole;
use crate::sync::NodeProject;
use crate::sync::upload::Project;
use std::collections::BTreeMap;

/// An operation, for messages.
const SUBMIT: &str = "submit the job to Slurm";

/// The variables by which Open MPI's own launchers use the nodes that they are given, over the job's remote shell,
/// and do not look for the allocation themselves.
const OPEN_MPI: [(&str, &str); 4] =
    [("OMPI_MCA_plm", "rsh"), ("OMPI_MCA_ras", "^slurm"), ("PRTE_MCA_plm", "ssh"), ("PRTE_MCA_ras", "^slurm")];

/// A job that is to be submitted.
pub struct BatchJob {
    /// The job's id.
    pub id: String,
    /// The program of every rank.
    pub program: JobProgram,
    /// How.
    pub options: JobOptions,
    cluster: Cluster,
    /// The login node, on which it is submitted.
    login: Member,
    /// How it is submitted.
    pub sbatch: BatchRequest,
    /// Its launcher, without its workspace, which is known after the upload.
    container: ContainerSpec,
    record: Record,
    environment: BTreeMap<String, Secret>,
    /// Those of the ranks of each role.
    role_environments: Vec<BTreeMap<String, Secret>>,
    /// The contents of `launch.json`, except the nodes.
    launch: String,
}

impl BatchJob {
    /// Plans a job.
    ///
    /// # Errors
    /// Options that jobs under Slurm do not have; an `env_file` that cannot be read; a variable that only the launcher
    /// may set.
    pub fn new(
        target: &Target,
        login: Member,
        program: JobProgram,
        options: JobOptions,
        id: String,
    ) -> Result<BatchJob, Error> {
        let inventory = &target.inventory;
        let (cluster, node) = (inventory.cluster.clone(), inventory.master());
        let mut environment = environment(node, &mut options.env_files.clone())?;
        let role_environments = role_environments(&options, &environment)?;
        environment.extend(options.env.clone());
        if options.roles.is_empty() {
            let launcher = launch::launcher(options.launcher, options.controller);
            launcher.check_variables(environment.keys().map(String::as_str))?;
        }
        check_commands(&program, &options)?;
        let slurm = inventory.slurm.clone().unwrap_or_default();
        let submission = options::submission(&slurm, &options, &cluster, options::OWN_SIGNAL)?;
        let job_dir = format!("{}/{id}", cluster.jobs_dir);
        let parts = unplaced_parts(&options);
        let requests: Vec<_> = parts.iter().map(|part| part.request(&cluster, &job_dir, &options)).collect();
        let (launcher, request) = (parts[0].launcher, requests[0]);
        let ranks = if options.roles.is_empty() { known_ranks(&options) } else { 0 };
        let name = format!("{}-{id}", cluster.master);
        let own = OPEN_MPI.map(|(name, value)| format!("{name}={value}"));
        // roles have launchers of their own
        let is_own = options.roles.is_empty() && options.launcher != LauncherName::Srun;
        let own = own.into_iter().filter(|_| is_own);
        let variables = launcher.container_environment(&id, &request);
        let title = program.title.clone().unwrap_or_else(|| program.name.clone());
        let container = ContainerSpec {
            env: variables.into_iter().chain(cluster.layout(&name).variables()).chain(own).collect(),
            name,
            ..ContainerSpec::master(
                &cluster,
                node,
                GpuRequest::None,
                command(&job_dir, JOB_SUPERVISOR).into_iter().chain([ranks.to_string()]).collect(),
                &id,
            )
        };
        // allocation.py adds the nodes
        let warning = submission.warning;
        let roles = parts.iter().zip(&requests).zip(&options.roles);
        let roles =
            roles.map(|((part, request), role)| of_role(role, part.unplaced_description(role, request))).collect();
        let launch =
            LaunchDescription { slurm: true, warning, roles, ..describe(&cluster, launcher, &request, &options) };
        let launch = stored::write("launch.json", &launch).map_err(Error::Local)?;
        let record = record(&cluster, &container, &program, &options, &id, &node.name);
        let sbatch =
            BatchRequest { name: title, options: submission.options, ranks, shared_gpus: shared_gpus(&options) };
        let all = (environment, role_environments);
        let (environment, role_environments) = if options.roles.is_empty() { all } else { (BTreeMap::new(), all.1) };
        Ok(BatchJob {
            id,
            program,
            options,
            cluster,
            login,
            sbatch,
            container,
            record,
            environment,
            role_environments,
            launch,
        })
    }

    /// Asks Slurm whether it would take the job, and reports if its ranks start in an allocation that is there already.
    /// Changes nothing.
    ///
    /// # Errors
    /// With the message of sbatch; the allocation has too few tasks.
    pub async fn check(&self, events: &Events) -> Result<(), Error> {
        let allocation = self.login.runtime().await?.batch(SUBMIT)?.check(&self.sbatch).await?;
        if let Some(number) = allocation {
            events.note(format!(
                "the ranks start in Slurm's job {number}, in which this command runs; `env -u SLURM_JOB_ID hvdctl …` \
                 submits a new job"
            ));
        }
        Ok(())
    }

    /// Checks the job as [`BatchJob::check`] does, uploads it to the directory that its nodes will share, and submits it.
    /// The login node stays locked.
    ///
    /// # Errors
    /// Why it could not be submitted; then nothing of it is left.
    pub async fn submit(&self, site: Site<'_>) -> Result<(), Error> {
        let (Site { events, session, .. }, login) = (site, &self.login);
        let locking = async {
            // two that upload one project at the same time would mix its files
            session.lock_all(std::slice::from_ref(login)).await?;
            self.open_jobs(site).await
        };
        // a lock that is on its way when the check fails is released in the background
        let ((), open) = tokio::try_join!(session.cancellation.run(self.check(events)), locking)?;
        let submit = async |workspace| {
            let container = ContainerSpec { workspace, ..self.container.clone() };
            let submitting = async { login.runtime().await?.batch(SUBMIT)?.submit(&container, &self.sbatch).await };
            events.step(&login.node.name, Step::write("submitting the job"), submitting).await?;
            Ok(())
        };
        let abandon = async |error: &Error| {
            let nodes = JobNodes {
                cluster: &self.cluster,
                id: &self.id,
                launcher: login.clone(),
                others: Vec::new(),
                shares_directory: true,
            };
            abandon(&nodes, error, never_submitted(error), events).await;
        };
        begin(&self.id, (session, events), self.prepare(&open, events), submit, abandon).await
    }

    /// Returns the ids of the jobs of its project that have not ended.
    async fn open_jobs(&self, Site { target, fleet, events, session, .. }: Site<'_>) -> Result<Vec<String>, Error> {
        let jobs = session.cancellation.run(manage::list(target, fleet, events)).await?;
        if let Some(error) = jobs.failed.first() {
            return Err(error.clone().into());
        }
        let project = self.program.project.as_ref().map(|_| &self.program.name);
        let is_open = |job: &&Job| !job.is_over() && project.is_some() && job.project.as_ref() == project;
        Ok(jobs.jobs.iter().filter(is_open).map(|job| job.id.clone()).collect())
    }

    /// Uploads the project and writes the job's directory. Returns the project's directory.
    async fn prepare(&self, open: &[String], events: &Events) -> Result<Option<String>, Error> {
        events.phase(Phase::Preparing);
        let mut others: Vec<PackedFile<'_>> =
            programs::ON_EVERY_NODE.into_iter().chain(programs::ON_FIRST_NODE).collect();
        others.retain(|(_, name, _)| *name != REMOTE_SHELL_OF_SLURM.1);
        others.extend([REMOTE_SHELL_OF_SLURM, (0o600, "launch.json", self.launch.as_str())]);
        others.extend(self.program.files.iter().map(|(name, text)| (0o644, *name, text.as_ref())));
        let (record, roles) = (&self.record, self.options.roles.as_slice());
        let launcher = match roles {
            [] => record.launcher().unpinned_description().to_string(),
            roles => unplaced_launcher_file(roles, (record.stall, record.stall_warning)),
        };
        let of_ranks = |given| variables(&self.cluster, record, given, 1.0);
        // the file of a job with roles only shows that the job has not ended
        let environment = if roles.is_empty() { of_ranks(&self.environment) } else { BTreeMap::new() };
        let of_roles = self.role_environments.iter().enumerate();
        let of_roles: Vec<_> = of_roles.map(|(number, given)| (role_environment(number), of_ranks(given))).collect();
        let contents = DirectoryContents {
            record,
            launcher: &launcher,
            environment: &environment,
            role_environments: &of_roles,
            is_shared: false,
            others: &others,
        };
        // the directory has secrets, and one without a job counts as that of a lost one: it is not there while much is uploaded
        let directory = self.upload(open, events).await?;
        write(&self.cluster, &self.login, contents).await?;
        Ok(directory)
    }

    /// Uploads the project, if the job has one. Returns its directory.
    async fn upload(&self, open: &[String], events: &Events) -> Result<Option<String>, Error> {
        let BatchJob { cluster, login, program, id, .. } = self;
        let on_login = NodeProject { cluster, transport: &login.transport, name: &program.name, job: id };
        let open: Vec<&str> = open.iter().map(String::as_str).collect();
        let upload = async |project: Option<&Project>, (), _| {
            let Some(project) = project else { return Ok(None) };
            let uploading = async {
                let compared = on_login.compare(project, &open, events).await?;
                let directory = compared.workspace.directory.clone();
                on_login.upload(project, compared, events).await?;
                Ok::<_, NodeError>(Some(directory))
            };
            events.step(&login.node.name, Step::write("uploading the project"), uploading).await
        };
        let uploaded = upload_to_all(program.project.clone(), &[()], events, upload).await?;
        Ok(uploaded.into_iter().flatten().next())
    }
}

/// Returns the number of ranks, or 0 if it depends on the nodes that Slurm gives.
fn known_ranks(options: &JobOptions) -> u32 {
    match options.roles.as_slice() {
        [] => options.resources.ranks.map_or(0, |ranks| ranks.max),
        roles => roles.iter().map(|role| role.size.ranks()).sum::<Option<u32>>().unwrap_or(0),
    }
}

/// Returns the environment of the ranks of each role. `inventory`: the variables of the node.
///
/// # Errors
/// A variable that only the role's launcher may set.
fn role_environments(
    options: &JobOptions,
    inventory: &BTreeMap<String, Secret>,
) -> Result<Vec<BTreeMap<String, Secret>>, Error> {
    let of_role = |role: &JobRole| {
        let mut environment = inventory.clone();
        environment.extend(role.variables(&options.env));
        role.launcher().check_variables(environment.keys().map(String::as_str))?;
        Ok(environment)
    };
    options.roles.iter().map(of_role).collect()
}

/// Adds to the description of a role what its launcher needs under Slurm.
fn of_role<'a>(role: &JobRole, mut description: RoleDescription<'a>) -> RoleDescription<'a> {
    if role.launcher != LauncherName::Srun {
        description.environment.extend(OPEN_MPI.map(|(name, value)| (name, value.to_owned())));
    }
    description
}

/// Returns why some steps of a job need one node's GPUs at the same time, and the way out; `None` if none do.
fn shared_gpus(options: &JobOptions) -> Option<(&'static str, &'static str)> {
    let is_gloo = |launcher, controller| launcher == LauncherName::Horovodrun && controller == Controller::Gloo;
    let of_roles = || options.roles.iter().any(|role| is_gloo(role.launcher, role.controller));
    let starts_steps =
        if options.roles.is_empty() { is_gloo(options.launcher, options.controller) } else { of_roles() };
    if starts_steps {
        return Some((
            "horovodrun starts each rank as a step of the job",
            "use another launcher, such as mpirun or torchrun",
        ));
    }
    let are_shared = options.roles.iter().any(|role| role.project.beside.is_some());
    are_shared.then_some(("roles that share a node are steps of the job there", "leave out `beside` in hvdctl.toml"))
}

/// Returns the result of a job that could not be submitted.
fn never_submitted(error: &Error) -> JobResult {
    let fault = Fault::NotSubmitted { error: error.to_string() };
    JobResult { stopped: matches!(error, Error::Signal(_)), launcher: Some(1), ..JobResult::ended_by(fault, now()) }
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
    let ranks = known_ranks(options);
    let workspace = cluster.layout(&container.name).workspace;
    Record {
        id: id.to_owned(),
        created: now(),
        placement: Placement {
            shares: vec![Share { node: login.to_owned(), ranks, ..Share::default() }],
            ..Placement::default()
        },
        // GPUs and cores are those that Slurm gives
        bind: Some(options.bind.unwrap_or(Bind::None)),
        cwd: directory_of_ranks(cluster, program, id, workspace),
        ranks,
        port: cluster.port,
        scheduled: Some(Scheduled::default()),
        ..record_of(cluster, program, options)
    }
}
