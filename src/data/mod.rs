//! Directories of data on the nodes: what each node has of them, what it lacks, and how it gets that.
//!
//! [`transfer`] compares and pushes, after [`checks`]; [`status`] compares nodes. For relays, [`groups`] finds what several nodes lack, and [`parcel`] makes one stream of it.

pub mod checks;
pub mod groups;
pub mod parcel;
pub mod status;
pub mod transfer;
