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

/// Runs a script by a `sudo` that does this, as root is used where sudo asks for no password.
async fn by_sudo(sudo: &str, script: &str) -> (Transport, Output) {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("sudo");
    std::fs::write(&file, format!("#!/bin/sh\n{sudo}\n")).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    let inventory = Inventory::local("here", "image");
    let opened = Transport::open_as_login(&inventory.cluster, &inventory.nodes[0], TransportKind::Local);
    let mut transport = opened.await.unwrap();
    transport.access.root = crate::transport::access::RootMethod::Sudo;
    let invocation = transport.access.invocation(RunAs::Root, &["sh", "-c", script]);
    assert!(invocation.is_marked);
    let path = format!("PATH={}:/usr/bin:/bin", dir.path().display());
    let argv = ["env".to_owned(), path].into_iter().chain(invocation.argv).collect::<Vec<_>>();
    let process = transport
        .start_process(&argv, InputSize::Short, trace::TracedProgram::start("node1", "sh"))
        .await
        .unwrap()
        .after_root_marks();
    let output = process.finish(b"").await.unwrap();
    (transport, output)
}

/// A sudo of a node whose own name does not resolve, and with a module of PAM that greets; it starts the program.
const TALKS: &str = "warn() { echo 'sudo: unable to resolve host gpu1: Name or service not known' >&2; }
warn; echo '/etc/sudoers.d/x:1:10: unknown setting' >&2; echo 'Last login: today'
shift; \"$@\"; code=$?; warn; exit $code";

#[tokio::test]
async fn what_sudo_prints_is_not_the_programs() {
    let (_, output) = by_sudo(TALKS, "echo answer").await;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!((output.code, text(&output.stdout).as_str(), output.complaint().as_str()), (0, "answer\n", ""));
    let (transport, output) = by_sudo(TALKS, "echo 'b2sum: ./x: Permission denied' >&2; exit 1").await;
    assert_eq!(output.complaint(), "b2sum: ./x: Permission denied\n");
    assert!(
        transport.failed(&output, "read").to_string().starts_with("here: cannot read: b2sum: ./x: Permission denied")
    );
    // without a word of its own
    let (transport, output) = by_sudo(TALKS, "exit 7").await;
    assert_eq!(transport.failed(&output, "read").to_string(), "here: cannot read: exit code 7");
    // a program's text is not a refusal of sudo
    let (transport, output) = by_sudo(TALKS, "echo 'eve is not allowed to do this' >&2; exit 1").await;
    assert_eq!(transport.failed(&output, "read").kind, ErrorKind::CommandFailed { status: 1 });
}

#[tokio::test]
async fn a_refusal_of_sudo_is_one_whatever_else_it_prints() {
    for refusal in [
        "sudo: a password is required",
        "ana is not in the sudoers file.",
        "sudo: I'm sorry ana. I'm afraid I can't do that",
    ] {
        let sudo = format!(
            "echo 'sudo: unable to resolve host gpu1' >&2; echo \"{refusal}\" >&2; echo 'sudo: more' >&2; exit 1"
        );
        let (transport, output) = by_sudo(&sudo, "echo answer").await;
        let error = transport.failed(&output, "read");
        assert_eq!((error.kind, error.message.as_str()), (ErrorKind::PrivilegesDenied, refusal));
    }
    // it could not start the program
    let (transport, output) = by_sudo("echo 'sudo: unable to execute /bin/sh' >&2; exit 1", "echo answer").await;
    assert_eq!(transport.failed(&output, "read").message.trim(), "sudo: unable to execute /bin/sh");
}

#[tokio::test]
async fn a_line_of_an_answer_that_does_not_end_is_not_kept() {
    let inventory = Inventory::local("here", "image");
    let opened = Transport::open_as_login(&inventory.cluster, &inventory.nodes[0], TransportKind::Local);
    let script = "read -r request; echo \"$request\"; read -r request; head -c 67108864 /dev/zero | tr '\\0' x";
    let process = opened.await.unwrap().start(RunAs::Login, &["sh", "-c", script]).await.unwrap();
    let mut dialogue = Dialogue::new(process);
    let limit = Duration::from_secs(300);
    dialogue.ask("hello", limit, |line| line == "hello").await.unwrap();
    let error = dialogue.ask("more", limit, |_| panic!("a line")).await.unwrap_err();
    assert_eq!(error, "the program prints an endless line");
}
