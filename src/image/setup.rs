//! A project's additions to the cluster's image: the `setup` of its `hvdctl.toml`, and the image that it makes.

use crate::error::Error;
use crate::files;
use crate::runtime::spec::SETUP_REPOSITORY;
use crate::secret::Secret;
use crate::text::digest::hex;
use crate::text::quote;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path};
use zeroize::Zeroizing;

/// The directory in the container in which the steps run, with the files of `setup_files`.
pub const DIRECTORY: &str = "/opt/hvdctl/setup";

/// The most bytes of all `setup_files`, which are kept in memory.
const MOST: u64 = 512 << 20;

/// Installs OpenSSH, without which no worker starts, in an image that lacks it.
pub const SETUP_SSH: &str = include_str!("../scripts/image/setup_ssh.sh");

/// The steps that add to an image, and the files that they read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Setup {
    steps: Vec<String>,
    files: Vec<SetupFile>,
}

/// A file of the project that the steps need.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SetupFile {
    /// Its path in the project.
    name: String,
    mode: u32,
    contents: Vec<u8>,
}

/// One of the steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetupStep<'a> {
    /// Its name in messages.
    pub name: &'a str,
    /// The command, for `sh`.
    command: &'a str,
}

impl Setup {
    /// Reads the files that the steps of a project need.
    ///
    /// # Errors
    /// A file that is missing, is not a file, or is outside of the project; files that are too large; a step without a
    /// command.
    pub fn read(root: &Path, steps: &[String], names: &[String]) -> Result<Setup, Error> {
        let wrong = |why: String| {
            Error::usage(format!("hvdctl.toml: {why}"), "correct it, or leave the setup out with --no-setup")
        };
        if let Some(step) = steps.iter().find(|step| step.trim().is_empty() || step.contains('\0')) {
            return Err(wrong(format!("setup: {} is not a command", quote::readable(step))));
        }
        let (mut left, top) = (MOST, fs::canonicalize(root));
        let read = |name: &String| {
            let path = Path::new(name);
            let is_inside = !name.is_empty() && path.components().all(|part| matches!(part, Component::Normal(_)));
            if !is_inside {
                return Err(wrong(format!(
                    "setup_files: {} is not the path of a file in the project",
                    quote::readable(name)
                )));
            }
            let unreadable = |error| wrong(format!("setup_files: cannot read {}: {error}", quote::readable(name)));
            // where it really is: a link may lead to a file that is not meant for the nodes
            let real = fs::canonicalize(root.join(path)).map_err(unreadable)?;
            let meta = fs::metadata(&real).map_err(unreadable)?;
            if !top.as_ref().is_ok_and(|top| real.starts_with(top)) || !meta.is_file() {
                let why = format!("hvdctl.toml: setup_files: {} is not a file in the project", quote::readable(name));
                let hint = "correct it; a line in .hvdctlignore excludes a link from its directory";
                return Err(Error::usage(why, hint));
            }
            // as git has it: what else the mode says depends on the machine
            let mode = if meta.permissions().mode() & 0o111 == 0 { 0o644 } else { 0o755 };
            let contents = files::read_regular(&real, left).map_err(unreadable)?;
            left -= contents.len() as u64;
            Ok(SetupFile { name: name.clone(), mode, contents })
        };
        let files = names.iter().map(read).collect::<Result<_, _>>()?;
        Ok(Setup { steps: steps.to_vec(), files })
    }

    /// Returns a setup of one step, which needs no files.
    pub fn of_step(step: &str) -> Setup {
        Setup { steps: vec![step.to_owned()], files: Vec::new() }
    }

    /// Returns the step that installs a package in the form that reads its files later, when they are removed.
    pub fn editable(&self) -> Option<&str> {
        let is_version = |c: char| c == '.' || c.is_ascii_digit();
        let is_pip =
            |word: &str| word.rsplit('/').next().is_some_and(|name| name.trim_end_matches(is_version) == "pip");
        let is_editable = |command: &str| {
            let mut words = command.split_whitespace();
            words.any(is_pip)
                && words.any(|word| word == "install")
                && words.any(|word| word == "-e" || word == "--editable" || word.starts_with("--editable="))
        };
        let of = |step: &&String| step.split(['\n', ';', '&', '|']).any(is_editable);
        self.steps.iter().find(of).map(String::as_str)
    }

    /// Returns the steps in their order.
    pub fn steps(&self) -> Vec<SetupStep<'_>> {
        let ssh = SetupStep { name: "OpenSSH", command: SETUP_SSH };
        let own =
            self.steps.iter().map(|step| SetupStep { name: step.lines().next().unwrap_or_default(), command: step });
        std::iter::once(ssh).chain(own).collect()
    }

    /// Returns the name of the image that the steps make of one with this content for a cluster: another cluster on the
    /// same nodes may remove its own. `project`: the project's name.
    pub fn image(&self, cluster: &str, project: &str, content: &str) -> String {
        let mut digest = Sha256::new();
        let mut add = |part: &[u8]| {
            digest.update(part.len().to_le_bytes());
            digest.update(part);
        };
        add(cluster.as_bytes());
        add(content.as_bytes());
        self.steps().iter().for_each(|step| add(step.command.as_bytes()));
        for SetupFile { name, mode, contents } in &self.files {
            add(name.as_bytes());
            add(&mode.to_le_bytes());
            add(contents);
        }
        format!("{SETUP_REPOSITORY}/{}:{}", repository(project), hex(&digest.finalize()[..6]))
    }

    /// Returns the files as a tar archive.
    ///
    /// # Errors
    /// A name that no archive can have.
    pub fn archive(&self) -> std::io::Result<Vec<u8>> {
        let mut archive = tar::Builder::new(Vec::new());
        let directory = DIRECTORY.trim_start_matches('/');
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Directory);
        header.set_mode(0o755);
        header.set_size(0);
        archive.append_data(&mut header, directory, std::io::empty())?;
        for SetupFile { name, mode, contents } in &self.files {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(tar::EntryType::Regular);
            header.set_mode(*mode);
            header.set_size(contents.len() as u64);
            archive.append_data(&mut header, format!("{directory}/{name}"), contents.as_slice())?;
        }
        archive.into_inner()
    }
}

impl SetupStep<'_> {
    /// Returns the script of the step, for the standard input of `sh`. `env` may be secret, and is not in the image
    /// afterwards.
    pub fn script(&self, env: &BTreeMap<String, Secret>) -> Zeroizing<String> {
        let mut script = Zeroizing::new(String::new());
        // others are names that no shell can set
        let is_plain = |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        for (name, value) in
            env.iter().filter(|(name, _)| is_plain(name) && !name.starts_with(|c: char| c.is_ascii_digit()))
        {
            script.push_str("export ");
            script.push_str(&quote::exported(name, value.expose()));
        }
        script.push_str(&quote::assign("command", self.command));
        script.push_str(&format!("cd {DIRECTORY} || exit\nexec sh -c \"$command\" </dev/null 2>&1\n"));
        script
    }
}

/// Returns the script that removes what only the steps needed.
pub fn cleaning() -> String {
    format!("rm -rf {DIRECTORY}\n")
}

/// Returns a project's name as a part of an image's, which has only lower-case letters, digits and single separators.
fn repository(project: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = project.chars().map(plain).collect();
    let parts: Vec<&str> = name.split('-').filter(|part| !part.is_empty()).collect();
    if parts.is_empty() { "project".to_owned() } else { parts.join("-") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup(steps: &[&str], files: &[(&str, &str)]) -> Setup {
        let project = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::create_dir_all(project.path().join(name).parent().unwrap()).unwrap();
            fs::write(project.path().join(name), text).unwrap();
        }
        let [steps, names] = [steps.to_vec(), files.iter().map(|(name, _)| *name).collect()]
            .map(|list| list.into_iter().map(str::to_owned).collect::<Vec<_>>());
        Setup::read(project.path(), &steps, &names).unwrap()
    }

    #[test]
    fn the_name_of_the_image_depends_on_all_that_makes_it() {
        let names = [
            setup(&["pip install x"], &[]).image("lab", "Digits", "abc"),
            setup(&["pip install x"], &[]).image("lab", "Digits", "abd"),
            setup(&["pip install x"], &[]).image("other", "Digits", "abc"),
            setup(&["pip install y"], &[]).image("lab", "Digits", "abc"),
            setup(&["pip install ", "x"], &[]).image("lab", "Digits", "abc"),
            setup(&["pip install x"], &[("requirements.txt", "")]).image("lab", "Digits", "abc"),
            setup(&["pip install x"], &[("requirements.txt", "a")]).image("lab", "Digits", "abc"),
            setup(&["pip install x"], &[("requirements.tx", "ta")]).image("lab", "Digits", "abc"),
        ];
        let different: std::collections::BTreeSet<&String> = names.iter().collect();
        assert_eq!(different.len(), names.len(), "{names:?}");
        assert_eq!(names[0], setup(&["pip install x"], &[]).image("lab", "Digits", "abc"));
        assert!(
            names[0].starts_with("hvdctl/digits:") && names[0].len() == "hvdctl/digits:".len() + 12,
            "{}",
            names[0]
        );
        assert_eq!(["a_B.c", "--", "é1", "x"].map(repository), ["a-b-c", "project", "1", "x"]);
    }

    #[test]
    fn what_cannot_be_a_setup_is_refused() {
        let project = tempfile::tempdir().unwrap();
        fs::create_dir(project.path().join("sub")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", project.path().join("link")).unwrap();
        let read = |steps: &[&str], files: &[&str]| {
            let [steps, files] =
                [steps, files].map(|list| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
            Setup::read(project.path(), &steps, &files).unwrap_err().to_string()
        };
        for (steps, files, words) in [
            (&["x", " "][..], &[][..], "is not a command"),
            (&["x"], &["missing.txt"], "cannot read missing.txt: No such file"),
            (&["x"], &["sub"], "sub is not a file in the project"),
            (&["x"], &["link"], "link is not a file in the project"),
            (&["x"], &["../secret"], "is not the path of a file in the project"),
            (&["x"], &["/etc/passwd"], "is not the path of a file in the project"),
            (&["x"], &[""], "is not the path of a file in the project"),
        ] {
            let error = read(steps, files);
            assert!(error.contains("hvdctl.toml: ") && error.contains(words), "{error}");
        }
    }

    #[test]
    fn an_editable_install_is_found() {
        for (step, is_editable) in [
            ("pip install -e ./mylib", true),
            ("set -e; /usr/bin/pip3.11 install --no-deps --editable ./mylib", true),
            ("python -m pip install --editable=.", true),
            ("set -e; pip install ./mylib", false),
            ("pip install ./mylib && sed -e s/a/b/ x", false),
        ] {
            assert_eq!(setup(&["true", step], &[]).editable(), is_editable.then_some(step));
        }
    }

    #[test]
    fn files_are_archived_where_the_steps_run() {
        let setup = setup(&["x"], &[("requirements.txt", "a==1\n"), ("deep/b.txt", "b")]);
        let bytes = setup.archive().unwrap();
        let mut archive = tar::Archive::new(bytes.as_slice());
        let entries = archive.entries().unwrap().map(|entry| {
            let entry = entry.unwrap();
            (entry.path().unwrap().display().to_string(), entry.header().mode().unwrap() & 0o700, entry.size())
        });
        let entries: Vec<_> = entries.collect();
        let names: Vec<&str> = entries.iter().map(|(name, ..)| name.as_str()).collect();
        assert_eq!(names, ["opt/hvdctl/setup", "opt/hvdctl/setup/requirements.txt", "opt/hvdctl/setup/deep/b.txt"]);
        assert_eq!((entries[1].1, entries[1].2), (0o600, 5));
    }

    #[test]
    fn a_step_gets_the_environment_and_nothing_of_it_stays_in_an_argument() {
        let setup = setup(&["echo \"$A\" 'b'; exit 3"], &[]);
        let steps = setup.steps();
        assert_eq!(steps.iter().map(|step| step.name).collect::<Vec<_>>(), ["OpenSSH", "echo \"$A\" 'b'; exit 3"]);
        let env = BTreeMap::from([("A".to_owned(), Secret::plain("it's $HOME"))]);
        let script = steps[1].script(&env).replace(DIRECTORY, "/tmp");
        let mut shell = std::process::Command::new("sh");
        let mut child =
            shell.arg("-s").stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped()).spawn().unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), script.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(
            (output.status.code(), String::from_utf8(output.stdout).unwrap().as_str()),
            (Some(3), "it's $HOME b\n")
        );
    }
}
