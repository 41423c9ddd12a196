//! Reads on this machine what a virtualenv is made from.

use super::pylock::Pylock;
use super::requirements::{FlatRequirements, RequirementsFault};
use crate::cluster::operator::operator;
use crate::error::Error;
use crate::files;
use crate::text::digest;
use crate::text::units::human;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;
use tokio::time::timeout;

/// The files that are looked for, the first one first.
pub const DEFAULT_FILES: [&str; 3] = ["pylock.toml", "uv.lock", "requirements.txt"];

/// The most bytes of a file, which is sent to each node.
const MAX_FILE: u64 = 8 << 20;

/// The time that `uv export` may take, which uses no network.
const EXPORT_LIMIT: Duration = Duration::from_secs(60);

/// The form of what nodes install.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PackageForm {
    /// `pylock.toml`, which has all packages.
    Pylock,
    /// A requirements file.
    Requirements,
}

impl PackageForm {
    /// Returns the name that `env/install.sh` knows.
    pub fn name(self) -> &'static str {
        match self {
            PackageForm::Pylock => "pylock",
            PackageForm::Requirements => "requirements",
        }
    }
}

/// The packages from which a virtualenv is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackageSource {
    /// The form of `text`.
    pub form: PackageForm,
    /// The file that nodes get.
    pub text: String,
    /// Constraints on the versions.
    pub constraints: String,
    /// Set if it lists all packages, including the dependencies.
    pub is_exact: bool,
    /// Its origin: `USER@HOST:FILE`.
    pub origin: String,
}

/// The kind of a file, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SourceKind {
    Pylock,
    UvLock,
    Requirements,
}

impl PackageSource {
    /// Reads the file, or the first one of [`DEFAULT_FILES`] in the current directory. `only_wheels`: nodes install
    /// from a directory of wheels, and download nothing.
    ///
    /// # Errors
    /// If there is none, it cannot be used, or it is a `uv.lock` and there is no uv here.
    pub async fn read(file: Option<&Path>, only_wheels: bool) -> Result<PackageSource, Error> {
        let file = match file {
            Some(file) => file.to_owned(),
            None => DEFAULT_FILES.iter().map(PathBuf::from).find(|file| file.is_file()).ok_or_else(|| {
                Error::usage(
                    format!("the current directory has no {}", DEFAULT_FILES.join(", ")),
                    "name the file, e.g. hvdctl env create ./train/requirements.txt",
                )
            })?,
        };
        let shown = file.display().to_string();
        let wrong = |why: String| Error::usage(format!("cannot use {shown}: {why}"), "see hvdctl env create --help");
        let kind = kind(&file).map_err(wrong)?;
        let path = std::path::absolute(&file).unwrap_or_else(|_| file.clone());
        let origin = format!("{}:{}", operator(), path.display());
        if kind == SourceKind::Requirements {
            let flat = FlatRequirements::new(&file, &mut |path| text_of(path)).map_err(refused)?;
            let FlatRequirements { text, constraints } = flat;
            let form = PackageForm::Requirements;
            return Ok(PackageSource { form, text, constraints, is_exact: false, origin });
        }
        let text = match kind {
            SourceKind::UvLock => export(&file).await?,
            _ => text_of(&file).map_err(|why| Error::usage(why, "name another file"))?,
        };
        let lock = Pylock::parse(&text).map_err(wrong)?;
        let (form, text) = match only_wheels {
            true => (PackageForm::Requirements, lock.requirements().map_err(wrong)?),
            false => (PackageForm::Pylock, text),
        };
        Ok(PackageSource { form, text, constraints: String::new(), is_exact: true, origin })
    }

    /// Returns the hash of all that decides what is installed. `wheels`: `SHA-256/FILE` of each that is sent.
    pub fn hash<'a>(&self, python: &str, wheels: impl Iterator<Item = &'a str>) -> String {
        let mut all =
            format!("2\0{}\0{python}\0{}\0{}\0{}", self.form.name(), self.is_exact, self.text, self.constraints);
        wheels.for_each(|wheel| {
            let _ = write!(all, "\0{wheel}");
        });
        digest::in_hex(all.as_bytes())
    }
}

fn kind(file: &Path) -> Result<SourceKind, String> {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let end = file.extension().unwrap_or_default().to_string_lossy();
    match (&*name, &*end) {
        ("uv.lock", _) => Ok(SourceKind::UvLock),
        (name, "toml") if name.starts_with("pylock.") => Ok(SourceKind::Pylock),
        (_, "txt" | "in") => Ok(SourceKind::Requirements),
        _ => Err("expected pylock.toml, uv.lock, or a requirements file (.txt)".to_owned()),
    }
}

fn text_of(file: &Path) -> Result<String, String> {
    let read = files::read(file, MAX_FILE).map_err(|error| format!("cannot read {}: {error}", file.display()));
    let text = String::from_utf8(read?).map_err(|_| format!("{} is not UTF-8", file.display()))?;
    if text.contains('\0') { Err(format!("{} is not text", file.display())) } else { Ok(text) }
}

fn refused(fault: RequirementsFault) -> Error {
    let hint = match fault {
        RequirementsFault::LocalFile { .. } => {
            "build a wheel of it (python3 -m pip wheel --no-deps -w wheels PATH), name the package instead, and send \
             it with --wheels wheels; a project's own modules need no package: train uploads them"
        }
        _ => "name a file that can be read",
    };
    Error::usage(fault.to_string(), hint)
}

/// Returns the packages of a `uv.lock` as `pylock.toml`, without the project's own: `train` uploads that.
async fn export(file: &Path) -> Result<String, Error> {
    let shown = file.display();
    let project = file.parent().filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !project.join("pyproject.toml").is_file() {
        return Err(Error::usage(
            format!("cannot use {shown}: there is no pyproject.toml next to it"),
            "name the uv.lock of a project, or export it there: uv export --frozen -o pylock.toml",
        ));
    }
    let export = "uv export --frozen --no-emit-workspace -o pylock.toml";
    let Ok(uv) = which::which("uv") else {
        return Err(Error::usage(
            format!("cannot use {shown}: this machine has no uv to read it"),
            format!("install uv here, or run `{export}` on a machine that has it, and pass pylock.toml"),
        ));
    };
    let mut command = Command::new(uv);
    command.args(["export", "--quiet", "--no-progress", "--frozen", "--no-emit-workspace", "--format", "pylock.toml"]);
    command.current_dir(project).stdin(Stdio::null()).kill_on_drop(true);
    let failed = |why: &str| {
        Error::usage(
            format!("cannot use {shown}: uv export failed: {}", why.trim()),
            format!("see the output of `{export}`"),
        )
    };
    let output = match timeout(EXPORT_LIMIT, command.output()).await {
        Ok(Ok(output)) => output,
        Ok(Err(error)) => return Err(failed(&error.to_string())),
        Err(_) => return Err(failed(&format!("it did not end within {} s", EXPORT_LIMIT.as_secs()))),
    };
    if !output.status.success() {
        return Err(failed(&String::from_utf8_lossy(&output.stderr)));
    }
    if output.stdout.len() as u64 > MAX_FILE {
        return Err(failed(&format!("it has more than {}", human(MAX_FILE))));
    }
    String::from_utf8(output.stdout).map_err(|_| failed("its output is no UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    async fn read(directory: &Path, name: &str, only_wheels: bool) -> Result<PackageSource, String> {
        PackageSource::read(Some(&directory.join(name)), only_wheels).await.map_err(|error| error.to_string())
    }

    const LOCK: &str = "lock-version = \"1.0\"\n[[packages]]\nname = \"six\"\nversion = \"1.17.0\"\n";

    #[tokio::test]
    async fn the_name_of_a_file_says_what_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        for (name, text) in [
            ("pylock.toml", LOCK),
            ("pylock.gpu.toml", LOCK),
            ("requirements.txt", "-c pins.txt\nsix\n"),
            ("pins.txt", "six<2\n"),
            ("setup.py", ""),
            ("bad.txt", "-e .\n"),
            ("nul.txt", "a\0b"),
        ] {
            fs::write(path.join(name), text).unwrap();
        }
        for name in ["pylock.toml", "pylock.gpu.toml"] {
            let source = read(path, name, false).await.unwrap();
            assert_eq!((source.form, source.text.as_str(), source.is_exact), (PackageForm::Pylock, LOCK, true));
            assert!(source.origin.ends_with(&format!("/{name}")), "{source:?}");
        }
        let source = read(path, "pylock.toml", true).await.unwrap();
        assert_eq!((source.form, source.text.as_str()), (PackageForm::Requirements, "six==1.17.0\n"));
        let source = read(path, "requirements.txt", false).await.unwrap();
        assert_eq!((source.form, source.text.as_str()), (PackageForm::Requirements, "six\n"));
        assert_eq!((source.constraints.as_str(), source.is_exact), ("six<2\n", false));
        for (name, words) in [
            ("setup.py", "expected pylock.toml, uv.lock, or a requirements file (.txt)"),
            ("bad.txt", "bad.txt line 1: `-e .` is a file or directory of this machine"),
            ("nul.txt", "nul.txt is not text"),
            ("no.txt", "no.txt: No such file or directory"),
            ("uv.lock", "there is no pyproject.toml next to it"),
        ] {
            let fault = read(path, name, false).await.unwrap_err();
            assert!(fault.contains(words), "{fault}");
        }
    }

    #[tokio::test]
    async fn the_hash_is_of_all_that_decides() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("r.txt"), "six\n").unwrap();
        let source = read(dir.path(), "r.txt", false).await.unwrap();
        let hash =
            |source: &PackageSource, python, wheels: &[&'static str]| source.hash(python, wheels.iter().copied());
        let all = [
            hash(&source, "", &[]),
            hash(&source, "3.11", &[]),
            hash(&source, "", &["00/a.whl"]),
            hash(&PackageSource { text: "six<2\n".into(), ..source.clone() }, "", &[]),
            hash(&PackageSource { constraints: "six<2\n".into(), ..source.clone() }, "", &[]),
            hash(&PackageSource { is_exact: true, ..source.clone() }, "", &[]),
        ];
        let different: std::collections::BTreeSet<&String> = all.iter().collect();
        assert_eq!(different.len(), all.len());
        let moved = PackageSource { origin: "bob@desk:/r.txt".into(), ..source.clone() };
        assert_eq!(hash(&moved, "", &[]), all[0], "where it lies decides nothing");
    }
}
