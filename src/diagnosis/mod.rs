//! Why a job failed: the rank or the fault that ended it, the message about it, and what to do next.
//!
//! `root_cause` finds the rank by what is known of all of them. `outcome` makes the message. Its hint is one of these:
//! on the way in which the rank failed (`root_cause`), on its program (`program`), on what that wrote last (`output`),
//! on the launcher (`launchers`), or on a fault that is none of a rank (`faults`). `machine` says which failures are
//! the fault of a machine, `lost` which output and files of the job are lost. Nothing here does input or output.

mod faults;
pub mod launchers;
pub mod lost;
pub mod machine;
pub mod outcome;
mod output;
pub mod program;
mod root_cause;
#[cfg(test)]
mod tests;
