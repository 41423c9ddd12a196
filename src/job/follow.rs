//! The logs of all nodes of a running job, followed in one stream.

use super::cleanup::JobNodes;
use super::node_log::{LogPosition, NodeLog, PIECE, gone, place_again};
use crate::cluster::each_node::{NodeResults, each_node, for_each_node};
use crate::cluster::operator::now;
use crate::error::{Error, NodeError};
use crate::event::{Events, Message};
use crate::record::frames::{Frame, FrameKind, Parser};
use crate::transport::node::Process;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use std::cell::RefCell;
use std::pin::Pin;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

/// Number of queued chunks. If the terminal cannot keep up, the rest stays in the nodes' logs.
const WAITING: usize = 64;

/// Time limit for a container to exit after the job supervisor has reported that it is done.
const EXIT_GRACE: Duration = Duration::from_secs(15);

/// Time without a sign of life after which a node counts as not answering.
const SILENCE: Duration = Duration::from_secs(10);

/// The time before the first attempt to follow a log again. Each further one waits twice as long, up to
/// [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_secs(5);

/// The longest time between two such attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Seconds by which a rank that starts is earlier than a frame before it only if the node's clock was set back. Frames
/// of several ranks are not quite in order.
const SET_BACK: f64 = 1.0;

/// A chunk of the log with this index.
type Update = (usize, Chunk);

enum Chunk {
    /// The bytes that follow in the log.
    Bytes(Vec<u8>),
    /// A warning about the connection to its node.
    Warning(String),
    /// The connection is lost.
    Lost,
}

/// The log with this index on a node that was lost.
struct LostLog {
    i: usize,
    log: NodeLog,
    /// The position up to which it was read.
    position: LogPosition,
    /// The time before the first attempt.
    pause: Duration,
}

/// The log with this index on a node that was lost and has answered again.
struct Reconnected {
    i: usize,
    log: NodeLog,
    /// The new follower.
    process: Process,
    skew: f64,
    /// The position at which the follower begins.
    position: LogPosition,
}

/// The log of one node.
struct FollowedLog {
    log: NodeLog,
    /// Seconds by which the node's clock is ahead of ours.
    skew: f64,
    parser: Parser,
    /// The time of the newest frame.
    time: f64,
    /// The offset up to which frames up to that time are passed over, because they were taken before the log was cut
    /// off.
    taken: Option<u64>,
    /// The time of the newest one of these.
    passed: f64,
    /// Set while it is not followed.
    is_lost: bool,
    /// Set once any data has arrived.
    heard: bool,
    /// Number of times that the connection was lost since data arrived.
    losses: u32,
}

/// Follows the logs of all nodes.
pub struct Follow<'a> {
    events: &'a Events,
    logs: Vec<FollowedLog>,
    /// The time by which the launcher's container should have exited, after the job supervisor reported that it has
    /// nothing more to do.
    exit_by: Option<Instant>,
    sender: Sender<Update>,
    receiver: Receiver<Update>,
    tasks: JoinSet<()>,
    /// The attempts to follow logs again whose connections were lost.
    attempts: FuturesUnordered<Pin<Box<dyn Future<Output = Reconnected> + Send>>>,
}

impl FollowedLog {
    fn new(log: NodeLog, skew: f64, parser: Parser) -> FollowedLog {
        let (time, passed) = (f64::NEG_INFINITY, f64::NEG_INFINITY);
        FollowedLog { log, skew, parser, time, taken: None, passed, is_lost: false, heard: false, losses: 0 }
    }

    /// Returns the position up to which it was read.
    fn position(&self) -> LogPosition {
        let (offset, mark) = (self.parser.offset(), self.parser.mark().to_vec());
        LogPosition { offset, mark, time: self.time, taken: self.taken }
    }

    /// Reads it on from a position, and warns of what is gone.
    fn read_on(&mut self, position: &LogPosition, events: &Events) {
        let warn = |warning: &str| events.warn(Message::of(self.log.node(), warning));
        if position.taken != self.taken {
            warn("the last lines of its log had not reached its disk, and are lost");
        } else if position.offset > self.parser.offset() {
            warn(&gone(position.offset));
        }
        (self.parser, self.taken, self.is_lost) = (Parser::at(position.offset), position.taken, false);
        self.passed = f64::NEG_INFINITY;
    }

    /// Takes the bytes that follow, and returns the frames in them that were not taken before.
    fn push(&mut self, bytes: &[u8]) -> Vec<Frame> {
        let known = self.taken.map_or(0, |end| end.saturating_sub(self.parser.end()));
        let (before, after) = bytes.split_at(bytes.len().min(usize::try_from(known).unwrap_or(usize::MAX)));
        let mut frames = self.parser.push(before);
        frames.retain(|frame| self.is_new(frame));
        if !after.is_empty() {
            self.taken = None;
            let more = self.parser.push(after);
            frames.extend(more.into_iter().filter(|frame| self.is_new(frame)));
        }
        frames
    }

    /// Returns whether a frame was not taken before.
    fn is_new(&mut self, frame: &Frame) -> bool {
        let has_restarted = frame.kind == FrameKind::Started && frame.time < self.passed - SET_BACK;
        if frame.time > self.time || has_restarted {
            self.taken = None;
        }
        self.passed = self.passed.max(frame.time);
        self.time = self.time.max(frame.time);
        self.taken.is_none()
    }
}

impl<'a> Follow<'a> {
    /// Follows each log from an offset on.
    ///
    /// # Errors
    /// When a node does not answer.
    pub async fn start(logs: Vec<NodeLog>, offsets: Vec<u64>, events: &'a Events) -> Result<Follow<'a>, Error> {
        let (follow, failed) = Follow::start_where_possible(logs, offsets, events).await;
        NodeResults { ok: Vec::<()>::new(), failed }.all().map(|_| follow)
    }

    /// Follows the logs of the nodes that answer, as [`start`](Self::start) does. Also returns the failures of the
    /// others, whose logs are left out.
    pub async fn start_where_possible(
        logs: Vec<NodeLog>,
        offsets: Vec<u64>,
        events: &'a Events,
    ) -> (Follow<'a>, Vec<NodeError>) {
        let NodeResults { ok: started, failed } =
            each_node(logs.into_iter().zip(offsets).collect(), events, async |(log, offset): (NodeLog, u64)| {
                let parser = Parser::at(offset);
                let (process, skew) = log.follow(parser.offset()).await?;
                Ok((process, FollowedLog::new(log, skew, parser)))
            })
            .await;
        let (sender, receiver) = mpsc::channel(WAITING);
        let (mut tasks, mut logs) = (JoinSet::new(), Vec::new());
        for (i, (process, followed)) in started.into_iter().enumerate() {
            tasks.spawn(forward(i, process, sender.clone()));
            logs.push(followed);
        }
        let attempts = FuturesUnordered::new();
        (Follow { events, logs, exit_by: None, sender, receiver, tasks, attempts }, failed)
    }

    /// Follows the logs of the nodes on which Slurm has started the job again, from their beginning on, and those that
    /// are followed where they are now: that of the first node is in the job's directory itself.
    pub async fn follow_requeued(&mut self, job: &mut JobNodes<'_>) {
        let Some(first) = self.logs.first().map(|followed| followed.log.clone()) else { return };
        if let Err(error) = place_again(job).await {
            return self.events.warn(error);
        }
        for log in first.of_nodes(job) {
            if let Some(followed) = self.logs.iter_mut().find(|followed| followed.log.node() == log.node()) {
                followed.log = log;
                continue;
            }
            match log.follow(0).await {
                Ok((process, skew)) => {
                    self.tasks.spawn(forward(self.logs.len(), process, self.sender.clone()));
                    self.logs.push(FollowedLog::new(log, skew, Parser::at(0)));
                }
                Err(error) => self.events.warn(error),
            }
        }
    }

    /// Waits for what comes next, and hands on its frames, each with its node and how far that node's clock is ahead of
    /// ours.
    pub async fn next(&mut self, take: &mut impl FnMut(&str, f64, Frame)) {
        let (i, chunk) = tokio::select! {
            Some(update) = self.receiver.recv() => update,
            Some(reconnected) = self.attempts.next() => return self.resume(reconnected),
        };
        match chunk {
            Chunk::Bytes(bytes) => self.push(i, &bytes, take),
            Chunk::Warning(warning) => self.warn(i, &warning),
            Chunk::Lost => {
                self.warn(
                    i,
                    "lost the connection that follows its log; reading continues when the node answers again, or when \
                     the job ends",
                );
                let followed = &mut self.logs[i];
                let pause = LONGEST_PAUSE.min(PAUSE * 2_u32.saturating_pow(followed.losses));
                (followed.losses, followed.is_lost) = (followed.losses.saturating_add(1), true);
                let lost = LostLog { i, log: followed.log.clone(), position: followed.position(), pause };
                self.attempts.push(Box::pin(reconnect(lost, self.sender.clone())));
            }
        }
        self.events.throttle().await;
    }

    fn resume(&mut self, Reconnected { i, log, process, skew, position }: Reconnected) {
        self.warn(i, "its log is followed again");
        let followed = &mut self.logs[i];
        (followed.log, followed.skew) = (log, skew);
        followed.read_on(&position, self.events);
        self.tasks.spawn(forward(i, process, self.sender.clone()));
    }

    fn warn(&self, i: usize, warning: &str) {
        self.events.warn(Message::of(self.logs[i].log.node(), warning));
    }

    fn push(&mut self, i: usize, bytes: &[u8], take: &mut impl FnMut(&str, f64, Frame)) {
        let followed = &mut self.logs[i];
        (followed.heard, followed.losses) = (true, 0);
        for frame in followed.push(bytes) {
            if frame.kind == FrameKind::Over {
                self.exit_by = Some(Instant::now() + EXIT_GRACE);
            }
            take(followed.log.node(), followed.skew, frame);
        }
    }

    /// Waits until the launcher's container should have ended, some time after the job supervisor has. A rank that
    /// waits in the kernel keeps it from ending.
    pub fn overdue(&self) -> impl Future<Output = ()> + use<> {
        at(self.exit_by)
    }

    /// Returns the nodes whose ranks have written nothing yet, not even that they started.
    pub fn silent(&self) -> Vec<String> {
        self.logs.iter().filter(|log| !log.heard).map(|log| log.log.node().to_owned()).collect()
    }

    /// Ends the followers, then reads what the logs have beyond what came from them, except for those of silent nodes.
    pub async fn drain(&mut self, silent: &[String], take: &mut impl FnMut(&str, f64, Frame)) {
        self.tasks.shutdown().await;
        self.attempts.clear();
        while let Ok((i, chunk)) = self.receiver.try_recv() {
            if let Chunk::Bytes(bytes) = chunk {
                self.push(i, &bytes, take);
                self.events.throttle().await;
            }
        }
        let is_answering = |log: &&mut FollowedLog| silent.iter().all(|node| node != log.log.node());
        let rests = self.logs.iter_mut().filter(is_answering).collect();
        let (take, events) = (RefCell::new(take), self.events);
        let ends = for_each_node(rests, async |followed: &mut FollowedLog| {
            let mut log = followed.log.clone();
            log.reconnect().await?;
            if followed.is_lost {
                followed.read_on(&log.find(followed.position()).await?, events);
            }
            let offset = followed.parser.offset();
            let take_all = async |mut frames: Vec<Frame>| {
                frames.retain(|frame| followed.is_new(frame));
                frames.into_iter().for_each(|frame| take.borrow_mut()(log.node(), followed.skew, frame));
                events.throttle().await;
            };
            log.read(offset, take_all).await
        })
        .await;
        ends.into_iter().filter_map(Result::err).for_each(|error| self.events.warn(error));
    }
}

/// Returns the instant of a time in seconds since the epoch; now, if it is past or beyond what can be waited for.
pub fn instant(time: f64) -> Instant {
    let (begun, wait) = (Instant::now(), Duration::try_from_secs_f64(time - now()).unwrap_or_default());
    begun.checked_add(wait).unwrap_or(begun)
}

/// Waits until a time; forever if there is none.
pub async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Forwards the bytes of a follower until it ends, and reports when its node stops answering or answers again.
async fn forward(i: usize, mut process: Process, sender: Sender<Update>) {
    let (mut buffer, mut pulse) = (vec![0; PIECE], [0; 64]);
    let (mut is_silent, mut has_pulse) = (false, true);
    loop {
        let chunk = tokio::select! {
            // the time is checked last: data that arrived while the terminal blocked counts
            biased;
            read = process.stdout.read(&mut buffer) => match read {
                Ok(bytes @ 1..) => Chunk::Bytes(buffer[..bytes].to_vec()),
                _ => Chunk::Lost,
            },
            beat = process.stderr.read(&mut pulse), if has_pulse => {
                has_pulse = matches!(beat, Ok(1..));
                if !has_pulse || !std::mem::take(&mut is_silent) {
                    continue;
                }
                Chunk::Warning("the node answers again".to_owned())
            }
            () = sleep(SILENCE), if has_pulse && !is_silent => {
                is_silent = true;
                Chunk::Warning(format!("no answer for {} s", SILENCE.as_secs()))
            }
        };
        let is_over = matches!(chunk, Chunk::Lost);
        if sender.send((i, chunk)).await.is_err() || is_over {
            return;
        }
    }
}

/// Follows a log again from its position on, as soon as its node answers. Sends why the node cannot be reached, as
/// often as that changes.
async fn reconnect(lost: LostLog, sender: Sender<Update>) -> Reconnected {
    let LostLog { i, mut log, position, mut pause } = lost;
    let mut reported = String::new();
    loop {
        sleep(pause).await;
        let connecting = async {
            log.reconnect().await?;
            let position = log.find(position.clone()).await?;
            let (process, skew) = log.follow(Parser::at(position.offset).offset()).await?;
            Ok::<_, NodeError>((process, skew, position))
        };
        match connecting.await {
            Ok((process, skew, position)) => return Reconnected { i, log, process, skew, position },
            Err(error) if error.message != reported => {
                reported.clone_from(&error.message);
                let _ =
                    sender.send((i, Chunk::Warning(format!("cannot {}: {}", error.operation, error.message)))).await;
            }
            Err(_) => {}
        }
        pause = LONGEST_PAUSE.min(pause * 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::member::Member;
    use crate::inventory::Inventory;
    use crate::job::node_log::logs;
    use crate::launch::placement::{Placement, Share};
    use crate::record::Record;
    use crate::transport::node::scripted::Nodes;
    use crate::transport::node::{Transport, TransportKind};
    use std::sync::Arc;

    #[tokio::test(start_paused = true)]
    async fn a_job_that_slurm_starts_again_is_followed_on_its_new_nodes_and_to_the_end_on_the_old_ones() {
        let nodes = Nodes::new(&["login"]);
        let Inventory { cluster, nodes: mut hosts, .. } = Inventory::local("login", "test/horovod:1");
        let kind = TransportKind::Scripted(nodes.clone());
        let transport = Arc::new(Transport::open_as_login(&cluster, &hosts[0], kind).await.unwrap());
        let login = Member::new(hosts.remove(0), transport);
        let put = |directory: &str, lines: &[&str]| {
            let text: String = lines.iter().map(|line| format!("1.000000 0 o {line}\n")).collect();
            nodes.edit("login", |state| state.directories.entry(directory.into()).or_default().log = text);
        };
        put("j1", &["a, first"]);
        put("j1/nodes/b", &["b, first"]);
        let (launcher, others) = (login.of_slurm("a"), vec![login.of_slurm("b")]);
        let mut job = JobNodes { cluster: &cluster, id: "j1", launcher, others, shares_directory: true };
        let (events, _received) = Events::channel();
        let mut follow = Follow::start(logs(&job, None), vec![0, 0], &events).await.unwrap();

        // the log of the first node has its directory now (allocation.py)
        put("j1", &["c"]);
        put("j1/nodes/a", &["a, first", "a, second"]);
        let share = |node: &str| Share { node: node.into(), ranks: 1, ..Share::default() };
        let placement = Placement { shares: vec![share("c"), share("a")], ..Placement::default() };
        let record =
            Record { id: "j1".into(), name: "x".into(), placement, earlier: vec!["b".into()], ..Record::default() };
        let text = serde_json::to_string(&record).unwrap();
        nodes.edit("login", |state| {
            state.directories.entry("j1".into()).or_default().files.insert("job.json".into(), text);
        });
        follow.follow_requeued(&mut job).await;
        assert_eq!(job.members().map(|member| member.node.name.as_str()).collect::<Vec<_>>(), ["c", "a", "b"]);
        let mut lines = Vec::new();
        let mut take = |node: &str, _skew: f64, frame: Frame| {
            if let FrameKind::Stdout(line) = frame.kind {
                lines.push(format!("{node}: {}", String::from_utf8_lossy(&line)));
            }
        };
        follow.drain(&[], &mut take).await;
        lines.sort();
        assert_eq!(lines, ["a: a, first", "a: a, second", "b: b, first", "c: c"]);
    }
}
