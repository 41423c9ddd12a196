//! What came of a job that was watched.

use crate::job::record::{HungRank, JobResult, LostOutput, Progress, RankExit, RootCause, State};
use crate::job::tails::Tails;
use crate::launch::placement::Placement;
use schemars::JsonSchema;
use serde::Serialize;

/// What came of a job.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "JobResult")]
pub struct JobOutcome {
    /// Its id.
    pub id: String,
    /// How it ended, or that it runs.
    pub state: State,
    /// Which rank ran where.
    pub placement: Placement,
    /// The program's exit code: that of the rank that failed first, else the launcher's.
    pub code: i64,
    /// The rank that failed first.
    pub first_failure: Option<RankExit>,
    /// The root cause: which rank it failed by, and how.
    pub root_cause: Option<RootCause>,
    /// The last lines of that rank.
    pub last_lines: Vec<String>,
    /// Whether these are also the last lines that were shown.
    #[serde(skip)]
    pub just_shown: bool,
    /// Whether every rank has started its program.
    pub all_started: bool,
    /// Nodes that did not answer at the end, so that nobody knows what is left there.
    pub silent: Vec<String>,
    /// Why the job supervisor recorded no result.
    pub fault: Option<String>,
    /// Output that a full disk lost.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<LostOutput>,
    /// The launcher's last lines.
    #[serde(skip)]
    pub launcher: Vec<String>,
}

impl JobOutcome {
    /// A job that goes on, all of whose ranks have started.
    pub fn running(id: &str, placement: &Placement) -> JobOutcome {
        JobOutcome {
            id: id.to_owned(),
            state: State::Running,
            placement: placement.clone(),
            code: 0,
            first_failure: None,
            root_cause: None,
            last_lines: Vec::new(),
            just_shown: false,
            all_started: true,
            silent: Vec::new(),
            fault: None,
            lost: Vec::new(),
            launcher: Vec::new(),
        }
    }

    /// The outcome of a job that ended as `ending` records. Ranks' ends that were `seen` while it was watched have times by one
    /// clock and go before those of the record.
    pub fn ended(id: &str, placement: &Placement, ending: JobResult, seen: &Progress, tails: &Tails) -> JobOutcome {
        let ranks = placement.ranks();
        let (by_supervisor, last) = (ending.launcher.is_some(), ending.ranks.unwrap_or(ranks));
        let ending = merge(ending, seen, ranks);
        let root_cause = ending.root_cause(placement);
        let rank = root_cause.as_ref().map(|root_cause| root_cause.rank);
        JobOutcome {
            id: id.to_owned(),
            state: ending.state(ranks),
            placement: placement.clone(),
            code: ending.code(ranks).unwrap_or(1),
            first_failure: ending.first_failure(ranks).cloned(),
            last_lines: rank.map(|rank| tails.of(rank)).unwrap_or_default(),
            just_shown: rank.is_some_and(|rank| tails.are_last(rank)),
            root_cause,
            // what was seen may belong to several attempts
            all_started: if by_supervisor { ending.started >= last } else { seen.started() >= ranks },
            silent: Vec::new(),
            fault: ending.fault,
            lost: ending.lost,
            launcher: Vec::new(),
        }
    }
}

/// Returns the record with the ends of ranks as they were seen, where all of the last attempt were seen.
fn merge(ending: JobResult, seen: &Progress, ranks: u32) -> JobResult {
    let exits = seen.ended();
    let all_seen = exits.len() >= ending.exits.len() && ending.ranks.is_none_or(|last| last == ranks);
    // more than the record has is of an earlier attempt, unless the supervisor did not hear all nodes
    let unheard = !ending.silent.is_empty() || ending.fault.is_some() && ending.launcher.is_none();
    if !all_seen || (exits.len() != ending.exits.len() && !unheard) {
        return ending;
    }
    // the time at which a rank was found to hang has to be by the same clock
    let same =
        |a: &HungRank, b: &HungRank| (a.rank, a.seconds, &a.tensors, a.idle) == (b.rank, b.seconds, &b.tensors, b.idle);
    let first = |one: &HungRank| {
        seen.hung().iter().filter(|other| same(other, one)).min_by(|a, b| a.time.total_cmp(&b.time)).cloned()
    };
    let hung = ending.hung.into_iter().map(|one| first(&one).unwrap_or(one)).collect();
    JobResult { exits: exits.to_vec(), hung, ..ending }
}
