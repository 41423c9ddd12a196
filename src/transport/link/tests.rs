//! Programs of this machine, fed as those of a node are.

use super::*;
use tokio::sync::mpsc;

fn here() -> Link {
    Link {
        node: "here".into(),
        way: Way::Local,
        access: Access { root: Root::Login, engine: Engine::Direct(String::new()), shell: String::new() },
        sessions: Arc::new(Semaphore::new(1)),
        limit: Duration::from_secs(60),
        noise: Arc::default(),
    }
}

/// `feed` with 2 MiB in eight pieces, which is more than a pipe takes.
async fn feed(script: &str, limits: (u64, u64)) -> Result<Output, std::io::Error> {
    let link = here();
    let argv = ["sh", "-c", script].map(str::to_owned).to_vec();
    let process = link.start(&Start { argv, ..Start::default() }, AtDrop::Kills).await?;
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
    assert_eq!(error.to_string(), "nothing went on for 1 s");
    let error = feed("cat >/dev/null; exec sleep 60", (20, 1)).await.unwrap_err();
    assert_eq!(error.to_string(), "nothing went on for 1 s");
}

async fn ask(script: &str, limit: u64) -> Result<(Vec<u8>, Option<Process>), NodeError> {
    let argv = ["sh", "-c", script].map(str::to_owned).to_vec();
    let start = Start { argv, ..Start::default() };
    here().ask(&start, b"\0waits\0", "ask", Duration::from_secs(limit)).await
}

#[tokio::test]
async fn a_program_says_something_and_then_takes_what_it_is_fed() {
    // the mark in two pieces, and before it more complaints than a pipe takes
    let script = "head -c 300000 /dev/zero >&2; printf 'a\\0b\\0wai'; sleep 0.3; printf 'ts\\0'
        read -r line; echo \"$line\"; wc -c; echo words >&2";
    let (said, process) = ask(script, 30).await.unwrap();
    assert_eq!(said, b"a\0b");
    let (sender, pieces) = mpsc::channel(2);
    sender.send(Ok(b"head\n".to_vec())).await.unwrap();
    sender.send(Ok(vec![b'x'; 1000])).await.unwrap();
    drop(sender);
    let limit = Duration::from_secs(30);
    let fed = process.unwrap().feed(pieces, (limit, limit), |_| {}).await.unwrap();
    assert_eq!((fed.code, &fed.stdout[..], &fed.stderr[..]), (0, &b"head\n1000\n"[..], &b"words\n"[..]));

    let (said, process) = ask("printf 'all\\0'", 30).await.unwrap();
    assert!(said == b"all\0" && process.is_none());
}

#[tokio::test]
async fn a_program_that_fails_or_hangs_before_it_takes_anything_is_told_by_its_own_words() {
    let refused = |result: Result<(Vec<u8>, Option<Process>), NodeError>| result.err().unwrap().to_string();
    let said = refused(ask("printf 'a\\0'; echo 'no such disk' >&2; exit 3", 30).await);
    assert!(said.contains("no such disk"), "{said}");
    let said = refused(ask("echo 'on the way' >&2; exec sleep 60", 1).await);
    assert!(said.contains("no end within 1 s; its last words: on the way"), "{said}");
    assert!(said.contains("command_timeout_s"), "{said}");
    // as sudo does with a password that it does not take: it reads on, for another one
    let said = refused(ask("echo 'Sorry, try again.' >&2; cat; echo 'a password is required' >&2; exit 1", 30).await);
    assert!(said.contains("a password is required") && said.contains("hvdctl needs root"), "{said}");
}
