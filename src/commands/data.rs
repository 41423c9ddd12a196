//! `hvdctl data`.

pub mod push;
pub mod rm;
pub mod status;

use super::context::Context;
use crate::cluster::each_node::NodeResults;
use crate::cluster::member::Member;
use crate::cluster::observation::{ObservedNode, check_permissions};
use crate::error::Error;
use crate::start::capacity::check_unallocated;

/// Locks and observes nodes. Those whose directories other users can change have failed.
async fn observe(nodes: NodeResults<Member>, context: &Context) -> Result<NodeResults<ObservedNode>, Error> {
    let nodes = context.observe_each(context.lock_each(nodes).await?).await?;
    let check = async |observed: ObservedNode| {
        check_permissions(context.target.cluster(), observed.name(), &observed.facts, &["data"])?;
        Ok(observed)
    };
    Ok(nodes.then(&context.events, check).await)
}

/// Checks that no job on these nodes may read the data, which are about to change.
fn check_unused(nodes: &[ObservedNode], name: &str, instead: &str) -> Result<(), Error> {
    check_unallocated(nodes).map_err(|error| match error {
        Error::Allocated(conflict) => {
            let message = format!("{conflict}\na job may read the data {name}, which would change");
            Error::check(message, format!("{instead}; hvdctl stop ends a job"))
        }
        error => error,
    })
}
