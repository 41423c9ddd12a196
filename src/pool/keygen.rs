//! Signatures by `ssh-keygen`, with keys that hvdctl cannot use itself: those with a passphrase, and those in an agent.

use super::signature::{self, NAMESPACE};
use crate::event::Events;
use crate::paths;
use crate::terminal::SavedSettings;
use crate::transport::local;
use anyhow::{Context, bail};
use ssh_key::public::KeyData;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;
use tokio::time::timeout;

/// The time that `ssh-keygen` may take, with a passphrase to type.
const TYPING: Duration = Duration::from_secs(150);

/// A key that `ssh-keygen` signs with.
pub struct KeygenKey {
    /// The file of the private key, encrypted; or that of its public half, if an agent has the private one.
    pub file: PathBuf,
    /// Its public half.
    pub public: KeyData,
}

impl KeygenKey {
    /// Returns each text, which ends with a newline, with its signature, as a pool's file has them. `ssh-keygen` asks
    /// the agent, or else for the passphrase on the terminal, once for all texts. It ends when the future is dropped.
    ///
    /// # Errors
    /// When it is missing, fails or takes too long.
    pub async fn sign(&self, texts: &[String], events: &Events) -> anyhow::Result<Vec<String>> {
        let program = local::find("ssh-keygen", "openssh-client");
        let mut keygen =
            Command::new(program.map_err(|missing| anyhow::anyhow!("{}; {}", missing.message, missing.hint))?);
        events.note(format!("ssh-keygen signs with your key {}", self.file.display()));
        let _suspended = events.suspend().await;
        // an ssh-keygen that is ended at its question leaves the terminal without echo
        let _saved = SavedSettings::save();
        // it looks at its standard input to find out whether there is a terminal
        keygen.stdin(File::open("/dev/tty").map_or_else(|_| Stdio::null(), Stdio::from));
        self.sign_with(keygen, texts).await
    }

    /// Signs with this `ssh-keygen`.
    pub(super) async fn sign_with(&self, mut keygen: Command, texts: &[String]) -> anyhow::Result<Vec<String>> {
        let dir = paths::private_directory().tempdir().context("cannot create a temporary directory")?;
        let files: Vec<PathBuf> = (0..texts.len()).map(|number| dir.path().join(number.to_string())).collect();
        for (file, text) in files.iter().zip(texts) {
            fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
        }
        keygen.args(["-q", "-Y", "sign", "-n", NAMESPACE, "-f"]).arg(&self.file).arg("--").args(&files);
        let output = timeout(TYPING, keygen.stdout(Stdio::null()).kill_on_drop(true).output()).await;
        let output = output.with_context(|| format!("ssh-keygen has not signed within {} s", TYPING.as_secs()))??;
        if !output.status.success() {
            bail!("ssh-keygen: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        let signed = |(file, text): (&PathBuf, &String)| {
            let armor =
                fs::read_to_string(file.with_extension("sig")).context("ssh-keygen has written no signature")?;
            match signature::parse(&armor) {
                Some(signature) if *signature.public_key() == self.public && signature::is_of(&signature, text) => {
                    Ok(text.clone() + &armor)
                }
                _ => bail!("ssh-keygen did not write a signature with the key"),
            }
        };
        files.iter().zip(texts).map(signed).collect()
    }
}
