//! The operator's ssh configuration, read for the names that it gives to machines.

use crate::error::Error;
use crate::init::aliases::{self, Line};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// ssh itself follows no deeper.
const DEPTH: usize = 16;
/// A larger file than this is no configuration.
const LARGEST: u64 = 4 << 20;

/// The names in `~/.ssh/config` and the files that it includes, in their order, each once. A configuration that is not
/// there has none.
///
/// # Errors
/// When it is there and cannot be read.
pub fn read() -> Result<Vec<String>, Error> {
    let Some(home) = std::env::home_dir() else { return Ok(Vec::new()) };
    let config = home.join(".ssh/config");
    let mut names = Vec::new();
    match text(&config) {
        Ok(text) => walk(&text, &home, DEPTH, &mut names),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        Err(e) => return Err(Error::Here(format!("cannot read {}: {e}", config.display()))),
    }
    let mut known = std::collections::HashSet::new();
    names.retain(|name| known.insert(name.clone()));
    Ok(names)
}

fn walk(config: &str, home: &Path, depth: usize, names: &mut Vec<String>) {
    for line in aliases::lines(config) {
        match line {
            Line::Alias(name) => names.push(name),
            Line::Include(pattern) => {
                for file in files(&pattern, home) {
                    // as ssh does, a file that cannot be read is passed over
                    if let (Ok(config), 1..) = (text(&file), depth) {
                        walk(&config, home, depth - 1, names);
                    }
                }
            }
        }
    }
}

/// The files that an `Include` means, in the order of their names. A relative one starts from `~/.ssh`.
fn files(pattern: &str, home: &Path) -> Vec<PathBuf> {
    let path = match pattern.strip_prefix("~/") {
        Some(rest) => home.join(rest),
        None => home.join(".ssh").join(pattern),
    };
    glob::glob(&path.to_string_lossy()).map(|found| found.flatten().collect()).unwrap_or_default()
}

fn text(path: &Path) -> std::io::Result<String> {
    // a pipe would be waited for
    if !path.metadata()?.is_file() {
        return Err(std::io::Error::other("it is no file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(LARGEST).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
