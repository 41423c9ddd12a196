//! A project's name on the nodes and its command.

use crate::model::launcher::LauncherName;
use crate::text::argument::ProgramArgument;
use crate::text::digest::hex;
use serde::Deserialize;
use sha2::{Digest, Sha256};

/// The project's file `hvdctl.toml`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    command: Option<Vec<String>>,
    launcher: Option<LauncherName>,
}

/// How the ranks of a project are started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectCommand {
    /// The program and its arguments.
    pub argv: Vec<ProgramArgument>,
    /// The launcher that the project names.
    pub launcher: Option<LauncherName>,
}

/// Why a project's command cannot be determined.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// `hvdctl.toml` is invalid; the message has line and column.
    #[error("hvdctl.toml: {0}")]
    File(String),
    /// The project has none of the files.
    #[error("there is no hvdctl.toml, train.py or main.py in it")]
    Missing,
    /// The project has two programs.
    #[error("both train.py and main.py are in it")]
    Ambiguous,
}

/// Returns the command of a project: the `given` one, else that of `hvdctl.toml`, else its only script; and the launcher.
///
/// # Errors
/// [`CommandError`] if there is none, or more than one.
pub fn command(
    given: &[ProgramArgument],
    file: Option<&str>,
    has_train: bool,
    has_main: bool,
) -> Result<ProjectCommand, CommandError> {
    let file = match file {
        Some(text) => toml::from_str(text).map_err(|e| CommandError::File(e.to_string().trim_end().to_owned()))?,
        None => File::default(),
    };
    if file.command.as_ref().is_some_and(|argv| argv.is_empty() || argv.iter().any(|part| part.contains('\0'))) {
        return Err(CommandError::File(
            "command must name a program, e.g. command = [\"python\", \"train.py\"]".into(),
        ));
    }
    let argv = match (file.command, has_train, has_main) {
        _ if !given.is_empty() => given.to_vec(),
        (Some(argv), ..) => argv.into_iter().map(ProgramArgument::Text).collect(),
        (None, true, false) => vec!["python".into(), "train.py".into()],
        (None, false, true) => vec!["python".into(), "main.py".into()],
        (None, true, true) => return Err(CommandError::Ambiguous),
        (None, false, false) => return Err(CommandError::Missing),
    };
    Ok(ProjectCommand { argv, launcher: file.launcher })
}

/// Returns the name of a project's directory on the nodes: `name` if it is plain; otherwise its plain letters and a hash, so that two
/// names never share a directory and no space or quote gets into Docker's mounts.
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
    use proptest::prelude::*;

    #[test]
    fn commands() {
        let ok = |c: &[&str]| {
            Ok(ProjectCommand { argv: c.iter().map(|s| ProgramArgument::from(*s)).collect(), launcher: None })
        };
        assert_eq!(command(&["x".into()], Some("command = ['y']"), true, true), ok(&["x"]));
        assert!(command(&["x".into()], Some("junk"), true, true).is_err());
        let with_launcher = command(&[], Some("launcher = 'torchrun'"), true, false).unwrap();
        assert_eq!(with_launcher.launcher, Some(LauncherName::Torchrun));
        assert!(command(&[], Some("launcher = 'slurm'"), true, false).unwrap_err().to_string().contains("slurm"));
        assert_eq!(command(&[], Some("command = ['python', 'a b.py']"), true, true), ok(&["python", "a b.py"]));
        assert_eq!(command(&[], None, true, false), ok(&["python", "train.py"]));
        assert_eq!(command(&[], None, false, true), ok(&["python", "main.py"]));
        assert_eq!(command(&[], None, true, true), Err(CommandError::Ambiguous));
        assert_eq!(command(&[], None, false, false), Err(CommandError::Missing));
        assert!(command(&[], Some("command = []"), false, false).is_err());
        let message = command(&[], Some("comand = ['x']"), false, false).unwrap_err().to_string();
        assert!(message.contains("line 1") && message.contains("comand"), "{message}");
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
