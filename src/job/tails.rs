//! The last lines of each rank, for what is said of one that failed.

use crate::job::frames::{Frame, Kind};
use std::collections::{BTreeMap, VecDeque};

/// So many lines of each rank are kept.
const LINES: usize = 20;
/// So many bytes of each line, so that memory stays bounded.
const BYTES: usize = 2000;

/// What the ranks said last.
#[derive(Debug, Default)]
pub struct Tails {
    /// By rank; each line with its place among those of all ranks.
    ranks: BTreeMap<u32, VecDeque<(u64, Vec<u8>)>>,
    seen: u64,
}

impl Tails {
    /// Takes note of a frame.
    pub fn see(&mut self, frame: &Frame) {
        let line = match &frame.kind {
            Kind::Stdout(line) | Kind::Stderr(line) => line,
            // a rank that was started again: what it said before is not how it ended
            Kind::Started => {
                self.ranks.remove(&frame.rank);
                return;
            }
            _ => return,
        };
        let lines = self.ranks.entry(frame.rank).or_default();
        if lines.len() == LINES {
            lines.pop_front();
        }
        lines.push_back((self.seen, line[..line.len().min(BYTES)].to_vec()));
        self.seen += 1;
    }

    /// The last lines of a rank.
    pub fn of(&self, rank: u32) -> Vec<String> {
        let lines = self.ranks.get(&rank);
        lines.into_iter().flatten().map(|(_, line)| String::from_utf8_lossy(line).into_owned()).collect()
    }

    /// Whether they are the last lines of all, in a row: where all is shown, they stand there.
    pub fn are_last(&self, rank: u32) -> bool {
        let Some(lines) = self.ranks.get(&rank) else { return false };
        lines.iter().rev().map(|(place, _)| *place).eq((0..self.seen).rev().take(lines.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(rank: u32, text: &[u8]) -> Frame {
        Frame { time: 1.0, rank, kind: Kind::Stderr(text.to_vec()) }
    }

    #[test]
    fn the_last_lines_of_each_rank_are_kept_and_no_more() {
        let mut tails = Tails::default();
        for i in 0..50 {
            tails.see(&line(i % 2, format!("step {i}").as_bytes()));
        }
        assert_eq!((tails.of(1).len(), tails.of(1)[0].as_str(), tails.of(1)[19].as_str()), (20, "step 11", "step 49"));
        assert!(!tails.are_last(0) && !tails.are_last(1) && tails.of(2).is_empty());
        tails.see(&Frame { time: 1.0, rank: 1, kind: Kind::Started });
        assert!(tails.of(1).is_empty() && tails.of(0).len() == 20);
        tails.see(&line(2, &[b'x'; 9000]));
        tails.see(&line(2, b"\xff"));
        assert!(tails.are_last(2), "what a rank said in a row at the end");
        assert_eq!((tails.of(2)[0].len(), tails.of(2)[1].as_str()), (BYTES, "\u{fffd}"));
        (0..20).for_each(|_| tails.see(&line(0, b"the end")));
        assert!(tails.are_last(0));
    }
}
