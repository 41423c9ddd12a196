//! `hvdctl verify`: whether ranks start where they should, compute together what they should, and have healthy GPUs.
//!
//! `ranks` is what the ranks of its job run and report, `gpus` the health of the GPUs of their nodes, and `verdict`
//! what is wrong by both.

pub mod gpus;
pub mod ranks;
pub mod verdict;
