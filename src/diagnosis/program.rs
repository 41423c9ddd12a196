//! Hints on a program: why it did not start, and the modules and files that it does not find.

use super::ports::KnownPorts;
use crate::model::start_fault::{StartFailure, StartFault, interpreter as interpreter_of};
use crate::paths::WORKSPACE;
use crate::text::argument::ProgramArgument;
use crate::text::nodeset::printable;
use crate::text::quote;

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

/// Returns the directory of the project, "" for its top, that has a module of this name.
pub type DirectoryOf<'a> = dyn Fn(&str) -> Option<String> + 'a;

/// The knowledge of a program's project on this machine.
#[derive(Clone, Copy)]
pub enum KnownProject<'a> {
    /// There is none: the program is in the image.
    None,
    /// Its files are not here.
    Elsewhere,
    /// Its modules (`a.b` or `a`).
    Modules(&'a DirectoryOf<'a>),
}

/// The knowledge of a program that failed, for hints.
#[derive(Clone)]
pub struct FailedProgram<'a> {
    /// Its command.
    pub command: &'a [ProgramArgument],
    /// Its project.
    pub project: KnownProject<'a>,
    /// Where the project is instead of at [`WORKSPACE`], without containers.
    pub directory: Option<String>,
    /// Set if its job would have been started again with `--restarts`.
    pub restarts_help: bool,
    /// The ports that are known to be in use on its nodes.
    pub ports: Vec<KnownPorts>,
}

impl FailedProgram<'_> {
    /// Returns a text of the nodes with the project where containers have it.
    pub(super) fn in_container(&self, text: &str) -> String {
        self.directory.as_ref().map_or_else(|| text.to_owned(), |directory| text.replace(directory, WORKSPACE))
    }

    /// Returns a hint with the project where it is.
    pub(super) fn in_place(&self, hint: String) -> String {
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

    /// Returns a hint on a module that Python does not find, or finds elsewhere.
    pub(super) fn module(&self, line: &str) -> Option<String> {
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

/// Returns whether a text is the name of a module, as in an import statement.
pub(super) fn is_module(text: &str) -> bool {
    let is_name = |name: &str| {
        name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    text.len() <= 200 && text.split('.').all(is_name)
}
