//! The main job on real nodes: pairs of machines with their own sshd and Docker Engine (`scripts/lab up --pairs N`), real Horovod.
//!
//! `scripts/test` runs them, as many at once as there are pairs. Every test brings the state that it needs, and looks at the nodes
//! themselves (processes, containers, files) rather than at what hvdctl says of them. `scripts/test --full` adds the module
//! `full`, the second controller of each test that goes through [`state::controllers`], and the larger sizes and numbers of what asks
//! [`state::FULL`].

mod back;
mod concurrent;
mod converge;
mod desk;
mod doctor;
#[path = "../documented/mod.rs"]
mod documented;
mod down;
mod endings;
mod first_contact;
mod full;
mod init;
mod jobs;
mod json;
mod keys;
mod launchers;
mod lease;
mod local;
mod logins;
mod matrix;
mod pool;
mod process;
mod projects;
mod reach;
mod rotate;
mod shell;
mod shells;
mod spec;
mod state;
mod status;
mod train;
mod up;
mod up_faults;
mod verify;
mod watch;
