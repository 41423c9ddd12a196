//! The pure core: what a cluster should be, what was seen of it, and what follows.
//!
//! Nothing in here knows ssh, Docker, tokio or a terminal; everything is plain values in and plain values out, so
//! that tables and properties can test it.

pub mod access;
pub mod aliases;
pub mod doctor;
pub mod draft;
pub mod export;
pub mod facts;
pub mod fetch;
pub mod frames;
pub mod hash;
pub mod holding;
pub mod hostkey;
pub mod hosts;
pub mod hostset;
pub mod inventory;
pub mod job;
pub mod launch;
pub mod lease;
pub mod logs;
pub mod manifest;
pub mod network;
pub mod places;
pub mod plan;
pub mod project;
pub mod pull;
pub mod quote;
pub mod reach;
pub mod records;
pub mod secret;
pub mod slots;
pub mod spec;
pub mod tails;
pub mod trust;
pub mod units;
pub mod verify;
pub mod visible;
pub mod word;
