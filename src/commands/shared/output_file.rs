//! Files on the operator's machine that a command writes as a whole.

use crate::error::Error;
use crate::text::quote;
use anyhow::Context as _;
use std::fs::Permissions;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Checks that the file of an option may be written, before anything is done for it. `force`: whether one that exists
/// is replaced.
///
/// # Errors
/// A file that exists, or is no regular file.
pub(in crate::commands) fn check(option: &str, file: &Path, force: bool) -> Result<(), Error> {
    if file.exists() && !force {
        return Err(exists(option, file));
    }
    // with root's rights a device would be replaced as well
    if file.exists() && !file.is_file() {
        let name = quote::readable(&file.display().to_string());
        return Err(Error::usage(format!("{name} is not a regular file"), format!("name another file with {option}")));
    }
    Ok(())
}

/// Returns whether two paths are one file, also one that does not exist yet.
pub(in crate::commands) fn is_same(one: &Path, other: &Path) -> bool {
    let place = |file: &Path| {
        let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        file.canonicalize().ok().or_else(|| Some(directory.canonicalize().ok()?.join(file.file_name()?)))
    };
    one == other || place(one).is_some_and(|one| Some(one) == place(other))
}

fn exists(option: &str, file: &Path) -> Error {
    let name = quote::readable(&file.display().to_string());
    Error::usage(format!("{name} exists"), format!("replace it with --force, or name another file with {option}"))
}

/// Writes the file as a whole, or not at all.
///
/// # Errors
/// The reason why it cannot be written.
pub(in crate::commands) fn write(file: &Path, text: &str, force: bool) -> Result<(), Error> {
    let operation = || format!("cannot write {}", file.display());
    let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let permissions = Permissions::from_mode(0o666);
    let mut new = tempfile::Builder::new().permissions(permissions).tempfile_in(directory).with_context(operation)?;
    new.write_all(text.as_bytes()).with_context(operation)?;
    let persisted = if force { new.persist(file) } else { new.persist_noclobber(file) };
    match persisted {
        Ok(_) => Ok(()),
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => Err(exists("-o", file)),
        Err(error) => Err(anyhow::Error::from(error.error).context(operation()).into()),
    }
}
