//! The health of the GPUs of a node: `examination` asks the driver, `health` reads what it answers, and `rules` say
//! what is wrong.

pub mod examination;
pub mod health;
pub mod rules;
