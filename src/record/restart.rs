//! Restarts of a job, as the job supervisor logs them.

use super::{FailureKind, JobResult, RootCause};
use crate::launch::placement::Placement;
pub use crate::model::restart::{Change, Departure, Restart};
use crate::text::nodeset::printable;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A restart as it is logged.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum LoggedRestart {
    /// An attempt failed, and another one follows.
    Failed {
        /// Its result.
        failed: Box<JobResult>,
        /// Its nodes, each with its ranks, in rank order.
        shares: Vec<Ranks>,
        /// The number of the attempt that follows, from 2 on.
        attempt: u32,
        /// The greatest number of attempts.
        attempts: u32,
        /// Seconds until then.
        pause: u64,
    },
    /// Slurm started the job again.
    Requeued {
        /// Its nodes since then, each with its ranks, in rank order.
        requeued: Vec<Ranks>,
    },
    /// Nodes left an elastic job or joined it.
    Membership(Change),
    /// The launcher that was to keep the ranks ended by itself.
    Lost {
        /// Its exit code.
        lost_driver: i64,
    },
    /// Nodes did not answer, so the next attempt does without them.
    Without {
        /// These nodes.
        gone: Vec<String>,
        /// The ranks on the others.
        ranks: u32,
    },
    /// A role is started again.
    Role {
        /// Its name.
        role: String,
        /// How often it has been, with this time.
        again: u32,
        /// How often it may be.
        of: u32,
        /// How the rank ended that failed first.
        exit: Option<LoggedExit>,
    },
    /// A role is ready.
    Ready {
        /// Its name.
        role: String,
        /// Seconds since its start.
        ready: f64,
    },
}

/// How a rank of a role ended that is started again.
#[derive(Debug, Deserialize)]
struct LoggedExit {
    rank: u32,
    node: String,
    code: i32,
    signal: Option<i32>,
}

/// The nodes of an elastic job; `JOBS/ID/members.json` on the node of the launcher.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Membership {
    /// The nodes that take part, in rank order.
    pub members: Vec<Ranks>,
    /// The changes since the start.
    pub changes: Vec<Change>,
}

impl Membership {
    /// Returns the current number of ranks.
    pub fn ranks(&self) -> u32 {
        self.members.iter().fold(0, |sum: u32, member| sum.saturating_add(member.ranks))
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

/// Reads a restart from the text of a log frame. `of_job`: the placement of the job's ranks in its record.
pub fn read(text: &str, of_job: &Placement) -> Restart {
    match serde_json::from_str(text) {
        Ok(LoggedRestart::Failed { failed, shares, attempt, attempts, pause }) => {
            let mut placement = Placement::default();
            shares.iter().for_each(|Ranks { node, ranks }| placement.push(node, *ranks));
            if !of_job.roles.is_empty() {
                // its nodes stay the same
                placement.clone_from(of_job);
            }
            let JobResult { launcher, .. } = *failed;
            let failed = JobResult { ranks: placement.ranks(), ..*failed };
            let root_cause = failed.root_cause(&placement);
            Restart::Failed { root_cause, fault: failed.fault, launcher, attempt, attempts, pause }
        }
        Ok(LoggedRestart::Requeued { requeued }) => {
            Restart::Requeued { nodes: requeued.into_iter().map(|ranks| ranks.node).collect() }
        }
        Ok(LoggedRestart::Membership(change)) => Restart::Membership { change },
        Ok(LoggedRestart::Lost { lost_driver }) => Restart::Lost { launcher: lost_driver },
        Ok(LoggedRestart::Without { gone, ranks }) => Restart::Without { gone, ranks },
        Ok(LoggedRestart::Role { role, again, of, exit }) => {
            let cause = |LoggedExit { rank, node, code, signal }| RootCause {
                rank,
                role: of_job.role(rank),
                node: printable(&node),
                how: FailureKind::Exited { code, signal, oom: false },
            };
            Restart::Role { failed: printable(&role), root_cause: exit.map(cause), again, of }
        }
        Ok(LoggedRestart::Ready { role, ready }) => Restart::Ready { ready: printable(&role), seconds: ready },
        Err(_) => Restart::Other { logged: text.to_owned() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::two_roles;

    fn message(text: &str) -> String {
        read(text, &Placement::default()).to_string()
    }

    #[test]
    fn a_restart_names_the_root_cause() {
        let exit = r#"{"rank": 1, "node": "c", "code": 7, "signal": null, "time": 2.0, "asked": false, "oom": false}"#;
        let failed = |exits: &str, launcher: &str, silent: &str| {
            let result = format!(
                r#"{{"launcher": {launcher}, "started": 2, "exits": [{exits}], "hung": [], "lost": [], "silent": [{silent}]}}"#
            );
            let shares = r#"[{"node": "a", "ranks": 1}, {"node": "c", "ranks": 1}]"#;
            message(&format!(r#"{{"failed": {result}, "shares": {shares}, "attempt": 2, "attempts": 4, "pause": 1}}"#))
        };
        assert_eq!(failed(exit, "7", ""), "rank 1 on c ended with exit code 7; attempt 2 of 4 begins in 1 s");
        // the node of a rank is that of this attempt, not of the first one
        let gone = failed("", "1", r#""c""#);
        assert_eq!(gone, "rank 1 on c is gone; how it ended is unknown; attempt 2 of 4 begins in 1 s");
        assert_eq!(message(r#"{"gone": ["b", "d"], "ranks": 1}"#), "b, d did not answer: 1 rank on the other nodes");
        let change = |left: &str, joined: &str, waits: u64| {
            message(&format!(
                r#"{{"left": [{left}], "joined": [{joined}], "ranks": 2, "wanted": 3, "waits": {waits}}}"#
            ))
        };
        assert_eq!(
            change(r#"{"node": "c", "reason": "no answer"}"#, "", 0),
            "c left (no answer); the job continues with 2 of 3 ranks, which start again"
        );
        assert_eq!(
            message(r#"{"left": [], "joined": ["b"], "ranks": 2, "wanted": 2, "waits": 0, "kept": true}"#),
            "b joined; the job continues in place with 2 of 2 ranks"
        );
        assert_eq!(
            message(r#"{"lost_driver": 1}"#),
            "the launcher exited with code 1 although no rank had failed; it cannot keep the ranks, and all start again"
        );
        assert_eq!(
            change(r#"{"node": "c", "reason": "refused"}"#, r#""b""#, 9),
            "c left (refused); b joined; the job has 2 of 3 ranks and waits 9 s for more"
        );
        let requeued = r#"{"requeued": [{"node": "c", "ranks": 1}, {"node": "a", "ranks": 1}]}"#;
        assert_eq!(message(requeued), "Slurm started the job again on c, a");
        assert_eq!(message("of another version"), "of another version");
    }

    #[test]
    fn a_role_that_is_ready_or_starts_again_is_named() {
        let placement = two_roles();
        let message = |text: &str| read(text, &placement).to_string();
        assert_eq!(message(r#"{"role": "generator", "ready": 4}"#), "generator is ready after 4 s");
        let exit = |exit: &str| message(&format!(r#"{{"role": "generator", "again": 1, "of": 3, "exit": {exit}}}"#));
        assert_eq!(
            exit(r#"{"rank": 4, "node": "b", "code": 137, "signal": 9}"#),
            "rank 1 of generator on b was killed by signal 9; generator is started again, 1 of 3"
        );
        assert_eq!(exit("null"), "generator failed; it is started again, 1 of 3");
        let forged = message(r#"{"role": "\u001b[2J", "ready": 4}"#);
        assert!(!forged.contains('\x1b'), "{forged}");
        // the ranks of an attempt are those of the record
        let exit = r#"{"rank": 3, "node": "b", "code": 7, "signal": null, "time": 2.0, "asked": false, "oom": false}"#;
        let result = format!(r#"{{"launcher": 7, "started": 5, "exits": [{exit}]}}"#);
        let shares = r#"[{"node": "a", "ranks": 3}, {"node": "b", "ranks": 2}]"#;
        let text = format!(r#"{{"failed": {result}, "shares": {shares}, "attempt": 2, "attempts": 4, "pause": 1}}"#);
        let expected = "rank 2 of trainer on b ended with exit code 7; attempt 2 of 4 begins in 1 s";
        assert_eq!(message(&text), expected);
    }
}
