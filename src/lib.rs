//! hvdctl: trains one model on many GPU machines over plain SSH and Docker, with Horovod.
//!
//! A directory is a subject, and imports only from what stands below it: `docs/architecture.md` is the map.

pub mod cancel;
pub mod checks;
pub mod cli;
pub mod cluster;
pub mod commands;
pub mod doctor;
pub mod error;
pub mod event;
pub mod init;
pub mod inventory;
pub mod job;
pub mod keys;
pub mod launch;
pub mod model;
pub mod node;
pub mod paths;
pub mod render;
pub mod runtime;
pub mod secret;
pub mod sync;
pub mod terminal;
pub mod text;
pub mod transport;
pub mod worker;
