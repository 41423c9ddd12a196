//! `pylock.toml` (PEP 751): what of it nodes cannot have, and the same as a requirements file.

use toml::{Table, Value};

/// A file that was read.
#[derive(Debug, Clone, PartialEq)]
pub struct Pylock {
    packages: Vec<Table>,
}

impl Pylock {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// If it is no `pylock.toml` of version 1, or a package is a file or a directory of this machine.
    pub fn parse(text: &str) -> Result<Pylock, String> {
        let table: Table = text.parse().map_err(|error: toml::de::Error| error.message().to_owned())?;
        match table.get("lock-version").and_then(Value::as_str) {
            Some(version) if version.split('.').next() == Some("1") => {}
            Some(version) => return Err(format!("its lock-version is {version}, but hvdctl supports only 1")),
            None => return Err("it has no lock-version, which pylock.toml requires (PEP 751)".to_owned()),
        }
        let packages = table.get("packages").and_then(Value::as_array).cloned().unwrap_or_default();
        let packages: Vec<Table> = packages.into_iter().filter_map(|package| package.as_table().cloned()).collect();
        match packages.iter().find(|package| is_local(package)) {
            Some(package) => Err(format!(
                "the package {} is a file or directory of this machine, which nodes do not have",
                name(package)
            )),
            None => Ok(Pylock { packages }),
        }
    }

    /// Returns its packages as a requirements file, with their hashes: for wheels of a directory instead of those at
    /// the file's addresses.
    ///
    /// # Errors
    /// If a package has no version, or is for some extras or groups only.
    pub fn requirements(&self) -> Result<String, String> {
        self.packages.iter().map(requirement).collect()
    }
}

fn text<'a>(table: &'a Table, key: &str) -> &'a str {
    table.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn name(package: &Table) -> &str {
    text(package, "name")
}

/// The tables of a package that say where it comes from.
fn sources(package: &Table) -> impl Iterator<Item = &Table> {
    let one = ["directory", "archive", "vcs", "sdist"].into_iter().filter_map(|key| package.get(key)?.as_table());
    let wheels = package.get("wheels").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_table);
    one.chain(wheels)
}

/// Returns whether a package comes from a path that is relative to the file.
fn is_local(package: &Table) -> bool {
    let is_relative = |path: &str| !path.is_empty() && !path.starts_with('/');
    package.contains_key("directory")
        || sources(package).any(|source| !source.contains_key("url") && is_relative(text(source, "path")))
}

/// Returns the line of a package: `NAME==VERSION ; MARKER --hash=…`.
fn requirement(package: &Table) -> Result<String, String> {
    let (name, version, marker) = (name(package), text(package, "version"), text(package, "marker"));
    if version.is_empty() {
        return Err(format!("the package {name} has no version"));
    }
    if ["extras", "dependency_groups"].iter().any(|word| marker.contains(word)) {
        return Err(format!("the package {name} is only for some extras or groups: {marker}"));
    }
    let mut line = format!("{name}=={version}");
    if !marker.is_empty() {
        line += &format!(" ; {marker}");
    }
    let hashes = sources(package).filter_map(|source| source.get("hashes")?.as_table());
    let hashes = hashes.flatten().filter_map(|(algorithm, hash)| Some((algorithm, hash.as_str()?)));
    hashes.for_each(|(algorithm, hash)| line += &format!(" --hash={algorithm}:{hash}"));
    Ok(line + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: &str = r#"
lock-version = "1.0"
created-by = "uv"
requires-python = ">=3.9"

[[packages]]
name = "idna"
version = "3.20"
index = "https://index.example/simple"
sdist = { url = "https://files.example/i.tar.gz", upload-time = 2026-09-17T14:11:04Z, hashes = { sha256 = "aa" } }
wheels = [{ url = "https://files.example/idna-3.20-py3-none-any.whl", hashes = { sha256 = "bb" } }]

[[packages]]
name = "torch"
version = "2.4.0"
marker = "sys_platform == 'linux'"
wheels = [
  { url = "https://files.example/a.whl", hashes = { sha256 = "cc" } },
  { path = "/shared/b.whl", hashes = { sha256 = "dd" } },
]
"#;

    #[test]
    fn the_packages_are_requirements_with_hashes() {
        let lock = Pylock::parse(LOCK).unwrap();
        assert_eq!(lock.packages.len(), 2);
        assert_eq!(
            lock.requirements().unwrap(),
            "idna==3.20 --hash=sha256:aa --hash=sha256:bb\n\
             torch==2.4.0 ; sys_platform == 'linux' --hash=sha256:cc --hash=sha256:dd\n"
        );
        let grouped = LOCK.replace("sys_platform == 'linux'", "'dev' in dependency_groups");
        let fault = Pylock::parse(&grouped).unwrap().requirements().unwrap_err();
        assert_eq!(fault, "the package torch is only for some extras or groups: 'dev' in dependency_groups");
        let fault = Pylock::parse(&LOCK.replace("version = \"2.4.0\"\n", "")).unwrap().requirements().unwrap_err();
        assert_eq!(fault, "the package torch has no version");
    }

    #[test]
    fn what_nodes_cannot_have_is_refused() {
        for (text, fault) in [
            ("version = 1\n".to_owned(), "it has no lock-version, which pylock.toml requires (PEP 751)"),
            ("lock-version = \"2.1\"\n".to_owned(), "its lock-version is 2.1, but hvdctl supports only 1"),
            (
                format!("{LOCK}[[packages]]\nname = \"own\"\ndirectory = {{ path = \".\" }}\n"),
                "the package own is a file or directory of this machine, which nodes do not have",
            ),
            (
                LOCK.replace("/shared/b.whl", "wheels/b.whl"),
                "the package torch is a file or directory of this machine, which nodes do not have",
            ),
        ] {
            assert_eq!(Pylock::parse(&text).unwrap_err(), fault);
        }
        assert!(Pylock::parse("lock-version = ").is_err());
    }
}
