//! The lease of a node: `lease/hold.sh` runs there for as long as the lease is held. It renews the lease for each line
//! that it reads, and gives the lease back when its standard input ends, however hvdctl ended.

use crate::error::NodeError;
use crate::model::lease::{LIFETIME, Lease, RENEWAL_INTERVAL};
use crate::transport::node::{Process, Script, Transport};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, timeout};

const HOLD: &str = concat!(include_str!("../scripts/lease/common.sh"), include_str!("../scripts/lease/hold.sh"));
const READ: &str = concat!(include_str!("../scripts/lease/common.sh"), include_str!("../scripts/lease/read.sh"));
const RELEASE: &str = concat!(include_str!("../scripts/lease/common.sh"), include_str!("../scripts/lease/release.sh"));

/// The directory that a restart of a node clears.
const RUN: &str = "/run";
/// The exit code of `lease/hold.sh` where another command holds the lease.
const BUSY: i32 = 3;
const TAKE: &str = "lock the node";
/// The most bytes that `lease/hold.sh` prints: another command's lease.
const LONGEST_REPORT: usize = 64 << 10;
/// Time limit for releasing a lease; it expires soon afterwards anyway.
const RELEASE_LIMIT: Duration = Duration::from_secs(5);

/// A node's answer to a [`request`].
pub enum LockAnswer {
    /// The lease is taken.
    Held(NodeLock),
    /// Another command has this lease.
    Busy(Lease),
}

/// A lease that is held until it is released. Dropping it releases it in the background.
pub struct NodeLock {
    close: oneshot::Sender<()>,
    renewal: JoinHandle<()>,
}

impl NodeLock {
    /// Releases the lease and waits until the node has done so.
    pub async fn release(self) {
        let _ = self.close.send(());
        let _ = self.renewal.await;
    }
}

/// Returns the script that takes a lease of this cluster. `holder`: who takes it, as `user@host`; `purpose`: the
/// command. The variable `id` is still missing, and what differs from node to node.
pub fn request(cluster: &str, holder: &str, purpose: &str) -> Script {
    let pid = std::process::id().to_string();
    script(HOLD, cluster).with("holder", holder).with("pid", &pid).with("purpose", purpose)
}

/// Takes a node's lease with a [`request`]. If it is lost before it is released, that is added to `lost`.
///
/// # Errors
/// When the node does not answer, or cannot take leases.
pub async fn take(
    transport: &Transport,
    request: &Script,
    lost: &watch::Sender<Vec<NodeError>>,
) -> Result<LockAnswer, NodeError> {
    let mut process = transport.follow(&on(transport, request.clone()), TAKE).await?;
    let mut stdout = BufReader::new(std::mem::replace(&mut process.stdout, Box::pin(tokio::io::empty())));
    let mut line = String::new();
    transport.within((&mut stdout).take(200).read_line(&mut line), TAKE, transport.limit()).await?;
    process.stdout = Box::pin(stdout);
    if line == "held\n" {
        let (close, closed) = oneshot::channel();
        let renewal = tokio::spawn(renew(transport.node().to_owned(), process, closed, lost.clone()));
        return Ok(LockAnswer::Held(NodeLock { close, renewal }));
    }
    let output = transport.within(process.finish(b""), TAKE, transport.limit()).await?;
    let lease = Lease::parse(&String::from_utf8_lossy(&output.stdout)).filter(|_| output.code == BUSY);
    lease.map(LockAnswer::Busy).ok_or_else(|| transport.failed(&output, TAKE))
}

/// Returns the lease of a node, if there is one that has not expired.
///
/// # Errors
/// When the node does not answer.
pub async fn current(transport: &Transport, cluster: &str) -> Result<Option<Lease>, NodeError> {
    let lease = transport.script(&on(transport, script(READ, cluster)), "read the lock").await?;
    // that of a command that was suspended or has lost its connection stays, and no other one has to wait for it
    Ok(Lease::parse(&String::from_utf8_lossy(&lease)).filter(|lease| !lease.is_expired()))
}

/// Releases this lease, regardless of its holder. Returns false if it no longer exists.
///
/// # Errors
/// When the node does not answer.
pub async fn release(transport: &Transport, cluster: &str, lease: &Lease) -> Result<bool, NodeError> {
    let answer =
        transport.script(&on(transport, script(RELEASE, cluster).with("id", &lease.id)), "release the lock").await?;
    Ok(answer.starts_with(b"released"))
}

fn script(source: &'static str, cluster: &str) -> Script {
    Script::new(source).with("cluster", cluster).with("expires", &LIFETIME.as_secs().to_string())
}

/// Returns one of the scripts for a node: leases are where a reboot removes them, or in the directory of a login.
fn on(transport: &Transport, script: Script) -> Script {
    let run = transport.run_dir().unwrap_or(RUN);
    let private = transport.run_dir().and_then(|run| Some(run.rsplit_once('/')?.0));
    script.with("run", run).with("private", private.unwrap_or_default())
}

/// Renews the lease until it is released, or the node reports that it is lost.
async fn renew(
    node: String,
    mut process: Process,
    mut close: oneshot::Receiver<()>,
    lost: watch::Sender<Vec<NodeError>>,
) {
    let mut tick = interval(RENEWAL_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut report = Vec::new();
    loop {
        tokio::select! {
            biased;
            _ = &mut close => break,
            read = process.stdout.read_buf(&mut report) => {
                // what keeps printing is not lease/hold.sh
                if matches!(read, Ok(1..)) && report.len() < LONGEST_REPORT {
                    continue;
                }
                let error = NodeError::failed(&node, "keep the lock", loss(&String::from_utf8_lossy(&report)));
                lost.send_modify(|all| all.push(error));
                return;
            }
            _ = tick.tick() => {
                // a connection that is lost shows where it is read
                let _ = process.stdin.write_all(b"\n").await;
                let _ = process.stdin.flush().await;
            }
        }
    }
    drop(process.take_stdin());
    let _ = timeout(RELEASE_LIMIT, process.stdout.take(LONGEST_REPORT as u64).read_to_end(&mut report)).await;
}

/// Returns why a lease is lost, by the report of the node.
fn loss(report: &str) -> String {
    match Lease::parse(report) {
        Some(lease) => format!("the lock expired and is now held by {lease}"),
        None if report.starts_with("released") => {
            "another command released the lock, or it expired while this process or its machine was suspended"
                .to_owned()
        }
        None if report.starts_with("blocked") => {
            format!(
                "it could not be renewed for {} s: another process holds {RUN}/hvdctl/.lock (`sudo fuser -v \
                 {RUN}/hvdctl/.lock`)",
                LIFETIME.as_secs()
            )
        }
        None => "the connection that renews the lock was lost".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    use std::path::Path;
    use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

    /// `lease/hold.sh` in a directory of this machine.
    struct Holder {
        child: Child,
        stdin: Option<ChildStdin>,
        stdout: BufReader<ChildStdout>,
    }

    /// A `PATH` whose `flock` is as on NFSv4, where the home of a login may be.
    fn nfs4() -> String {
        format!("{}:{}", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/nfs4"), std::env::var("PATH").unwrap())
    }

    impl Holder {
        fn start(run: &Path, id: &str) -> Holder {
            Holder::start_for(run, id, "30")
        }

        /// One whose lease lasts as many seconds.
        fn start_for(run: &Path, id: &str, expires: &str) -> Holder {
            let script = Script::new(HOLD)
                .with("run", run.to_str().unwrap())
                .with("private", "")
                .with("cluster", "lab")
                .with("expires", expires)
                .with("id", id)
                .with("holder", "ana o'neil@desk")
                .with("pid", "7")
                .with("purpose", "hvdctl run $(x)");
            // a shell cannot trap what it was started to ignore, as everything under nohup is
            let mut command = Command::new("env");
            command.args(["--default-signal=HUP,TERM", "sh", "-s"]).stdin(Stdio::piped()).stdout(Stdio::piped());
            command.env("PATH", nfs4());
            let mut child = command.spawn().unwrap();
            let mut stdin = child.stdin.take().unwrap();
            stdin.write_all(script.whole().as_bytes()).unwrap();
            let stdout = BufReader::new(child.stdout.take().unwrap());
            Holder { child, stdin: Some(stdin), stdout }
        }

        fn line(&mut self) -> String {
            let mut line = String::new();
            self.stdout.read_line(&mut line).unwrap();
            line
        }

        fn renew(&mut self) {
            // one that has ended reads no more
            let _ = self.stdin.as_mut().unwrap().write_all(b"\n");
        }

        /// Ends its standard input; what it still said, and its exit code.
        fn end(mut self) -> (String, Option<i32>) {
            drop(self.stdin.take());
            let mut rest = String::new();
            self.stdout.read_to_string(&mut rest).unwrap();
            (rest, self.child.wait().unwrap().code())
        }
    }

    fn shell(run: &Path, source: &'static str, id: &str) -> String {
        let script = Script::new(source)
            .with("run", run.to_str().unwrap())
            .with("cluster", "lab")
            .with("expires", "30")
            .with("private", "");
        let script = if source == RELEASE { script.with("id", id) } else { script };
        let mut command = Command::new("sh");
        command.arg("-s").env("PATH", nfs4()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(script.whole().as_bytes()).unwrap();
        String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
    }

    /// As if it had been renewed last so long ago.
    fn renewed_before(file: &Path, seconds: u64) {
        let time = std::time::SystemTime::now() - Duration::from_secs(seconds);
        std::fs::File::options().append(true).open(file).unwrap().set_modified(time).unwrap();
    }

    fn holder_in(run: &Path) -> Option<Lease> {
        Lease::parse(&shell(run, READ, ""))
    }

    #[test]
    fn one_of_many_gets_it_and_the_others_learn_whose_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let ids: Vec<String> = (0..8).map(|i| format!("id-{i}")).collect();
        let mut all: Vec<(String, Holder)> =
            ids.into_iter().map(|id| (id.clone(), Holder::start(dir.path(), &id))).collect();
        let said: Vec<String> = all.iter_mut().map(|(_, holder)| holder.line()).collect();
        assert_eq!(said.iter().filter(|line| line.starts_with("held")).count(), 1, "{said:?}");
        assert_eq!(said.iter().filter(|line| *line == "busy\n").count(), 7, "{said:?}");
        let at = said.iter().position(|line| line.starts_with("held")).unwrap();
        let (id, mut winner) = all.remove(at);
        for (_, other) in all {
            let (words, code) = other.end();
            let lease = Lease::parse(&words).unwrap_or_else(|| panic!("{words}"));
            assert_eq!((lease.id.as_str(), lease.holder.as_str(), code), (id.as_str(), "ana o'neil@desk", Some(BUSY)));
            assert_eq!((lease.purpose.as_str(), lease.is_expired()), ("hvdctl run $(x)", false));
        }
        winner.renew();
        assert_eq!(holder_in(dir.path()).unwrap().id, id);
        assert_eq!(winner.end(), (String::new(), Some(0)));
        let left = std::fs::read_dir(dir.path().join("hvdctl")).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(left.collect::<Vec<_>>(), [".lock"]);
    }

    #[test]
    fn it_lasts_as_long_as_it_is_renewed_and_half_a_minute_more() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("hvdctl/lab.lease");
        let mut first = Holder::start(dir.path(), "first");
        assert!(first.line().starts_with("held"));
        renewed_before(&file, 20);
        let mut early = Holder::start(dir.path(), "early");
        assert_eq!(early.line(), "busy\n");
        early.end();

        renewed_before(&file, 40);
        assert!(holder_in(dir.path()).unwrap().is_expired());
        let mut second = Holder::start(dir.path(), "second");
        assert!(second.line().starts_with("held"));
        // the first one comes back, and sees that it is too late
        first.renew();
        assert_eq!(first.line(), "taken\n");
        let (words, code) = first.end();
        assert_eq!((Lease::parse(&words).unwrap().id.as_str(), code), ("second", Some(0)));
        assert_eq!(holder_in(dir.path()).unwrap().id, "second");

        // renewing it is what makes it last
        renewed_before(&file, 20);
        second.renew();
        assert!(second.stdin.as_mut().unwrap().write_all(b"\n").is_ok());
        let renewed = || holder_in(dir.path()).is_some_and(|lease| lease.read - lease.renewed < 15);
        let end = std::time::Instant::now() + Duration::from_secs(30);
        while !renewed() {
            assert!(std::time::Instant::now() < end, "it was never renewed");
            std::thread::sleep(Duration::from_millis(20));
        }
        second.end();
        assert_eq!(holder_in(dir.path()), None);
    }

    #[test]
    fn a_released_one_is_lost_and_only_the_one_that_is_meant_is_released() {
        let dir = tempfile::tempdir().unwrap();
        let mut holder = Holder::start(dir.path(), "first");
        holder.line();
        assert_eq!(shell(dir.path(), RELEASE, "another"), "");
        assert_eq!(holder_in(dir.path()).unwrap().id, "first");
        assert_eq!(shell(dir.path(), RELEASE, "first"), "released\n");
        assert_eq!((holder_in(dir.path()), shell(dir.path(), RELEASE, "first")), (None, String::new()));
        holder.renew();
        assert_eq!((holder.line().as_str(), holder_in(dir.path())), ("released\n", None));
        assert_eq!(holder.line(), "", "it ends by itself");
        holder.end();
    }

    #[test]
    fn an_undelivered_lease_is_released() {
        let dir = tempfile::tempdir().unwrap();
        for _ in 0..5 {
            let Holder { mut child, stdin, stdout } = Holder::start(dir.path(), "gone");
            drop((stdout, stdin));
            child.wait().unwrap();
            assert_eq!(holder_in(dir.path()), None);
        }
        // and another command's is not
        let mut holder = Holder::start(dir.path(), "first");
        holder.line();
        let Holder { mut child, stdin, stdout } = Holder::start(dir.path(), "gone");
        drop((stdout, stdin));
        child.wait().unwrap();
        assert_eq!(holder_in(dir.path()).unwrap().id, "first");
        holder.end();
    }

    #[test]
    fn a_file_system_without_locks_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let script = Script::new(HOLD).with("run", dir.path().to_str().unwrap()).with("private", "");
        let script = script.with("cluster", "lab").with("expires", "30").with("id", "i").with("holder", "h");
        let script = script.with("pid", "7").with("purpose", "p");
        let path =
            format!("{}:{}", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/nolocks"), std::env::var("PATH").unwrap());
        let mut shell = Command::new("sh");
        shell.arg("-s").env("PATH", path).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = shell.spawn().unwrap();
        child.stdin.take().unwrap().write_all(script.whole().as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && complaint.contains("(flock: 9: Function not implemented)"), "{output:?}");
        assert!(complaint.contains("may have no locks") && !complaint.contains("held by"), "{complaint}");
    }

    #[test]
    fn a_signal_gives_it_back() {
        let dir = tempfile::tempdir().unwrap();
        for signal in ["HUP", "TERM"] {
            let mut holder = Holder::start(dir.path(), signal);
            assert!(holder.line().starts_with("held"));
            let pid = holder.child.id().to_string();
            assert!(Command::new("kill").args([&format!("-{signal}"), &pid]).status().unwrap().success());
            assert_eq!(holder.line(), "", "{signal}");
            assert_eq!(holder_in(dir.path()), None, "{signal}");
            holder.end();
        }
    }

    /// Runs a program that holds a lock and says so, as root or as another user, until its standard input ends.
    fn lock(path: &Path, user: u32) -> (Child, ChildStdin) {
        // a holder says so before it gives up the lock
        let script = "exec 9<\"$1\" && flock -w 60 9 && echo locked && cat";
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).arg(path).uid(user).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "locked\n");
        let stdin = child.stdin.take().unwrap();
        (child, stdin)
    }

    fn unlock((mut child, stdin): (Child, ChildStdin)) {
        drop(stdin);
        child.wait().unwrap();
    }

    #[test]
    fn other_users_can_neither_hold_a_lease_up_nor_end_it() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let place = dir.path().join("hvdctl");
        let mut first = Holder::start(dir.path(), "first");
        assert!(first.line().starts_with("held"));
        // everybody may read who works on the node, and so lock the directory and the lease
        let stranger = [lock(&place, 1), lock(&place.join("lab.lease"), 1)];
        renewed_before(&place.join("lab.lease"), 20);
        first.renew();
        assert_eq!(first.end(), (String::new(), Some(0)));
        let mut second = Holder::start(dir.path(), "second");
        assert!(second.line().starts_with("held"));
        assert_eq!(shell(dir.path(), RELEASE, "second"), "released\n");
        second.end();
        stranger.into_iter().for_each(unlock);
        for attempt in [": <.lock", "flock -n .lock true", "rm -f .lock", "mv .lock x", "ln .lock x", ": >x"] {
            let mut command = Command::new("sh");
            command.args(["-c", attempt]).current_dir(&place).uid(1).gid(1).stderr(Stdio::null());
            assert!(!command.status().unwrap().success(), "{attempt}");
        }
        let mode = std::fs::metadata(place.join(".lock")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_directory_that_others_can_change_is_refused() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        for (owner, mode) in [(1, 0o755), (0, 0o775), (0, 0o777)] {
            let dir = tempfile::tempdir().unwrap();
            let place = dir.path().join("hvdctl");
            std::fs::create_dir(&place).unwrap();
            std::os::unix::fs::chown(&place, Some(owner), None).unwrap();
            std::fs::set_permissions(&place, std::fs::Permissions::from_mode(mode)).unwrap();
            let mut holder = Holder::start(dir.path(), "first");
            assert_eq!(holder.line(), "", "{owner} {mode:o}");
            assert_eq!(holder.end().1, Some(1), "{owner} {mode:o}");
            assert!(std::fs::read_dir(&place).unwrap().next().is_none());
        }
    }

    #[test]
    fn a_renewal_waits_for_the_lock_until_the_lease_expires() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("hvdctl/.lock");
        let user = rustix::process::geteuid().as_raw();
        let mut holder = Holder::start_for(dir.path(), "first", "600");
        assert!(holder.line().starts_with("held"));
        let other = lock(&file, user);
        holder.renew();
        unlock(other);
        assert_eq!(holder.end(), (String::new(), Some(0)), "it was renewed");

        let mut holder = Holder::start_for(dir.path(), "second", "1");
        assert!(holder.line().starts_with("held"));
        let other = lock(&file, user);
        holder.renew();
        assert_eq!(holder.line(), "blocked\n");
        assert!(loss("blocked\n").contains("another process holds /run/hvdctl/.lock"));
        unlock(other);
        assert_eq!(holder.end().0, "");
    }
}
