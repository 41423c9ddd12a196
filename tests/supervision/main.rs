//! The node-side programs (`src/scripts/programs`: job supervisor, rank supervisor, reaper) as real processes, without
//! a cluster.
//!
//! A [`cluster::Cluster`] is two nodes on this machine, each a PID and mount namespace of its own. The programs in
//! `stand_ins` replace those of a real cluster: OpenSSH's client and server, horovodrun and mpirun. What only real ones
//! can show is tested in the lab (`tests/lab`).

mod alone;
mod cluster;
mod elastic;
mod environment;
mod failures;
mod job;
mod lost;
mod output;
mod restarts;
mod role_cycles;
mod role_files;
mod roles;
mod samples;
mod stacks;
mod stop;
