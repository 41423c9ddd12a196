//! Pools: nodes that owners publish for each other in one directory, without a server. Each file there has one node and
//! its owner's signature in OpenSSH's format; whom to believe is in a file of allowed signers on the operator's own
//! machine.
//!
//! `format` has what is signed, `signature` makes a file of it, `signers` reads the allowed signers, and `verification`
//! judges a file: these do no input or output. `key` has an owner's key, and `keygen` signs with those that hvdctl
//! cannot use itself. `directory` reads and writes the directory of a pool on its `machine`, `owner` lets root of a
//! node say whose it is, and `round_trips` measures from node to node. `survey` finds out with these which nodes can be
//! used, and `choice` picks among them.
//!
//! `publish` writes the files of an owner's nodes, `contents` reads those of all, and `pick` makes a cluster of them.

pub mod choice;
pub mod contents;
pub mod directory;
pub mod format;
pub mod inventory;
pub mod key;
pub mod keygen;
pub mod machine;
pub mod owner;
pub mod pick;
pub mod publish;
pub mod round_trips;
pub mod signature;
pub mod signers;
pub mod survey;
pub mod verification;

#[cfg(test)]
mod tests;
