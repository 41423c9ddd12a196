//! A port of this machine that leads to a socket on a node, through a program that runs there: no user of the node can
//! read what passes, or connect.

use super::Process;
use super::tunnel::{TunnelFrame, follow, write_frames};
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

/// The most bytes of a connection that the program sends before it hears that they have been passed on, and the number
/// of the frames that say so (`scripts/node/tunnel.py`).
const WINDOW: usize = 1 << 20;
const TAKEN: u32 = 1 << 31;

/// The most connections at the same time: a browser has six to a server, and one for each kernel and terminal.
const MOST_CONNECTIONS: usize = 256;

/// Frames that wait for the network.
const FRAMES_AHEAD: usize = 4;

/// A port of this machine that leads to a node until this is dropped.
#[derive(Debug)]
pub struct Reach {
    passing: JoinHandle<io::Result<()>>,
}

impl Drop for Reach {
    fn drop(&mut self) {
        // with its standard input the program ends
        self.passing.abort();
    }
}

/// Connections to the port by their numbers.
type ForwardedConnections = Arc<Mutex<HashMap<u32, ForwardedConnection>>>;

/// The receiver of a connection's frames, and the number of their bytes that have not been passed on.
struct ForwardedConnection {
    frames: mpsc::UnboundedSender<Vec<u8>>,
    waiting: Arc<AtomicUsize>,
}

impl Reach {
    /// Passes on what connects to a port of this machine. The program is `tunnel.py` as a module, and what comes from
    /// it now are frames.
    pub fn open(listener: TcpListener, mut process: Process, output: impl AsyncRead + Unpin + Send + 'static) -> Reach {
        let passing = tokio::spawn(async move {
            let input = process.take_stdin();
            let connections = ForwardedConnections::default();
            let (sender, frames) = mpsc::channel::<TunnelFrame>(FRAMES_AHEAD);
            let passed = tokio::select! {
                ended = write_frames(input, frames) => ended,
                ended = read(output, &connections) => ended,
                () = accept(listener, sender, &connections) => Ok(()),
            };
            drop::<Process>(process);
            passed
        });
        Reach { passing }
    }

    /// Waits until nothing is passed on any more, and returns why: the connection to the node was lost, or the program
    /// there has ended.
    pub async fn ended(&mut self) -> String {
        match (&mut self.passing).await {
            Ok(Err(error)) => error.to_string(),
            Ok(Ok(())) => "what leads to it has ended".to_owned(),
            Err(error) => error.to_string(),
        }
    }
}

fn lock(connections: &ForwardedConnections) -> MutexGuard<'_, HashMap<u32, ForwardedConnection>> {
    connections.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Accepts connections, and numbers them.
async fn accept(listener: TcpListener, sender: mpsc::Sender<TunnelFrame>, connections: &ForwardedConnections) {
    let (mut number, mut passing) = (0, JoinSet::new());
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // this machine has no file or memory for it
            sleep(Duration::from_secs(1)).await;
            continue;
        };
        while passing.try_join_next().is_some() {}
        if lock(connections).len() >= MOST_CONNECTIONS {
            continue;
        }
        number += 1;
        let (frames, received) = mpsc::unbounded_channel();
        let waiting = Arc::<AtomicUsize>::default();
        lock(connections).insert(number, ForwardedConnection { frames, waiting: Arc::clone(&waiting) });
        let (sender, connections) = (sender.clone(), Arc::clone(connections));
        passing.spawn(async move {
            pass(number, stream, received, &sender, &waiting).await;
            lock(&connections).remove(&number);
        });
    }
}

/// Hands on what comes from the node, which waits for no connection.
async fn read(mut output: impl AsyncRead + Unpin, connections: &ForwardedConnections) -> io::Result<()> {
    loop {
        let (number, count) = (output.read_u32().await?, output.read_u16().await?);
        let mut bytes = vec![0; count.into()];
        output.read_exact(&mut bytes).await?;
        let connections = lock(connections);
        let Some(connection) = connections.get(&number) else { continue };
        if connection.waiting.fetch_add(bytes.len(), Ordering::Relaxed) + bytes.len() > WINDOW {
            return Err(io::Error::other("the node sends more than it may"));
        }
        let _ = connection.frames.send(bytes);
    }
}

/// Passes a connection on until both directions have ended, or nothing more is taken.
async fn pass(
    number: u32,
    stream: TcpStream,
    mut received: mpsc::UnboundedReceiver<Vec<u8>>,
    sender: &mpsc::Sender<TunnelFrame>,
    waiting: &AtomicUsize,
) {
    let (from, mut to) = stream.into_split();
    let mut sending = std::pin::pin!(follow(number, from, sender.clone()));
    let (mut sends, mut takes) = (true, true);
    while sends || takes {
        let bytes = tokio::select! {
            () = &mut sending, if sends => {
                sends = false;
                continue;
            }
            bytes = received.recv() => bytes,
        };
        match bytes {
            Some(bytes) if bytes.is_empty() && takes => {
                takes = false;
                let _ = to.shutdown().await;
            }
            Some(bytes) if takes && to.write_all(&bytes).await.is_ok() => {
                waiting.fetch_sub(bytes.len(), Ordering::Relaxed);
                let count = u32::try_from(bytes.len()).unwrap_or_default();
                let _ = sender.send((number | TAKEN, count.to_be_bytes().to_vec())).await;
            }
            _ => {
                for _ in 0..2 {
                    let _ = sender.send((number, Vec::new())).await;
                }
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::Inventory;
    use crate::secret::Secret;
    use crate::transport::node::{RunAs, Transport, TransportKind};
    use futures_util::future::join_all;
    use std::net::Ipv4Addr;
    use tokio::net::UnixListener;
    use tokio::time::timeout;

    const LIMIT: Duration = Duration::from_secs(30);

    /// `tunnel.py` as `notebook.py page` uses it.
    const MODULE: &str = "import sys, types
sys.stdin.buffer.readline()
tunnel = types.ModuleType('tunnel')
exec(sys.argv[1], tunnel.__dict__)
print('ready', flush=True)
tunnel.reach(sys.argv[2])";

    /// Answers each connection's first byte, a count, with so many times 100,000 bytes of it; for 255 it waits for the
    /// end of the connection, and reports it.
    fn serve(listener: UnixListener) -> mpsc::Receiver<()> {
        let (sender, ended) = mpsc::channel(1);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let sender = sender.clone();
                tokio::spawn(async move {
                    let Ok(count) = stream.read_u8().await else { return };
                    if count == 255 {
                        assert_eq!(stream.read_u8().await.ok(), None);
                        sender.send(()).await.unwrap();
                    }
                    let _ = stream.write_all(&vec![count; usize::from(count) * 100_000]).await;
                });
            }
        });
        ended
    }

    #[tokio::test]
    async fn connections_lead_to_the_socket_and_one_that_takes_nothing_delays_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let mut ended = serve(UnixListener::bind(&path).unwrap());
        let inventory = Inventory::local("here", "image");
        let opening = Transport::open_as_login(&inventory.cluster, &inventory.nodes[0], TransportKind::Local);
        let transport = opening.await.unwrap();
        let argv = ["python3", "-I", "-c", MODULE, super::super::tunnel::PROGRAM, path.to_str().unwrap()];
        let start = async || transport.spawn(RunAs::Login, &argv, "open it").await.unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let connect = async || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
        let reach = transport.reach(listener, start().await, &Secret::plain("-"), "open it").await.unwrap();
        let ask = async |count: u8| {
            let mut stream = connect().await;
            stream.write_u8(count).await.unwrap();
            stream.shutdown().await.unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await.unwrap();
            assert!(answer.len() == usize::from(count) * 100_000 && answer.iter().all(|byte| *byte == count));
        };
        // it takes a byte of 20 MB
        let mut slow = connect().await;
        slow.write_u8(200).await.unwrap();
        slow.read_u8().await.unwrap();
        timeout(Duration::from_secs(10), join_all((1..=30).map(ask))).await.expect("the others wait for it");
        // what was not taken arrives
        let mut rest = Vec::new();
        timeout(LIMIT, slow.read_to_end(&mut rest)).await.unwrap().unwrap();
        assert_eq!(rest.len(), 20_000_000 - 1);
        let mut gone = connect().await;
        gone.write_u8(255).await.unwrap();
        drop(gone);
        timeout(LIMIT, ended.recv()).await.unwrap().unwrap();

        // a server that has ended ends the connections, and no more
        std::fs::remove_file(&path).unwrap();
        let mut refused = connect().await;
        refused.write_u8(1).await.unwrap();
        assert_eq!(timeout(LIMIT, refused.read_u8()).await.unwrap().ok(), None);
        drop(reach);
        let closed = async {
            while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.is_ok() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(LIMIT, closed).await.expect("the port is closed");

        let failing = ["sh", "-c", "read -r line; echo first >&2; echo 'it has no socket' >&2; exit 1"];
        let process = transport.spawn(RunAs::Login, &failing, "open it").await.unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let failed = transport.reach(listener, process, &Secret::plain("-"), "open it").await.unwrap_err();
        assert!(failed.to_string().contains("it has no socket"), "{failed}");
    }
}
