//! Lines without colours or movement, for pipes, files and CI.

use super::{Options, Renderer, err, output_line};
use crate::event::Event;

/// Writes a line per event.
pub struct Plain(Options);

impl Plain {
    /// A renderer.
    pub fn new(options: Options) -> Plain {
        Plain(options)
    }
}

impl Renderer for Plain {
    fn show(&mut self, event: Event) {
        let talk = !self.0.quiet;
        match event {
            Event::Output { rank, node, stderr, line } => output_line(rank, &node, stderr, &line),
            Event::Warning(text) => err(&format!("warning: {text}")),
            Event::Note(text) if talk => err(&text),
            Event::Phase(name) if talk && self.0.verbose > 0 => err(&name),
            Event::Busy { node, step } if talk && self.0.verbose > 0 => err(&format!("{node}: {step}")),
            Event::Done { node, what } if talk && !self.0.result_names_nodes => err(&format!("{node}: {what}")),
            Event::Launcher(line) => err(&format!("[launcher] {line}")),
            Event::Job { id, state } if talk && self.0.verbose > 0 => err(&format!("run {id}: {}", word(state))),
            _ => {}
        }
    }
}

/// A state's word.
pub fn word(state: crate::core::job::State) -> String {
    serde_json::to_value(state).ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
}
