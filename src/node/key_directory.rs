//! The cluster's key directory on a node.

use super::lines::parts;
use std::collections::BTreeMap;

/// A file in the cluster's key directory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeyFile {
    /// Permission bits in octal, as `stat -c %a` prints them.
    pub mode: String,
    /// `UID:GID`.
    pub owner: String,
    /// Contents of the files that hold no secret; empty for private keys.
    pub text: String,
}

/// The observed key directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyDirectory {
    /// The directory itself (mode and owner), if it is there.
    pub directory: Option<KeyFile>,
    /// As whom hvdctl works there, `UID:GID`, if that is not root.
    pub login: Option<String>,
    /// Its files by name.
    pub files: BTreeMap<String, KeyFile>,
}

impl KeyDirectory {
    /// Returns whether a file belongs to root, or to the login that needs no root.
    pub fn is_own(&self, file: &KeyFile) -> bool {
        file.owner == self.login.as_deref().unwrap_or("0:0")
    }

    /// Takes a line of the script, if it is about this.
    pub(super) fn read(&mut self, key: &str, value: &str) {
        match key {
            "dir" => self.directory = file(value).map(|(_, directory)| directory),
            "login" => self.login = Some(value.to_owned()),
            "file" => self.files.extend(file(value)),
            "text" => {
                let (name, line) = value.split_once(' ').unwrap_or_default();
                if let Some(file) = self.files.get_mut(name) {
                    file.text.extend([line, "\n"]);
                }
            }
            _ => {}
        }
    }
}

/// Parses `NAME MODE OWNER`.
fn file(value: &str) -> Option<(String, KeyFile)> {
    let [name, mode, owner] = parts(value)?;
    Some((name.to_owned(), KeyFile { mode: mode.into(), owner: owner.into(), text: String::new() }))
}
