//! The process of a relay: it answers requests on its standard input until that ends, and serves meanwhile.

use super::fetch::{Sources, part};
use super::package::root;
use super::protocol::{ExportResult, MAX_SILENCE, RelayAnswer, RelayReport, RelayRequest};
use crate::delivery::incoming::Incoming;
use crate::delivery::manifest::BlobDescription;
use crate::delivery::registry::{Contents, Guest, Payload, Registry, Stored};
use crate::delivery::source::Source;
use crate::image::archive::ArchiveExtent;
use crate::image::names::sha256;
use crate::runtime::EXPORT_SILENCE;
use hyper::StatusCode;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper_util::rt::TokioIo;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};

/// The most bytes of a request: the configuration of an image is in one.
const MAX_REQUEST: u64 = 64 << 20;

/// The longest time until a program on the node reads from its pipe, and the pause between two attempts.
const PIPE_LIMIT: Duration = Duration::from_secs(20);
const PIPE_PAUSE: Duration = Duration::from_millis(20);

/// Bytes that the pipe to that program holds, where root may have so many.
#[cfg(target_os = "linux")]
const PIPE_SIZE: usize = 1 << 20;

/// Makes the tar stream of a parcel of data from its head and what is behind that.
pub type Unpack = fn(&[u8], &mut dyn Read, &mut dyn Write) -> io::Result<()>;

/// A relay. What it does ends when it is dropped.
struct RelayProcess {
    spool: PathBuf,
    unpack: Unpack,
    /// The ports on which it listens, until it has something to serve.
    listening: Option<Listening>,
    serving: Option<(Registry, Guest)>,
    /// The registry that serves its own image.
    package: Option<(Registry, Guest)>,
    sources: Arc<Sources>,
    streams: HashMap<String, Arc<Incoming>>,
    receiving: JoinSet<()>,
    exported: Arc<AtomicU64>,
    export: Option<JoinHandle<io::Result<Source>>>,
}

struct Listening {
    sockets: Vec<TcpListener>,
    cluster: String,
    repository: String,
    authorization: String,
}

/// Runs a relay until its input ends, or nothing comes for [`MAX_SILENCE`]. `spool`: the directory for what it
/// receives.
///
/// # Errors
/// If its streams break.
pub async fn run(
    mut input: impl AsyncBufRead + Unpin,
    mut output: impl AsyncWrite + Unpin,
    spool: &Path,
    unpack: Unpack,
) -> io::Result<()> {
    let mut relay = RelayProcess::new(spool, unpack);
    loop {
        let mut line = String::new();
        let mut limited = tokio::io::AsyncReadExt::take(&mut input, MAX_REQUEST);
        match timeout(MAX_SILENCE, limited.read_line(&mut line)).await {
            Ok(Ok(1..)) => {}
            Ok(Ok(0)) | Err(_) => return Ok(()),
            Ok(Err(error)) => return Err(error),
        }
        let answered = match serde_json::from_str(&line) {
            Ok(request) => relay.answer(request).await,
            Err(error) => Err(io::Error::other(error)),
        };
        let answer = answered.unwrap_or_else(|error| RelayAnswer::Failed { cause: error.to_string() });
        let mut line = serde_json::to_vec(&answer)?;
        line.push(b'\n');
        output.write_all(&line).await?;
        output.flush().await?;
    }
}

impl RelayProcess {
    fn new(spool: &Path, unpack: Unpack) -> RelayProcess {
        RelayProcess {
            spool: spool.to_owned(),
            unpack,
            listening: None,
            serving: None,
            package: None,
            sources: Arc::default(),
            streams: HashMap::new(),
            receiving: JoinSet::new(),
            exported: Arc::default(),
            export: None,
        }
    }

    async fn answer(&mut self, request: RelayRequest) -> io::Result<RelayAnswer> {
        match request {
            RelayRequest::Listen { address, cluster, repository, authorization } => {
                let engine = TcpListener::bind((IpAddr::from(Ipv4Addr::LOCALHOST), 0)).await?;
                let peers = TcpListener::bind((address, 0)).await?;
                let ports = (engine.local_addr()?.port(), peers.local_addr()?.port());
                let sockets = vec![engine, peers];
                self.listening = Some(Listening { sockets, cluster, repository, authorization });
                Ok(RelayAnswer::Listening { engine: ports.0, peers: ports.1 })
            }
            RelayRequest::OfferPackage { address, libraries } => self.offer_package(address, libraries).await,
            RelayRequest::Export { socket, image } => {
                let (spool, exported) = (self.spool.clone(), Arc::clone(&self.exported));
                self.export = Some(tokio::spawn(export(socket, image, spool, exported)));
                Ok(RelayAnswer::Done)
            }
            RelayRequest::Serve { manifest, config, layers, streams, upstreams, stall_s } => {
                let sources = Arc::new(Sources::new(upstreams, Duration::from_secs(stall_s)));
                self.sources = Arc::clone(&sources);
                let config = Stored::Memory(config.into());
                let mut blobs = HashMap::new();
                if let Stored::Memory(bytes) = &config {
                    blobs.insert(sha256(bytes), config.clone());
                }
                let all = || layers.iter().chain(&streams);
                let digests: Vec<&str> = all().map(|blob| blob.digest.as_str()).collect();
                clean(&self.spool, &digests)?;
                for (BlobDescription { digest, length }, is_stream) in
                    layers.iter().map(|layer| (layer, false)).chain(streams.iter().map(|stream| (stream, true)))
                {
                    let path = self.spool.join(file_name(digest)?);
                    let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
                    let blob = match is_stream {
                        true => Incoming::unverified(digest, *length, file)?,
                        false => Incoming::new(digest, *length, file)?,
                    };
                    self.receiving.spawn(Arc::clone(&sources).provide(Arc::clone(&blob)));
                    if is_stream {
                        self.streams.insert(digest.clone(), Arc::clone(&blob));
                    }
                    blobs.insert(digest.clone(), Stored::Incoming(blob));
                }
                self.serve(Contents { manifest: manifest.into(), blobs })?;
                Ok(RelayAnswer::Done)
            }
            RelayRequest::Feed { stream, head, pipe } => self.feed(stream, head, &pipe).await,
            RelayRequest::Status => Ok(RelayAnswer::Status(self.report().await?)),
        }
    }

    /// Lets the engines of other nodes get this relay's image.
    async fn offer_package(&mut self, address: IpAddr, libraries: Vec<PathBuf>) -> io::Result<RelayAnswer> {
        let archive = tokio::task::spawn_blocking(move || root(&libraries)).await.map_err(io::Error::other)??;
        let digest = sha256(&archive);
        let blobs = HashMap::from([(digest.clone(), Stored::Memory(archive.into()))]);
        let listener = TcpListener::bind((address, 0)).await?;
        let package = listener.local_addr()?;
        let registry = Registry::serve(vec![listener], Contents { manifest: Bytes::new(), blobs }, "", None);
        let guest = registry.admit();
        let url = format!("http://{package}/v2/{}/blobs/{digest}", guest.repository());
        self.package = Some((registry, guest));
        Ok(RelayAnswer::Offered { url })
    }

    /// Lets a thread write a stream to a pipe as its bytes come. What reads the pipe learns only by its end that the
    /// stream was cut off.
    async fn feed(&self, stream: String, head: u64, pipe: &Path) -> io::Result<RelayAnswer> {
        let blob = self.streams.get(&stream).cloned().ok_or_else(|| io::Error::other("it has no such stream"))?;
        let mut pipe = open_pipe(pipe).await?;
        let extent = ArchiveExtent { offset: 0, length: blob.length() };
        let mut pieces = BlobReader { receiver: blob.pieces(extent), current: Bytes::new() };
        let (sources, unpack) = (Arc::clone(&self.sources), self.unpack);
        // not one of the runtime's: nothing waits for a program that reads no more
        std::thread::spawn(move || {
            // what reads waits for this byte, see data/apply.sh
            let written = pipe.write_all(b"\n").and_then(|()| read_head(&mut pieces, head, &stream));
            let written = written.and_then(|head| unpack(&head, &mut pieces, &mut pipe));
            // that program has a message of its own when it ends early
            if let Some(error) = written.err().filter(|error| error.kind() != io::ErrorKind::BrokenPipe) {
                sources.report(format!("{}: {error}", blob.name()));
            }
        });
        Ok(RelayAnswer::Done)
    }

    fn serve(&mut self, contents: Contents) -> io::Result<()> {
        let listening = self.listening.take().ok_or_else(|| io::Error::other("it does not listen"))?;
        let Listening { sockets, cluster, repository, authorization } = listening;
        let registry = Registry::serve(sockets, contents, &cluster, Some(authorization));
        let guest = registry.admit_to(repository);
        self.serving = Some((registry, guest));
        Ok(())
    }

    async fn report(&mut self) -> io::Result<RelayReport> {
        let mut image = None;
        if let Some(export) = self.export.take_if(|export| export.is_finished()) {
            let exported = export.await.map_err(io::Error::other)?;
            image = Some(match exported {
                Ok(source) => {
                    self.serve(source.contents())?;
                    ExportResult::Image(source.description())
                }
                Err(error) => ExportResult::Failed { cause: error.to_string() },
            });
        }
        let (received, exported) = (self.sources.received(), self.exported.load(Ordering::Relaxed));
        let (is_cut_off, failures) = (self.sources.are_closed(), self.sources.failures());
        Ok(RelayReport { received, is_cut_off, exported, failures, image })
    }
}

/// The bytes of a blob as they come.
struct BlobReader {
    receiver: mpsc::Receiver<io::Result<Bytes>>,
    current: Bytes,
}

impl Read for BlobReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() {
            match self.receiver.blocking_recv() {
                Some(piece) => self.current = piece?,
                None => return Ok(0),
            }
        }
        let count = buffer.len().min(self.current.len());
        buffer[..count].copy_from_slice(&self.current.split_to(count));
        Ok(count)
    }
}

/// Reads the first `length` bytes of a stream, and compares them with its name, which came over ssh: all that follows
/// goes by them.
fn read_head(stream: &mut impl Read, length: u64, name: &str) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    stream.take(length).read_to_end(&mut head)?;
    if sha256(&head) == name { Ok(head) } else { Err(io::Error::other("other machines sent something else")) }
}

/// Opens a pipe as soon as something reads it.
async fn open_pipe(path: &Path) -> io::Result<File> {
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let begun = Instant::now();
    let pipe = loop {
        match File::options().write(true).custom_flags(nonblocking).open(path) {
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NXIO.raw_os_error()) => {
                if begun.elapsed() > PIPE_LIMIT {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "no program on the node reads the data"));
                }
                sleep(PIPE_PAUSE).await;
            }
            opened => break opened?,
        }
    };
    if !pipe.metadata()?.file_type().is_fifo() {
        return Err(io::Error::other(format!("{} is not a pipe", path.display())));
    }
    rustix::fs::fcntl_setfl(&pipe, rustix::fs::OFlags::empty())?;
    #[cfg(target_os = "linux")]
    let _ = rustix::pipe::fcntl_setpipe_size(&pipe, PIPE_SIZE);
    Ok(pipe)
}

/// Removes files of other images.
fn clean(spool: &Path, digests: &[&str]) -> io::Result<()> {
    let kept: Vec<&str> = digests.iter().filter_map(|digest| file_name(digest).ok()).collect();
    for entry in std::fs::read_dir(spool)? {
        let entry = entry?;
        // no pipe
        if entry.file_type()?.is_file() && !kept.iter().any(|name| entry.file_name() == *name) {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Returns the name of a blob's file: the digits of its digest.
fn file_name(digest: &str) -> io::Result<&str> {
    let is_hash = |name: &&str| name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    let invalid = || io::Error::other(format!("{digest:?} is not a SHA-256 digest"));
    digest.strip_prefix("sha256:").filter(is_hash).ok_or_else(invalid)
}

/// Spools the image of the engine at a socket to a file without a name.
async fn export(socket: String, image: String, spool: PathBuf, exported: Arc<AtomicU64>) -> io::Result<Source> {
    let engine = UnixStream::connect(&socket).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(engine)).await.map_err(io::Error::other)?;
    let connection = tokio::spawn(connection);
    let request = hyper::Request::get(format!("/images/{image}/get")).header(HOST, "docker").body(Payload::default());
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, "the engine sends nothing");
    let sent = timeout(EXPORT_SILENCE, sender.send_request(request.map_err(io::Error::other)?)).await;
    let mut response = sent.map_err(late)?.map_err(io::Error::other)?;
    if response.status() != StatusCode::OK {
        return Err(io::Error::other(format!("the engine answered {}", response.status())));
    }
    clean(&spool, &[])?;
    let mut file = tempfile::tempfile_in(&spool)?;
    while let Some(part) = timeout(EXPORT_SILENCE, part(response.body_mut())).await.map_err(late)?? {
        let count = part.len() as u64;
        let written = tokio::task::spawn_blocking(move || file.write_all(&part).map(|()| file));
        file = written.await.map_err(io::Error::other)??;
        exported.fetch_add(count, Ordering::Relaxed);
    }
    connection.abort();
    Source::from_spool(file, &image).await.map_err(|error| io::Error::other(error.to_string()))
}
