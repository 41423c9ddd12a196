//! Lines without colours or movement, for pipes, files and CI: the time in UTC, as the nodes' logs have it, and the node.

use super::{Options, Renderer, err, output_line};
use crate::event::Event;
use crate::job::record::State;
use crate::text::units::human;
use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime};

/// How often a node's transfer has a line.
const TRANSFER_INTERVAL: Duration = Duration::from_secs(10);

/// Writes a line per event.
pub struct Plain {
    options: Options,
    /// The step or transfer of each node's last line, and when that was written.
    shown: HashMap<String, (String, Instant)>,
}

impl Plain {
    /// Returns a renderer.
    pub fn new(options: Options) -> Plain {
        Plain { options, shown: HashMap::new() }
    }

    /// Returns an event's line without the time, or `None` if it has none or it is too early for one.
    fn text(&mut self, event: &Event, now: Instant) -> Option<String> {
        match event {
            Event::Warning(text) | Event::Restart(text) => Some(format!("warning: {text}")),
            Event::Launcher(line) => Some(format!("[launcher] {line}")),
            _ if self.options.quiet => None,
            Event::Note(text) => Some(text.clone()),
            // what changes nothing is only of interest while one waits for it
            Event::StepStarted { step, .. } if step.only_reads() && self.options.verbose == 0 => None,
            Event::StepStarted { node, step } => {
                let step = step.to_string();
                self.is_due(node, &step, now, Duration::MAX).then(|| format!("{node}: {step}"))
            }
            Event::Transfer { node, what, done, total, rate } => self
                .is_due(node, &format!("{what}: "), now, TRANSFER_INTERVAL)
                .then(|| format!("{node}: {what}: {}", progress(*done, *total, *rate))),
            Event::Done { node, what } => Some(format!("{node}: {what}")),
            // all of it is told at the end
            Event::Failed(error) => Some(format!("{}: could not {}", error.node, error.tried)),
            Event::Phase(name) if self.options.verbose > 0 => Some(name.clone()),
            Event::Job { id, state } if self.options.verbose > 0 => Some(format!("run {id}: {}", name(*state))),
            _ => None,
        }
    }

    /// Returns whether this is new for a node, or the same again after the interval.
    fn is_due(&mut self, node: &str, what: &str, now: Instant, interval: Duration) -> bool {
        let same = |(last, at): &(String, Instant)| last == what && now.duration_since(*at) < interval;
        if self.shown.get(node).is_some_and(same) {
            return false;
        }
        self.shown.insert(node.to_owned(), (what.to_owned(), now));
        true
    }
}

impl Renderer for Plain {
    fn show(&mut self, event: Event, now: Instant) {
        if let Event::Output { rank, node, stderr, line } = &event {
            output_line(*rank, node, *stderr, line);
        } else if let Some(text) = self.text(&event, now) {
            err(&format!("{} {text}", clock(SystemTime::now())));
        }
    }
}

/// Formats how far a transfer is.
fn progress(done: u64, total: u64, rate: u64) -> String {
    let rate = if rate > 0 { format!(", {}/s", human(rate)) } else { String::new() };
    format!("{} of {}{rate}", human(done), human(total))
}

/// The time of day in UTC: `12:03:04`.
fn clock(time: SystemTime) -> String {
    let seconds = time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs() % 86_400);
    format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// Returns a state's name in JSON.
fn name(state: State) -> String {
    serde_json::to_value(state).ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::NodeError;
    use crate::event::Step;

    fn plain(quiet: bool, verbose: u8) -> Plain {
        Plain::new(Options { json: false, quiet, verbose, result_names_nodes: true })
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
        let busy = |operation: &str| started(Step::Applying(operation.into()));
        let mut text_of = |event: Event| plain.text(&event, Instant::now());
        assert_eq!(text_of(busy("start hworker")).unwrap(), "a: start hworker");
        assert_eq!(text_of(busy("start hworker")), None, "once");
        assert_eq!(text_of(started(Step::Observing)), None);
        assert_eq!(text_of(Event::Done { node: "a".into(), what: "up".into() }).unwrap(), "a: up");
        let error = NodeError::failed("a", "start hworker", "no space").hint("make room");
        assert_eq!(text_of(Event::Failed(error)).unwrap(), "a: could not start hworker");
        assert_eq!(text_of(Event::Note("keys differ".into())).unwrap(), "keys differ");
        assert_eq!(
            (
                text_of(Event::StepEnded { node: "a".into(), step: Step::Observing }),
                text_of(Event::Phase("looking".into()))
            ),
            (None, None)
        );
    }

    #[test]
    fn quiet_is_quiet_but_for_warnings() {
        let mut plain = plain(true, 0);
        let mut text_of = |event: Event| plain.text(&event, Instant::now());
        assert_eq!(text_of(Event::StepStarted { node: "a".into(), step: Step::WritingKeys }), None);
        assert_eq!(text_of(Event::Note("x".into())), None);
        assert_eq!(text_of(transfer("a", "pulling x", 1)), None);
        assert_eq!(text_of(Event::Warning("x".into())).unwrap(), "warning: x");
    }

    #[test]
    fn the_time_of_day() {
        let at = |seconds| clock(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!([at(0), at(86_399), at(1_763_730_184)], ["00:00:00", "23:59:59", "13:03:04"]);
    }
}
