//! The main job on real nodes: pairs of machines with their own sshd and Docker Engine (`scripts/lab up --pairs N`),
//! real Horovod.
//!
//! `scripts/test` runs them, as many at once as there are pairs. Every test creates the state that it needs, and
//! examines the nodes themselves (processes, containers, files) and not only hvdctl's output. `scripts/test --full`
//! adds the module `full`, the second controller of each test that goes through [`state::controllers`], and the larger
//! sizes and numbers of tests that read [`state::FULL`].

mod bench;
mod concurrent;
mod connections;
mod converge;
mod doctor;
#[path = "../documented/mod.rs"]
mod documented;
mod down;
mod endings;
mod exec_fetch;
mod first_contact;
mod full;
mod gpus;
#[path = "../guide/mod.rs"]
mod guide;
mod guides;
mod images;
mod init;
mod jobs;
mod keys;
mod kubernetes;
mod launchers;
mod lease;
mod local;
mod logins;
mod mallory;
mod matrix;
mod modern;
mod network;
mod notebook;
mod operator;
mod owners;
mod pool;
mod process;
mod projects;
mod roles;
mod rotate;
mod shell;
mod shells;
mod slurm;
mod spec;
mod state;
mod status;
mod strangers;
mod top;
mod train;
mod up;
mod up_faults;
mod variants;
mod verify;
mod watch;
mod worker_logins;
