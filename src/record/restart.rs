//! Restarts of a job, as the job supervisor logs them.

use super::JobResult;
use crate::launch::placement::Placement;
use crate::text::units::count;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A job is started again after a failure.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Restart {
    /// An attempt failed, and another one follows.
    Failed {
        /// How it ended.
        failed: Box<JobResult>,
        /// Its nodes, each with its ranks, in rank order.
        shares: Vec<Ranks>,
        /// The number of the attempt that follows, from 2 on.
        attempt: u32,
        /// How many there may be.
        attempts: u32,
        /// Seconds until then.
        pause: u64,
    },
    /// Nodes left an elastic job or joined it.
    Membership(Change),
    /// Nodes did not answer, so the next attempt does without them.
    Without {
        /// These nodes.
        gone: Vec<String>,
        /// The ranks on the others.
        ranks: u32,
    },
}

/// A change of the nodes of an elastic job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Change {
    /// When, in seconds since the epoch by the clock of the launcher's node.
    #[serde(default)]
    pub time: f64,
    /// The nodes that left.
    pub left: Vec<Departure>,
    /// The nodes that joined.
    pub joined: Vec<String>,
    /// The number of ranks after the change.
    pub ranks: u32,
    /// The number of ranks with all nodes.
    pub wanted: u32,
    /// Seconds for which the job waits for other nodes, because it has too few ranks; 0: it continues.
    pub waits: u64,
}

/// A node that left an elastic job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Departure {
    /// The node.
    pub node: String,
    /// Why it left: the error of the connection to it, or `no answer`.
    pub reason: String,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Departure { node, reason } in &self.left {
            write!(f, "{node} left ({reason}); ")?;
        }
        for node in &self.joined {
            write!(f, "{node} joined; ")?;
        }
        match self.waits {
            0 => write!(f, "the job continues with {} of {} ranks", self.ranks, self.wanted),
            seconds => write!(f, "the job has {} of {} ranks and waits {seconds} s for more", self.ranks, self.wanted),
        }
    }
}

/// The nodes of an elastic job; `JOBS/ID/members.json` on the node of the launcher.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Membership {
    /// The nodes that take part, in rank order.
    pub members: Vec<Ranks>,
    /// What has changed since the start.
    pub changes: Vec<Change>,
}

impl Membership {
    /// Returns the current number of ranks.
    pub fn ranks(&self) -> u32 {
        self.members.iter().map(|member| member.ranks).sum()
    }
}

/// The ranks of a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Ranks {
    /// The node.
    pub node: String,
    /// The number of its ranks.
    pub ranks: u32,
}

impl Restart {
    /// Formats the event of a log frame for the user.
    pub fn message(text: &str) -> String {
        match serde_json::from_str(text) {
            Ok(Restart::Failed { failed, shares, attempt, attempts, pause }) => {
                let mut placement = Placement::default();
                shares.iter().for_each(|Ranks { node, ranks }| placement.push(node, *ranks));
                let failed = JobResult { ranks: placement.ranks(), ..*failed };
                let cause = failed.reason(&placement);
                let cause = cause.unwrap_or_else(|| match failed.launcher {
                    Some(code) => format!("the launcher exited with code {code}"),
                    None => "the launcher did not exit by itself".into(),
                });
                format!("{cause}; attempt {attempt} of {attempts} begins in {pause} s")
            }
            Ok(Restart::Membership(change)) => change.to_string(),
            Ok(Restart::Without { gone, ranks }) => {
                format!("{} did not answer: {} on the other nodes", gone.join(", "), count(ranks as usize, "rank"))
            }
            Err(_) => text.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restart_names_the_root_cause() {
        let exit = r#"{"rank": 1, "node": "c", "code": 7, "signal": null, "time": 2.0, "asked": false, "oom": false}"#;
        let failed = |exits: &str, launcher: &str, silent: &str| {
            let result = format!(
                r#"{{"launcher": {launcher}, "started": 2, "exits": [{exits}], "hung": [], "lost": [], "silent": [{silent}]}}"#
            );
            let shares = r#"[{"node": "a", "ranks": 1}, {"node": "c", "ranks": 1}]"#;
            Restart::message(&format!(
                r#"{{"failed": {result}, "shares": {shares}, "attempt": 2, "attempts": 4, "pause": 1}}"#
            ))
        };
        assert_eq!(failed(exit, "7", ""), "rank 1 on c ended with exit code 7; attempt 2 of 4 begins in 1 s");
        // the node of a rank is that of this attempt, not of the first one
        let gone = failed("", "1", r#""c""#);
        assert_eq!(gone, "rank 1 on c is gone; how it ended is unknown; attempt 2 of 4 begins in 1 s");
        assert_eq!(
            Restart::message(r#"{"gone": ["b", "d"], "ranks": 1}"#),
            "b, d did not answer: 1 rank on the other nodes"
        );
        let change = |left: &str, joined: &str, waits: u64| {
            Restart::message(&format!(
                r#"{{"left": [{left}], "joined": [{joined}], "ranks": 2, "wanted": 3, "waits": {waits}}}"#
            ))
        };
        assert_eq!(
            change(r#"{"node": "c", "reason": "no answer"}"#, "", 0),
            "c left (no answer); the job continues with 2 of 3 ranks"
        );
        assert_eq!(
            change(r#"{"node": "c", "reason": "refused"}"#, r#""b""#, 9),
            "c left (refused); b joined; the job has 2 of 3 ranks and waits 9 s for more"
        );
        assert_eq!(Restart::message("of another version"), "of another version");
    }
}
