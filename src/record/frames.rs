//! The log that the rank supervisors write on each node (`src/scripts/programs/frames.py`), one frame a line: `TIME
//! RANK KIND TEXT\n`.
//!
//! One append-only file per node holds the output of all its ranks. It can be followed with `tail`, can be read again
//! from any byte, and records how each rank ended, so that the launcher's own output and exit code (always 1 under
//! Gloo) need not be trusted.

use super::HungRank;
use super::samples::Sample;
pub use crate::model::root_cause::Idle;
use crate::model::stack::RankStack;
use crate::model::start_fault::StartFailure;

/// The content of a frame.
#[derive(Debug, Clone, PartialEq)]
pub enum FrameKind {
    /// A line of the rank's standard output, without its newline.
    Stdout(Vec<u8>),
    /// A line of its standard error.
    Stderr(Vec<u8>),
    /// The program was started.
    Started,
    /// The launcher has given the process another rank; frames after this one are of that rank.
    Renumbered {
        /// The new rank.
        rank: u32,
        /// The number of ranks from then on.
        size: u32,
    },
    /// The program ended.
    Exited {
        /// Its exit code; 128 + N for signal N.
        code: i32,
        /// The signal that ended it, if one did.
        signal: Option<i32>,
        /// Set if it had been asked to end: another rank had failed, or a signal came.
        asked: bool,
        /// Set if the kernel killed a process of its container because memory ran out.
        oom: bool,
    },
    /// A rank hangs, as the launcher's library reports on a rank that waits, or as the rank's own supervisor found.
    Hung(HungRank),
    /// The rank had no connection to another one in so many seconds (`peers.py`).
    Isolated(u64),
    /// The rank has made no progress for a while; the job continues (`waiting.py`).
    Waits {
        /// The time without progress, in seconds.
        seconds: u64,
        /// Its activity, as text.
        does: String,
    },
    /// The rank makes progress again, after so many seconds.
    Resumed(u64),
    /// The rank had made no progress for a while when it was asked to end.
    Quiet {
        /// The time without progress, in seconds.
        seconds: u64,
        /// Its activity meanwhile, as text.
        does: String,
    },
    /// One of its last lines, by which it gave up waiting for other ranks.
    GaveUp(String),
    /// The number of lines of output that a full disk lost.
    Lost(u64),
    /// The rank supervisor could not start the program, with the reason. A [`FrameKind::Exited`] follows.
    Broken(StartFailure),
    /// The ranks run this program instead of `python`, which the image lacks.
    Substituted(String),
    /// Slurm's `srun`, which starts the ranks, does not connect those of MPI: each believes that it is alone
    /// (`allocation.py`).
    WithoutMpi,
    /// A line of the launcher, which has no rank.
    Launcher(Vec<u8>),
    /// The job supervisor starts the job again; the event as JSON ([`Restart`](super::restart::Restart)).
    Restart(String),
    /// The places of the rank's processes (`stacks.py`).
    Stack(Box<RankStack>),
    /// The job supervisor has recorded the result and is about to exit.
    Over,
    /// The usage of a rank, its node or a GPU; only in the file `samples` (`samples.py`). The rank of a frame about a
    /// node or a GPU is the one whose supervisor wrote it.
    Sample(Sample),
}

/// One frame.
#[derive(Debug, Clone, PartialEq)]
pub struct Frame {
    /// Seconds since the epoch by the node's clock.
    pub time: f64,
    /// The global rank.
    pub rank: u32,
    /// The event.
    pub kind: FrameKind,
}

/// The KIND of each frame, and its meaning with its TEXT.
pub const KINDS: &[(&str, &str)] = &[
    ("o", "a line of standard output"),
    ("e", "a line of standard error"),
    ("l", "a line of the launcher, which has no rank"),
    ("s", "the rank has started the program"),
    ("n", "the launcher has given the process another rank: the rank, and how many there are now"),
    ("x", "the program has exited: its code, and `signal`, `asked` (its end had been requested), `oom`"),
    ("h", "a rank hangs, as the launcher's library reports: the rank, for how many seconds, in what"),
    ("i", "the rank was idle when that ended the job: for how many seconds, and `blocked`, `kernel` or `waiting`"),
    ("a", "the rank has no connection to another one: for how many seconds"),
    ("q", "the rank makes no progress: for how many seconds, and what it does"),
    ("g", "the rank makes progress again: after how many seconds"),
    ("k", "where the rank's processes are: a [RankStack](json.md#rankstack) as JSON"),
    ("v", "the rank is asked to end and has made no progress: for how many seconds, and what it does"),
    (
        "u",
        "the rank has failed because it gave up waiting for others, or lost its connection to one: the line that says so",
    ),
    ("w", "lines of output had no room on the disk: how many"),
    ("b", "the program could not be started: a [StartFailure](#startfailure) as JSON; of earlier builds a text"),
    ("p", "from rank 0: there is no `python`, and what runs in its place"),
    ("c", "Slurm's `srun` does not connect the ranks of MPI"),
    ("r", "the job supervisor restarts the job: the event as JSON"),
    ("m", "a sample of what a rank, the node or a GPU uses; in the file `samples`"),
    ("d", "the job supervisor has recorded the result and exits"),
];

/// Length limit of a frame: `frames.py` keeps at most 64 KiB of a line and reads 64 KiB at a time. What is longer is
/// the hole of a log whose beginning was given back to the disk (`--log-max`); it reads as NULs.
const LONGEST: usize = 144 << 10;

/// Number of bytes that are kept of the end of a log that was read. They include the time of a line, to the
/// microsecond.
const MARK: usize = 256;

/// Parses the bytes of a log, which come in pieces of any size.
#[derive(Debug, Default)]
pub struct Parser {
    /// The bytes after the last whole line.
    rest: Vec<u8>,
    /// The number of bytes of the log before the end of `rest`.
    read: u64,
    /// Set if the bytes up to the next line end are no frame.
    skips: bool,
    /// The end of the last whole line.
    mark: Vec<u8>,
}

impl Parser {
    /// Parses a log from a byte on. Feed it the bytes from [`Parser::offset`] on, one byte earlier, because the text
    /// before the first line end is the rest of a frame, which could look like one.
    pub fn at(offset: u64) -> Parser {
        Parser { read: offset.saturating_sub(1), skips: offset > 0, ..Parser::default() }
    }

    /// Returns the offset after the last whole line.
    pub fn offset(&self) -> u64 {
        self.read.saturating_sub(self.rest.len() as u64)
    }

    /// Returns the offset of the bytes that it is fed next.
    pub fn end(&self) -> u64 {
        self.read
    }

    /// Returns the bytes before [`Parser::offset`], as far as they are known: a log in which others are there has been
    /// cut off.
    pub fn mark(&self) -> &[u8] {
        &self.mark
    }

    /// Adds bytes and returns the frames that they complete. A line that is no frame is dropped: a full disk or a node
    /// that lost power cut it off.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<Frame> {
        let mut searched = self.rest.len();
        // where the log begins was read from the node
        self.read = self.read.saturating_add(bytes.len() as u64);
        self.rest.extend_from_slice(bytes);
        let mut frames = Vec::new();
        let (mut start, mut last) = (0, 0..0);
        while let Some(end) = self.rest[searched..].iter().position(|b| *b == b'\n') {
            let line = &self.rest[start..searched + end];
            if !std::mem::take(&mut self.skips) && line.len() <= LONGEST {
                frames.extend(parse(line));
            }
            let next = searched + end + 1;
            last = start.max(next.saturating_sub(MARK))..next;
            (start, searched) = (next, next);
        }
        if !last.is_empty() {
            self.mark = self.rest[last].to_vec();
        }
        self.rest.drain(..start);
        if self.rest.len() > LONGEST {
            self.rest.clear();
            self.mark.clear();
            self.skips = true;
        }
        frames
    }
}

/// Reads a time in seconds and the activity of a rank meanwhile.
fn activity(text: &str) -> Option<(u64, String)> {
    let (seconds, does) = text.split_once(' ')?;
    Some((seconds.parse().ok()?, does.to_owned()))
}

fn parse(line: &[u8]) -> Option<Frame> {
    let mut parts = line.splitn(4, |b| *b == b' ');
    let mut part = || parts.next();
    let time = std::str::from_utf8(part()?).ok()?.parse().ok().filter(|time: &f64| time.is_finite())?;
    let rank = std::str::from_utf8(part()?).ok()?.parse().ok()?;
    let (kind, bytes) = (part()?, part().unwrap_or_default());
    let text = || String::from_utf8_lossy(bytes);
    let kind = match kind {
        b"o" => FrameKind::Stdout(bytes.to_vec()),
        b"e" => FrameKind::Stderr(bytes.to_vec()),
        b"l" => FrameKind::Launcher(bytes.to_vec()),
        b"s" => FrameKind::Started,
        b"n" => {
            let text = text();
            let (rank, size) = text.split_once(' ')?;
            FrameKind::Renumbered { rank: rank.parse().ok()?, size: size.parse().ok()? }
        }
        b"x" => {
            let text = text();
            let (code, marks) = text.split_once(' ').unwrap_or((&text, ""));
            let has = |mark| marks.split(' ').any(|word| word == mark);
            let code: i32 = code.parse().ok()?;
            FrameKind::Exited {
                code,
                signal: code.checked_sub(128).filter(|_| has("signal")),
                asked: has("asked"),
                oom: has("oom"),
            }
        }
        b"h" => {
            let text = text();
            let mut words = text.splitn(3, ' ');
            let (rank, seconds) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            let tensors = words.next().filter(|tensors| !tensors.is_empty()).map(str::to_owned);
            FrameKind::Hung(HungRank { rank, seconds, tensors, idle: None, time })
        }
        b"i" => {
            let text = text();
            let (seconds, idle) = text.split_once(' ')?;
            let (seconds, idle) = (seconds.parse().ok()?, serde_json::from_value(idle.into()).ok()?);
            FrameKind::Hung(HungRank { rank, seconds, tensors: None, idle, time })
        }
        b"a" => FrameKind::Isolated(text().parse().ok()?),
        b"q" => activity(&text()).map(|(seconds, does)| FrameKind::Waits { seconds, does })?,
        b"g" => FrameKind::Resumed(text().parse().ok()?),
        b"k" => FrameKind::Stack(Box::new(RankStack::read("", &text())?)),
        b"v" => activity(&text()).map(|(seconds, does)| FrameKind::Quiet { seconds, does })?,
        b"u" => FrameKind::GaveUp(text().into_owned()),
        b"w" => FrameKind::Lost(text().parse().ok()?),
        b"r" => FrameKind::Restart(text().into_owned()),
        b"d" => FrameKind::Over,
        b"m" => FrameKind::Sample(Sample::parse(&text())?),
        b"b" => FrameKind::Broken(StartFailure::read(&text())),
        b"p" => FrameKind::Substituted(text().into_owned()),
        b"c" => FrameKind::WithoutMpi,
        _ => return None,
    };
    Some(Frame { time, rank, kind })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hung(seconds: u64, idle: Option<Idle>, time: f64) -> HungRank {
        HungRank { rank: 1, seconds, tensors: None, idle, time }
    }

    #[test]
    fn each_kind_that_is_read_is_listed_and_no_other() {
        let source = include_str!("frames.rs");
        for kind in (b'a'..=b'z').map(|byte| (byte as char).to_string()) {
            let is_listed = KINDS.iter().any(|(listed, _)| *listed == kind);
            assert_eq!(source.contains(&format!("        b\"{kind}\" =>")), is_listed, "{kind}");
        }
    }

    #[test]
    fn frames_survive_any_cut() {
        let log =
            b"1.4 0 l starting\n1.5 0 s \n1.6 0 o  two  spaces \n1.7 1 e \xff\xfe\n2.0 1 x 7\n2.0 0 x 143 signal \
                asked\n2.0 0 h 1 5 allreduce.a, b\n2.0 1 h 1 6 \n2.0 2 x 137 signal oom\n2.1 0 b no such file\n2.2 0 r \
                attempt 2\n2.3 1 i 75 waiting\n2.4 0 d \n2.5 0 w 66131\n2.6 1 a 60\n2.7 1 q 90 in a b\n2.8 1 g 95\n2.9 \
                0 p python3\n2.9 0 c \n2.9 1 q 9\ngarbage\n3 0 o open";
        let whole = Parser::default().push(log);
        assert_eq!(whole.len(), 19);
        assert_eq!(whole[18].kind, FrameKind::WithoutMpi);
        assert_eq!(whole[17].kind, FrameKind::Substituted("python3".into()));
        assert_eq!(whole[15].kind, FrameKind::Waits { seconds: 90, does: "in a b".into() });
        assert_eq!(whole[16].kind, FrameKind::Resumed(95));
        assert_eq!(whole[14].kind, FrameKind::Isolated(60));
        assert_eq!(whole[13].kind, FrameKind::Lost(66_131));
        assert_eq!(whole[12].kind, FrameKind::Over);
        assert_eq!(whole[9].kind, FrameKind::Broken(StartFailure::Text("no such file".into())));
        assert_eq!(whole[10].kind, FrameKind::Restart("attempt 2".into()));
        assert_eq!(whole[0].kind, FrameKind::Launcher(b"starting".to_vec()));
        assert_eq!(whole[5].kind, FrameKind::Exited { code: 143, signal: Some(15), asked: true, oom: false });
        assert_eq!(whole[2].kind, FrameKind::Stdout(b" two  spaces ".to_vec()));
        assert_eq!(whole[3].kind, FrameKind::Stderr(vec![0xff, 0xfe]));
        assert_eq!(
            whole[4],
            Frame { time: 2.0, rank: 1, kind: FrameKind::Exited { code: 7, signal: None, asked: false, oom: false } }
        );
        assert_eq!(
            whole[6].kind,
            FrameKind::Hung(HungRank { tensors: Some("allreduce.a, b".into()), ..hung(5, None, 2.0) })
        );
        assert_eq!(whole[7].kind, FrameKind::Hung(hung(6, None, 2.0)));
        assert_eq!(whole[11].kind, FrameKind::Hung(hung(75, Some(Idle::Waiting), 2.3)));
        assert_eq!(whole[8].kind, FrameKind::Exited { code: 137, signal: Some(9), asked: false, oom: true });
        for cut in 0..log.len() {
            let mut parser = Parser::default();
            let mut frames = parser.push(&log[..cut]);
            frames.extend(parser.push(&log[cut..]));
            assert_eq!(frames, whole, "cut at {cut}");
            let mut parser = Parser::at(cut as u64);
            let from = parser.offset() as usize;
            let after = parser.push(&log[from..]);
            assert!(
                whole.ends_with(&after) && parser.offset() as usize == from.max(log.len() - 10),
                "{cut}: {after:?}"
            );
        }
    }

    #[test]
    fn what_was_read_last_is_before_the_offset() {
        let long = format!("1.7 0 o {}", "x".repeat(1000));
        let log = format!("1.5 0 s \n{long}\n1.8 0 o last\n1.9 0 o un");
        for cut in 0..log.len() {
            let mut parser = Parser::default();
            parser.push(&log.as_bytes()[..cut]);
            let (offset, mark) = (parser.offset() as usize, parser.mark());
            assert!(log.as_bytes()[..offset].ends_with(mark) && mark.len() <= MARK, "{cut}");
            assert_eq!(mark.is_empty(), offset == 0, "{cut}");
        }
        // there is no line before the offset of one that is too long
        let mut parser = Parser::default();
        parser.push(b"1.5 0 s \n");
        parser.push(&[0; LONGEST + 1]);
        assert_eq!(parser.mark(), b"");
    }

    #[test]
    fn a_hole_in_the_log_takes_no_memory() {
        let mut parser = Parser::default();
        for _ in 0..100 {
            assert!(parser.push(&[0; 1 << 16]).is_empty());
            assert!(parser.rest.len() <= LONGEST);
        }
        assert_eq!(parser.push(b"\0\0ut off\n1.5 0 o line\n").len(), 1);
        // in the middle of a line, and in one piece
        let text = [b"1.4 0 o abc".as_slice(), &[0; 256 << 10], b"def\n1.5 0 o line\n"].concat();
        assert_eq!(Parser::default().push(&text).len(), 1);
    }

    #[test]
    fn numbers_that_cannot_be_are_read_without_a_panic() {
        let log = b"inf 0 s \nnan 0 s \n1.5 0 x -2147483648 signal\n1.5 4294967295 s \n1.5 4294967296 s \n";
        let frames = Parser::at(u64::MAX).push(&[b"\n", &log[..]].concat());
        let minimum = FrameKind::Exited { code: i32::MIN, signal: None, asked: false, oom: false };
        assert_eq!(frames.iter().map(|frame| &frame.kind).collect::<Vec<_>>(), [&minimum, &FrameKind::Started]);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            Parser::default().push(&bytes);
        }
    }
}
