//! JSON: a line per event of a run; for other commands only their result, so nothing here but remarks.

use super::{Options, Renderer, err, out};
use crate::event::Event;
use serde_json::json;

/// Writes JSON lines to standard output.
pub struct Json(Options);

impl Json {
    /// A renderer.
    pub fn new(options: Options) -> Json {
        Json(options)
    }

    fn line(&self, value: &serde_json::Value) {
        // a command whose result is one document keeps standard output for it
        if !self.0.result_names_nodes {
            out(&format!("{value}\n"));
        }
    }
}

impl Renderer for Json {
    fn show(&mut self, event: Event) {
        match event {
            Event::Output { rank, node, stderr, line } => self.line(&json!({
                "event": "output",
                "rank": rank,
                "node": node,
                "stream": if stderr { "stderr" } else { "stdout" },
                "line": String::from_utf8_lossy(&line),
            })),
            Event::Job { id, state } => self.line(&json!({ "event": "job", "id": id, "state": state })),
            Event::Done { node, what } => self.line(&json!({ "event": "node", "node": node, "done": what })),
            Event::Failed(error) => self.line(&json!({ "event": "node", "node": error.node, "error": error })),
            Event::Launcher(line) => self.line(&json!({ "event": "launcher", "line": line })),
            Event::Warning(text) => err(&format!("warning: {text}")),
            Event::Note(text) if !self.0.quiet => err(&text),
            Event::Note(_) | Event::Phase(_) | Event::Busy { .. } | Event::Transfer { .. } | Event::Suspend(_) => {}
        }
    }
}
