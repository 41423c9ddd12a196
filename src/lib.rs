//! hvdctl: trains one model on many GPU machines over plain SSH and Docker, with Horovod.
//!
//! Dependencies point one way: `commands` → `ops` → `edge` → `core`; `render` draws the events that `ops` sends.
//! `docs/architecture.md` is the map.

pub mod cli;
pub mod commands;
pub mod core;
pub mod edge;
pub mod error;
pub mod event;
pub mod ops;
pub mod render;
