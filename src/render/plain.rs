//! Lines without movement, for pipes, files and CI: the time in UTC, as in the nodes' logs, and the node.

use super::messages::message;
use super::{Options, Renderer, err, output_line, progress};
use crate::event::{Event, Step, StepKind};
use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime};

/// Interval at which a node's transfer is reported in a line.
const TRANSFER_INTERVAL: Duration = Duration::from_secs(10);

/// Writes a line per event.
pub struct Plain {
    options: Options,
    /// The step or transfer of each node's last line, and when that was written.
    last: HashMap<String, (String, Instant)>,
}

impl Plain {
    /// Returns a renderer.
    pub fn new(options: Options) -> Plain {
        Plain { options, last: HashMap::new() }
    }

    /// Returns an event's line without the time, or `None` if it has none or it is too early for one.
    pub(super) fn text(&mut self, event: &Event, now: Instant) -> Option<String> {
        let verbose = self.options.verbose > 0;
        match event {
            Event::Warning(_)
            | Event::Restart { .. }
            | Event::Idle { .. }
            | Event::Stacks { .. }
            | Event::Ready { .. }
            | Event::Launcher { .. } => message(event),
            _ if self.options.quiet => None,
            Event::StepStarted { step, .. } if step.kind == StepKind::Read && !verbose => None,
            Event::StepStarted { node, step: Step { text, .. } } => {
                self.is_due(node, text, now, Duration::MAX).then(|| format!("{node}: {text}"))
            }
            Event::Transfer { node, what, done, total, rate } => self
                .is_due(node, &format!("{what}: "), now, TRANSFER_INTERVAL)
                .then(|| format!("{node}: {what}: {}", progress(*done, *total, *rate))),
            Event::Done { node, what } => Some(format!("{node}: {what}")),
            // the cause is reported at the end
            Event::Failed { node, error } => Some(format!("{node}: cannot {}", error.operation)),
            Event::Phase(phase) if verbose => Some(phase.to_string()),
            Event::Job { id, state } if verbose => Some(format!("job {id}: {state}")),
            event => message(event),
        }
    }

    /// Returns whether this is new for a node, or the same again after the interval.
    fn is_due(&mut self, node: &str, what: &str, now: Instant, interval: Duration) -> bool {
        let same = |(last, at): &(String, Instant)| last == what && now.duration_since(*at) < interval;
        if self.last.get(node).is_some_and(same) {
            return false;
        }
        self.last.insert(node.to_owned(), (what.to_owned(), now));
        true
    }
}

impl Renderer for Plain {
    fn show(&mut self, event: Event, now: Instant) {
        if let Event::Output { rank, role, node, stream, line } = &event {
            output_line(*rank, role.as_ref(), node, *stream, line);
        } else if let Some(text) = self.text(&event, now) {
            err(&format!("{} {text}", clock(SystemTime::now())));
        }
    }
}

/// The time of day in UTC: `12:03:04Z`.
fn clock(time: SystemTime) -> String {
    let seconds = time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs() % 86_400);
    format!("{:02}:{:02}:{:02}Z", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::NodeError;
    use crate::event::Phase;
    use crate::model::idle_rank::IdleRank;

    fn plain(quiet: bool, verbose: u8) -> Plain {
        Plain::new(Options { json: false, quiet, verbose, has_rows: false, streams_output: false })
    }

    fn transfer(node: &str, what: &str, done: u64) -> Event {
        Event::Transfer { node: node.into(), what: what.into(), done, total: 3 << 30, rate: 5 << 20 }
    }

    #[test]
    fn a_transfer_writes_a_line_now_and_then() {
        let mut plain = plain(false, 0);
        let start = Instant::now();
        let mut text_of = |event: Event, seconds| plain.text(&event, start + Duration::from_secs(seconds));
        assert_eq!(
            text_of(transfer("a", "pulling x", 1 << 30), 0).unwrap(),
            "a: pulling x: 1.0 GiB of 3.0 GiB, 5.0 MiB/s"
        );
        assert!(text_of(transfer("b", "pulling x", 1), 1).is_some(), "another node");
        assert!(text_of(transfer("a", "pulling x", 2 << 30), 9).is_none());
        assert!(text_of(transfer("a", "pulling x", 2 << 30), 10).is_some());
        assert!(text_of(transfer("a", "pulling x", 2 << 30), 19).is_none());
        assert!(text_of(transfer("a", "unpacking x", 0), 19).is_some(), "something else");
    }

    #[test]
    fn each_step_is_a_line_with_its_node() {
        let mut plain = plain(false, 0);
        let started = |step: Step| Event::StepStarted { node: "a".into(), step };
        let busy = |operation: &str| started(Step::write(operation.to_owned()));
        let mut text_of = |event: Event| plain.text(&event, Instant::now());
        assert_eq!(text_of(busy("start hworker")).unwrap(), "a: start hworker");
        assert_eq!(text_of(busy("start hworker")), None, "once");
        assert_eq!(text_of(started(Step::OBSERVING)), None);
        assert_eq!(text_of(Event::Done { node: "a".into(), what: "up".into() }).unwrap(), "a: up");
        let error = NodeError::failed("a", "start hworker", "no space").hint("make room");
        assert_eq!(text_of(Event::failed(error)).unwrap(), "a: cannot start hworker");
        assert_eq!(text_of(Event::Note("keys differ".into())).unwrap(), "keys differ");
        assert_eq!(
            (
                text_of(Event::StepEnded { node: "a".into(), step: Step::OBSERVING }),
                text_of(Event::Phase(Phase::Comparing))
            ),
            (None, None)
        );
    }

    #[test]
    fn quiet_is_quiet_but_for_warnings() {
        let mut plain = plain(true, 0);
        let mut text_of = |event: Event| plain.text(&event, Instant::now());
        assert_eq!(text_of(Event::StepStarted { node: "a".into(), step: Step::write("writing keys") }), None);
        assert_eq!(text_of(Event::Note("x".into())), None);
        assert_eq!(text_of(transfer("a", "pulling x", 1)), None);
        assert_eq!(text_of(Event::Warning("x".into())).unwrap(), "warning: x");
        let ranks = || vec![IdleRank { rank: 1, role: None, node: "a".into(), since: 0.0, does: "sleeping".into() }];
        let idle = text_of(Event::Idle { ranks: ranks(), job: None, time: 60.0 }).unwrap();
        assert_eq!(idle, "warning: rank 1 on a has made no progress since 00:00 UTC: sleeping");
        assert_eq!(text_of(Event::Resumed { ranks: ranks(), seconds: 9 }), None);
    }

    #[test]
    fn the_time_of_day() {
        let at = |seconds| clock(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!([at(0), at(86_399), at(1_763_730_184)], ["00:00:00Z", "23:59:59Z", "13:03:04Z"]);
    }
}
