//! A job as it runs, rank by rank, on the whole terminal.
//!
//! `view` is what is known, `draw` shows it, and both are pure. `screen` owns the terminal; `watch` follows the logs
//! and samples of the nodes, `stacks` reads where the ranks are.

pub mod draw;
pub mod screen;
pub mod stacks;
#[cfg(test)]
mod tests;
pub mod view;
pub mod watch;
