//! JSON: a line per event of a job. Other commands write only their result, so nothing here but messages.

use super::{Options, Renderer, err, out};
use crate::event::Event;
use std::time::Instant;

/// Writes JSON lines to standard output.
pub struct Json(pub Options);

impl Renderer for Json {
    fn show(&mut self, event: Event, _now: Instant) {
        match event {
            Event::Warning(text) => err(&format!("warning: {text}")),
            Event::Note(text) if !self.0.quiet => err(&text),
            // events that are not part of a job's record do not serialize
            event if self.0.streams_output => {
                if let Ok(line) = serde_json::to_string(&event) {
                    out(&format!("{line}\n"));
                }
            }
            _ => {}
        }
    }
}
