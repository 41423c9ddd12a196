//! A file on the operator's machine with environment variables for the ranks.

use crate::error::Error;
use crate::inventory::env_lines;
use crate::secret::Secret;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use zeroize::Zeroizing;

/// Size limit in bytes, so that reading `/dev/zero` by mistake ends.
const MAX_SIZE: u64 = 1 << 20;

/// Reads such a file; [`env_lines`] describes its format.
///
/// # Errors
/// [`Error::Usage`] with every fault. It contains none of the values, which may be secret.
pub fn read(path: &Path) -> Result<BTreeMap<String, Secret>, Error> {
    let refused = |why: String| {
        Error::usage(format!("env_file {}: {why}", path.display()), "write NAME=VALUE lines; # begins a comment")
    };
    let mut bytes = Zeroizing::new(Vec::new());
    File::open(path)
        .and_then(|file| file.take(MAX_SIZE).read_to_end(&mut bytes))
        .map_err(|error| refused(error.to_string()))?;
    let text = std::str::from_utf8(&bytes).map_err(|_| refused("the file is not UTF-8".into()))?;
    env_lines(text).map_err(|faults| refused(faults.join("\n    ")))
}
