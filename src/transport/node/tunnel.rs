//! A port of a node that leads to this machine through a program there, where sshd forwards none.

use super::{Process, RunAs, Transport};
use crate::error::NodeError;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tokio::time::timeout;

/// The program on the node; it describes the frames.
pub const PROGRAM: &str = include_str!("../../scripts/node/tunnel.py");

/// Starts it with the first Python of these. The second one is that of the system where users have none (RHEL 8).
const START: &str = r#"for python in python3 /usr/libexec/platform-python; do
  if command -v "$python" >/dev/null; then exec "$python" -I -c "$1"; fi
done
echo "there is no python3, which could forward it instead" >&2; exit 127"#;

/// The most bytes of the line with the port.
const LONGEST_LINE: u64 = 1024;

/// The most bytes of a frame.
const MOST: usize = 65_535;

/// The longest time in which the registry takes what a connection brings.
const STALL: Duration = Duration::from_secs(20);

/// Frames that wait for the network.
const FRAMES_AHEAD: usize = 4;

/// The longest time without a frame to the program. It ends after 60 s.
const PERIOD: Duration = Duration::from_secs(20);

/// A port of a node's 127.0.0.1 that leads to this machine until it is dropped.
#[derive(Debug)]
pub struct Tunnel {
    /// The port on the node.
    pub port: u16,
    passing: JoinHandle<io::Result<()>>,
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        // with its standard input the program ends
        self.passing.abort();
    }
}

/// Bytes of a connection; none when its sender has ended its direction, and once more when it takes nothing more
/// either.
pub(super) type TunnelFrame = (u32, Vec<u8>);

/// A connection to the port.
struct TunnelConnection {
    /// `None` when the node has ended its direction.
    write: Option<OwnedWriteHalf>,
    /// Passes the other direction on.
    reading: AbortHandle,
}

impl Tunnel {
    /// Lets a free port of a node lead to a port of this machine, both on 127.0.0.1. What passes has a connection to
    /// the node of its own.
    ///
    /// # Errors
    /// If the node cannot be reached, or cannot run the program.
    pub async fn open(transport: &Transport, port: u16, operation: &str) -> Result<Tunnel, NodeError> {
        let transport = transport.reconnected().await?;
        let mut process = transport.spawn(RunAs::Login, &["sh", "-c", START, "sh", PROGRAM], operation).await?;
        let errors = process.collect_stderr();
        let mut output = BufReader::new(std::mem::replace(&mut process.stdout, Box::pin(tokio::io::empty())));
        let mut line = String::new();
        transport.within((&mut output).take(LONGEST_LINE).read_line(&mut line), operation, transport.limit()).await?;
        let Ok(listening) = line.trim().parse() else {
            let printed = timeout(transport.limit(), errors).await.ok().and_then(Result::ok).unwrap_or_default();
            return Err(NodeError::failed(transport.node(), operation, printed.trim()));
        };
        let passing = tokio::spawn(async move {
            let input = process.take_stdin();
            let passed = pass(input, output, port).await;
            drop::<(Process, Transport)>((process, transport));
            passed
        });
        Ok(Tunnel { port: listening, passing })
    }
}

/// Passes connections on until a stream breaks.
async fn pass(input: impl AsyncWrite + Unpin, output: impl AsyncRead + Unpin, port: u16) -> io::Result<()> {
    let (sender, frames) = mpsc::channel::<TunnelFrame>(FRAMES_AHEAD);
    tokio::select! {
        ended = write_frames(input, frames) => ended,
        ended = connect(output, sender, port) => ended,
    }
}

/// Writes frames to the program, and one now and then that says that hvdctl is there.
pub(super) async fn write_frames(
    mut input: impl AsyncWrite + Unpin,
    mut frames: mpsc::Receiver<TunnelFrame>,
) -> io::Result<()> {
    loop {
        let (number, bytes) = timeout(PERIOD, frames.recv()).await.ok().flatten().unwrap_or_default();
        let count = u16::try_from(bytes.len()).map_err(io::Error::other)?;
        let header = [&number.to_be_bytes()[..], &count.to_be_bytes()].concat();
        input.write_all(&[header, bytes].concat()).await?;
        input.flush().await?;
    }
}

/// Connects to the port for each connection on the node, and writes there what comes of it.
async fn connect(mut output: impl AsyncRead + Unpin, sender: mpsc::Sender<TunnelFrame>, port: u16) -> io::Result<()> {
    // `None` for one that has ended
    let mut connections: HashMap<u32, Option<TunnelConnection>> = HashMap::new();
    let mut following = JoinSet::new();
    loop {
        let (number, count) = (output.read_u32().await?, output.read_u16().await?);
        let mut bytes = vec![0; count.into()];
        output.read_exact(&mut bytes).await?;
        while following.try_join_next().is_some() {}
        if let Entry::Vacant(new) = connections.entry(number) {
            let connected = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.ok().map(|stream| {
                let (read, write) = stream.into_split();
                TunnelConnection { write: Some(write), reading: following.spawn(follow(number, read, sender.clone())) }
            });
            if new.insert(connected).is_none() {
                end(number, &sender).await;
            }
        }
        let Some(Some(connection)) = connections.get_mut(&number) else { continue };
        let is_over = match connection.write.take() {
            // without it this direction ends, and the other one goes on
            Some(_) if bytes.is_empty() => false,
            Some(mut write) => {
                // the other connections wait meanwhile
                let is_written = matches!(timeout(STALL, write.write_all(&bytes)).await, Ok(Ok(())));
                connection.write = Some(write);
                !is_written
            }
            None => true,
        };
        if is_over {
            connection.reading.abort();
            connections.insert(number, None);
            end(number, &sender).await;
        }
    }
}

/// Tells the node that nothing comes from a connection any more, and nothing is taken.
async fn end(number: u32, sender: &mpsc::Sender<TunnelFrame>) {
    for _ in 0..2 {
        let _ = sender.send((number, Vec::new())).await;
    }
}

/// Passes on what comes from a connection until it ends.
pub(super) async fn follow(number: u32, mut read: OwnedReadHalf, sender: mpsc::Sender<TunnelFrame>) {
    loop {
        let mut bytes = Vec::with_capacity(MOST);
        let count = (&mut read).take(MOST as u64).read_buf(&mut bytes).await.unwrap_or(0);
        if sender.send((number, bytes)).await.is_err() || count == 0 {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::Inventory;
    use crate::transport::node::TransportKind;
    use futures_util::future::join_all;
    use tokio::net::TcpListener;

    const LIMIT: Duration = Duration::from_secs(30);

    /// First byte from a client that closes its direction before it reads.
    const HALF: u8 = 50;

    /// A server that answers each connection's first byte, a count, with so many times 100,000 bytes of it, and closes
    /// it. It hears of the end of a connection that it does not close.
    ///
    /// It answers [`HALF`] only when the client has closed its direction.
    async fn serve(ended: mpsc::Sender<()>) -> u16 {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let ended = ended.clone();
                tokio::spawn(async move {
                    let count = stream.read_u8().await.unwrap();
                    if count == 0 {
                        assert_eq!(stream.read_u8().await.ok(), None);
                        ended.send(()).await.unwrap();
                    }
                    if count == HALF {
                        assert_eq!(stream.read_u8().await.ok(), None);
                    }
                    let _ = stream.write_all(&vec![count; usize::from(count) * 100_000]).await;
                });
            }
        });
        port
    }

    #[tokio::test]
    async fn connections_to_its_port_are_passed_on_until_it_is_dropped() {
        let (sender, mut ended) = mpsc::channel(1);
        let port = serve(sender).await;
        let inventory = Inventory::local("here", "image");
        let opening = Transport::open_as_login(&inventory.cluster, &inventory.nodes[0], TransportKind::Local);
        let tunnel = Tunnel::open(&opening.await.unwrap(), port, "forward a port").await.unwrap();
        assert_ne!(tunnel.port, port);
        let ask = async |count: u8| {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, tunnel.port)).await.unwrap();
            stream.write_u8(count).await.unwrap();
            if count == HALF {
                stream.shutdown().await.unwrap();
            }
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await.unwrap();
            assert!(
                answer.len() == usize::from(count) * 100_000 && answer.iter().all(|byte| *byte == count),
                "{count}"
            );
        };
        timeout(LIMIT, join_all((1..=20).chain([HALF]).map(ask))).await.unwrap();

        // one that goes away in the middle of an answer is not written to, and no other connection waits for it
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, tunnel.port)).await.unwrap();
        stream.write_u8(200).await.unwrap();
        stream.read_u8().await.unwrap();
        drop(stream);
        timeout(LIMIT, ask(3)).await.unwrap();

        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, tunnel.port)).await.unwrap();
        stream.write_u8(0).await.unwrap();
        drop(stream);
        timeout(LIMIT, ended.recv()).await.unwrap().unwrap();

        let port = tunnel.port;
        drop(tunnel);
        let closed = async {
            while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(LIMIT, closed).await.expect("the program ends with its standard input");
    }
}
