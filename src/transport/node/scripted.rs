//! Scripted nodes: a third transport, for tests. A scripted node answers hvdctl's scripts and the requests to its
//! Docker Engine from a small state that it keeps. Any other call is recorded as unexpected, and the test fails for it.
//!
//! Time is that of the test's runtime, which is paused: a time-out takes no time.

mod engine;
mod envs;
mod jobs;
mod mesh;
mod scripts;
mod state;

pub use jobs::Play;
pub use state::{Lease, NodeState};

use super::tunnel::PROGRAM as TUNNEL;
use crate::error::NodeError;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, DuplexStream, duplex};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

/// The name of the call that opens the session.
pub const CONNECT: &str = "connect";
/// The name of the call that lets a port of the node lead to this machine.
pub const FORWARD: &str = "forward";
/// The name of the call that opens a connection to the Docker Engine.
pub const DIAL: &str = "docker dial-stdio";

/// The script of `data` in an argv, the name of the data and the hash of their manifest, if it has one.
fn data_call<'a>(words: &[&'a str]) -> Option<(&'static str, &'a str, &'a str)> {
    let at = words.iter().rposition(|word| *word == "-c")?;
    let (call, _) = DATA.iter().find(|(_, source)| words.get(at + 1).is_some_and(|script| script.ends_with(source)))?;
    Some((call, words.get(at + 4)?, words.get(at + 6).copied().unwrap_or_default()))
}

/// The time of a call on its way there, and again on its way back. What hvdctl does at a signal is done within it.
const ON_THE_WAY: Duration = Duration::from_millis(1);

/// Bytes that a stream holds: more than any script has.
const ROOM: usize = 1 << 20;

/// The exit code of a shell that does not find a command.
const NOT_FOUND: i32 = 127;

/// An event that replaces or precedes the usual answer to a call.
#[derive(Debug, Clone)]
pub enum Fault {
    /// It fails with these words: a session cannot be opened, a program ends with 1, or with 127
    /// where a shell finds no command, an engine answers with 500.
    Fails(String),
    /// It is never answered, and has no effect.
    Silent,
    /// It takes this long.
    Late(Duration),
}

/// A moment of a call: its arrival at the node, before it has any effect, or its end, before the answer is sent.
#[derive(Debug, Clone)]
pub struct Moment {
    /// Its number, counted over all nodes from 0.
    pub number: usize,
    /// The node's name.
    pub node: String,
    /// The call: a script's file name, `docker` and what is asked of the engine, or [`CONNECT`].
    pub call: String,
    /// Set once the call has had its effect.
    pub done: bool,
}

/// A call that has arrived at a node.
#[derive(Debug, Clone)]
struct Call {
    node: String,
    name: String,
    at: Instant,
}

/// The script that gives root to a login with a password, which comes first on standard input.
const WITH_PASSWORD: &str = include_str!(concat!("../../scripts/", "access/root_password.sh"));
/// The scripts of an upload, which are arguments.
const COMPARE: &str = include_str!(concat!("../../scripts/", "upload/compare.sh"));
const APPLY: &str = include_str!(concat!("../../scripts/", "upload/apply.sh"));
/// The script that receives wheels.
const WHEELS: &str = include_str!(concat!("../../scripts/", "env/wheels.sh"));
/// The scripts of `data`.
const DATA: [(&str, &str); 8] = [
    ("data/compare.sh", include_str!(concat!("../../scripts/", "data/compare.sh"))),
    ("data/stage.sh", include_str!(concat!("../../scripts/", "data/stage.sh"))),
    ("data/apply.sh", include_str!(concat!("../../scripts/", "data/apply.sh"))),
    ("data/relay.sh", include_str!(concat!("../../scripts/", "data/relay.sh"))),
    ("data/stop.sh", include_str!(concat!("../../scripts/", "data/stop.sh"))),
    ("upload/manifest.sh", include_str!(concat!("../../scripts/", "upload/manifest.sh"))),
    ("data/list.sh", include_str!(concat!("../../scripts/", "data/list.sh"))),
    ("data/remove.sh", include_str!(concat!("../../scripts/", "data/remove.sh"))),
];

type Watcher = Arc<dyn Fn(&Moment) + Send + Sync>;

/// All scripted nodes of a test. Cheap to clone.
#[derive(Clone)]
pub struct Nodes(Arc<Mutex<Inner>>);

struct Inner {
    states: BTreeMap<String, NodeState>,
    faults: Vec<(String, String, Fault)>,
    calls: Vec<Call>,
    unexpected: Vec<String>,
    moments: usize,
    watcher: Option<Watcher>,
    /// The script for the launcher of the next job.
    play: Option<Play>,
    began: Instant,
    /// Number of sessions that were opened.
    sessions: usize,
    /// The nodes whose sessions were cut, each with how many there were on all nodes then.
    cut: BTreeMap<String, usize>,
}

impl fmt::Debug for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nodes").field("states", &self.inner().states).finish_non_exhaustive()
    }
}

impl Nodes {
    /// Nodes of these names as they are before hvdctl has ever changed them.
    pub fn new(names: &[&str]) -> Nodes {
        let states = names.iter().zip(1..).map(|(name, number)| ((*name).to_owned(), NodeState::new(name, number)));
        Nodes::with(states.collect())
    }

    /// Other nodes in the same states, without calls, faults or a watcher.
    pub fn copy(&self) -> Nodes {
        Nodes::with(self.inner().states.clone())
    }

    fn with(states: BTreeMap<String, NodeState>) -> Nodes {
        Nodes(Arc::new(Mutex::new(Inner {
            states,
            faults: Vec::new(),
            calls: Vec::new(),
            unexpected: Vec::new(),
            moments: 0,
            watcher: None,
            play: None,
            began: Instant::now(),
            sessions: 0,
            cut: BTreeMap::new(),
        })))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A node's state.
    pub fn state(&self, node: &str) -> NodeState {
        self.inner().states[node].clone()
    }

    /// Changes a node's state.
    pub fn edit(&self, node: &str, change: impl FnOnce(&mut NodeState)) {
        change(self.inner().states.get_mut(node).expect("a node of the test"));
    }

    /// Lets the calls of a node whose names begin so have a fault.
    pub fn fault(&self, node: &str, call: &str, fault: Fault) {
        self.inner().faults.push((node.to_owned(), call.to_owned(), fault));
    }

    /// Ends all faults.
    pub fn repair(&self) {
        self.inner().faults.clear();
    }

    /// Cuts the sessions of a node: no further program starts on them. New sessions can be opened.
    pub fn cut(&self, node: &str) {
        let mut inner = self.inner();
        let sessions = inner.sessions;
        inner.cut.insert(node.to_owned(), sessions);
    }

    /// Returns the number of calls of this name at each node, in the order of the nodes.
    pub fn count(&self, call: &str) -> Vec<usize> {
        let count = |node: String| self.calls(&node).iter().filter(|other| *other == call).count();
        self.names().into_iter().map(count).collect()
    }

    /// Returns the times of the calls of this name at a node, in seconds since the nodes were created.
    pub fn times(&self, node: &str, call: &str) -> Vec<f64> {
        let inner = self.inner();
        let calls = inner.calls.iter().filter(|other| other.node == node && other.name == call);
        calls.map(|call| call.at.duration_since(inner.began).as_secs_f64()).collect()
    }

    /// Calls `watcher` at each moment of each call, and counts the moments from 0 again.
    pub fn watch(&self, watcher: impl Fn(&Moment) + Send + Sync + 'static) {
        let mut inner = self.inner();
        inner.moments = 0;
        inner.watcher = Some(Arc::new(watcher));
    }

    /// Ends [`Nodes::watch`].
    pub fn unwatch(&self) {
        self.inner().watcher = None;
    }

    /// The calls of a node, in their order.
    pub fn calls(&self, node: &str) -> Vec<String> {
        self.inner().calls.iter().filter(|call| call.node == node).map(|call| call.name.clone()).collect()
    }

    /// The calls that have arrived after this moment, each behind its node's name.
    pub fn calls_after(&self, moment: Instant) -> Vec<String> {
        let inner = self.inner();
        let later = inner.calls.iter().filter(|call| call.at > moment);
        later.map(|call| format!("{}: {}", call.node, call.name)).collect()
    }

    /// The calls that have arrived since this moment, those together that did so at the same time: none of them needed
    /// the answer to another one.
    pub fn trips_since(&self, moment: Instant) -> Vec<Vec<String>> {
        let inner = self.inner();
        let mut trips: BTreeMap<Instant, Vec<String>> = BTreeMap::new();
        for call in inner.calls.iter().filter(|call| call.at >= moment) {
            trips.entry(call.at).or_default().push(format!("{}: {}", call.node, call.name));
        }
        trips.into_values().collect()
    }

    /// The nodes' names.
    pub fn names(&self) -> Vec<String> {
        self.inner().states.keys().cloned().collect()
    }

    /// Fails the test where a node was asked for something that it does not know.
    #[track_caller]
    pub fn assert_all_expected(&self) {
        let unexpected = self.inner().unexpected.clone();
        assert!(unexpected.is_empty(), "calls that no scripted node knows:\n{}", unexpected.join("\n"));
    }

    /// Seconds since the epoch by the nodes' clocks.
    pub fn now(&self) -> u64 {
        1_763_735_527 + self.inner().began.elapsed().as_secs()
    }

    /// Opens the session of an inventory's node, which has the host key that the inventory says.
    ///
    /// # Errors
    /// If it has another one, and as [`Nodes::connect`].
    pub async fn connect_to(&self, node: &crate::inventory::Node) -> Result<Node, NodeError> {
        let key = self.inner().states.get(&node.name).and_then(|state| state.host_key.clone());
        match &node.host_key {
            Some(known) if key.is_some_and(|key| key != *known) => {
                Err(NodeError::unreachable(&node.name, "log in by ssh", "its host key is not the one in the inventory"))
            }
            _ => self.connect(&node.name).await,
        }
    }

    /// Opens the session of a node.
    ///
    /// # Errors
    /// Where the test says so.
    pub async fn connect(&self, node: &str) -> Result<Node, NodeError> {
        let session = {
            let mut inner = self.inner();
            if !inner.states.contains_key(node) {
                // the operator's machine, as a source of images
                return Err(NodeError::failed(node, "reach the Docker Engine", "there is none in this test"));
            }
            inner.sessions += 1;
            inner.sessions
        };
        let opened = Node { nodes: self.clone(), name: node.to_owned(), session };
        match opened.arrives(CONNECT).await {
            Some(words) => Err(NodeError::unreachable(node, &format!("log in by ssh as root@{node}"), words)),
            None => {
                opened.ends(CONNECT).await;
                Ok(opened)
            }
        }
    }
}

/// The session of one node.
#[derive(Debug, Clone)]
pub struct Node {
    nodes: Nodes,
    name: String,
    /// The number of the session among those of all nodes.
    session: usize,
}

/// The streams of a program on a scripted node as hvdctl has them, and its exit code.
pub struct Streams {
    /// The writing end of its standard input.
    pub stdin: DuplexStream,
    /// The reading end of its standard output.
    pub stdout: DuplexStream,
    /// The reading end of its standard error.
    pub stderr: DuplexStream,
    /// Its exit code, once it has ended.
    pub code: oneshot::Receiver<i32>,
}

/// A program's streams, as the program has them.
struct Own {
    stdin: DuplexStream,
    stdout: DuplexStream,
    stderr: DuplexStream,
}

impl Own {
    /// Reads a line of standard input, and nothing behind it.
    async fn line(&mut self) -> String {
        let mut line = Vec::new();
        while let Ok(byte) = self.stdin.read_u8().await
            && byte != b'\n'
        {
            line.push(byte);
        }
        String::from_utf8(line).expect("text")
    }

    /// Writes to standard output, which may have no reader any more.
    async fn say(&mut self, text: &str) {
        let _ = self.stdout.write_all(text.as_bytes()).await;
    }

    /// Complains, and returns the exit code of a program that does.
    async fn fail(&mut self, words: &str) -> i32 {
        let _ = self.stderr.write_all(format!("{words}\n").as_bytes()).await;
        if words.ends_with(": not found") { NOT_FOUND } else { 1 }
    }
}

impl Node {
    /// This node in a new session.
    pub(super) async fn reconnected(&self) -> Result<Node, NodeError> {
        self.nodes.connect(&self.name).await
    }

    /// Returns true unless the session has been cut.
    pub fn is_connected(&self) -> bool {
        self.nodes.inner().cut.get(&self.name).is_none_or(|cut| self.session > *cut)
    }

    /// Lets a port of the node lead to one of this machine: the node is this machine.
    ///
    /// # Errors
    /// Where the test says so.
    pub async fn expose(&self, operation: &str) -> Result<(), NodeError> {
        match self.arrives(FORWARD).await {
            Some(words) => Err(NodeError::failed(&self.name, operation, words)),
            None => {
                self.ends(FORWARD).await;
                Ok(())
            }
        }
    }

    /// Starts a program.
    ///
    /// # Errors
    /// If the session was cut.
    pub fn start(&self, argv: &[String]) -> io::Result<Streams> {
        if !self.is_connected() {
            return Err(io::Error::other("the connection is lost"));
        }
        let ((stdin, input), (stdout, output), (stderr, errors)) = (duplex(ROOM), duplex(ROOM), duplex(ROOM));
        let (tell, code) = oneshot::channel();
        let own = Own { stdin: input, stdout: output, stderr: errors };
        let (node, argv) = (self.clone(), argv.to_vec());
        tokio::spawn(async move {
            let words: Vec<&str> = argv.iter().map(String::as_str).collect();
            let mut own = own;
            if words.get(2).is_some_and(|script| script.ends_with(WITH_PASSWORD)) {
                let preamble = [own.line().await, own.line().await];
                node.edit(|state| state.passwords.push(preamble[0].clone()));
            }
            let code = match words.as_slice() {
                ["env", "LC_ALL=C", "sudo", "-k", "-S", ..] => node.check_password(own).await,
                [.., "exec", "-i", container, "sh", "-s"] if container.starts_with("hvdctl-setup-") => {
                    node.run_in(container, own).await
                }
                [.., "sh", "-s"] => node.run_script(own).await,
                [.., "sh", "-c", script, "sh", _, name, _, tree, _, _, _, _] if script.ends_with(COMPARE) => {
                    node.compare_project(name, tree, own).await
                }
                [.., "sh", "-c", script, "sh", _, name, _, tree, _, _, _] if script.ends_with(APPLY) => {
                    node.apply_project(name, tree, own).await
                }
                words if data_call(words).is_some() => {
                    let (call, name, tree) = data_call(words).expect("one of them");
                    node.handle_data(call, name, tree, own).await
                }
                [.., "sh", "-c", script] if script.ends_with(WHEELS) => node.take_wheels(script, own).await,
                [.., "system", "dial-stdio"] => node.serve_engine(own).await,
                [.., "exec", "-i", "hmesh", "python3", "-B", _, _, which] => node.print_mesh_key(which, own).await,
                [.., "exec", "-i", "hmesh", "sh", "-c", _, _] => node.end_mesh_agent(own).await,
                [.., "exec", "-i", "hmesh", "nft", "delete", "table", "ip", _] => 0,
                [.., "exec", "-i", container, "python3", "-I", "-"] => node.take_names(container, own).await,
                [.., "exec", "-i", _, "python3", "-I", "-c", _] => node.measure_network(own).await,
                [.., "python3", "-", "horovod.torch", _, _] => node.find_modules(own).await,
                [.., "sh", "-c", _, "sh", TUNNEL] => node.refuse_tunnel(own).await,
                [.., "exec", "-i", _, "python", "-"] => node.find_imports(own).await,
                [.., "exec", "-i", _, "sh", "-c", _, "sh", _program] => node.find_program(own).await,
                // a dry run asks a worker for its cores
                [.., "python3", "-I", "-", bind, _ranks] => node.show_cores(bind, own).await,
                _ => node.unexpected(&format!("{words:?}"), own).await,
            };
            // the receiver may be gone
            let _ = tell.send(code);
        });
        Ok(Streams { stdin, stdout, stderr, code })
    }

    /// Accepts a password as sudo does.
    async fn check_password(&self, mut own: Own) -> i32 {
        let password = own.line().await;
        self.edit(|state| state.passwords.push(password));
        0
    }

    /// Answers a script of `data`: the node has all files of data of this manifest, or none.
    async fn handle_data(&self, call: &str, name: &str, tree: &str, mut own: Own) -> i32 {
        if let Some(words) = self.arrives(call).await {
            return own.fail(&words).await;
        }
        let _ = own.stdin.read_to_end(&mut Vec::new()).await;
        let answer = self.edit(|state| state.answer_data(call, name, tree));
        self.ends(call).await;
        own.say(&answer).await;
        0
    }

    /// Takes the nodes' names as `hosts.py` in a container.
    async fn take_names(&self, container: &str, mut own: Own) -> i32 {
        let call = format!("docker exec {container} hosts.py");
        let mut program = String::new();
        let _ = own.stdin.read_to_string(&mut program).await;
        if let Some(words) = self.arrives(&call).await {
            return own.fail(&words).await;
        }
        let names = program.lines().last().unwrap_or_default().to_owned();
        self.edit(|state| state.names = names);
        self.ends(&call).await;
        0
    }

    /// Runs a script in a container, of which it keeps the last line; it fails where the container does not run.
    async fn run_in(&self, container: &str, mut own: Own) -> i32 {
        let mut script = String::new();
        let _ = own.stdin.read_to_string(&mut script).await;
        let call = format!("docker exec {container} sh");
        if let Some(words) = self.arrives(&call).await {
            own.say(&format!("{words}\n")).await;
            return 1;
        }
        if self.edit(|state| state.container(container).is_none_or(|container| container.state != "running")) {
            return own.fail(&format!("No such container: {container}")).await;
        }
        self.edit(|state| state.scripts.push(script));
        self.ends(&call).await;
        own.say("done\n").await;
        0
    }

    /// Answers as `binding.py` in a worker of two cores.
    async fn show_cores(&self, bind: &str, mut own: Own) -> i32 {
        let _ = own.stdin.read_to_end(&mut Vec::new()).await;
        own.say(&format!(r#"{{"bind": "{bind}", "threads": "1", "cpus": ["0-1"]}}"#)).await;
        0
    }

    /// Answers for a worker whose image has what ranks need, unless the test has taken it away.
    async fn find_modules(&self, mut own: Own) -> i32 {
        let _ = own.stdin.read_to_end(&mut Vec::new()).await;
        if let Some(words) = self.arrives("find modules").await {
            own.say(&words).await;
            return 0;
        }
        own.say("found\n").await;
        0
    }

    /// Answers for a worker whose image has what a script imports, unless the test has taken it away.
    async fn find_imports(&self, mut own: Own) -> i32 {
        let _ = own.stdin.read_to_end(&mut Vec::new()).await;
        let missing = self.arrives("find imports").await;
        own.say(&missing.unwrap_or_default()).await;
        0
    }

    /// Answers for a worker whose image has the launcher, unless the test has another answer.
    async fn find_program(&self, mut own: Own) -> i32 {
        let found = self.arrives("find program").await;
        own.say(&found.unwrap_or_default()).await;
        0
    }

    /// Answers for a node without Python, which could run `tunnel.py`.
    async fn refuse_tunnel(&self, mut own: Own) -> i32 {
        let words = self.arrives("tunnel.py").await;
        own.fail(words.as_deref().unwrap_or("there is no python3, which could forward it instead")).await;
        127
    }

    /// Answers as `bench/network.py`, or for a worker whose image has no Python.
    async fn measure_network(&self, mut own: Own) -> i32 {
        if let Some(words) = self.arrives("bench/network.py").await {
            return own.fail(&words).await;
        }
        if self.edit(|state| state.sends.is_some()) {
            let mut lines = BufReader::new(std::mem::replace(&mut own.stdin, duplex(1).0)).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                let request: Value = serde_json::from_str(&line).expect("a request");
                own.say(&self.measured(&request)).await;
            }
            return 0;
        }
        own.fail("OCI runtime exec failed: exec: \"python3\": executable file not found in $PATH").await;
        127
    }

    /// Returns the answer of `bench/network.py` to a request.
    fn measured(&self, request: &Value) -> String {
        let all: Vec<f64> =
            self.nodes.inner().states.values().map(|state| f64::from(state.sends.unwrap_or(1)) * 1.25e5).collect();
        let usage = json!({ "idle": 0.8, "steal": 0.0, "busiest_idle": 0.5 });
        let direction = |from: &Value, to: &Value| {
            let sends = all[from.as_u64().unwrap_or_default() as usize];
            let transfer =
                |streams: u32| json!({ "streams": streams, "bytes_per_s": sends, "sender": usage, "receiver": usage });
            let trip = json!({ "median": 60.0, "min": 50.0, "p99": 90.0, "count": 1000 });
            let transfers = [transfer(1), transfer(4)];
            json!({ "from": from, "to": to, "round_trip_us": trip, "transfers": transfers })
        };
        let answers = match request["do"].as_str() {
            None => return "{\"listening\": 4711}\n".to_owned(),
            Some("link") => vec![json!({ "interface": "eth0", "mtu": 1500 })],
            Some("compute") => {
                vec![json!({ "loops_per_s": 1.8e7, "share": 1.0, "copy_bytes_per_s": 9e9, "idle": 0.8 })]
            }
            Some(_) => vec![direction(&request["from"], &request["to"]), direction(&request["to"], &request["from"])],
        };
        let lines = answers.into_iter().chain([json!({ "done": request["do"] })]);
        lines.map(|answer| format!("{answer}\n")).collect()
    }

    /// Records a call. Returns why it fails, where it does.
    async fn arrives(&self, call: &str) -> Option<String> {
        let arrived = Call { node: self.name.clone(), name: call.to_owned(), at: Instant::now() };
        self.nodes.inner().calls.push(arrived);
        self.moment(call, false).await;
        let matches = |(node, name, fault): &(String, String, Fault)| {
            (*node == self.name && call.starts_with(name.as_str())).then(|| fault.clone())
        };
        let fault = self.nodes.inner().faults.iter().find_map(matches);
        match fault {
            Some(Fault::Fails(words)) => return Some(words),
            Some(Fault::Silent) => std::future::pending().await,
            Some(Fault::Late(time)) => sleep(time).await,
            None => {}
        }
        None
    }

    /// Records that a call has had its effect, before it is answered.
    async fn ends(&self, call: &str) {
        self.moment(call, true).await;
    }

    async fn moment(&self, call: &str, done: bool) {
        let (moment, watcher) = {
            let mut inner = self.nodes.inner();
            let number = inner.moments;
            inner.moments += 1;
            (Moment { number, node: self.name.clone(), call: call.to_owned(), done }, inner.watcher.clone())
        };
        if let Some(watcher) = watcher {
            watcher(&moment);
        }
        sleep(ON_THE_WAY).await;
    }

    /// Records a call that the node does not know, and returns its exit code.
    async fn unexpected(&self, what: &str, mut own: Own) -> i32 {
        self.nodes.inner().unexpected.push(format!("{}: {what}", self.name));
        own.fail("this scripted node does not know that").await;
        127
    }

    fn edit<T>(&self, change: impl FnOnce(&mut NodeState) -> T) -> T {
        change(self.nodes.inner().states.get_mut(&self.name).expect("a node of the test"))
    }
}
