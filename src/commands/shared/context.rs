//! The context of a command, and the steps that several commands share.

use crate::cluster::each_node::{NodeResults, unreached};
use crate::cluster::fleet::Fleet;
use crate::cluster::member::Member;
use crate::cluster::observation::ObservedNode;
use crate::cluster::session::Session;
use crate::cluster::site::Site;
use crate::cluster::target::Target;
use crate::document::NodeEntry;
use crate::error::{Error, NodeError};
use crate::event::Events;
use crate::keys::reachability::{FailedLogins, Matrix};
use crate::launch::env_file::EnvFiles;
use crate::schedule::Scheduler;
use crate::start::observe;
use crate::terminal::{self, Echo};
use crate::text::nodeset;
use crate::text::result::ResultText;
use crate::text::table::{Column, Table, key, text};
use std::time::Duration;
use tokio::time::timeout;

/// The time for which a question waits for its answer while the nodes are locked.
const ANSWER_LIMIT: Duration = Duration::from_secs(120);

/// The context of a command, apart from its own options.
pub struct Context {
    /// The selected nodes.
    pub target: Target,
    /// The connections.
    pub fleet: Fleet,
    /// The events of the command.
    pub events: Events,
    /// Its locks, its cancellation and its progress.
    pub session: Session,
    /// The number of `-v`.
    pub verbose: u8,
    /// If set, the command asks before data is lost.
    pub ask: bool,
    /// If set, every question is answered with yes.
    pub yes: bool,
    /// If set, the result is printed as JSON.
    pub json: bool,
    /// If set, jobs bypass the cluster's queue (`--scheduler ssh`).
    pub is_direct: bool,
    /// The files with variables that the command has read already.
    pub env_files: EnvFiles,
}

/// The nodes of a command that changes nodes one by one.
pub struct ConnectedNodes {
    /// The nodes that can be changed. Those that refuse root have failed, and the others go on.
    pub nodes: NodeResults<Member>,
    /// The unreachable nodes that `--skip-offline` leaves out.
    pub offline: Vec<NodeError>,
}

impl Context {
    /// Returns what rooms work with.
    pub fn site(&self) -> Site<'_> {
        Site { target: &self.target, fleet: &self.fleet, session: &self.session, events: &self.events }
    }

    /// Returns who chooses the nodes of jobs.
    pub fn scheduler(&self) -> Scheduler<'_> {
        Scheduler { site: self.site(), is_direct: self.is_direct }
    }

    /// Asks before something that cannot be undone. Does not ask without a terminal, or with `-y` or `--json`.
    ///
    /// # Errors
    /// When the answer is not yes.
    pub async fn confirm(&self, question: &str) -> Result<(), Error> {
        if !(self.ask && terminal::present()) {
            return Ok(());
        }
        let question = format!("{question} [y/N] ");
        let asking = terminal::ask(&self.events, &question, Echo::Shown);
        match self.session.cancellation.run(asking).await?.trim() {
            "y" | "Y" | "yes" => Ok(()),
            _ => Err(Error::usage("nothing was changed", "answer y, or pass -y")),
        }
    }

    /// Asks whether to go another way than was asked for. The answer is no without a terminal, with `--json`, and when
    /// none comes in time: other commands may wait for the locks. With `-y` it is yes.
    ///
    /// # Errors
    /// When the command is cancelled, or the terminal cannot be used.
    pub async fn accepts(&self, question: &str) -> Result<bool, Error> {
        if self.yes || !(self.ask && terminal::present()) {
            return Ok(self.yes);
        }
        let minutes = ANSWER_LIMIT.as_secs() / 60;
        let question = format!("{question} No answer within {minutes} minutes counts as no. [y/N] ");
        let asking = self.session.cancellation.run(terminal::ask(&self.events, &question, Echo::Shown));
        match timeout(ANSWER_LIMIT, asking).await {
            Ok(answer) => Ok(matches!(answer?.trim(), "y" | "Y" | "yes")),
            Err(_) => Ok(false),
        }
    }

    /// Connects to the selected nodes.
    ///
    /// # Errors
    /// When the operator's own machine is at fault.
    pub async fn connect(&self) -> Result<NodeResults<Member>, Error> {
        self.fleet.members(&self.target, &self.events).await
    }

    /// Connects to all selected nodes, or with `skip` to those that can be reached.
    ///
    /// # Errors
    /// Unreachable nodes without `skip`, or no node left.
    pub async fn connect_or_skip(&self, skip: bool) -> Result<ConnectedNodes, Error> {
        let connecting = async {
            let NodeResults { ok, failed } = self.connect().await?;
            let (offline, failed): (Vec<_>, Vec<_>) = failed.into_iter().partition(NodeError::is_unreachable);
            if ok.is_empty() || !(offline.is_empty() || skip) {
                return Err(unreached([offline, failed].concat()));
            }
            Ok(ConnectedNodes { nodes: NodeResults { ok, failed }, offline })
        };
        let connected = self.session.cancellation.run(connecting).await?;
        connected.offline.iter().for_each(|error| self.events.warn(error));
        Ok(connected)
    }

    /// Locks nodes. Those that do not answer have failed.
    ///
    /// # Errors
    /// When another command has locked one.
    pub async fn lock_each(&self, nodes: NodeResults<Member>) -> Result<NodeResults<Member>, Error> {
        let failed = self.session.lock(&nodes.ok).await?;
        Ok(nodes.without(&self.events, failed, |member| &member.node.name))
    }

    /// Connects to all selected nodes and locks them, or changes nothing.
    ///
    /// # Errors
    /// When one cannot be reached or locked.
    pub async fn connect_and_lock(&self) -> Result<Vec<Member>, Error> {
        let members = self.session.cancellation.run(self.fleet.all(&self.target, &self.events)).await?;
        self.session.lock_all(&members).await?;
        Ok(members)
    }

    /// Connects to all nodes of the target, locks them if `locks` is set, and observes them.
    ///
    /// # Errors
    /// When a node fails, or the command is cancelled.
    pub async fn observe_all(&self, target: &Target, locks: bool, events: &Events) -> Result<Vec<ObservedNode>, Error> {
        observe::observe_all(&self.site(), target, locks, events).await
    }

    /// Observes nodes. A node that cannot be observed does not stop the others.
    ///
    /// # Errors
    /// When the operator's own machine is at fault, or the command is cancelled.
    pub async fn observe_each(&self, nodes: NodeResults<Member>) -> Result<NodeResults<ObservedNode>, Error> {
        observe::observe_each(&self.site(), nodes).await
    }
}

/// Formats the failed logins between workers.
pub fn login_table(matrix: &Matrix) -> Table {
    let absent = matrix.absent.iter().map(|a| ["–".into(), a.node.clone(), a.why.clone(), "–".into()].to_vec());
    let cells = |FailedLogins { from, to, reason, pairs }: FailedLogins| {
        vec![nodeset::fold(&from), nodeset::fold(&to), reason, pairs.to_string()]
    };
    let rows = matrix.rows().into_iter().map(cells);
    Table::new([text("FROM"), text("TO"), text("REASON"), key("PAIRS")], absent.chain(rows))
}

/// Formats the entries of nodes: the cells of each result, then a row for each node without a result.
pub fn node_table<T>(
    columns: impl Into<Vec<Column>>,
    nodes: &[NodeEntry<T>],
    cells: impl Fn(&str, &T) -> Vec<String>,
) -> ResultText {
    let failed = nodes.iter().filter(|entry| entry.result.is_none()).map(|entry| {
        let unreachable = entry.error.as_ref().is_some_and(NodeError::is_unreachable);
        vec![entry.node.clone(), if unreachable { "unreachable" } else { "failed" }.to_owned()]
    });
    let rows = nodes.iter().filter_map(|entry| Some(cells(&entry.node, entry.result.as_ref()?)));
    Table::new(columns, rows.chain(failed)).into()
}

/// Formats the results of nodes as one text each; nodes with the same text share a row.
pub fn node_rows<T>(nodes: &[NodeEntry<T>], text: impl Fn(&T) -> String) -> String {
    nodeset::rows(nodes.iter().filter_map(|entry| Some((entry.node.clone(), text(entry.result.as_ref()?)))))
}

/// Marks the master.
pub fn with_role(node: &str, is_master: bool) -> String {
    if is_master { format!("{node} (master)") } else { node.to_owned() }
}
