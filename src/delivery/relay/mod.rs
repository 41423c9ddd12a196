//! A relay on each node, so that an image or data cross the operator's link once, or not at all if a node has the
//! image.
//!
//! A relay is this program, in a container made from it ([`package`]). It serves the image to its own engine, or writes
//! the data to a pipe of its node, and passes them on to other relays while it receives them ([`process`]), from the
//! relay before it or, if that fails, from another source (`fetch`); [`order`] decides from which. hvdctl starts relays
//! ([`deployment`]), links them ([`relays`]; [`chain`]: those of an image), and talks to them over their standard input
//! and output ([`protocol`]): they end with these.

pub mod chain;
pub mod deployment;
mod fetch;
pub mod order;
pub mod package;
pub mod process;
pub mod protocol;
pub mod relays;

#[cfg(test)]
mod tests;
