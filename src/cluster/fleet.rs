//! The connections of a command. A node is connected once; whatever asks for it later is given the same connection.

use crate::cluster::each_node::{NodeResults, for_each_node, note_few_files, open_files, unreached};
use crate::cluster::member::Member;
use crate::cluster::target::Target;
use crate::error::{Error, NodeError};
use crate::event::{Event, Events, Step};
use crate::inventory::{Cluster, Node};
use crate::transport::node::{RunAs, Transport, TransportKind};
use crate::transport::ssh::Control;
use crate::transport::sudo::SudoPasswords;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Mutex as AsyncMutex, OnceCell};

/// The nodes of a command: the way to reach them, and the connections.
pub struct Fleet {
    /// Set at the first connection, if it was not given.
    kind: OnceCell<TransportKind>,
    /// If set, host keys must be known beforehand.
    strict: bool,
    sudo: Arc<SudoPasswords>,
    /// The events to which first contacts are reported, whatever asks for the node.
    events: Events,
    nodes: Mutex<BTreeMap<String, FleetConnection>>,
}

/// A node of the fleet, if it is connected. The lock is held while it is being connected, so that no node is connected
/// twice.
type FleetConnection = Arc<AsyncMutex<Option<ConnectedNode>>>;

/// A node that is connected.
struct ConnectedNode {
    member: Member,
    /// Set if it is known how root is used there.
    has_root: bool,
}

impl Fleet {
    /// Nodes that are reached over SSH. `strict`: a host key must be known beforehand.
    pub fn over_ssh(strict: bool, sudo: Arc<SudoPasswords>, events: &Events) -> Fleet {
        Fleet { kind: OnceCell::new(), strict, sudo, events: events.clone(), nodes: Mutex::default() }
    }

    /// Nodes that are reached in this way.
    pub fn over(kind: TransportKind, sudo: Arc<SudoPasswords>, events: &Events) -> Fleet {
        Fleet { kind: OnceCell::new_with(Some(kind)), ..Fleet::over_ssh(true, sudo, events) }
    }

    /// Returns the fleet of this machine alone, of which no password is asked.
    pub fn here(&self) -> Fleet {
        #[cfg(test)]
        if let Some(kind @ TransportKind::Scripted(_)) = self.kind.get() {
            return Fleet::over(kind.clone(), Arc::default(), &self.events);
        }
        Fleet::over(TransportKind::Local, Arc::default(), &self.events)
    }

    /// Returns the selected nodes with root, connected.
    ///
    /// # Errors
    /// As [`Fleet::connect`].
    pub async fn members(&self, target: &Target, events: &Events) -> Result<NodeResults<Member>, Error> {
        Ok(self.connect(target, RunAs::Root, events).await?.into_iter().collect())
    }

    /// Returns all selected nodes with root, connected.
    ///
    /// # Errors
    /// [`unreached`] with every node that cannot be used.
    pub async fn all(&self, target: &Target, events: &Events) -> Result<Vec<Member>, Error> {
        let NodeResults { ok, failed } = self.members(target, events).await?;
        if failed.is_empty() { Ok(ok) } else { Err(unreached(failed)) }
    }

    /// Connects the selected nodes that are not connected, or whose connection was lost, for what root or the login
    /// itself does there. Returns each node, or why it cannot be used, which it reports, in the order of
    /// [`Target::nodes`]. A node that failed is tried again when it is asked for again.
    ///
    /// # Errors
    /// When the operator's own machine is at fault (no ssh, no room for a control socket).
    pub async fn connect(
        &self,
        target: &Target,
        run_as: RunAs,
        events: &Events,
    ) -> Result<Vec<Result<Member, NodeError>>, Error> {
        let (cluster, nodes) = (target.cluster(), target.nodes());
        let request = Request { cluster, kind: self.kind(cluster).await?, run_as, events };
        note_few_files(nodes.len(), open_files(), events);
        events.send(Event::Nodes(nodes.iter().map(|node| node.name.clone()).collect()));
        Ok(for_each_node(nodes, async |node| events.report(self.member(node, request).await)).await)
    }

    async fn member(&self, node: Node, request: Request<'_>) -> Result<Member, NodeError> {
        let Request { cluster, kind, run_as, events } = request;
        let connection = Arc::clone(self.nodes().entry(node.name.clone()).or_default());
        let mut connected = connection.lock().await;
        let is_lost = match &*connected {
            Some(known) => !known.member.transport.is_connected().await,
            None => false,
        };
        if is_lost {
            *connected = None;
        }
        if let Some(ConnectedNode { member, has_root }) = &*connected
            && (*has_root || run_as == RunAs::Login)
        {
            return Ok(member.clone());
        }
        let opening = async {
            let login = match connected.take() {
                Some(known) => known.member.transport,
                None => Arc::new(Transport::open_as_login(cluster, &node, kind.clone()).await?),
            };
            let known = Member::new(node.clone(), Arc::clone(&login));
            let known = connected.insert(ConnectedNode { member: known, has_root: false });
            if run_as != RunAs::Login {
                // without root the login stays, and with it the next attempt begins
                let transport = login.with_root(cluster, &node.owner, &self.sudo, events).await?;
                *known = ConnectedNode { member: Member::new(node.clone(), Arc::new(transport)), has_root: true };
            }
            Ok(known.member.clone())
        };
        events.step(&node.name, Step::CONNECTING, opening).await
    }

    fn nodes(&self) -> MutexGuard<'_, BTreeMap<String, FleetConnection>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether this machine is the only node, because there is no inventory.
    pub fn is_local(&self) -> bool {
        matches!(self.kind.get(), Some(TransportKind::Local))
    }

    async fn kind(&self, cluster: &Cluster) -> Result<&TransportKind, Error> {
        let ssh = async || Ok(TransportKind::Ssh(Arc::new(Control::new(cluster, self.strict, &self.events).await?)));
        self.kind.get_or_try_init(ssh).await
    }

    /// Returns what opens the SSH connections, or `None` for nodes that are reached in another way.
    ///
    /// # Errors
    /// As [`Fleet::connect`].
    pub async fn control(&self, cluster: &Cluster) -> Result<Option<Arc<Control>>, Error> {
        Ok(match self.kind(cluster).await? {
            TransportKind::Ssh(control) => Some(Arc::clone(control)),
            _ => None,
        })
    }
}

/// A request to a node.
#[derive(Clone, Copy)]
struct Request<'a> {
    cluster: &'a Cluster,
    kind: &'a TransportKind,
    run_as: RunAs,
    events: &'a Events,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::Inventory;
    use crate::transport::node::scripted::{CONNECT, Fault, Nodes};
    use std::path::Path;

    /// Two scripted nodes, what selects both, and their fleet.
    fn two() -> (Nodes, Target, Fleet, Events) {
        let nodes = Nodes::new(&["node1", "node2"]);
        let text = "[cluster]\nname = \"lab\"\nimage = \"i\"\n[[node]]\nhost = \"node1\"\n[[node]]\nhost = \"node2\"\n";
        let target = Target::new(Inventory::parse(text, Path::new("inventory.toml")).unwrap(), None).unwrap();
        let (events, _) = Events::channel();
        let fleet = Fleet::over(TransportKind::Scripted(nodes.clone()), Arc::default(), &events);
        (nodes, target, fleet, events)
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_is_connected_once_and_again_only_where_the_connection_was_lost() {
        let (nodes, target, fleet, events) = two();
        let (first, second) = tokio::join!(fleet.all(&target, &events), fleet.all(&target, &events));
        let (first, second) = (first.unwrap(), second.unwrap());
        assert!(first.iter().zip(&second).all(|(a, b)| Arc::ptr_eq(&a.transport, &b.transport)));
        fleet.all(&target.only(["node2".to_owned()]), &events).await.unwrap();
        assert_eq!([nodes.count(CONNECT), nodes.count("access/access.sh")], [[1, 1], [1, 1]]);

        nodes.cut("node2");
        assert!(first[1].runtime().await.is_err());
        let again = fleet.all(&target, &events).await.unwrap();
        assert!(again[1].runtime().await.is_ok());
        assert_eq!([nodes.count(CONNECT), nodes.count("access/access.sh")], [[1, 2], [1, 2]]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_login_becomes_root_without_another_login() {
        let (nodes, target, fleet, events) = two();
        let login = async || fleet.connect(&target, RunAs::Login, &events).await.unwrap();
        assert!(login().await.iter().all(Result::is_ok));
        assert_eq!([nodes.count(CONNECT), nodes.count("access/access.sh")], [[1, 1], [0, 0]]);
        nodes.fault("node2", "access/access.sh", Fault::Fails("no".into()));
        assert_eq!(fleet.members(&target, &events).await.unwrap().failed.len(), 1);
        nodes.repair();
        assert_eq!(fleet.all(&target, &events).await.unwrap().len(), 2);
        assert!(login().await.iter().all(Result::is_ok), "root does for what the login does");
        assert_eq!([nodes.count(CONNECT), nodes.count("access/access.sh")], [[1, 1], [1, 2]]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_failed_is_tried_again() {
        let (nodes, target, fleet, events) = two();
        nodes.fault("node2", CONNECT, Fault::Fails("Connection refused".into()));
        let failed = fleet.all(&target, &events).await.err().unwrap();
        assert!(failed.to_string().contains("node2: cannot log in"), "{failed}");
        nodes.repair();
        assert_eq!(fleet.all(&target, &events).await.unwrap().len(), 2);
        assert_eq!(nodes.count(CONNECT), [1, 2]);
    }
}
