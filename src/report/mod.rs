//! The report about a job, as one HTML file that anyone can open: its timeline, the usage of ranks, GPUs and nodes,
//! values that the program printed, and why it failed.
//!
//! [`Report`] takes the frames of the job's logs and samples, node by node, in bounded memory. `html` writes the page;
//! it needs no script and no network. Nothing here does input or output.

mod chart;
mod collected;
mod escape;
mod html;
pub mod metric;
mod repeat;
mod series;
pub mod stall;
#[cfg(test)]
mod tests;

pub use collected::Report;
