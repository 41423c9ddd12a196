//! The observed nodes of a command, each with the jobs that are under way there.

use super::liveness::open_on_each;
use crate::cluster::each_node::{NodeResults, each_node};
use crate::cluster::member::Member;
use crate::cluster::observation::{ObservedNode, observe};
use crate::cluster::shared::find_shared;
use crate::cluster::site::Site;
use crate::cluster::target::Target;
use crate::error::Error;
use crate::event::Events;

/// Connects to all nodes of the target, locks them if `locks` is set, and observes them.
///
/// # Errors
/// When a node fails, or the command is cancelled.
pub async fn observe_all(
    site: &Site<'_>,
    target: &Target,
    locks: bool,
    events: &Events,
) -> Result<Vec<ObservedNode>, Error> {
    let Site { fleet, session, .. } = site;
    let members = session.cancellation.run(fleet.all(target, events)).await?;
    if locks {
        session.lock_all(&members).await?;
    }
    let observing = async {
        let observe = async |member| observe(target.cluster(), member, events).await;
        // a failure ends the command, before the nodes of the launchers are asked
        let mut nodes = each_node(members, events, observe).await.all()?;
        add_jobs(target, site, &mut nodes, events).await?;
        // it writes to the nodes
        if locks {
            find_shared(nodes.iter_mut().map(|node| (&node.member, &mut node.facts)).collect()).await;
        }
        Ok(nodes)
    };
    session.cancellation.run(observing).await
}

/// Observes nodes, without the jobs that have ended meanwhile. A node that cannot be observed does not stop the others.
///
/// # Errors
/// When the operator's own machine is at fault, or the command is cancelled.
pub async fn observe_each(site: &Site<'_>, nodes: NodeResults<Member>) -> Result<NodeResults<ObservedNode>, Error> {
    let Site { target, events, session, .. } = site;
    let observing = async {
        let mut observed = nodes.then(events, async |member| observe(target.cluster(), member, events).await).await;
        add_jobs(target, site, &mut observed.ok, events).await?;
        find_shared(observed.ok.iter_mut().map(|node| (&node.member, &mut node.facts)).collect()).await;
        Ok(observed)
    };
    session.cancellation.run(observing).await
}

/// Adds to each observed node the jobs that have not ended.
async fn add_jobs(target: &Target, site: &Site<'_>, nodes: &mut [ObservedNode], events: &Events) -> Result<(), Error> {
    let open = open_on_each(target, site.fleet, nodes, events).await?;
    nodes.iter_mut().zip(open).for_each(|(node, open)| node.open = open);
    Ok(())
}
