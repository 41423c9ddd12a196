//! The SSH connections of a node. One is enough, unless its sshd accepts fewer programs on a connection (`MaxSessions`,
//! sshd_config(5); 10 by default) than run at the same time.

use crate::error::NodeError;
use crate::inventory::Node;
use crate::transport::ssh::{Connection, Control, Forward, causes};
use openssh::{Child, Session, Stdio};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{self, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// The most programs that run on a node at the same time: two of sshd's sessions are left for others.
const MAX_PROGRAMS: usize = 8;

/// `MAX_PROGRAMS` for the login node of Slurm, through which the logs of all nodes of a job are followed.
pub const MAX_PROGRAMS_OF_LOGIN: usize = MAX_PROGRAMS * MAX_CONNECTIONS;

/// The most connections to a node.
const MAX_CONNECTIONS: usize = 16;

/// Time limit for the answer of an ssh master on this machine.
const MASTER_LIMIT: Duration = Duration::from_secs(5);

/// All connections of a node.
#[derive(Debug)]
pub(super) struct Connections {
    node: Node,
    limit: Duration,
    /// The most programs at the same time, and what admits them.
    most: usize,
    programs: Arc<Semaphore>,
    sessions: Mutex<Vec<Arc<NodeConnection>>>,
    /// Held while another connection is opened.
    opening: sync::Mutex<()>,
    /// The error of the last attempt to reopen the first connection.
    reopening: sync::Mutex<Option<NodeError>>,
    // dropped after the sessions, whose ssh masters have sockets in its directory
    control: Arc<Control>,
}

/// A connection, and whether the node has answered over it in this command.
#[derive(Debug)]
struct NodeConnection {
    connection: Connection,
    has_answered: AtomicBool,
}

/// A program's place among those of its node, and the connections, which outlive it.
pub(super) type Slot = (OwnedSemaphorePermit, Arc<Connections>);

/// A reason why a program was not started on a connection.
enum ConnectionFault {
    /// sshd refuses another one.
    Full(String),
    /// The connection is lost.
    Lost(String),
    /// Another fault.
    Other(String),
}

impl Connections {
    /// Opens the first connection, or finds the one that an earlier command has left open. `is_login`: whether it leads
    /// to the login node of Slurm.
    ///
    /// # Errors
    /// As [`Control::open`].
    pub(super) async fn open(
        control: Arc<Control>,
        node: &Node,
        limit: Duration,
        is_login: bool,
    ) -> Result<Arc<Connections>, NodeError> {
        let first = control.open(node, limit).await?;
        let most = if is_login { MAX_PROGRAMS_OF_LOGIN } else { MAX_PROGRAMS };
        Ok(Connections::over(first, control, node, limit, most))
    }

    /// Opens a connection to the same node instead of those that are lost.
    ///
    /// # Errors
    /// As [`Control::connect`].
    pub(super) async fn reconnected(&self) -> Result<Arc<Connections>, NodeError> {
        let first = self.control.connect(&self.node, self.limit).await?;
        Ok(Connections::over(first, Arc::clone(&self.control), &self.node, self.limit, self.most))
    }

    fn over(first: Connection, control: Arc<Control>, node: &Node, limit: Duration, most: usize) -> Arc<Connections> {
        let sessions = Mutex::new(vec![NodeConnection::new(first)]);
        let programs = Arc::new(Semaphore::new(most));
        let (opening, reopening) = (sync::Mutex::default(), sync::Mutex::default());
        Arc::new(Connections { node: node.clone(), limit, most, programs, sessions, opening, reopening, control })
    }

    fn sessions(&self) -> MutexGuard<'_, Vec<Arc<NodeConnection>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn first(&self) -> Option<Arc<NodeConnection>> {
        self.sessions().first().cloned()
    }

    /// Returns what the access script reported not long ago, to this command or another.
    pub(super) fn access(&self) -> Option<String> {
        self.first()?.connection.access()
    }

    /// Lets the commands of the next minute use what the access script has reported; nothing makes them ask.
    pub(super) fn set_access(&self, report: &str) {
        if let Some(first) = self.first() {
            first.connection.set_access(report);
        }
    }

    /// Lets the next command open a new connection, in which a change of the user's groups has effect.
    pub(super) async fn discard(&self) {
        if let Some(first) = self.first() {
            first.connection.discard().await;
        }
    }

    /// Returns whether a connection is up, by its ssh master. Forgets those that are not, unless all are lost.
    pub(super) async fn are_up(&self) -> bool {
        let mut lost = Vec::new();
        let sessions = self.sessions().clone();
        for session in &sessions {
            if !matches!(timeout(MASTER_LIMIT, session.connection.session.check()).await, Ok(Ok(()))) {
                lost.push(session);
            }
        }
        if lost.len() == sessions.len() {
            return false;
        }
        self.sessions().retain(|session| !lost.iter().any(|lost| Arc::ptr_eq(lost, session)));
        true
    }

    /// Starts a program on the first connection whose sshd does not refuse it, or else on a new one.
    ///
    /// # Errors
    /// When no connection can be opened, or a new one starts no program either.
    pub(super) async fn spawn(self: &Arc<Self>, argv: &[String]) -> io::Result<(Child<Arc<Session>>, Slot)> {
        let program = Arc::clone(&self.programs).acquire_owned().await.map_err(io::Error::other)?;
        let slot = (program, Arc::clone(self));
        let mut sessions = self.sessions().clone();
        let (mut next, mut has_reopened) = (0, false);
        while let Some(session) = sessions.get(next) {
            match session.start(argv, self.limit).await {
                Ok(child) => return Ok((child, slot)),
                Err(ConnectionFault::Full(_)) => next += 1,
                Err(ConnectionFault::Lost(_)) if session.connection.is_kept() && !has_reopened => {
                    has_reopened = true;
                    self.reopen(session).await.map_err(io::Error::other)?;
                    sessions = self.sessions().clone();
                }
                Err(ConnectionFault::Lost(message) | ConnectionFault::Other(message)) => {
                    // its ssh master has ended: other programs start on the others. The last one stays, and with it the
                    // node is lost
                    let mut open = self.sessions();
                    if open.len() > 1 {
                        open.retain(|other| !Arc::ptr_eq(other, session));
                    }
                    return Err(io::Error::other(message));
                }
            }
        }
        // one login at a time, which others that wait for one may use as well
        let _opening = self.opening.lock().await;
        let known = sessions.len();
        sessions = self.sessions().clone();
        for session in sessions.iter().skip(known) {
            if let Ok(child) = session.start(argv, self.limit).await {
                return Ok((child, slot));
            }
        }
        if sessions.len() >= MAX_CONNECTIONS {
            return Err(io::Error::other(format!("sshd starts no program on any of {MAX_CONNECTIONS} connections")));
        }
        let session =
            NodeConnection::new(self.control.connect(&self.node, self.limit).await.map_err(io::Error::other)?);
        let child = session.start(argv, self.limit).await.map_err(|fault| io::Error::other(fault.message()))?;
        // only now, so that no other program takes the place of its first one; one too many, opened meanwhile, ends
        // with its program
        let mut sessions = self.sessions();
        if sessions.len() < MAX_CONNECTIONS {
            sessions.push(session);
        }
        drop(sessions);
        Ok((child, slot))
    }

    /// Returns the first connection, and the directory of its ssh master's socket.
    ///
    /// # Errors
    /// When one of them is gone.
    pub(super) fn master(&self) -> io::Result<(Arc<Session>, PathBuf)> {
        let first = self.first().ok_or(io::ErrorKind::NotConnected)?;
        Ok((Arc::clone(&first.connection.session), self.control.directory()?))
    }

    /// Lets a port of the node lead to a port of this machine.
    ///
    /// # Errors
    /// As [`Control::forward`].
    pub(super) async fn forward(&self, port: u16, operation: &str) -> Result<Forward, NodeError> {
        self.control.forward(&self.node, port, operation, self.limit).await
    }

    /// Replaces a kept connection that is lost, once for all programs that find that out at the same time. The new one
    /// ends with the command, unless no other command has one.
    async fn reopen(&self, lost: &Arc<NodeConnection>) -> Result<(), NodeError> {
        let mut failed = self.reopening.lock().await;
        if let Some(error) = &*failed {
            return Err(error.clone());
        }
        if !self.sessions().iter().any(|session| Arc::ptr_eq(session, lost)) {
            return Ok(());
        }
        lost.connection.discard().await;
        let opened = match self.control.open(&self.node, self.limit).await {
            // one that another command keeps using may be lost as well
            Ok(connection) if connection.is_resumed => self.control.connect(&self.node, self.limit).await,
            opened => opened,
        };
        let opened = opened.inspect_err(|error| *failed = Some(error.clone()))?;
        let mut sessions = self.sessions();
        sessions.retain(|session| !Arc::ptr_eq(session, lost));
        sessions.insert(0, NodeConnection::new(opened));
        Ok(())
    }
}

impl NodeConnection {
    fn new(connection: Connection) -> Arc<NodeConnection> {
        let has_answered = AtomicBool::new(!connection.is_resumed);
        Arc::new(NodeConnection { connection, has_answered })
    }

    /// Starts a program. sshd confirms that, which shows that the node is still there: over the connection of an
    /// earlier command it has as long as for a login. What is not confirmed is not started.
    async fn start(&self, argv: &[String], limit: Duration) -> Result<Child<Arc<Session>>, ConnectionFault> {
        let mut command = Arc::clone(&self.connection.session).arc_command(&argv[0]);
        command.args(&argv[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let limit = if self.has_answered.load(Ordering::Relaxed) { Duration::MAX } else { limit };
        let Ok(started) = timeout(limit, command.spawn()).await else {
            return Err(ConnectionFault::Lost(format!("no answer within {} s", limit.as_secs())));
        };
        let child = started.map_err(|error| {
            let fault = match error {
                openssh::Error::SshMux(_) => ConnectionFault::Full,
                openssh::Error::Disconnected => ConnectionFault::Lost,
                _ => ConnectionFault::Other,
            };
            fault(causes(&error))
        })?;
        self.has_answered.store(true, Ordering::Relaxed);
        Ok(child)
    }
}

impl ConnectionFault {
    fn message(self) -> String {
        match self {
            ConnectionFault::Full(message) | ConnectionFault::Lost(message) | ConnectionFault::Other(message) => {
                message
            }
        }
    }
}
