//! Programs of this machine, fed as those of a node are.

use super::*;
use crate::inventory::Inventory;
use tokio::sync::mpsc;

/// `feed` with 2 MiB in eight pieces, which is more than a pipe takes.
async fn feed(script: &str, limits: (u64, u64)) -> Result<Output, std::io::Error> {
    let inventory = Inventory::local("here", "image");
    let opened = Transport::open_as_login(&inventory.cluster, &inventory.nodes[0], TransportKind::Local);
    let transport = opened.await.unwrap();
    let process = transport.start(RunAs::Login, &["sh", "-c", script]).await?;
    let (sender, pieces) = mpsc::channel(8);
    for _ in 0..8 {
        sender.send(Ok(vec![0; 256 << 10])).await.unwrap();
    }
    drop(sender);
    process.feed(pieces, (Duration::from_secs(limits.0), Duration::from_secs(limits.1)), |_| {}).await
}

#[tokio::test]
async fn a_program_that_takes_nothing_or_does_not_end_is_not_waited_for_for_ever() {
    let fed = feed("wc -c; sleep 2", (1, 30)).await.unwrap();
    assert_eq!((fed.code, String::from_utf8_lossy(&fed.stdout).trim()), (0, "2097152"));
    let error = feed("exec sleep 60", (1, 60)).await.unwrap_err();
    assert_eq!(error.to_string(), "no progress for 1 s");
    let error = feed("cat >/dev/null; exec sleep 60", (20, 1)).await.unwrap_err();
    assert_eq!(error.to_string(), "no progress for 1 s");
}
