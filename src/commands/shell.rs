//! `hvdctl shell`: an interactive shell in `hmaster` or a worker. Keys and output go over the runtime, so the shell is the same
//! however the node and root there are reached.

mod place;

use super::context::Context;
use super::{Outcome, output};
use crate::cli;
use crate::error::{Error, exit};
use crate::terminal;
use crate::transport::privileges;
use place::{Place, in_master, in_worker};
use std::io::IsTerminal;

const SHELL: &str = include_str!("../scripts/shell.sh");

/// # Errors
/// When standard input and output are not a terminal.
pub fn check_terminal() -> Result<(), Error> {
    if std::io::stdin().is_terminal() && std::io::stdout().is_terminal() && terminal::present() {
        return Ok(());
    }
    Err(Error::usage(
        "shell: standard input and output are not a terminal",
        "hvdctl exec runs a command without one: hvdctl exec -c -- COMMAND",
    ))
}

/// `shell`.
pub async fn run(options: &cli::Shell, context: &Context) -> Result<Outcome, Error> {
    let Context { target, events, .. } = context;
    let place = match &options.node {
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
        // the engine also removes it when its main process ends, but a moment later
        events.report(runtime.remove(&container).await)?;
    }
    Ok(ended(u8::try_from(result?).unwrap_or(exit::INTERNAL)))
}

pub(super) fn ended(code: u8) -> Outcome {
    Outcome::new(code, String::new(), &output::Shell { ok: code == exit::OK, code }, &[])
}
