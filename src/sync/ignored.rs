//! Decides which entries of a project are left out: what git would ignore, and what the project's `.hvdctlignore` files
//! name.
//!
//! The order is git's: the last matching line of a file counts; the `.gitignore` of a directory comes before those of
//! its parents, up to the top of the repository that the project is in; then come `info/exclude` and the operator's
//! `core.excludesFile`. `.hvdctlignore` comes before all of them.

use crate::error::Error;
use crate::files;
use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder, Glob, gitconfig_excludes_path};
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind};
use std::iter::successors;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// The most bytes of an ignore file.
const MOST: u64 = 16 << 20;

/// The ignore file of hvdctl, in any directory of a project.
const OWN: &str = ".hvdctlignore";

/// The rules for a project.
pub(super) struct IgnoreRules {
    root: PathBuf,
    /// The rules of the directories that contain the project.
    outside: Option<Arc<DirectoryRules>>,
    global: Gitignore,
    /// The rules of the project's directories, read as they are reached.
    inside: RwLock<HashMap<PathBuf, Arc<DirectoryRules>>>,
    /// Number of entries that each file outside the project excludes.
    excluded: Mutex<BTreeMap<PathBuf, usize>>,
    /// Set if the repository ignores the project as a whole.
    is_ignored: bool,
}

/// The rules that stand in one directory, and those of its parents.
struct DirectoryRules {
    parent: Option<Arc<DirectoryRules>>,
    own: Gitignore,
    git: Gitignore,
    exclude: Gitignore,
}

impl IgnoreRules {
    /// Reads the rules from outside the project, whose path is absolute and has no symbolic links.
    ///
    /// # Errors
    /// As of [`IgnoreRules::excludes`].
    pub(super) fn of_project(root: &Path) -> Result<IgnoreRules, Error> {
        IgnoreRules::with(root, global_file)
    }

    /// Reads the rules; `global_file` finds the operator's ignore file for the repository at a path.
    fn with(root: &Path, global_file: impl Fn(&Path) -> Option<PathBuf>) -> Result<IgnoreRules, Error> {
        let mut rules = IgnoreRules::of_copy(root);
        let mut top = None;
        for directory in root.ancestors() {
            if git_directory(directory)?.is_some() {
                top = Some(directory);
                break;
            }
        }
        let Some(top) = top else { return Ok(rules) };
        rules.global = global_file(top).map_or(Ok(Gitignore::empty()), |file| read_rules(top, &file))?;
        let mut between: Vec<&Path> = root.ancestors().skip(1).take_while(|parent| parent.starts_with(top)).collect();
        between.reverse();
        let mut outside = None;
        for (directory, child) in between.iter().zip(between.iter().skip(1).chain([&root])) {
            let here = DirectoryRules::read(directory, outside, false)?;
            // a project in an ignored directory is named on purpose, and would be empty otherwise
            if rules.decide(&here, child, true).is_ignore() {
                rules.is_ignored = true;
                return Ok(rules);
            }
            outside = Some(here);
        }
        rules.outside = outside;
        Ok(rules)
    }

    /// The rules for the copy of a project, to which nothing outside of it applies.
    pub(super) fn of_copy(root: &Path) -> IgnoreRules {
        IgnoreRules {
            root: root.to_owned(),
            outside: None,
            global: Gitignore::empty(),
            inside: RwLock::default(),
            excluded: Mutex::default(),
            is_ignored: false,
        }
    }

    /// Returns whether an entry of the project is left out. Its directory is not.
    ///
    /// # Errors
    /// If an ignore file or one of its lines cannot be read.
    pub(super) fn excludes(&self, path: &Path, is_directory: bool) -> Result<bool, Error> {
        let rules = self.rules_in(path.parent().unwrap_or(&self.root))?;
        let Match::Ignore(glob) = self.decide(&rules, path, is_directory) else { return Ok(false) };
        if let Some(file) = glob.from().filter(|file| !file.starts_with(&self.root)) {
            *self.excluded.lock().unwrap_or_else(PoisonError::into_inner).entry(file.to_owned()).or_default() += 1;
        }
        Ok(true)
    }

    /// Returns what the operator may not expect, for a note.
    pub(super) fn note(&self) -> Option<String> {
        if self.is_ignored {
            return Some(
                "git ignores the project itself, so the ignore files of its parent directories do not apply".into(),
            );
        }
        let excluded = self.excluded.lock().unwrap_or_else(PoisonError::into_inner);
        let number: usize = excluded.values().sum();
        let files: Vec<String> = excluded.keys().map(|file| file.display().to_string()).collect();
        (number > 0).then(|| {
            format!(
                "not uploaded, because git ignores it: {} by {}\n  hint: a line !NAME in {OWN} includes NAME",
                if number == 1 { "1 entry".to_owned() } else { format!("{number} entries") },
                files.join(", ")
            )
        })
    }

    /// Returns the rules for what is in a directory of the project.
    fn rules_in(&self, directory: &Path) -> Result<Arc<DirectoryRules>, Error> {
        if let Some(rules) = self.inside.read().unwrap_or_else(PoisonError::into_inner).get(directory) {
            return Ok(Arc::clone(rules));
        }
        let parent = match directory.parent() {
            Some(parent) if directory != self.root => Some(self.rules_in(parent)?),
            _ => self.outside.clone(),
        };
        let rules = DirectoryRules::read(directory, parent, true)?;
        let mut inside = self.inside.write().unwrap_or_else(PoisonError::into_inner);
        inside.insert(directory.to_owned(), Arc::clone(&rules));
        Ok(rules)
    }

    /// Returns the line that decides.
    fn decide<'a>(&'a self, rules: &'a DirectoryRules, path: &Path, is_directory: bool) -> Match<&'a Glob> {
        let kinds: [fn(&DirectoryRules) -> &Gitignore; 3] = [|here| &here.own, |here| &here.git, |here| &here.exclude];
        let chain = || successors(Some(rules), |rules| rules.parent.as_deref());
        let files = kinds.into_iter().flat_map(|kind| chain().map(kind)).chain([&self.global]);
        files.map(|file| file.matched(path, is_directory)).find(|decided| !decided.is_none()).unwrap_or(Match::None)
    }
}

impl DirectoryRules {
    /// Reads the ignore files of a directory; `own`: also that of hvdctl.
    fn read(directory: &Path, parent: Option<Arc<DirectoryRules>>, own: bool) -> Result<Arc<DirectoryRules>, Error> {
        let own = if own { read_rules(directory, &directory.join(OWN))? } else { Gitignore::empty() };
        let git = read_rules(directory, &directory.join(".gitignore"))?;
        let exclude = match git_directory(directory)? {
            Some(git) => read_rules(directory, &git.join("info/exclude"))?,
            None => Gitignore::empty(),
        };
        match parent {
            Some(parent) if own.is_empty() && git.is_empty() && exclude.is_empty() => Ok(parent),
            parent => Ok(Arc::new(DirectoryRules { parent, own, git, exclude })),
        }
    }
}

/// Returns the directory of a repository that has its `info/exclude`; `None` for a directory that is not the top of a
/// repository.
///
/// # Errors
/// If that cannot be found out: then it is not known either what the repository ignores.
fn git_directory(top: &Path) -> Result<Option<PathBuf>, Error> {
    let git = top.join(".git");
    let found = match fs::metadata(&git) {
        // git takes one without HEAD for an ordinary directory
        Ok(meta) if meta.is_dir() => {
            existing(git.join("HEAD").symlink_metadata()).map(|head| head.map(|_| git.clone()))
        }
        // of a submodule, or of a further work tree, which shares the file with the others
        Ok(meta) if meta.is_file() => linked_git_directory(top, &git),
        other => existing(other).map(|_| None),
    };
    found.map_err(|e| {
        let hint = "make it readable, or copy the project out of the repository";
        Error::usage(format!("cannot read {}: {e}", git.display()), hint)
    })
}

/// Returns the directory that a file `.git` leads to.
fn linked_git_directory(top: &Path, git: &Path) -> io::Result<Option<PathBuf>> {
    let read = |file: &Path| String::from_utf8(files::read_regular(file, MOST)?).map_err(io::Error::other);
    let text = read(git)?;
    let Some(directory) = text.strip_prefix("gitdir: ") else { return Ok(None) };
    let directory = top.join(directory.trim_end_matches('\n'));
    let common = existing(read(&directory.join("commondir")))?;
    Ok(Some(common.map_or(directory.clone(), |common| directory.join(common.trim_end_matches('\n')))))
}

/// Returns `None` for what does not exist.
fn existing<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        result => result.map(Some),
    }
}

/// Returns the operator's `core.excludesFile`, which git knows best: its configuration may include other files.
fn global_file(top: &Path) -> Option<PathBuf> {
    let mut git = Command::new("git");
    git.arg("-C").arg(top).args(["config", "--type=path", "--get", "core.excludesFile"]);
    let named = git.stdin(Stdio::null()).stderr(Stdio::null()).output().ok().filter(|output| output.status.success());
    let named = named.map(|output| output.stdout.strip_suffix(b"\n").unwrap_or(&output.stdout).to_vec());
    let named = named.filter(|path| !path.is_empty()).map(|path| top.join(OsString::from_vec(path)));
    named.or_else(gitconfig_excludes_path)
}

/// Reads an ignore file whose patterns are relative to a directory. One that does not exist has none.
fn read_rules(directory: &Path, file: &Path) -> Result<Gitignore, Error> {
    let failed = |place: String, cause: &dyn std::fmt::Display| {
        Error::usage(format!("cannot read the ignore file {}{place}: {cause}", file.display()), "fix or remove it")
    };
    let text = match fs::metadata(file) {
        Err(e) if is_missing(file, &e) => return Ok(Gitignore::empty()),
        // the usual way to have no global ignore file
        Ok(_) if file == Path::new("/dev/null") => return Ok(Gitignore::empty()),
        meta => meta.and_then(|_| files::read_regular(file, MOST)).map_err(|e| failed(String::new(), &e))?,
    };
    let mut builder = GitignoreBuilder::new(directory);
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&text);
    for (line, number) in text.split(|byte| *byte == b'\n').zip(1..) {
        // a comment may have any encoding
        if line.starts_with(b"#") {
            continue;
        }
        let place = || format!(", line {number}");
        let line = std::str::from_utf8(line).map_err(|_| {
            Error::usage(
                format!("cannot read the ignore file {}{}: it is not UTF-8", file.display(), place()),
                "convert the file to UTF-8, e.g. with iconv -f ISO-8859-1 -t UTF-8",
            )
        })?;
        builder.add_line(Some(file.to_owned()), &literal_braces(line)).map_err(|e| failed(place(), &e))?;
    }
    builder.build().map_err(|e| failed(String::new(), &e))
}

/// Escapes braces, which are ordinary characters in git's patterns.
pub(super) fn literal_braces(line: &str) -> String {
    let (mut escaped, mut is_escaped) = (String::with_capacity(line.len()), false);
    for character in line.chars() {
        if matches!(character, '{' | '}') && !is_escaped {
            escaped.push('\\');
        }
        is_escaped = character == '\\' && !is_escaped;
        escaped.push(character);
    }
    escaped
}

/// Returns whether there is no such file; a link that leads nowhere is one.
fn is_missing(file: &Path, error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) && file.symlink_metadata().is_err()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::os::unix::fs::symlink;

    /// A directory with these files, by name and contents.
    fn tree(files: &[(&str, &[u8])]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, contents) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, contents).unwrap();
        }
        dir
    }

    /// The names of what is not excluded below the root, without ignore files.
    fn kept(rules: &IgnoreRules) -> Result<BTreeSet<String>, String> {
        let (mut kept, mut directories) = (BTreeSet::new(), vec![rules.root.clone()]);
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                let name = path.strip_prefix(&rules.root).unwrap().to_str().unwrap().to_owned();
                let is_other = name.split('/').any(|part| part == ".git") || name.ends_with("ignore");
                if is_other || rules.excludes(&path, path.is_dir()).map_err(|e| e.to_string())? {
                    continue;
                }
                if path.is_dir() {
                    directories.push(path);
                } else {
                    kept.insert(name);
                }
            }
        }
        Ok(kept)
    }

    #[test]
    fn braces_are_ordinary_characters_and_a_device_has_no_patterns() {
        let dir = tree(&[(".gitignore", b"{{a}}/data\nb{c,d}\n{\n\\}e\n")]);
        let rules = read_rules(dir.path(), &dir.path().join(".gitignore")).unwrap();
        for name in ["{{a}}/data", "b{c,d}", "{", "}e"] {
            assert!(rules.matched(dir.path().join(name), false).is_ignore(), "{name}");
        }
        assert!(!rules.matched(dir.path().join("bc"), false).is_ignore());
        assert!(read_rules(dir.path(), Path::new("/dev/null")).unwrap().is_empty());
    }

    /// Returns the entries that are kept of the directory `name`, and the note.
    fn of(dir: &Path, name: &str) -> (BTreeSet<String>, Option<String>) {
        let root = fs::canonicalize(dir).unwrap();
        let rules = IgnoreRules::with(&root.join(name), |_| Some(root.join("global"))).unwrap();
        (kept(&rules).unwrap(), rules.note())
    }

    fn names<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
        names.map(str::to_owned).into()
    }

    #[test]
    fn what_git_ignores_in_a_part_of_a_repository_is_left_out() {
        let dir = tree(&[
            (".gitignore", b"*.py\n"),
            ("global", b"*.swp\n"),
            ("repo/.git/HEAD", b""),
            ("repo/.git/info/exclude", b"private\n/p/d/anchored\n"),
            (
                "repo/.gitignore",
                b"\xef\xbb\xbfdata/\r\n*.ckpt\n.env\n/p/here\n/here2\nout/*\n!out/kept\n# donn\xe9es\n*.log \n",
            ),
            ("repo/p/.gitignore", b"!best.ckpt\n"),
            ("repo/p/.hvdctlignore", b"*.bin\n!/own/data/\n"),
            ("repo/p/.env", b""),
            ("repo/p/a.swp", b""),
            ("repo/p/a.bin", b""),
            ("repo/p/a.log", b""),
            ("repo/p/best.ckpt", b""),
            ("repo/p/d/anchored", b""),
            ("repo/p/d/here", b""),
            ("repo/p/d/private", b""),
            ("repo/p/data/x", b""),
            ("repo/p/here", b""),
            ("repo/p/here2", b""),
            ("repo/p/last.ckpt", b""),
            ("repo/p/out/kept", b""),
            ("repo/p/out/x", b""),
            ("repo/p/own/data/x", b""),
            ("repo/p/train.py", b""),
        ]);
        let (kept, note) = of(dir.path(), "repo/p");
        let all = ["best.ckpt", "d/here", "here2", "out/kept", "out/x", "own/data/x", "train.py"];
        assert_eq!(kept, names(all));
        let note = note.unwrap();
        assert!(note.starts_with("not uploaded, because git ignores it: 8 entries by "), "{note}");
        for file in ["global", "repo/.gitignore", "repo/.git/info/exclude"] {
            assert!(note.contains(file), "{note}");
        }
        // without a repository, what is around the project does not matter, and the project's own files do
        fs::remove_file(dir.path().join("repo/.git/HEAD")).unwrap();
        let (kept, note) = of(dir.path(), "repo/p");
        assert!(kept.contains("data/x") && kept.contains(".env") && !kept.contains("a.bin"), "{kept:?}");
        assert_eq!(note, None);
    }

    #[test]
    fn a_project_that_is_a_repository_or_a_further_work_tree_has_its_own_exclude_file() {
        let dir = tree(&[
            ("main/.git/HEAD", b""),
            ("main/.git/info/exclude", b"secret\n"),
            ("main/.git/worktrees/w/commondir", b"../..\n"),
            ("main/secret", b""),
            ("main/x", b""),
            ("work/.git", b"gitdir: ../main/.git/worktrees/w\n"),
            ("work/secret", b""),
            ("work/sub/secret", b""),
            ("work/sub/x", b""),
        ]);
        assert_eq!(of(dir.path(), "main"), (names(["x"]), None));
        assert_eq!(of(dir.path(), "work").0, names(["sub/x"]));
        assert_eq!(of(dir.path(), "work/sub").0, names(["x"]));
    }

    #[test]
    fn a_project_that_git_ignores_is_uploaded_by_its_own_rules() {
        let dir = tree(&[
            ("home/.git/HEAD", b""),
            ("home/.gitignore", b"*\n"),
            ("home/code/p/.gitignore", b"data/\n"),
            ("home/code/p/data/x", b""),
            ("home/code/p/train.py", b""),
        ]);
        let (kept, note) = of(dir.path(), "home/code/p");
        assert_eq!(kept, names(["train.py"]));
        assert!(note.unwrap().contains("git ignores the project itself"));
    }

    #[test]
    fn an_ignore_file_that_cannot_be_read_is_an_error_with_its_line() {
        let dir = tree(&[("p/d/x", b""), ("repo/.git/HEAD", b""), ("repo/q/x", b"")]);
        let failure = |root: &str| {
            let rules = IgnoreRules::with(&fs::canonicalize(dir.path().join(root)).unwrap(), |_| None);
            rules.map_err(|e| e.to_string()).and_then(|rules| kept(&rules)).err().unwrap_or_default()
        };
        assert_eq!((failure("p"), failure("repo/q")), (String::new(), String::new()));
        for (root, file) in [
            ("p", "p/.gitignore"),
            ("p", "p/d/.hvdctlignore"),
            ("repo/q", "repo/.gitignore"),
            ("repo/q", "repo/.git/info/exclude"),
        ] {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            for (text, expected) in
                [(&b"# donn\xe9es\nx\n\xe9\n"[..], "line 3: it is not UTF-8"), (b"ok\n[z-a]\n", "line 2: ")]
            {
                fs::write(&path, text).unwrap();
                let message = failure(root);
                assert!(message.contains(&format!("{file}, {expected}")), "{message}");
            }
            fs::remove_file(&path).unwrap();
            fs::create_dir(&path).unwrap();
            assert!(failure(root).contains(&format!("{file}: it is not a file")), "{}", failure(root));
            fs::remove_dir(&path).unwrap();
            symlink("nowhere", &path).unwrap();
            assert!(failure(root).contains(file), "{}", failure(root));
            fs::remove_file(&path).unwrap();
        }
    }
}
