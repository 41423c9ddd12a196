//! The protocol between hvdctl and a relay, a line for each message: every request has one answer.

use crate::delivery::manifest::BlobDescription;
use crate::delivery::source::ImageDescription;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// The longest time without a request after which a relay ends.
pub const MAX_SILENCE: Duration = Duration::from_secs(60);

/// A source from which a relay may receive blobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upstream {
    /// Its name, for messages.
    pub name: String,
    /// The address on which it listens.
    pub address: SocketAddr,
    /// The repository there.
    pub repository: String,
    /// The value of the header that it asks for.
    pub authorization: Option<String>,
}

/// A request to a relay.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum RelayRequest {
    /// Listen on 127.0.0.1 for the node's engine, and on this address for other relays.
    Listen {
        /// The node's address for the other nodes.
        address: IpAddr,
        /// The cluster's name.
        cluster: String,
        /// The repository from which the engine pulls, with its token.
        repository: String,
        /// The value of the header that other relays send.
        authorization: String,
    },
    /// Let the engines of other nodes get the image of the relay itself.
    OfferPackage {
        /// The node's address for the other nodes.
        address: IpAddr,
        /// The libraries in that image.
        libraries: Vec<PathBuf>,
    },
    /// Spool the image of the engine at this socket, and serve it.
    Export {
        /// The path of the engine's socket.
        socket: String,
        /// The image's name.
        image: String,
    },
    /// Serve this image or these streams, and receive of it what is asked for.
    Serve {
        /// Its manifest.
        manifest: String,
        /// Its configuration.
        config: String,
        /// Its layers.
        layers: Vec<BlobDescription>,
        /// Blobs that are no part of an image, each with a name that has the form of a digest. Those who read them
        /// verify them.
        streams: Vec<BlobDescription>,
        /// The sources, the best first.
        upstreams: Vec<Upstream>,
        /// The longest time without a byte of a source, in seconds.
        stall_s: u64,
    },
    /// Write the parcel of data that a stream is to a pipe as a tar stream, and receive it for that.
    Feed {
        /// The name of the stream: the digest of its head.
        stream: String,
        /// The bytes of its head.
        head: u64,
        /// The pipe, which a program on the node reads.
        pipe: PathBuf,
    },
    /// Report what happened.
    Status,
}

/// The answer of a relay.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum RelayAnswer {
    /// It listens on these ports.
    Listening {
        /// For the engine.
        engine: u16,
        /// For other relays.
        peers: u16,
    },
    /// Engines get the archive of the relay's image there.
    Offered {
        /// The URL.
        url: String,
    },
    /// The request is done or, for an export, begun.
    Done,
    /// The progress of the relay.
    Status(RelayReport),
    /// The request failed.
    Failed {
        /// The reason of the failure.
        cause: String,
    },
}

/// The progress of a relay.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct RelayReport {
    /// The bytes that it has received from other machines.
    pub received: u64,
    /// Set if no source has sent a blob that was asked for.
    pub is_cut_off: bool,
    /// The bytes that the node's engine has exported.
    pub exported: u64,
    /// Sources that failed since the last report, each with the cause.
    pub failures: Vec<String>,
    /// The result of the export, reported once after its end.
    pub image: Option<ExportResult>,
}

/// The result of an export.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum ExportResult {
    /// The image.
    Image(ImageDescription),
    /// The export failed.
    Failed {
        /// The cause.
        cause: String,
    },
}
