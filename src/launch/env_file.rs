//! A file on the operator's machine with environment variables for the ranks.

use crate::error::Error;
use crate::inventory::{Node, env_lines};
use crate::secret::Secret;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
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

/// The variables of each `env_file` that was read.
pub type EnvFiles = BTreeMap<PathBuf, BTreeMap<String, Secret>>;

/// Returns the variables that the inventory sets for programs in a node's containers: `env`, over those of `env_file`. Each file is read
/// once: it may be a pipe, and one that changes must not give ranks different variables.
///
/// # Errors
/// When the file cannot be used.
pub fn environment(node: &Node, read: &mut EnvFiles) -> Result<BTreeMap<String, Secret>, Error> {
    let mut environment = BTreeMap::new();
    if let Some(path) = &node.container.env_file {
        if !read.contains_key(path) {
            read.insert(path.clone(), self::read(path)?);
        }
        environment.clone_from(&read[path]);
    }
    environment.extend(node.container.env.iter().map(|(name, value)| (name.clone(), Secret::plain(value.as_str()))));
    Ok(environment)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::Inventory;

    #[test]
    fn an_env_file_is_read_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("env");
        std::fs::write(&path, "A=1\n").unwrap();
        let mut node = Inventory::local("here", "some/image:1").nodes.remove(0);
        node.container.env_file = Some(path.clone());
        let mut read = EnvFiles::new();
        let first = environment(&node, &mut read).unwrap();
        std::fs::write(&path, "A=2\n").unwrap();
        assert_eq!((first["A"].expose(), &first), ("1", &environment(&node, &mut read).unwrap()));
    }
}
