//! Connections to a node's engine: sshd opens its socket, or each is a `docker system dial-stdio` there, or that of
//! Podman.

use crate::transport::node::{EngineSocket, RunAs, Transport};
use bollard::BollardRequest;
use bollard::errors::Error as DockerError;
use hyper::body::{Body, Bytes};
use hyper::client::conn::http1;
use hyper::header::HeaderValue;
use hyper::upgrade::Upgraded;
use hyper::{Method, Request, StatusCode, Uri, header};
use hyper_util::rt::TokioIo;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Names the body type that bollard's requests have, which it does not export.
trait HasBody {
    type Body;
}
impl<B> HasBody for Request<B> {
    type Body = B;
}
type Sender = http1::SendRequest<<BollardRequest as HasBody>::Body>;

/// The most bytes of an answer that are read: a list of many thousand containers has fewer.
const LONGEST_ANSWER: usize = 64 << 20;

/// Time for which a request waits for a connection that is still busy. The next request often comes before the
/// connection's task has seen the end of the last answer, and another connection would start two programs on the node.
const REUSE_LIMIT: Duration = Duration::from_millis(5);

/// Time limit for an engine's first answer over its socket; without one, a program on the node is tried.
const SOCKET_LIMIT: Duration = Duration::from_secs(10);

/// Opens bollard's connections and reuses idle ones.
#[derive(Clone)]
pub(super) struct ConnectionPool {
    transport: Arc<Transport>,
    idle: Arc<Mutex<Vec<EngineConnection>>>,
    /// Set if the engine did not answer over its socket.
    needs_program: Arc<AtomicBool>,
}

/// A connection of the pool.
struct EngineConnection {
    sender: Sender,
    /// Returns the standard error of its program when that has ended.
    stderr: JoinHandle<String>,
}

impl ConnectionPool {
    pub(super) fn new(transport: &Arc<Transport>) -> ConnectionPool {
        ConnectionPool { transport: Arc::clone(transport), idle: Arc::default(), needs_program: Arc::default() }
    }

    pub(super) async fn request(
        self,
        request: BollardRequest,
    ) -> Result<hyper::Response<hyper::body::Incoming>, DockerError> {
        let mut connection = match self.idle().await {
            Some(connection) => connection,
            None => self.connect(false).await?,
        };
        match connection.sender.send_request(origin_form(request)).await {
            Ok(response) => {
                self.pool().push(connection);
                Ok(response)
            }
            // the program's standard error says more than hyper's error, and comes a moment later
            Err(error) => match timeout(Duration::from_secs(1), connection.stderr).await {
                Ok(Ok(text)) if !text.trim().is_empty() => Err(std::io::Error::other(text.trim().to_owned()).into()),
                _ => Err(error.into()),
            },
        }
    }

    /// Takes an idle connection out of the pool, the one that was used last if it is.
    async fn idle(&self) -> Option<EngineConnection> {
        let count = self.pool().len();
        for _ in 0..count {
            let mut connection = self.pool().pop()?;
            match timeout(REUSE_LIMIT, connection.sender.ready()).await {
                Ok(Ok(())) => return Some(connection),
                // it was closed
                Ok(Err(_)) => {}
                // its answer is still being read (a log that is followed)
                Err(_) => self.pool().insert(0, connection),
            }
        }
        None
    }

    /// Closes the idle connections.
    pub(super) fn close_idle(&self) {
        self.pool().clear();
    }

    fn pool(&self) -> MutexGuard<'_, Vec<EngineConnection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a connection. `is_upgraded`: a request makes it a stream of bytes.
    async fn connect(&self, is_upgraded: bool) -> Result<EngineConnection, DockerError> {
        // a stream of bytes lasts, so that the start of a program matters less
        if !is_upgraded && !self.needs_program.load(Ordering::Relaxed) && self.transport.can_dial_engine() {
            match self.over_socket().await {
                Some(connection) => return Ok(connection),
                None => self.needs_program.store(true, Ordering::Relaxed),
            }
        }
        let mut process = self.transport.start(RunAs::Engine, &["system", "dial-stdio"]).await?;
        let stderr = process.collect_stderr();
        let stdout = std::mem::replace(&mut process.stdout, Box::pin(tokio::io::empty()));
        let streams = TokioIo::new(tokio::io::join(stdout, process.take_stdin()));
        let (sender, connection) = http1::handshake(streams).await?;
        let stderr = tokio::spawn(async move {
            // the result has no information: a missing program also closes the connection cleanly
            let _ = connection.with_upgrades().await;
            // only an upgraded connection goes on until the program ends; of another one the program may never end, as
            // after a
            // time-out, and dropping the process lets the node start another program
            let _process = is_upgraded.then_some(process);
            stderr.await.unwrap_or_default()
        });
        Ok(EngineConnection { sender, stderr })
    }

    /// Opens a connection without a program on the node. Returns `None` where the engine does not answer: the login may
    /// not open its socket, sshd forwards none (`AllowStreamLocalForwarding`, sshd_config(5)), or the connection is lost.
    /// The program then finds out why.
    async fn over_socket(&self) -> Option<EngineConnection> {
        let (socket, listener) = self.transport.dial_engine().await?;
        let opened = timeout(SOCKET_LIMIT, answering(socket)).await;
        listener.close().await;
        opened.ok()?.ok()
    }

    /// Makes a request that bollard has no call for, and returns the body of the answer.
    pub(super) async fn send(&self, method: Method, path: String, body: String) -> Result<Bytes, DockerError> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::CONTENT_TYPE, "application/json")
            .body(bollard::body_full(body.into()))?;
        let response = self.clone().request(request).await?;
        let status = response.status();
        let answer = whole(response.into_body()).await?;
        if status.is_success() {
            return Ok(answer.into());
        }
        let message = serde_json::from_slice(&answer).map(|answer: EngineMessage| answer.message);
        let message = message.unwrap_or_else(|_| String::from_utf8_lossy(&answer).trim().to_owned());
        Err(DockerError::DockerResponseServerError { status_code: status.as_u16(), message })
    }

    /// Posts a request whose connection becomes a stream of bytes in both directions.
    pub(super) async fn upgrade(&self, path: String, body: String) -> Result<TokioIo<Upgraded>, DockerError> {
        let request = Request::post(path)
            .header(header::HOST, "docker")
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::CONNECTION, "Upgrade")
            .header(header::UPGRADE, "tcp")
            .body(bollard::body_full(body.into()))?;
        let response = self.connect(true).await?.sender.send_request(request).await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            let message = format!("the engine did not switch protocols: {}", response.status());
            return Err(DockerError::DockerResponseServerError { status_code: response.status().as_u16(), message });
        }
        Ok(TokioIo::new(hyper::upgrade::on(response).await?))
    }
}

/// Returns a connection over which the engine has answered.
async fn answering(socket: EngineSocket) -> Result<EngineConnection, DockerError> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(socket)).await?;
    let stderr = tokio::spawn(async move {
        let _ = connection.await;
        String::new()
    });
    let ping = Request::get("/_ping").header(header::HOST, "docker").body(bollard::body_full(Bytes::new()))?;
    whole(sender.send_request(ping).await?.into_body()).await?;
    Ok(EngineConnection { sender, stderr })
}

/// Returns all of an answer.
async fn whole(mut body: hyper::body::Incoming) -> Result<Vec<u8>, DockerError> {
    let mut answer = Vec::new();
    while let Some(frame) = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        if let Ok(data) = frame?.into_data() {
            answer.extend_from_slice(&data);
            if answer.len() > LONGEST_ANSWER {
                return Err(std::io::Error::other("the engine's answer has no end").into());
            }
        }
    }
    Ok(answer)
}

/// The answer of an engine that reports an error.
#[derive(serde::Deserialize)]
struct EngineMessage {
    message: String,
}

/// Turns `http://docker/v1.41/x` into `/v1.41/x` with a Host field, as a server on a socket expects (RFC 9112, 3.2.1).
fn origin_form(mut request: BollardRequest) -> BollardRequest {
    if let Some(path) = request.uri().path_and_query().cloned() {
        *request.uri_mut() = Uri::from(path);
    }
    request.headers_mut().insert(header::HOST, HeaderValue::from_static("docker"));
    for name in ["x-registry-auth", "x-registry-config"] {
        if let Some(value) = request.headers_mut().get_mut(name) {
            *value = credentials(value);
        }
    }
    request
}

/// Encodes credentials in the alphabet of base64 that the engine reads. bollard's is the other one, from which the
/// engine reads no credentials if they have certain letters (`?` or `~` in a password, for example).
fn credentials(value: &HeaderValue) -> HeaderValue {
    let encode = |byte: &u8| match byte {
        b'+' => b'-',
        b'/' => b'_',
        other => *other,
    };
    let bytes: Vec<u8> = value.as_bytes().iter().map(encode).collect();
    let mut value = HeaderValue::from_bytes(&bytes).expect("letters of base64 are those of a header");
    value.set_sensitive(true);
    value
}
