//! `hvdctl env`.

pub mod create;
pub mod list;
pub mod rm;

use super::Outcome;
use super::context::Context;
use crate::cli::Env;
use crate::error::Error;

/// Runs a command of the group.
pub async fn run(command: &Env, context: &Context) -> Result<Outcome, Error> {
    match command {
        Env::Create(options) => create::run(options, context).await,
        Env::List => list::run(context).await,
        Env::Rm(options) => rm::run(options, context).await,
    }
}
