//! The lines of a requirements file: what it includes becomes part of it, and what only this machine has is refused.

use std::path::{Path, PathBuf};

/// The depth to which files may include each other.
const MAX_DEPTH: usize = 16;

/// A requirements file with all that it includes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FlatRequirements {
    /// The lines of all files.
    pub text: String,
    /// The lines of all files of constraints.
    pub constraints: String,
}

/// A reason why a requirements file cannot be used on nodes.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequirementsFault {
    /// A file cannot be read.
    #[error("{0}")]
    Unreadable(String),
    /// Files include each other.
    #[error("{0} includes other files too deeply; does it include itself?")]
    TooDeep(String),
    /// A line names a file of this machine.
    #[error("{file} line {line}: `{text}` is a file or directory of this machine, which nodes do not have")]
    LocalFile {
        /// The file.
        file: String,
        /// The number of the line.
        line: usize,
        /// The line.
        text: String,
    },
}

/// The meaning of a line of a requirements file.
#[derive(Debug, PartialEq, Eq)]
enum RequirementLine<'a> {
    /// It includes this file.
    Includes(&'a str),
    /// It names a file of constraints.
    Constrains(&'a str),
    /// It names a relative path.
    IsLocal,
    /// Anything else.
    Other,
}

impl FlatRequirements {
    /// Reads a file and what it includes with `read`.
    ///
    /// # Errors
    /// If a file cannot be read, or a line names a relative path.
    pub fn new(
        file: &Path,
        read: &mut dyn FnMut(&Path) -> Result<String, String>,
    ) -> Result<FlatRequirements, RequirementsFault> {
        let mut flat = FlatRequirements::default();
        flat.add(file, false, 0, read)?;
        Ok(flat)
    }

    fn add(
        &mut self,
        file: &Path,
        is_constraint: bool,
        depth: usize,
        read: &mut dyn FnMut(&Path) -> Result<String, String>,
    ) -> Result<(), RequirementsFault> {
        if depth > MAX_DEPTH {
            return Err(RequirementsFault::TooDeep(file.display().to_string()));
        }
        let text = read(file).map_err(RequirementsFault::Unreadable)?;
        let next_to = |name: &str| file.parent().map_or_else(|| PathBuf::from(name), |directory| directory.join(name));
        for (line, number) in text.lines().zip(1..) {
            match kind(line) {
                RequirementLine::Includes(name) => self.add(&next_to(name), is_constraint, depth + 1, read)?,
                RequirementLine::Constrains(name) => self.add(&next_to(name), true, depth + 1, read)?,
                RequirementLine::IsLocal => {
                    let (file, text) = (file.display().to_string(), line.trim().to_owned());
                    return Err(RequirementsFault::LocalFile { file, line: number, text });
                }
                RequirementLine::Other => {
                    let of = if is_constraint { &mut self.constraints } else { &mut self.text };
                    of.push_str(line);
                    of.push('\n');
                }
            }
        }
        Ok(())
    }
}

/// Returns what follows an option: `-r FILE`, `-rFILE`, `--requirement FILE` or `--requirement=FILE`.
fn value<'a>(line: &'a str, short: &str, long: &str) -> Option<&'a str> {
    let rest = match line.strip_prefix(long) {
        Some(rest) => rest.strip_prefix('=').or_else(|| rest.starts_with(char::is_whitespace).then_some(rest))?,
        None => line.strip_prefix(short).filter(|_| !line.starts_with("--"))?,
    };
    Some(rest.trim())
}

fn kind(line: &str) -> RequirementLine<'_> {
    // a `#` begins a comment at the beginning of a line or behind a space
    let end = line.match_indices('#').find(|(at, _)| *at == 0 || line[..*at].ends_with(char::is_whitespace));
    let line = line[..end.map_or(line.len(), |(at, _)| at)].trim();
    for (short, long, is_constraint) in [("-r", "--requirement", false), ("-c", "--constraint", true)] {
        match value(line, short, long) {
            Some(url) if url.contains("://") => return RequirementLine::Other,
            Some(file) if is_constraint => return RequirementLine::Constrains(file),
            Some(file) => return RequirementLine::Includes(file),
            None => {}
        }
    }
    let place = value(line, "-e", "--editable").or_else(|| value(line, "-f", "--find-links"));
    let is_place = place.is_some();
    let place = place.or_else(|| line.split_once(" @ ").map(|(_, place)| place.trim())).unwrap_or(line);
    if is_relative(place, is_place) { RequirementLine::IsLocal } else { RequirementLine::Other }
}

/// Returns whether a text names a file relative to another one. `is_place`: it is a path unless it is a URL.
fn is_relative(text: &str, is_place: bool) -> bool {
    if text.contains("://") || text.starts_with('/') {
        return false;
    }
    let path = text.split([';', ' ']).next().unwrap_or_default();
    let is_archive = [".whl", ".tar.gz", ".zip"].iter().any(|end| path.ends_with(end));
    is_place || text.starts_with('.') || text.starts_with("file:") || is_archive
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flat(files: &[(&str, &str)]) -> Result<FlatRequirements, RequirementsFault> {
        let mut read = |path: &Path| {
            let found = files.iter().find(|(name, _)| Path::new(name) == path);
            found.map(|(_, text)| (*text).to_owned()).ok_or_else(|| format!("there is no {}", path.display()))
        };
        FlatRequirements::new(Path::new(files[0].0), &mut read)
    }

    #[test]
    fn files_that_are_included_become_one() {
        let main = "# ours\n-r base.txt # all need it\n--requirement=sub/more.txt\n-c pins.txt\n\
                    numpy>=1.2 \\\n  --hash=sha256:00\n";
        let files = [
            ("p/requirements.txt", main),
            ("p/base.txt", "torch==2.4\n"),
            ("p/sub/more.txt", "-rdeep.txt\n--index-url https://mirror.example/simple\n"),
            ("p/sub/deep.txt", "git+https://example.com/x.git#egg=x\n"),
            ("p/pins.txt", "-r pins2.txt\nsix<2\n"),
            ("p/pins2.txt", "idna<4"),
        ];
        let FlatRequirements { text, constraints } = flat(&files).unwrap();
        assert_eq!(
            text,
            "# ours\ntorch==2.4\ngit+https://example.com/x.git#egg=x\n--index-url https://mirror.example/simple\n\
             numpy>=1.2 \\\n  --hash=sha256:00\n"
        );
        assert_eq!(constraints, "idna<4\nsix<2\n");
        assert_eq!(flat(&[("r.txt", "-r r.txt\n")]).unwrap_err(), RequirementsFault::TooDeep("r.txt".into()));
        let missing = flat(&[("d/r.txt", "-r no.txt")]).unwrap_err();
        assert_eq!(missing.to_string(), "there is no d/no.txt");
    }

    #[test]
    fn what_only_this_machine_has_is_refused() {
        for line in [
            "-e .",
            "--editable ./lib",
            "./lib",
            "../lib[gpu]",
            "lib @ ./lib",
            "lib @ file:../lib",
            "wheels/a-1-py3-none-any.whl",
            "a-1.tar.gz ; python_version > '3.8'",
            "--find-links wheels",
            "-f wheels",
        ] {
            let fault = flat(&[("r.txt", &format!("six\n{line}\n"))]).unwrap_err();
            let text = line.to_owned();
            assert_eq!(fault, RequirementsFault::LocalFile { file: "r.txt".into(), line: 2, text }, "{line}");
        }
        for line in [
            "",
            "six",
            "torch==2.4.0+cu121",
            "zope.interface",
            "-e git+https://example.com/x.git#egg=x",
            "a @ https://example.com/a-1.tar.gz",
            "https://example.com/a-1.whl",
            "/shared/wheels/a-1-py3-none-any.whl",
            "a @ file:///shared/a",
            "--find-links https://download.example/whl",
            "-f /shared/wheels",
            "--extra-index-url https://mirror.example/simple",
            "-r https://example.com/r.txt",
            "--pre",
        ] {
            assert_eq!(flat(&[("r.txt", line)]).unwrap().text.trim_end(), line);
        }
    }
}
