//! A blob that is received into a file, from its beginning to its end, and read meanwhile.

use crate::image::archive::ArchiveExtent;
use crate::image::names::sha256_name;
use hyper::body::Bytes;
use sha2::{Digest as _, Sha256};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};

/// Bytes of a file that are hashed at once.
const CHUNK: u64 = 1 << 20;

/// Bytes that are read at once for others, and how often ahead of them.
const PIECE: u64 = 256 << 10;
const PIECES_AHEAD: usize = 4;

/// The progress of receiving a blob.
#[derive(Debug, Clone, Copy, Default)]
struct Reception {
    /// Set if a reader waits for it.
    is_wanted: bool,
    /// The bytes that are in the file.
    received: u64,
    /// The number of times that it was started again because its bytes were wrong.
    restarts: u32,
    /// Set if its digest was verified.
    is_verified: bool,
    /// Set if no source has it.
    has_failed: bool,
}

/// A blob that is received when a reader asks for it.
#[derive(Debug)]
pub struct Incoming {
    digest: String,
    length: u64,
    /// Set if the digest is that of its bytes, and not only a name.
    is_verifiable: bool,
    file: Arc<File>,
    state: watch::Sender<Reception>,
}

/// A writer that hashes a blob as its bytes arrive, if it can be verified.
pub struct Writer {
    blob: Arc<Incoming>,
    hasher: Option<Sha256>,
    offset: u64,
}

/// A reader of a blob, which waits for bytes that are not there yet.
pub struct Reader {
    blob: Arc<Incoming>,
    state: watch::Receiver<Reception>,
    restarts: u32,
}

impl Incoming {
    /// A blob of which the file may already have the beginning.
    ///
    /// # Errors
    /// If the file cannot be used.
    pub fn new(digest: &str, length: u64, file: File) -> io::Result<Arc<Incoming>> {
        Incoming::with(digest, length, file, true)
    }

    /// A blob that those who read it verify in their own way: the digest is only its name.
    ///
    /// # Errors
    /// If the file cannot be used.
    pub fn unverified(name: &str, length: u64, file: File) -> io::Result<Arc<Incoming>> {
        Incoming::with(name, length, file, false)
    }

    fn with(digest: &str, length: u64, file: File, is_verifiable: bool) -> io::Result<Arc<Incoming>> {
        let mut received = file.metadata()?.len();
        if received > length {
            file.set_len(0)?;
            received = 0;
        }
        let state = watch::Sender::new(Reception { received, ..Reception::default() });
        Ok(Arc::new(Incoming { digest: digest.to_owned(), length, is_verifiable, file: Arc::new(file), state }))
    }

    /// Returns how many bytes it has in the end.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Returns its digest.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Returns how messages name it.
    pub fn name(&self) -> &str {
        if self.is_verifiable { &self.digest } else { "the data" }
    }

    /// Waits until a reader asks for it.
    pub async fn wanted(&self) {
        // the sender is this blob's own
        let _ = self.state.subscribe().wait_for(|state| state.is_wanted).await;
    }

    /// Lets its readers fail. It is received again when the next one asks.
    pub fn fail(&self) {
        self.state.send_modify(|state| (state.is_wanted, state.has_failed) = (false, true));
    }

    /// Asks for it.
    pub fn reader(self: &Arc<Self>) -> Reader {
        self.state.send_modify(|state| (state.is_wanted, state.has_failed) = (true, false));
        let state = self.state.subscribe();
        let restarts = state.borrow().restarts;
        Reader { blob: Arc::clone(self), state, restarts }
    }

    /// Reads a part of it as it is received, piece by piece.
    pub fn pieces(
        self: &Arc<Self>,
        ArchiveExtent { mut offset, length }: ArchiveExtent,
    ) -> mpsc::Receiver<io::Result<Bytes>> {
        let (sender, receiver) = mpsc::channel(PIECES_AHEAD);
        let (blob, end) = (Arc::clone(self), offset + length);
        tokio::spawn(async move {
            let mut reader = blob.reader();
            while offset < end {
                let part = reader.read(offset, (end - offset).min(PIECE)).await;
                let is_broken = part.is_err();
                offset += part.as_ref().map_or(0, |part| part.len() as u64);
                if sender.send(part.map(Bytes::from)).await.is_err() || is_broken {
                    break;
                }
            }
        });
        receiver
    }

    /// Continues behind the bytes that the file has, which are hashed.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub async fn writer(self: &Arc<Self>) -> io::Result<Writer> {
        let (file, end) = (Arc::clone(&self.file), self.state.borrow().received);
        if !self.is_verifiable {
            return Ok(Writer { blob: Arc::clone(self), hasher: None, offset: end });
        }
        let hash = move || {
            let (mut hasher, mut offset) = (Sha256::new(), 0);
            while offset < end {
                let mut chunk = vec![0; usize::try_from((end - offset).min(CHUNK)).unwrap_or_default()];
                file.read_exact_at(&mut chunk, offset)?;
                hasher.update(&chunk);
                offset += chunk.len() as u64;
            }
            Ok::<_, io::Error>(hasher)
        };
        let hasher = tokio::task::spawn_blocking(hash).await.map_err(io::Error::other)??;
        Ok(Writer { blob: Arc::clone(self), hasher: Some(hasher), offset: end })
    }
}

impl Writer {
    /// Returns how many bytes there are.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns whether all bytes are there.
    pub fn is_full(&self) -> bool {
        self.offset == self.blob.length
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// If they cannot be written, or there are more than the blob has.
    pub async fn write(&mut self, bytes: Vec<u8>) -> io::Result<()> {
        // what has failed may be continued: the hash of what is there stays
        let (file, offset, mut hasher) = (Arc::clone(&self.blob.file), self.offset, self.hasher.clone());
        let count = bytes.len() as u64;
        if count > self.blob.length - offset {
            return Err(io::Error::other("more bytes arrived than the blob has"));
        }
        let write = move || {
            file.write_all_at(&bytes, offset)?;
            if let Some(hasher) = &mut hasher {
                hasher.update(&bytes);
            }
            Ok::<_, io::Error>(hasher)
        };
        self.hasher = tokio::task::spawn_blocking(write).await.map_err(io::Error::other)??;
        self.offset += count;
        let received = self.offset;
        self.blob.state.send_modify(|state| state.received = received);
        Ok(())
    }

    /// Compares the digest of all bytes, if it can be verified. If it is another one, the blob is begun again.
    ///
    /// # Errors
    /// If the file cannot be emptied.
    pub fn verify(&mut self) -> io::Result<bool> {
        let found = self.hasher.as_mut().map(|hasher| sha256_name(&std::mem::take(hasher).finalize()));
        if found.is_none_or(|found| found == self.blob.digest) {
            self.blob.state.send_modify(|state| state.is_verified = true);
            return Ok(true);
        }
        self.restart()?;
        Ok(false)
    }

    /// Drops all that was received.
    ///
    /// # Errors
    /// If the file cannot be changed.
    pub fn restart(&mut self) -> io::Result<()> {
        self.hasher = self.hasher.take().map(|_| Sha256::new());
        self.offset = 0;
        self.blob.state.send_modify(|state| (state.received, state.restarts) = (0, state.restarts + 1));
        self.blob.file.set_len(0)
    }
}

impl Reader {
    /// Returns at most `most` bytes behind an offset, as soon as there are some. The last byte comes only of a verified
    /// blob: nothing that reads all of it has read something else.
    ///
    /// # Errors
    /// If no source has the blob, or what was read of it so far was wrong.
    pub async fn read(&mut self, offset: u64, most: u64) -> io::Result<Vec<u8>> {
        let length = self.blob.length;
        let readable =
            |state: &Reception| if state.is_verified { length } else { state.received.min(length.saturating_sub(1)) };
        let restarts = self.restarts;
        let is_ready = |state: &Reception| readable(state) > offset || state.has_failed || state.restarts != restarts;
        let state = *self.state.wait_for(is_ready).await.map_err(io::Error::other)?;
        let wrong = || io::Error::other("the blob is received again");
        if state.restarts != restarts {
            return Err(wrong());
        }
        if readable(&state) <= offset {
            return Err(io::Error::other("no source has the blob"));
        }
        let count = usize::try_from((readable(&state) - offset).min(most)).unwrap_or_default();
        let file = Arc::clone(&self.blob.file);
        let read = move || {
            let mut bytes = vec![0; count];
            file.read_exact_at(&mut bytes, offset).map(|()| bytes)
        };
        let bytes = tokio::task::spawn_blocking(read).await.map_err(io::Error::other)??;
        if self.state.borrow().restarts == restarts { Ok(bytes) } else { Err(wrong()) }
    }
}
