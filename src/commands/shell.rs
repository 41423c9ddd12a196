//! `hvdctl shell`: an interactive shell in `hmaster` or a worker. Every key goes there over the runtime, so the shell is the same
//! however the node, and root there, are reached.

mod place;

use super::{Context, Outcome, output, unless_signalled};
use crate::cli;
use crate::cluster::nodes::Target;
use crate::error::{Error, exit};
use crate::event::Events;
use crate::terminal;
use crate::transport::privileges;
use place::{Place, in_master, in_worker};
use std::future::Future;
use std::io::IsTerminal;

const SHELL: &str = include_str!("../scripts/shell.sh");

/// Runs `shell`. Without a terminal it fails before any node is contacted.
pub async fn run(
    options: &cli::Shell,
    context: impl Future<Output = Result<Context, Error>>,
) -> Result<Outcome, Error> {
    if !(std::io::stdin().is_terminal() && std::io::stdout().is_terminal() && terminal::present()) {
        return Err(Error::usage(
            "shell: standard input and output are no terminal",
            "hvdctl exec runs a command without one: hvdctl exec -c -- COMMAND",
        ));
    }
    let Context { target, events, cancel, .. } = context.await?;
    let code = unless_signalled(&cancel, shell(&target, options.node.as_deref(), &events)).await?;
    Ok(ended(u8::try_from(code).unwrap_or(exit::INTERNAL)))
}

pub(super) fn ended(code: u8) -> Outcome {
    Outcome::new(code, String::new(), &output::Shell { ok: code == exit::OK, code }, Vec::new())
}

/// Opens a shell in the worker of a node, or in `hmaster`, and returns its exit code.
async fn shell(target: &Target, node: Option<&str>, events: &Events) -> Result<i64, Error> {
    let place = match node {
        Some(node) => in_worker(target, node, events).await?,
        None => in_master(target, events).await?,
    };
    let Place { runtime, container, path, guard, is_own } = place;
    let mut env = vec![format!("HVDCTL_SHELL={}", privileges::process())];
    env.push(format!("TERM={}", std::env::var("TERM").unwrap_or_else(|_| "xterm".into())));
    env.extend(path.map(|path| format!("HVDCTL_PATH={path}")));
    let result = {
        let _suspended = events.suspend().await;
        runtime.exec_on_terminal(&container, &["sh", "-c", SHELL], env).await
    };
    drop(guard);
    if is_own {
        // it is removed when its main process ends, too, but a moment later
        events.report(runtime.remove(&container).await)?;
    }
    result
}
