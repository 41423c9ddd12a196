//! The operator's passwords for sudo on the nodes: from a file, asked for at the start, or asked for when the first
//! node needs one. None is ever in an argument, an environment or a log, and none goes to the nodes of another owner
//! than it was given for.

use crate::error::Error;
use crate::event::Events;
use crate::files;
use crate::inventory::Inventory;
use crate::secret::Secret;
use crate::terminal::{self, Echo};
use crate::text::{nodeset, quote};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::{Mutex, OnceCell};
use zeroize::Zeroizing;

/// Names a file whose first line is the password.
pub const PASSWORD_FILE: &str = "HVDCTL_SUDO_PASSWORD_FILE";

/// The most bytes of that file.
const MOST: u64 = 64 << 10;

/// The passwords of a command, one for the nodes of each owner.
#[derive(Debug, Default)]
pub struct SudoPasswords {
    may_ask: bool,
    owners: BTreeMap<Option<String>, OwnedNodes>,
    /// Held while a question is on the terminal.
    asking: Mutex<()>,
    /// The answers to the questions of a test.
    #[cfg(test)]
    answers: Option<fn(&str) -> &'static str>,
}

/// The nodes of one owner, and their password.
#[derive(Debug, Default)]
struct OwnedNodes {
    /// Their name in questions: `your nodes gpu[1-4]`.
    name: String,
    password: OnceCell<Result<Secret, String>>,
    /// Set if the password was given before a node asked for it.
    is_given: bool,
    /// Set if the password comes from the file; reported when the first node asks.
    from_file: bool,
    reported: AtomicBool,
}

impl SudoPasswords {
    /// Asks for the password of the operator's own nodes now if `ask_now`, else reads it from [`PASSWORD_FILE`]. May
    /// ask for others later if `may_ask`.
    ///
    /// # Errors
    /// A file that cannot be used; no terminal to ask on; `ask_now` where no node is the operator's own.
    pub async fn new(
        ask_now: bool,
        may_ask: bool,
        inventory: &Inventory,
        events: &Events,
    ) -> Result<SudoPasswords, Error> {
        let file = std::env::var_os(PASSWORD_FILE).filter(|file| !file.is_empty() && !ask_now);
        let given = file.map(|file| from_file(Path::new(&file))).transpose()?;
        SudoPasswords::with(given, ask_now, may_ask, inventory, events).await
    }

    /// [`SudoPasswords::new`] with the password of the file.
    async fn with(
        given: Option<Secret>,
        ask_now: bool,
        may_ask: bool,
        inventory: &Inventory,
        events: &Events,
    ) -> Result<SudoPasswords, Error> {
        let mut sudo = SudoPasswords::of(inventory, may_ask);
        let owners: Vec<String> = sudo.owners.keys().flatten().cloned().collect();
        let Some(own) = sudo.owners.get_mut(&None) else {
            if ask_now {
                return Err(Error::usage(
                    format!("--ask-sudo-pass: the nodes belong to others ({}), and none to you", owners.join(", ")),
                    "leave it out: hvdctl asks for a password for the nodes of each owner when one of them needs it",
                ));
            }
            return Ok(sudo);
        };
        own.from_file = given.is_some();
        let given =
            if ask_now { Some(ask(&format!("password for sudo on {}: ", own.name), events).await?) } else { given };
        own.is_given = given.is_some();
        own.password = OnceCell::new_with(given.map(Ok));
        Ok(sudo)
    }

    /// As of an operator who answers questions by this function.
    #[cfg(test)]
    pub fn answering(inventory: &Inventory, answers: fn(&str) -> &'static str) -> SudoPasswords {
        SudoPasswords { answers: Some(answers), ..SudoPasswords::of(inventory, true) }
    }

    /// As of an operator who has named a file with this password, and answers no question.
    ///
    /// # Errors
    /// As of [`SudoPasswords::new`].
    #[cfg(test)]
    pub async fn given(inventory: &Inventory, password: &str, events: &Events) -> Result<SudoPasswords, Error> {
        SudoPasswords::with(Some(Secret::plain(password)), false, false, inventory, events).await
    }

    /// Returns one that knows no password yet.
    pub fn of(inventory: &Inventory, may_ask: bool) -> SudoPasswords {
        let mut nodes: BTreeMap<Option<String>, Vec<&str>> = BTreeMap::new();
        for node in &inventory.nodes {
            nodes.entry(node.owner.clone()).or_default().push(&node.name);
        }
        let owned = |(owner, names): (Option<String>, Vec<&str>)| {
            let whose = owner.as_ref().map_or("your".to_owned(), |owner| format!("{owner}'s"));
            let noun = if names.len() == 1 { "node" } else { "nodes" };
            let name = format!("{whose} {noun} {}", nodeset::fold(&names));
            (owner, OwnedNodes { name, ..OwnedNodes::default() })
        };
        SudoPasswords { may_ask, owners: nodes.into_iter().map(owned).collect(), ..SudoPasswords::default() }
    }

    /// Returns whether the operator has given a password for the nodes of an owner beforehand.
    pub fn is_given(&self, owner: &Option<String>) -> bool {
        self.owners.get(owner).is_some_and(|nodes| nodes.is_given)
    }

    /// Returns the password for the nodes of an owner. If it was not given beforehand, the first call asks for it, and
    /// its result is that of all nodes of this owner.
    ///
    /// # Errors
    /// Returns why there is no password.
    pub async fn password(&self, owner: &Option<String>, events: &Events) -> Result<Secret, String> {
        let Some(nodes) = self.owners.get(owner) else { return Err("hvdctl asks for none there".to_owned()) };
        let ask_once = async || {
            if !self.may_ask {
                return Err("-y disables questions".to_owned());
            }
            let prompt = format!("password for sudo on {}: ", nodes.name);
            #[cfg(test)]
            if let Some(answers) = self.answers {
                return Ok(Secret::plain(answers(&prompt)));
            }
            if !terminal::present() {
                return Err("there is no terminal to ask on".to_owned());
            }
            let _asking = self.asking.lock().await;
            ask(&prompt, events).await.map_err(|error| error.to_string())
        };
        let password = nodes.password.get_or_init(ask_once).await.clone();
        if nodes.from_file && !nodes.reported.swap(true, Ordering::Relaxed) {
            events.note(format!("using the password in ${PASSWORD_FILE} for sudo on {}", nodes.name));
        }
        password
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

fn from_file(file: &Path) -> Result<Secret, Error> {
    let with_hint =
        |why: String, hint: &str| Error::usage(format!("${PASSWORD_FILE}: {}: {why}", file.display()), hint);
    let unusable = |why: String| with_hint(why, "name a file whose first line is the password for sudo on the nodes");
    let bytes = files::read_secret(file, MOST).map_err(|fault| {
        match fault.hint(&quote::readable(&file.to_string_lossy())) {
            Some(hint) => with_hint(fault.to_string(), &hint),
            None => unusable(fault.to_string()),
        }
    })?;
    let text = std::str::from_utf8(&bytes).map_err(|_| unusable("it is not UTF-8".into()))?;
    match text.lines().next().unwrap_or_default() {
        "" => Err(unusable("the first line is empty".into())),
        line => Ok(Secret::new(Zeroizing::new(line.to_owned()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    /// An inventory with nodes of these owners; `""` is the operator.
    fn inventory(owners: &[&str]) -> Inventory {
        let mut inventory = Inventory::local("gpu1", "i");
        let node = inventory.nodes.remove(0);
        let owned = |(number, owner): (usize, &&str)| crate::inventory::Node {
            name: format!("gpu{number}"),
            owner: Some((*owner).to_owned()).filter(|owner| !owner.is_empty()),
            ..node.clone()
        };
        inventory.nodes = (1..).zip(owners).map(owned).collect();
        inventory
    }

    #[tokio::test]
    async fn a_password_that_was_given_is_for_own_nodes() {
        let (events, _) = Events::channel();
        for (owners, given, not_given) in [
            (&["", "bob", ""][..], &[""][..], &["bob"][..]),
            (&["bob", "bob"], &[], &["bob", ""]),
            (&["bob", "eve"], &[], &["bob", "eve"]),
        ] {
            let sudo = SudoPasswords::given(&inventory(owners), "hunter2", &events).await.unwrap();
            for (owner, is_given) in given.iter().map(|o| (o, true)).chain(not_given.iter().map(|o| (o, false))) {
                let owner = Some((*owner).to_owned()).filter(|owner| !owner.is_empty());
                assert_eq!(sudo.is_given(&owner), is_given, "{owner:?} of {owners:?}");
                let password = sudo.password(&owner, &events).await;
                assert_eq!(password.is_ok_and(|password| password.expose() == "hunter2"), is_given, "{owner:?}");
            }
        }
        let several =
            SudoPasswords::with(None, true, true, &inventory(&["bob", "eve"]), &events).await.unwrap_err().to_string();
        assert!(
            several.starts_with("--ask-sudo-pass: the nodes belong to others (bob, eve), and none to you"),
            "{several}"
        );
    }

    #[tokio::test]
    async fn each_question_names_the_nodes_whose_password_it_asks_for() {
        let (events, _) = Events::channel();
        let sudo = SudoPasswords::answering(&inventory(&["", "bob", "", "bob", "eve"]), |prompt| match prompt {
            "password for sudo on your nodes gpu[1,3]: " => "mine",
            "password for sudo on bob's nodes gpu[2,4]: " => "bobs",
            "password for sudo on eve's node gpu5: " => "eves",
            other => panic!("{other}"),
        });
        for (owner, expected) in [(None, "mine"), (Some("bob"), "bobs"), (Some("eve"), "eves"), (None, "mine")] {
            let password = sudo.password(&owner.map(str::to_owned), &events).await.unwrap();
            assert_eq!(password.expose(), expected);
        }
    }

    #[test]
    fn a_password_file_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("password");
        let read = |text: &str, mode| {
            fs::write(&file, text).unwrap();
            fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            from_file(&file).map(|password| password.expose().to_owned()).map_err(|error| error.to_string())
        };
        assert_eq!(read("hunter2\nmore\n", 0o600).unwrap(), "hunter2");
        assert!(read("\nhunter2", 0o600).unwrap_err().contains("the first line is empty"));
        let error = read("hunter2", 0o640).unwrap_err();
        assert!(error.contains("other users can read it (mode 640)") && error.contains("hint: chmod 600 "), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
}
