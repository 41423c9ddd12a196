//! The cluster's keys: the pair, `authorized_keys`, `known_hosts`, and how nodes get them.

pub mod files;
pub mod first_login;
pub mod key_pair;
pub mod push;
pub mod reachability;
pub mod status;
