//! A project's directory on this machine.

use super::project::{self, ProjectCommand};
use crate::cluster::nodes::host_name;
use crate::error::Error;
use crate::text::argument::ProgramArgument;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Returns the absolute path of a project's directory, without symbolic links.
///
/// # Errors
/// If it is no directory, or the root of the file system.
pub fn find(path: &Path) -> Result<PathBuf, Error> {
    let shown = path.display();
    let wrong = |why: String| Error::usage(why, "name the project's directory, e.g. hvdctl train ./myproject -np 2");
    let root = fs::canonicalize(path).map_err(|e| {
        let cause = e.to_string();
        let cause = cause.split(" (os error").next().unwrap_or_default();
        wrong(format!("cannot read the project {shown}: {cause}"))
    })?;
    match root.file_name() {
        _ if !root.is_dir() => Err(wrong(format!("the project {shown} is not a directory"))),
        None => Err(wrong(format!("{shown} is the root of the file system"))),
        Some(_) => Ok(root),
    }
}

/// Returns the origin of a project, `HOST:DIRECTORY`.
pub fn origin(root: &Path) -> String {
    format!("{}:{}", host_name(), root.display())
}

/// Returns the command of a project and its launcher, as [`project::command`] finds them.
///
/// # Errors
/// If there is none, or more than one; if `hvdctl.toml` cannot be read.
pub fn command(root: &Path, given: &[ProgramArgument]) -> Result<ProjectCommand, Error> {
    let path = root.join("hvdctl.toml");
    let file = match fs::read_to_string(&path) {
        Ok(text) => Some(text),
        Err(e) if e.kind() == ErrorKind::NotFound => None,
        Err(e) => return Err(Error::usage(format!("{}: {e}", path.display()), "fix or remove the file")),
    };
    let has = |name: &str| root.join(name).is_file();
    project::command(given, file.as_deref(), has("train.py"), has("main.py")).map_err(|e| {
        Error::usage(
            format!("the project {} has no clear entry point: {e}", root.display()),
            "name the program: hvdctl train PROJECT -np N -- python your_script.py",
        )
    })
}
