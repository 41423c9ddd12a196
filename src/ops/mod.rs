//! Orchestration: what is done to many nodes at once. It speaks to the edges, asks the core what to do, and tells what
//! happens as events; it never prints.

pub mod cancel;
pub mod doctor;
pub mod exec;
pub mod fetch;
pub mod first_login;
pub mod fleet;
pub mod image;
pub mod jobs;
pub mod lease;
pub mod probe;
pub mod reach;
pub mod run;
pub mod shell;
pub mod ship;
pub mod trust;
pub mod workers;
