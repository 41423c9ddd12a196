//! A job on the two nodes: its files as `job::directory` writes them, its processes, and how it ended.

use crate::cluster::{ADDRESSES, Cluster, NODES, Node, PORT, Process, eventually};
use crate::role_files::RoleSpec;
use hvdctl::launch::description::{Elastic, LaunchDescription, LaunchHost, Surroundings, Warning};
use hvdctl::launch::placement::{Placement, Share};
use hvdctl::launch::programs::{JOB_SUPERVISOR, ON_EVERY_NODE, ON_FIRST_NODE, command};
use hvdctl::launch::{KeptRanks, LaunchRequest, Launcher, launcher};
use hvdctl::model::launcher::{Bind, Controller, LauncherName};
use hvdctl::node::network::{Endpoint, alone};
use hvdctl::record::frames::{Frame, FrameKind, Parser};
use hvdctl::record::restart;
use hvdctl::record::{Attempt, JobResult, JobState, RankExit, Record, stored};
use hvdctl::text::argument::ProgramArgument;
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

/// The ID of every job: each cluster has but one.
const ID: &str = "job-1";

/// Runs a case for each of these at the same time: they wait most of their time.
pub fn each<T: Copy + Debug + Send>(of: impl IntoIterator<Item = T>, case: impl Fn(T) + Sync) {
    thread::scope(|scope| {
        let case = &case;
        let start = |one: T| {
            let parent = thread::current().name().unwrap_or_default().to_owned();
            let thread = thread::Builder::new().name(format!("{parent} {one:?}"));
            thread.spawn_scoped(scope, move || case(one)).unwrap()
        };
        let started: Vec<_> = of.into_iter().map(start).collect();
        let results: Vec<_> = started.into_iter().map(thread::ScopedJoinHandle::join).collect();
        results.into_iter().for_each(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
    });
}

/// The launcher of the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// `horovodrun` with Gloo.
    Gloo,
    /// `horovodrun` with MPI.
    Mpi,
    /// An agent on each node.
    Torchrun,
    /// hvdctl itself.
    Env,
}

impl Method {
    pub fn name(self) -> (LauncherName, Controller) {
        match self {
            Method::Gloo => (LauncherName::Horovodrun, Controller::Gloo),
            Method::Mpi => (LauncherName::Horovodrun, Controller::Mpi),
            Method::Torchrun => (LauncherName::Torchrun, Controller::Gloo),
            Method::Env => (LauncherName::Env, Controller::Gloo),
        }
    }

    pub fn launcher(self) -> &'static Launcher {
        let (name, controller) = self.name();
        launcher(name, controller)
    }
}

/// Runs a case under every launcher: it depends on what the launcher does when ranks start, fail or end.
pub fn each_launcher(case: impl Fn(Method) + Sync) {
    each([Method::Gloo, Method::Mpi, Method::Torchrun, Method::Env], case);
}

/// Runs a case under a launcher that starts the ranks of all nodes, and without one: it depends on the supervisors
/// alone. With `scripts/test --full` it runs under every launcher.
pub fn each_kind(case: impl Fn(Method) + Sync) {
    if std::env::var_os("HVDCTL_TEST_FULL").is_some() {
        return each_launcher(case);
    }
    each([Method::Gloo, Method::Env], case);
}

/// A job: its command and its settings.
#[derive(Clone)]
pub struct Spec {
    pub method: Method,
    pub command: Vec<String>,
    /// The ranks of each node.
    pub ranks: [u32; 2],
    /// Seconds between SIGTERM and SIGKILL.
    pub grace: u64,
    /// Seconds after which a stopped and silent rank hangs; 0: never.
    pub stall: u64,
    /// Seconds for all ranks to start.
    pub start_timeout: u64,
    pub restarts: u32,
    /// The least number of ranks of an elastic job.
    pub min_ranks: Option<u32>,
    /// Seconds for which it may have fewer.
    pub elastic_timeout: u64,
    /// Set if its launcher keeps the ranks that are left.
    pub in_place: bool,
    /// Set if the program lets its ranks be kept.
    pub registers: bool,
    /// Seconds beyond `stall` after which a rank without progress ends the job.
    pub idle_margin: u64,
    /// Seconds without progress after which a rank is reported; 0: never.
    pub stall_warning: u64,
    /// Seconds after which a rank without connections is recorded; 0: never.
    pub isolated_after: u64,
    /// Seconds between two samples; 0: none.
    pub sample: u64,
    /// Bytes that the log may take on each node.
    pub log_max: Option<u64>,
    /// Set if the log keeps every state of progress bars.
    pub log_progress: bool,
    /// The cores to which the ranks are bound.
    pub bind: Option<Bind>,
    /// The ranks that the launcher never starts, separated by spaces.
    pub left_out: &'static str,
    /// The working directory; none: that of the job, as checks have it.
    pub cwd: Option<&'static str>,
    /// Set if the command is the default of a project.
    pub default_command: bool,
    /// The variables of the user, as JSON.
    pub env: String,
    /// The signal that the ranks get before the limit of an allocation of Slurm, if the nodes are one.
    pub warning: Option<Warning>,
    /// Its roles; none: it has one command.
    pub roles: Vec<RoleSpec>,
}

impl Spec {
    /// One rank per node that runs these arguments, with times that are never reached.
    pub fn command(method: Method, command: &[&str]) -> Spec {
        let command = command.iter().map(|&word| word.to_owned()).collect();
        Spec {
            method,
            command,
            ranks: [1, 1],
            grace: 60,
            stall: 0,
            idle_margin: 30,
            stall_warning: 0,
            isolated_after: 0,
            sample: 0,
            log_max: None,
            log_progress: false,
            start_timeout: 60,
            restarts: 0,
            min_ranks: None,
            elastic_timeout: 60,
            in_place: false,
            registers: true,
            bind: None,
            left_out: "",
            cwd: None,
            default_command: false,
            env: "{}".to_owned(),
            warning: None,
            roles: Vec::new(),
        }
    }

    /// Returns a job that runs a shell script, which has the rank as `$RANK`.
    pub fn shell(method: Method, script: &str) -> Spec {
        let script = format!("RANK=${{HOROVOD_RANK:-${{OMPI_COMM_WORLD_RANK:-$RANK}}}}\n{script}");
        Spec::command(method, &["sh", "-c", &script])
    }

    /// Returns a job that runs a Python program, which has the rank as `rank`.
    pub fn python(method: Method, program: &str) -> Spec {
        let rank = "rank = int(next(os.environ[n] for n in ('HOROVOD_RANK', 'OMPI_COMM_WORLD_RANK', 'RANK') if n in \
            os.environ))";
        Spec::command(method, &["python3", "-c", &format!("import os, signal, sys, time\n{rank}\n{program}")])
    }

    fn placement(&self) -> Placement {
        if !self.roles.is_empty() {
            return self.placement_of_roles();
        }
        let mut first = 0;
        let shares = NODES.iter().zip(self.ranks).filter(|(_, ranks)| *ranks > 0).map(|(node, ranks)| {
            let share = Share { node: (*node).to_owned(), first, ranks, ..Share::default() };
            first += ranks;
            share
        });
        Placement { shares: shares.collect(), ..Placement::default() }
    }
}

impl Cluster {
    /// A file of the job on a node.
    pub fn job_file(&self, index: usize, name: &str) -> PathBuf {
        self.job_dir(index).join(name)
    }

    fn job_dir(&self, index: usize) -> PathBuf {
        self.dir().join(NODES[index]).join(ID)
    }

    /// Starts a job.
    pub fn start(&self, spec: &Spec) -> Job<'_> {
        let jobs = self.dir().join("jobs");
        // each node sees its own files there
        let seen_as = jobs.join(ID).to_str().unwrap().to_owned();
        for index in 0..NODES.len() {
            let dir = self.job_dir(index);
            fs::create_dir(&dir).unwrap();
            let record = stored::write_checked("job.json", &record(spec, index, &seen_as)).unwrap();
            let launch = stored::write("launch.json", &description(spec, &seen_as)).unwrap();
            let place = Endpoint { interface: "eth0".into(), label: "eth0".into(), ..alone() };
            let launcher = spec.method.launcher().rank_description(&place, place.address);
            let launcher = match &spec.roles[..] {
                [] => serde_json::to_string(&launcher).unwrap(),
                _ => spec.rank_descriptions(index).to_string(),
            };
            let of_roles: Vec<_> = spec.roles.iter().map(|role| role.env.to_string()).collect();
            let names: Vec<_> = (0..of_roles.len()).map(|number| format!("env.{number}.json")).collect();
            let addresses = spec.addresses().to_string();
            let mut files = vec![
                (0o600, "job.json", record.as_str()),
                (0o600, "env.json", spec.env.as_str()),
                (0o644, "launcher.json", &launcher),
                (0o600, "log", ""),
            ];
            files.extend(names.iter().zip(&of_roles).map(|(name, text)| (0o600, name.as_str(), text.as_str())));
            files.extend((!spec.roles.is_empty()).then_some((0o644, "roles.json", addresses.as_str())));
            files.extend(ON_EVERY_NODE);
            if index == 0 {
                files.push((0o600, "launch.json", &launch));
                files.extend(ON_FIRST_NODE);
            }
            for (mode, name, text) in files {
                fs::write(dir.join(name), text).unwrap();
                fs::set_permissions(dir.join(name), Permissions::from_mode(mode)).unwrap();
            }
        }
        let command = command(&seen_as, JOB_SUPERVISOR);
        let of_ranks: Vec<String> = self.variables.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let command: Vec<&str> =
            ["env"].into_iter().chain(of_ranks.iter().chain(&command).map(String::as_str)).collect();
        let mut env = vec![
            ("HVDCTL_JOB", ID),
            ("HVDCTL_RUN", "/run/hvdctl"),
            ("PYTHONUNBUFFERED", "1"),
            ("HOROVOD_STAND_IN_LEAVES_OUT", spec.left_out),
            ("HVDCTL_PLACE", "/nowhere"),
        ];
        env.extend((!spec.registers).then_some(("HOROVOD_STAND_IN_UNREGISTERED", "1")));
        let launching = Node::start(self.dir(), 0, &command, &env);
        Job { launching, cluster: self, spec: spec.clone() }
    }
}

fn record(spec: &Spec, index: usize, job_dir: &str) -> Record {
    Record {
        id: ID.into(),
        cluster: "test".into(),
        name: "test".into(),
        project: None,
        restarts: spec.restarts,
        min_ranks: spec.min_ranks,
        max_ranks: None,
        operator: "test@localhost".into(),
        created: 0.0,
        launcher: spec.method.name().0,
        controller: Some(spec.method.name().1),
        placement: spec.placement(),
        command: spec.command.iter().map(|word| ProgramArgument::from(word.as_str())).collect(),
        default_command: spec.default_command,
        commit: None,
        dirty: None,
        bind: spec.bind,
        cwd: spec.cwd.unwrap_or(job_dir).into(),
        // a node without ranks may be added to an elastic job with one
        ranks: spec.ranks[index].max(u32::from(index == 1)),
        port: PORT,
        rendezvous_port: None,
        interface: "eth0".into(),
        grace: spec.grace,
        stall: spec.stall,
        idle_margin: spec.idle_margin,
        stall_warning: spec.stall_warning,
        isolated_after: spec.isolated_after,
        sample: spec.sample,
        earlier: Vec::new(),
        image: None,
        variables: Vec::new(),
        version: None,
        log_max: spec.log_max,
        log_progress: spec.log_progress,
        scheduled: None,
        ulimits: BTreeMap::new(),
        roles: spec.recorded_roles(),
    }
}

fn description<'a>(spec: &'a Spec, job_dir: &str) -> LaunchDescription<'a> {
    let all = [host(0, spec.ranks[0]), host(1, spec.ranks[1])];
    let launcher = spec.method.launcher();
    let with_ranks: Vec<_> = all.into_iter().filter(|host| host.ranks > 0).collect();
    let timeout = Duration::from_secs(spec.elastic_timeout);
    let kept = spec.min_ranks.filter(|_| spec.in_place);
    let kept = kept.map(|min| KeptRanks { min, max: spec.ranks.iter().sum(), timeout, changes: None });
    let request = LaunchRequest {
        hosts: &with_ranks,
        first: all[0],
        rendezvous_port: 29500,
        port: PORT,
        interface: "eth0",
        start_timeout: Duration::from_secs(spec.start_timeout),
        stall_timeout: Duration::from_secs(spec.stall),
        job_dir,
        rank_program: hvdctl::launch::programs::RANK_SUPERVISOR,
        kept,
        role: None,
    };
    LaunchDescription {
        start: launcher.start,
        launcher: (launcher.arguments)(&request),
        variables: (launcher.variables)(&request).into_iter().collect(),
        surroundings: Surroundings::of(launcher, &request, PORT),
        first: all[0],
        names: Vec::new(),
        workers: all[1..].iter().copied().filter(|host| host.ranks > 0).collect(),
        restarts: spec.restarts,
        elastic: spec.min_ranks.map(|min_ranks| Elastic {
            min_ranks,
            timeout: spec.elastic_timeout,
            in_place: spec.in_place,
        }),
        slurm: spec.warning.is_some(),
        warning: spec.warning,
        queued: false,
        own_workers: false,
        grace: spec.grace,
        start_timeout: spec.start_timeout,
        restart_pause: 1,
        keep_alive: 15,
        roles: spec.role_descriptions(job_dir),
    }
}

/// A node with so many ranks.
pub fn host(index: usize, ranks: u32) -> LaunchHost<'static> {
    LaunchHost { node: NODES[index], address: ADDRESSES[index].parse().unwrap(), ranks }
}

/// A running job.
pub struct Job<'a> {
    /// The first node; its main process is the job supervisor.
    pub launching: Node,
    cluster: &'a Cluster,
    spec: Spec,
}

impl Job<'_> {
    /// The frames of a node's log.
    pub fn frames(&self, index: usize) -> Vec<Frame> {
        Parser::default().push(&fs::read(self.cluster.job_dir(index).join("log")).unwrap())
    }

    /// The lines of a rank's standard output.
    pub fn lines(&self, rank: u32) -> Vec<String> {
        let frames = (0..NODES.len()).flat_map(|index| self.frames(index)).filter(|frame| frame.rank == rank);
        let line = |frame: Frame| match frame.kind {
            FrameKind::Stdout(text) => Some(String::from_utf8_lossy(&text).into_owned()),
            _ => None,
        };
        frames.filter_map(line).collect()
    }

    /// Returns the messages of the job supervisor so far about starting the job again.
    pub fn restarts(&self) -> Vec<String> {
        restarts(&self.frames(0))
    }

    /// Describes the job for the message of a failed assertion.
    fn describe(&self) -> String {
        let mut text = String::new();
        for (index, node) in [&self.launching, &self.cluster.worker].into_iter().enumerate() {
            let log = String::from_utf8_lossy(&fs::read(self.cluster.job_dir(index).join("log")).unwrap()).into_owned();
            let log: Vec<&str> = log.lines().take(60).collect();
            let errors = fs::read_to_string(self.cluster.dir().join(format!("{}.stderr", node.name))).unwrap();
            let processes = node.processes();
            text += &format!("\n--- {}\n{errors}{}\n{processes:#?}", node.name, log.join("\n"));
        }
        text
    }

    /// The ranks that are recorded to have no connection to another one.
    pub fn isolated(&self) -> Vec<u32> {
        let frames = (0..NODES.len()).flat_map(|index| self.frames(index));
        frames.filter(|frame| matches!(frame.kind, FrameKind::Isolated(_))).map(|frame| frame.rank).collect()
    }

    /// Returns the recorded waits of each rank, and the times at which it goes on, in the order of time.
    pub fn waits(&self) -> Vec<(u32, String)> {
        let mut frames: Vec<Frame> = (0..NODES.len()).flat_map(|index| self.frames(index)).collect();
        frames.sort_by(|a, b| a.time.total_cmp(&b.time));
        let wait = |frame: Frame| match frame.kind {
            FrameKind::Waits { does, .. } => Some((frame.rank, does)),
            FrameKind::Resumed(_) => Some((frame.rank, "goes on".to_owned())),
            _ => None,
        };
        frames.into_iter().filter_map(wait).collect()
    }

    /// Waits until a rank has written this line.
    #[track_caller]
    pub fn until(&self, rank: u32, line: &str) {
        let written = eventually(|| self.lines(rank).iter().any(|written| written == line));
        assert!(written, "rank {rank} never wrote {line:?}{}", self.describe());
    }

    /// Waits until both ranks have written `ready`.
    #[track_caller]
    pub fn until_ready(&self) {
        (0..2).for_each(|rank| self.until(rank, "ready"));
    }

    /// Waits for a condition.
    #[track_caller]
    pub fn until_holds(&self, what: &str, condition: impl FnMut() -> bool) {
        assert!(eventually(condition), "never: {what}{}", self.describe());
    }

    /// The launcher's processes on the first node.
    pub fn launchers(&self) -> Vec<Process> {
        let program = match self.spec.method {
            Method::Gloo | Method::Mpi => "horovodrun",
            Method::Torchrun => "torchrun",
            Method::Env => "node_launcher.py each",
        };
        let mut all = self.launching.processes();
        all.retain(|process| process.arguments.contains(program));
        all
    }

    /// Sends a signal to the job supervisor.
    pub fn signal(&self, signal: Signal) {
        self.launching.signal(signal);
    }

    /// Waits until all of the job's processes have gone from the second node.
    #[track_caller]
    pub fn until_worker_is_clean(&self) {
        // its sessions end with the last process that holds their streams
        let left = || self.cluster.worker.others();
        assert!(eventually(|| left().is_empty()), "left on node2: {:#?}{}", left(), self.describe());
    }

    /// A file of the job on a node.
    pub fn file(&self, index: usize, name: &str) -> Option<String> {
        fs::read_to_string(self.cluster.job_dir(index).join(name)).ok()
    }

    /// Waits for the end of the job supervisor and of the first node with it. Returns its exit code.
    #[track_caller]
    pub fn wait(&mut self) -> i32 {
        match self.launching.wait() {
            Some(code) => code,
            None => panic!("the job does not end{}", self.describe()),
        }
    }

    /// Returns the result that the job supervisor recorded.
    #[track_caller]
    pub fn ending(&self) -> JobResult {
        let ending = self.file(0, "result.json").unwrap_or_else(|| panic!("no result.json{}", self.describe()));
        serde_json::from_str(&ending).unwrap_or_else(|error| panic!("{error}: {ending:?}{}", self.describe()))
    }

    /// Waits for the end of the job supervisor, and asserts what holds at every end: the second node has no process of
    /// the job, no node has its environment, nobody complained.
    #[track_caller]
    pub fn end(mut self) -> End {
        let code = self.wait();
        self.until_worker_is_clean();
        let (ending, all) = (self.ending(), self.describe());
        let supervised = if ending.stopped { Some(143) } else { ending.launcher };
        assert_eq!(supervised, Some(i64::from(code)), "the exit code of the job supervisor, and its record{all}");
        let attempts: Vec<Attempt> =
            self.file(0, "attempts.json").map_or_else(Vec::new, |text| serde_json::from_str(&text).unwrap());
        let silent: Vec<&String> = ending.silent.iter().chain(attempts.iter().flat_map(|one| &one.silent)).collect();
        let is_gone = |index: usize| index == 1 && self.cluster.worker.main().is_none();
        let is_silent = |index: usize, node: &str| silent.iter().any(|one| *one == node) || is_gone(index);
        for (index, node) in NODES.iter().enumerate().filter(|(index, node)| !is_silent(*index, node)) {
            let of_roles = (0..self.spec.roles.len()).map(|number| format!("env.{number}.json"));
            let names = ["env.json", "inherited.json", "result.json.new", "attempts.json.new"].map(str::to_owned);
            for name in of_roles.chain(names) {
                let name = name.as_str();
                assert!(self.file(index, name).is_none(), "{name} is left on {node}{all}");
            }
        }
        assert!(!all.contains("Traceback"), "{all}");
        assert_eq!(self.frames(0).pop().map(|frame| frame.kind), Some(FrameKind::Over), "{all}");
        let lines = (0..self.spec.ranks.iter().sum()).map(|rank| self.lines(rank)).collect();
        let frames = (0..NODES.len()).flat_map(|index| self.frames(index)).collect();
        let result = serde_json::from_str(&self.file(0, "result.json").unwrap()).unwrap();
        End { ending, result, attempts, lines, frames, placement: self.spec.placement(), all }
    }
}

fn restarts(frames: &[Frame]) -> Vec<String> {
    let text = |frame: &Frame| match &frame.kind {
        FrameKind::Restart(event) => Some(restart::read(event, &Placement::default()).to_string()),
        _ => None,
    };
    frames.iter().filter_map(text).collect()
}

/// The end of a job.
pub struct End {
    pub ending: JobResult,
    /// Its text in the file.
    pub result: serde_json::Value,
    /// The attempts before the last.
    pub attempts: Vec<Attempt>,
    /// The lines of each rank's standard output.
    pub lines: Vec<Vec<String>>,
    /// The frames of both nodes' logs.
    pub frames: Vec<Frame>,
    /// Which rank ran where.
    pub placement: Placement,
    /// For the message of a failed assertion.
    pub all: String,
}

impl End {
    /// Returns the end of a rank: its exit code, and whether it had been asked to end.
    #[track_caller]
    pub fn rank(&self, rank: u32) -> (i32, bool) {
        let of: Vec<&RankExit> = self.ending.exits.iter().filter(|exit| exit.rank == rank).collect();
        assert_eq!(of.len(), 1, "ends of rank {rank}{}", self.all);
        (of[0].code, of[0].asked)
    }

    /// Asserts that the job ended because it was asked to, and how its ranks did: exit code, and whether they had been
    /// asked to.
    #[track_caller]
    pub fn stopped(&self, ranks: [(i32, bool); 2]) -> &End {
        assert!(self.ending.stopped && self.ending.launcher.is_none(), "{:?}{}", self.ending, self.all);
        self.ranks(ranks)
    }

    /// Asserts that the job failed for a reason that begins so, with this exit code.
    #[track_caller]
    pub fn failed(&self, reason: &str, code: i64) -> &End {
        let said = self.ending.reason(&self.placement).unwrap_or_default();
        assert!(said.starts_with(reason), "{said:?} is not {reason:?}: {:?}{}", self.ending, self.all);
        let ended = (self.ending.state(), self.ending.code());
        assert_eq!(ended, (JobState::Failed, Some(code)), "{:?}{}", self.ending, self.all);
        self
    }

    /// Returns the messages of the job supervisor about starting the job again.
    pub fn restarts(&self) -> Vec<String> {
        restarts(&self.frames)
    }

    /// Asserts how the ranks ended.
    #[track_caller]
    pub fn ranks(&self, ranks: [(i32, bool); 2]) -> &End {
        assert_eq!([self.rank(0), self.rank(1)], ranks, "{:?}{}", self.ending, self.all);
        self
    }
}
