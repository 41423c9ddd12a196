//! Plain data that errors and events carry from the subjects to the terminal. It imports no subject.

pub mod ability;
pub mod allocation;
pub mod check;
pub mod collective;
pub mod engine;
pub mod fault;
pub mod finding;
pub mod format;
pub mod grade;
pub mod idle_rank;
pub mod job_result;
pub mod job_state;
pub mod launcher;
pub mod lease;
pub mod mesh;
pub mod queue;
pub mod restart;
pub mod role;
pub mod role_size;
pub mod root_cause;

pub mod stack;
pub mod start_fault;
pub mod usage;
