//! A file on the operator's machine with environment variables for the ranks.

use crate::error::Error;
use crate::files;
use crate::inventory::{Node, env_lines};
use crate::secret::Secret;
use crate::text::quote;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Size limit in bytes, so that reading `/dev/zero` by mistake ends.
const MAX_SIZE: u64 = 1 << 20;

/// Reads such a file, which nobody else may be able to read; [`env_lines`] describes its format.
///
/// # Errors
/// [`Error::Usage`] with every fault. It contains none of the values, which may be secret.
pub fn read(path: &Path) -> Result<BTreeMap<String, Secret>, Error> {
    let with_hint = |why: String, hint: &str| Error::usage(format!("env_file {}: {why}", path.display()), hint);
    let refused = |why: String| with_hint(why, "write NAME=VALUE lines; # begins a comment");
    let bytes = files::read_secret(path, MAX_SIZE).map_err(|fault| {
        match fault.hint(&quote::readable(&path.to_string_lossy())) {
            Some(hint) => with_hint(fault.to_string(), &hint),
            None => refused(fault.to_string()),
        }
    })?;
    if bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") {
        return Err(with_hint("the file is UTF-16 (PowerShell writes that)".to_owned(), "save it as UTF-8"));
    }
    let text = std::str::from_utf8(&bytes).map_err(|_| refused("the file is not UTF-8".into()))?;
    env_lines(text).map_err(|faults| refused(faults.join("\n    ")))
}

/// Returns the variables that the operator gives a job: `variables`, over those of such a file.
///
/// # Errors
/// As [`read`].
pub fn given(file: Option<&Path>, variables: &[(String, String)]) -> Result<BTreeMap<String, Secret>, Error> {
    let mut given = file.map(read).transpose()?.unwrap_or_default();
    given.extend(variables.iter().map(|(name, value)| (name.clone(), Secret::plain(value))));
    Ok(given)
}

/// The variables of each `env_file` that was read.
pub type EnvFiles = BTreeMap<PathBuf, BTreeMap<String, Secret>>;

/// Returns the variables that the inventory sets for programs in a node's containers: `env`, over those of `env_file`.
/// Each file is read once: it may be a pipe, and one that changes must not give ranks different variables.
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
    fn an_env_file_that_others_can_read_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("env");
        std::fs::write(&path, "A=hidden\n").unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
        let error = read(&path).unwrap_err().to_string();
        let words = [": other users can read it (mode 644)", "hint: chmod 600 ", "a Windows drive in WSL"];
        assert!(words.iter().all(|words| error.contains(words)) && !error.contains("hidden"), "{error}");
    }

    #[test]
    fn an_env_file_in_utf_16_is_named_as_such() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("env");
        std::fs::write(&path, b"\xff\xfeA\0=\0\x31\0").unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("the file is UTF-16") && error.ends_with("hint: save it as UTF-8"), "{error}");
    }

    #[test]
    fn an_env_file_is_read_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("env");
        std::fs::write(&path, "A=1\n").unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let mut node = Inventory::local("here", "some/image:1").nodes.remove(0);
        node.container.env_file = Some(path.clone());
        let mut read = EnvFiles::new();
        let first = environment(&node, &mut read).unwrap();
        std::fs::write(&path, "A=2\n").unwrap();
        assert_eq!((first["A"].expose(), &first), ("1", &environment(&node, &mut read).unwrap()));
    }
}
