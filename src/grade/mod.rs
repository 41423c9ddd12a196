//! How good each node has been: what commands record of it, on the node itself, and the grades that follow from that.
//!
//! [`ledger`] is the form of what is recorded, and [`storage`] reads and writes it. [`evidence`] says what of a
//! command's result counts for which node. [`assessment`] makes a grade of a ledger, [`speed`] a speed for training,
//! and [`best`] picks nodes by grade.

pub mod assessment;
pub mod best;
pub mod evidence;
pub mod ledger;
pub mod speed;
pub mod storage;
