//! `hvdctl env`.

pub mod create;
pub mod list;
pub mod rm;
