//! The operator's password for sudo on the nodes: from a file, asked for at the start, or asked for once when the first
//! node needs it. It is never in an argument, an environment or a log.

use crate::error::Error;
use crate::event::Events;
use crate::secret::Secret;
use crate::terminal::{self, Echo};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tokio::sync::OnceCell;
use zeroize::Zeroizing;

/// Names a file whose first line is the password.
pub const PASSWORD_FILE: &str = "HVDCTL_SUDO_PASSWORD_FILE";

/// Where the password comes from.
#[derive(Debug, Default)]
pub struct Sudo {
    is_given: bool,
    may_ask: bool,
    password: OnceCell<Result<Secret, String>>,
}

impl Sudo {
    /// Asks for the password now if `ask_now`, else reads it from [`PASSWORD_FILE`], else may ask for it later if `may_ask`.
    ///
    /// # Errors
    /// A file that cannot be used; no terminal to ask on.
    pub async fn new(ask_now: bool, may_ask: bool, events: &Events) -> Result<Sudo, Error> {
        let given = match std::env::var_os(PASSWORD_FILE).filter(|file| !file.is_empty()) {
            _ if ask_now => Some(ask("password for sudo on the nodes: ", events).await?),
            Some(file) => Some(from_file(Path::new(&file), events)?),
            None => None,
        };
        Ok(Sudo { is_given: given.is_some(), may_ask, password: OnceCell::new_with(given.map(Ok)) })
    }

    /// Returns whether the operator has given a password beforehand.
    pub fn is_given(&self) -> bool {
        self.is_given
    }

    /// Returns the password. If it was not given beforehand, the first call asks for it, and its result is that of all nodes.
    ///
    /// # Errors
    /// Why there is no password.
    pub async fn password(&self, node: &str, events: &Events) -> Result<Secret, String> {
        let ask_once = async || {
            if !self.may_ask {
                return Err("-y disables questions".to_owned());
            }
            if !terminal::present() {
                return Err("there is no terminal to ask on".to_owned());
            }
            let prompt = format!("{node} asks for a password for sudo (one for all nodes): ");
            ask(&prompt, events).await.map_err(|error| error.to_string())
        };
        self.password.get_or_init(ask_once).await.clone()
    }
}

async fn ask(prompt: &str, events: &Events) -> Result<Secret, Error> {
    if !terminal::present() {
        return Err(Error::usage(
            "--ask-sudo-pass: there is no terminal to ask on",
            format!("put the password into a file that only you can read, and name it with ${PASSWORD_FILE}"),
        ));
    }
    let typed = terminal::ask(events, prompt, Echo::Hidden).await?;
    // an empty password would count as a failure on every node
    if typed.is_empty() { Err(Error::Local("no password was typed".into())) } else { Ok(Secret::new(typed)) }
}

fn from_file(file: &Path, events: &Events) -> Result<Secret, Error> {
    let unusable = |why: String| {
        Error::usage(
            format!("${PASSWORD_FILE}: {}: {why}", file.display()),
            "name a file whose first line is the password for sudo on the nodes",
        )
    };
    let text = std::fs::read_to_string(file).map(Zeroizing::new).map_err(|e| unusable(e.to_string()))?;
    let line = text.lines().next().unwrap_or_default();
    if line.is_empty() {
        return Err(unusable("the first line is empty".into()));
    }
    let mode = std::fs::metadata(file).map_err(|e| unusable(e.to_string()))?.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        events.warn(format!("{0} can be read by others (mode {mode:o}): chmod 600 {0}", file.display()));
    }
    Ok(Secret::new(Zeroizing::new(line.to_owned())))
}
