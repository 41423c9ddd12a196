//! The jobs of `verify` and `bench`, which check something: their options, and the output of their ranks as reports in
//! JSON lines and all other lines.

use crate::cli::Launching;
use crate::commands::shared::context::Context;
use crate::diagnosis::launchers::{OPEN_MPI, is_other_mpirun};
use crate::diagnosis::outcome::{JobOutcome, tail};
use crate::error::Error;
use crate::event::Events;
use crate::job::supervision::WatchOptions;
use crate::launch::env_file::EnvFiles;
use crate::launch::placement::{MapBy, RankCount};
use crate::record::frames::{Frame, FrameKind};
use crate::start::request::{JobOptions, ResourceRequest, check_ranks};
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Returns the options of a check: a job with one rank on every slot or with `np` ranks, which is stopped when it takes
/// longer than `limit`.
///
/// # Errors
/// A controller for another launcher than `horovodrun`; more ranks than slots, if the inventory gives all slots.
pub fn options_of_check(
    np: Option<u32>,
    launching: &Launching,
    limit: Duration,
    context: &Context,
) -> Result<JobOptions, Error> {
    let Context { target, verbose, .. } = context;
    let cluster = target.cluster();
    let ranks = np.map(RankCount::exactly);
    check_ranks(target, ranks, None)?;
    Ok(JobOptions {
        resources: ResourceRequest { ranks, map_by: MapBy::Slot, per_node: None },
        submission: launching.sbatch.clone(),
        restarts: 0,
        elastic: None,
        changes: None,
        launcher: launching.launcher(None, cluster)?,
        controller: launching.controller(cluster.controller),
        bind: cluster.bind,
        stall_timeout: Duration::ZERO,
        log_max: None,
        log_progress: false,
        env: BTreeMap::new(),
        env_files: EnvFiles::new(),
        roles: Vec::new(),
        watch: WatchOptions {
            output: *verbose > 0,
            launcher_output: *verbose > 1,
            limit: Some(limit),
            ..WatchOptions::default()
        },
    })
}

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
        // `horovodrun` describes its own installation, and not what is wrong with it
        if ended.launcher.iter().any(|line| is_other_mpirun(line)) {
            events.note(format!("hint: {OPEN_MPI}"));
        }
        let launcher = || format!("the launcher exited with code {}", ended.code);
        Some(ended.root_cause.as_ref().map_or_else(launcher, ToString::to_string))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::placement::place;
    use crate::record::JobResult;

    #[test]
    fn an_mpirun_that_horovod_does_not_know_comes_with_the_next_step() {
        let (events, reported) = Events::channel();
        let placement = place(&[("a".into(), 1)], 1, MapBy::Slot).unwrap();
        let result = JobResult { ranks: 1, launcher: Some(1), ..JobResult::default() };
        let ended = JobOutcome {
            code: 1,
            launcher: vec!["Exception: horovod does not find an installed MPI.".to_owned()],
            ..JobOutcome::new("j", &placement, result)
        };
        let output: RankOutput<serde_json::Value> = RankOutput::new();
        assert_eq!(output.failure(&ended, &events).unwrap(), "the launcher exited with code 1");
        let mut shown = String::new();
        while let Ok(event) = reported.receive(Duration::ZERO) {
            shown.push_str(&format!("{event:?}"));
        }
        assert!(shown.contains("install Open MPI in the image"), "{shown}");
    }
}
