//! Hints on the last lines of a rank: what the system, Python and their programs write about what they fail at.

use super::launchers::other_launcher;
use super::ports::port_in_use;
use super::program::{FailedProgram, KnownProject, is_module};
use super::questions::{is_getpass, question, secret};
use crate::launch::Launcher;
use crate::model::start_fault::StartFault;
use crate::paths::{CONTAINER_SSH, DATA, WORKSPACE};
use crate::text::nodeset::printable;

/// Messages of programs that cannot write to a file system.
const READ_ONLY: &[&str] = &["Read-only file system", "read-only file system"];

/// Likewise, without these words.
const NO_LOCK: &[&str] = &["attempt to write a readonly database", "The file lock '/data/"];

/// Messages of a shell and of `env` about a script with Windows line ends.
const LINE_ENDS: &[&str] = &["\\r': No such file or directory", "\\r’: No such file or directory"];

/// Ends of lines about a `python` that the image lacks: of a shell, of `env`, of busybox.
const NO_PYTHON: &[&str] = &[
    "python: not found",
    "python: command not found",
    "command not found: python",
    "'python': No such file or directory",
    "‘python’: No such file or directory",
    "can't execute 'python': No such file or directory",
];

/// Lines that Python writes between an error and one that followed from it.
const CHAINED: &[&str] =
    &["The above exception was the direct cause", "During handling of the above exception, another exception"];

/// Messages of git, its users and its Python modules where there is no repository.
const NO_GIT: &[&str] = &[
    "not a git repository",
    "InvalidGitRepositoryError",
    "setuptools-scm was unable to detect version",
    "No such file or directory: 'git'",
];

impl FailedProgram<'_> {
    /// Returns a hint on the last lines of a rank that failed, if they show what it failed at: line ends of a script, a
    /// missing `python`, a file system that cannot be written to, too few files, a port in use, a question, a module that
    /// Python does not find, or the variables of another launcher than its own. The last one of these counts, unless another error of Python's
    /// ended the program afterwards.
    pub fn hint_on_output(&self, lines: &[String], launcher: &Launcher) -> Option<String> {
        let mut is_over = false;
        for line in lines.iter().rev() {
            let line = without_rank(line);
            is_over &= !CHAINED.iter().any(|text| line.contains(text));
            let line = &self.in_container(line);
            let hint = match is_over {
                true => None,
                false if is_getpass(line, lines) => Some(secret()),
                false => self.hint_on_line(line),
            };
            if let Some(hint) = hint {
                return Some(self.in_place(hint));
            }
            is_over |= is_exception(line);
        }
        other_launcher(launcher, lines)
    }

    /// Returns a hint on what a line says that the program failed at.
    fn hint_on_line(&self, line: &str) -> Option<String> {
        let of_system = line_ends(line).or_else(|| no_python(line)).or_else(|| read_only(line));
        let of_system = of_system.or_else(|| out_of_files(line)).or_else(|| port_in_use(line, &self.ports));
        of_system.or_else(|| question(line)).or_else(|| self.no_git(line)).or_else(|| self.module(line))
    }

    /// Returns a hint on a repository that a program looks for.
    fn no_git(&self, line: &str) -> Option<String> {
        let is_found = NO_GIT.iter().any(|text| line.contains(text)) && !matches!(self.project, KnownProject::None);
        is_found.then(|| {
            "the .git of the project is not uploaded: ranks have its commit in HVDCTL_GIT_COMMIT, and 1 in \
             HVDCTL_GIT_DIRTY if there were changes; for setuptools-scm set -e SETUPTOOLS_SCM_PRETEND_VERSION=VERSION"
                .to_owned()
        })
    }
}

/// Returns a line without the rank that PyTorch puts before it.
fn without_rank(line: &str) -> &str {
    let after = line.strip_prefix("[rank").and_then(|rest| rest.split_once("]: "));
    after.map_or(line, |(_, line)| line)
}

/// Returns whether an error of Python's begins in this line that ends a program, unless another one followed from it.
fn is_exception(line: &str) -> bool {
    let name = line.split(": ").next().unwrap_or_default();
    let last = name.rsplit('.').next().unwrap_or_default();
    // a program that was started may have written the reason
    let is_error =
        ["Error", "Exception", "Timeout"].iter().any(|end| last.ends_with(end)) && last != "CalledProcessError";
    is_error && is_module(name)
}

/// Returns a hint on a script with Windows line ends. The program that reads it may name it.
fn line_ends(line: &str) -> Option<String> {
    let script = match line.split_once("$'\\r': command not found") {
        // bash: `run.sh: line 2: $'\r': command not found`
        Some((before, _)) => before.rsplit_once(": line ").map(|(script, _)| script),
        // bash: `bash: ./run.sh: /bin/sh^M: bad interpreter: No such file or directory`
        None => match line.split_once("^M: bad interpreter") {
            Some((before, _)) => before.rsplit(": ").nth(1),
            None => LINE_ENDS.iter().any(|text| line.contains(text)).then_some("SCRIPT"),
        },
    };
    let is_found = script.is_some() || line.contains("$'\\r': command not found");
    is_found.then(|| {
        let hint = StartFault::LineEnds.hint(&printable(script.unwrap_or("SCRIPT")), None);
        format!("the script has Windows line ends: {hint}")
    })
}

/// Returns a hint on a script that starts `python` where there is none.
fn no_python(line: &str) -> Option<String> {
    let is_at_end = |text: &str| line.trim_end().strip_suffix(text).is_some_and(is_message_start);
    let is_found = NO_PYTHON.iter().any(|text| is_at_end(text));
    is_found.then(|| "the image has no `python`: write python3 in the script".to_owned())
}

/// Returns whether the message of a system call may follow this text.
fn is_message_start(before: &str) -> bool {
    before.is_empty() || [": ", "] ", "'", "\""].iter().any(|end| before.ends_with(end))
}

/// Returns whether this text may follow the message of a system call, which other words do not.
fn is_message_end(after: &str) -> bool {
    let starts = ["'", "\"", ":", ")", ",", ".", ";", " (", " [", " at "];
    after.trim_end().is_empty() || starts.iter().any(|start| after.starts_with(start))
}

/// Returns where a message of a system call is in a line.
fn message(line: &str, text: &str) -> Option<usize> {
    let at = line.find(text)?;
    (is_message_start(&line[..at]) && is_message_end(&line[at + text.len()..])).then_some(at)
}

/// Returns a hint on a file system that cannot be written to.
fn read_only(line: &str) -> Option<String> {
    // HDF5
    let number = line.find("errno = 30").filter(|at| !line[at + 10..].starts_with(|c: char| c.is_ascii_digit()));
    let at = READ_ONLY.iter().find_map(|text| message(line, text)).or(number);
    let at = at.or_else(|| NO_LOCK.iter().find_map(|text| line.find(text)))?;
    let path = path_near(line, at);
    let is_below = |directory: &str| {
        path.and_then(|path| path.strip_prefix(directory)).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let data = format!(
        "pushed data are mounted read-only at {DATA}, the same for all jobs: let the program write its locks and \
         caches elsewhere, for \
         example -e HF_HOME={WORKSPACE}/.cache/huggingface (HDF5: -e HDF5_USE_FILE_LOCKING=FALSE); `mounts` in the \
         inventory can be \
         written"
    );
    match path {
        None => Some(format!("if the file is below {DATA}: {data}")),
        Some(_) if is_below(DATA) => Some(data),
        // hvdctl's, and the kernel's
        Some(_) if [CONTAINER_SSH, "/proc", "/sys"].into_iter().any(is_below) => None,
        Some(path) => Some(format!(
            "{} is mounted read-only: see `mounts` in the inventory, or `dmesg` on the node if the disk is broken",
            printable(path)
        )),
    }
}

/// Returns the path that the message at this place is about: the first one in quotes behind it, else the last one
/// before it.
fn path_near(line: &str, at: usize) -> Option<&str> {
    let paths: Vec<_> = line.match_indices('/').filter_map(|(start, _)| path_at(line, start)).collect();
    let behind = paths.iter().find(|(start, is_quoted, _)| *start > at && *is_quoted);
    behind.or(paths.iter().rfind(|(start, ..)| *start < at)).map(|(.., path)| *path)
}

/// Returns the absolute path that begins there, with its place, and whether it is in quotes or brackets.
fn path_at(line: &str, start: usize) -> Option<(usize, bool, &str)> {
    let rest = &line[start..];
    let quoted = |end: char| Some((start, true, rest.split(end).next()?));
    match line[..start].chars().next_back() {
        Some(quote @ ('\'' | '"')) => quoted(quote),
        Some('‘') => quoted('’'),
        Some('[') => quoted(']'),
        Some(' ' | ':' | '=' | '(') | None => Some((start, false, rest.split([' ', ':', ',', ')']).next()?)),
        _ => None,
    }
}

/// Returns the hint of a program that may open no more files: the C library says so, and PyTorch's data loaders.
fn out_of_files(line: &str) -> Option<String> {
    const MESSAGE: &str = "Too many open files";
    let hint = "the rank may open too few files: set ulimits = { nofile = 1048576 } in [defaults] or this [[node]] of \
        the inventory, \
                then hvdctl up; for PyTorch's data loaders torch.multiprocessing.set_sharing_strategy(\"file_system\") \
                helps, too";
    // it names other reasons as well, behind the mode
    let no_memory = line
        .split_once("unable to open shared memory object")
        .is_some_and(|(_, rest)| rest.trim_end().ends_with(" mode"));
    let is_out = no_memory || line.contains("received 0 items of ancdata") || message(line, MESSAGE).is_some();
    is_out.then(|| hint.to_owned())
}
