//! The files of a project that a build of its Dockerfile may read.

use crate::error::Error;
use crate::files;
use crate::sync::files::ProjectFiles;
use crate::sync::ignored::literal_braces;
use crate::sync::manifest::{Manifest, ManifestEntry, parents};
use crate::text::nodeset::printable;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use std::io::{self, ErrorKind};
use std::path::Path;

/// The most bytes of a Dockerfile and of a `.dockerignore`.
const MOST: u64 = 1 << 20;

/// The patterns of a `.dockerignore`, each with whether it excludes. The last one that matches decides.
struct DockerIgnore(Vec<(bool, Gitignore)>);

impl DockerIgnore {
    /// Reads those of a project; one without the file has none.
    fn read(root: &Path) -> Result<DockerIgnore, Error> {
        let file = root.join(".dockerignore");
        let failed =
            |cause: String| Error::usage(format!("cannot read {}: {cause}", file.display()), "fix or remove it");
        let text = match read_text(&file) {
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            text => text.map_err(|error| failed(error.to_string()))?,
        };
        DockerIgnore::parse(&text).map_err(failed)
    }

    fn parse(text: &str) -> Result<DockerIgnore, String> {
        let mut patterns = Vec::new();
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            let (excludes, pattern) = line.strip_prefix('!').map_or((true, line), |pattern| (false, pattern.trim()));
            // other than git's, a pattern begins at the root
            let pattern = pattern.trim_matches('/').trim_start_matches("./");
            if line.starts_with('#') || matches!(pattern, "" | ".") {
                continue;
            }
            let mut builder = GitignoreBuilder::new("");
            let added = builder.add_line(None, &literal_braces(&format!("/{pattern}"))).map(|builder| builder.build());
            let pattern = added.and_then(|built| built).map_err(|error| format!("line {number}: {error}"))?;
            patterns.push((excludes, pattern));
        }
        Ok(DockerIgnore(patterns))
    }

    fn excludes(&self, name: &str, is_directory: bool) -> bool {
        let matches = |pattern: &Gitignore| pattern.matched_path_or_any_parents(name, is_directory).is_ignore();
        self.0.iter().rev().find(|(_, pattern)| matches(pattern)).is_some_and(|(excludes, _)| *excludes)
    }
}

/// Reads a text of a project.
fn read_text(file: &Path) -> io::Result<String> {
    String::from_utf8(files::read_regular(file, MOST)?).map_err(|_| io::Error::other("it is not UTF-8"))
}

impl ProjectFiles {
    /// Returns the text of a Dockerfile of the project. Nothing else is opened, whatever the project calls its
    /// Dockerfile.
    ///
    /// # Errors
    /// If it does not belong to the project or cannot be read.
    pub fn dockerfile(&self, name: &str) -> Result<String, Error> {
        if !matches!(self.manifest.0.get(name), Some(ManifestEntry::File { .. })) {
            let what = format!("hvdctl.toml: build: the project has no file {}", printable(name));
            return Err(Error::usage(
                what,
                "name a Dockerfile in the project; one that git ignores needs the line !NAME in .hvdctlignore",
            ));
        }
        read_text(&self.root.join(name)).map_err(|error| {
            let what = format!("hvdctl.toml: build: cannot read {}: {error}", printable(name));
            Error::usage(what, "correct or replace it")
        })
    }

    /// Returns the files that a build may read, with a hash of their own: those that `.dockerignore` does not exclude,
    /// and of these only the `sources` that the Dockerfile copies, if these are known. `dockerfile`: its path in the
    /// project.
    ///
    /// # Errors
    /// If `.dockerignore` cannot be read.
    pub fn build_context(&self, dockerfile: &str, sources: Option<&[String]>) -> Result<ProjectFiles, Error> {
        let all = &self.manifest.0;
        let ignored = DockerIgnore::read(&self.root)?;
        // what a link leads to is copied, and may be anywhere
        let is_link = |name: &str| matches!(all.get(name), Some(ManifestEntry::Link { .. }));
        let is_plain = |source: &String| !is_link(source) && !parents(source).any(is_link);
        let sources = sources.filter(|sources| sources.iter().all(is_plain));
        let is_in = |name: &str, source: &str| {
            name.strip_prefix(source).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let is_copied = |name: &str| sources.is_none_or(|sources| sources.iter().any(|source| is_in(name, source)));
        let belongs = |name: &str, entry: &ManifestEntry| {
            name == dockerfile
                || is_copied(name) && !ignored.excludes(name, matches!(entry, ManifestEntry::Directory { .. }))
        };
        let entries = all.iter().filter(|(name, entry)| belongs(name, entry));
        Ok(self.with(Manifest(entries.map(|(name, entry)| (name.clone(), entry.clone())).collect())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// The names in the context of a project with these files.
    fn context(ignore: &str, sources: Option<&[&str]>) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        for name in
            ["Dockerfile", "a/b.txt", "a/c{1}", "a/d/e.pyc", "b.txt", "data/keep/x", "data/y", "requirements.txt"]
        {
            fs::create_dir_all(dir.path().join(name).parent().unwrap()).unwrap();
            fs::write(dir.path().join(name), name).unwrap();
        }
        std::os::unix::fs::symlink("a", dir.path().join("link")).unwrap();
        fs::write(dir.path().join(".dockerignore"), ignore).unwrap();
        let sources = sources.map(|sources| sources.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        let files = ProjectFiles::read(dir.path()).unwrap().build_context("Dockerfile", sources.as_deref()).unwrap();
        let is_file = |entry: &ManifestEntry| !matches!(entry, ManifestEntry::Directory { .. });
        files.manifest.0.iter().filter(|(_, entry)| is_file(entry)).map(|(name, _)| name.clone()).collect()
    }

    #[test]
    fn dockerignore_is_read_as_docker_reads_it() {
        let all = [
            ".dockerignore",
            "Dockerfile",
            "a/b.txt",
            "a/c{1}",
            "a/d/e.pyc",
            "b.txt",
            "data/keep/x",
            "data/y",
            "link",
            "requirements.txt",
        ];
        for (ignore, without) in [
            ("", &[][..]),
            ("# comment\n\nb.txt\n", &["b.txt"]),
            ("/b.txt/\n./a/c{1}", &["a/c{1}", "b.txt"]),
            ("**/*.txt\n!requirements.txt", &["a/b.txt", "b.txt"]),
            ("data\n!data/keep\nlink\n", &["data/y", "link"]),
            ("!data/keep\ndata\n", &["data/keep/x", "data/y"]),
            (
                "*\n!b.txt\n",
                &[
                    ".dockerignore",
                    "a/b.txt",
                    "a/c{1}",
                    "a/d/e.pyc",
                    "data/keep/x",
                    "data/y",
                    "link",
                    "requirements.txt",
                ],
            ),
        ] {
            let expected: Vec<&str> = all.iter().filter(|name| !without.contains(name)).copied().collect();
            assert_eq!(context(ignore, None), expected, "{ignore:?}");
        }
        assert!(DockerIgnore::parse("ok\n[z-a]\n").err().unwrap().contains("line 2: "));
    }

    #[test]
    fn only_what_is_copied_belongs_to_a_build() {
        assert_eq!(context("", Some(&[])), ["Dockerfile"]);
        assert_eq!(
            context("a/d", Some(&["a", "requirements.txt"])),
            ["Dockerfile", "a/b.txt", "a/c{1}", "requirements.txt"]
        );
        assert_eq!(context("", Some(&["b"])), ["Dockerfile"]);
        assert_eq!(context("", Some(&["link/b.txt"])).len(), 10, "a link may lead anywhere");
    }

    #[test]
    fn the_hash_is_that_of_what_is_copied() {
        let dir = tempfile::tempdir().unwrap();
        let hash = |train: &str, requirements: &str| {
            for (name, text) in [("Dockerfile", ""), ("train.py", train), ("requirements.txt", requirements)] {
                fs::write(dir.path().join(name), text).unwrap();
            }
            let sources = ["requirements.txt".to_owned()];
            ProjectFiles::read(dir.path()).unwrap().build_context("Dockerfile", Some(&sources)).unwrap().hash
        };
        assert_eq!(hash("1", "a"), hash("2", "a"));
        assert_ne!(hash("1", "a"), hash("1", "b"));
        let error = ProjectFiles::read(dir.path()).unwrap().dockerfile("other").unwrap_err().to_string();
        assert!(error.contains("the project has no file other"), "{error}");
    }
}
