//! `hvdctl shell`.

use super::{Context, Outcome, output, unless_signalled};
use crate::cli;
use crate::commands::shell_session::shell;
use crate::error::{Error, exit};
use crate::terminal;
use std::future::Future;
use std::io::IsTerminal;

/// `shell`. Nothing is reached where there is no terminal.
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
    Ok(ended(u8::try_from(code).unwrap_or(exit::AROUND)))
}

pub(super) fn ended(code: u8) -> Outcome {
    Outcome::new(code, String::new(), &output::Shell { ok: code == exit::OK, code }, Vec::new())
}
