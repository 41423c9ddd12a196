//! The relays of a push, in their order: each receives from the ones before it.

use super::deployment::{Deployment, Relay, RelayContents};
use crate::cluster::each_node::for_each_node;
use crate::delivery::registry::Guest;
use crate::error::NodeError;
use crate::event::Events;
use crate::text::units::human;
use crate::transport::node::Exposed;
use futures_util::future::join_all;
use std::future::Future;

/// Relays that run.
pub struct Relays<'a> {
    deployment: Deployment<'a>,
    all: Vec<Relay>,
    events: &'a Events,
}

impl<'a> Relays<'a> {
    /// Takes the relays that have started. `what` the nodes of the others receive from this machine, a note says.
    pub fn new(
        deployment: Deployment<'a>,
        started: Vec<Result<Relay, NodeError>>,
        what: &str,
        events: &'a Events,
    ) -> Relays<'a> {
        let mut all = Vec::new();
        for result in started {
            match result {
                Ok(relay) => all.push(relay),
                Err(error) => events.note(format!("{error}\n  {} receives {what} from this machine", error.node)),
            }
        }
        Relays { deployment, all, events }
    }

    /// Lets them receive from this machine, where a port of their nodes may lead here. Without any such node they end.
    pub async fn connect<F>(&mut self, admit: impl Fn(String) -> F)
    where
        F: Future<Output = Result<(Guest, Exposed), NodeError>>,
    {
        let admit = async |relay: Relay| {
            let admitted = admit(relay.node().to_owned()).await;
            (relay, admitted)
        };
        for (mut relay, admitted) in for_each_node(std::mem::take(&mut self.all), admit).await {
            match admitted {
                Ok((guest, exposed)) => relay.connect(guest, exposed),
                Err(error) => self.events.note(format!("{error}\n  it receives only from other nodes")),
            }
            self.all.push(relay);
        }
        self.all.sort_by_key(|relay| !relay.is_connected());
        if self.all.first().is_some_and(|first| !first.is_connected()) {
            self.keep(|_| false).await;
        }
    }

    /// Tells them from where they receive what. Those that do not answer end.
    pub async fn link(&mut self, origin: Option<&Relay>, contents: Result<RelayContents, String>) {
        let failed = match contents {
            Ok(contents) => self.deployment.link(&self.all, origin, &contents).await,
            Err(cause) => {
                let failed = |relay: &Relay| NodeError::failed(relay.node(), "start a relay", &cause);
                self.all.iter().map(failed).collect()
            }
        };
        failed.iter().for_each(|error| self.events.note(error));
        self.keep(|relay| failed.iter().all(|error| error.node != relay.node())).await;
    }

    /// Returns the relay of a node.
    pub fn of(&self, node: &str) -> Option<&Relay> {
        self.all.iter().find(|relay| relay.node() == node)
    }

    /// Returns how many there are.
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// Notes how many bytes they received, and how many of them this process sent.
    pub async fn report(&self) {
        let received = join_all(self.all.iter().map(Relay::count)).await;
        let received = human(received.into_iter().fold(0, u64::saturating_add));
        let own = human(self.all.iter().map(Relay::from_operator).sum());
        self.events.note(format!("relays received {received}, of which this machine sent {own}"));
    }

    /// Ends a relay that is not one of them.
    pub(super) async fn end_other(&self, relay: Relay) {
        let _ = self.deployment.end(relay).await;
    }

    /// Ends and removes them, except for these.
    pub async fn keep(&mut self, is_kept: impl Fn(&Relay) -> bool) {
        let (kept, removed): (Vec<_>, Vec<_>) = std::mem::take(&mut self.all).into_iter().partition(is_kept);
        self.all = kept;
        let ended = for_each_node(removed, async |relay| self.deployment.end(relay).await).await;
        ended.into_iter().filter_map(Result::err).for_each(|error| self.events.note(error));
    }
}
