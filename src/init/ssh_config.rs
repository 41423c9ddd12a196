//! The operator's ssh configuration, read for the names that it gives to machines.

use crate::error::Error;
use crate::transport::ssh::Client;
use std::collections::HashSet;
use std::fs;
use std::path::Path;

/// ssh itself follows no deeper.
const DEPTH: usize = 16;

/// The names in the user's configuration for this ssh and the files that it includes, in their order, each once. A configuration that
/// is not there has none.
///
/// # Errors
/// When it is there and cannot be read.
pub fn read(client: &Client) -> Result<Vec<String>, Error> {
    let Some(config) = client.config() else { return Ok(Vec::new()) };
    // as in ssh, $HOME applies to what an `Include` names
    let home = std::env::home_dir().unwrap_or_default();
    let mut names = Vec::new();
    match fs::read(&config) {
        Ok(text) => walk(&String::from_utf8_lossy(&text), &home, DEPTH, &mut names),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        Err(e) => return Err(Error::Local(format!("cannot read {}: {e}", config.display()))),
    }
    let mut known = HashSet::new();
    names.retain(|name| known.insert(name.clone()));
    Ok(names)
}

/// Adds the names of the `Host` lines of a configuration and of what it includes: no patterns, nothing taken away.
fn walk(config: &str, home: &Path, depth: usize, names: &mut Vec<String>) {
    for line in config.lines() {
        // `Host a`, `Host=a` and `Host = a` are the same
        let line = line.replacen('=', " ", 1);
        let mut words =
            line.split_whitespace().map(|word| word.trim_matches('"')).take_while(|word| !word.starts_with('#'));
        match words.next().unwrap_or_default().to_ascii_lowercase().as_str() {
            "host" => names.extend(words.filter(|name| !name.contains(['!', '*', '?'])).map(str::to_owned)),
            "include" if depth > 0 => {
                for file in words.flat_map(|pattern| files(pattern, home)) {
                    // as in ssh, an unreadable file is skipped
                    let text = fs::read(file).unwrap_or_default();
                    walk(&String::from_utf8_lossy(&text), home, depth - 1, names);
                }
            }
            _ => {}
        }
    }
}

/// The files that an `Include` means, in the order of their names. A relative one starts from `~/.ssh`.
fn files(pattern: &str, home: &Path) -> Vec<std::path::PathBuf> {
    let path = match pattern.strip_prefix("~/") {
        Some(rest) => home.join(rest),
        None => home.join(".ssh").join(pattern),
    };
    glob::glob(&path.to_string_lossy()).map(|found| found.flatten().collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::walk;

    #[test]
    fn hosts_and_includes_in_their_order() {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(home.path().join(".ssh/d")).unwrap();
        std::fs::write(home.path().join(".ssh/d/1"), "Host one\nInclude d/*").unwrap();
        let text = "# Host no\nHost *\n  User ana\nHost gpu1 gpu1.example.org !gpu9 gpu? # head\n  HostName 10.0.0.1\n\
                    HOST=gpu2\ninclude ~/.ssh/d/* missing\nHost = \"gpu3\"\nHostName gpu4\nMatch host gpu5\n\tHost\tgpu6";
        let mut names = Vec::new();
        walk(text, home.path(), 1, &mut names);
        assert_eq!(names, ["gpu1", "gpu1.example.org", "gpu2", "one", "gpu3", "gpu6"]);
    }
}
