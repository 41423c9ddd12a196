//! Connections to a node's Docker Engine: each is a `docker system dial-stdio` there.

use crate::transport::node::{Process, RunAs, Transport};
use bollard::BollardRequest;
use bollard::errors::Error as DockerError;
use hyper::client::conn::http1;
use hyper::upgrade::Upgraded;
use hyper::{Request, StatusCode, Uri, header};
use hyper_util::rt::TokioIo;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, Join};
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
type Input = Pin<Box<dyn AsyncRead + Send>>;
type Output = Pin<Box<dyn AsyncWrite + Send>>;
type Streams = Join<Input, Output>;

/// Milliseconds to wait for a busy connection. The next request often comes before the connection's task has seen the end of the
/// last answer, and another connection would start two programs on the node.
const REUSE_WAIT_MS: u32 = 4;

/// Opens bollard's connections and reuses idle ones.
#[derive(Clone)]
pub(super) struct Dial {
    link: Arc<Transport>,
    idle: Arc<Mutex<Vec<Connection>>>,
}

/// A connection of the pool.
struct Connection {
    sender: Sender,
    /// The standard error of its program, once that has ended.
    stderr: oneshot::Receiver<String>,
}

impl Connection {
    /// Returns why the connection broke. The program's standard error says more than hyper's error, and comes a moment later.
    async fn broken(self, error: hyper::Error) -> DockerError {
        match timeout(Duration::from_secs(1), self.stderr).await {
            Ok(Ok(text)) if !text.trim().is_empty() => std::io::Error::other(text.trim().to_owned()).into(),
            _ => error.into(),
        }
    }
}

impl Dial {
    pub(super) fn new(link: &Arc<Transport>) -> Dial {
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

    /// Returns an idle connection. One whose answer is still being read (a log that is followed) is not ready.
    async fn free(&self) -> Option<Connection> {
        for _ in 0..REUSE_WAIT_MS {
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

    /// Posts a request whose connection becomes a stream of bytes in both directions. The process carries the stream.
    pub(super) async fn upgrade(
        &self,
        path: String,
        body: String,
    ) -> Result<(TokioIo<Upgraded>, Process), DockerError> {
        let mut process = self.link.start(RunAs::Docker, &["system", "dial-stdio"]).await?;
        // a program whose standard error nobody reads would hang
        drop(process.collect_stderr());
        let (mut sender, connection) = http1::handshake(streams(&mut process)).await?;
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
        Ok((TokioIo::new(hyper::upgrade::on(response).await?), process))
    }

    async fn dial(&self) -> Result<Connection, DockerError> {
        let mut process = self.link.start(RunAs::Docker, &["system", "dial-stdio"]).await?;
        let complaint = process.collect_stderr();
        let (sender, connection) = http1::handshake(streams(&mut process)).await?;
        let (report, stderr) = oneshot::channel();
        tokio::spawn(async move {
            // the result says nothing: a missing program closes the connection in order, too
            let _ = connection.await;
            drop(process);
            let _ = report.send(complaint.await.unwrap_or_default());
        });
        Ok(Connection { sender, stderr })
    }
}

/// Turns `http://docker/v1.41/x` into `/v1.41/x` with a Host field, as a server on a socket expects (RFC 9112, 3.2.1).
fn origin_form(request: BollardRequest) -> Result<BollardRequest, DockerError> {
    let (mut parts, body) = request.into_parts();
    if let Some(path) = parts.uri.path_and_query() {
        parts.uri = Uri::from(path.clone());
    }
    parts.headers.insert(header::HOST, header::HeaderValue::from_static("docker"));
    Ok(BollardRequest::from_parts(parts, body))
}

/// Joins a process's output and input into one connection. The process has to outlive it: dropping it ends the program.
fn streams(process: &mut Process) -> TokioIo<Streams> {
    let stdout: Input = std::mem::replace(&mut process.stdout, Box::pin(tokio::io::empty()));
    let stdin: Output = std::mem::replace(&mut process.stdin, Box::pin(tokio::io::sink()));
    TokioIo::new(tokio::io::join(stdout, stdin))
}
