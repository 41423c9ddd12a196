//! `hvdctl init`: machines named on the command line, in an SSH configuration or in a file of another tool, probed, and
//! written as an inventory.

pub mod ansible;
pub mod draft;
pub mod draft_file;
pub mod hostfile;
pub mod machines;
pub mod probe;
pub mod sources;
pub mod ssh_config;
