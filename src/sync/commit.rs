//! The commit of a project, which `.git` on the nodes does not show: it is not uploaded.
//!
//! The operator's `git` knows work trees, submodules and formats. It reads the repository's own configuration, which
//! may be a stranger's: nothing that this names is started, nothing is fetched, and nothing written.

use super::manifest::Manifest;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Total time limit for git. A large repository on a slow disk must not delay a job.
const LIMIT: Duration = Duration::from_secs(5);

/// The most bytes of its answers.
const MOST: u64 = 16 << 20;

/// The exit code of `git config` if nothing matches.
const NONE_FOUND: i32 = 1;

/// Variables that name another repository than that of the directory, as those of hooks do.
const OTHER: [&str; 6] = [
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_COMMON_DIR",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
];

/// Variables that keep git from locks, from questions, and from the network (objects of a partial clone).
const HARMLESS: [(&str, &str); 4] = [
    ("GIT_OPTIONAL_LOCKS", "0"),
    ("GIT_TERMINAL_PROMPT", "0"),
    ("GIT_NO_LAZY_FETCH", "1"),
    ("GIT_ALLOW_PROTOCOL", "none"),
];

/// The commit of a project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// Its id, 40 or 64 hexadecimal digits.
    pub id: String,
    /// True if the project differs from it; `None` if unknown.
    pub is_dirty: Option<bool>,
}

/// Returns whether a text is the id of a commit.
pub fn is_commit(id: &str) -> bool {
    matches!(id.len(), 40 | 64) && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Git's report about the repository that contains a project.
#[derive(Debug)]
pub struct GitReport {
    /// The id of the commit.
    id: String,
    /// The project's directory in the repository, with a slash at its end; empty for the top.
    prefix: String,
    /// The output of `git status` in that directory.
    status: Option<Vec<u8>>,
}

impl GitReport {
    /// Asks git about the directory of a project. `None` if no repository has it, git is missing or too slow, or does
    /// not trust the owner.
    pub fn read(root: &Path) -> Option<GitReport> {
        let top = root.ancestors().find(|directory| directory.join(".git").symlink_metadata().is_ok())?;
        let deadline = Instant::now() + LIMIT;
        let git_with = |directory: &Path, arguments: &[&str], codes: &[i32]| git(directory, arguments, codes, deadline);
        let git = |arguments: &[&str]| git_with(root, arguments, &[0]);
        // a directory that the commit does not have belongs to something else, as a project in the home directory
        let found = git(&["rev-parse", "--show-prefix", "HEAD", "HEAD:./"])?;
        let mut lines = std::str::from_utf8(&found).ok()?.lines();
        let (prefix, id) = (lines.next()?.to_owned(), lines.next().filter(|id| is_commit(id))?.to_owned());
        // programs that convert files; those of the operator's own configuration are trusted
        let filters =
            |directory| git_with(directory, &["config", "--null", "--get-regexp", r"^filter\."], &[0, NONE_FOUND]);
        let is_plain = filters(root).is_some_and(|found| filters(Path::new("/")) == Some(found));
        let status = || {
            let (untracked, submodules) = ("--untracked-files=normal", "--ignore-submodules=dirty");
            git(&["status", "--porcelain", "-z", untracked, submodules, "--", "."])
        };
        let status = if is_plain { status() } else { None };
        // it says nothing about changes within submodules
        let status = status.filter(|status| !status.is_empty() || top.join(".gitmodules").symlink_metadata().is_err());
        Some(GitReport { id, prefix, status })
    }

    /// Returns the commit. Files that git does not know count as changes if they belong to the project: those that were
    /// fetched do not.
    pub fn commit(self, manifest: &Manifest) -> Commit {
        let is_uploaded = |name: &str| {
            let next = manifest.0.range(name.to_owned()..).next();
            next.is_some_and(|(file, _)| file == name || name.ends_with('/') && file.starts_with(name))
        };
        let is_change = |entry: &str| match entry.strip_prefix("?? ") {
            Some(path) => path.strip_prefix(&self.prefix).is_none_or(is_uploaded),
            None => true,
        };
        let is_dirty = |status: &Vec<u8>| {
            let status = String::from_utf8_lossy(status);
            status.split('\0').any(|entry| !entry.is_empty() && is_change(entry))
        };
        Commit { is_dirty: self.status.as_ref().map(is_dirty), id: self.id }
    }
}

/// Returns what a call of git in a directory prints; `None` if it ends with another code than these, or takes too long.
fn git(directory: &Path, arguments: &[&str], codes: &[i32], deadline: Instant) -> Option<Vec<u8>> {
    let mut git = Command::new("git");
    git.arg("-C").arg(directory).args(["-c", "core.fsmonitor="]).args(arguments).envs(HARMLESS);
    for name in OTHER {
        git.env_remove(name);
    }
    let mut child = git.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    let output = child.stdout.take()?;
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut text = Vec::new();
        let is_whole = output.take(MOST).read_to_end(&mut text).is_ok_and(|length| (length as u64) < MOST);
        let _ = sender.send(is_whole.then_some(text));
    });
    match receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        Ok(text) => child.wait().ok()?.code().filter(|code| codes.contains(code)).and(text),
        Err(_) => {
            // one that waits for a network drive may never end
            let _ = child.kill();
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::files::ProjectFiles;
    use std::fs;

    /// Runs git with a configuration of its own.
    fn run(directory: &Path, arguments: &[&str]) -> String {
        let mut git = Command::new("git");
        git.arg("-C").arg(directory).args([
            "-c",
            "user.name=a",
            "-c",
            "user.email=a@b",
            "-c",
            "protocol.file.allow=always",
        ]);
        let output = git.args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// A repository with one commit.
    fn repository(directory: &Path) -> String {
        fs::create_dir_all(directory.join("p")).unwrap();
        fs::write(directory.join("p/train.py"), "x\n").unwrap();
        fs::write(directory.join("other"), "x\n").unwrap();
        fs::write(directory.join(".gitignore"), "*.log\nignored\n").unwrap();
        run(directory, &["init", "-q"]);
        run(directory, &["add", "."]);
        run(directory, &["commit", "-q", "-m", "one"]);
        run(directory, &["rev-parse", "HEAD"])
    }

    fn commit(root: &Path) -> Option<Commit> {
        let files = ProjectFiles::read(root).unwrap();
        GitReport::read(root).map(|report| report.commit(&files.manifest))
    }

    fn is_dirty(root: &Path) -> Option<bool> {
        commit(root).unwrap().is_dirty
    }

    #[test]
    fn the_commit_and_whether_the_project_has_changes() {
        let directory = tempfile::tempdir().unwrap();
        let top = &fs::canonicalize(directory.path()).unwrap();
        assert_eq!(commit(top), None);
        let id = repository(top);
        let project = &top.join("p");
        for root in [top, project] {
            assert_eq!(commit(root), Some(Commit { id: id.clone(), is_dirty: Some(false) }));
        }
        // outside of the project, and what is not uploaded
        fs::write(top.join("other"), "y\n").unwrap();
        fs::write(project.join("a.log"), "").unwrap();
        fs::create_dir_all(project.join("fetched").join(crate::sync::outputs::STATE_DIR)).unwrap();
        fs::write(project.join("fetched/model"), "").unwrap();
        assert_eq!((is_dirty(project), is_dirty(top)), (Some(false), Some(true)));
        for new in ["new.py", "lib/new.py"] {
            let file = project.join(new);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, "").unwrap();
            assert_eq!(is_dirty(project), Some(true), "{new}");
            fs::remove_file(&file).unwrap();
        }
        fs::write(project.join("train.py"), "changed\n").unwrap();
        assert_eq!(is_dirty(project), Some(true));
        fs::remove_file(project.join("train.py")).unwrap();
        fs::write(project.join("main.py"), "").unwrap();
        assert_eq!(is_dirty(project), Some(true));
    }

    #[test]
    fn a_directory_that_the_commit_does_not_have_has_none() {
        let directory = tempfile::tempdir().unwrap();
        let top = &fs::canonicalize(directory.path()).unwrap();
        fs::write(top.join("x"), "").unwrap();
        run(top, &["init", "-q"]);
        assert_eq!(commit(top), None);
        repository(top);
        for name in ["ignored", "untracked"] {
            fs::create_dir(top.join(name)).unwrap();
            fs::write(top.join(name).join("train.py"), "").unwrap();
            assert_eq!(commit(&top.join(name)), None, "{name}");
        }
        fs::write(top.join(".git/HEAD"), "junk").unwrap();
        assert_eq!(commit(top), None);
    }

    #[test]
    fn further_work_trees_and_submodules_have_their_own() {
        let directory = tempfile::tempdir().unwrap();
        let top = &fs::canonicalize(directory.path()).unwrap();
        let (first, second) = (&top.join("first"), &top.join("second"));
        let ids = [first, second].map(|directory| repository(directory));
        run(first, &["worktree", "add", "-q", "../tree"]);
        assert_eq!(commit(&top.join("tree")), Some(Commit { id: ids[0].clone(), is_dirty: Some(false) }));
        run(first, &["submodule", "--quiet", "add", "../second", "sub"]);
        run(first, &["commit", "-q", "-m", "two"]);
        assert_eq!(commit(&first.join("sub")), Some(Commit { id: ids[1].clone(), is_dirty: Some(false) }));
        assert_eq!(is_dirty(first), None, "a submodule may have changes");
        fs::write(first.join("other"), "y\n").unwrap();
        assert_eq!(is_dirty(first), Some(true));
    }

    #[test]
    fn what_a_repository_names_is_not_started() {
        let directory = tempfile::tempdir().unwrap();
        let top = &fs::canonicalize(directory.path()).unwrap();
        let id = repository(top);
        let evil = format!("touch {}/started; cat", top.display());
        for name in ["core.fsmonitor", "core.pager", "core.sshCommand", "diff.external"] {
            run(top, &["config", name, &evil]);
        }
        assert_eq!(commit(top), Some(Commit { id: id.clone(), is_dirty: Some(false) }));
        fs::write(top.join(".git/info/attributes"), "* filter=evil\n").unwrap();
        // from a file that the configuration includes
        run(top, &["config", "include.path", "more"]);
        fs::write(top.join(".git/more"), format!("[filter \"evil\"]\n\tclean = \"{evil}\"\n")).unwrap();
        fs::write(top.join("other"), "z\n").unwrap();
        assert_eq!(commit(top), Some(Commit { id, is_dirty: None }));
        assert!(!top.join("started").exists());
        run(top, &["status"]);
        assert!(top.join("started").exists(), "the test would see it");
    }

    #[test]
    fn ids_are_hexadecimal() {
        for (id, expected) in
            [("a".repeat(40), true), ("0F".repeat(32), true), ("g".repeat(40), false), ("a".repeat(41), false)]
        {
            assert_eq!(is_commit(&id), expected, "{id}");
        }
    }
}
