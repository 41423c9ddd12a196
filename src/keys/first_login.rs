//! `keys push --first-login`: the operator's public key for nodes that accept only a password so far.

use crate::cluster::each_node::unreached;
use crate::cluster::fleet::Fleet;
use crate::cluster::member::Member;
use crate::cluster::target::Target;
use crate::error::{Error, NodeError};
use crate::event::{Events, Message, Step};
use crate::inventory::Node;
use crate::terminal;
use crate::text::failure::{self, Ssh};
use crate::transport::node::{RunAs, Script};
use crate::transport::ssh::Control;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

const FIRST_LOGIN: &str = include_str!("../scripts/access/first_login.sh");

/// The time that a password may take to be typed; sshd itself gives two minutes (`LoginGraceTime`, sshd_config(5)).
const TYPING: Duration = Duration::from_secs(150);

/// The hint where a key was installed and does not help.
const STILL_REFUSED: &str =
    "your key is in ~/.ssh/authorized_keys there, but sshd refuses it: see its log (PubkeyAuthentication, StrictModes)";

/// Installs the operator's public key where ssh is refused without a password, node by node, with ssh's own question.
///
/// # Errors
/// Nodes that are out of reach for another reason, or still refuse; no terminal to ask on.
pub async fn install(target: &Target, fleet: &Fleet, events: &Events) -> Result<(), Error> {
    let cluster = target.cluster();
    let Some(control) = fleet.control(cluster).await? else { return Ok(()) };
    let tried = {
        let _steps: Vec<_> = target.selected.iter().map(|node| events.begin(node, Step::CONNECTING)).collect();
        log_in(target, fleet).await?
    };
    let tried = target.nodes().into_iter().zip(tried).filter_map(|(node, result)| Some((node, result.err()?)));
    let (refused, failed): (Vec<_>, Vec<_>) = tried.partition(|(_, error)| error.takes_first_login);
    if !failed.is_empty() {
        return Err(unreached(failed.into_iter().map(|(_, error)| error).collect()));
    }
    if !refused.is_empty() && !terminal::present() {
        return Err(Error::usage(
            "--first-login: there is no terminal on which ssh could ask for the password",
            "run it in a terminal, or install your key in another way (ssh-copy-id)",
        ));
    }
    // one after the other: each asks
    let (count, mut failed) = (refused.len(), Vec::new());
    for (node, _) in refused {
        match install_key(&control, &node, cluster.connect_timeout, events).await {
            Ok(()) => match log_in(&target.only([node.name.clone()]), fleet).await?.pop() {
                Some(Err(error)) if failure::ssh(&error.message) == Ssh::Refused => {
                    failed.push(error.hint(STILL_REFUSED));
                }
                // it has a hint of its own
                Some(Err(error)) => failed.push(error),
                _ => events.note(Message::of(&node.name, "your key is installed")),
            },
            Err(error) => failed.push(error),
        }
    }
    match count - failed.len() {
        _ if failed.is_empty() => Ok(()),
        0 => Err(unreached(failed)),
        done => Err(Error::Nodes { failed, done }),
    }
}

/// Logs in to the nodes. A refusal is no failure yet, so it is not shown as one.
async fn log_in(target: &Target, fleet: &Fleet) -> Result<Vec<Result<Member, NodeError>>, Error> {
    let (quiet, _) = Events::channel();
    fleet.connect(target, RunAs::Login, &quiet).await
}

async fn install_key(control: &Control, node: &Node, limit: Duration, events: &Events) -> Result<(), NodeError> {
    let operation = "install your key";
    let key = control.operators_key(node).await?;
    let script = Script::new(FIRST_LOGIN).with("key", &key);
    let suspended = events.suspend().await;
    // an ssh that is ended at its question leaves the terminal without echo
    let _saved = terminal::SavedSettings::save();
    let mut command = control.plain(node, limit);
    // the keys were refused a moment ago, and offering many once more may use up the attempts that sshd allows
    command.args(["-o", "BatchMode=no", "-o", "PubkeyAuthentication=no", "--", &node.host, "sh -s"]);
    command.stdin(Stdio::piped());
    let login = async {
        let mut child = command.spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(script.whole().as_bytes()).await?;
        }
        child.wait().await
    };
    let unreachable = |message: String| NodeError::unreachable(&node.name, operation, message);
    let status = timeout(limit + TYPING, login)
        .await
        .map_err(|_| unreachable("no login within the time limit; was the password typed?".to_owned()))?
        .map_err(|error| unreachable(error.to_string()))?;
    drop(suspended);
    if !status.success() {
        return Err(unreachable(format!("ssh failed ({status}); its message is above"))
            .hint("check the password, and whether sshd accepts passwords there (PasswordAuthentication)"));
    }
    Ok(())
}
