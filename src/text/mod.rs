//! Text: quoting for shells, folding of node sets, digests, units, and what is safe to show on a terminal.

pub mod argument;
pub mod collectives;
pub mod digest;
pub mod failure;
pub mod moment;
pub mod nodeset;
pub mod packages;
pub mod public_key;
pub mod quote;
pub mod result;
pub mod table;
pub mod units;
pub mod visible;
pub mod wrap;
