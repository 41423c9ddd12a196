//! Connections to a node's Docker Engine: each is a `docker system dial-stdio` there.

use crate::transport::link::{Link, Process};
use bollard::BollardRequest;
use bollard::errors::Error as DockerError;
use hyper::client::conn::http1;
use hyper::{Request, StatusCode, Uri, header};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::ReadBuf;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Names the body type that bollard's requests have, which it does not export.
trait HasBody {
    type Body;
}
impl<B> HasBody for Request<B> {
    type Body = B;
}
type Sender = http1::SendRequest<<BollardRequest as HasBody>::Body>;

/// Milliseconds for which a connection is waited for. Who has read an answer to its end often asks the next before the
/// connection's own task has seen that end; and another connection would cost the node two programs.
const MOMENTS: u32 = 4;

/// Gives bollard its connections: each is a `docker system dial-stdio` on the node, used again while it is free.
#[derive(Clone)]
pub(super) struct Dial {
    link: Arc<Link>,
    idle: Arc<Mutex<Vec<Connection>>>,
}

/// One connection.
struct Connection {
    sender: Sender,
    /// What its program complained of, once it has ended.
    said: oneshot::Receiver<String>,
}

impl Connection {
    /// Why it broke: what the program at its other end complained of says more than hyper does, and comes a moment later.
    async fn broken(self, error: hyper::Error) -> DockerError {
        match timeout(Duration::from_secs(1), self.said).await {
            Ok(Ok(said)) if !said.trim().is_empty() => std::io::Error::other(said.trim().to_owned()).into(),
            _ => error.into(),
        }
    }
}

impl Dial {
    pub(super) fn new(link: &Arc<Link>) -> Dial {
        Dial { link: Arc::clone(link), idle: Arc::default() }
    }

    pub(super) async fn request(
        self,
        request: BollardRequest,
    ) -> Result<hyper::Response<hyper::body::Incoming>, DockerError> {
        let mut connection = match self.free().await {
            Some(connection) => connection,
            None => self.dial().await?,
        };
        match connection.sender.send_request(origin_form(request)?).await {
            Ok(response) => {
                if let Ok(mut idle) = self.idle.lock() {
                    idle.push(connection);
                }
                Ok(response)
            }
            Err(error) => Err(connection.broken(error).await),
        }
    }

    /// A connection that is there and has nothing to do. One whose answer is still being read (a log that is followed) is not ready.
    async fn free(&self) -> Option<Connection> {
        for _ in 0..MOMENTS {
            {
                let mut idle = self.idle.lock().ok()?;
                idle.retain(|connection| !connection.sender.is_closed());
                if let Some(at) = idle.iter().position(|connection| connection.sender.is_ready()) {
                    return Some(idle.swap_remove(at));
                }
                if idle.is_empty() {
                    return None;
                }
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        None
    }

    /// A connection of its own that becomes the two streams of what was asked for, and what has come of them already.
    pub(super) async fn upgrade(&self, path: String, body: String) -> Result<(Process, Vec<u8>), DockerError> {
        let mut process = self.link.dial_docker().await?;
        // somebody has to read it
        drop(process.collect_stderr());
        let (mut sender, connection) = http1::handshake(Stdio(process)).await?;
        tokio::spawn(connection.with_upgrades());
        let request = Request::post(path)
            .header(header::HOST, "docker")
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::CONNECTION, "Upgrade")
            .header(header::UPGRADE, "tcp")
            .body(body)?;
        let response = sender.send_request(request).await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            let message = format!("the engine gave no terminal: {}", response.status());
            return Err(DockerError::DockerResponseServerError { status_code: response.status().as_u16(), message });
        }
        let streams = hyper::upgrade::on(response).await?.downcast::<Stdio>();
        let streams = streams.map_err(|_| std::io::Error::other("the connection is another's"))?;
        Ok((streams.io.0, streams.read_buf.to_vec()))
    }

    async fn dial(&self) -> Result<Connection, DockerError> {
        let mut process = self.link.dial_docker().await?;
        let complaint = process.collect_stderr();
        let (sender, connection) = http1::handshake(Stdio(process)).await?;
        let (tell, said) = oneshot::channel();
        tokio::spawn(async move {
            // however it ended: a program that is not there closes the connection as politely as any
            let _ = connection.with_upgrades().await;
            let _ = tell.send(complaint.await.unwrap_or_default());
        });
        Ok(Connection { sender, said })
    }
}

/// `http://docker/v1.41/x` → `/v1.41/x` with a Host field, as a server on a socket expects (RFC 9112, 3.2.1).
fn origin_form(request: BollardRequest) -> Result<BollardRequest, DockerError> {
    let (mut parts, body) = request.into_parts();
    if let Some(path) = parts.uri.path_and_query() {
        parts.uri = Uri::from(path.clone());
    }
    parts.headers.insert(header::HOST, header::HeaderValue::from_static("docker"));
    Ok(BollardRequest::from_parts(parts, body))
}

/// A process's two streams as one connection for hyper.
struct Stdio(Process);

impl hyper::rt::Read for Stdio {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<std::io::Result<()>> {
        // without unsafe code the bytes go through a buffer of our own
        let mut own = [0u8; 16 * 1024];
        let room = buf.remaining().min(own.len());
        let mut read = ReadBuf::new(&mut own[..room]);
        match self.0.stdout.as_mut().poll_read(cx, &mut read) {
            Poll::Ready(Ok(())) => {
                buf.put_slice(read.filled());
                Poll::Ready(Ok(()))
            }
            other => other,
        }
    }
}

impl hyper::rt::Write for Stdio {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<std::io::Result<usize>> {
        self.0.stdin.as_mut().poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        self.0.stdin.as_mut().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        self.0.stdin.as_mut().poll_shutdown(cx)
    }
}
