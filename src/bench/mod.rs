//! `bench`: measures the network between nodes, what each node knows of itself, and what ranks do together; and says
//! who is slow.
//!
//! [`measure`] asks the nodes and the ranks, which fills [`measurements`] and [`collectives`]. [`verdict`] has the
//! rules, [`ranks`] what the ranks found, and [`report`] shows it all: as text, CSV, JSON and SVG. [`recorded`] says
//! what the ledgers of the nodes keep.

pub mod collectives;
pub mod measure;
pub mod measurements;
pub mod outside;
pub mod ranks;
pub mod recorded;
pub mod report;
pub mod verdict;
