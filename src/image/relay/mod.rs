//! A relay on each node, so that an image crosses the operator's link once, or not at all if a node has it.
//!
//! A relay is this program, in a container made from it ([`package`]). It serves the image to its own engine and to other relays while it
//! receives it ([`process`]), from the relay before it or, if that fails, from another source (`fetch`); [`order`] decides from
//! which. hvdctl starts relays ([`deployment`]), links them to a [`chain`], and talks to them over their standard input and output
//! ([`protocol`]): they end with these.

pub mod chain;
pub mod deployment;
mod fetch;
pub mod order;
pub mod package;
pub mod process;
pub mod protocol;

#[cfg(test)]
mod tests;
