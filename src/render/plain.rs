//! Lines without colours or movement, for pipes, files and CI: the time in UTC, as the nodes' logs have it, and the node.

use super::{Options, Renderer, err, output_line, progress};
use crate::event::Event;
use crate::job::record::State;
use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime};

/// So long a node's transfer says nothing between two lines.
const PAUSE: Duration = Duration::from_secs(10);

/// Writes a line per event.
pub struct Plain {
    options: Options,
    /// What each node said last, and when a line was last written of its transfer.
    told: HashMap<String, (String, Instant)>,
}

impl Plain {
    /// A renderer.
    pub fn new(options: Options) -> Plain {
        Plain { options, told: HashMap::new() }
    }

    /// What an event has to say, without the time; `None` where that is nothing, or too early.
    fn words(&mut self, event: &Event, now: Instant) -> Option<String> {
        let talk = !self.options.quiet;
        match event {
            Event::Warning(text) | Event::Restart(text) => Some(format!("warning: {text}")),
            Event::Launcher(line) => Some(format!("[launcher] {line}")),
            _ if !talk => None,
            Event::Note(text) => Some(text.clone()),
            // what changes nothing is only of interest while one waits for it
            Event::Busy { reads: true, .. } if self.options.verbose == 0 => None,
            Event::Busy { node, step, .. } => {
                self.is_due(node, step, now, Duration::MAX).then(|| format!("{node}: {step}"))
            }
            Event::Transfer { node, what, done, total, rate } => self
                .is_due(node, &format!("{what}: "), now, PAUSE)
                .then(|| format!("{node}: {what}: {}", progress(*done, *total, *rate))),
            Event::Done { node, what } => Some(format!("{node}: {what}")),
            // all of it is told at the end
            Event::Failed(error) => Some(format!("{}: cannot {}", error.node, error.operation)),
            Event::Phase(name) if self.options.verbose > 0 => Some(name.clone()),
            Event::Job { id, state } if self.options.verbose > 0 => Some(format!("run {id}: {}", word(*state))),
            _ => None,
        }
    }

    /// Whether a node says something new, or the same again after the pause.
    fn is_due(&mut self, node: &str, what: &str, now: Instant, pause: Duration) -> bool {
        let same = |(last, at): &(String, Instant)| last == what && now.duration_since(*at) < pause;
        if self.told.get(node).is_some_and(same) {
            return false;
        }
        self.told.insert(node.to_owned(), (what.to_owned(), now));
        true
    }
}

impl Renderer for Plain {
    fn show(&mut self, event: Event, now: Instant) {
        if let Event::Output { rank, node, stderr, line } = &event {
            output_line(*rank, node, *stderr, line);
        } else if let Some(words) = self.words(&event, now) {
            err(&format!("{} {words}", clock(SystemTime::now())));
        }
    }
}

/// The time of day in UTC: `12:03:04`.
fn clock(time: SystemTime) -> String {
    let seconds = time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs() % 86_400);
    format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// A state's word.
fn word(state: State) -> String {
    serde_json::to_value(state).ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::NodeError;

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
        let mut told = |event: Event, seconds| plain.words(&event, start + Duration::from_secs(seconds));
        assert_eq!(
            told(transfer("a", "pulling x", 1 << 30), 0).unwrap(),
            "a: pulling x: 1.0 GiB of 3.0 GiB, 5.0 MiB/s"
        );
        assert!(told(transfer("b", "pulling x", 1), 1).is_some(), "another node");
        assert!(told(transfer("a", "pulling x", 2 << 30), 9).is_none());
        assert!(told(transfer("a", "pulling x", 2 << 30), 10).is_some());
        assert!(told(transfer("a", "pulling x", 2 << 30), 19).is_none());
        assert!(told(transfer("a", "unpacking x", 0), 19).is_some(), "something else");
    }

    #[test]
    fn each_step_is_a_line_with_its_node() {
        let mut plain = plain(false, 0);
        let busy = |step: &str| Event::Busy { node: "a".into(), step: step.into(), reads: false };
        let mut told = |event: Event| plain.words(&event, Instant::now());
        assert_eq!(told(busy("starting hworker")).unwrap(), "a: starting hworker");
        assert_eq!(told(busy("starting hworker")), None, "once");
        assert_eq!(told(Event::Busy { node: "a".into(), step: "looking".into(), reads: true }), None);
        assert_eq!(told(Event::Done { node: "a".into(), what: "up".into() }).unwrap(), "a: up");
        let error = NodeError::failed("a", "start hworker", "no space").hint("make room");
        assert_eq!(told(Event::Failed(error)).unwrap(), "a: cannot start hworker");
        assert_eq!(told(Event::Note("keys differ".into())).unwrap(), "keys differ");
        assert_eq!((told(Event::Idle { node: "a".into() }), told(Event::Phase("looking".into()))), (None, None));
    }

    #[test]
    fn quiet_is_quiet_but_for_warnings() {
        let mut plain = plain(true, 0);
        let mut told = |event: Event| plain.words(&event, Instant::now());
        assert_eq!(told(Event::Busy { node: "a".into(), step: "looking".into(), reads: false }), None);
        assert_eq!(told(Event::Note("x".into())), None);
        assert_eq!(told(transfer("a", "pulling x", 1)), None);
        assert_eq!(told(Event::Warning("x".into())).unwrap(), "warning: x");
    }

    #[test]
    fn the_time_of_day() {
        let at = |seconds| clock(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!([at(0), at(86_399), at(1_763_730_184)], ["00:00:00", "23:59:59", "13:03:04"]);
    }
}
