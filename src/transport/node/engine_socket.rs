//! A connection to the socket of a node's engine, which sshd itself opens (streamlocal forwarding): a program there costs
//! more than all that the engine answers.

use super::connections::Connections;
use super::{Channel, Transport};
use crate::paths;
use crate::transport::access::Engine;
use openssh::{ForwardType, Session, Socket};
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::time::timeout;

/// Time limit for an ssh master, which is a process of this machine, to listen.
const MASTER_LIMIT: Duration = Duration::from_secs(5);

/// A connection to a socket of a node. That sshd refuses it, or nothing listens there, shows in its end only.
pub struct EngineSocket {
    stream: UnixStream,
    // dropped last: its connection may be the last thing that keeps the directory of the ssh masters
    _connections: Arc<Connections>,
}

/// The socket of this machine at which an ssh master accepts a connection for the node's.
pub struct EngineListener {
    session: Arc<Session>,
    here: PathBuf,
    there: PathBuf,
    _dir: TempDir,
}

impl Transport {
    /// Connects to the socket of the node's engine, if the login may open it. `None`: another way is needed. The listener is
    /// closed after the first answer.
    pub async fn dial_engine(&self) -> Option<(EngineSocket, EngineListener)> {
        let (Channel::Ssh(connections), Engine::Direct(_)) = (&self.channel, &self.access.engine) else { return None };
        let socket = Path::new(self.access.engine.socket()?);
        timeout(MASTER_LIMIT, EngineSocket::open(connections, socket)).await.ok()?.ok()
    }
}

impl EngineSocket {
    /// Connects to a socket of the node over the first connection.
    ///
    /// # Errors
    /// When the ssh master or its directory is gone, or it does not listen.
    async fn open(connections: &Arc<Connections>, socket: &Path) -> io::Result<(EngineSocket, EngineListener)> {
        let (session, directory) = connections.master()?;
        let dir = paths::private_directory().prefix("e").tempdir_in(directory)?;
        let listener = EngineListener { session, here: dir.path().join("s"), there: socket.to_owned(), _dir: dir };
        let EngineListener { session, here, there, .. } = &listener;
        session.request_port_forward(ForwardType::Local, unix(here), unix(there)).await.map_err(io::Error::other)?;
        let stream = match UnixStream::connect(here).await {
            Ok(stream) => stream,
            Err(error) => {
                listener.close().await;
                return Err(error);
            }
        };
        Ok((EngineSocket { stream, _connections: Arc::clone(connections) }, listener))
    }
}

impl EngineListener {
    /// Lets the master listen no more. The connection goes on once the master has accepted it, which an answer shows.
    pub async fn close(self) {
        let _ = self.session.close_port_forward(ForwardType::Local, unix(&self.here), unix(&self.there)).await;
    }
}

fn unix(path: &Path) -> Socket<'_> {
    Socket::UnixSocket { path: path.into() }
}

impl AsyncRead for EngineSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for EngineSocket {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
