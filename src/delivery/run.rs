//! The delivery of anything to locked nodes. Those that have it are left as they are; the others are given it all at
//! once, by relays where these pay, else from this process.

use crate::cluster::each_node::{NodeResults, each_node, for_each_node};
use crate::cluster::member::Member;
use crate::cluster::site::Site;
use crate::error::{Error, NodeError};
use futures_util::future::{LocalBoxFuture, join_all};

/// Content that is delivered: an image, or data.
pub(super) trait Cargo {
    /// A node, and what it has of it.
    type Receiver;
    /// A part that nodes lack alike: they can pass it on to each other.
    type Part;
    /// A sender that gives nodes a part: this process, and the relays if there are any.
    type Sender<'s>
    where
        Self: 's;
    /// The result on a node.
    type Given;

    /// Returns the nodes and connections with which it works.
    fn site(&self) -> Site<'_>;

    /// Its name, for messages.
    fn name(&self) -> &str;

    /// The node of a receiver.
    fn member<'r>(&self, receiver: &'r Self::Receiver) -> &'r Member;

    /// Returns true if a node has all of it.
    fn is_on(&self, receiver: &Self::Receiver) -> bool;

    /// Leaves a node that has it as it is, except for what a push that was stopped has left there.
    fn leave(&self, receiver: Self::Receiver) -> LocalBoxFuture<'_, Result<Self::Given, NodeError>>;

    /// Groups the nodes that lack something.
    fn parts(&self, lacking: Vec<Self::Receiver>) -> Vec<(Vec<Self::Receiver>, Self::Part)>;

    /// Starts what gives nodes a part.
    ///
    /// # Errors
    /// If there is nothing to give.
    fn begin<'s>(
        &'s self,
        receivers: &'s [Self::Receiver],
        part: Self::Part,
    ) -> LocalBoxFuture<'s, Result<Self::Sender<'s>, Error>>;

    /// Gives it to one node.
    fn give<'s: 'a, 'a>(
        &'s self,
        receiver: &'a Self::Receiver,
        sender: &'a Self::Sender<'s>,
    ) -> LocalBoxFuture<'a, Result<Self::Given, NodeError>>;

    /// Ends what gave nodes a part. `failed`: the nodes that did not get it.
    fn end<'s>(&'s self, sender: Self::Sender<'s>, failed: &'s [NodeError]) -> LocalBoxFuture<'s, ()>;

    /// Removes from a node what is left of a delivery. `is_whole`: all of it was given up, and not only on this node.
    fn give_up<'a>(&'a self, member: &'a Member, is_whole: bool) -> LocalBoxFuture<'a, ()>;
}

/// Delivers it. Where that fails or is cancelled, nothing is put into place later. Returns what was done on each node,
/// by its name.
///
/// # Errors
/// If there is nothing to give, or the command is cancelled.
pub(super) async fn run<C: Cargo>(
    cargo: &C,
    receivers: NodeResults<C::Receiver>,
) -> Result<NodeResults<(String, C::Given)>, Error> {
    let Site { session, .. } = cargo.site();
    let lacking = receivers.ok.iter().filter(|receiver| !cargo.is_on(receiver));
    let mut given_up: Vec<Member> = lacking.map(|receiver| cargo.member(receiver).clone()).collect();
    let results = session.cancellation.run_until_signal(deliver(cargo, receivers)).await;
    if let Ok(results) = &results {
        given_up.retain(|member| results.failed.iter().any(|error| error.node == member.node.name));
    }
    for_each_node(given_up, async |member| cargo.give_up(&member, results.is_err()).await).await;
    let results = results?;
    session.progress.failed(&results.failed);
    Ok(results)
}

async fn deliver<C: Cargo>(
    cargo: &C,
    receivers: NodeResults<C::Receiver>,
) -> Result<NodeResults<(String, C::Given)>, Error> {
    let Site { session, events, .. } = cargo.site();
    let name = |receiver: &C::Receiver| cargo.member(receiver).node.name.clone();
    let order: Vec<String> = receivers.ok.iter().map(name).collect();
    let (having, lacking): (Vec<_>, Vec<_>) = receivers.ok.into_iter().partition(|receiver| cargo.is_on(receiver));
    let leave = async |receiver: C::Receiver| {
        let node = name(&receiver);
        let given = cargo.leave(receiver).await?;
        session.progress.done(&node);
        Ok((node, given))
    };
    let mut results = NodeResults { ok: having, failed: receivers.failed }.then(events, leave).await;
    let parts = cargo.parts(lacking).into_iter();
    for given in join_all(parts.map(|(receivers, part)| give(cargo, receivers, part))).await {
        let given = given?;
        results.ok.extend(given.ok);
        results.failed.extend(given.failed);
    }
    results.ok.sort_by_key(|(node, _)| order.iter().position(|name| name == node));
    Ok(results)
}

/// Gives nodes a part, all at once.
async fn give<C: Cargo>(
    cargo: &C,
    receivers: Vec<C::Receiver>,
    part: C::Part,
) -> Result<NodeResults<(String, C::Given)>, Error> {
    let Site { session, events, .. } = cargo.site();
    let sender = cargo.begin(&receivers, part).await?;
    let give = async |receiver: &C::Receiver| {
        let node = &cargo.member(receiver).node.name;
        // the others go on without a node that is lost
        let given = tokio::select! {
            biased;
            lost = session.cancellation.lost_on(node) => Err(lost),
            given = cargo.give(receiver, &sender) => given,
        }?;
        session.progress.done(node);
        events.done(node, format!("has {}", cargo.name()));
        Ok((node.clone(), given))
    };
    let given = each_node(receivers.iter().collect(), events, give).await;
    cargo.end(sender, &given.failed).await;
    Ok(given)
}
