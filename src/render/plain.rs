//! Lines without colours or movement, for pipes, files and CI.

use super::{Options, Renderer, err, output_line, transferred};
use crate::event::Event;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// So long a node's transfer says nothing between two lines.
const PAUSE: Duration = Duration::from_secs(10);

/// Writes a line per event.
pub struct Plain {
    options: Options,
    /// When a line was last written of each node's transfer.
    told: HashMap<String, Instant>,
}

impl Plain {
    /// A renderer.
    pub fn new(options: Options) -> Plain {
        Plain { options, told: HashMap::new() }
    }

    /// Whether it is time for another line of a node's transfer.
    fn is_due(&mut self, node: &str, now: Instant) -> bool {
        let due = self.told.get(node).is_none_or(|last| now.duration_since(*last) >= PAUSE);
        if due {
            self.told.insert(node.to_owned(), now);
        }
        due
    }
}

impl Renderer for Plain {
    fn show(&mut self, event: Event) {
        let talk = !self.options.quiet;
        match event {
            Event::Output { rank, node, stderr, line } => output_line(rank, &node, stderr, &line),
            Event::Warning(text) => err(&format!("warning: {text}")),
            Event::Note(text) if talk => err(&text),
            Event::Phase(name) if talk && self.options.verbose > 0 => err(&name),
            Event::Busy { node, step } if talk && self.options.verbose > 0 => err(&format!("{node}: {step}")),
            Event::Transfer { node, what, done, total, rate } if talk && self.is_due(&node, Instant::now()) => {
                err(&format!("{node}: {}", transferred(&what, done, total, rate)));
            }
            Event::Done { node, what } if talk && !self.options.result_names_nodes => err(&format!("{node}: {what}")),
            Event::Launcher(line) => err(&format!("[launcher] {line}")),
            Event::Job { id, state } if talk && self.options.verbose > 0 => err(&format!("run {id}: {}", word(state))),
            _ => {}
        }
    }
}

/// A state's word.
pub fn word(state: crate::core::job::State) -> String {
    serde_json::to_value(state).ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_writes_a_line_now_and_then() {
        let mut plain = Plain::new(Options { json: false, quiet: false, verbose: 0, result_names_nodes: true });
        let start = Instant::now();
        let due = |plain: &mut Plain, node: &str, seconds| plain.is_due(node, start + Duration::from_secs(seconds));
        assert!(due(&mut plain, "a", 0) && due(&mut plain, "b", 1));
        assert!(!due(&mut plain, "a", 9) && due(&mut plain, "a", 10) && !due(&mut plain, "a", 19));
        assert_eq!(transferred("pulling x", 1 << 30, 3 << 30, 5 << 20), "pulling x: 1.0 GiB of 3.0 GiB, 5.0 MiB/s");
        assert_eq!(transferred("unpacking x", 0, 10, 0), "unpacking x: 0 B of 10 B");
    }
}
