//! What only `scripts/test --full` runs: the longest cuts of power and network, TensorFlow, nodes of other distributions
//! and with other settings.

mod cuts;
mod keras;
mod variants;
