//! The SSH connections of a node. One is enough, unless its sshd takes fewer programs on a connection (`MaxSessions`,
//! sshd_config(5); 10 by default) than run at the same time: then there are more.

use crate::error::NodeError;
use crate::inventory::Node;
use crate::transport::ssh::Control;
use openssh::{Child, Session};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Programs that a connection takes as far as is known: two of sshd's sessions are left for others.
pub(super) const PROGRAMS: usize = 8;

/// A node whose sshd refused programs on so many connections gets no further one.
const MOST: usize = 16;

/// All connections of a node.
#[derive(Debug)]
pub(super) struct Connections {
    node: Node,
    limit: Duration,
    all: Mutex<Vec<Connection>>,
    // dropped after the sessions: those end their ssh masters over sockets in its directory
    control: Arc<Control>,
}

#[derive(Debug)]
struct Connection {
    session: Arc<Session>,
    running: usize,
    most: usize,
}

/// A program's place on a connection.
#[derive(Debug)]
pub(super) struct Place {
    connections: Arc<Connections>,
    at: usize,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut all = self.connections.all();
        let connection = &mut all[self.at];
        connection.running -= 1;
        // of those that were refused together some may have counted each other
        connection.most = connection.most.max(usize::from(connection.running == 0));
    }
}

impl Connections {
    /// Opens the first one.
    ///
    /// # Errors
    /// As of [`Control::connect`].
    pub(super) async fn open(
        control: Arc<Control>,
        node: &Node,
        limit: Duration,
    ) -> Result<Arc<Connections>, NodeError> {
        let session = control.connect(node, limit).await?;
        let first = Connection { session, running: 0, most: PROGRAMS };
        Ok(Arc::new(Connections { node: node.clone(), limit, all: Mutex::new(vec![first]), control }))
    }

    fn all(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place on a connection that has one, but for the one that has just refused; none where all are full.
    fn place(self: &Arc<Self>, refused: Option<usize>) -> Option<(Place, Arc<Session>)> {
        let mut all = self.all();
        let has_room = |at: &usize| all[*at].running < all[*at].most && Some(*at) != refused;
        let at = (0..all.len()).find(has_room)?;
        all[at].running += 1;
        Some((Place { connections: Arc::clone(self), at }, Arc::clone(&all[at].session)))
    }

    /// Starts a program. Where sshd refuses it a session, the connection is taken to be full, and the program goes to another one.
    ///
    /// # Errors
    /// When no connection can be opened, or a new one starts no program either.
    pub(super) async fn spawn(self: &Arc<Self>, argv: &[String]) -> io::Result<(Child<Arc<Session>>, Place)> {
        let mut refused = None;
        let mut tries = 0;
        loop {
            let (place, session, is_new) = match self.place(refused) {
                Some((place, session)) => (place, session, false),
                None if self.all().len() == MOST => {
                    return Err(io::Error::other(format!("sshd starts no program on any of {MOST} connections")));
                }
                None => {
                    let session = self.control.connect(&self.node, self.limit).await.map_err(io::Error::other)?;
                    let mut all = self.all();
                    all.push(Connection { session: Arc::clone(&session), running: 1, most: PROGRAMS });
                    (Place { connections: Arc::clone(self), at: all.len() - 1 }, session, true)
                }
            };
            let mut command = session.arc_command(&argv[0]);
            command.args(&argv[1..]);
            command.stdin(openssh::Stdio::piped());
            command.stdout(openssh::Stdio::piped());
            command.stderr(openssh::Stdio::piped());
            match command.spawn().await {
                Ok(child) => return Ok((child, place)),
                Err(openssh::Error::SshMux(error)) if !is_new && tries < MOST => {
                    (tries, refused) = (tries + 1, Some(place.at));
                    let mut all = self.all();
                    let connection = &mut all[place.at];
                    connection.most = connection.most.min(connection.running - 1);
                    drop(all);
                    drop((place, error));
                }
                Err(error) => return Err(io::Error::other(words(&error))),
            }
        }
    }
}

/// An error of the crate's with its causes: the last says what sshd or the master of the connection complained of.
fn words(error: &openssh::Error) -> String {
    let mut words = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        words = format!("{words}: {error}");
        cause = error.source();
    }
    words
}
