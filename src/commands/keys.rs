//! `hvdctl keys`. This file has `keys generate`, and what the subcommands have in common.

pub mod push;
pub mod rotate;
pub mod status;

use super::Outcome;
use super::context::Context;
use crate::cli::{Generate, NewPair};
use crate::error::Error;
use crate::inventory::KeyType;
use crate::keys::files::KeyKind;
use crate::keys::push::{GenerateResult, KeyDistribution, without_master};

fn distribution(context: &Context) -> KeyDistribution<'_> {
    KeyDistribution { inventory: &context.target.inventory, session: &context.session, events: &context.events }
}

/// Returns the kind of pair that was asked for, if one was.
fn kind(pair: &NewPair, usual: KeyType) -> Result<Option<KeyKind>, Error> {
    pair.kind(usual).map_err(|why| Error::usage(why, "leave out --bits, or add --type rsa"))
}

/// `keys generate`.
pub async fn generate(options: &Generate, context: &mut Context) -> Result<Outcome, Error> {
    let wanted = kind(&options.pair, context.target.cluster().key_type)?;
    let master = context.target.inventory.master().name.clone();
    if !context.target.selected.contains(&master) {
        return Err(without_master(&context.target.inventory));
    }
    // the other nodes are not involved, and need not be reachable
    context.target.selected = vec![master];
    let members = context.connect_and_lock().await?;
    let done = distribution(context).generate(&members, wanted).await?;
    context.session.progress.done(&done.node);
    context.session.cancellation.check()?;
    Ok(generated(done))
}

pub(super) fn generated(done: GenerateResult) -> Outcome {
    let text = if done.generated {
        format!("{}: generated a key pair: {}\nto distribute it: hvdctl keys push\n", done.node, done.pair)
    } else {
        format!("nothing to do: {} has a key pair: {}\n", done.node, done.pair)
    };
    Outcome::ok(text, done)
}
