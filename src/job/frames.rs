//! The log that the rank supervisor (`src/scripts/rank.py`) writes on each node, one frame a line:
//! `TIME RANK KIND TEXT\n`.
//!
//! One append-only file per node holds the output of all its ranks. It can be followed with `tail`, read again from
//! any byte, and it says by itself how each rank ended: neither the launcher's own piping nor its exit code (always
//! 1 under Gloo) has to be trusted.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a frame says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A line of the rank's standard output, without its newline.
    Stdout(Vec<u8>),
    /// A line of its standard error.
    Stderr(Vec<u8>),
    /// The program was started.
    Started,
    /// The program ended.
    Exited {
        /// Its exit code; 128 + N for signal N.
        code: i32,
        /// The signal that ended it, if one did.
        signal: Option<i32>,
        /// Whether it had been asked to: another rank had failed, or a signal came.
        asked: bool,
        /// Whether the kernel killed a process of its container for want of memory meanwhile.
        oom: bool,
    },
    /// A rank was said to hang: by Horovod, on the rank that coordinates, or by the rank's own supervisor.
    Hung {
        /// The rank that hung.
        rank: u32,
        /// For so many seconds.
        seconds: u64,
        /// The tensors that the others waited for, in Horovod's words; none where the supervisor saw it by itself.
        tensors: Option<String>,
        /// What it did in place of progress; none where others waited for it in a collective operation, or it was stopped.
        idle: Option<Idle>,
    },
    /// So many lines of output had no room on the disk.
    Lost(u64),
    /// The supervisor could not start the program; the reason. A [`Kind::Exited`] follows.
    Broken(String),
    /// A line of the launcher, which has no rank.
    Launcher(Vec<u8>),
    /// The job supervisor starts the job again; the event as JSON ([`Restart`](super::restart::Restart)).
    Restart(String),
    /// The job's job supervisor has written down how the job ended, and goes.
    Over,
}

/// What a rank does that makes no progress, as far as its supervisor can see from outside (`activity.py`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Idle {
    /// Its own threads sleep.
    Blocked,
    /// The kernel keeps it waiting, for a file system or a device (state D).
    Kernel,
    /// It waits for other ranks in a collective operation.
    Waiting,
}

impl Idle {
    fn parse(text: &str) -> Option<Idle> {
        Some(match text {
            "blocked" => Idle::Blocked,
            "kernel" => Idle::Kernel,
            "waiting" => Idle::Waiting,
            _ => return None,
        })
    }
}

/// One frame.
#[derive(Debug, Clone, PartialEq)]
pub struct Frame {
    /// Seconds since the epoch by the node's clock.
    pub time: f64,
    /// The global rank.
    pub rank: u32,
    /// What happened.
    pub kind: Kind,
}

/// Takes the log's bytes in pieces of any size and gives whole frames.
#[derive(Debug, Default)]
pub struct Parser {
    rest: Vec<u8>,
    /// Whether what comes up to the next line is the end of something too long.
    skips: bool,
}

/// No frame is longer: its line has what `rank.py` holds of one (64 KiB) and reads at once (64 KiB). What is longer may be the hole of a log whose beginning was given back to the disk (`--log-max`): it reads as NULs.
const LONGEST: usize = 144 << 10;

impl Parser {
    /// Adds bytes and returns the frames that they complete. A line that is no frame is dropped: the file is written
    /// by our own supervisor, so that is a write cut short by a full disk or a killed node.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<Frame> {
        let mut looked = self.rest.len();
        self.rest.extend_from_slice(bytes);
        let mut frames = Vec::new();
        let mut start = 0;
        while let Some(end) = self.rest[looked..].iter().position(|b| *b == b'\n') {
            let line = &self.rest[start..looked + end];
            if !std::mem::take(&mut self.skips) && line.len() <= LONGEST {
                frames.extend(parse(line));
            }
            (start, looked) = (looked + end + 1, looked + end + 1);
        }
        self.rest.drain(..start);
        if self.rest.len() > LONGEST {
            self.rest.clear();
            self.skips = true;
        }
        frames
    }
}

impl Parser {
    /// Bytes that wait for the end of their frame.
    pub fn waiting(&self) -> usize {
        self.rest.len()
    }
}

fn parse(line: &[u8]) -> Option<Frame> {
    let mut parts = line.splitn(4, |b| *b == b' ');
    let time = std::str::from_utf8(parts.next()?).ok()?.parse().ok()?;
    let rank = std::str::from_utf8(parts.next()?).ok()?.parse().ok()?;
    let kind = parts.next()?;
    let text = parts.next().unwrap_or_default();
    let kind = match kind {
        b"o" => Kind::Stdout(text.to_vec()),
        b"e" => Kind::Stderr(text.to_vec()),
        b"l" => Kind::Launcher(text.to_vec()),
        b"s" => Kind::Started,
        b"x" => {
            let text = std::str::from_utf8(text).ok()?;
            let (code, marks) = text.split_once(' ').unwrap_or((text, ""));
            let has = |mark| marks.split(' ').any(|word| word == mark);
            let code = code.parse().ok()?;
            Kind::Exited { code, signal: has("signal").then_some(code - 128), asked: has("asked"), oom: has("oom") }
        }
        b"h" => {
            let text = String::from_utf8_lossy(text);
            let mut words = text.splitn(3, ' ');
            Kind::Hung {
                rank: words.next()?.parse().ok()?,
                seconds: words.next()?.parse().ok()?,
                tensors: words.next().filter(|tensors| !tensors.is_empty()).map(str::to_owned),
                idle: None,
            }
        }
        b"i" => {
            let (seconds, idle) = std::str::from_utf8(text).ok()?.split_once(' ')?;
            Kind::Hung { rank, seconds: seconds.parse().ok()?, tensors: None, idle: Some(Idle::parse(idle)?) }
        }
        b"w" => Kind::Lost(std::str::from_utf8(text).ok()?.parse().ok()?),
        b"r" => Kind::Restart(String::from_utf8_lossy(text).into_owned()),
        b"d" => Kind::Over,
        b"b" => Kind::Broken(String::from_utf8_lossy(text).into_owned()),
        _ => return None,
    };
    Some(Frame { time, rank, kind })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn frames_survive_any_cut() {
        let log =
            b"1.4 0 l starting\n1.5 0 s \n1.6 0 o  two  spaces \n1.7 1 e \xff\xfe\n2.0 1 x 7\n2.0 0 x 143 signal asked\n2.0 0 h 1 5 allreduce.a, b\n2.0 1 h 1 6 \n2.0 2 x 137 signal oom\n2.1 0 b no such file\n2.2 0 r try 2\n2.3 1 i 75 waiting\n2.4 0 d \n2.5 0 w 66131\ngarbage\n3 0 o open";
        let whole = Parser::default().push(log);
        assert_eq!(whole.len(), 14);
        assert_eq!(whole[13].kind, Kind::Lost(66_131));
        assert_eq!(whole[12].kind, Kind::Over);
        assert_eq!(whole[10].kind, Kind::Restart("try 2".into()));
        assert_eq!(whole[0].kind, Kind::Launcher(b"starting".to_vec()));
        assert_eq!(whole[5].kind, Kind::Exited { code: 143, signal: Some(15), asked: true, oom: false });
        assert_eq!(whole[2].kind, Kind::Stdout(b" two  spaces ".to_vec()));
        assert_eq!(whole[3].kind, Kind::Stderr(vec![0xff, 0xfe]));
        assert_eq!(
            whole[4],
            Frame { time: 2.0, rank: 1, kind: Kind::Exited { code: 7, signal: None, asked: false, oom: false } }
        );
        assert_eq!(
            whole[6].kind,
            Kind::Hung { rank: 1, seconds: 5, tensors: Some("allreduce.a, b".into()), idle: None }
        );
        assert_eq!(whole[7].kind, Kind::Hung { rank: 1, seconds: 6, tensors: None, idle: None });
        assert_eq!(whole[11].kind, Kind::Hung { rank: 1, seconds: 75, tensors: None, idle: Some(Idle::Waiting) });
        assert_eq!(whole[8].kind, Kind::Exited { code: 137, signal: Some(9), asked: false, oom: true });
        for cut in 0..log.len() {
            let mut parser = Parser::default();
            let mut frames = parser.push(&log[..cut]);
            frames.extend(parser.push(&log[cut..]));
            assert_eq!(frames, whole, "cut at {cut}");
        }
    }

    #[test]
    fn a_hole_in_the_log_takes_no_memory() {
        let mut parser = Parser::default();
        for _ in 0..100 {
            assert!(parser.push(&[0; 1 << 16]).is_empty());
            assert!(parser.waiting() <= LONGEST);
        }
        assert_eq!(parser.push(b"\0\0ut off\n1.5 0 o line\n").len(), 1);
        // in the middle of a line, and in one piece
        let text = [b"1.4 0 o abc".as_slice(), &[0; 256 << 10], b"def\n1.5 0 o line\n"].concat();
        assert_eq!(Parser::default().push(&text).len(), 1);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            Parser::default().push(&bytes);
        }
    }
}
