//! Receives blobs from the first of several sources, and from the next one if that fails: from the byte where it stood.

use super::protocol::Upstream;
use crate::image::incoming::{Incoming, Writer};
use crate::image::registry::Payload;
use hyper::body::{Body as _, Incoming as Response};
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONTENT_RANGE, HOST, RANGE};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The longest time until a source accepts a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// How often all sources may fail, one after the other, without a byte.
const ROUNDS: usize = 3;

/// The pause before the second attempt of all sources.
const PAUSE: Duration = Duration::from_millis(500);

/// Bytes that are written at once.
const BATCH: usize = 1 << 20;

/// The sources of a relay.
#[derive(Debug, Default)]
pub struct Sources {
    all: Vec<Upstream>,
    stall: Duration,
    /// The position of the one that is used: those before it have failed.
    current: AtomicUsize,
    received: AtomicU64,
    /// Whether all have failed before anything was received.
    are_closed: AtomicBool,
    failures: Mutex<Vec<String>>,
}

impl Sources {
    /// Sources, the best first. `stall`: the longest time without a byte of one.
    pub fn new(all: Vec<Upstream>, stall: Duration) -> Sources {
        Sources { all, stall, ..Sources::default() }
    }

    /// Returns the bytes that were received.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Returns whether none of them has sent anything when a blob was asked for.
    pub fn are_closed(&self) -> bool {
        self.are_closed.load(Ordering::Relaxed)
    }

    /// Takes what has failed since the last call.
    pub fn failures(&self) -> Vec<String> {
        std::mem::take(&mut *self.failures.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds what has failed.
    pub(super) fn report(&self, failure: String) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        if !failures.contains(&failure) {
            failures.push(failure);
        }
    }

    /// Receives a blob as often as it is asked for and not there.
    pub async fn provide(self: Arc<Self>, blob: Arc<Incoming>) {
        loop {
            blob.wanted().await;
            match self.receive(&blob).await {
                Ok(()) => return,
                Err(error) => {
                    self.report(format!("{}: {error}", blob.name()));
                    self.are_closed.fetch_or(self.received() == 0, Ordering::Relaxed);
                    blob.fail();
                }
            }
        }
    }

    async fn receive(&self, blob: &Arc<Incoming>) -> io::Result<()> {
        let mut writer = blob.writer().await?;
        let mut attempts = 0;
        while !(writer.is_full() && writer.verify()?) {
            if attempts >= ROUNDS * self.all.len() {
                return Err(io::Error::other("no source has sent it"));
            }
            if attempts > 0 && attempts % self.all.len() == 0 {
                tokio::time::sleep(PAUSE).await;
            }
            let (current, before) = (self.current.load(Ordering::Relaxed), writer.offset());
            let source = &self.all[current];
            let taken = self.take(source, blob, &mut writer).await;
            let is_wrong = taken.is_ok() && !writer.verify()?;
            match taken {
                Ok(()) if !is_wrong => return Ok(()),
                Ok(()) => self.report(format!("{} sent other bytes than {}", source.name, blob.digest())),
                // no other source helps
                Err(error) if error.kind() == io::ErrorKind::StorageFull => return Err(error),
                Err(error) => self.report(format!("{}: {error}", source.name)),
            }
            attempts = if writer.offset() > before { 0 } else { attempts + 1 };
            // another blob may have left it already
            let next = (current + 1) % self.all.len();
            let _ = self.current.compare_exchange(current, next, Ordering::Relaxed, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Receives what is missing of a blob from one source.
    async fn take(&self, source: &Upstream, blob: &Incoming, writer: &mut Writer) -> io::Result<()> {
        let late = |what: &str, limit: Duration| {
            io::Error::new(io::ErrorKind::TimedOut, format!("{what} within {} s", limit.as_secs()))
        };
        let connecting = timeout(CONNECT_LIMIT, TcpStream::connect(source.address)).await;
        let stream = connecting.map_err(|_| late("no connection", CONNECT_LIMIT))??;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        let connection = tokio::spawn(connection);
        let request = request(source, blob.digest(), writer.offset())?;
        let answered = timeout(self.stall, sender.send_request(request)).await;
        let mut response = answered.map_err(|_| late("no answer", self.stall))?.map_err(io::Error::other)?;
        let begins = response.headers().get(CONTENT_RANGE).and_then(|range| range.to_str().ok());
        let is_part = begins.is_some_and(|range| range.starts_with(&format!("bytes {}-", writer.offset())));
        match response.status() {
            StatusCode::OK if writer.offset() == 0 => {}
            StatusCode::PARTIAL_CONTENT if is_part => {}
            status => return Err(io::Error::other(format!("it answered {status}"))),
        }
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            let part = match timeout(self.stall, part(response.body_mut())).await {
                Ok(Ok(part)) => part,
                other => {
                    // what has come is used
                    writer.write(batch).await?;
                    return Err(other.map_or_else(|_| late("no byte", self.stall), |read| read.unwrap_err()));
                }
            };
            self.received.fetch_add(part.as_ref().map_or(0, |part| part.len() as u64), Ordering::Relaxed);
            batch.extend_from_slice(part.as_deref().unwrap_or_default());
            // others wait for it: no more is kept than comes at once
            if part.is_none() || batch.len() >= BATCH / 4 {
                writer.write(std::mem::take(&mut batch)).await?;
            }
            if part.is_none() {
                break;
            }
        }
        connection.abort();
        let ended = || io::Error::new(io::ErrorKind::UnexpectedEof, "it sent too little");
        if writer.is_full() { Ok(()) } else { Err(ended()) }
    }
}

fn request(source: &Upstream, digest: &str, offset: u64) -> io::Result<Request<Payload>> {
    let mut request =
        Request::get(format!("/v2/{}/blobs/{digest}", source.repository)).header(HOST, source.address.to_string());
    if offset > 0 {
        request = request.header(RANGE, format!("bytes={offset}-"));
    }
    if let Some(authorization) = &source.authorization {
        request = request.header(AUTHORIZATION, authorization);
    }
    request.body(Payload::default()).map_err(io::Error::other)
}

/// Returns the next bytes of a body, `None` behind its end.
pub(super) async fn part(body: &mut Response) -> io::Result<Option<hyper::body::Bytes>> {
    loop {
        match poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await {
            None => return Ok(None),
            Some(Err(error)) => return Err(io::Error::other(error)),
            // trailers are left out of account
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => return Ok(Some(data)),
                Err(_) => continue,
            },
        }
    }
}
