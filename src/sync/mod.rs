//! Transfer of projects and outputs.
//!
//! Upload: [`files`] reads the project here, [`manifest`] compares it with what a node has, [`upload`] sends the difference and has
//! it proven. Download: [`outputs`] decides what goes where, [`download`] brings it, [`target`] puts it in its place. [`project`] has
//! the project's name and command.

pub mod download;
pub mod files;
pub mod manifest;
pub mod outputs;
pub mod project;
pub mod target;
pub mod upload;

use crate::event::{Event, Events};
use crate::runtime::pull::Rate;
use std::time::Instant;

/// Bytes between two reports of progress.
const REPORTED: u64 = 4 << 20;

/// Returns a function that is given the bytes transferred so far and reports them.
fn progress(node: &str, what: &str, total: u64, events: &Events) -> impl FnMut(u64) {
    let (mut reported, mut rate, start) = (0, Rate::default(), Instant::now());
    move |done| {
        if done - reported > REPORTED {
            reported = done;
            let (node, what, rate) = (node.to_owned(), what.to_owned(), rate.see(start.elapsed(), done));
            events.send(Event::Transfer { node, what, done: done.min(total), total, rate });
        }
    }
}
