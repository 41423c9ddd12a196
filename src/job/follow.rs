//! The logs of all nodes of a running job, followed in one stream.

use super::node_log::{NodeLog, PIECE};
use crate::cluster::each_node::{each_node, for_each_node};
use crate::cluster::operator::now;
use crate::error::{Error, NodeError};
use crate::event::{Events, Message};
use crate::record::frames::{Frame, FrameKind, Parser};
use crate::text::units::human;
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

/// The time before the first attempt to follow a log again. Each further one waits twice as long, up to [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_secs(5);

/// The longest time between two such attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// What comes from the log with this index.
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
    /// Where it is to be followed again.
    offset: u64,
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
    /// Where it begins.
    offset: u64,
}

/// The log of one node.
struct FollowedLog {
    log: NodeLog,
    /// Seconds by which the node's clock is ahead of ours.
    skew: f64,
    parser: Parser,
    /// Whether any data has arrived.
    heard: bool,
    /// How often the connection was lost since data arrived.
    losses: u32,
}

/// Follows the logs of all nodes.
pub struct Follow<'a> {
    events: &'a Events,
    logs: Vec<FollowedLog>,
    /// When the launcher's container should have exited, after the job supervisor reported that it has nothing more to do.
    exit_by: Option<Instant>,
    sender: Sender<Update>,
    receiver: Receiver<Update>,
    tasks: JoinSet<()>,
    /// The attempts to follow logs again whose connections were lost.
    attempts: FuturesUnordered<Pin<Box<dyn Future<Output = Reconnected> + Send>>>,
}

impl<'a> Follow<'a> {
    /// Follows each log from an offset on.
    ///
    /// # Errors
    /// When a node does not answer.
    pub async fn start(logs: Vec<NodeLog>, offsets: Vec<u64>, events: &'a Events) -> Result<Follow<'a>, Error> {
        let started =
            each_node(logs.into_iter().zip(offsets).collect(), events, async |(log, offset): (NodeLog, u64)| {
                let parser = Parser::at(offset);
                let (process, skew) = log.follow(parser.offset()).await?;
                Ok((process, FollowedLog { log, skew, parser, heard: false, losses: 0 }))
            })
            .await;
        let (sender, receiver) = mpsc::channel(WAITING);
        let (mut tasks, mut logs) = (JoinSet::new(), Vec::new());
        for (i, (process, followed)) in started.all()?.into_iter().enumerate() {
            tasks.spawn(forward(i, process, sender.clone()));
            logs.push(followed);
        }
        Ok(Follow { events, logs, exit_by: None, sender, receiver, tasks, attempts: FuturesUnordered::new() })
    }

    /// Waits for what comes next, and hands on its frames, each with its node and how far that node's clock is ahead of ours.
    pub async fn next(&mut self, take: &mut impl FnMut(&str, f64, Frame)) {
        let (i, chunk) = tokio::select! {
            Some(update) = self.receiver.recv() => update,
            Some(reconnected) = self.attempts.next() => return self.resume(reconnected),
        };
        match chunk {
            Chunk::Bytes(bytes) => self.push(i, &bytes, take),
            Chunk::Warning(warning) => self.warn(i, &warning),
            Chunk::Lost => {
                self.warn(i, "lost the connection that follows its log; it is read on when the node answers again, or the job ends");
                let FollowedLog { log, parser, losses, .. } = &mut self.logs[i];
                let pause = LONGEST_PAUSE.min(PAUSE * 2_u32.saturating_pow(*losses));
                *losses = losses.saturating_add(1);
                let lost = LostLog { i, log: log.clone(), offset: parser.offset(), pause };
                self.attempts.push(Box::pin(reconnect(lost, self.sender.clone())));
            }
        }
        self.events.throttle().await;
    }

    fn resume(&mut self, Reconnected { i, log, process, skew, offset }: Reconnected) {
        self.warn(i, "its log is followed again");
        let followed = &mut self.logs[i];
        let gone = followed.parser.offset().saturating_sub(offset);
        (followed.log, followed.skew, followed.parser) = (log, skew, Parser::at(offset));
        if gone > 0 {
            self.warn(i, &format!("the last {} of its log were not on its disk yet, and are gone there", human(gone)));
        }
        self.tasks.spawn(forward(i, process, self.sender.clone()));
    }

    fn warn(&self, i: usize, warning: &str) {
        self.events.warn(Message::of(self.logs[i].log.node(), warning));
    }

    fn push(&mut self, i: usize, bytes: &[u8], take: &mut impl FnMut(&str, f64, Frame)) {
        let FollowedLog { log, skew, parser, heard, losses } = &mut self.logs[i];
        (*heard, *losses) = (true, 0);
        for frame in parser.push(bytes) {
            if frame.kind == FrameKind::Over {
                self.exit_by = Some(Instant::now() + EXIT_GRACE);
            }
            take(log.node(), *skew, frame);
        }
    }

    /// Waits until the launcher's container should have ended, some time after the job supervisor has. A rank that waits in the kernel
    /// keeps it from ending.
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
        let is_answering = |log: &&FollowedLog| silent.iter().all(|node| node != log.log.node());
        let rests = self.logs.iter().filter(is_answering).map(|log| (log, log.parser.offset())).collect();
        let take = RefCell::new(take);
        let ends = for_each_node(rests, async |(followed, offset): (&FollowedLog, u64)| {
            let FollowedLog { log, skew, .. } = followed;
            let mut log = log.clone();
            log.reconnect().await?;
            let take_all = async |frames: Vec<Frame>| {
                frames.into_iter().for_each(|frame| take.borrow_mut()(log.node(), *skew, frame));
                self.events.throttle().await;
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

/// Follows a log again from an offset on, as soon as its node answers; from its end if a node that lost power has less of it. Sends why
/// the node cannot be reached, as often as that changes.
async fn reconnect(lost: LostLog, sender: Sender<Update>) -> Reconnected {
    let LostLog { i, mut log, offset, mut pause } = lost;
    let mut reported = String::new();
    loop {
        sleep(pause).await;
        let connecting = async {
            log.reconnect().await?;
            let offset = offset.min(log.extent(None).await?.size);
            let (process, skew) = log.follow(Parser::at(offset).offset()).await?;
            Ok::<_, NodeError>((process, skew, offset))
        };
        match connecting.await {
            Ok((process, skew, offset)) => return Reconnected { i, log, process, skew, offset },
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
