//! How far a job is, by the frames of its nodes.

use super::{HungRank, RankExit};
use crate::job::frames::{Frame, Kind};

/// Follows the frames of all nodes and knows how far the job is.
#[derive(Debug, Default)]
pub struct Progress {
    started: u32,
    ended: Vec<RankExit>,
    hung: Vec<HungRank>,
}

impl Progress {
    /// Takes a frame from `node`'s log; `skew` is how many seconds that node's clock is ahead of the operator's.
    pub fn see(&mut self, node: &str, frame: &Frame, skew: f64) {
        match &frame.kind {
            Kind::Started => {
                // a rank that was started again
                self.ended.retain(|ended| ended.rank != frame.rank);
                self.hung.retain(|hung| hung.rank != frame.rank);
                self.started += 1;
            }
            Kind::Exited { code, signal, asked, oom } => self.ended.push(RankExit {
                rank: frame.rank,
                node: node.into(),
                code: *code,
                signal: *signal,
                time: frame.time - skew,
                asked: *asked,
                oom: *oom,
            }),
            Kind::Hung { rank, seconds, tensors, idle } => self.hung.push(HungRank {
                rank: *rank,
                seconds: *seconds,
                tensors: tensors.clone(),
                idle: *idle,
                time: frame.time - skew,
            }),
            Kind::Stdout(_)
            | Kind::Stderr(_)
            | Kind::Broken(_)
            | Kind::Launcher(_)
            | Kind::Restart(_)
            | Kind::Lost(_)
            | Kind::Over => {}
        }
    }

    /// How the ranks ended that have ended.
    pub fn ended(&self) -> &[RankExit] {
        &self.ended
    }

    /// The ranks that were said to hang.
    pub fn hung(&self) -> &[HungRank] {
        &self.hung
    }

    /// How many ranks have started their program.
    pub fn started(&self) -> u32 {
        self.started
    }
}
