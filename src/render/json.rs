//! JSON: a line per event of a run; for other commands only their result, so nothing here but remarks.

use super::{Options, Renderer, err, out};
use crate::event::Event;
use serde_json::{Value, json};
use std::time::Instant;

/// Writes JSON lines to standard output.
pub struct Json(Options);

impl Json {
    /// A renderer.
    pub fn new(options: Options) -> Json {
        Json(options)
    }
}

/// The line of an event; `None` for those that are not part of a run's record.
pub fn line(event: &Event) -> Option<Value> {
    Some(match event {
        Event::Output { rank, node, stderr, line } => json!({
            "event": "output",
            "rank": rank,
            "node": node,
            "stream": if *stderr { "stderr" } else { "stdout" },
            "line": String::from_utf8_lossy(line),
        }),
        Event::Job { id, state } => json!({ "event": "job", "id": id, "state": state }),
        Event::Done { node, what } => json!({ "event": "node", "node": node, "done": what }),
        Event::Failed(error) => json!({ "event": "node", "node": error.node, "error": error }),
        Event::Restart(text) => json!({ "event": "restart", "text": text }),
        Event::Launcher(line) => json!({ "event": "launcher", "line": line }),
        _ => return None,
    })
}

impl Renderer for Json {
    fn show(&mut self, event: Event, _now: Instant) {
        match event {
            Event::Warning(text) => err(&format!("warning: {text}")),
            Event::Note(text) if !self.0.quiet => err(&text),
            // a command whose result is one document keeps standard output for it
            event if !self.0.result_names_nodes => {
                if let Some(line) = line(&event) {
                    out(&format!("{line}\n"));
                }
            }
            _ => {}
        }
    }
}
