//! `hvdctl init`: machines named on the command line or in an SSH configuration, probed, and written as an inventory.

pub mod draft;
pub mod draft_file;
pub mod machines;
pub mod probe;
pub mod ssh_config;
