//! Receives blobs from the best of several sources that works, from the byte where another one has failed.

use super::protocol::Upstream;
use crate::delivery::incoming::{Incoming, Writer};
use crate::delivery::registry::Payload;
use hyper::body::{Body as _, Incoming as Response};
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONTENT_RANGE, HOST, RANGE};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

/// The longest time until a source accepts a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// The number of times that all sources may fail, one after the other, without a byte.
const ROUNDS: usize = 3;

/// The pause before the second attempt of all sources.
const PAUSE: Duration = Duration::from_millis(500);

/// After how many times the longest stall a source that has failed is used again: one that only stalls costs a fifth of
/// the time.
const REST: u32 = 4;

/// Bytes that are written at once.
const BATCH: usize = 1 << 20;

/// The sources of a relay.
#[derive(Debug, Default)]
pub struct Sources {
    all: Vec<Upstream>,
    stall: Duration,
    /// When each has failed last.
    failed: Mutex<Vec<Option<Instant>>>,
    received: AtomicU64,
    /// Set if all have failed when a blob was asked for, and none has sent anything since.
    are_closed: AtomicBool,
    failures: Mutex<Vec<String>>,
}

impl Sources {
    /// Sources, the best first. `stall`: the longest time without a byte of one.
    pub fn new(all: Vec<Upstream>, stall: Duration) -> Sources {
        let failed = Mutex::new(vec![None; all.len()]);
        Sources { all, stall, failed, ..Sources::default() }
    }

    fn failed(&self) -> MutexGuard<'_, Vec<Option<Instant>>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the position of the best source that has not failed lately; if all have, of the one that did so first.
    fn choose(&self) -> usize {
        let failed = self.failed();
        let works = |at: &Option<Instant>| at.is_none_or(|at| at.elapsed() >= self.stall * REST);
        let first = || (0..failed.len()).min_by_key(|position| failed[*position]);
        failed.iter().position(works).or_else(first).unwrap_or_default()
    }

    fn fail(&self, position: usize, failure: String) {
        self.failed()[position] = Some(Instant::now());
        self.report(failure);
    }

    /// Returns the bytes that were received.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Returns whether none of them has sent a blob that was asked for, nor anything since.
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
                    self.are_closed.fetch_or(error.kind() != io::ErrorKind::StorageFull, Ordering::Relaxed);
                    blob.fail();
                }
            }
        }
    }

    /// Receives a blob, from several sources if one breaks off. If their bytes together are wrong, it is not known
    /// whose were: from then on each source has to send all of it.
    async fn receive(&self, blob: &Arc<Incoming>) -> io::Result<()> {
        let mut writer = blob.writer().await?;
        if writer.is_full() && writer.verify()? {
            return Ok(());
        }
        // which sources its bytes are from; what was there before may be of any
        let mut senders: BTreeSet<Option<usize>> = (writer.offset() > 0).then_some(None).into_iter().collect();
        let (mut attempts, mut restarts, mut is_alone) = (0, 0, false);
        let most = ROUNDS * self.all.len();
        // with two bad sources, each attempt has bytes
        while attempts < most && restarts < most {
            if attempts > 0 && attempts % self.all.len() == 0 || restarts > 0 && writer.offset() == 0 {
                tokio::time::sleep(PAUSE).await;
            }
            let (position, before) = (self.choose(), writer.offset());
            let name = &self.all[position].name;
            let taken = self.take(position, blob, &mut writer, is_alone).await;
            let has_bytes = writer.offset() > before;
            senders.extend(has_bytes.then_some(Some(position)));
            attempts = if has_bytes { 0 } else { attempts + 1 };
            let is_full = writer.is_full();
            if is_full && writer.verify()? {
                return Ok(());
            }
            match taken {
                _ if is_full && senders.len() < 2 => {
                    self.fail(position, format!("{name} sent other bytes than {}", blob.digest()));
                }
                _ if is_full => {
                    let name = |sender: &Option<usize>| sender.map_or("an earlier relay", |at| &self.all[at].name);
                    let all: Vec<&str> = senders.iter().map(name).collect();
                    self.report(format!("{}: one of them sent other bytes than {}", all.join(", "), blob.digest()));
                    is_alone = true;
                }
                // a better one may send again
                Ok(()) => {}
                // no other source helps
                Err(error) if error.kind() == io::ErrorKind::StorageFull => return Err(error),
                Err(error) => {
                    self.fail(position, format!("{name}: {error}"));
                    if is_alone && has_bytes {
                        writer.restart()?;
                    }
                }
            }
            if writer.offset() == 0 {
                restarts += usize::from(!senders.is_empty());
                senders.clear();
            }
        }
        Err(io::Error::other("no source has sent it"))
    }

    /// Receives what is missing of a blob from one source: all of it, unless a better one is to be tried again, which
    /// may only be if the blob may be of several. `is_alone`: it may not.
    async fn take(&self, position: usize, blob: &Incoming, writer: &mut Writer, is_alone: bool) -> io::Result<()> {
        let (source, began) = (&self.all[position], Instant::now());
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
            // a source sends again
            self.are_closed.fetch_and(part.is_none(), Ordering::Relaxed);
            batch.extend_from_slice(part.as_deref().unwrap_or_default());
            // others wait for it: no more is kept than comes at once
            if part.is_none() || batch.len() >= BATCH / 4 {
                writer.write(std::mem::take(&mut batch)).await?;
            }
            if part.is_none() {
                break;
            }
            if position > 0 && !is_alone && began.elapsed() >= self.stall * REST {
                writer.write(batch).await?;
                connection.abort();
                return Ok(());
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
