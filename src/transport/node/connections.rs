//! The SSH connections of a node. One is enough, unless its sshd accepts fewer programs on a connection (`MaxSessions`,
//! sshd_config(5); 10 by default) than run at the same time.

use crate::error::NodeError;
use crate::inventory::Node;
use crate::transport::ssh::{Control, causes};
use openssh::{Child, Session, Stdio};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// The most programs that run on a node at the same time: two of sshd's sessions are left for others.
const MAX_PROGRAMS: usize = 8;

/// The most connections to a node.
const MAX_CONNECTIONS: usize = 16;

/// Time limit for the answer of an ssh master on this machine.
const MASTER_LIMIT: Duration = Duration::from_secs(5);

/// All connections of a node.
#[derive(Debug)]
pub(super) struct Connections {
    node: Node,
    limit: Duration,
    programs: Arc<Semaphore>,
    sessions: Mutex<Vec<Arc<Session>>>,
    // dropped after the sessions, whose ssh masters have sockets in its directory
    control: Arc<Control>,
}

/// A program's place among those of its node, and the connections, which outlive it.
pub(super) type Slot = (OwnedSemaphorePermit, Arc<Connections>);

impl Connections {
    /// Opens the first connection.
    ///
    /// # Errors
    /// As [`Control::connect`].
    pub(super) async fn open(
        control: Arc<Control>,
        node: &Node,
        limit: Duration,
    ) -> Result<Arc<Connections>, NodeError> {
        let sessions = Mutex::new(vec![control.connect(node, limit).await?]);
        let programs = Arc::new(Semaphore::new(MAX_PROGRAMS));
        Ok(Arc::new(Connections { node: node.clone(), limit, programs, sessions, control }))
    }

    fn sessions(&self) -> MutexGuard<'_, Vec<Arc<Session>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether a connection is up, by its ssh master. Forgets those that are not, unless all are lost.
    pub(super) async fn are_up(&self) -> bool {
        let mut lost = Vec::new();
        let sessions = self.sessions().clone();
        for session in &sessions {
            if !matches!(timeout(MASTER_LIMIT, session.check()).await, Ok(Ok(()))) {
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
        let sessions = self.sessions().clone();
        for session in &sessions {
            match start(session, argv).await {
                Ok(child) => return Ok((child, slot)),
                Err(openssh::Error::SshMux(_)) => {}
                Err(error) => {
                    // its ssh master has ended: other programs start on the others. The last one stays, and with it the node is lost
                    let mut sessions = self.sessions();
                    if sessions.len() > 1 {
                        sessions.retain(|other| !Arc::ptr_eq(other, session));
                    }
                    return Err(io::Error::other(causes(&error)));
                }
            }
        }
        if sessions.len() >= MAX_CONNECTIONS {
            return Err(io::Error::other(format!("sshd starts no program on any of {MAX_CONNECTIONS} connections")));
        }
        let session = self.control.connect(&self.node, self.limit).await.map_err(io::Error::other)?;
        let child = start(&session, argv).await.map_err(|error| io::Error::other(causes(&error)))?;
        // only now, so that no other program takes the place of its first one; one too many, opened meanwhile, ends with its program
        let mut sessions = self.sessions();
        if sessions.len() < MAX_CONNECTIONS {
            sessions.push(session);
        }
        drop(sessions);
        Ok((child, slot))
    }
}

async fn start(session: &Arc<Session>, argv: &[String]) -> Result<Child<Arc<Session>>, openssh::Error> {
    let mut command = Arc::clone(session).arc_command(&argv[0]);
    command.args(&argv[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().await
}
