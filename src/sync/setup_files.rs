//! Finds what `setup_files` of a project's `hvdctl.toml` names: files, directories and patterns as those of
//! `.gitignore`.

use crate::error::Error;
use crate::sync::ignored::{IgnoreRules, literal_braces};
use crate::sync::tree::{pattern, unreadable, walked};
use crate::text::quote::readable;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// Returns the paths of these files in the project, each once and in byte order. Of directories and of what a pattern
/// matches, only files that would be uploaded count, without Python's bytecode; a file that is named itself counts in
/// any case. Paths that are no files of the project are returned as they are, and refused when they are read.
///
/// # Errors
/// If nothing belongs to a directory or pattern, a pattern cannot be read, or a name is not UTF-8.
pub fn select(root: &Path, named: &[String]) -> Result<Vec<String>, Error> {
    let root = &fs::canonicalize(root).map_err(|e| unreadable(root, &e))?;
    let (mut names, mut walk) = (BTreeSet::new(), None);
    for named in named {
        let Some(pattern) = pattern_of(root, named)? else {
            names.insert(named.trim_start_matches("./").to_owned());
            continue;
        };
        if walk.is_none() {
            walk = Some(walked(root, Some(Arc::new(IgnoreRules::of_project(root)?)))?);
        }
        let mut found = matching(&pattern, walk.iter().flatten()).peekable();
        if found.peek().is_none() {
            return Err(no_match(root, named, &pattern));
        }
        for path in found {
            names.insert(path.to_str().ok_or_else(|| not_utf8(path))?.to_owned());
        }
    }
    Ok(names.into_iter().collect())
}

fn wrong(why: String, hint: impl Into<String>) -> Error {
    Error::usage(format!("hvdctl.toml: setup_files: {why}"), hint)
}

/// Returns the pattern of a directory, or of what has `*`, `?` or `[` and is no file itself; `None` for the path of a
/// file.
fn pattern_of(root: &Path, named: &str) -> Result<Option<Gitignore>, Error> {
    let name = named.trim_start_matches("./").trim_end_matches('/');
    if matches!(name, "" | ".") && !named.is_empty() && !named.starts_with('/') {
        let why = "it names the whole project: every change would build the image again";
        let hint =
            "name the directories and files that the setup reads, e.g. setup_files = [\"pyproject.toml\", \"src\"]";
        return Err(wrong(why.to_owned(), hint));
    }
    let path = Path::new(name);
    if name.is_empty() || !path.components().all(|part| matches!(part, Component::Normal(_))) {
        return Ok(None);
    }
    let line = match fs::symlink_metadata(root.join(path)) {
        Ok(meta) if meta.is_dir() => pattern(path),
        Ok(_) => return Ok(None),
        Err(_) if name.contains(['*', '?', '[']) => literal_braces(&format!("/{name}")),
        Err(_) => return Ok(None),
    };
    let mut builder = GitignoreBuilder::new("");
    let built = builder.add_line(None, &line).and_then(|builder| builder.build());
    let cannot = |error| wrong(format!("{} is not a valid pattern: {error}", readable(named)), "correct it");
    built.map(Some).map_err(cannot)
}

fn matching<'a>(
    pattern: &'a Gitignore,
    paths: impl Iterator<Item = &'a PathBuf> + 'a,
) -> impl Iterator<Item = &'a PathBuf> + 'a {
    let is_bytecode = |path: &Path| path.iter().any(|part| part == OsStr::new("__pycache__"));
    paths.filter(move |path| pattern.matched_path_or_any_parents(path, false).is_ignore() && !is_bytecode(path))
}

/// Returns the error of a directory or pattern to which no file belongs, with what leaves out those that are there.
fn no_match(root: &Path, named: &str, pattern: &Gitignore) -> Error {
    let why = format!("no file of the project matches {}", readable(named));
    let all = walked(root, None).unwrap_or_default();
    let excluded = matching(pattern, all.iter()).min().and_then(|path| excluded_part(root, path));
    match excluded {
        Some(line) => wrong(why, format!("an ignore file excludes it: a line !{line} in .hvdctlignore includes it")),
        None => wrong(why, "correct it, or leave the setup out with --no-setup"),
    }
}

/// Returns a line for an ignore file that names what leaves out this file: the file, or a directory that it is in.
fn excluded_part(root: &Path, path: &Path) -> Option<String> {
    let rules = IgnoreRules::of_project(root).ok()?;
    let mut parts: Vec<&Path> = path.ancestors().filter(|part| !part.as_os_str().is_empty()).collect();
    parts.reverse();
    let is_excluded = |part: &&Path| rules.excludes(&root.join(part), *part != path).unwrap_or_default();
    parts.into_iter().find(is_excluded).map(pattern)
}

fn not_utf8(path: &Path) -> Error {
    wrong(format!("the name of {} is not UTF-8", path.display()), "rename it, or exclude it in .hvdctlignore")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;

    /// A project with these files.
    fn project(files: &[&str]) -> tempfile::TempDir {
        let project = tempfile::tempdir().unwrap();
        for name in files {
            let path = project.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        project
    }

    fn selected(root: &Path, named: &[&str]) -> Result<Vec<String>, String> {
        let named: Vec<String> = named.iter().map(|name| (*name).to_owned()).collect();
        select(root, &named).map_err(|error| error.to_string())
    }

    #[test]
    fn directories_and_patterns_name_what_would_be_uploaded() {
        let project = project(&[
            "mylib/pyproject.toml",
            "mylib/src/mylib/__init__.py",
            "mylib/src/mylib/__pycache__/__init__.pyc",
            "mylib/build/left.py",
            "mylib2/x.py",
            "dist/a.whl",
            "dist/b.whl",
            "dist/deep/c.whl",
            "a[1]/x",
            "a1/y",
            "r{1}.txt",
            ".git/config",
        ]);
        let root = project.path();
        fs::write(root.join("mylib/.gitignore"), "build/\n").unwrap();
        fs::write(root.join(".hvdctlignore"), "mylib/secret\n").unwrap();
        fs::write(root.join("mylib/secret"), "").unwrap();
        symlink("pyproject.toml", root.join("mylib/link")).unwrap();
        let mylib = ["mylib/.gitignore", "mylib/link", "mylib/pyproject.toml", "mylib/src/mylib/__init__.py"];
        for named in ["mylib", "mylib/", "./mylib", "myli[b]", "mylib/**"] {
            assert_eq!(selected(root, &[named]).unwrap(), mylib, "{named}");
        }
        for (named, names) in [
            (&["dist/*.whl"][..], &["dist/a.whl", "dist/b.whl"][..]),
            (&["**/*.whl"], &["dist/a.whl", "dist/b.whl", "dist/deep/c.whl"]),
            (&["dist/*"], &["dist/a.whl", "dist/b.whl", "dist/deep/c.whl"]),
            (
                &["mylib/*.toml", "dist/b.whl", "dist", "dist/*.whl"],
                &["dist/a.whl", "dist/b.whl", "dist/deep/c.whl", "mylib/pyproject.toml"],
            ),
            // a directory or file of this name comes before the pattern
            (&["a[1]"], &["a[1]/x"]),
            (&["a?1]"], &["a[1]/x"]),
            (&["r{1}.*"], &["r{1}.txt"]),
            // a file that is named itself, whatever the ignore files say; what is missing is refused when it is read
            (&["./mylib/secret", "mylib/build/left.py"], &["mylib/build/left.py", "mylib/secret"]),
            (&["missing", "../x", "/etc/passwd", ""], &["", "../x", "/etc/passwd", "missing"]),
        ] {
            assert_eq!(selected(root, named).unwrap(), names, "{named:?}");
            let reversed: Vec<&str> = named.iter().rev().copied().collect();
            assert_eq!(selected(root, &reversed).unwrap(), names, "the order is of no account: {named:?}");
        }
    }

    #[test]
    fn what_names_nothing_is_an_error_with_the_line_that_takes_it() {
        let project = project(&["dist/a.whl", "lib/build/x.so", "train.py", "odd/x"]);
        let root = project.path();
        fs::create_dir(root.join("empty")).unwrap();
        fs::write(root.join(".hvdctlignore"), "dist/\n*.so\n").unwrap();
        for (named, words) in [
            ("dist/*.whl", "a line !/dist in .hvdctlignore"),
            ("dist", "a line !/dist in .hvdctlignore"),
            ("lib/**/*.so", "a line !/lib/build/x.so in .hvdctlignore"),
            ("*.txt", "no file of the project matches '*.txt'"),
            ("empty", "no file of the project matches empty"),
            ("a[z-a]", "is not a valid pattern"),
            (".", "it names the whole project"),
            ("./", "it names the whole project"),
        ] {
            let error = selected(root, &[named]).unwrap_err();
            assert!(error.contains("hvdctl.toml: setup_files: ") && error.contains(words), "{named}: {error}");
        }
        fs::write(root.join(".hvdctlignore"), "!/dist\n*.so\n").unwrap();
        assert_eq!(selected(root, &["dist"]).unwrap(), ["dist/a.whl"]);
        fs::write(root.join("odd").join(OsStr::from_bytes(b"caf\xe9")), "").unwrap();
        assert!(selected(root, &["odd"]).unwrap_err().contains("is not UTF-8"));
        assert_eq!(selected(root, &["train.py"]).unwrap(), ["train.py"]);
    }
}
