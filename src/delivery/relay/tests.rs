//! Relays on this machine, over real sockets.

use super::process;
use super::protocol::{RelayAnswer, RelayReport, RelayRequest, Upstream};
use crate::delivery::manifest::BlobDescription;
use crate::delivery::registry::{Contents, Generated, PEERS, Registry, Stored};
use crate::image::names::sha256;
use hyper::body::Bytes;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{
    AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, DuplexStream, ReadHalf, WriteHalf, duplex, split,
};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;

const TOKEN: &str = "Bearer of-this-push";
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const LIMIT: Duration = Duration::from_secs(20);

/// Stands in for what makes the tar stream of a parcel: ends with what it was given.
fn unpack(head: &[u8], contents: &mut dyn Read, out: &mut dyn Write) -> std::io::Result<()> {
    out.write_all(head)?;
    std::io::copy(contents, out)?;
    out.write_all(b"end")
}

/// The conversation with a relay.
struct Talk {
    input: WriteHalf<DuplexStream>,
    output: BufReader<ReadHalf<DuplexStream>>,
    own: u16,
    peers: u16,
}

impl Talk {
    /// Starts a relay with this directory for what it receives, which listens.
    async fn start(spool: &Path) -> Talk {
        let (here, there) = duplex(1 << 20);
        let (input, output) = split(there);
        let spool = spool.to_owned();
        tokio::spawn(async move { process::run(BufReader::new(input), output, &spool, unpack).await });
        let (output, input) = split(here);
        let mut talk = Talk { input, output: BufReader::new(output), own: 0, peers: 0 };
        let listen = RelayRequest::Listen {
            address: HERE,
            cluster: "lab".into(),
            repository: "engine/secret".into(),
            authorization: TOKEN.into(),
        };
        match talk.ask(&listen).await {
            RelayAnswer::Listening { engine, peers } => (talk.own, talk.peers) = (engine, peers),
            other => panic!("{other:?}"),
        }
        talk
    }

    async fn ask(&mut self, request: &RelayRequest) -> RelayAnswer {
        let line = serde_json::to_string(request).unwrap() + "\n";
        self.input.write_all(line.as_bytes()).await.unwrap();
        let mut answer = String::new();
        timeout(LIMIT, self.output.read_line(&mut answer)).await.unwrap().unwrap();
        serde_json::from_str(&answer).unwrap()
    }

    /// Lets it serve a stream, which it receives from these sources.
    async fn serve_stream(&mut self, stream: BlobDescription, upstreams: Vec<Upstream>) {
        let (manifest, config, layers, streams) = (String::new(), String::new(), Vec::new(), vec![stream]);
        let answer = self.ask(&RelayRequest::Serve { manifest, config, layers, streams, upstreams, stall_s: 1 }).await;
        assert!(matches!(answer, RelayAnswer::Done), "{answer:?}");
    }

    /// Lets it serve these layers, which it receives from these sources.
    async fn serve(&mut self, layers: &[&[u8]], upstreams: Vec<Upstream>) {
        let describe = |layer: &&[u8]| BlobDescription { digest: sha256(layer), length: layer.len() as u64 };
        let layers = layers.iter().map(describe).collect();
        let (manifest, config) = ("manifest".to_owned(), "{}".to_owned());
        let answer = self
            .ask(&RelayRequest::Serve { manifest, config, layers, streams: Vec::new(), upstreams, stall_s: 1 })
            .await;
        assert!(matches!(answer, RelayAnswer::Done), "{answer:?}");
    }

    async fn report(&mut self) -> RelayReport {
        match self.ask(&RelayRequest::Status).await {
            RelayAnswer::Status(report) => report,
            other => panic!("{other:?}"),
        }
    }

    /// Returns this relay as a source for other relays.
    fn upstream(&self, name: &str) -> Upstream {
        let authorization = Some(TOKEN.to_owned());
        Upstream { name: name.into(), address: (HERE, self.peers).into(), repository: PEERS.into(), authorization }
    }

    /// A layer as the engine gets it.
    async fn pull(&self, layer: &[u8]) -> Vec<u8> {
        get(self.own, &format!("/v2/engine/secret/blobs/{}", sha256(layer)), "").await.1
    }
}

/// Sends a request on a connection of its own; the head and the body of the answer.
async fn get(port: u16, path: &str, fields: &str) -> (String, Vec<u8>) {
    let exchange = async {
        let mut stream = TcpStream::connect((HERE, port)).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{fields}\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        // a body that is cut off ends too early
        let _ = stream.read_to_end(&mut answer).await;
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
        (String::from_utf8_lossy(&answer[..end]).to_lowercase(), answer[end + 4..].to_vec())
    };
    timeout(LIMIT, exchange).await.unwrap()
}

/// A registry that has these layers, and its address as a source.
async fn operator(layers: &[&[u8]]) -> (Registry, Upstream) {
    let blobs = layers.iter().map(|layer| (sha256(layer), Stored::Memory(Bytes::copy_from_slice(layer))));
    operator_of(blobs.collect()).await
}

async fn operator_of(blobs: HashMap<String, Stored>) -> (Registry, Upstream) {
    let contents = Contents { manifest: Bytes::from_static(b"manifest"), blobs };
    let listener = TcpListener::bind((HERE, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let registry = Registry::serve(vec![listener], contents, "lab", Some(TOKEN.into()));
    (registry, source("operator", address))
}

fn source(name: &str, address: SocketAddr) -> Upstream {
    Upstream { name: name.into(), address, repository: PEERS.into(), authorization: Some(TOKEN.into()) }
}

/// A source that answers each request with this head and body, and then with nothing; it does not close.
async fn stub(name: &str, head: String, body: Vec<u8>) -> Upstream {
    let listener = TcpListener::bind((HERE, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (head, body) = (head.clone(), body.clone());
            tokio::spawn(async move {
                let mut request = [0; 1024];
                let _ = stream.read(&mut request).await;
                let _ = stream.write_all(&[format!("HTTP/1.1 {head}\r\n\r\n").as_bytes(), &body].concat()).await;
                std::future::pending::<()>().await;
            });
        }
    });
    source(name, address)
}

fn layer(seed: u32, length: usize) -> Vec<u8> {
    let mut state = seed;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

fn spools<const N: usize>() -> [tempfile::TempDir; N] {
    std::array::from_fn(|_| tempfile::tempdir().unwrap())
}

#[tokio::test]
async fn a_chain_receives_each_layer_once() {
    let layers = [layer(1, 3_000_000), layer(2, 1), layer(3, 70_000)];
    let all: Vec<&[u8]> = layers.iter().map(Vec::as_slice).collect();
    let (_registry, first) = operator(&all).await;
    let dirs = spools::<4>();
    let mut chain = Vec::new();
    let mut upstream = first;
    for dir in &dirs {
        let mut relay = Talk::start(dir.path()).await;
        relay.serve(&all, vec![upstream]).await;
        upstream = relay.upstream("before");
        chain.push(relay);
    }
    for layer in &all {
        let pulls = chain.iter().map(|relay| relay.pull(layer));
        assert!(futures_util::future::join_all(pulls).await.iter().all(|pulled| pulled == layer));
    }
    let (_, manifest) = get(chain[3].own, &format!("/v2/engine/secret/manifests/{}", sha256(b"manifest")), "").await;
    assert_eq!(manifest, b"manifest");
    let sum: usize = all.iter().map(|layer| layer.len()).sum();
    for relay in &mut chain {
        let report = relay.report().await;
        assert_eq!((report.received, report.failures), (sum as u64, Vec::new()));
    }
    // what was not asked for is not received
    let dir = tempfile::tempdir().unwrap();
    let mut last = Talk::start(dir.path()).await;
    last.serve(&all, vec![chain[0].upstream("first")]).await;
    assert_eq!(last.pull(all[2]).await, all[2]);
    assert_eq!(last.report().await.received, all[2].len() as u64);
}

#[tokio::test]
async fn it_serves_while_it_receives_but_not_the_last_byte() {
    let layer = layer(4, 500_000);
    let begun = stub("slow", format!("200 OK\r\ncontent-length: {}", layer.len()), layer[..300_000].to_vec()).await;
    let [dir] = spools();
    let mut relay = Talk::start(dir.path()).await;
    relay.serve(&[&layer], vec![begun]).await;
    let mut stream = TcpStream::connect((HERE, relay.own)).await.unwrap();
    let path = format!("/v2/engine/secret/blobs/{}", sha256(&layer));
    stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes()).await.unwrap();
    let mut begin = vec![0; 250_000];
    timeout(LIMIT, stream.read_exact(&mut begin)).await.unwrap().unwrap();
    drop(stream);

    // all bytes are there, and one of them is wrong
    let mut wrong = layer.clone();
    wrong[100] ^= 1;
    let wrong = stub("wrong", format!("200 OK\r\ncontent-length: {}", layer.len()), wrong).await;
    let [dir] = spools();
    let mut relay = Talk::start(dir.path()).await;
    relay.serve(&[&layer], vec![wrong]).await;
    let pulled = relay.pull(&layer).await;
    assert!(pulled.len() < layer.len(), "an engine would take it for complete");
    assert!(relay.report().await.failures.iter().any(|text| text.starts_with("wrong sent other bytes than sha256:")));
}

#[tokio::test]
async fn another_source_continues_where_one_has_failed() {
    let layer = layer(5, 2_000_000);
    let (_registry, good) = operator(&[&layer]).await;
    let length = format!("200 OK\r\ncontent-length: {}", layer.len());
    let mut wrong = layer.clone();
    wrong[1_999_999] ^= 1;
    let closed = {
        let listener = TcpListener::bind((HERE, 0)).await.unwrap();
        source("closed", listener.local_addr().unwrap())
    };
    for (bad, failure, again) in [
        (closed, "closed: ", 0),
        (stub("missing", "404 Not Found\r\ncontent-length: 0".into(), Vec::new()).await, "missing: it answered 404", 0),
        (stub("stalls", length.clone(), layer[..1_500_000].to_vec()).await, "stalls: no byte within 1 s", 0),
        (stub("wrong", length, wrong).await, "wrong sent other bytes", layer.len()),
    ] {
        let [dir] = spools();
        let mut relay = Talk::start(dir.path()).await;
        relay.serve(&[&layer], vec![bad, good.clone()]).await;
        let mut pulled = relay.pull(&layer).await;
        if again > 0 {
            // what was wrong is not completed; an engine asks again
            assert_ne!(pulled, layer);
            pulled = relay.pull(&layer).await;
        }
        assert_eq!(pulled, layer, "{failure}");
        let report = relay.report().await;
        assert_eq!(report.received, (layer.len() + again) as u64, "{failure}");
        assert!(report.failures.iter().any(|text| text.starts_with(failure)), "{:?}", report.failures);
    }
}

#[tokio::test]
async fn a_better_source_is_used_again_after_it_has_stalled() {
    let layer = layer(9, 500_000);
    let length = format!("200 OK\r\ncontent-length: {}", layer.len());
    let (_registry, good) = operator(&[&layer]).await;
    // it accepts its first connection only when another one has come
    let gate = TcpListener::bind((HERE, 0)).await.unwrap();
    let better = source("better", gate.local_addr().unwrap());
    tokio::spawn(async move {
        let (_stalled, _) = gate.accept().await.unwrap();
        while let Ok((mut stream, _)) = gate.accept().await {
            let mut origin = TcpStream::connect(good.address).await.unwrap();
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut stream, &mut origin).await });
        }
    });
    // it never stalls, and never comes to the end
    let slow = TcpListener::bind((HERE, 0)).await.unwrap();
    let worse = source("worse", slow.local_addr().unwrap());
    let begin = layer.clone();
    tokio::spawn(async move {
        let (mut stream, _) = slow.accept().await.unwrap();
        stream.write_all(format!("HTTP/1.1 {length}\r\n\r\n").as_bytes()).await.unwrap();
        for byte in begin {
            if stream.write_all(&[byte]).await.is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    let [dir] = spools();
    let mut relay = Talk::start(dir.path()).await;
    relay.serve(&[&layer], vec![better, worse]).await;
    assert_eq!(relay.pull(&layer).await, layer);
    let report = relay.report().await;
    assert_eq!(
        (report.received, report.failures),
        (layer.len() as u64, vec!["better: no answer within 1 s".to_owned()])
    );
}

#[tokio::test]
async fn a_relay_whose_only_source_dies_in_the_middle_says_so() {
    let layer = layer(10, 500_000);
    let listener = TcpListener::bind((HERE, 0)).await.unwrap();
    let dying = source("dying", listener.local_addr().unwrap());
    let answer =
        [format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", layer.len()).as_bytes(), &layer[..300_000]].concat();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        assert_ne!(stream.read(&mut [0; 1024]).await.unwrap(), 0);
        stream.write_all(&answer).await.unwrap();
    });
    let [dir] = spools();
    let mut relay = Talk::start(dir.path()).await;
    relay.serve(&[&layer], vec![dying]).await;
    assert_eq!(relay.pull(&layer).await, layer[..300_000]);
    let report = relay.report().await;
    assert!(report.is_cut_off && report.received == 300_000, "{report:?}");
}

/// A source that sends these bytes from where it is asked, and closes; the head has the length of the whole.
async fn closing(name: &str, sent: Vec<u8>, length: usize) -> Upstream {
    let listener = TcpListener::bind((HERE, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = vec![0; 1024];
            let count = stream.read(&mut request).await.unwrap_or_default();
            let request = String::from_utf8_lossy(&request[..count]).to_lowercase();
            let range = request.split("bytes=").nth(1).and_then(|range| range.split('-').next()?.parse().ok());
            let first: usize = range.unwrap_or(0);
            let head = match first {
                0 => format!("200 OK\r\ncontent-length: {length}"),
                _ => format!(
                    "206 Partial Content\r\ncontent-length: {}\r\ncontent-range: bytes {first}-{}/{length}",
                    length - first,
                    length - 1
                ),
            };
            let rest = sent.get(first..).unwrap_or_default();
            let _ = stream.write_all(&[format!("HTTP/1.1 {head}\r\n\r\n").as_bytes(), rest].concat()).await;
        }
    });
    source(name, address)
}

#[tokio::test]
async fn a_source_is_not_blamed_for_bytes_of_another_one() {
    let layer = layer(11, 600_000);
    let (_registry, mut good) = operator(&[&layer]).await;
    good.name = "good".to_owned();
    let mut half = layer[..300_000].to_vec();
    half[100] ^= 1;
    let bad = closing("bad", half, layer.len()).await;
    let [dir] = spools();
    let mut relay = Talk::start(dir.path()).await;
    relay.serve(&[&layer], vec![bad, good]).await;
    let mut pulled = relay.pull(&layer).await;
    for _ in 0..3 {
        if pulled != layer {
            // what was wrong is not completed; an engine asks again
            pulled = relay.pull(&layer).await;
        }
    }
    assert_eq!(pulled, layer);
    let report = relay.report().await;
    assert!(!report.is_cut_off, "{report:?}");
    let both = format!("bad, good: one of them sent other bytes than {}", sha256(&layer));
    assert!(report.failures.contains(&both), "{report:?}");
    assert!(!report.failures.iter().any(|failure| failure.starts_with("good")), "{report:?}");
}

#[tokio::test]
async fn two_bad_sources_are_given_up() {
    let layer = layer(12, 200_000);
    let mut wrong = layer.clone();
    wrong[100] ^= 1;
    let sources = vec![
        closing("half", wrong[..100_000].to_vec(), layer.len()).await,
        closing("wrong", wrong.clone(), layer.len()).await,
    ];
    let [dir] = spools();
    let mut relay = Talk::start(dir.path()).await;
    relay.serve(&[&layer], sources).await;
    let given_up = async {
        while !relay.report().await.is_cut_off {
            relay.pull(&layer).await;
        }
    };
    timeout(LIMIT, given_up).await.expect("it goes on for ever");
}

#[tokio::test]
async fn a_source_that_works_again_is_of_use_again() {
    let layer = layer(13, 100_000);
    let (_registry, good) = operator(&[&layer]).await;
    let gate = TcpListener::bind((HERE, 0)).await.unwrap();
    let gated = source("gated", gate.local_addr().unwrap());
    let is_open = Arc::new(AtomicBool::new(false));
    let opened = Arc::clone(&is_open);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = gate.accept().await {
            if opened.load(Ordering::Relaxed) {
                let mut origin = TcpStream::connect(good.address).await.unwrap();
                tokio::spawn(async move { tokio::io::copy_bidirectional(&mut stream, &mut origin).await });
            }
        }
    });
    let [dir] = spools();
    let mut relay = Talk::start(dir.path()).await;
    relay.serve(&[&layer], vec![gated]).await;
    assert_ne!(relay.pull(&layer).await, layer);
    assert!(relay.report().await.is_cut_off);
    is_open.store(true, Ordering::Relaxed);
    assert_eq!(relay.pull(&layer).await, layer);
    assert!(!relay.report().await.is_cut_off);
}

#[tokio::test]
async fn what_a_stopped_relay_has_received_is_not_sent_again() {
    let layer = layer(6, 2_000_000);
    let name = sha256(&layer).trim_start_matches("sha256:").to_owned();
    let (_registry, good) = operator(&[&layer]).await;
    let mut damaged = layer[..1_000_000].to_vec();
    damaged[7] ^= 1;
    for (kept, received) in [
        (&layer[..1_200_000], 800_000),
        (&layer[..], 0),
        (&[&layer[..], b"more"].concat()[..], 2_000_000),
        (&damaged, 3_000_000),
    ] {
        let [dir] = spools();
        std::fs::write(dir.path().join(&name), kept).unwrap();
        std::fs::write(dir.path().join("0".repeat(64)), "of another image").unwrap();
        let mut relay = Talk::start(dir.path()).await;
        relay.serve(&[&layer], vec![good.clone()]).await;
        assert!(!dir.path().join("0".repeat(64)).exists());
        let mut pulled = relay.pull(&layer).await;
        if received > 2_000_000 {
            assert_ne!(pulled, layer);
            pulled = relay.pull(&layer).await;
        }
        assert_eq!(pulled, layer);
        assert_eq!(relay.report().await.received, received);
    }
}

#[tokio::test]
async fn others_get_nothing_from_a_relay() {
    let layer = layer(7, 1000);
    let (_registry, good) = operator(&[&layer]).await;
    let [dir] = spools();
    let mut relay = Talk::start(dir.path()).await;
    relay.serve(&[&layer], vec![good]).await;
    let blob = |repository: &str| format!("/v2/{repository}/blobs/{}", sha256(&layer));
    for fields in ["", "authorization: Bearer of-that-push\r\n", "authorization: Bearer \r\n"] {
        let (head, _) = get(relay.peers, &blob(PEERS), fields).await;
        assert!(head.starts_with("http/1.1 404"), "{fields}: {head}");
    }
    let (head, _) = get(relay.peers, &blob("engine/other"), "").await;
    assert!(head.starts_with("http/1.1 404"), "{head}");
    assert_eq!(relay.report().await.received, 0, "nothing was fetched for them");
    let (_, body) = get(relay.peers, &blob(PEERS), &format!("authorization: {TOKEN}\r\n")).await;
    assert_eq!(body, layer);
}

#[tokio::test]
async fn a_client_that_ends_its_own_direction_gets_the_rest() {
    let layer = layer(14, 3_000_000);
    let (_registry, good) = operator(&[&layer]).await;
    let mut stream = TcpStream::connect(good.address).await.unwrap();
    let path = format!("/v2/{PEERS}/blobs/{}", sha256(&layer));
    let fields = format!("host: x\r\nauthorization: {TOKEN}\r\nconnection: close\r\n");
    stream.write_all(format!("GET {path} HTTP/1.1\r\n{fields}\r\n").as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut answer = Vec::new();
    timeout(LIMIT, stream.read_to_end(&mut answer)).await.unwrap().unwrap();
    assert!(answer.ends_with(&layer));
}

#[tokio::test]
async fn a_relay_without_a_source_says_so_and_ends_with_its_input() {
    let [dir] = spools();
    let mut relay = Talk::start(dir.path()).await;
    let none = layer(8, 10);
    relay.serve(&[&none], Vec::new()).await;
    assert!(relay.pull(&none).await.is_empty());
    let report = relay.report().await;
    assert!(report.is_cut_off && report.failures[0].ends_with("no source has sent it"), "{report:?}");
    let digest = "sha256:../../etc/passwd".to_owned();
    let layers = vec![BlobDescription { digest, length: 1 }];
    let (manifest, config) = (String::new(), String::new());
    let answer = relay
        .ask(&RelayRequest::Serve { manifest, config, layers, streams: Vec::new(), upstreams: Vec::new(), stall_s: 1 })
        .await;
    assert!(
        matches!(&answer, RelayAnswer::Failed { cause } if cause.contains("is not a SHA-256 digest")),
        "{answer:?}"
    );
    let port = relay.own;
    drop(relay);
    let closed = async {
        while TcpStream::connect((HERE, port)).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(LIMIT, closed).await.expect("it serves although its input has ended");
}

/// A pipe in a relay's spool, and a thread that reads it to its end.
fn pipe(spool: &Path) -> std::thread::JoinHandle<Vec<u8>> {
    let path = spool.join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    std::thread::spawn(move || std::fs::read(path).unwrap())
}

#[tokio::test]
async fn a_stream_is_made_once_and_written_to_the_pipe_of_each_node() {
    let data = layer(9, 3_000_000);
    let head = 1000;
    let stream = BlobDescription { digest: sha256(&data[..head]), length: data.len() as u64 };
    let (bytes, made) = (data.clone(), Arc::new(Mutex::new(Vec::new())));
    let (noted, fails) = (Arc::clone(&made), Arc::new(AtomicBool::new(false)));
    let is_failing = Arc::clone(&fails);
    let generated = Generated::new(stream.length, move |offset| {
        noted.lock().unwrap().push(offset);
        let (sender, receiver) = mpsc::channel(100);
        let is_failing = is_failing.load(Ordering::Relaxed);
        let rest = &bytes[usize::try_from(offset).unwrap()..];
        for piece in rest.chunks(100_000) {
            sender.try_send(Ok(piece.to_vec())).unwrap();
        }
        if is_failing {
            sender.try_send(Err(std::io::Error::new(std::io::ErrorKind::InvalidData, "x: it changes"))).unwrap();
        }
        receiver
    });
    let blobs = HashMap::from([(stream.digest.clone(), Stored::Generated(Arc::clone(&generated)))]);
    let (_registry, operator) = operator_of(blobs).await;
    let feed_from = |spool: &Path| RelayRequest::Feed {
        stream: stream.digest.clone(),
        head: head as u64,
        pipe: spool.join("pipe"),
    };
    let cut = format!("200 OK\r\ncontent-length: {}", data.len());
    let cut = stub("cut", cut, data[..1_234_567].to_vec()).await;

    let dirs = spools::<3>();
    let (mut chain, mut pipes, mut upstreams) = (Vec::new(), Vec::new(), vec![operator.clone()]);
    for dir in &dirs {
        let mut relay = Talk::start(dir.path()).await;
        pipes.push(pipe(dir.path()));
        relay.serve_stream(stream.clone(), upstreams).await;
        upstreams = vec![relay.upstream("before")];
        assert!(matches!(relay.ask(&feed_from(dir.path())).await, RelayAnswer::Done));
        chain.push(relay);
    }
    let expected = [b"\n", &data[..], b"end"].concat();
    for pipe in pipes {
        let read = tokio::task::spawn_blocking(|| pipe.join().unwrap());
        assert!(timeout(LIMIT, read).await.unwrap().unwrap() == expected);
    }
    assert_eq!(*made.lock().unwrap(), [0]);

    // a source that fails is continued by the next one
    let [dir] = spools();
    let mut relay = Talk::start(dir.path()).await;
    let read = pipe(dir.path());
    relay.serve_stream(stream.clone(), vec![cut, operator.clone()]).await;
    assert!(matches!(relay.ask(&feed_from(dir.path())).await, RelayAnswer::Done));
    assert!(tokio::task::spawn_blocking(|| read.join().unwrap()).await.unwrap() == expected);
    assert_eq!(*made.lock().unwrap(), [0, 1_234_567]);

    // nothing is made of a stream with another head, however long its sources let it be
    let others = [&[0_u8; 2000][..], &data[2000..]].concat();
    let length = format!("200 OK\r\ncontent-length: {}", others.len());
    let altered = stub("altered", length, others).await;
    let [dir] = spools();
    let mut relay = Talk::start(dir.path()).await;
    let read = pipe(dir.path());
    relay.serve_stream(stream.clone(), vec![altered]).await;
    assert!(matches!(relay.ask(&feed_from(dir.path())).await, RelayAnswer::Done));
    assert_eq!(tokio::task::spawn_blocking(|| read.join().unwrap()).await.unwrap(), b"\n");
    assert_eq!(relay.report().await.failures, ["the data: other machines sent something else"]);

    // what turns out to be wrong at its end is cut off, and the cause is known
    fails.store(true, Ordering::Relaxed);
    let [dir] = spools();
    let mut relay = Talk::start(dir.path()).await;
    let read = pipe(dir.path());
    relay.serve_stream(stream.clone(), vec![operator]).await;
    assert!(matches!(relay.ask(&feed_from(dir.path())).await, RelayAnswer::Done));
    assert_eq!(generated.failed().await.to_string(), "x: it changes");
    let read = tokio::task::spawn_blocking(|| read.join().unwrap()).await.unwrap();
    assert!(read.len() < data.len() && !read.ends_with(b"end"), "{} bytes", read.len());

    // nothing but a pipe is written to
    std::fs::write(dir.path().join("file"), "").unwrap();
    let pipe = dir.path().join("file");
    let answer = relay.ask(&RelayRequest::Feed { stream: stream.digest, head: 0, pipe }).await;
    assert!(matches!(&answer, RelayAnswer::Failed { cause } if cause.ends_with("/file is not a pipe")), "{answer:?}");
    let answer =
        relay.ask(&RelayRequest::Feed { stream: sha256(b"other"), head: 0, pipe: dir.path().join("pipe") }).await;
    assert!(matches!(&answer, RelayAnswer::Failed { cause } if cause == "it has no such stream"), "{answer:?}");
}
