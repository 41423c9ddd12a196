//! The main job on the lab (`scripts/lab up`): two machines with their own sshd and Docker Engine, real Horovod.
//!
//! `cargo test --features lab --test lab -- --test-threads=1`. Every test brings the state that it needs, and looks at
//! the nodes themselves (processes, containers, files) rather than at what hvdctl says of them.

mod back;
mod beside;
mod converge;
mod desk;
mod doctor;
#[path = "../documented/mod.rs"]
mod documented;
mod down;
mod endings;
mod first_contact;
mod init;
mod jobs;
mod json;
#[cfg(feature = "lab-tensorflow")]
mod keras;
mod keys;
mod lease;
mod local;
mod logins;
mod matrix;
mod process;
mod projects;
mod reach;
mod rotate;
mod shell;
mod spec;
mod state;
mod status;
mod train;
mod up;
mod up_faults;
mod verify;
mod watch;
