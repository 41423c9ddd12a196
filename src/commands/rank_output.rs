//! The output of the ranks of a check: reports as JSON lines, and all other lines.

use crate::diagnosis::outcome::JobOutcome;
use crate::diagnosis::outcome::tail;
use crate::event::Events;
use crate::record::frames::{Frame, FrameKind};
use serde::de::DeserializeOwned;
use std::collections::VecDeque;

/// The number of the other lines that are shown.
const LAST: usize = 10;

/// The most bytes of lines with reports, which are kept in memory. A rank reports a few KiB.
const MOST_REPORTED: usize = 256 << 20;

/// The output of the ranks.
pub struct RankOutput<T> {
    /// Their reports, by the node whose log has it and the rank.
    pub reports: Vec<(String, u32, T)>,
    /// The bytes of the lines that had these.
    bytes: usize,
    /// The last ones of all other lines, the newest first.
    other: VecDeque<String>,
}

impl<T: DeserializeOwned> RankOutput<T> {
    /// Nothing yet.
    pub fn new() -> RankOutput<T> {
        RankOutput { reports: Vec::new(), bytes: 0, other: VecDeque::new() }
    }

    /// Takes a frame of a node's log.
    pub fn take(&mut self, node: &str, frame: &Frame) {
        let rank = frame.rank;
        let line = match &frame.kind {
            FrameKind::Stdout(line) => match serde_json::from_slice(line) {
                Ok(_) if self.bytes > MOST_REPORTED => return,
                Ok(report) => {
                    self.bytes += line.len();
                    return self.reports.push((node.to_owned(), rank, report));
                }
                Err(_) => String::from_utf8_lossy(line),
            },
            FrameKind::Stderr(line) => String::from_utf8_lossy(line),
            FrameKind::Broken(failure) => failure.to_string().into(),
            _ => return,
        };
        self.other.truncate(LAST - 1);
        self.other.push_front(format!("[{rank} {node}] {line}"));
    }

    /// Returns why the job failed, if it did, and shows the last lines of the ranks or of the launcher.
    pub fn failure(&self, ended: &JobOutcome, events: &Events) -> Option<String> {
        if ended.code == 0 {
            return None;
        }
        let last = if self.other.is_empty() { tail(&ended.launcher) } else { tail(self.other.iter().rev()) };
        events.note(format!("last lines of output:{last}"));
        let launcher = || format!("the launcher exited with code {}", ended.code);
        Some(ended.root_cause.as_ref().map_or_else(launcher, ToString::to_string))
    }
}
