//! Why a job failed: the rank or the fault that ended it, the message about it, and the next step.
//!
//! `root_cause` finds the rank, by the ends of all of them; `missing` does where ranks only gave up waiting for it. `failure` makes the message on an `outcome`. Its hint is one
//! of these: on the way in which the rank failed (`root_cause`), on its program (`program`), on its last lines
//! (`output`; `questions` and `ports` have those on input and on ports in use), on the launcher (`launchers`), or on a fault other than a rank's (`faults`). `machine` tells a machine's
//! failures from a program's, and `lost` names the output and files that are lost with a job. Nothing here does input or
//! output.

mod failure;
mod faults;
pub mod launchers;
pub mod lost;
pub mod machine;
mod missing;
pub mod outcome;
mod output;
pub mod ports;
pub mod program;
mod questions;
mod root_cause;
#[cfg(test)]
mod tests;
