//! A file of the operator's with environment for the ranks.

use crate::error::Error;
use crate::inventory::env_lines;
use crate::secret::Secret;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use zeroize::Zeroizing;

/// More than this is no such file; it keeps a mistaken `/dev/zero` from being read for ever.
const LARGEST: u64 = 1 << 20;

/// Reads it; see [`env_lines`]. No message has a value in it.
///
/// # Errors
/// [`Error::Usage`] with every fault.
pub fn read(path: &Path) -> Result<BTreeMap<String, Secret>, Error> {
    let refused = |why: String| {
        Error::usage(format!("env_file {}: {why}", path.display()), "it has NAME=VALUE lines; # begins a comment")
    };
    let mut bytes = Zeroizing::new(Vec::new());
    File::open(path)
        .and_then(|file| file.take(LARGEST).read_to_end(&mut bytes))
        .map_err(|error| refused(error.to_string()))?;
    let text = std::str::from_utf8(&bytes).map_err(|_| refused("it is no UTF-8 text".into()))?;
    env_lines(text).map_err(|faults| refused(faults.join("\n    ")))
}
