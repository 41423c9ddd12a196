//! The files of a project as texts, for what takes nothing else.

use crate::error::Error;
use crate::files;
use crate::sync::ignored::IgnoreRules;
use crate::sync::tree::{unreadable, walked};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;

/// A file of the project that is a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextFile {
    /// Its path in the project.
    pub path: String,
    /// Set if it is executable.
    pub is_executable: bool,
}

/// A reason why a project does not consist of a few texts.
#[derive(Debug)]
pub enum NoTexts {
    /// It has at least this many bytes.
    Large(u64),
    /// This file is not UTF-8, or has a NUL.
    Binary(String),
    /// This path is a symbolic link, or another thing that is no file.
    NoFile(String),
    /// This path is not UTF-8.
    Name(String),
    /// It cannot be read.
    Unreadable(Error),
}

impl From<Error> for NoTexts {
    fn from(error: Error) -> NoTexts {
        NoTexts::Unreadable(error)
    }
}

/// Returns the files that `train` would upload, in byte order. The sizes come before the contents: a large project is
/// refused without being read.
///
/// # Errors
/// Returns why the project is not at most `most` bytes of texts.
pub fn read(root: &Path, most: u64) -> Result<Vec<TextFile>, NoTexts> {
    let mut paths = walked(root, Some(Arc::new(IgnoreRules::of_project(root)?)))?;
    paths.sort_unstable();
    let (mut found, mut bytes) = (Vec::with_capacity(paths.len()), 0u64);
    for path in &paths {
        let name = path.to_str().ok_or_else(|| NoTexts::Name(path.to_string_lossy().into_owned()))?;
        let meta = fs::symlink_metadata(root.join(path)).map_err(|e| unreadable(&root.join(path), &e))?;
        if !meta.is_file() {
            return Err(NoTexts::NoFile(name.to_owned()));
        }
        bytes += meta.len();
        if bytes > most {
            return Err(NoTexts::Large(bytes));
        }
        found.push(TextFile { path: name.to_owned(), is_executable: meta.permissions().mode() & 0o111 != 0 });
    }
    for file in &found {
        let path = root.join(&file.path);
        let text = files::read_regular(&path, most).map_err(|e| unreadable(&path, &e))?;
        if text.contains(&0) || std::str::from_utf8(&text).is_err() {
            return Err(NoTexts::Binary(file.path.clone()));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn only_a_small_project_of_texts_is_read() {
        let project = tempfile::tempdir().unwrap();
        let root = project.path();
        fs::create_dir(root.join("lib")).unwrap();
        for (name, text) in [("train.py", "x"), ("lib/a.py", "ö"), ("ignored.bin", "\0"), (".hvdctlignore", "*.bin\n")]
        {
            fs::write(root.join(name), text).unwrap();
        }
        fs::set_permissions(root.join("train.py"), fs::Permissions::from_mode(0o755)).unwrap();
        let found = read(root, 100).unwrap();
        let found: Vec<_> = found.iter().map(|file| (file.path.as_str(), file.is_executable)).collect();
        assert_eq!(found, [(".hvdctlignore", false), ("lib/a.py", false), ("train.py", true)]);
        assert!(matches!(read(root, 8), Err(NoTexts::Large(9))), "{:?}", read(root, 8));
        fs::write(root.join("lib/b.npy"), "a\0").unwrap();
        assert!(matches!(read(root, 100), Err(NoTexts::Binary(name)) if name == "lib/b.npy"));
        fs::remove_file(root.join("lib/b.npy")).unwrap();
        symlink("train.py", root.join("link")).unwrap();
        assert!(matches!(read(root, 100), Err(NoTexts::NoFile(name)) if name == "link"));
    }
}
