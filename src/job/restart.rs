//! Restarts of a job, as the job supervisor logs them.

use super::record::JobResult;
use crate::launch::placement::{Placement, Share};
use serde::Deserialize;

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
    /// Nodes did not answer, so the next attempt does without them.
    Without {
        /// These nodes.
        gone: Vec<String>,
        /// The ranks on the others.
        ranks: u32,
    },
}

/// The ranks of a node.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Ranks {
    node: String,
    ranks: u32,
}

impl Restart {
    /// Formats the event of a log frame for the user.
    pub fn message(text: &str) -> String {
        match serde_json::from_str(text) {
            Ok(Restart::Failed { failed, shares, attempt, attempts, pause }) => {
                let cause = failed.reason(&placement(shares));
                let cause = cause.unwrap_or_else(|| match failed.launcher {
                    Some(code) => format!("the launcher ended with exit code {code}"),
                    None => "the launcher did not end by itself".into(),
                });
                format!("{cause}; attempt {attempt} of {attempts} begins in {pause} s")
            }
            Ok(Restart::Without { gone, ranks }) => {
                let s = if ranks == 1 { "" } else { "s" };
                format!("{} did not answer: {ranks} rank{s} on the other nodes", gone.join(", "))
            }
            Err(_) => text.to_owned(),
        }
    }
}

fn placement(shares: Vec<Ranks>) -> Placement {
    let mut first = 0;
    let share = |Ranks { node, ranks }: Ranks| {
        let share = Share { node, ranks, first, ..Share::default() };
        first += ranks;
        share
    };
    Placement { shares: shares.into_iter().map(share).collect() }
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
        assert_eq!(gone, "rank 1 on c is gone, and nobody saw how it ended; attempt 2 of 4 begins in 1 s");
        assert_eq!(
            Restart::message(r#"{"gone": ["b", "d"], "ranks": 1}"#),
            "b, d did not answer: 1 rank on the other nodes"
        );
        assert_eq!(Restart::message("of another version"), "of another version");
    }
}
