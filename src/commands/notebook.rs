//! `hvdctl notebook`: a job whose first rank is JupyterLab, a port here that leads to it, and what was written to the
//! project fetched at its end.

use super::fetch::{self, FetchDocument};
use super::image::build::use_image;
use super::job_start::{self, Allocating};
use super::{Context, Outcome, job_end};
use crate::cli;
use crate::cluster::target::Target;
use crate::document::Document;
use crate::error::{Error, NodeError, Verdict};
use crate::event::{Event, Message};
use crate::inventory::{Bind, LauncherName};
use crate::job::fetch::{FetchOptions, after};
use crate::job::supervision::WatchOptions;
use crate::launch::hints::{FailedProgram, KnownProject};
use crate::launch::placement::{MapBy, RankCount};
use crate::launch::{self, env_file};
use crate::random;
use crate::record::JobState;
use crate::record::frames::{Frame, FrameKind};
use crate::record::outcome::JobOutcome;
use crate::secret::Secret;
use crate::slurm;
use crate::start::in_worker::check_modules;
use crate::start::plan::JobPlan;
use crate::start::request::{JobOptions, ProjectRequest, ResourceRequest};
use crate::sync::project;
use serde::Deserialize;
use std::io::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tempfile::NamedTempFile;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// What every rank of the job runs, and what its cells use.
const PROGRAM: &str = "notebook.py";
const NOTEBOOK: &str = include_str!("../scripts/notebook/notebook.py");
/// The variable by which JupyterLab gets its token.
const TOKEN: &str = "HVDCTL_NOTEBOOK_TOKEN";
/// Ports here that are tried, Jupyter's own first.
const PORTS: std::ops::Range<u16> = 8888..8988;
/// How long an answer over the forwarded port may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// The operation on the master, for messages.
const FORWARD: &str = "forward a port to JupyterLab";
/// SIGINT, with which a notebook usually ends.
const INTERRUPT: u8 = 2;
const WITHOUT_JUPYTER: &str =
    "add this line to hvdctl.toml of the project: setup = [\"python3 -m pip install jupyterlab\"]";

/// `notebook`.
pub async fn run(options: &cli::Notebook, context: &mut Context) -> Result<Outcome, Error> {
    let root = project::find(&options.project)?;
    if std::env::home_dir().is_some_and(|home| home == root) {
        return Err(Error::usage("the project is your home directory", "name the directory of a project"));
    }
    let port = local_port(options.port.map(Into::into))?;
    let command = project::command(&root, vec!["python3".into()])?;
    let (title, command, of_project) = (Some(options.name.clone()), command.argv, command.launcher);
    let project = ProjectRequest { title, root, name: None, command, is_default_command: false };
    let launcher = options.launching.launcher(of_project, context.target.cluster())?;
    if !options.no_setup {
        let check = async { project.files().await.map(drop) };
        use_image(&project.root, &project.directory(), false, check, context).await?;
    }
    // it waits for its user
    context.target.inventory.cluster.stall_warning = Duration::ZERO;
    let (root, token) = (project.root.clone(), random::token());
    let job = job_options(options, launcher, &token, context)?;
    let mut plan = job_start::plan(project.program(context.target.nodes()), job, Allocating::WhenFree, context).await?;
    check(&plan, context).await?;
    let controller = options.launching.controller(context.target.cluster().controller);
    let transport = &plan.hosts.launcher.observed.member.transport;
    let listen = if transport.is_here() { port } else { 0 };
    let description = plan.by_hand((launcher, controller), PROGRAM, listen)?;
    plan.program.files = vec![(PROGRAM, NOTEBOOK.into()), ("notebook.json", description.into())];
    let program = format!("{}/{}/{PROGRAM}", context.target.cluster().jobs_dir, plan.id);
    plan.program.command = ["python3", &program, "serve"].map(Into::into).to_vec();

    let (sender, ready) = oneshot::channel();
    let mut sender = Some(sender);
    let mut on_frame = |_: &str, frame: &Frame| {
        if let Some(port) = ready_port(frame)
            && let Some(sender) = sender.take()
        {
            let _ = sender.send(port);
        }
    };
    let serving = async {
        if let Ok(there) = ready.await {
            let page = Page { here: port, there, token: &token, open: options.open };
            // the port is closed when the job has ended
            let _open = page.serve(&plan, context).await;
            std::future::pending::<()>().await;
        }
        std::future::pending().await
    };
    let ended = tokio::select! {
        ended = job_start::start(&plan, context, &mut on_frame) => ended,
        () = serving => unreachable!("it waits for the job"),
    };
    let ended = match ended {
        Err(Error::Signal(INTERRUPT)) => {
            JobOutcome { state: JobState::Stopped, ..JobOutcome::running(&plan.id, &plan.placement) }
        }
        ended => ended?,
    };
    finish(ended, &plan, (&root, options.no_fetch), context).await
}

/// Returns how the job is run.
fn job_options(
    options: &cli::Notebook,
    by_hand: LauncherName,
    token: &str,
    context: &Context,
) -> Result<JobOptions, Error> {
    let mut env = env_file::given(options.env_file.as_deref(), &options.env)?;
    let controller = options.launching.controller(context.target.cluster().controller);
    launch::launcher(by_hand, controller).check_variables(env.keys().map(String::as_str))?;
    env.insert(TOKEN.to_owned(), Secret::plain(token));
    let ranks = options.gpus_per_node.filter(|per_node| *per_node == 0).map(|_| RankCount::exactly(1));
    let verbose = context.verbose;
    let check = job_start::options_of_check(None, &options.launching, Duration::ZERO, context)?;
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

/// Checks what is particular to a notebook, before anything is uploaded.
async fn check(plan: &JobPlan, context: &Context) -> Result<(), Error> {
    let Context { target, events, session, .. } = context;
    let nodes: Vec<_> = plan.hosts.observed().cloned().collect();
    if !context.is_direct && slurm::is_up(&nodes, target.cluster())? {
        return Err(Error::usage(
            "the cluster's own Slurm chooses the nodes of a job, and a notebook needs them at once",
            "bypass it with --scheduler ssh, or end it with hvdctl slurm down",
        ));
    }
    let master = &plan.hosts.launcher;
    if master.ranks == 0 {
        let name = master.observed.name();
        return Err(Error::usage(
            format!("{name} launches the job, JupyterLab runs there, and it is not selected"),
            format!("add {name} to --on, or select one node"),
        ));
    }
    let nodes: Vec<_> = plan.hosts.observed().collect();
    let needed = (&["jupyterlab"][..], WITHOUT_JUPYTER);
    session.cancellation.run(check_modules(&nodes, target.cluster(), needed, events)).await
}

/// Returns the port of this machine that leads to JupyterLab.
fn local_port(wanted: Option<u16>) -> Result<u16, Error> {
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let hint = "choose another one with --port PORT";
    match wanted {
        Some(port) if is_free(&port) => Ok(port),
        Some(port) => Err(Error::usage(format!("port {port} of this machine is in use"), hint)),
        None => PORTS.into_iter().find(is_free).ok_or_else(|| {
            Error::usage(format!("the ports {} to {} of this machine are in use", PORTS.start, PORTS.end - 1), hint)
        }),
    }
}

/// What the first rank reports once JupyterLab answers.
#[derive(Deserialize)]
struct Ready {
    notebook_port: u16,
}

/// Returns the port on the master, if a frame reports it.
fn ready_port(frame: &Frame) -> Option<u16> {
    match &frame.kind {
        FrameKind::Stdout(line) if frame.rank == 0 => {
            serde_json::from_slice::<Ready>(line).ok().map(|ready| ready.notebook_port)
        }
        _ => None,
    }
}

/// JupyterLab, as a browser reaches it.
struct Page<'a> {
    /// The port of this machine.
    here: u16,
    /// The port of the master.
    there: u16,
    token: &'a str,
    open: bool,
}

impl Page<'_> {
    /// Forwards the port, reports where JupyterLab is and opens a browser. What fails is only reported: the job goes
    /// on. Returns what has to be kept.
    async fn serve(&self, plan: &JobPlan, context: &Context) -> Option<impl Sized + use<>> {
        let (events, master) = (&context.events, &plan.hosts.launcher.observed);
        let transport = &master.member.transport;
        let forward = match transport.reach(self.here, self.there, FORWARD).await {
            Ok(forward) => forward,
            Err(error) => {
                events.warn(error.hint("Ctrl-C ends the notebook; try another port with --port PORT"));
                return None;
            }
        };
        let port = forward.as_ref().map_or(self.there, |forward| forward.port);
        if !answers(port).await {
            let cause = "nothing answers: sshd allows no connection to 127.0.0.1 of the node";
            let hint = "AllowTcpForwarding in sshd_config, or `restrict`, `no-port-forwarding` or `permitopen` in \
                        authorized_keys of the login may forbid it; Ctrl-C ends the notebook";
            events.warn(NodeError::failed(master.name(), FORWARD, cause).hint(hint));
            return None;
        }
        let url = format!("http://127.0.0.1:{port}/lab?token={}", self.token);
        events.send(Event::Ready { url: url.clone() });
        if let Some(line) = from_elsewhere(std::env::var("SSH_CONNECTION").ok().as_deref(), port) {
            events.note(Message::from("if your browser is on another machine, run this there first").hint(line));
        }
        events.note("Ctrl-C ends the notebook, and fetches what was written to the project");
        let page = if self.open { open(&url, context) } else { None };
        Some((forward, page))
    }
}

/// Returns the command by which the port of this machine is reached from where the operator has logged in from. The
/// value of `SSH_CONNECTION` is client, its port, server, its port (ssh(1)).
fn from_elsewhere(connection: Option<&str>, port: u16) -> Option<String> {
    let server = connection?.split(' ').nth(2)?;
    let user = std::env::var("USER").ok()?;
    Some(format!("ssh -N -L {port}:127.0.0.1:{port} {user}@{server}"))
}

/// Returns whether a web server answers at a port of this machine.
async fn answers(port: u16) -> bool {
    let ask = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
        stream.write_all(b"GET /api HTTP/1.0\r\nHost: localhost\r\n\r\n").await.ok()?;
        let mut first = [0; 5];
        stream.read_exact(&mut first).await.ok()?;
        Some(first == *b"HTTP/")
    };
    timeout(ANSWER_LIMIT, ask).await.ok().flatten().unwrap_or_default()
}

/// Opens a page in the browser of this machine. The token is in a file that only its owner can read, and not in the
/// browser's arguments. Returns the file.
fn open(url: &str, context: &Context) -> Option<NamedTempFile> {
    let program = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let open = || -> anyhow::Result<NamedTempFile> {
        let mut page = tempfile::Builder::new().prefix("hvdctl-").suffix(".html").tempfile()?;
        write!(page, "<!doctype html><meta http-equiv=\"refresh\" content=\"0; url={url}\">")?;
        let mut browser = tokio::process::Command::new(which::which(program)?);
        browser.arg(page.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // Ctrl-C is for the notebook
        browser.process_group(0).spawn()?;
        Ok(page)
    };
    open().inspect_err(|error| context.events.warn(format!("cannot open a browser with {program}: {error:#}"))).ok()
}

/// Fetches what was written to the project, and returns the result.
async fn finish(
    ended: JobOutcome,
    plan: &JobPlan,
    (root, no_fetch): (&Path, bool),
    context: &Context,
) -> Result<Outcome, Error> {
    let of_job = context.target.only(plan.hosts.observed().map(|observed| observed.name().to_owned()));
    let fetched = match no_fetch {
        true => {
            context.events.note(Message::from("what was written is on the nodes").hint("hvdctl fetch"));
            None
        }
        false => Some(fetch_written(&ended.id, &of_job, root, context).await),
    };
    if ended.state == JobState::Stopped {
        return Ok(job_end::with_verdict(Verdict::Done, ended, fetched));
    }
    let launcher = launch::launcher(plan.options.launcher, plan.options.controller);
    let directory = context.target.cluster().project_directory(&plan.program.name);
    let failed = FailedProgram { command: &plan.program.command, project: KnownProject::None, directory };
    job_end::outcome(ended, fetched, launcher, &failed, &context.events)
}

/// Fetches the files that were written since the notebook began into the project, or next to it if they have changed
/// in both places.
async fn fetch_written(id: &str, of_job: &Target, root: &Path, context: &Context) -> Option<Document<FetchDocument>> {
    let Context { fleet, events, .. } = context;
    let written = FetchOptions { only_new: true, force: false };
    let mut fetched = after(of_job, fleet, id, root, written, events).await;
    if let Err(Error::Check { .. }) = &fetched {
        let elsewhere = PathBuf::from(format!("notebook-{id}"));
        if let Err(error) = &fetched {
            events.warn(format!("{error}\nfetching into {} instead", elsewhere.display()));
        }
        fetched = after(of_job, fleet, id, &elsewhere, written, events).await;
    }
    match fetched {
        Ok(report) => {
            events.note(fetch::summary(&report));
            report.failed.iter().for_each(|error| events.warn(error));
            Some(fetch::document(&report))
        }
        Err(error) => {
            events.warn(Message::from(format!("nothing was fetched: {error}")).hint("hvdctl fetch"));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_rank_says_where_jupyter_is() {
        let frame = |rank, line: &[u8]| Frame { rank, time: 0.0, kind: FrameKind::Stdout(line.to_vec()) };
        assert_eq!(ready_port(&frame(0, b"{\"notebook_port\": 45123}")), Some(45123));
        assert_eq!(ready_port(&frame(1, b"{\"notebook_port\": 45123}")), None);
        for other in [&b"{\"notebook_port\": 99999}"[..], b"{\"port\": 1}", b"45123", b""] {
            assert_eq!(ready_port(&frame(0, other)), None);
        }
    }

    #[test]
    fn a_port_that_is_in_use_is_refused_or_passed_over() {
        let first = local_port(None).unwrap();
        let _taken = TcpListener::bind(("127.0.0.1", first)).unwrap();
        assert!(local_port(None).unwrap() > first);
        assert!(local_port(Some(first)).unwrap_err().to_string().contains("is in use"));
    }

    #[test]
    fn a_login_over_ssh_is_told_how_its_own_machine_reaches_the_port() {
        assert_eq!(from_elsewhere(None, 8888), None);
        assert_eq!(from_elsewhere(Some("10.0.0.7"), 8888), None);
        let line = from_elsewhere(Some("10.0.0.7 5000 10.0.0.2 22"), 8888);
        if let Some(line) = line {
            assert!(line.starts_with("ssh -N -L 8888:127.0.0.1:8888 ") && line.ends_with("@10.0.0.2"), "{line}");
        }
    }
}
