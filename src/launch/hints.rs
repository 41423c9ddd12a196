//! Hints on a program that failed, by the reason why it did not start or by the last lines of its rank.

use super::Launcher;
use crate::model::launcher::LauncherName;
use crate::model::start_fault::{StartFailure, StartFault, interpreter as interpreter_of};
use crate::paths::{CONTAINER_SSH, DATA, WORKSPACE};
use crate::text::argument::ProgramArgument;
use crate::text::nodeset::printable;
use crate::text::quote;

/// What to do about an image whose `mpirun` is that of MPICH or Intel MPI.
pub const OPEN_MPI: &str = "install Open MPI in the image so that its mpirun comes first in PATH (`setup` in \
                            hvdctl.toml), or choose another --launcher: env, torchrun, or horovodrun with \
                            --controller gloo";

/// What programs write that miss the variables of another launcher: the text, and that launcher.
const MISSING: &[(&str, LauncherName)] = &[
    // torch/distributed/rendezvous.py: RANK, WORLD_SIZE, MASTER_ADDR or MASTER_PORT
    ("expected, but not set", LauncherName::Torchrun),
    ("KeyError: 'RANK'", LauncherName::Torchrun),
    ("KeyError: 'LOCAL_RANK'", LauncherName::Torchrun),
    ("KeyError: 'WORLD_SIZE'", LauncherName::Torchrun),
    ("KeyError: 'MASTER_ADDR'", LauncherName::Torchrun),
    // DeepSpeed without these variables
    ("attempting to detect MPI environment", LauncherName::Torchrun),
    // jax/_src/distributed.py
    ("coordinator_address should be defined", LauncherName::Env),
    ("KeyError: 'TF_CONFIG'", LauncherName::Env),
];

/// How the line of an error begins that names a module which Python does not find.
const LACKING: &[&str] = &["ModuleNotFoundError: No module named ", "ImportError: No module named "];

/// Names that only a project's own modules have: a package of this name is another one.
const OWN: &[&str] = &["src", "utils", "models", "common", "lib", "config"];

/// Well-known modules and their packages. Others are not guessed: a package of the module's name may be a stranger's.
const PACKAGES: &[(&str, &str)] = &[
    ("PIL", "pillow"),
    ("accelerate", "accelerate"),
    ("bs4", "beautifulsoup4"),
    ("cv2", "opencv-python-headless"),
    ("datasets", "datasets"),
    ("dotenv", "python-dotenv"),
    ("einops", "einops"),
    ("h5py", "h5py"),
    ("hydra", "hydra-core"),
    ("matplotlib", "matplotlib"),
    ("mlflow", "mlflow"),
    ("numpy", "numpy"),
    ("omegaconf", "omegaconf"),
    ("pandas", "pandas"),
    ("psutil", "psutil"),
    ("pyarrow", "pyarrow"),
    ("requests", "requests"),
    ("scipy", "scipy"),
    ("skimage", "scikit-image"),
    ("sklearn", "scikit-learn"),
    ("timm", "timm"),
    ("tqdm", "tqdm"),
    ("transformers", "transformers"),
    ("wandb", "wandb"),
    ("yaml", "pyyaml"),
];

/// What programs write that cannot write to a file system.
const READ_ONLY: &[&str] = &["Read-only file system", "read-only file system"];

/// Likewise, without these words.
const NO_LOCK: &[&str] = &["attempt to write a readonly database", "The file lock '/data/"];

/// What a shell and `env` write about a script with Windows line ends.
const LINE_ENDS: &[&str] = &["\\r': No such file or directory", "\\r’: No such file or directory"];

/// What ends a line about a `python` that the image lacks: of a shell, of `env`, of busybox.
const NO_PYTHON: &[&str] = &[
    "python: not found",
    "python: command not found",
    "command not found: python",
    "'python': No such file or directory",
    "‘python’: No such file or directory",
    "can't execute 'python': No such file or directory",
];

/// What Python writes between an error and one that followed from it.
const CHAINED: &[&str] =
    &["The above exception was the direct cause", "During handling of the above exception, another exception"];

/// What git, its users and its Python modules write where there is no repository.
const NO_GIT: &[&str] = &[
    "not a git repository",
    "InvalidGitRepositoryError",
    "setuptools-scm was unable to detect version",
    "No such file or directory: 'git'",
];

/// Returns the directory of the project, "" for its top, that has a module of this name.
pub type DirectoryOf<'a> = dyn Fn(&str) -> Option<String> + 'a;

/// What is known here of the project of a program.
pub enum KnownProject<'a> {
    /// There is none: the program is in the image.
    None,
    /// Its files are not here.
    Elsewhere,
    /// Its modules (`a.b` or `a`).
    Modules(&'a DirectoryOf<'a>),
}

/// What is known here of a program that failed.
pub struct FailedProgram<'a> {
    /// Its command.
    pub command: &'a [ProgramArgument],
    /// Its project.
    pub project: KnownProject<'a>,
    /// Where the project is instead of at [`WORKSPACE`], without containers.
    pub directory: Option<String>,
}

impl FailedProgram<'_> {
    /// Returns a text of the nodes with the project where containers have it.
    fn in_container(&self, text: &str) -> String {
        self.directory.as_ref().map_or_else(|| text.to_owned(), |directory| text.replace(directory, WORKSPACE))
    }

    /// Returns a hint with the project where it is.
    fn in_place(&self, hint: String) -> String {
        self.directory.as_ref().map_or_else(|| hint.clone(), |directory| hint.replace(WORKSPACE, directory))
    }

    /// Returns a hint on the reason why the program did not start.
    pub fn hint_on_start(&self, failure: &StartFailure) -> Option<String> {
        let StartFailure::Found { fault: Some(fault), about, .. } = failure else { return None };
        let program = self.command.first().map(ToString::to_string).unwrap_or_default();
        match fault {
            StartFault::NotInPath if about.as_deref() != Some(self.directory.as_deref().unwrap_or(WORKSPACE)) => None,
            StartFault::OnlyPython3 => {
                let rest: Vec<String> = self.command.iter().skip(1).map(ToString::to_string).collect();
                Some(format!("the image has python3 and no python: -- python3 {}", quote::command(&rest)))
            }
            fault => {
                let interpreter = about.as_deref().and_then(interpreter_of);
                let hint = fault.hint(&program, interpreter.as_deref());
                Some(self.in_place(hint)).filter(|hint| !hint.is_empty())
            }
        }
    }

    /// Returns a hint on what a line says that the program failed at.
    fn hint_on_line(&self, line: &str) -> Option<String> {
        let of_system = line_ends(line).or_else(|| no_python(line)).or_else(|| read_only(line));
        of_system.or_else(|| out_of_files(line)).or_else(|| self.no_git(line)).or_else(|| self.module(line))
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

    /// Returns a hint on a module that Python does not find, or finds elsewhere.
    fn module(&self, line: &str) -> Option<String> {
        if line.contains("attempted relative import with no known parent package") {
            return Some(self.as_module("start it as a module of its package: ", "python -m PACKAGE.MODULE"));
        }
        if let Some(file) = line.split_once("can't open file '/workspace/").map(|(_, rest)| rest) {
            return Some(self.left_out(&printable(file.split('\'').next().unwrap_or_default())));
        }
        self.foreign(line).or_else(|| self.lacking(module_of(line)?))
    }

    /// Returns a hint on a file or module that the project has not brought to the nodes.
    fn left_out(&self, what: &str) -> String {
        match self.project {
            KnownProject::None => "`run` does not upload a project; `hvdctl train` does".to_owned(),
            KnownProject::Elsewhere | KnownProject::Modules(_) => format!(
                "the project on the nodes has no {what}: check its path, and .gitignore and .hvdctlignore, which \
                 exclude files"
            ),
        }
    }

    /// Returns the directory of the project that has a module of this name.
    fn directory_of(&self, module: &str) -> Option<String> {
        match self.project {
            KnownProject::Modules(directory_of) => directory_of(module),
            KnownProject::None | KnownProject::Elsewhere => None,
        }
    }

    /// Returns a hint on a name that is imported from a package which is not the project's module of that name.
    fn foreign(&self, line: &str) -> Option<String> {
        let (_, rest) = line.split_once("cannot import name '")?;
        let (module, path) = rest.split_once("' from '")?.1.split_once('\'')?;
        let first = module.split('.').next()?;
        let directory = self.directory_of(first).filter(|_| is_module(first) && !path.contains(WORKSPACE))?;
        Some(format!("this {first} is not the one in the project; {}", self.own(first, &directory)))
    }

    /// Returns a hint on a module that Python will not find.
    pub fn hint_on_module(&self, module: &str) -> String {
        self.lacking(module).map(|hint| self.in_place(hint)).unwrap_or_default()
    }

    /// Returns a hint on a module that Python does not find: the project's own, or one that the image lacks.
    fn lacking(&self, module: &str) -> Option<String> {
        let first = module.split('.').next()?;
        let example = match PACKAGES.iter().find(|(name, _)| *name == first) {
            Some((_, package)) => format!("setup = [\"pip install {package}\"]"),
            None => format!("setup = [\"pip install PACKAGE\"] with the package that has {first}"),
        };
        let setup = match self.directory {
            None => format!(
                "install what the image lacks on all nodes with `setup` in hvdctl.toml: {example} (hvdctl image build \
                 --help), or with `build = \"Dockerfile\"`; or choose another `image` in the inventory"
            ),
            Some(_) => {
                "install packages on all nodes with hvdctl env create; set up what else ranks need with `activate` in \
                 the inventory"
                    .to_owned()
            }
        };
        let is_own_name = OWN.contains(&first);
        Some(match self.project {
            KnownProject::None if is_own_name => self.left_out(first),
            KnownProject::None => setup,
            KnownProject::Elsewhere if is_own_name => {
                format!("if {first} is in the project: -e PYTHONPATH={WORKSPACE}")
            }
            KnownProject::Elsewhere => format!("if {first} is in the project: -e PYTHONPATH={WORKSPACE}; {setup}"),
            KnownProject::Modules(directory_of) => match (directory_of(module), directory_of(first)) {
                (Some(directory), _) => self.own(first, &directory),
                (None, Some(_)) => format!(
                    "{first} is in the project, but not {module}: check .gitignore and .hvdctlignore, which exclude \
                     files"
                ),
                (None, None) if is_own_name => self.left_out(first),
                (None, None) => setup,
            },
        })
    }

    /// Returns how the program finds a module of the project.
    fn own(&self, module: &str, directory: &str) -> String {
        if !directory.is_empty() {
            let path = quote::readable(&format!("PYTHONPATH={WORKSPACE}/{directory}"));
            return format!("{module} is in {} of the project: -e {path}", printable(directory));
        }
        let start = format!("{module} is in the project, but Python searches the program's directory only: ");
        self.as_module(&start, "") + &format!("-e PYTHONPATH={WORKSPACE}")
    }

    /// Returns `before` and the command that starts the program as a module, if it is a Python file of the project;
    /// else `otherwise` instead of the command.
    fn as_module(&self, before: &str, otherwise: &str) -> String {
        let words: Vec<String> = self.command.iter().map(ToString::to_string).collect();
        let at = words.iter().position(|word| word.rsplit('/').next().is_some_and(|name| name.starts_with("python")));
        let file = at.and_then(|at| words.get(at + 1)).and_then(|file| file.strip_suffix(".py"));
        let module = file.map(|file| file.trim_start_matches("./").replace('/', "."));
        match (at, module.filter(|module| is_module(module))) {
            (Some(at), Some(module)) if otherwise.is_empty() => {
                format!("{before}{} -m {module} (and its arguments), or ", words[at])
            }
            (Some(at), Some(module)) => format!("{before}{} -m {module}", words[at]),
            _ if otherwise.is_empty() => before.to_owned(),
            _ => format!("{before}{otherwise}"),
        }
    }
}

/// Returns a line without the rank that PyTorch puts before it.
fn without_rank(line: &str) -> &str {
    let after = line.strip_prefix("[rank").and_then(|rest| rest.split_once("]: "));
    after.map_or(line, |(_, line)| line)
}

/// Returns the module that Python did not find, by this line: `ModuleNotFoundError: No module named 'a.b'`, or of
/// `python -m` `/usr/bin/python: No module named a.b`.
fn module_of(line: &str) -> Option<&str> {
    let rest = LACKING.iter().find_map(|start| line.strip_prefix(start)).or_else(|| {
        let (program, rest) = line.split_once(": No module named ")?;
        program.rsplit('/').next().is_some_and(|name| name.starts_with("python")).then_some(rest)
    })?;
    let module = match rest.chars().next()? {
        quote @ ('\'' | '"') => rest[1..].split(quote).next()?,
        _ => rest.split([';', ' ']).next()?,
    };
    is_module(module).then_some(module)
}

/// Whether a text is the name of a module, as in an import statement.
fn is_module(text: &str) -> bool {
    let is_name = |name: &str| {
        name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    text.len() <= 200 && text.split('.').all(is_name)
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

/// The warning about ranks of `srun` where Slurm has no type of MPI (`allocation.py`).
pub const WITHOUT_MPI: &str = "Slurm does not connect the ranks of MPI programs here: it can load neither PMIx nor \
                               PMI2, and its default is none (MpiDefault); each rank of such a program assumes that it \
                               is alone\n  hint: --launcher mpirun connects them; if the program does not use MPI, \
                               ignore this";

impl Launcher {
    /// Returns the warning about a job none of whose ranks had a connection to another one in so many seconds.
    pub fn isolation_warning(&self, seconds: u64) -> String {
        let other = match self.program {
            "torchrun" | "env" => "programs for Horovod need --launcher horovodrun",
            "srun" => {
                "MPI programs need --launcher mpirun, or another -e SLURM_MPI_TYPE (`srun --mpi=list`); those for \
                 PyTorch need --launcher torchrun"
            }
            _ => "programs for PyTorch (DDP, Accelerate, Lightning) need --launcher torchrun",
        };
        format!(
            "no rank had a connection to another one in {seconds} s: each may be doing all of the work alone\n  hint: \
             {other}; if the program does not communicate, ignore this"
        )
    }

    /// Returns a hint on the last lines of a rank that failed, if they show what it failed at: line ends of a script, a
    /// missing `python`, a file system that cannot be written to, too few files, a module that Python does not find, or
    /// the variables of another launcher than this one. The last one of these counts, unless another error of Python's
    /// ended the program afterwards.
    pub fn hint_on_output(&self, lines: &[String], program: &FailedProgram<'_>) -> Option<String> {
        let mut is_over = false;
        for line in lines.iter().rev() {
            let line = without_rank(line);
            is_over &= !CHAINED.iter().any(|text| line.contains(text));
            let line = &program.in_container(line);
            let hint = if is_over { None } else { program.hint_on_line(line) };
            if let Some(hint) = hint {
                return Some(program.in_place(hint));
            }
            is_over |= is_exception(line);
        }
        self.other_launcher(lines)
    }

    /// Returns a hint on the launcher for which a program was written, if it misses the variables of that.
    fn other_launcher(&self, lines: &[String]) -> Option<String> {
        let (_, wanted) = lines.iter().rev().find_map(|line| MISSING.iter().find(|(text, _)| line.contains(text)))?;
        // `env` sets what torchrun sets, too
        let has_it = [*wanted, LauncherName::Env].iter().any(|name| name.to_string() == self.program);
        let example = match wanted {
            LauncherName::Torchrun => " (PyTorch DDP and FSDP, Accelerate, Lightning, DeepSpeed)",
            _ => "",
        };
        (!has_it).then(|| {
            format!(
                "the program was written for another launcher than {}: try --launcher {wanted}{example}",
                self.program
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{FailedProgram, KnownProject, StartFailure};
    use crate::launch::launcher;
    use crate::model::launcher::{Controller, LauncherName};
    use crate::text::argument::ProgramArgument;
    use serde_json::json;

    const UNKNOWN: FailedProgram<'_> =
        FailedProgram { command: &[], project: KnownProject::Elsewhere, directory: None };

    #[test]
    fn programs_of_another_launcher_are_recognized() {
        const TORCH: &str = "ValueError: Error initializing torch.distributed using env:// rendezvous: environment \
            variable RANK \
                             expected, but not set";
        let hint = |name, line: &str| {
            let lines =
                ["Traceback (most recent call last):".to_owned(), line.to_owned(), "[W1125] shutdown".to_owned()];
            launcher(name, Controller::Gloo).hint_on_output(&lines, &UNKNOWN).unwrap_or_default()
        };
        for (name, line, expected) in [
            (LauncherName::Horovodrun, TORCH, "than horovodrun: try --launcher torchrun"),
            (LauncherName::Mpirun, TORCH, "than mpirun: try --launcher torchrun"),
            (LauncherName::Horovodrun, "KeyError: 'LOCAL_RANK'", "--launcher torchrun"),
            (LauncherName::Horovodrun, "ValueError: coordinator_address should be defined.", "--launcher env"),
            (LauncherName::Torchrun, "ValueError: coordinator_address should be defined.", "--launcher env"),
        ] {
            assert!(hint(name, line).contains(expected), "{name:?} {line}: {}", hint(name, line));
        }
        for (name, line) in [
            (LauncherName::Torchrun, TORCH),
            (LauncherName::Env, TORCH),
            (LauncherName::Env, "ValueError: coordinator_address should be defined."),
            (LauncherName::Horovodrun, "KeyError: 'RANKING'"),
            (LauncherName::Horovodrun, "RuntimeError: CUDA out of memory"),
        ] {
            assert_eq!(hint(name, line), "", "{name:?} {line}");
        }
        let warning = |name| launcher(name, Controller::Gloo).isolation_warning(60);
        assert!(
            warning(LauncherName::Horovodrun).contains("in 60 s")
                && warning(LauncherName::Mpirun).contains("--launcher torchrun")
        );
        let srun = warning(LauncherName::Srun);
        assert!(srun.contains("SLURM_MPI_TYPE") && srun.contains("--launcher mpirun"), "{srun}");
        assert!(warning(LauncherName::Torchrun).contains("--launcher horovodrun"));
        for line in [
            "OSError: [Errno 24] Too many open files: '/dev/null'",
            "RuntimeError: received 0 items of ancdata",
            "RuntimeError: unable to open shared memory object </torch_29919_1396182366> in read-write mode",
        ] {
            assert!(hint(LauncherName::Torchrun, line).contains("ulimits = { nofile = 1048576 }"), "{line}");
        }
        assert_eq!(launcher(LauncherName::Horovodrun, Controller::Mpi).hint_on_output(&[], &UNKNOWN), None);
    }

    /// The hint on this last line of `python scripts/train.py` in a project with `src/net.py`, `lib/pkg.py` and
    /// `utils.py`.
    fn hint(line: &str) -> String {
        let command = ["python", "scripts/train.py"].map(ProgramArgument::from);
        let directory_of = |name: &str| match name {
            "src" | "src.net" | "utils" => Some(String::new()),
            "pkg" => Some("lib".to_owned()),
            _ => None,
        };
        of(line, &FailedProgram { command: &command, project: KnownProject::Modules(&directory_of), directory: None })
    }

    fn of(line: &str, program: &FailedProgram<'_>) -> String {
        let lines = ["Traceback (most recent call last):".to_owned(), line.to_owned(), "[W1125] shutdown".to_owned()];
        launcher(LauncherName::Env, Controller::Gloo).hint_on_output(&lines, program).unwrap_or_default()
    }

    #[test]
    fn modules_of_the_project_are_not_installed_by_pip() {
        const OWN: &str = "is in the project, but Python searches the program's directory only: python -m \
            scripts.train (and its \
                           arguments), or -e PYTHONPATH=/workspace";
        for (line, expected) in [
            ("ModuleNotFoundError: No module named 'src'", OWN),
            ("[rank1]: ModuleNotFoundError: No module named 'src'", OWN),
            ("ModuleNotFoundError: No module named 'src.net'; 'src' is not a package", OWN),
            ("ImportError: No module named utils", OWN),
            ("/usr/bin/python3: No module named pkg", "pkg is in lib of the project: -e PYTHONPATH=/workspace/lib"),
            (
                "ModuleNotFoundError: No module named 'src.gone'",
                "src is in the project, but not src.gone: check .gitignore",
            ),
            ("ModuleNotFoundError: No module named 'models'", "the project on the nodes has no models: check"),
            (
                "ImportError: cannot import name 'f' from 'utils' (/usr/lib/python3/site-packages/utils/__init__.py)",
                "this utils is not the one in the project; utils is in the project",
            ),
            (
                "ImportError: attempted relative import with no known parent package",
                "start it as a module of its package: python -m scripts.train",
            ),
            (
                "python: can't open file '/workspace/x.py': [Errno 2] No such file or directory",
                "nodes has no x.py: check",
            ),
        ] {
            let hint = hint(line);
            assert!(hint.contains(expected) && !hint.contains("pip install"), "{line}: {hint}");
        }
        for (line, expected) in [
            (
                "ModuleNotFoundError: No module named 'tiny'",
                "setup = [\"pip install PACKAGE\"] with the package that has tiny",
            ),
            ("ModuleNotFoundError: No module named 'numpy'", "setup = [\"pip install numpy\"] (hvdctl"),
            ("ModuleNotFoundError: No module named 'yaml.cyaml'", "setup = [\"pip install pyyaml\"]"),
            ("ModuleNotFoundError: No module named 'a; rm -rf /'", ""),
            ("ImportError: cannot import name 'f' from 'utils' (/workspace/utils.py)", ""),
            ("ImportError: cannot import name 'f' from 'torch' (/usr/lib/torch.py)", ""),
            ("warning: No module named 'apex', falling back", ""),
        ] {
            let hint = hint(line);
            assert!(hint.contains(expected) && hint.is_empty() == expected.is_empty(), "{line}: {hint}");
        }
    }

    #[test]
    fn a_module_may_be_the_projects_where_the_project_is_not_known() {
        let both = of("ModuleNotFoundError: No module named 'tiny'", &UNKNOWN);
        assert!(
            both.starts_with("if tiny is in the project: -e PYTHONPATH=/workspace; install what the image lacks"),
            "{both}"
        );
        assert_eq!(
            of("ModuleNotFoundError: No module named 'src'", &UNKNOWN),
            "if src is in the project: -e PYTHONPATH=/workspace"
        );
        let none = FailedProgram { command: &[], project: KnownProject::None, directory: None };
        let run = |line: &str| of(line, &none);
        assert!(run("ModuleNotFoundError: No module named 'tiny'").starts_with("install what the image lacks"));
        for line in
            ["ModuleNotFoundError: No module named 'src'", "python: can't open file '/workspace/x.py': [Errno 2] …"]
        {
            assert_eq!(run(line), "`run` does not upload a project; `hvdctl train` does");
        }
        let relative = of("ImportError: attempted relative import with no known parent package", &UNKNOWN);
        assert_eq!(relative, "start it as a module of its package: python -m PACKAGE.MODULE");
    }

    #[test]
    fn data_cannot_be_written() {
        for (line, expected) in [
            (
                "OSError: [Errno 30] Read-only file system: '/data/d/my x.lock'",
                "pushed data are mounted read-only at /data",
            ),
            ("sh: 1: cannot create /data/x: Read-only file system", "pushed data are"),
            ("mkdir: cannot create directory ‘/data/x’: Read-only file system", "pushed data are"),
            ("BlockingIOError: unable to lock file, errno = 30, name = '/data/x.h5'", "HDF5_USE_FILE_LOCKING=FALSE"),
            ("filelock._error.Timeout: The file lock '/data/a/x.lock' could not be acquired.", "HF_HOME=/workspace"),
            (
                "sqlite3.OperationalError: attempt to write a readonly database",
                "if the file is below /data: pushed data",
            ),
            (
                "OSError: [Errno 30] Read-only file system: '/datasets/x'",
                "/datasets/x is mounted read-only: see `mounts`",
            ),
            ("touch: cannot touch '/root/.ssh/x': Read-only file system", ""),
            ("OSError: [Errno 30] Read-only file system: '/proc/sys/vm/x'", ""),
            ("/workspace/a.sh: line 3: /data/x: Read-only file system", "pushed data are"),
            ("cannot open /data/x: Read-only file system at /workspace/x.pl line 3.", "pushed data are"),
            ("panic: open /data/x: read-only file system", "pushed data are"),
            ("mkdir: Read-only file system [/data/x]", "pushed data are"),
            ("Error: Os { code: 30, message: \"Read-only file system\" }", "if the file is below /data"),
            ("unable to lock file, errno = 300, name = '/data/x.h5'", ""),
            ("note: a Read-only file system at /data is faster", ""),
        ] {
            let hint = hint(line);
            assert!(hint.contains(expected) && hint.is_empty() == expected.is_empty(), "{line}: {hint}");
        }
        let lines = ["ModuleNotFoundError: No module named 'x'", "OSError: Read-only file system: '/data/x'"];
        let hint = launcher(LauncherName::Env, Controller::Gloo).hint_on_output(&lines.map(str::to_owned), &UNKNOWN);
        assert!(hint.unwrap().starts_with("pushed data"));
    }

    #[test]
    fn windows_line_ends_are_recognized() {
        let command = ["bash", "run.sh"].map(ProgramArgument::from);
        let program = FailedProgram { command: &command, project: KnownProject::None, directory: None };
        for (line, script) in [
            ("run.sh: line 2: $'\\r': command not found", "run.sh"),
            ("lib/my env.sh: line 12: $'\\r': command not found", "'lib/my env.sh'"),
            ("env: ‘bash\\r’: No such file or directory", "SCRIPT"),
            ("/usr/bin/env: 'python3\\r': No such file or directory", "SCRIPT"),
            ("sh: ./x: /bin/bash^M: bad interpreter: No such file or directory", "./x"),
        ] {
            let hint = of(line, &program);
            assert!(hint.contains(&format!("sed -i 's/\\r$//' {script} removes")), "{line}: {hint}");
        }
    }

    #[test]
    fn a_script_that_starts_python_is_recognized() {
        for line in [
            "./run.sh: 2: python: not found",
            "run.sh: line 2: python: command not found",
            "env: ‘python’: No such file or directory",
            "zsh:1: command not found: python",
            "env: can't execute 'python': No such file or directory",
        ] {
            assert_eq!(hint(line), "the image has no `python`: write python3 in the script", "{line}");
        }
        for line in [
            "sh: 1: ipython: not found",
            "checking for python: not found",
            "python: not found, so python3 is used",
            "x.c:1: 'python': No such file or directory exists",
        ] {
            assert_eq!(hint(line), "", "{line}");
        }
    }

    #[test]
    fn a_program_that_looks_for_a_repository_is_recognized() {
        for line in [
            "fatal: not a git repository (or any of the parent directories): .git",
            "git.exc.InvalidGitRepositoryError: /workspace",
            "FileNotFoundError: [Errno 2] No such file or directory: 'git'",
            "LookupError: setuptools-scm was unable to detect version for /workspace.",
        ] {
            assert!(hint(line).contains("HVDCTL_GIT_COMMIT"), "{line}");
        }
        let run = FailedProgram { command: &[], project: KnownProject::None, directory: None };
        assert_eq!(of("fatal: not a git repository", &run), "");
    }

    #[test]
    fn the_last_error_counts() {
        const WARNED: &str = "warning: cannot write the cache: Read-only file system: '/data/x'";
        const FILES: &str = "OSError: [Errno 24] Too many open files: '/x'";
        const CHAIN: &str = "The above exception was the direct cause of the following exception:";
        let of = |lines: &[&str]| {
            let lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
            launcher(LauncherName::Env, Controller::Gloo).hint_on_output(&lines, &UNKNOWN).unwrap_or_default()
        };
        for (lines, expected) in [
            (&[WARNED, FILES][..], "the rank may open too few files"),
            (&[FILES, WARNED], "pushed data"),
            (&[WARNED, "torch.cuda.OutOfMemoryError: CUDA out of memory."], ""),
            (&[WARNED, "RuntimeError: x", "[W1125] shutdown"], ""),
            (&[FILES, "", CHAIN, "", "RuntimeError: DataLoader worker exited"], "the rank may open too few files"),
            (&[WARNED, "a step"], "pushed data"),
            (
                &["sh: 1: python: not found", "subprocess.CalledProcessError: Command 'x' returned 127."],
                "the image has no",
            ),
            (&["socket.accept() failed: Too many open files in system"], ""),
            (
                &["RuntimeError: unable to open shared memory object </torch_1> in read-write mode: Permission \
                     denied (13)"],
                "",
            ),
            (
                &["RuntimeError: unable to open shared memory object </torch_1> in read-write mode: Too many open \
                     files (24)"],
                "the rank may open",
            ),
        ] {
            let hint = of(lines);
            assert!(hint.contains(expected) && hint.is_empty() == expected.is_empty(), "{lines:?}: {hint}");
        }
    }

    #[test]
    fn reasons_why_a_program_does_not_start_have_hints() {
        let command = ["run.sh"].map(ProgramArgument::from);
        let program = FailedProgram { command: &command, project: KnownProject::None, directory: None };
        let failure = |fault, about| {
            let json =
                json!({"program": "run.sh", "error": "No such file or directory", "fault": fault, "about": about});
            StartFailure::read(&json.to_string())
        };
        for (fault, about, expected) in [
            ("line_ends", "/bin/bash", "sed -i"),
            ("interpreter_missing", "/bin/zsh", "#!/bin/sh"),
            ("loader_missing", "", "hvdctl image build"),
            ("not_in_path", "/workspace", "write ./run.sh: Linux"),
            ("only_python3", "", "the image has python3 and no python: -- python3"),
            ("not_executable", "", "chmod +x run.sh"),
            ("not_executable", "#!/usr/bin/env python3", "its interpreter: -- python3 run.sh"),
            ("no_interpreter_either", "", "start it with -- sh run.sh"),
            ("portable", "", "-- sh PROGRAM"),
            ("no_interpreter", "", "write #!/bin/sh"),
            ("other_processor", "", "or on a node"),
            ("other_system", "Windows", "build it for Linux"),
            ("byte_order_mark", "", "save it as UTF-8"),
        ] {
            let hint = program.hint_on_start(&failure(json!(fault), json!(about))).unwrap_or_default();
            assert!(hint.contains(expected), "{fault}: {hint}");
        }
        for (fault, about) in
            [(json!(null), json!(null)), (json!("of_tomorrow"), json!("x")), (json!("not_in_path"), json!("/tmp"))]
        {
            assert_eq!(program.hint_on_start(&failure(fault, about)), None);
        }
        let text = "cannot start run.sh: Permission denied: it is not executable";
        assert_eq!(program.hint_on_start(&StartFailure::read(text)), None, "of an earlier build");
    }
}
