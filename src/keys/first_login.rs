//! `keys push --first-login`: nodes that only take a password for now let the operator's key in.

use crate::cluster::nodes::{Target, for_each_node, unreached};
use crate::error::{Error, NodeError};
use crate::event::{Events, Step};
use crate::inventory::Node;
use crate::terminal;
use crate::transport::node::Script;
use crate::transport::ssh::{Control, is_refused};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

const FIRST_LOGIN: &str = include_str!("../scripts/first_login.sh");

/// How long a password may take to be typed; sshd itself gives two minutes (`LoginGraceTime`, sshd_config(5)).
const TYPING: Duration = Duration::from_secs(150);

/// Installs the operator's public key where ssh is refused without a password, node by node, with ssh's own question.
///
/// # Errors
/// Nodes that are out of reach for another reason, or still refuse; no terminal to ask on.
pub async fn install(target: &Target, events: &Events) -> Result<(), Error> {
    let cluster = target.cluster();
    let control = Control::new(cluster, target.strict, events).await?;
    let tried = for_each_node(target.nodes(), async |node| {
        let _step = events.begin(&node.name, Step::Connecting);
        let result = control.connect(&node, cluster.connect_timeout).await;
        (node, result.err())
    })
    .await;
    let (mut refused, mut failed) = (Vec::new(), Vec::new());
    for (node, error) in tried {
        match error {
            Some(error) if is_refused(&error.message) => refused.push(node),
            Some(error) => failed.push(error),
            None => {}
        }
    }
    if !failed.is_empty() {
        return Err(unreached(failed));
    }
    if !refused.is_empty() && !terminal::present() {
        return Err(Error::usage(
            "--first-login: there is no terminal on which ssh could ask for the password",
            "run it in a terminal, or let your key in by another way (ssh-copy-id)",
        ));
    }
    // one after the other: each asks
    let mut done = 0;
    for node in refused {
        match let_in(&control, &node, cluster.connect_timeout, events).await {
            Ok(()) => done += 1,
            Err(error) => failed.push(error),
        }
    }
    match done {
        _ if failed.is_empty() => Ok(()),
        0 => Err(unreached(failed)),
        done => Err(Error::Nodes { failed, done }),
    }
}

async fn let_in(control: &Control, node: &Node, limit: Duration, events: &Events) -> Result<(), NodeError> {
    let what = "let your key in";
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
    let unreachable = |message: String| NodeError::unreachable(&node.name, what, message);
    let status = timeout(limit + TYPING, login)
        .await
        .map_err(|_| unreachable("no end; was the password typed?".to_owned()))?
        .map_err(|error| unreachable(error.to_string()))?;
    drop(suspended);
    if !status.success() {
        return Err(unreachable(format!("ssh ended with {status}; its message is above"))
            .hint("is the password right, and does sshd take passwords there (PasswordAuthentication)?"));
    }
    control.connect(node, limit).await.map_err(|e| {
        e.hint("your key is in ~/.ssh/authorized_keys there and sshd does not take it: see its log (PubkeyAuthentication, StrictModes)")
    })?;
    events.note(format!("{}: your key is let in", node.name));
    Ok(())
}
