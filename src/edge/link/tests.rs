//! Programs of this machine, fed as those of a node are.

use super::*;
use tokio::sync::mpsc;

/// `feed` with 1 MiB in four pieces, which is more than a pipe takes.
async fn feed(script: &str, limits: (u64, u64)) -> Result<Output, std::io::Error> {
    let link = Link {
        node: "here".into(),
        way: Way::Local,
        access: Access { root: Root::AtOnce, engine: Engine::Direct(String::new()) },
        sessions: Arc::new(Semaphore::new(SESSIONS)),
        limit: Duration::from_secs(60),
        control: None,
    };
    let argv = ["sh", "-c", script].map(str::to_owned).to_vec();
    let process = link.start(&Start { argv, much: true, ..Start::default() }, AtDrop::Kills).await?;
    let (sender, pieces) = mpsc::channel(4);
    for _ in 0..4 {
        sender.send(Ok(Arc::new(vec![0; 256 << 10]))).await.unwrap();
    }
    drop(sender);
    process.feed(b"", pieces, (Duration::from_secs(limits.0), Duration::from_secs(limits.1)), |_| {}).await
}

#[tokio::test]
async fn a_program_that_takes_nothing_or_does_not_end_is_not_waited_for_for_ever() {
    let fed = feed("wc -c; sleep 2", (1, 30)).await.unwrap();
    assert_eq!((fed.code, String::from_utf8_lossy(&fed.stdout).trim()), (0, "1048576"));
    let error = feed("exec sleep 60", (1, 60)).await.unwrap_err();
    assert_eq!(error.to_string(), "nothing went on for 1 s");
    let error = feed("cat >/dev/null; exec sleep 60", (20, 1)).await.unwrap_err();
    assert_eq!(error.to_string(), "nothing went on for 1 s");
}
