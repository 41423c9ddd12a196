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
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::time::timeout;

/// Time limit for an ssh master, which is a process of this machine, to listen, and to listen no more.
const MASTER_LIMIT: Duration = Duration::from_secs(5);

/// A connection to a socket of a node. That sshd refuses it, or nothing listens there, shows in its end only.
pub struct EngineSocket {
    stream: UnixStream,
    // dropped last: its connection may be the last thing that keeps the directory of the ssh masters
    _connections: Arc<Connections>,
}

/// The socket of this machine at which an ssh master accepts a connection for the node's. However it is dropped, the
/// master is asked to listen no more: one that is kept would collect listeners of commands that were ended.
pub struct EngineListener {
    session: Arc<Session>,
    here: PathBuf,
    there: PathBuf,
    /// Set unless the master has been asked to close it.
    is_open: bool,
    _dir: TempDir,
}

impl Transport {
    /// Returns whether sshd may connect to the engine's socket: the login may open it.
    pub fn can_dial_engine(&self) -> bool {
        self.engine_to_dial().is_some()
    }

    /// Connects to the socket of the node's engine, if the login may open it. `None`: another way is needed. The listener is
    /// closed after the first answer.
    pub async fn dial_engine(&self) -> Option<(EngineSocket, EngineListener)> {
        let (connections, socket) = self.engine_to_dial()?;
        EngineSocket::open(connections, socket).await.ok()
    }

    fn engine_to_dial(&self) -> Option<(&Arc<Connections>, &Path)> {
        let (Channel::Ssh(connections), Engine::Direct(_)) = (&self.channel, &self.access.engine) else { return None };
        Some((connections, Path::new(self.access.engine.socket()?)))
    }
}

impl EngineSocket {
    /// Connects to a socket of the node over the first connection.
    ///
    /// # Errors
    /// When the ssh master or its directory is gone, or it does not listen.
    async fn open(connections: &Arc<Connections>, socket: &Path) -> io::Result<(EngineSocket, EngineListener)> {
        let (session, directory) = connections.master()?;
        let listener = EngineListener::new(session, &directory, socket)?;
        let connected = timeout(MASTER_LIMIT, listener.connect()).await;
        match connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(stream) => Ok((EngineSocket { stream, _connections: Arc::clone(connections) }, listener)),
            Err(error) => {
                listener.close().await;
                Err(error)
            }
        }
    }
}

impl EngineListener {
    fn new(session: Arc<Session>, directory: &Path, socket: &Path) -> io::Result<EngineListener> {
        let dir = paths::private_directory().prefix("e").tempdir_in(directory)?;
        let (here, there) = (dir.path().join("s"), socket.to_owned());
        Ok(EngineListener { session, here, there, is_open: true, _dir: dir })
    }

    async fn connect(&self) -> io::Result<UnixStream> {
        let EngineListener { session, here, there, .. } = self;
        session.request_port_forward(ForwardType::Local, unix(here), unix(there)).await.map_err(io::Error::other)?;
        UnixStream::connect(here).await
    }

    /// Lets the master listen no more. The connection goes on once the master has accepted it, which an answer shows.
    pub async fn close(mut self) {
        let closing = self.session.close_port_forward(ForwardType::Local, unix(&self.here), unix(&self.there));
        self.is_open = timeout(MASTER_LIMIT, closing).await.is_err();
    }
}

impl Drop for EngineListener {
    fn drop(&mut self) {
        if self.is_open {
            // also at the end of this process, which does not wait for it
            let forward = format!("{}:{}", self.here.display(), self.there.display());
            let mut ssh = Command::new("ssh");
            ssh.args(["-F", "/dev/null", "-S"]).arg(self.session.control_socket());
            ssh.args(["-O", "cancel", "-L", &forward, "--", "node"]);
            let _ = ssh.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixListener;

    /// An ssh master that answers when the test does, and a socket for it to listen at.
    fn listener() -> (TempDir, UnixListener, EngineListener) {
        let dir = tempfile::tempdir_in("/tmp").unwrap();
        let socket = dir.path().join("m");
        let master = UnixListener::bind(&socket).unwrap();
        let session = Arc::new(Session::resume_mux(socket.into_boxed_path(), None));
        let listener = EngineListener::new(session, dir.path(), Path::new("/run/engine.sock")).unwrap();
        (dir, master, listener)
    }

    #[tokio::test]
    async fn a_master_is_asked_to_close_what_a_dropped_request_has_opened() {
        let (_dir, master, listener) = listener();
        let here = listener.here.display().to_string();
        // as with Ctrl-C
        let accepted = tokio::select! {
            _ = listener.connect() => unreachable!("the master has not answered"),
            accepted = master.accept() => accepted.unwrap(),
        };
        drop((accepted, listener));
        let (mut client, _) = master.accept().await.unwrap();
        // PROTOCOL.mux: MUX_MSG_HELLO, version 4
        client.write_all(&[0, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0, 4]).await.unwrap();
        let mut hello = [0; 12];
        client.read_exact(&mut hello).await.unwrap();
        let length = client.read_u32().await.unwrap();
        let mut request = vec![0; length as usize];
        client.read_exact(&mut request).await.unwrap();
        // MUX_C_CLOSE_FWD
        assert_eq!(request[..4], [0x10, 0, 0, 7]);
        let text = String::from_utf8_lossy(&request);
        assert!(text.contains(&here) && text.contains("/run/engine.sock"), "{text:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_master_that_does_not_answer_is_not_waited_for() {
        let (_dir, _master, listener) = listener();
        assert!(timeout(MASTER_LIMIT * 2, listener.close()).await.is_ok());
    }
}
