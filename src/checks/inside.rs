//! What `src/scripts/inside.py` says of the image from inside a worker.

use std::collections::BTreeMap;

/// Versions in a worker.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inside {
    /// `python`, `torch`, `horovod`, `build`, `cuda`, `nccl`, … and their versions; what is not there is not in it. `gpus`: how many
    /// `nvidia-smi` lists.
    pub values: BTreeMap<String, String>,
}

impl Inside {
    /// Parses the script's lines: `KEY VALUE`.
    pub fn parse(text: &str) -> Inside {
        let lines = text.lines().filter_map(|line| line.split_once(' '));
        Inside { values: lines.map(|(key, value)| (key.to_owned(), value.trim().to_owned())).collect() }
    }
}
