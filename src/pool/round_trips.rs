//! Round trips: how long a TCP connection to a node's sshd takes, from another node or from this machine.

use crate::error::NodeError;
use crate::transport::node::{Script, Transport};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, timeout};

const SCRIPT: &str = include_str!("../scripts/pool/round_trips.sh");
/// The text that the program prints instead of a time if there was no time to try.
const UNTRIED: &str = "?";
const PROGRAM: &str = include_str!("../scripts/pool/round_trips.py");

/// The exit code of the script on a node without Python.
pub const NO_PYTHON: i32 = 127;

/// The number of measurements by this machine, and the time that it waits each time; as in the program of the nodes.
const TRIES: usize = 2;
const LIMIT: Duration = Duration::from_secs(3);

/// A node that others connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolEndpoint {
    /// Its number.
    pub number: usize,
    /// Its host.
    pub host: String,
    /// The port of its sshd.
    pub port: u16,
}

/// Measures from a node to others, by the login itself. Returns the round trips by the number of their target; `None`:
/// it cannot connect.
///
/// # Errors
/// When the node does not answer, or has no Python.
pub async fn from_node(
    transport: &Transport,
    targets: &[PoolEndpoint],
) -> Result<BTreeMap<usize, Option<Duration>>, NodeError> {
    let line = |PoolEndpoint { number, host, port }: &PoolEndpoint| format!("{number} {host} {port}");
    let lines = targets.iter().map(line).collect::<Vec<_>>().join("\n");
    // the rest is for what has begun by then, and for the login
    let seconds = (transport.limit() * 2 / 3).as_secs_f64().to_string();
    let script = Script::new(SCRIPT).with("program", PROGRAM).with("targets", &lines).with("seconds", &seconds);
    let operation = "measure round trips";
    let answer = transport.script_as_login(&script, operation).await?;
    let answer = String::from_utf8_lossy(&answer);
    let (mut times, mut named) = (BTreeMap::new(), BTreeSet::new());
    for line in answer.lines() {
        let (number, time) = line.split_once(' ').unwrap_or_default();
        let Some(target) = targets.iter().find(|target| target.number.to_string() == number) else {
            return Err(NodeError::failed(transport.node(), operation, "its answer cannot be read"));
        };
        named.insert(target.number);
        if time != UNTRIED {
            times.insert(target.number, time.parse().ok().map(Duration::from_micros));
        }
    }
    match targets.iter().find(|target| !named.contains(&target.number)) {
        Some(missing) => {
            let message = format!("it does not mention {}", missing.host);
            Err(NodeError::failed(transport.node(), operation, message))
        }
        None => Ok(times),
    }
}

/// Measures from this machine by a login, which takes longer than a connection: for a node that only ssh reaches, as by a
/// jump host. `None`: it does not answer.
pub async fn by_login(transport: &Transport) -> Option<Duration> {
    let mut best: Option<Duration> = None;
    for _ in 0..TRIES {
        let began = Instant::now();
        if from_node(transport, &[]).await.is_ok() {
            let time = began.elapsed();
            best = Some(best.map_or(time, |best| best.min(time)));
        }
    }
    best
}

/// Measures from this machine. `None`: it cannot connect.
pub async fn from_here(target: &PoolEndpoint) -> Option<Duration> {
    let resolve = lookup_host((target.host.as_str(), target.port));
    let address = timeout(LIMIT, resolve).await.ok()?.ok()?.next()?;
    let mut best = None;
    for _ in 0..TRIES {
        let began = Instant::now();
        if let Ok(Ok(_connection)) = timeout(LIMIT, TcpStream::connect(address)).await {
            let time = began.elapsed();
            best = Some(best.map_or(time, |best: Duration| best.min(time)));
        }
    }
    best
}
