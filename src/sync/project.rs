//! A project's directory on this machine, its command, and its name on the nodes.

mod roles;

use crate::cluster::operator::operator;
use crate::error::Error;
use crate::files;
use crate::model::launcher::LauncherName;
use crate::text::argument::ProgramArgument;
use crate::text::digest::hex;
use roles::RoleTable;
pub use roles::{ProjectRole, RoleEnvironment};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use toml::Spanned;

/// The most bytes of a project's `hvdctl.toml`.
const MOST: u64 = 1 << 20;

/// Returns the absolute path of a project's directory, without symbolic links.
///
/// # Errors
/// If it is no directory, or the root of the file system.
pub fn find(path: &Path) -> Result<PathBuf, Error> {
    find_directory(path, "project", "name the project's directory, e.g. hvdctl train ./myproject -np 2")
}

/// Returns the same for a directory of another kind; `hint` says how to name one.
///
/// # Errors
/// As [`find`].
pub fn find_directory(path: &Path, kind: &str, hint: &str) -> Result<PathBuf, Error> {
    let shown = path.display();
    let wrong = |why: String| Error::usage(why, hint);
    let root = fs::canonicalize(path).map_err(|e| {
        let cause = e.to_string();
        let cause = cause.split(" (os error").next().unwrap_or_default();
        wrong(format!("cannot read the {kind} {shown}: {cause}"))
    })?;
    match root.file_name() {
        _ if !root.is_dir() => Err(wrong(format!("the {kind} {shown} is not a directory"))),
        None => Err(wrong(format!("{shown} is the root of the file system"))),
        Some(_) => Ok(root),
    }
}

/// Returns the origin of a project, `USER@HOST#MACHINE:DIRECTORY`: hosts of one name and users with one directory are
/// common in containers. MACHINE, 8 digits of a hash of systemd's machine id, is left out where there is none.
pub fn origin(root: &Path) -> String {
    let ids = ["/etc/machine-id", "/var/lib/dbus/machine-id"].map(fs::read_to_string);
    let id = ids.into_iter().find_map(|id| id.ok().filter(|id| !id.trim().is_empty()));
    origin_of(&operator(), id.as_deref(), root)
}

fn origin_of(operator: &str, machine_id: Option<&str>, root: &Path) -> String {
    // machine-id(5): the id itself is not for others
    let hash = |id: &str| hex(&Sha256::digest(format!("hvdctl {}", id.trim()))[..4]);
    let machine = machine_id.map(|id| format!("#{}", hash(id))).unwrap_or_default();
    format!("{operator}{machine}:{}", root.display())
}

/// Returns what earlier versions stored as this origin, `HOST:DIRECTORY`.
pub(crate) fn earlier_origin(origin: &str) -> String {
    let (operator, directory) = origin.split_once(':').unwrap_or((origin, ""));
    let host = operator.rsplit('@').next().unwrap_or_default();
    format!("{}:{directory}", host.split('#').next().unwrap_or_default())
}

/// The project's file `hvdctl.toml`. `docs/reference/project.md` has its fields with these comments.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ProjectFile {
    /// The program and its arguments, which `-- COMMAND…` replaces. Without it: `python train.py` or `python main.py`,
    /// whichever is in the project.
    command: Option<Vec<String>>,
    /// The launcher of the ranks, unless `--launcher` names one. The default is `slurm.launcher` of the
    /// inventory under Slurm, otherwise `cluster.launcher`.
    pub launcher: Option<LauncherName>,
    /// A Dockerfile in the project, by its path there. The image that it builds replaces the cluster's.
    pub build: Option<String>,
    /// Commands that add to the image what the project needs. They run in a shell, once for all nodes. Without it the
    /// image is used as it is.
    pub setup: Option<Vec<String>>,
    /// Files, directories and patterns of the project that the commands of `setup` read. A change of one of them makes
    /// a new image.
    #[serde(default)]
    pub setup_files: Vec<String>,
    /// The roles of the job, each with a program of its own; instead of `command`. The table below has their fields.
    #[serde(default)]
    #[cfg_attr(test, schemars(with = "Vec<RoleTable>"))]
    role: Vec<Spanned<RoleTable>>,
    /// The roles that these tables describe.
    #[serde(skip)]
    pub roles: Vec<ProjectRole>,
}

impl ProjectFile {
    /// Reads it; a project without one has an empty one.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read(root: &Path) -> Result<ProjectFile, Error> {
        let path = root.join("hvdctl.toml");
        let wrong = |why: String| Error::usage(format!("{}: {why}", path.display()), "fix or remove the file");
        let text = match files::read_regular(&path, MOST) {
            Err(e) if e.kind() == ErrorKind::NotFound => String::new(),
            text => String::from_utf8(text.map_err(|e| wrong(e.to_string()))?)
                .map_err(|_| wrong("it is not UTF-8".to_owned()))?,
        };
        let mut file: ProjectFile = toml::from_str(&text).map_err(|e| wrong(e.to_string().trim_end().to_owned()))?;
        if file.setup.is_none() && !file.setup_files.is_empty() {
            return Err(wrong("setup_files without setup, whose commands would read them".to_owned()));
        }
        let of_role = |(why, hint): roles::TableFault| Error::usage(format!("{}: {why}", path.display()), hint);
        file.roles = roles::read(&text, std::mem::take(&mut file.role)).map_err(of_role)?;
        if file.command.is_some() && !file.roles.is_empty() {
            let why = "it has `command` and roles, which have commands of their own".to_owned();
            return Err(of_role((why, "move `command` into a [[role]]".to_owned())));
        }
        Ok(file)
    }

    /// Returns what makes the image of a role, or of ranks without roles; `None` if nothing is made.
    pub fn image_parts(&self, role: Option<&RoleEnvironment>) -> Option<ImageParts> {
        let base = role.and_then(|role| role.image.clone());
        let (setup, setup_files) = match role {
            Some(RoleEnvironment { setup: Some(setup), setup_files, .. }) => (Some(setup), setup_files),
            _ => (self.setup.as_ref(), &self.setup_files),
        };
        let build = self.build.clone().filter(|_| base.is_none());
        let parts = ImageParts { base, build, setup: setup.cloned(), setup_files: setup_files.clone() };
        (parts.build.is_some() || parts.setup.is_some()).then_some(parts)
    }

    /// Checks that the project has no roles.
    ///
    /// # Errors
    /// That `command` does not know them, with `hint`.
    pub fn refuse_roles(&self, command: &str, hint: &str) -> Result<(), Error> {
        match self.roles.as_slice() {
            [] => Ok(()),
            roles => {
                let names: Vec<&str> = roles.iter().map(|role| role.name.as_str()).collect();
                let why = format!("{command} does not support roles, but hvdctl.toml has {}", names.join(", "));
                Err(Error::usage(why, hint))
            }
        }
    }
}

/// The parts of a file that make an image.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ImageParts {
    /// The image that replaces the cluster's.
    pub base: Option<String>,
    /// The Dockerfile.
    pub build: Option<String>,
    /// The commands that add to the image.
    pub setup: Option<Vec<String>>,
    /// The files that these read.
    pub setup_files: Vec<String>,
}

/// The command of a project.
#[derive(Debug, PartialEq, Eq)]
pub struct ProjectCommand {
    /// The program and its arguments.
    pub argv: Vec<ProgramArgument>,
    /// Set if neither the user nor `hvdctl.toml` has named it.
    pub is_default: bool,
    /// The launcher that `hvdctl.toml` names.
    pub launcher: Option<LauncherName>,
}

/// Returns the command of a project without roles: the `given` one, else that of its `hvdctl.toml`, else its only
/// script.
///
/// # Errors
/// If there is no command, or more than one.
pub fn command(root: &Path, file: ProjectFile, given: Vec<ProgramArgument>) -> Result<ProjectCommand, Error> {
    let unclear = |why: &str| {
        Error::usage(
            format!("the project {} has no clear entry point: {why}", root.display()),
            "name the program: hvdctl train PROJECT -np N -- python your_script.py",
        )
    };
    let ProjectFile { command, launcher, .. } = file;
    if command.as_ref().is_some_and(|argv| argv.is_empty() || argv.iter().any(|part| part.contains('\0'))) {
        let why = "hvdctl.toml: command must name a program, e.g. command = [\"python\", \"train.py\"]";
        return Err(unclear(why));
    }
    let has = |name: &str| root.join(name).is_file();
    let is_default = given.is_empty() && command.is_none();
    let argv = match (command, has("train.py"), has("main.py")) {
        _ if !given.is_empty() => given,
        (Some(argv), ..) => argv.into_iter().map(ProgramArgument::Text).collect(),
        (None, true, false) => vec!["python".into(), "train.py".into()],
        (None, false, true) => vec!["python".into(), "main.py".into()],
        (None, true, true) => return Err(unclear("both train.py and main.py are in it")),
        (None, false, false) => return Err(unclear("there is no hvdctl.toml, train.py or main.py in it")),
    };
    Ok(ProjectCommand { argv, is_default, launcher })
}

/// Returns the name of a project's directory on the nodes: `name` if it is plain; otherwise its plain letters and a
/// hash, so that two names never share a directory and no space or quote gets into Docker's mounts.
pub fn directory_name(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if !name.is_empty() && name.len() <= 64 && name.chars().all(plain) && !name.starts_with(['.', '-']) {
        return name.to_owned();
    }
    let letters: String = name.chars().filter(|c| plain(*c)).take(40).collect();
    let hash = hex(&Sha256::digest(name)[..4]);
    format!("{}-{hash}", letters.trim_start_matches(['.', '-'])).trim_start_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;
    use proptest::prelude::*;
    use serde_json::Value;

    /// The line that begins the generated part of the page.
    const MARK: &str = "<!-- generated from src/sync/project.rs -->\n";

    /// A value of a field, as the page describes and as the file has it.
    fn value(schema: &Value) -> (String, String) {
        let names = LauncherName::value_variants().iter().map(|launcher| format!("\"{launcher}\""));
        let types = schema["type"].as_array().map_or_else(|| vec![&schema["type"]], |types| types.iter().collect());
        let (expected, example) = match types[0].as_str() {
            Some("array") if schema["items"]["$ref"].is_string() => ("tables", "[]"),
            Some("array") => ("a list of strings", "['a']"),
            Some("string") => ("a string", "'a'"),
            Some("integer") => ("a whole number", "1"),
            Some("object") => ("a table of strings", "{ A = '1' }"),
            _ => return (names.collect::<Vec<_>>().join(" or "), "'env'".to_owned()),
        };
        (expected.to_owned(), example.to_owned())
    }

    /// The table of the fields of a type, which is read with `others` next to them.
    fn table<T: schemars::JsonSchema + serde::de::DeserializeOwned>(others: &[(&str, &str)]) -> String {
        let schema = schemars::schema_for!(T).to_value();
        let mut rows = "| field | value | meaning |\n|---|---|---|\n".to_owned();
        for (name, field) in schema["properties"].as_object().unwrap() {
            let (expected, example) = value(field);
            let others = others.iter().filter(|(other, _)| other != name);
            let others: String = others.map(|(name, value)| format!("{name} = {value}\n")).collect();
            // as the reader takes it, and nothing else
            let read = |value: &str| toml::from_str::<T>(&format!("{others}{name} = {value}"));
            assert!(read(&example).is_ok() && read("true").is_err(), "{name}");
            let doc = field["description"].as_str().unwrap().replace('\n', " ");
            assert!(doc.ends_with('.'), "{name}: {doc}");
            rows.push_str(&format!("| `{name}` | {expected} | {doc} |\n"));
        }
        rows
    }

    /// The tables of fields in the documentation; `UPDATE_DOCS=1 cargo test --lib project` regenerates them.
    #[test]
    fn the_documentation_has_every_field() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference/project.md");
        let old = fs::read_to_string(&file).unwrap();
        let (by_hand, _) = old.split_once(MARK).expect("a generated part");
        let (fields, of_roles) =
            (table::<ProjectFile>(&[]), table::<RoleTable>(&[("name", "'a'"), ("command", "['a']")]));
        let new = format!("{by_hand}{MARK}\n{fields}\n## Fields of a [[role]]\n\n{of_roles}");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            fs::write(file, new).unwrap();
        } else {
            assert_eq!(old, new, "run UPDATE_DOCS=1 cargo test --lib project");
        }
    }

    #[test]
    fn commands() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let read = |given: &[&str], file: Option<&str>, scripts: &[&str]| {
            for script in ["train.py", "main.py", "hvdctl.toml"] {
                let _ = fs::remove_file(root.join(script));
            }
            scripts.iter().for_each(|script| fs::write(root.join(script), "").unwrap());
            if let Some(text) = file {
                fs::write(root.join("hvdctl.toml"), text).unwrap();
            }
            let given = given.iter().map(|argument| ProgramArgument::from(*argument)).collect();
            let command = ProjectFile::read(root).and_then(|file| command(root, file, given));
            let command = command.map_err(|error| error.to_string());
            command.map(|ProjectCommand { argv, is_default, launcher }| {
                let argv = argv.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
                (if is_default { format!("{argv} by default") } else { argv }, launcher)
            })
        };
        let both = ["train.py", "main.py"];
        let ok = |command: &str| Ok((command.to_owned(), None));
        assert_eq!(read(&["x"], Some("command = ['y']"), &both), ok("x"));
        assert_eq!(read(&[], Some("command = ['python', 'a b.py']"), &both), ok("python a b.py"));
        assert_eq!(read(&[], None, &both[..1]), ok("python train.py by default"));
        assert_eq!(read(&[], None, &both[1..]), ok("python main.py by default"));
        let with_launcher = read(&[], Some("launcher = 'torchrun'"), &both[..1]);
        assert_eq!(with_launcher, Ok(("python train.py by default".to_owned(), Some(LauncherName::Torchrun))));
        for (given, file, scripts, words) in [
            (&["x"][..], Some("junk"), &both[..], "hvdctl.toml: "),
            (&[], Some("launcher = 'slurm'"), &both[..1], "slurm"),
            (&[], Some("comand = ['x']"), &[], "comand"),
            (&[], Some("comand = ['x']"), &[], "line 1"),
            (&["x"], Some("setup_files = ['a']"), &[], "setup_files without setup"),
            (&["x"], Some("setup = 'pip install x'"), &[], "setup"),
            (&[], Some("command = []"), &[], "has no clear entry point: hvdctl.toml: command must name a program"),
            (&[], None, &both, "has no clear entry point: both train.py and main.py"),
            (&[], None, &[], "has no clear entry point: there is no hvdctl.toml, train.py or main.py"),
        ] {
            let error = read(given, file, scripts).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        assert_eq!(read(&["x"], Some("setup = ['pip install x']\nsetup_files = ['r.txt']"), &[]), ok("x"));
    }

    #[test]
    fn two_operators_are_not_one_because_their_hosts_have_one_name() {
        let of = |operator, id| origin_of(operator, id, Path::new("/w/a:b@c#d"));
        let ids = [None, Some("9c3e0c\n"), Some("12ab\n")];
        let all: Vec<String> = ["ana@dev", "bob@dev"].iter().flat_map(|user| ids.map(|id| of(user, id))).collect();
        assert_eq!(all[0], "ana@dev:/w/a:b@c#d");
        assert!((0..all.len()).all(|i| !all[..i].contains(&all[i]) && !all[i].contains("9c3e0c")), "{all:?}");
        assert!(all.iter().all(|origin| earlier_origin(origin) == "dev:/w/a:b@c#d"), "{all:?}");
    }

    proptest! {
        #[test]
        fn directory_names_are_safe_and_distinct(a in ".{1,80}", b in ".{1,80}") {
            let name = directory_name(&a);
            prop_assert!(!name.is_empty() && name.len() <= 64);
            prop_assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c)));
            prop_assert!(!name.starts_with(['.', '-']));
            prop_assert!(a == b || directory_name(&b) != name);
        }
    }
}
