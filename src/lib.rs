//! hvdctl: trains one model on many GPU machines over plain SSH and Docker.
#![doc = include_str!("../docs/architecture.md")]

// tests/documented, which is also a module of the unit tests, names the crate
#[cfg(test)]
extern crate self as hvdctl;

pub mod bench;
pub mod cancel;
pub mod checks;
pub mod cli;
pub mod cluster;
pub mod commands;
pub mod data;
pub mod delivery;
pub mod diagnosis;
pub mod doctor;
pub mod document;
pub mod environment;
pub mod error;
pub mod event;
pub mod export;
pub mod files;
pub mod gpus;
pub mod grade;
pub mod image;
pub mod init;
pub mod inventory;
pub mod job;
pub mod keys;
pub mod launch;
pub mod mesh;
pub mod model;
pub mod node;
pub mod paths;
pub mod pool;
pub mod random;
pub mod record;
pub mod render;
pub mod report;
pub mod runtime;
pub mod schedule;
pub mod secret;
pub mod start;
pub mod sync;
pub mod terminal;
pub mod text;
pub mod top;
pub mod trace;
pub mod transport;
pub mod trust;
pub mod verify;
pub mod worker;
