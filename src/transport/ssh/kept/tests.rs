use super::*;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const KEY: &str = "0123456789abcdef0123456789abcdef";
const IDLE: Duration = Duration::from_secs(600);

fn directory() -> (tempfile::TempDir, Directory) {
    let dir = tempfile::Builder::new().tempdir_in("/tmp").unwrap();
    let directory = Directory::at(&dir.path().join("hvdctl")).unwrap();
    (dir, directory)
}

/// Something that answers as a master does, and counts who connects.
fn master(socket: &Path) -> Arc<AtomicUsize> {
    let listener = UnixListener::bind(socket).unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&count);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            counter.fetch_add(1, Ordering::Relaxed);
            // it ends a connection over which it is sent something
            std::thread::spawn(move || stream.write_all(&[0, 0, 0, 8]).and_then(|()| stream.read(&mut [0])));
        }
    });
    count
}

/// A connection that is kept under [`KEY`], whose master answers.
async fn kept(directory: &Directory) -> Kept {
    let made = directory.path().join("made");
    master(&made);
    directory.keep(KEY, &made, IDLE).await.expect("it is the first")
}

fn names(directory: &Directory) -> Vec<String> {
    let mut names = directory.names();
    names.retain(|name| name != "lock");
    names.sort();
    names
}

/// Changes when a file was last used, or written.
fn age(path: &Path, seconds: u64) {
    let then = SystemTime::now() - Duration::from_secs(seconds);
    let since = then.duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let then = Timespec { tv_sec: i64::try_from(since.as_secs()).unwrap(), tv_nsec: 0 };
    let is_socket = fs::symlink_metadata(path).unwrap().file_type().is_socket();
    let written = if is_socket { Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT } } else { then };
    let times = Timestamps { last_access: then, last_modification: written };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

#[test]
fn only_a_private_directory_of_ours_is_used() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("d");
    assert!(Directory::at(&path).is_ok() && Directory::at(&path).is_ok(), "it is made once");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o700);
    for mode in [0o755, 0o701, 0o500, 0o2700] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(
            Directory::at(&path).unwrap_err(),
            format!("{}: its mode is {mode:o}, not 700", path.display()),
            "and is not changed"
        );
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, mode);
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    let [link, file, missing] = ["link", "file", "a/b"].map(|name| dir.path().join(name));
    symlink(&path, &link).unwrap();
    fs::write(&file, "").unwrap();
    for other in [link, file] {
        assert!(Directory::at(&other).unwrap_err().ends_with(": it is not a directory"), "{}", other.display());
    }
    assert!(Directory::at(&missing).unwrap_err().contains("No such file or directory"));
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&path, Some(7), None).unwrap();
        assert!(Directory::at(&path).unwrap_err().ends_with("it belongs to another user (uid 7)"));
    }
}

#[test]
fn the_place_depends_on_the_runtime_directory() {
    let dir = tempfile::Builder::new().tempdir_in("/tmp").unwrap();
    let uid = rustix::process::geteuid().as_raw();
    assert_eq!(places(Some(dir.path()), uid), (dir.path().join("hvdctl"), None));
    let shared = PathBuf::from("/tmp/hvdctl-7");
    assert_eq!(places(Some(dir.path()), 7), (shared, None), "of the user who has called sudo");
    let shared = PathBuf::from(format!("/tmp/hvdctl-{uid}"));
    let long = dir.path().join("a".repeat(LONGEST));
    fs::create_dir(&long).unwrap();
    for unusable in [Some(long.as_path()), Some(Path::new("run")), Some(Path::new("/missing")), None] {
        assert_eq!(places(unusable, uid), (shared.clone(), None), "{unusable:?}");
    }
    // at logout, logind removes what is there
    let session = Path::new("/run/user/../..");
    if fs::metadata(session).is_ok_and(|meta| meta.uid() == uid) {
        assert_eq!(places(Some(session), uid), (shared, Some(session.join("hvdctl"))));
    }
}

#[tokio::test]
async fn the_first_of_two_commands_keeps_its_connection() {
    let (_dir, directory) = directory();
    let first = kept(&directory).await;
    let other = directory.path().join("other");
    master(&other);
    assert!(directory.keep(KEY, &other, IDLE).await.is_none(), "the slower one goes on with its own");
    assert!(other.exists());
    assert!(directory.resume(KEY).await.is_some());
    first.set_access("user ana\n");
    let again = directory.resume(KEY).await.expect("both can use it");
    assert_eq!(again.access().as_deref(), Some("user ana\n"));
    age(&directory.state_file(KEY), 61);
    assert_eq!(again.access(), None, "a minute later");
    again.set_access("");
    assert_eq!(again.access(), None, "forgotten");
    assert!(directory.resume(KEY).await.is_some(), "the connection is not");
}

#[tokio::test]
async fn what_cannot_be_used_is_removed() {
    let (_dir, directory) = directory();
    let socket = directory.path().join(KEY);
    let state = directory.state_file(KEY);
    let change: [&dyn Fn(); 4] = [
        // the master was killed
        &|| {
            fs::remove_file(&socket).unwrap();
            drop(UnixListener::bind(&socket).unwrap());
        },
        &|| fs::remove_file(&state).unwrap(),
        &|| fs::write(&state, "idle").unwrap(),
        // the machine slept for a minute
        &|| fs::write(&state, State { slept: slept() + 60.0, ..State::default() }.text()).unwrap(),
    ];
    for (number, change) in change.into_iter().enumerate() {
        drop(kept(&directory).await);
        change();
        assert!(directory.resume(KEY).await.is_none(), "{number}");
        assert_eq!(names(&directory), [""; 0], "{number}");
    }
    drop(kept(&directory).await);
    fs::write(&state, State { slept: slept() + 1.0, ..State::default() }.text()).unwrap();
    assert!(directory.resume(KEY).await.is_some(), "a second may be the clocks'");
}

#[tokio::test(start_paused = true)]
async fn a_master_that_is_stopped_is_replaced() {
    let (_dir, directory) = directory();
    let made = directory.path().join("made");
    let _silent = UnixListener::bind(&made).unwrap();
    assert!(directory.keep(KEY, &made, IDLE).await.is_none());
    directory.link(KEY, &made, IDLE).unwrap();
    assert!(directory.resume(KEY).await.is_none());
    assert_eq!(names(&directory), [""; 0]);
}

#[tokio::test]
async fn only_the_connection_that_was_tried_is_removed() {
    let (_dir, directory) = directory();
    let old = kept(&directory).await;
    directory.remove(KEY, old.identity).await;
    let new = kept(&directory).await;
    old.discard().await;
    old.set_access("user ana\n");
    assert_eq!((directory.resume(KEY).await.is_some(), new.access()), (true, None));
}

#[tokio::test]
async fn what_is_left_over_is_removed_later() {
    let (_dir, directory) = directory();
    let socket = directory.path().join(KEY);
    let made = directory.path().join("made");
    let count = master(&made);
    directory.link(KEY, &made, IDLE).unwrap();
    let tried = async |seconds| {
        age(&socket, seconds);
        directory.clean().await;
        count.swap(0, Ordering::Relaxed)
    };
    assert_eq!(tried(0).await, 0);
    assert_eq!(tried(659).await, 0, "each try would start the master's time anew");
    assert_eq!(tried(700).await, 1, "a long command uses it");
    directory.clean().await;
    assert_eq!((socket.exists(), count.load(Ordering::Relaxed)), (true, 0), "it is in use");
    // the master has ended
    fs::remove_file(&socket).unwrap();
    drop(UnixListener::bind(&socket).unwrap());
    let ages = [("new.x", 61), ("closing.9.k", 61), ("a.state", 61), ("config.old", 90_000), ("client.old", 90_000)];
    let kept = [("new.y", 0), ("b.state", 0), ("config.now", 80_000), ("other", 90_000)];
    for (name, seconds) in ages.into_iter().chain(kept) {
        let file = directory.path().join(name);
        fs::write(&file, "").unwrap();
        age(&file, seconds);
    }
    assert_eq!(tried(700).await, 0);
    assert_eq!(names(&directory), ["b.state", "config.now", "new.y", "other"]);
}

#[tokio::test]
async fn all_connections_to_a_host_are_closed() {
    let (_dir, directory) = directory();
    let _kept = kept(&directory).await;
    let other = KEY.replace("01234567", "11234567");
    let made = directory.path().join("made");
    master(&made);
    directory.link(&other, &made, IDLE).unwrap();
    // a dead one does not count
    drop(UnixListener::bind(directory.path().join(KEY.replace("ef", "00"))).unwrap());
    assert_eq!(directory.close("01234567").await, 1);
    assert_eq!(names(&directory), [other.clone(), format!("{other}.state")]);
    assert_eq!(directory.close("01234567").await, 0);
}

/// With a thousand nodes and as many open files, commands would have none left for their work.
#[tokio::test]
async fn no_more_connections_are_held_than_open_files_allow() {
    let (_dir, mut directory) = directory();
    directory.holds = Arc::new(Semaphore::new(1));
    let first = kept(&directory).await;
    let (second, third) = (directory.resume(KEY).await.unwrap(), directory.resume(KEY).await.unwrap());
    assert_eq!([&first, &second, &third].map(|kept| kept.hold.is_some()), [true, false, false]);
    drop((first, second));
    assert!(directory.resume(KEY).await.unwrap().hold.is_some(), "one has become free");
}
