//! The history of each node: the events that commands record on the node itself, and the grades that follow from them.
//!
//! [`ledger`] is the form of the records, and [`storage`] reads and writes them. [`evidence`] decides which part of a
//! command's result counts for which node. [`assessment`] makes a grade of a ledger, [`speed`] a speed for training,
//! and [`best`] picks nodes by grade.

pub mod assessment;
pub mod best;
pub mod evidence;
pub mod ledger;
pub mod speed;
pub mod storage;
