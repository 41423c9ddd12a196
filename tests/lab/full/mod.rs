//! What only `scripts/test --full` runs: the longest cuts of power and network, TensorFlow.

mod cuts;
mod keras;
