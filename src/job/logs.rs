//! What the ranks of a job have said, and say.

use super::follow::{Follow, PIECE, READ, log_script, piece};
use super::request::Show;
use crate::cancel::signalled;
use crate::cluster::nodes::{Member, all, for_each_node};
use crate::error::{Error, NodeError};
use crate::event::{Event, Events, Stream};
use crate::inventory::Cluster;
use crate::job::frames::{Frame, Kind, Parser};
use crate::job::list::stamp;
use crate::job::log_order::{Filter, Merge};
use crate::job::restart::Restart;
use crate::job::tails::Tails;
use crate::runtime::Runtime;
use crate::text::units::human;
use crate::transport::node::Script;
use std::collections::VecDeque;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::sync::watch;
use tokio::task::JoinSet;

const SIZE: &str = include_str!("../scripts/job_size.sh");

/// Bytes that are read first of the end of a log whose last lines are wanted; where they do not have these lines, eight times as
/// many.
const END: u64 = 256 << 10;

/// Which part of a job's logs is wanted.
#[derive(Debug, Clone, Copy)]
pub struct Reading<'a> {
    /// Which lines.
    pub filter: &'a Filter,
    /// Only so many, from the end.
    pub tail: Option<usize>,
    /// Bytes that each node's log may take: what was before its last ones is no longer there.
    pub log_max: Option<u64>,
}

/// Tells what all nodes' logs hold by now, in the order of time, the last `tail` lines where that is given; and how many bytes of
/// each that was; `tails` takes note of all. Only what the terminal has not taken yet is held in memory.
///
/// # Errors
/// When a node does not answer.
pub async fn history(
    cluster: &Cluster,
    id: &str,
    members: &[Member],
    wanted: Reading<'_>,
    tails: &mut Tails,
    events: &Events,
) -> Result<Vec<u64>, Error> {
    let mut tasks = JoinSet::new();
    let mut logs: Vec<Receiver<Vec<Frame>>> = Vec::new();
    for (i, (member, (size, start))) in
        members.iter().zip(all(events, extents(cluster, id, members, wanted.log_max).await)?).enumerate()
    {
        let (sender, receiver) = mpsc::channel(4);
        if wanted.tail.is_none() {
            tell_gone(member, start, events);
        }
        let log = Log {
            member: member.clone(),
            filter: wanted.filter.clone(),
            jobs_dir: cluster.jobs_dir.clone(),
            id: id.to_owned(),
            start,
            size,
        };
        logs.push(receiver);
        let tail = wanted.tail;
        tasks.spawn(async move {
            let end = match tail {
                Some(lines) => log.read_end(lines, &sender).await?,
                None => log.read(start, &mut Sink::All(&sender)).await?,
            };
            Ok::<_, NodeError>((i, end))
        });
    }
    let mut merge = Merge::of(members.len());
    let mut last = VecDeque::new();
    loop {
        while let Some(i) = merge.wants() {
            match logs[i].recv().await {
                Some(frames) => merge.push(i, frames),
                None => merge.close(i),
            }
        }
        let Some((i, frame)) = merge.take() else { break };
        tails.see(&frame);
        match wanted.tail {
            Some(0) => {}
            Some(lines) => {
                if last.len() == lines {
                    last.pop_front();
                }
                last.push_back((i, frame));
            }
            None => {
                tell(&members[i], frame, events);
                events.throttle().await;
            }
        }
    }
    for (i, frame) in last {
        tell(&members[i], frame, events);
        events.throttle().await;
    }
    let mut offsets = vec![0; members.len()];
    while let Some(ended) = tasks.join_next().await {
        let (i, bytes) = ended.map_err(|e| Error::Here(format!("cannot read the logs: {e}")))??;
        offsets[i] = bytes;
    }
    Ok(offsets)
}

const TRIED: &str = "read the job's log";

/// Where the frames of a log go.
enum Sink<'a> {
    /// All of them on.
    All(&'a Sender<Vec<Frame>>),
    /// So many of the last are kept.
    Last(usize, VecDeque<Frame>),
}

impl Sink<'_> {
    /// Takes frames; false if no more are wanted.
    async fn take(&mut self, frames: Vec<Frame>) -> bool {
        match self {
            Sink::All(sender) => sender.send(frames).await.is_ok(),
            Sink::Last(most, last) => {
                last.extend(frames);
                last.drain(..last.len().saturating_sub(*most));
                true
            }
        }
    }
}

/// How many bytes each node's log has, and which is the first of them that is still there.
async fn extents(
    cluster: &Cluster,
    id: &str,
    members: &[Member],
    log_max: Option<u64>,
) -> Vec<Result<(u64, u64), NodeError>> {
    for_each_node(members.iter().collect(), async |member: &Member| {
        let said = member.transport.script(&log_script(SIZE, cluster, id, 0), TRIED).await?;
        let said = String::from_utf8_lossy(&said);
        let mut numbers = said.split_whitespace().map_while(|word| word.parse::<u64>().ok());
        let (Some(size), Some(blocks), Some(of)) = (numbers.next(), numbers.next(), numbers.next()) else {
            return Err(NodeError::failed(&member.node.name, TRIED, &said));
        };
        // where the file system punches no holes all of it is there
        let limit = log_max.filter(|_| size > blocks * of);
        Ok((size, limit.map_or(0, |limit| size.saturating_sub(limit))))
    })
    .await
}

/// Returns the first byte of each node's log that is still there, with a warning where earlier ones are gone.
///
/// # Errors
/// When a node does not answer.
pub(super) async fn starts(
    cluster: &Cluster,
    id: &str,
    members: &[Member],
    log_max: Option<u64>,
    events: &Events,
) -> Result<Vec<u64>, Error> {
    if log_max.is_none() {
        return Ok(vec![0; members.len()]);
    }
    let extents = all(events, extents(cluster, id, members, log_max).await)?;
    for (member, (_, start)) in members.iter().zip(&extents) {
        tell_gone(member, *start, events);
    }
    Ok(extents.into_iter().map(|(_, start)| start).collect())
}

fn tell_gone(member: &Member, bytes: u64, events: &Events) {
    if bytes > 0 {
        let node = &member.node.name;
        events.send(Event::Warning(format!("{node}: the first {} of its log are gone (--log-max)", human(bytes))));
    }
}

/// A job's log on one node.
struct Log {
    member: Member,
    filter: Filter,
    jobs_dir: String,
    id: String,
    /// Its first byte that is still there.
    start: u64,
    /// How many bytes it had when it was looked at.
    size: u64,
}

impl Log {
    /// Reads the frames that are wanted from a byte to the end. Gives the byte behind the last whole frame.
    async fn read(&self, from: u64, sink: &mut Sink<'_>) -> Result<u64, NodeError> {
        let link = &self.member.transport;
        // one byte earlier: up to the next line end it is the rest of a frame, which could look like one
        let first = from.saturating_sub(1);
        let script =
            Script::new(READ).with("jobs_dir", &self.jobs_dir).with("id", &self.id).with("offset", &first.to_string());
        let mut process = link.follow(&script, TRIED).await?;
        let (mut parser, mut buffer, mut bytes) = (Parser::default(), vec![0; PIECE], first);
        let mut is_cut = from > 0;
        loop {
            let read = piece(&mut process.stdout, &mut buffer, link.limit()).await;
            let read = read.map_err(|e| NodeError::failed(&self.member.node.name, TRIED, e))?;
            if read == 0 {
                break;
            }
            bytes += read as u64;
            let mut piece = &buffer[..read];
            if is_cut {
                let end = piece.iter().position(|byte| *byte == b'\n');
                is_cut = end.is_none();
                piece = end.map_or(&[], |end| &piece[end + 1..]);
            }
            let frames = parser.push(piece).into_iter().filter(|f| self.filter.takes(f));
            let frames: Vec<Frame> = frames.collect();
            if !frames.is_empty() && !sink.take(frames).await {
                break;
            }
        }
        // a connection that broke looks like the end of the log, but for the exit code
        link.ended(process, TRIED).await?;
        Ok(bytes - parser.waiting() as u64)
    }

    /// The last lines that are wanted, read from the end of the log.
    async fn read_end(&self, lines: usize, sender: &Sender<Vec<Frame>>) -> Result<u64, NodeError> {
        let mut window = END;
        loop {
            let from = self.size.saturating_sub(window).max(self.start);
            let mut sink = Sink::Last(lines, VecDeque::new());
            let end = self.read(from, &mut sink).await?;
            let Sink::Last(_, last) = sink else { return Ok(end) };
            if last.len() >= lines || from <= self.start {
                let _ = sender.send(last.into()).await;
                return Ok(end);
            }
            window *= 8;
        }
    }
}

/// Tells what comes after that, until the launcher's container has ended.
///
/// # Errors
/// When the way to the launcher's node breaks; a signal.
pub async fn follow(
    cluster: &Cluster,
    id: &str,
    (members, offsets): (&[Member], Vec<u64>),
    (engine, container): (&Runtime, &str),
    filter: &Filter,
    events: &Events,
    cancel: &mut watch::Receiver<Option<u8>>,
) -> Result<(), Error> {
    let show = Show { output: false, launcher: false };
    let mut follow = Follow::start(cluster, id, (members, offsets), show, events).await?;
    let mut on_frame = |node: &str, frame: &Frame| {
        if let Some(member) = members.iter().find(|m| m.node.name == node).filter(|_| filter.takes(frame)) {
            tell(member, frame.clone(), events);
        }
    };
    let mut ended = std::pin::pin!(engine.wait(container));
    let mut signal = std::pin::pin!(signalled(cancel));
    loop {
        tokio::select! {
            code = &mut ended => { code?; break }
            () = follow.overdue() => break,
            number = &mut signal => return Err(Error::Signal(number)),
            () = follow.next(&mut on_frame) => {}
        }
    }
    follow.drain(cluster, id, members, &mut on_frame).await;
    Ok(())
}

fn tell(member: &Member, frame: Frame, events: &Events) {
    let (stream, line) = match frame.kind {
        Kind::Stdout(line) => (Stream::Stdout, line),
        Kind::Stderr(line) => (Stream::Stderr, line),
        Kind::Restart(event) => {
            let text = format!("{}: {}", stamp(frame.time), Restart::message(&event));
            return events.send(Event::Restart { text });
        }
        _ => return,
    };
    events.send(Event::Output { rank: frame.rank, node: member.node.name.clone(), stream, line });
}
