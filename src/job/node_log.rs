//! The log or the samples of a job on one node: their size, their frames, and a process that follows them.

use super::cleanup::JobNodes;
use crate::cluster::each_node::each_node;
use crate::cluster::member::Member;
use crate::cluster::operator::now;
use crate::error::{Error, NodeError};
use crate::event::{Events, Message};
use crate::inventory::Cluster;
use crate::record::Record;
use crate::record::frames::{Frame, Parser};
use crate::text::units::human;
use crate::transport::node::{Process, Script};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::timeout;

const FOLLOW: &str = concat!(include_str!("../scripts/job/directory.sh"), include_str!("../scripts/job/follow.sh"));
const READ: &str = concat!(include_str!("../scripts/job/directory.sh"), include_str!("../scripts/job/read.sh"));
const PIECE_OF: &str = concat!(include_str!("../scripts/job/directory.sh"), include_str!("../scripts/job/piece.sh"));
const SIZE: &str = concat!(include_str!("../scripts/job/directory.sh"), include_str!("../scripts/job/size.sh"));

/// The number of bytes that are read at once.
pub const PIECE: usize = 64 * 1024;

/// Number of bytes before the end of a log that was cut off that are searched first for frames that are new. If all of
/// them are, eight times as many bytes are searched.
const WINDOW: u64 = 256 << 10;

/// The time between two signs of life of a node's follower.
const PULSE: Duration = Duration::from_secs(3);

/// The most bytes of the job's record.
const MOST_OF_RECORD: u64 = 1 << 20;

const OPERATION: &str = "read the job's log";

/// A file of frames in the directory of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameFile {
    /// The output and the states of the ranks.
    Log,
    /// The usage of the ranks, the node and its GPUs (`samples.py`).
    Samples,
}

impl FrameFile {
    /// Returns its name on the node.
    pub fn name(self) -> &'static str {
        match self {
            FrameFile::Log => "log",
            FrameFile::Samples => "samples",
        }
    }
}

/// A job's log, or its samples, on one node.
#[derive(Clone)]
pub struct NodeLog {
    member: Member,
    jobs_dir: String,
    id: String,
    file: FrameFile,
    /// Set if the output of ranks is left out when the log is read.
    is_quiet: bool,
    /// The most bytes that it may take (`--log-max`).
    log_max: Option<u64>,
}

/// The part of a log that exists.
#[derive(Clone, Copy)]
pub struct LogExtent {
    /// The offset of its end.
    pub size: u64,
    /// The offset of its first byte that was not given back to the disk (`--log-max`).
    pub start: u64,
    /// The time by the node's clock, in seconds since the epoch.
    pub clock: f64,
}

/// The position up to which a log was read, and from which it is read on.
#[derive(Clone, Default)]
pub struct LogPosition {
    /// The offset.
    pub offset: u64,
    /// The bytes before the offset, as far as they are known.
    pub mark: Vec<u8>,
    /// The time of the newest frame so far.
    pub time: f64,
    /// If the log was cut off since, its size then: frames before that, up to that time, were taken before.
    pub taken: Option<u64>,
}

/// Returns the directory of a node's own files of a job, below that of all jobs.
pub fn own_directory(job: &JobNodes<'_>, member: &Member) -> String {
    // allocation.py has made a directory for each node but the first in the one that they share
    match job.shares_directory && member.node.name != job.launcher.node.name {
        true => format!("{}/nodes/{}", job.id, member.node.name),
        false => job.id.to_owned(),
    }
}

/// Returns the logs of a job. `log_max`: how many bytes each may take.
pub fn logs(job: &JobNodes<'_>, log_max: Option<u64>) -> Vec<NodeLog> {
    let jobs_dir = &job.cluster.jobs_dir;
    let log = |member: &Member| {
        let id = own_directory(job, member);
        NodeLog {
            member: member.clone(),
            jobs_dir: jobs_dir.clone(),
            id,
            file: FrameFile::Log,
            is_quiet: false,
            log_max,
        }
    };
    job.members().map(log).collect()
}

/// Returns how much of each log is there.
///
/// # Errors
/// When a node does not answer.
pub async fn extents(logs: &[NodeLog], events: &Events) -> Result<Vec<LogExtent>, Error> {
    each_node(logs.iter().collect(), events, async |log: &NodeLog| log.extent().await).await.all()
}

/// Warns of each log whose beginning is gone.
pub fn warn_of_gone(logs: &[NodeLog], extents: &[LogExtent], events: &Events) {
    for (log, extent) in logs.iter().zip(extents).filter(|(_, extent)| extent.start > 0) {
        events.warn(Message::of(log.node(), gone(extent.start)));
    }
}

/// The warning that a log begins at an offset.
pub fn gone(start: u64) -> String {
    format!("the first {} of its log were discarded (--log-max)", human(start))
}

impl NodeLog {
    /// The name of the node.
    pub fn node(&self) -> &str {
        &self.member.node.name
    }

    /// Returns the same log on all nodes of its job.
    pub fn of_nodes(&self, job: &JobNodes<'_>) -> Vec<NodeLog> {
        let same = |log: NodeLog| NodeLog { file: self.file, is_quiet: self.is_quiet, ..log };
        logs(job, self.log_max).into_iter().map(same).collect()
    }

    /// Returns the samples on the same node.
    pub fn samples(&self) -> NodeLog {
        NodeLog { file: FrameFile::Samples, log_max: None, ..self.clone() }
    }

    /// Returns the log without the output of ranks.
    pub fn without_output(&self) -> NodeLog {
        NodeLog { is_quiet: self.file == FrameFile::Log, ..self.clone() }
    }

    /// Replaces the connection to the node if that is lost.
    pub async fn reconnect(&mut self) -> Result<(), NodeError> {
        if !self.member.transport.is_connected().await {
            self.member = self.member.reconnected().await?;
        }
        Ok(())
    }

    fn script(&self, source: &'static str) -> Script {
        Script::new(source).with("jobs_dir", &self.jobs_dir).with("id", &self.id).with("file", self.file.name())
    }

    /// Returns how much of it is there.
    pub async fn extent(&self) -> Result<LogExtent, NodeError> {
        let output = self.member.transport.script(&self.script(SIZE), OPERATION).await?;
        let output = String::from_utf8_lossy(&output);
        let Some((size, blocks, block_size, clock)) = parse_extent(&output) else {
            return Err(NodeError::failed(self.node(), OPERATION, &output));
        };
        // not every file system can give back a part of a file
        let limit = self.log_max.filter(|_| size > blocks.saturating_mul(block_size));
        Ok(LogExtent { size, start: limit.map_or(0, |limit| size.saturating_sub(limit)), clock })
    }

    /// Reads the frames from `offset` to the end. Returns the offset after the last whole frame.
    pub async fn read(&self, offset: u64, take: impl AsyncFnMut(Vec<Frame>)) -> Result<u64, NodeError> {
        let transport = &self.member.transport;
        let mut parser = Parser::at(offset);
        let script = self.script(READ).with("offset", &parser.offset().to_string());
        let script = script.with("quiet", if self.is_quiet { "1" } else { "" });
        let mut process = transport.follow(&script, OPERATION).await?;
        let read = read_frames(&mut process.stdout, &mut parser, transport.limit(), take).await;
        read.map_err(|e| NodeError::failed(self.node(), OPERATION, e))?;
        // a connection that broke looks like the end of the log, except the exit code
        transport.ended(process, OPERATION).await?;
        Ok(parser.offset())
    }

    /// Reads the frames at its beginning, of at most so many bytes.
    pub async fn beginning(&self, bytes: u64) -> Result<Vec<Frame>, NodeError> {
        let script = self.script(PIECE_OF).with("offset", "0").with("length", &bytes.to_string());
        let text = self.member.transport.script(&script, OPERATION).await?;
        Ok(Parser::default().push(&text))
    }

    /// Returns where a log is read on that was read up to a position. The disk of a node that lost power may have less
    /// of it, and ranks that were started there since may have written more than is missing. What follows the position
    /// may have been discarded, too.
    pub async fn find(&self, position: LogPosition) -> Result<LogPosition, NodeError> {
        let LogExtent { size, start, .. } = self.extent().await?;
        let (length, time) = (position.mark.len(), position.time);
        if size >= position.offset {
            let marked = position.offset.saturating_sub(length as u64);
            let script = self.script(PIECE_OF).with("offset", &marked.to_string());
            let script = script.with("length", &length.to_string());
            let piece = if length == 0 { Vec::new() } else { self.member.transport.script(&script, OPERATION).await? };
            if length > 0 && piece == position.mark {
                return Ok(position);
            }
            // what was discarded reads as NULs
            let is_discarded = |(now, then): (&u8, &u8)| now == then || *now == 0 && marked < start;
            if piece.len() == length && piece.iter().zip(&position.mark).all(is_discarded) {
                return Ok(LogPosition { offset: position.offset.max(start), ..position });
            }
        }
        let mut window = WINDOW;
        loop {
            let offset = size.saturating_sub(window).max(start);
            if offset == start || self.first_time(offset).await?.is_some_and(|first| first <= time) {
                return Ok(LogPosition { offset, mark: Vec::new(), time, taken: Some(size) });
            }
            window = window.saturating_mul(8);
        }
    }

    /// Returns the time of the first frame from an offset on.
    async fn first_time(&self, offset: u64) -> Result<Option<f64>, NodeError> {
        let (transport, mut parser, mut buffer) = (&self.member.transport, Parser::at(offset), vec![0; PIECE]);
        let script = self.script(READ).with("offset", &parser.offset().to_string());
        let script = script.with("quiet", if self.is_quiet { "1" } else { "" });
        let mut process = transport.follow(&script, OPERATION).await?;
        loop {
            let bytes = transport.within(process.stdout.read(&mut buffer), OPERATION, transport.limit()).await?;
            let first = parser.push(&buffer[..bytes]).first().map(|frame| frame.time);
            if first.is_some() || bytes == 0 {
                return Ok(first);
            }
        }
    }

    /// Starts a process that writes the log from `offset` on as it grows. Also returns by how many seconds the node's
    /// clock is ahead of ours.
    pub async fn follow(&self, offset: u64) -> Result<(Process, f64), NodeError> {
        let (transport, operation) = (&self.member.transport, "follow the job's log");
        let script = self.script(FOLLOW).with("offset", &offset.to_string());
        let script = script.with("pulse", &PULSE.as_secs().to_string());
        let mut process = transport.follow(&script, operation).await?;
        let skew = transport.within(skew(&mut process), operation, transport.limit()).await?;
        Ok((process, skew))
    }
}

/// Returns a file of the directory of a job; nothing if it is not there. `most`: the bytes that it may have.
///
/// # Errors
/// The node's message, or that the file has more.
pub async fn read_file(
    member: &Member,
    cluster: &Cluster,
    id: &str,
    file: &str,
    most: u64,
) -> Result<Vec<u8>, NodeError> {
    let script = Script::new(PIECE_OF).with("jobs_dir", &cluster.jobs_dir).with("id", id).with("file", file);
    let script = script.with("offset", "0").with("length", &most.saturating_add(1).to_string());
    let operation = format!("read {file} of the job");
    let text = member.transport.script(&script, &operation).await?;
    if text.len() as u64 > most {
        return Err(NodeError::failed(&member.node.name, &operation, format!("it has more than {}", human(most))));
    }
    Ok(text)
}

/// Takes the nodes on which Slurm has started a job again, and keeps those that it had before.
///
/// # Errors
/// When the login node does not answer, or the job's record cannot be read.
pub async fn place_again(job: &mut JobNodes<'_>) -> Result<(), NodeError> {
    let text = read_file(&job.launcher, job.cluster, job.id, "job.json", MOST_OF_RECORD).await?;
    let record = Record::read(job.id, &String::from_utf8_lossy(&text))
        .map_err(|record| NodeError::failed(job.launcher.transport.node(), "read the job's record", record.reason))?;
    let shares = record.placement.shares.into_iter().map(|share| share.node);
    let mut members = shares.chain(record.earlier).map(|node| job.launcher.of_slurm(&node));
    if let Some(first) = members.next() {
        (job.others, job.launcher) = (members.collect(), first);
    }
    Ok(())
}

/// Reads what `job/size.sh` prints.
fn parse_extent(text: &str) -> Option<(u64, u64, u64, f64)> {
    let mut words = text.split_whitespace();
    let mut number = || words.next()?.parse::<u64>().ok();
    let (size, blocks, block_size) = (number()?, number()?, number()?);
    let clock = words.next()?.parse().ok().filter(|clock: &f64| clock.is_finite())?;
    words.next().is_none().then_some((size, blocks, block_size, clock))
}

/// Reads frames to the end. Reads the next chunk only after `take` has handled the previous one.
async fn read_frames(
    from: &mut (impl AsyncRead + Unpin),
    parser: &mut Parser,
    limit: Duration,
    mut take: impl AsyncFnMut(Vec<Frame>),
) -> io::Result<()> {
    let mut buffer = vec![0; PIECE];
    loop {
        let late = |_| io::Error::other(format!("no data for {} s", limit.as_secs()));
        let frames = match timeout(limit, from.read(&mut buffer)).await.map_err(late)?? {
            0 => return Ok(()),
            bytes => parser.push(&buffer[..bytes]),
        };
        if !frames.is_empty() {
            take(frames).await;
        }
    }
}

/// Reads the first line of a follower, the time by its clock, when it arrives: what starting the process took does not
/// count. It is read byte by byte, so that nothing of the log is taken.
async fn skew(process: &mut Process) -> io::Result<f64> {
    let mut line = Vec::new();
    let mut byte = [0];
    while process.stdout.read(&mut byte).await? == 1 && byte[0] != b'\n' && line.len() < 60 {
        line.push(byte[0]);
    }
    let time = String::from_utf8_lossy(&line).parse().ok().filter(|time: &f64| time.is_finite());
    time.map(|time| time - now()).ok_or_else(|| io::Error::other("the process that follows the log did not start"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::io::AsyncWriteExt;
    use tokio::sync::mpsc;

    #[test]
    fn a_size_comes_with_the_time_of_the_node() {
        assert_eq!(parse_extent("7 8 512 1700000000.5\n"), Some((7, 8, 512, 1_700_000_000.5)));
        for bad in ["", "7 8 512", "7 8 512 nan", "7 8 512 inf", "7 -8 512 1.0", "7 8 512 1.0 x", "x"] {
            assert_eq!(parse_extent(bad), None, "{bad}");
        }
    }

    #[tokio::test]
    async fn a_log_stays_on_its_node_until_it_can_be_shown() {
        const LOG: usize = 32 << 20;
        const WAITING: usize = 8;
        let line: &[u8] = &[b"1.0 0 o ".as_slice(), &[b'x'; 1015], b"\n"].concat();
        let (mut node, mut here) = tokio::io::duplex(PIECE);
        let written = AtomicUsize::new(0);
        let writing = async {
            for _ in 0..LOG / line.len() {
                node.write_all(line).await.unwrap();
                written.fetch_add(line.len(), Ordering::Relaxed);
            }
            drop(node);
        };
        let (sender, mut receiver) = mpsc::channel(WAITING);
        let reading = async move {
            let take = async |frames: Vec<Frame>| sender.send(frames).await.unwrap();
            read_frames(&mut here, &mut Parser::default(), Duration::from_secs(600), take).await.unwrap();
        };
        let showing = async {
            let mut shown = 0;
            while let Some(frames) = receiver.recv().await {
                shown += frames.len() * line.len();
                // all that can be on its way: in the stream, in the parser, in the reader's hand, and waiting
                assert!(written.load(Ordering::Relaxed) <= shown + (WAITING + 4) * PIECE, "{shown}");
                tokio::task::yield_now().await;
            }
            shown
        };
        let ((), (), shown) = tokio::join!(writing, reading, showing);
        assert_eq!(shown, LOG);
    }

    #[tokio::test]
    async fn a_node_that_sends_nothing_is_not_waited_for_for_ever() {
        let (_node, mut here) = tokio::io::duplex(PIECE);
        let read = read_frames(&mut here, &mut Parser::default(), Duration::from_millis(20), async |_| ()).await;
        assert!(read.unwrap_err().to_string().contains("no data for"));
    }
}
