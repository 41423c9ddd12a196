//! `--best`: the choice of the best free nodes of one kind.

use crate::cluster::each_node::{each_node, unreached};
use crate::cluster::node_lock;
use crate::cluster::observation::{ObservedNode, observe};
use crate::commands::{Context, Outcome};
use crate::error::{Error, NodeError};
use crate::event::Events;
use crate::grade::best::{Choice, Shortage, best};
use crate::grade::storage::grades;
use crate::start::availability::{failed, unavailable};
use crate::start::liveness::open_on_each;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// The number of times that nodes are chosen again because other commands were faster, unless the command waits for
/// nodes.
const RETRIES: u32 = 3;

/// The pause of a command that waits for nodes before it examines them again.
const PAUSE: Duration = Duration::from_secs(15);

/// The request of `--best`.
#[derive(Debug, Clone, Copy)]
pub struct BestRequest {
    /// The number of nodes.
    pub nodes: u32,
    /// The number of GPUs (or slots) of each; `None`: whole nodes.
    pub per_node: Option<u32>,
}

/// The chosen nodes, the best first.
pub struct ChosenNodes {
    /// The choice, with its reasons.
    pub choice: Choice,
    /// The nodes, in the same order.
    pub nodes: Vec<ObservedNode>,
}

/// Chooses among the selected nodes. Locks none, and leaves out those that do not answer.
///
/// # Errors
/// [`Error::InUse`] if enough nodes of a kind will be free later, [`Error::Check`] if not; [`Error::Unreachable`] if no
/// node answers.
pub async fn choose(request: BestRequest, context: &Context, events: &Events) -> Result<ChosenNodes, Error> {
    let Context { target, fleet, session, .. } = context;
    let cluster = target.cluster();
    let examining = async {
        let members = fleet.members(target, events).await?;
        if members.ok.is_empty() {
            return Err(unreached(members.failed));
        }
        let mut observed = members.then(events, async |member| observe(cluster, member, events).await).await;
        let open = open_on_each(target, fleet, &observed.ok, events).await?;
        observed.ok.iter_mut().zip(open).for_each(|(node, open)| node.open = open);
        let nodes: Vec<_> = observed.ok.iter().map(|node| (&node.member, &node.facts)).collect();
        let leases = each_node(observed.ok.iter().collect(), events, async |node: &ObservedNode| {
            let lease = node_lock::current(&node.member.transport, &cluster.name).await?;
            Ok((node.name().to_owned(), unavailable(node, request.per_node, lease.as_ref())))
        });
        let (graded, examined) = tokio::join!(grades(cluster, &nodes, events), leases);
        let failures = [&observed.failed, &graded.failed, &examined.failed].into_iter().flatten();
        let of_failed = failures.map(|error: &NodeError| (error.node.clone(), failed(error)));
        let busy = examined.ok.into_iter().filter_map(|(node, why)| Some((node, why?)));
        let unavailable = busy.chain(of_failed).collect();
        let choice =
            best(&graded.ok, &unavailable, request.nodes as usize).map_err(|shortage| error(request, &shortage))?;
        Ok((choice, observed.ok))
    };
    let (choice, mut nodes) = session.cancellation.run(examining).await?;
    let names = choice.names();
    nodes.retain(|node| names.iter().any(|name| name == node.name()));
    nodes.sort_by_key(|node| names.iter().position(|name| name == node.name()));
    Ok(ChosenNodes { choice, nodes })
}

fn error(request: BestRequest, shortage: &Shortage) -> Error {
    let (message, hint) = (format!("--best {}: {shortage}", request.nodes), shortage.hint());
    if shortage.may_pass { Error::InUse { message, hint } } else { Error::Check { message, hint } }
}

/// Reports which nodes were chosen and why.
pub fn report(choice: &Choice, events: &Events) {
    events.note(choice.to_string());
    choice.warning().into_iter().for_each(|warning| events.warn(warning));
}

/// Runs `work` on the nodes that are chosen if there is a `request`, else on all selected ones. If another command
/// takes one of them before they are locked, chooses again. If `may_wait` is set, it waits for free nodes as long as
/// `--wait` allows.
///
/// # Errors
/// The errors of [`choose`] and of `work`; [`Error::Locked`] and [`Error::Allocated`] if others were faster each time.
pub async fn on_best(
    request: Option<BestRequest>,
    may_wait: bool,
    context: &mut Context,
    work: impl AsyncFn(&mut Context, Option<Choice>) -> Result<Outcome, Error>,
) -> Result<Outcome, Error> {
    let Some(request) = request else { return work(context, None).await };
    let (all, began) = (context.target.clone(), Instant::now());
    let (quiet, _receiver) = Events::channel();
    let (mut attempt, mut reported) = (0, String::new());
    loop {
        attempt += 1;
        context.target = all.clone();
        // what fails is reported once
        let events = if attempt == 1 { context.events.clone() } else { quiet.clone() };
        let waits = may_wait && context.session.locks.waits(began.elapsed());
        let error = match choose(request, context, &events).await {
            Ok(ChosenNodes { choice, .. }) => {
                report(&choice, &context.events);
                context.target = all.only(choice.names());
                match work(context, Some(choice)).await {
                    Err(error @ (Error::Allocated(_) | Error::Locked(_))) if waits || attempt <= RETRIES => {
                        context.session.locks.release().await;
                        if attempt <= RETRIES {
                            context.events.note(format!("{}; choosing again", first_line(&error)));
                            continue;
                        }
                        error
                    }
                    result => return result,
                }
            }
            Err(error @ Error::InUse { .. }) if waits => error,
            // a node that answered before may answer again
            Err(error @ (Error::Nodes { .. } | Error::Unreachable(_))) if waits && attempt > 1 => error,
            Err(error) => return Err(error),
        };
        let message = format!("waiting: {}", first_line(&error));
        if message != reported {
            context.events.note(&message);
            reported = message;
        }
        let pause = context.session.locks.at_most(PAUSE, began.elapsed());
        if let Ok(error) = timeout(pause, context.session.cancellation.cancelled()).await {
            return Err(error);
        }
    }
}

fn first_line(error: &Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}
