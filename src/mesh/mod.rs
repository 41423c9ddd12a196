//! The encrypted network of a cluster, for nodes on different networks: WireGuard between all of them, in a container
//! on each. hvdctl knows all nodes, so it carries their public keys and says where each may be reached; the agent
//! in the container (`scripts/mesh`) does what has to go on without hvdctl: it connects, finds new addresses, and lets a
//! third node pass packets on where two do not reach each other.
//!
//! `plan` decides which address each node has and what each is to know of the others, `trust` whom of several owners to
//! believe, `install` starts the containers and gives them that, `connect` does all of it in order, and `rules` says what
//! is wrong with a network.

pub mod connect;
pub mod install;
pub mod plan;
pub mod rules;
pub mod trust;
