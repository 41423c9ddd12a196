//! A read-only registry of one image, from which engines pull by digest, or of one stream of data for relays. It
//! listens on 127.0.0.1, and that of a relay also where other relays reach it.
//!
//! Others can connect as well. They get nothing: each engine has a token of its own, which is in the paths of its
//! requests and valid while it pulls; relays have one in a header.

use super::incoming::Incoming as IncomingBlob;
use super::manifest::MEDIA_TYPE;
use crate::image::archive::ArchiveExtent;
use crate::image::names::{sha256, temporary_repository};
use crate::random;
use futures_util::FutureExt;
use futures_util::future::join_all;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{ACCEPT_RANGES, AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, RANGE};
use hyper::http::response::Builder;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::fmt;
use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinHandle, JoinSet};

/// Bytes of a file that are read at once, and how often ahead of the network.
const CHUNK: u64 = 256 << 10;
const CHUNKS_AHEAD: usize = 4;

/// The pause after a connection could not be accepted: this machine may have too many open files for a moment.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The longest time until the head of a request has come, and between two requests over one connection.
const HEAD_LIMIT: Duration = Duration::from_secs(20);

/// The most connections over which nothing was asked for with a token: those of strangers.
const STRANGERS: usize = 64;

/// The repository from which relays take blobs of each other.
pub const PEERS: &str = "peers";

/// The bytes of a blob.
#[derive(Debug, Clone)]
pub enum Stored {
    /// In memory.
    Memory(Bytes),
    /// A part of a file.
    File(Arc<File>, ArchiveExtent),
    /// Received when it is asked for, and served meanwhile.
    Incoming(Arc<IncomingBlob>),
    /// Made when it is asked for.
    Generated(Arc<Generated>),
}

/// A blob that is made each time that it is asked for, always with the same bytes.
pub struct Generated {
    length: u64,
    /// Makes the bytes from an offset on.
    open: Box<Generator>,
    /// The reason why making the bytes failed.
    failure: watch::Sender<Option<Arc<io::Error>>>,
}

type Generator = dyn Fn(u64) -> mpsc::Receiver<io::Result<Vec<u8>>> + Send + Sync;

impl Generated {
    /// A blob of this length. `open` makes its bytes from an offset on.
    pub fn new(
        length: u64,
        open: impl Fn(u64) -> mpsc::Receiver<io::Result<Vec<u8>>> + Send + Sync + 'static,
    ) -> Arc<Generated> {
        Arc::new(Generated { length, open: Box::new(open), failure: watch::Sender::new(None) })
    }

    /// Waits until making it has failed, and returns why.
    pub async fn failed(&self) -> Arc<io::Error> {
        let failure = self.failure.subscribe().wait_for(Option::is_some).await.ok().and_then(|failure| failure.clone());
        match failure {
            Some(failure) => failure,
            // the sender is this value's own
            None => std::future::pending().await,
        }
    }
}

impl fmt::Debug for Generated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generated").field("length", &self.length).finish_non_exhaustive()
    }
}

impl Stored {
    fn length(&self) -> u64 {
        match self {
            Stored::Memory(bytes) => bytes.len() as u64,
            Stored::File(_, extent) => extent.length,
            Stored::Incoming(blob) => blob.length(),
            Stored::Generated(blob) => blob.length,
        }
    }
}

/// The contents of a registry: a manifest, and the blobs that it names.
#[derive(Debug)]
pub struct Contents {
    /// The manifest.
    pub manifest: Bytes,
    /// The configuration and the layers, by digest.
    pub blobs: HashMap<String, Stored>,
}

/// A registry that serves until it is dropped.
pub struct Registry {
    shared: Arc<RegistryState>,
    /// The cluster whose nodes pull.
    cluster: String,
    port: u16,
    accepting: JoinHandle<()>,
}

/// The state of a registry that its connections share.
struct RegistryState {
    digest: String,
    contents: Contents,
    /// The bytes that were sent to each node, by its repository.
    guests: Mutex<HashMap<String, Arc<AtomicU64>>>,
    /// The value of the header with which relays take blobs from [`PEERS`].
    peers: Option<String>,
}

/// The permission of one node to pull, until it is dropped.
pub struct Guest {
    shared: Arc<RegistryState>,
    repository: String,
    sent: Arc<AtomicU64>,
    reference: String,
}

impl Guest {
    /// Returns the name under which the node's engine pulls the image, where a port of the node leads to the registry.
    pub fn reference(&self, port: u16) -> String {
        format!("127.0.0.1:{port}/{}", self.reference)
    }

    /// Returns the repository, which has the token.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// Returns how many bytes of blobs were sent to the node.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.shared.guests().remove(&self.repository);
    }
}

impl RegistryState {
    fn guests(&self) -> MutexGuard<'_, HashMap<String, Arc<AtomicU64>>> {
        self.guests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the counter of what is sent to whom a request comes from, if that may have blobs.
    fn guest(&self, repository: &str, request: &Request<Incoming>) -> Option<Arc<AtomicU64>> {
        if repository != PEERS {
            return self.guests().get(repository).cloned();
        }
        let (expected, given) = (self.peers.as_ref()?, request.headers().get(AUTHORIZATION)?);
        // hashes, so that the time of the comparison says nothing about the token
        (sha256(expected.as_bytes()) == sha256(given.as_bytes())).then(Arc::default)
    }

    /// Answers a request. `is_known`: whether one with a token has come over its connection.
    fn answer(&self, request: &Request<Incoming>, is_known: &AtomicBool) -> Response<Payload> {
        let (path, is_head) = (request.uri().path(), request.method() == Method::HEAD);
        if !is_head && request.method() != Method::GET {
            return empty(StatusCode::METHOD_NOT_ALLOWED);
        }
        match route(path) {
            // engines ask whether this is a registry before they name anything
            Some(Route::Base) => full(Bytes::from_static(b"{}"), "application/json", is_head),
            Some(Route::Manifest { repository, digest }) => {
                let is_guest = self.guests().contains_key(repository);
                is_known.fetch_or(is_guest, Ordering::Relaxed);
                match is_guest && digest == self.digest {
                    true => full(self.contents.manifest.clone(), MEDIA_TYPE, is_head),
                    false => empty(StatusCode::NOT_FOUND),
                }
            }
            Some(Route::Blob { repository, digest }) => {
                let guest = self.guest(repository, request);
                is_known.fetch_or(guest.is_some(), Ordering::Relaxed);
                let range = request.headers().get(RANGE).and_then(|range| range.to_str().ok());
                match guest.zip(self.contents.blobs.get(digest)) {
                    Some((sent, blob)) => part(blob, range, is_head, sent),
                    None => empty(StatusCode::NOT_FOUND),
                }
            }
            None => empty(StatusCode::NOT_FOUND),
        }
    }
}

impl Registry {
    /// Starts a registry for the nodes of a cluster on 127.0.0.1.
    ///
    /// # Errors
    /// If this machine has no free port.
    pub async fn start(contents: Contents, cluster: &str) -> io::Result<Registry> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let mut registry = Registry::serve(vec![listener], contents, cluster, None);
        registry.port = port;
        Ok(registry)
    }

    /// Serves on these sockets. `peers`: the header's value with which relays take blobs.
    pub fn serve(listeners: Vec<TcpListener>, contents: Contents, cluster: &str, peers: Option<String>) -> Registry {
        let digest = sha256(&contents.manifest);
        let shared = Arc::new(RegistryState { digest, contents, guests: Mutex::default(), peers });
        let accept_on = |listener| accept(listener, Arc::clone(&shared));
        let all: Vec<_> = listeners.into_iter().map(accept_on).collect();
        let accepting = tokio::spawn(async { drop(join_all(all).await) });
        Registry { shared, cluster: cluster.to_owned(), port: 0, accepting }
    }

    /// Returns its port on this machine's 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Lets one node pull.
    pub fn admit(&self) -> Guest {
        self.admit_to(temporary_repository(&self.cluster, &random::token()))
    }

    /// Lets one node pull from this repository.
    pub fn admit_to(&self, repository: String) -> Guest {
        let (shared, sent) = (Arc::clone(&self.shared), Arc::new(AtomicU64::new(0)));
        shared.guests().insert(repository.clone(), Arc::clone(&sent));
        let reference = format!("{repository}@{}", shared.digest);
        Guest { shared, repository, sent, reference }
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        // with it its connections
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<RegistryState>) {
    let mut connections = JoinSet::new();
    let mut strangers: VecDeque<(AbortHandle, Arc<AtomicBool>)> = VecDeque::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let is_known = Arc::default();
                let served = connections.spawn(serve(stream, Arc::clone(&shared), Arc::clone(&is_known)));
                strangers.push_back((served, is_known));
            }
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
        while connections.join_next().now_or_never().flatten().is_some() {}
        strangers.retain(|(served, is_known)| !served.is_finished() && !is_known.load(Ordering::Relaxed));
        // an engine or a relay asks at once, so that the oldest is none of them
        if strangers.len() > STRANGERS
            && let Some((oldest, _)) = strangers.pop_front()
        {
            oldest.abort();
        }
    }
}

async fn serve(stream: TcpStream, shared: Arc<RegistryState>, is_known: Arc<AtomicBool>) {
    let answer = service_fn(|request| {
        let answer = shared.answer(&request, &is_known);
        async { Ok::<_, Infallible>(answer) }
    });
    let mut server = http1::Builder::new();
    // a client may close its own direction when it has asked
    server.timer(TokioTimer::new()).header_read_timeout(HEAD_LIMIT).half_close(true);
    // an engine that breaks off, or first tries TLS, is no fault
    let _ = server.serve_connection(TokioIo::new(stream), answer).await;
}

/// The resource that a path names.
#[derive(Debug, PartialEq, Eq)]
enum Route<'a> {
    Base,
    Manifest { repository: &'a str, digest: &'a str },
    Blob { repository: &'a str, digest: &'a str },
}

fn route(path: &str) -> Option<Route<'_>> {
    let rest = path.strip_prefix("/v2")?;
    if matches!(rest, "" | "/") {
        return Some(Route::Base);
    }
    let (rest, digest) = rest.strip_prefix('/')?.rsplit_once('/')?;
    let (repository, kind) = rest.rsplit_once('/')?;
    match kind {
        "manifests" => Some(Route::Manifest { repository, digest }),
        "blobs" => Some(Route::Blob { repository, digest }),
        _ => None,
    }
}

/// The part of a blob that is requested.
#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    All,
    Part { first: u64, length: u64 },
    Nothing,
}

/// Reads a Range field (RFC 9110, 14.2). One with several ranges is left out of account, as a server may.
fn wanted(range: Option<&str>, length: u64) -> Wanted {
    let Some((first, last)) = range.and_then(|range| range.strip_prefix("bytes=")?.split_once('-')) else {
        return Wanted::All;
    };
    let (first, last) = match (first.trim().parse::<u64>(), last.trim()) {
        (Ok(first), "") => (first, length.saturating_sub(1)),
        (Ok(first), last) => match last.parse::<u64>() {
            Ok(last) if last >= first => (first, last.min(length.saturating_sub(1))),
            _ => return Wanted::All,
        },
        (Err(_), last) => match last.parse::<u64>() {
            Ok(0) => return Wanted::Nothing,
            Ok(count) if first.trim().is_empty() => (length.saturating_sub(count), length.saturating_sub(1)),
            _ => return Wanted::All,
        },
    };
    if first < length { Wanted::Part { first, length: last - first + 1 } } else { Wanted::Nothing }
}

fn empty(status: StatusCode) -> Response<Payload> {
    finish(Response::builder().status(status), Payload::default())
}

fn full(bytes: Bytes, kind: &str, is_head: bool) -> Response<Payload> {
    let head = Response::builder().header(CONTENT_TYPE, kind).header(CONTENT_LENGTH, bytes.len());
    finish(head, if is_head { Payload::default() } else { Payload::of(bytes) })
}

fn part(blob: &Stored, range: Option<&str>, is_head: bool, sent: Arc<AtomicU64>) -> Response<Payload> {
    let all = blob.length();
    let (status, first, length) = match wanted(range, all) {
        Wanted::All => (StatusCode::OK, 0, all),
        Wanted::Part { first, length } => (StatusCode::PARTIAL_CONTENT, first, length),
        Wanted::Nothing => {
            let head = Response::builder().status(StatusCode::RANGE_NOT_SATISFIABLE);
            return finish(head.header(CONTENT_RANGE, format!("bytes */{all}")), Payload::default());
        }
    };
    let head = Response::builder().status(status).header(CONTENT_TYPE, "application/octet-stream");
    let mut head = head.header(ACCEPT_RANGES, "bytes").header(CONTENT_LENGTH, length);
    if status == StatusCode::PARTIAL_CONTENT {
        head = head.header(CONTENT_RANGE, format!("bytes {first}-{}/{all}", first + length - 1));
    }
    if is_head {
        return finish(head, Payload::default());
    }
    let payload = match blob {
        Stored::Memory(bytes) => {
            let at = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
            Payload::of(bytes.slice(at(first)..at(first + length)))
        }
        Stored::File(file, extent) => Payload::read(file, ArchiveExtent { offset: extent.offset + first, length }),
        Stored::Incoming(blob) => {
            let file = Some(blob.pieces(ArchiveExtent { offset: first, length }));
            Payload { left: length, file, ..Payload::default() }
        }
        Stored::Generated(blob) => Payload::generate(blob, ArchiveExtent { offset: first, length }),
    };
    finish(head, Payload { sent, ..payload })
}

fn finish(head: Builder, payload: Payload) -> Response<Payload> {
    // every field above is a number or a constant
    head.body(payload).unwrap_or_default()
}

/// The body of an answer.
#[derive(Debug, Default)]
pub(super) struct Payload {
    memory: Option<Bytes>,
    file: Option<mpsc::Receiver<io::Result<Bytes>>>,
    left: u64,
    sent: Arc<AtomicU64>,
}

impl Payload {
    fn of(bytes: Bytes) -> Payload {
        Payload { left: bytes.len() as u64, memory: Some(bytes), ..Payload::default() }
    }

    /// Reads a part of a file on a thread of its own.
    fn read(file: &Arc<File>, ArchiveExtent { mut offset, length }: ArchiveExtent) -> Payload {
        let (sender, receiver) = mpsc::channel(CHUNKS_AHEAD);
        let (file, end) = (Arc::clone(file), offset + length);
        tokio::task::spawn_blocking(move || {
            while offset < end {
                let mut chunk = vec![0; usize::try_from((end - offset).min(CHUNK)).unwrap_or_default()];
                let read = file.read_exact_at(&mut chunk, offset);
                offset += chunk.len() as u64;
                let is_broken = read.is_err();
                if sender.blocking_send(read.map(|()| chunk.into())).is_err() || is_broken {
                    break;
                }
            }
        });
        Payload { left: length, file: Some(receiver), ..Payload::default() }
    }

    /// Makes a part of a blob.
    fn generate(blob: &Arc<Generated>, ArchiveExtent { offset, length }: ArchiveExtent) -> Payload {
        let (sender, receiver) = mpsc::channel(CHUNKS_AHEAD);
        let (blob, mut pieces, mut left) = (Arc::clone(blob), (blob.open)(offset), length);
        tokio::spawn(async move {
            let is_whole = offset + length == blob.length;
            while left > 0 {
                let Some(mut piece) = pieces.recv().await else { break };
                if let Ok(bytes) = &mut piece {
                    bytes.truncate(usize::try_from(left).unwrap_or(usize::MAX));
                    left -= bytes.len() as u64;
                }
                // what made it may find out only at the end that the bytes are wrong
                if left == 0
                    && is_whole
                    && let Some(Err(error)) = pieces.recv().await
                {
                    piece = Err(error);
                }
                let piece = piece.map(Bytes::from).map_err(|error| {
                    let cut = io::Error::other(error.to_string());
                    blob.failure.send_replace(Some(Arc::new(error)));
                    cut
                });
                let is_broken = piece.is_err();
                if sender.send(piece).await.is_err() || is_broken {
                    break;
                }
            }
        });
        Payload { left: length, file: Some(receiver), ..Payload::default() }
    }
}

impl Body for Payload {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let next = match (self.memory.take(), &mut self.file) {
            (Some(bytes), _) => Some(Ok(bytes)),
            (None, Some(file)) => match file.poll_recv(cx) {
                Poll::Ready(next) => next,
                Poll::Pending => return Poll::Pending,
            },
            (None, None) => None,
        };
        let next = next.map(|read| {
            read.map(|bytes| {
                self.left = self.left.saturating_sub(bytes.len() as u64);
                self.sent.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                Frame::data(bytes)
            })
        });
        Poll::Ready(next)
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

#[cfg(test)]
mod tests;
