//! Access to nodes over SSH or on this machine: root, scripts and their streams. The only user of `openssh`.

pub mod access;
pub mod host_key;
pub mod local;
pub mod node;
pub mod privileges;
pub mod rootless;
pub mod ssh;
pub mod sudo;
