//! The file that `init` writes: whole or not at all, and over another only with `--force`.

use crate::error::Error;
use anyhow::Context as _;
use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Refuses a file that exists, unless it may be replaced, and one whose directory does not.
///
/// # Errors
/// Naming the file.
pub fn check_free(file: &Path, force: bool) -> Result<(), Error> {
    let directory = directory(file);
    if !directory.is_dir() {
        let why = format!("cannot write {}: the directory {} does not exist", file.display(), directory.display());
        return Err(Error::usage(why, format!("mkdir -p {}", directory.display())));
    }
    match file.symlink_metadata() {
        Ok(_) if file.is_dir() => {
            Err(Error::usage(format!("{} is a directory", file.display()), "name a file with -o"))
        }
        Ok(_) if !force => Err(taken(file)),
        _ => Ok(()),
    }
}

/// Writes a temporary file next to the target and renames it.
///
/// # Errors
/// When another has written the file meanwhile, or it cannot be written.
pub fn write(file: &Path, text: &str, force: bool) -> Result<(), Error> {
    let cannot_write = || format!("cannot write {}", file.display());
    // what a link leads to is replaced, not the link
    let place = if force { file.canonicalize().unwrap_or_else(|_| file.into()) } else { file.to_path_buf() };
    let mode = place.metadata().map_or(Permissions::from_mode(0o666), |there| there.permissions());
    let mut draft = tempfile::Builder::new()
        .prefix(".hvdctl-init.")
        .permissions(mode)
        .tempfile_in(directory(&place))
        .with_context(cannot_write)?;
    draft.write_all(text.as_bytes()).and_then(|()| draft.as_file().sync_all()).with_context(cannot_write)?;
    let moved = if force { draft.persist(&place) } else { draft.persist_noclobber(&place) };
    match moved.map_err(|e| e.error) {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => return Err(taken(file)),
        moved => moved.with_context(cannot_write)?,
    };
    Ok(())
}

fn taken(file: &Path) -> Error {
    let why = format!("{} exists", file.display());
    Error::usage(why, "overwrite it with --force, or name another file with -o FILE")
}

fn directory(file: &Path) -> PathBuf {
    match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        _ => PathBuf::from("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn nothing_is_lost_and_nothing_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.toml");
        check_free(&file, false).unwrap();
        write(&file, "one", false).unwrap();
        assert_eq!(check_free(&file, false).unwrap_err().exit_code(false), 2);
        // one that came between
        assert_eq!(write(&file, "two", false).unwrap_err().exit_code(false), 2);
        assert_eq!(fs::read_to_string(&file).unwrap(), "one");
        fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        let link = dir.path().join("link.toml");
        std::os::unix::fs::symlink("a.toml", &link).unwrap();
        assert!(check_free(&link, false).is_err());
        check_free(&link, true).unwrap();
        write(&link, "three", true).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "three");
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o640);
        assert!(link.symlink_metadata().unwrap().is_symlink());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
        for nowhere in [dir.path().join("b/c.toml"), dir.path().to_path_buf()] {
            assert_eq!(check_free(&nowhere, true).unwrap_err().exit_code(false), 2);
        }
    }
}
