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

/// The most programs that run on a node at the same time, and on a connection unless sshd accepts fewer: two of sshd's sessions are
/// left for others.
const MAX_PROGRAMS: usize = 8;

/// The most connections to a node.
const MAX_CONNECTIONS: usize = 16;

/// All connections of a node.
#[derive(Debug)]
pub(super) struct Connections {
    node: Node,
    limit: Duration,
    programs: Arc<Semaphore>,
    all: Mutex<Vec<Connection>>,
    // dropped after the sessions, whose ssh masters have sockets in its directory
    control: Arc<Control>,
}

#[derive(Debug)]
struct Connection {
    session: Arc<Session>,
    running: usize,
    capacity: usize,
}

/// A program's place on a connection, and among the programs of the node.
pub(super) type Slot = (Place, OwnedSemaphorePermit);

#[derive(Debug)]
pub(super) struct Place {
    connections: Arc<Connections>,
    index: usize,
}

impl Drop for Place {
    fn drop(&mut self) {
        let connection = &mut self.connections.all()[self.index];
        connection.running -= 1;
        // programs that were refused together may have counted each other
        connection.capacity = connection.capacity.max(usize::from(connection.running == 0));
    }
}

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
        let session = control.connect(node, limit).await?;
        let first = Connection { session, running: 0, capacity: MAX_PROGRAMS };
        let programs = Arc::new(Semaphore::new(MAX_PROGRAMS));
        Ok(Arc::new(Connections { node: node.clone(), limit, programs, all: Mutex::new(vec![first]), control }))
    }

    fn all(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place on a connection that has room, except on the one that refused a program. `None` if all are full.
    fn place(self: &Arc<Self>, refused: Option<usize>) -> Option<(Place, Arc<Session>)> {
        let mut all = self.all();
        let has_room = |index: &usize| all[*index].running < all[*index].capacity && Some(*index) != refused;
        let index = (0..all.len()).find(has_room)?;
        all[index].running += 1;
        Some((Place { connections: Arc::clone(self), index }, Arc::clone(&all[index].session)))
    }

    /// Opens another connection and takes a place on it.
    async fn add(self: &Arc<Self>) -> io::Result<(Place, Arc<Session>)> {
        if self.all().len() == MAX_CONNECTIONS {
            return Err(io::Error::other(format!("sshd starts no program on any of {MAX_CONNECTIONS} connections")));
        }
        let session = self.control.connect(&self.node, self.limit).await.map_err(io::Error::other)?;
        let mut all = self.all();
        all.push(Connection { session: Arc::clone(&session), running: 1, capacity: MAX_PROGRAMS });
        Ok((Place { connections: Arc::clone(self), index: all.len() - 1 }, session))
    }

    /// Starts a program. A connection whose sshd refuses it is full, and another one is tried.
    ///
    /// # Errors
    /// When no connection can be opened, or a new one starts no program either.
    pub(super) async fn spawn(self: &Arc<Self>, argv: &[String]) -> io::Result<(Child<Arc<Session>>, Slot)> {
        let program = Arc::clone(&self.programs).acquire_owned().await.map_err(io::Error::other)?;
        let mut refused = None;
        loop {
            let free = self.place(refused);
            let is_new = free.is_none();
            let (place, session) = match free {
                Some(free) => free,
                None => self.add().await?,
            };
            let mut command = session.arc_command(&argv[0]);
            command.args(&argv[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            match command.spawn().await {
                Ok(child) => return Ok((child, (place, program))),
                Err(openssh::Error::SshMux(_)) if !is_new => {
                    refused = Some(place.index);
                    let connection = &mut self.all()[place.index];
                    connection.capacity = connection.capacity.min(connection.running - 1);
                }
                Err(error) => return Err(io::Error::other(causes(&error))),
            }
        }
    }
}
