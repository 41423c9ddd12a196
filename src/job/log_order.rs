//! Which of a job's lines are wanted, and in what order several nodes' logs are told.

use crate::job::frames::{Frame, Kind};
use regex::bytes::Regex;
use std::collections::VecDeque;

/// What is wanted of a job's output.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Only these ranks; none named: all.
    pub ranks: Vec<u32>,
    /// Only what was written since then, in seconds since the epoch by the node's clock.
    pub since: Option<f64>,
    /// Only lines in which this is found.
    pub grep: Option<Regex>,
}

impl Filter {
    /// Whether a frame is a line that is wanted.
    pub fn takes(&self, frame: &Frame) -> bool {
        let line = match &frame.kind {
            Kind::Stdout(line) | Kind::Stderr(line) => line,
            // it concerns all ranks
            Kind::Restart(_) => return self.since.is_none_or(|since| frame.time >= since),
            _ => return false,
        };
        (self.ranks.is_empty() || self.ranks.contains(&frame.rank))
            && self.since.is_none_or(|since| frame.time >= since)
            && self.grep.as_ref().is_none_or(|grep| grep.is_match(line))
    }
}

/// Several logs, each in the order of its time, as one. It holds no more than was pushed and not yet taken.
#[derive(Debug)]
pub struct Merge {
    waiting: Vec<VecDeque<Frame>>,
    open: Vec<bool>,
}

impl Merge {
    /// Of so many logs.
    pub fn of(logs: usize) -> Merge {
        Merge { waiting: vec![VecDeque::new(); logs], open: vec![true; logs] }
    }

    /// Adds frames of one.
    pub fn push(&mut self, log: usize, frames: Vec<Frame>) {
        self.waiting[log].extend(frames);
    }

    /// One has no more.
    pub fn close(&mut self, log: usize) {
        self.open[log] = false;
    }

    /// A log that has to say more before the next frame is known; none when that is known, or all is told.
    pub fn wants(&self) -> Option<usize> {
        (0..self.open.len()).find(|i| self.open[*i] && self.waiting[*i].is_empty())
    }

    /// The next frame, and whose it is. To be asked when none is wanted.
    pub fn take(&mut self) -> Option<(usize, Frame)> {
        let time = |i: &usize| self.waiting[*i].front().map_or(f64::INFINITY, |frame| frame.time);
        let first = (0..self.waiting.len()).min_by(|a, b| time(a).total_cmp(&time(b)))?;
        self.waiting[first].pop_front().map(|frame| (first, frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(rank: u32, time: f64, text: &str) -> Frame {
        Frame { time, rank, kind: Kind::Stdout(text.as_bytes().to_vec()) }
    }

    #[test]
    fn only_what_is_wanted() {
        let frame = line(3, 10.0, "loss 0.5");
        let takes = |filter: Filter| filter.takes(&frame);
        assert!(takes(Filter::default()));
        assert!(takes(Filter { ranks: vec![1, 3], ..Filter::default() }));
        assert!(!takes(Filter { ranks: vec![1], ..Filter::default() }));
        assert!(takes(Filter { since: Some(10.0), ..Filter::default() }));
        assert!(!takes(Filter { since: Some(10.1), ..Filter::default() }));
        assert!(takes(Filter { grep: Some(Regex::new("^loss").unwrap()), ..Filter::default() }));
        assert!(!takes(Filter { grep: Some(Regex::new("accuracy").unwrap()), ..Filter::default() }));
        assert!(!Filter::default().takes(&Frame { kind: Kind::Started, ..frame }));
    }

    #[test]
    fn logs_are_told_by_time_and_each_in_its_order() {
        let mut merge = Merge::of(3);
        merge.close(2);
        assert_eq!(merge.wants(), Some(0));
        merge.push(0, vec![line(0, 1.0, "a"), line(0, 3.0, "c")]);
        assert_eq!(merge.wants(), Some(1), "nothing is told before it is known what comes first");
        // a clock that was set back keeps its own order
        merge.push(1, vec![line(1, 2.0, "b"), line(1, 0.5, "d")]);
        merge.close(0);
        merge.close(1);
        let mut told = Vec::new();
        while let Some((log, frame)) = merge.take() {
            told.push((log, frame.time));
        }
        assert_eq!(told, [(0, 1.0), (1, 2.0), (1, 0.5), (0, 3.0)]);
    }
}
