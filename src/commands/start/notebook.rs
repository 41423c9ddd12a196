//! `hvdctl notebook`: a job whose first rank is JupyterLab, a port here that leads to it, and what was written to the
//! project fetched at its end.

mod again;
mod end;
mod page;

use crate::cli;
use crate::cluster::observation::ObservedNode;
use crate::commands::check::check_job::options_of_check;
use crate::commands::set_up::image::build::use_images;
use crate::commands::{Context, Outcome};
use crate::error::Error;
use crate::event::Message;
use crate::inventory::{Bind, Cluster, LauncherName};
use crate::job::supervision::WatchOptions;
use crate::launch::placement::{MapBy, RankCount};
use crate::launch::{self, Launcher, env_file, programs};
use crate::record::frames::Frame;
use crate::schedule::{self, Allocating, queue};
use crate::start::in_worker::{check_launcher, check_modules};
use crate::start::plan::JobPlan;
use crate::start::request::{JobOptions, ProjectRequest, ResourceRequest};
use crate::sync::project::{self, ProjectFile};
use end::EndedNotebook;
use page::{Page, listen, listen_for};
use std::path::PathBuf;
use std::time::Duration;

/// The program that every rank of the job runs, and that its cells use.
const PROGRAM: &str = "notebook.py";
const NOTEBOOK: &str = include_str!("../../scripts/notebook/notebook.py");
/// JupyterLab with a token that can be changed, and what leads to it.
const SERVER: &str = include_str!("../../scripts/notebook/server.py");
const TUNNEL: &str = include_str!("../../scripts/node/tunnel.py");
const WITHOUT_JUPYTER: &str =
    "add this line to the project's hvdctl.toml: setup = [\"python3 -m pip install jupyterlab\"]";

/// `notebook`.
pub async fn run(options: &cli::Notebook, context: &mut Context) -> Result<Outcome, Error> {
    let root = project::find(&options.project)?;
    if std::env::home_dir().is_some_and(|home| home == root) {
        return Err(Error::usage("the project is your home directory", "name the directory of a project"));
    }
    let forwards = listen_for(&options.forward)?;
    let listener = listen(options.port.map(Into::into))?;
    if let Some(job) = &options.attach {
        return again::run(options, job, &root, (listener, forwards), context).await;
    }
    let (project, of_project) = project_of(options, root)?;
    let launcher = options.launching.launcher(of_project, context.target.cluster())?;
    if !options.no_setup {
        let check = async || project.files().await.map(drop);
        let (cluster, is_direct) = (context.target.cluster().clone(), context.scheduler().is_direct);
        let accepts = |nodes: &[ObservedNode]| refuse_queue(!is_direct && queue::is_up(nodes, &cluster)?);
        use_images(&project.root, &project.directory(), (false, &mut []), (check, accepts), context).await?;
    }
    // it waits for its user
    context.target.inventory.cluster.stall_warning = Duration::ZERO;
    let root = project.root.clone();
    let job = job_options(options, launcher, context)?;
    let mut plan =
        context.scheduler().place(project.program(context.target.nodes()), job, Allocating::WhenFree).await?;
    check(&plan, context).await?;
    let controller = options.launching.controller(context.target.cluster().controller);
    check_by_hand(&plan, launch::launcher(launcher, controller), context).await?;
    let description = plan.by_hand((launcher, controller), PROGRAM)?;
    plan.program.files = vec![
        (PROGRAM, NOTEBOOK.into()),
        ("notebook_server.py", SERVER.into()),
        ("tunnel.py", TUNNEL.into()),
        ("notebook.json", description.into()),
    ];
    let program = program(context.target.cluster(), &plan.id);
    let start = programs::command(&format!("{}/{}", context.target.cluster().jobs_dir, plan.id), PROGRAM);
    plan.program.command = start.iter().map(String::as_str).chain(["serve"]).map(Into::into).collect();

    let observed = &plan.hosts.launcher.observed;
    let (runtime, container) = (observed.runtime.engine.clone(), plan.container.name.clone());
    let page = Page {
        listener,
        forwards,
        open: options.open,
        transport: &observed.member.transport,
        runtime,
        container,
        program,
    };
    let job = async |on_frame: &mut dyn FnMut(&str, &Frame)| schedule::run(&plan, context.site(), on_frame).await;
    let ended = page.while_open(job, context).await;
    let nodes = plan.hosts.observed().map(|observed| observed.name().to_owned());
    let notebook = EndedNotebook {
        id: &plan.id,
        placement: &plan.placement,
        of_job: context.target.only(nodes),
        command: &plan.program.command,
        root: &root,
        fetches: !options.no_fetch,
    };
    notebook.finish(ended, context).await
}

/// Returns the project of a notebook, and the launcher that its `hvdctl.toml` names.
fn project_of(options: &cli::Notebook, root: PathBuf) -> Result<(ProjectRequest, Option<LauncherName>), Error> {
    let file = ProjectFile::read(&root)?;
    file.refuse_roles("notebook", "start it in a project without [[role]]")?;
    let command = project::command(&root, file, vec!["python3".into()])?;
    let (title, of_project) = (Some(options.name.clone()), command.launcher);
    let (command, other_commands) = (command.argv, Vec::new());
    let project = ProjectRequest { title, root, name: None, command, is_default_command: false, other_commands };
    Ok((project, of_project))
}

/// Returns the path of the notebook's program on the nodes.
fn program(cluster: &Cluster, job: &str) -> String {
    format!("{}/{job}/{PROGRAM}", cluster.jobs_dir)
}

/// Returns how the job is run.
fn job_options(options: &cli::Notebook, by_hand: LauncherName, context: &Context) -> Result<JobOptions, Error> {
    let env = env_file::given(options.env_file.as_deref(), &options.env)?;
    let controller = options.launching.controller(context.target.cluster().controller);
    launch::launcher(by_hand, controller).check_variables(env.keys().map(String::as_str))?;
    let ranks = options.gpus_per_node.filter(|per_node| *per_node == 0).map(|_| RankCount::exactly(1));
    let verbose = context.verbose;
    let check = options_of_check(None, &options.launching, Duration::ZERO, context)?;
    Ok(JobOptions {
        resources: ResourceRequest { ranks, map_by: MapBy::Slot, per_node: options.gpus_per_node },
        launcher: LauncherName::Env,
        bind: Some(Bind::None),
        env,
        env_files: context.env_files.clone(),
        watch: WatchOptions { output: verbose > 0, launcher_output: verbose > 1, ..WatchOptions::default() },
        ..check
    })
}

/// Refuses a notebook where jobs wait in the cluster's queue.
fn refuse_queue(is_queue: bool) -> Result<(), Error> {
    match is_queue {
        true => Err(Error::usage(
            "the cluster's queue chooses the nodes of a job, but a notebook needs them at once",
            "bypass it with --scheduler ssh, or end it with hvdctl slurm down",
        )),
        false => Ok(()),
    }
}

/// Checks what is particular to a notebook, before anything is uploaded.
async fn check(plan: &JobPlan, context: &Context) -> Result<(), Error> {
    let Context { target, events, session, .. } = context;
    let nodes: Vec<_> = plan.hosts.observed().cloned().collect();
    refuse_queue(context.scheduler().is_queue(&nodes)?)?;
    let master = &plan.hosts.launcher;
    if master.ranks == 0 {
        let name = master.observed.name();
        return Err(Error::usage(
            format!("{name} launches the job and runs JupyterLab, but it is not selected"),
            format!("add {name} to --on, or select one node"),
        ));
    }
    let nodes: Vec<_> = plan.hosts.observed().collect();
    let needed = (&["jupyterlab"][..], WITHOUT_JUPYTER);
    session.cancellation.run(check_modules(&nodes, target.cluster(), needed, events)).await
}

/// Checks what would make the launches of cells fail. It is a warning: a notebook can do without them.
async fn check_by_hand(plan: &JobPlan, launcher: &Launcher, context: &Context) -> Result<(), Error> {
    let Context { events, session, .. } = context;
    plan.wrong_names(launcher).for_each(|error| events.warn(error));
    match session.cancellation.run(check_launcher(plan, launcher.program, &plan.image_of(0))).await {
        Err(Error::Check { message, hint }) => {
            events.warn(Message::from(format!("cells cannot start ranks: {message}")).hint(hint));
            Ok(())
        }
        other => other,
    }
}
