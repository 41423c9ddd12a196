use super::*;
use std::io::Write as _;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A registry with a blob in a file and one in memory, over a real socket.
async fn registry() -> (Registry, String, String) {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(b"before|0123456789|behind").unwrap();
    let (layer, config) = (sha256(b"0123456789"), sha256(b"{}"));
    let stored = Stored::File(Arc::new(file), ArchiveExtent { offset: 7, length: 10 });
    let blobs = HashMap::from([(layer.clone(), stored), (config.clone(), Stored::Memory(Bytes::from_static(b"{}")))]);
    let contents = Contents { manifest: Bytes::from_static(b"manifest"), blobs };
    (Registry::start(contents, "lab").await.unwrap(), layer, config)
}

/// Sends a request on a connection of its own; the head and the body of the answer.
async fn send(port: u16, method: &str, path: &str, fields: &str) -> (String, String) {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
    let request = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{fields}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_lowercase(), body.to_owned())
}

/// The path of a repository's blobs or manifests.
fn path(guest: &Guest, kind: &str, digest: &str) -> String {
    format!("/v2/{}/{kind}/{digest}", guest.repository)
}

#[tokio::test]
async fn an_engine_gets_what_it_needs_to_pull_by_digest() {
    let (registry, layer, config) = registry().await;
    let (port, guest) = (registry.port(), registry.admit());
    let digest = sha256(b"manifest");
    assert_eq!(guest.reference(7), format!("127.0.0.1:7/{}@{digest}", guest.repository));
    assert_eq!(send(port, "GET", "/v2/", "").await.1, "{}");
    let (head, body) = send(port, "GET", &path(&guest, "manifests", &digest), "").await;
    assert!(head.starts_with("http/1.1 200") && head.contains(MEDIA_TYPE) && body == "manifest", "{head}");
    assert_eq!(guest.sent(), 0, "only blobs count");
    assert_eq!(send(port, "GET", &path(&guest, "blobs", &config), "").await.1, "{}");
    assert_eq!(send(port, "GET", &path(&guest, "blobs", &layer), "").await.1, "0123456789");
    assert_eq!(guest.sent(), 12);
    for (kind, digest, length) in [("manifests", &digest, 8), ("blobs", &layer, 10)] {
        let (head, body) = send(port, "HEAD", &path(&guest, kind, digest), "").await;
        assert!(head.starts_with("http/1.1 200") && body.is_empty(), "{head}");
        assert!(head.contains(&format!("content-length: {length}")), "{head}");
    }
    assert_eq!(guest.sent(), 12);
}

#[tokio::test]
async fn a_part_of_a_blob_is_sent() {
    let (registry, layer, _) = registry().await;
    let (port, guest) = (registry.port(), registry.admit());
    let blob = path(&guest, "blobs", &layer);
    for (range, part, content) in
        [("3-5", "3-5/10", "345"), ("7-", "7-9/10", "789"), ("-2", "8-9/10", "89"), ("8-99", "8-9/10", "89")]
    {
        let (head, body) = send(port, "GET", &blob, &format!("range: bytes={range}\r\n")).await;
        assert!(head.starts_with("http/1.1 206") && head.contains(&format!("content-range: bytes {part}")), "{head}");
        assert_eq!(body, content, "{range}");
    }
    let (head, body) = send(port, "GET", &blob, "range: bytes=10-\r\n").await;
    assert!(head.starts_with("http/1.1 416") && body.is_empty(), "{head}");
}

#[tokio::test]
async fn others_get_nothing() {
    let (registry, layer, _) = registry().await;
    let (port, guest) = (registry.port(), registry.admit());
    let (of_guest, digest) = (path(&guest, "blobs", &layer), sha256(b"manifest"));
    let unknown = path(&guest, "blobs", &sha256(b"x"));
    let without = format!("/v2/app/blobs/{layer}");
    let wrong = of_guest.replace(&guest.repository, &temporary_repository("lab", &"0".repeat(32)));
    let other = path(&guest, "manifests", &sha256(b"x"));
    let no_token = format!("/v2/{}/manifests/{digest}", temporary_repository("lab", ""));
    for path in [&unknown, &without, &wrong, &other, &no_token, "/", "/v2/_catalog", "/v2/x/tags/list", "/v3/"] {
        let (head, body) = send(port, "GET", path, "").await;
        assert!(head.starts_with("http/1.1 404") && body.is_empty(), "{path}: {head}");
    }
    for method in ["POST", "PUT", "DELETE", "PATCH"] {
        let (head, _) = send(port, method, &of_guest, "").await;
        assert!(head.starts_with("http/1.1 405"), "{method}: {head}");
    }
    assert_ne!(registry.admit().repository, guest.repository, "each node has a token of its own");
    drop(guest);
    let (head, _) = send(port, "GET", &of_guest, "").await;
    assert!(head.starts_with("http/1.1 404"), "behind its pull: {head}");
}

#[tokio::test]
async fn strangers_keep_no_engine_out() {
    let (registry, layer, _) = registry().await;
    let (port, guest) = (registry.port(), registry.admit());
    let connect = async || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
    let mut engine = connect().await;
    let request = format!("HEAD {} HTTP/1.1\r\nhost: x\r\n\r\n", path(&guest, "blobs", &layer));
    let mut ask = async || {
        engine.write_all(request.as_bytes()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(engine.read_u8().await.unwrap());
        }
        String::from_utf8(head).unwrap()
    };
    assert!(ask().await.starts_with("HTTP/1.1 200"));
    let mut silent = Vec::new();
    for _ in 0..3 * STRANGERS {
        silent.push(connect().await);
    }
    assert_eq!(send(port, "GET", &path(&guest, "blobs", &layer), "").await.1, "0123456789");
    assert!(ask().await.starts_with("HTTP/1.1 200"), "a connection of one who knows the token is not ended");
    assert!(!matches!(silent[0].read(&mut [0]).await, Ok(1..)), "the oldest one is ended");
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_a_request_ends() {
    let (registry, ..) = registry().await;
    for beginning in ["", "GET /v2/ HTTP/1.1\r\nhost:"] {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, registry.port())).await.unwrap();
        stream.write_all(beginning.as_bytes()).await.unwrap();
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer).await;
        assert!(!answer.contains("200"), "{answer}");
    }
}

#[tokio::test]
async fn a_registry_that_is_dropped_serves_no_more() {
    let (registry, layer, _) = registry().await;
    let guest = registry.admit();
    let port = registry.port();
    let mut open = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
    send(port, "GET", &path(&guest, "blobs", &layer), "").await;
    drop(registry);
    let mut rest = Vec::new();
    assert!(!matches!(open.read_to_end(&mut rest).await, Ok(1..)), "a connection ends with it");
    assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.is_err());
}

#[tokio::test]
async fn a_file_that_became_shorter_ends_the_connection() {
    let file = tempfile::tempfile().unwrap();
    let layer = sha256(b"x");
    let stored = Stored::File(Arc::new(file), ArchiveExtent { offset: 0, length: 10 });
    let contents = Contents { manifest: Bytes::new(), blobs: HashMap::from([(layer.clone(), stored)]) };
    let registry = Registry::start(contents, "lab").await.unwrap();
    let guest = registry.admit();
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, registry.port())).await.unwrap();
    let request = format!("GET {} HTTP/1.1\r\nhost: x\r\n\r\n", path(&guest, "blobs", &layer));
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // the engine sees fewer bytes than were announced, and not a shorter layer
    let _ = stream.read_to_end(&mut answer).await;
    assert_eq!(guest.sent(), 0);
}

#[test]
fn paths_and_ranges() {
    assert_eq!(route("/v2/"), Some(Route::Base));
    assert_eq!(route("/v2/a/b/blobs/c"), Some(Route::Blob { repository: "a/b", digest: "c" }));
    assert_eq!(route("/v2/a/manifests/c"), Some(Route::Manifest { repository: "a", digest: "c" }));
    for other in ["/v2x", "/v2/a", "/v2/blobs/c", "/v2/a/tags/list"] {
        assert_eq!(route(other), None, "{other}");
    }
    for range in [None, Some("bytes=0-1,3-4"), Some("items=0-1"), Some("bytes=5-3"), Some("bytes=x-y")] {
        assert_eq!(wanted(range, 10), Wanted::All, "{range:?}");
    }
    assert_eq!(wanted(Some("bytes=0-0"), 10), Wanted::Part { first: 0, length: 1 });
    assert_eq!(wanted(Some("bytes=-20"), 10), Wanted::Part { first: 0, length: 10 });
    for range in ["bytes=-0", "bytes=10-", "bytes=99-100"] {
        assert_eq!(wanted(Some(range), 10), Wanted::Nothing, "{range}");
    }
    assert_eq!(wanted(Some("bytes=0-"), 0), Wanted::Nothing);
}
