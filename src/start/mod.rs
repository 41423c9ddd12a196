//! How a job begins.
//!
//! `request` is what was asked for, `liveness` which other jobs go on, `capacity` what these leave of the nodes,
//! `plan` the decision, and `hosts` the nodes of the job; `availability` is why a job cannot have a node, and
//! `in_worker` asks the workers that are up. `roles` are the programs of a job that has several, and `parts` has a
//! launcher for each; `environments` gives nodes the images of roles. `observe` reads all of that from the nodes. `prepare` and `execute` carry the plan out, and
//! `imports` seeks a script's modules meanwhile. `join` adds nodes to a running elastic job. `by_hand` says how a
//! program of a job starts ranks of its own. The room `schedule` does the same where another program chooses the
//! nodes.

pub mod availability;
mod by_hand;
pub mod capacity;
pub mod directory;
pub mod environments;
pub mod execute;
pub mod hosts;
mod imports;
pub mod in_worker;
pub mod join;
pub mod liveness;
pub mod observe;
pub mod parts;
pub mod plan;
pub mod prepare;
pub mod request;
pub mod roles;
