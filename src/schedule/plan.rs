//! The plan of a job under any scheduler.

use super::Scheduler;
use super::follow::{follow, in_queue};
use super::queue::submission::Queued;
use super::slurm::BatchJob;
use crate::cluster::site::Site;
use crate::cluster::target::Target;
use crate::diagnosis::outcome::JobOutcome;
use crate::diagnosis::ports::KnownPorts;
use crate::error::Error;
use crate::launch::NodeCommand;
use crate::launch::placement::Placement;
use crate::model::launcher::LauncherName;
use crate::record::JobState;
use crate::record::frames::Frame;
use crate::start::environments::provide;
use crate::start::execute::{self, Launched, new_id};
use crate::start::in_worker::{NodeCores, check_launcher, cores};
use crate::start::plan::JobPlan;
use crate::start::prepare::{Workspaces, gather_outputs};
use crate::start::request::{JobOptions, JobProgram};
use std::collections::BTreeSet;
use std::future::Future;

/// How the nodes of a job are allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocating {
    /// Not at all: a dry run locks no node and waits for no other job.
    DryRun,
    /// At once; other jobs are not waited for, because other nodes may be free.
    AtOnce,
    /// When they are free, as long as `--wait` allows it.
    WhenFree,
    /// By the scheduler of the cluster; without one, when they are free.
    Scheduled,
}

/// The plan of a job. Nothing has been changed yet.
pub enum Plan {
    /// Its nodes are allocated, and hvdctl starts it.
    Placed(Box<JobPlan>),
    /// The cluster's queue chooses among the nodes of this plan.
    Candidates(Box<Queued>),
    /// A site's Slurm chooses its nodes, which are not known before.
    Unplaced(Box<BatchJob>),
}

/// A job that was started or submitted.
pub enum Submitted<'a> {
    /// Its launcher is up.
    Launched(Launched<'a>),
    /// It waits in the cluster's queue. With the place of its project on each node.
    Queued(Workspaces),
    /// It waits in a site's queue.
    Batch,
}

/// A plan as a dry run shows it.
pub struct ShownPlan<'a> {
    /// The plan of its nodes, if these are allocated.
    pub placed: Option<&'a JobPlan>,
    /// Which ranks would be where; none if a scheduler decides that.
    pub placement: Placement,
    /// The commands that would be started on the nodes, for each role, or for all ranks.
    pub commands: &'a [Vec<NodeCommand>],
    /// The cores and threads of the ranks on each node whose worker is up.
    pub cores: Vec<NodeCores>,
    /// The options with which the job would be submitted.
    pub submission: Vec<String>,
    /// The program that would submit it.
    pub submitted_by: &'static str,
}

impl Scheduler<'_> {
    /// Plans a job, and reports what is worth knowing before it begins. `program` is read while the nodes are observed.
    ///
    /// # Errors
    /// Too few nodes or nodes in use, as far as hvdctl chooses them; those of the program; options that the scheduler does
    /// not have.
    pub async fn plan(
        &self,
        program: impl Future<Output = Result<JobProgram, Error>>,
        options: JobOptions,
        allocating: Allocating,
    ) -> Result<Plan, Error> {
        let Site { target, fleet, events, session, .. } = self.site;
        if target.cluster().can().choose_nodes {
            let plan = self.place(program, options, allocating).await?;
            return match plan.queue {
                Some(request) => Ok(Plan::Candidates(Box::new(Queued::new(plan, request)?))),
                None => Ok(Plan::Placed(Box::new(plan))),
            };
        }
        let connecting = async {
            let mut members = fleet.all(target, events).await?;
            Ok::<_, Error>(members.remove(0))
        };
        let (program, login) = session.cancellation.run(async { tokio::try_join!(program, connecting) }).await?;
        Ok(Plan::Unplaced(Box::new(BatchJob::new(target, login, program, options, new_id())?)))
    }

    /// Plans a job on nodes of which hvdctl knows, and reports what is worth knowing before it begins.
    ///
    /// # Errors
    /// As [`Scheduler::plan`].
    pub async fn place(
        &self,
        program: impl Future<Output = Result<JobProgram, Error>>,
        options: JobOptions,
        allocating: Allocating,
    ) -> Result<JobPlan, Error> {
        let Site { target, events, session, .. } = self.site;
        // a large project is read while the nodes are observed; the first failure ends both
        let nodes = self.allocate(&options, allocating);
        let (program, mut nodes) = tokio::try_join!(session.cancellation.run(program), nodes)?;
        provide(&mut nodes, &options.roles, self.site, allocating == Allocating::DryRun).await?;
        let id = if allocating == Allocating::DryRun { "ID".to_owned() } else { new_id() };
        let plan = JobPlan::new(target, nodes, program, options, id)?;
        plan.report(events);
        Ok(plan)
    }
}

impl Plan {
    /// Returns the plan of the job's nodes, as far as they are known: those that it has, or may get.
    pub fn known(&self) -> Option<&JobPlan> {
        match self {
            Plan::Placed(plan) => Some(plan),
            Plan::Candidates(queued) => Some(&queued.plan),
            Plan::Unplaced(_) => None,
        }
    }

    /// Returns the job's id, what every rank runs, and how.
    fn job(&self) -> (&str, &JobProgram, &JobOptions) {
        match self {
            Plan::Placed(plan) => (&plan.id, &plan.program, &plan.options),
            Plan::Candidates(queued) => (&queued.plan.id, &queued.plan.program, &queued.plan.options),
            Plan::Unplaced(batch_job) => (&batch_job.id, &batch_job.program, &batch_job.options),
        }
    }

    /// Returns what every rank runs.
    pub fn program(&self) -> &JobProgram {
        self.job().1
    }

    /// Returns how the job is run.
    pub fn options(&self) -> &JobOptions {
        self.job().2
    }

    /// Returns the ports that are in use on its nodes, as far as these were observed.
    pub fn ports(&self) -> Vec<KnownPorts> {
        self.known().map_or_else(Vec::new, JobPlan::ports)
    }

    /// Returns the nodes of the job, of those of a command.
    pub fn target(&self, of_command: &Target) -> Target {
        match self.known() {
            // the launcher's node may not be selected
            Some(plan) => of_command.only(plan.hosts.observed().map(|observed| observed.name().to_owned())),
            None => of_command.clone(),
        }
    }

    /// Checks that the nodes have what `hvdctl up` gives them.
    ///
    /// # Errors
    /// [`Error::NotUp`].
    pub fn check_up(&self) -> Result<(), Error> {
        self.known().map_or(Ok(()), JobPlan::check_up)
    }

    /// Checks everything that would make the job fail, and asks its scheduler whether it would take it. Changes nothing.
    ///
    /// # Errors
    /// With each finding, or the scheduler's own message.
    pub async fn check(&self, site: Site<'_>) -> Result<(), Error> {
        let Site { events, session, .. } = site;
        match self {
            Plan::Placed(plan) => check_placed(plan, site).await,
            Plan::Candidates(queued) => {
                queued.plan.check(events)?;
                session.cancellation.run(queued.check()).await
            }
            Plan::Unplaced(batch_job) => session.cancellation.run(batch_job.check(events)).await,
        }
    }

    /// Checks the plan as its start would, and returns what a dry run says of it.
    ///
    /// # Errors
    /// As [`Plan::check`].
    pub async fn show(&self, site: Site<'_>) -> Result<ShownPlan<'_>, Error> {
        let shown = ShownPlan {
            placed: None,
            placement: Placement::default(),
            commands: &[],
            cores: Vec::new(),
            submission: Vec::new(),
            submitted_by: "sbatch",
        };
        match self {
            Plan::Placed(plan) => {
                plan.check(site.events)?;
                let (placement, commands) = (plan.placement.clone(), plan.commands.as_slice());
                let cores = cores(plan, site.events).await?;
                Ok(ShownPlan { placed: Some(plan), placement, commands, cores, ..shown })
            }
            Plan::Candidates(queued) => {
                queued.plan.check(site.events)?;
                Ok(ShownPlan { submission: queued.options.clone(), ..shown })
            }
            Plan::Unplaced(batch_job) => {
                self.check(site).await?;
                Ok(ShownPlan { submission: batch_job.sbatch.options.clone(), ..shown })
            }
        }
    }

    /// Checks the plan, and starts or submits the job.
    ///
    /// # Errors
    /// As [`Plan::check`], when nothing has been changed; why it was not started or submitted; then nothing of it is left.
    pub async fn submit<'a>(&self, site: Site<'a>) -> Result<Submitted<'a>, Error> {
        let Site { session, events, .. } = site;
        match self {
            Plan::Placed(plan) => {
                self.check(site).await?;
                execute::launch(plan, session, events).await.map(Submitted::Launched)
            }
            Plan::Candidates(queued) => {
                self.check(site).await?;
                queued.submit(session, events).await.map(Submitted::Queued)
            }
            // a site's Slurm may take a while to answer
            Plan::Unplaced(batch_job) => batch_job.submit(site).await.map(|()| Submitted::Batch),
        }
    }

    /// Follows the job to its end, or as far as its options say: until its ranks have started, or it is in a queue. Every
    /// frame goes to `on_frame`. A signal ends the job.
    ///
    /// # Errors
    /// When the node of its launcher does not answer (the job goes on); a signal.
    pub async fn follow(
        &self,
        submitted: Submitted<'_>,
        site: Site<'_>,
        on_frame: &mut dyn FnMut(&str, &Frame),
    ) -> Result<JobOutcome, Error> {
        let Site { target, session, events, .. } = site;
        let (id, _, JobOptions { watch, .. }) = self.job();
        match (self, submitted) {
            (Plan::Placed(plan), Submitted::Launched(launched)) => {
                execute::watch(plan, launched, session, events, on_frame).await
            }
            _ if watch.until_started => {
                session.locks.release().await;
                Ok(in_queue(id, events))
            }
            (Plan::Candidates(queued), Submitted::Queued(workspaces)) => {
                // its launcher is on the master, whichever nodes its ranks may have (--on)
                let outcome = follow(&target.with_master(), id, *watch, site, on_frame).await;
                if outcome.as_ref().is_ok_and(|outcome| outcome.state != JobState::Running) {
                    gather_outputs(&queued.plan, &workspaces, events).await;
                }
                outcome
            }
            _ => follow(target, id, *watch, site, on_frame).await,
        }
    }

    /// Checks the plan, starts or submits the job, and follows it. Every frame goes to `on_frame`.
    ///
    /// # Errors
    /// As [`Plan::submit`] and [`Plan::follow`].
    pub async fn run(&self, site: Site<'_>, on_frame: &mut dyn FnMut(&str, &Frame)) -> Result<JobOutcome, Error> {
        let submitted = self.submit(site).await?;
        self.follow(submitted, site, on_frame).await
    }
}

/// Checks the plan of a job whose nodes are allocated, starts the job, and follows it. Every frame goes to `on_frame`.
///
/// # Errors
/// As [`Plan::run`].
pub async fn run(plan: &JobPlan, site: Site<'_>, on_frame: impl FnMut(&str, &Frame)) -> Result<JobOutcome, Error> {
    let Site { session, events, .. } = site;
    check_placed(plan, site).await?;
    let launched = execute::launch(plan, session, events).await?;
    execute::watch(plan, launched, session, events, on_frame).await
}

/// Checks everything that would make a job fail whose nodes are allocated.
async fn check_placed(plan: &JobPlan, Site { events, session, .. }: Site<'_>) -> Result<(), Error> {
    plan.check(events)?;
    // the images are built for the default launcher
    let others = plan.launchers().enumerate().filter(|(_, (name, _))| *name != LauncherName::default());
    let programs: BTreeSet<(&str, String)> =
        others.map(|(part, (_, commands))| (commands[0].argv[0].as_str(), plan.image_of(part))).collect();
    for (program, image) in programs {
        session.cancellation.run(check_launcher(plan, program, &image)).await?;
    }
    Ok(())
}
