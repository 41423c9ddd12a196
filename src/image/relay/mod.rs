//! A relay on each node, so that an image crosses the operator's link once, or not at all if a node has it.
//!
//! A relay is this program, in a container made from it ([`package`]). It serves the image to its own engine and to other relays while it
//! receives it ([`process`]), from the relay before it in the [`chain`] or, if that fails, from another source (`fetch`). hvdctl talks
//! to it over its standard input and output ([`protocol`]) and ends it with them ([`crew`], [`formation`]): a relay survives no hvdctl.

pub mod chain;
pub mod crew;
mod fetch;
pub mod formation;
pub mod package;
pub mod process;
pub mod protocol;

#[cfg(test)]
mod tests;
