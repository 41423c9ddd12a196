//! The scripts as the nodes run them, in directories of this machine.

mod bench;

use super::*;
use crate::sync::manifest::{Comparer, Selection};
use crate::sync::tests::{Process, accessible, with_open_modes};
use bench::Bench;
use proptest::prelude::*;
use std::fs::{self, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;

fn inode(path: &Path) -> u64 {
    std::os::unix::fs::MetadataExt::ino(&fs::symlink_metadata(path).unwrap())
}

#[test]
fn odd_names_arrive_unchanged_and_only_changes_are_sent() {
    let bench = Bench::new();
    let names = [
        "a b.py",
        "-rf",
        "-",
        "$(touch x)",
        "new\nline",
        "q'uo\"te",
        "deep/er/ünï.txt",
        "-d/x",
        "back\\slash",
        "*",
        " ",
    ];
    for name in names {
        bench.write(name, name);
    }
    fs::set_permissions(bench.here("-rf"), Permissions::from_mode(0o4755)).unwrap();
    fs::create_dir(bench.here("empty")).unwrap();
    fs::set_permissions(bench.here("empty"), Permissions::from_mode(0o700)).unwrap();
    symlink("a b.py", bench.here("link")).unwrap();
    symlink("/etc", bench.here("out of it")).unwrap();
    symlink("no\nwhere", bench.here("dangling")).unwrap();
    assert_eq!(bench.upload().len(), bench.tree().manifest.0.len());
    bench.same();
    assert_eq!(bench.upload(), [""; 0]);

    // what a job writes stays, what it does to the project's files is undone
    fs::write(bench.there("deep/checkpoint"), "mine").unwrap();
    fs::write(bench.there("new\nline"), "New\nline").unwrap();
    fs::set_permissions(bench.there("*"), Permissions::from_mode(0o600)).unwrap();
    fs::set_permissions(bench.there("empty"), Permissions::from_mode(0o755)).unwrap();
    fs::remove_file(bench.there("a b.py")).unwrap();
    fs::remove_file(bench.there("link")).unwrap();
    symlink("elsewhere", bench.there("link")).unwrap();
    bench.write("deep/er/more/new", "new");
    let kept = inode(&bench.there("-rf"));
    let sent = bench.upload();
    assert_eq!(
        sent,
        ["*", "a b.py", "deep", "deep/er", "deep/er/more", "deep/er/more/new", "empty", "link", "new\nline"]
    );
    assert_eq!(fs::read_to_string(bench.there("deep/checkpoint")).unwrap(), "mine");
    fs::remove_file(bench.there("deep/checkpoint")).unwrap();
    assert_eq!(inode(&bench.there("-rf")), kept, "what is the same is not touched");
    bench.same();
}

#[test]
fn targets_of_links_arrive_byte_for_byte() {
    let bench = Bench::new();
    let long = |length: usize| format!("/mnt//{}", "x/./".repeat(length))[..length].to_owned();
    let targets = ["/mnt/nvme//imagenet", "./a/./b", "/", "//", "a//", "../..//x/", "a/../b", " ", "x\n", "\\"]
        .map(str::to_owned);
    let targets = targets.into_iter().chain([98, 99, 100, 101, 102, 600].map(long));
    for (i, target) in targets.enumerate() {
        symlink(&target, bench.here(&format!("{i}"))).unwrap();
        symlink(&target, bench.here(&format!("{i}{}", "n".repeat(150)))).unwrap();
    }
    bench.write("train.py", "");
    bench.upload();
    bench.same();
}

/// Uploads to this node as `start::prepare` does to all of them: again with what `refresh` has read, while that may
/// help.
fn upload_while_it_changes(bench: &Bench) -> (ProjectFiles, usize) {
    let mut files = bench.tree();
    for number in 1..=5 {
        let missing = bench.missing(&files, &bench.compare(&files));
        let mut pieces = files.stream(missing.clone());
        let (mut stream, mut is_whole) = (Vec::new(), true);
        while let Some(piece) = pieces.blocking_recv() {
            is_whole &= piece.is_ok();
            stream.extend(piece.unwrap_or_default());
        }
        let done = bench.apply(&files, &missing, &stream);
        if is_whole && done.status.success() {
            return (files, number);
        }
        assert!(!is_whole || done.status.code() == Some(DIFFERENT), "{done:?}");
        files = files.refresh().unwrap();
    }
    panic!("it changes too fast");
}

#[test]
fn a_project_arrives_while_other_programs_write_to_it() {
    let bench = Bench::new();
    bench.write("train.py", "print()");
    for i in 0..200 {
        bench.write(&format!("src/{i}.py"), &i.to_string().repeat(1000));
    }
    bench.write("log", "");
    bench.write("large.log", &"line\n".repeat(50_000));
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let append = |name: &str| {
                let mut file = fs::File::options().append(true).open(bench.here(name)).unwrap();
                file.write_all(b"line\n").unwrap();
            };
            for turn in 0_u64.. {
                if stop.load(std::sync::atomic::Ordering::Relaxed) {
                    break;
                }
                append("log");
                append("large.log");
                // an editor writes a new file and renames it
                bench.write("train.py~", &format!("print({turn})"));
                fs::rename(bench.here("train.py~"), bench.here("train.py")).unwrap();
                // a notebook is written in place, a checkpoint comes and goes
                bench.write("notebook", &format!("{turn} ").repeat(100_000));
                bench.write("last.tmp", &format!("{turn} ").repeat(50_000));
                let _ = fs::rename(bench.here("last.tmp"), bench.here("last"));
                let _ = fs::remove_file(bench.here("last"));
            }
        });
        let uploads = (0..3).map(|_| upload_while_it_changes(&bench));
        for (files, _) in uploads {
            // what arrived is what was read, and the node has proven it
            assert_eq!(bench.arrived().manifest, files.manifest);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    bench.upload();
    bench.same();
}

#[test]
fn one_note_names_links_that_lead_out_and_one_what_is_large() {
    let link = |target: &str| ManifestEntry::Link { target: target.into() };
    let file = |size| ManifestEntry::File { hash: [0; 32], mode: 0o644, size };
    let entries = [
        ("data".to_owned(), link("/home/me/datasets/mnist")),
        ("here".to_owned(), link("train.py")),
        ("mounted".to_owned(), link("/data/imagenet")),
        ("train.py".to_owned(), file(10)),
        ("runs/a [1]".to_owned(), file(3 << 30)),
    ];
    let manifest = Manifest(entries.into());
    let note = note_of_links(&manifest, &["/data".into()]).unwrap();
    assert!(note.starts_with(
        "1 link leads out of the project; files outside it are not uploaded: data -> /home/me/datasets/mnist\n"
    ));
    assert!(note_of_links(&manifest, &["/data".into(), "/home".into()]).is_none());
    let note = note_of_size(&manifest, manifest.size());
    assert!(
        note.starts_with("the first upload sends 3.0 GiB to each node, most of it in runs/a [1] (3.0 GiB)\n"),
        "{note}"
    );
    assert!(note.ends_with(r"/runs/a \[1\]"), "{note}");
}

#[test]
fn what_was_deleted_here_is_deleted_there() {
    let bench = Bench::new();
    for name in ["kind", "other/kind", "gone", "d/e/f", "moved/f", "stays/f"] {
        bench.write(name, "old");
    }
    symlink("kind", bench.here("was a link")).unwrap();
    bench.upload();
    fs::write(bench.there("stays/checkpoint"), "mine").unwrap();
    // a job moved a directory elsewhere and left a link
    fs::create_dir(bench.dir.path().join("else")).unwrap();
    fs::write(bench.dir.path().join("else/f"), "theirs").unwrap();
    fs::remove_dir_all(bench.there("moved")).unwrap();
    symlink("../../else", bench.there("moved")).unwrap();

    for name in ["kind", "gone", "was a link"] {
        fs::remove_file(bench.here(name)).unwrap();
    }
    for name in ["other", "d", "moved", "stays"] {
        fs::remove_dir_all(bench.here(name)).unwrap();
    }
    bench.write("kind/now", "a directory");
    bench.write("other", "a file");
    bench.write("was a link", "a file");
    bench.upload();
    assert_eq!(fs::read_to_string(bench.there("stays/checkpoint")).unwrap(), "mine");
    assert_eq!(fs::read_to_string(bench.dir.path().join("else/f")).unwrap(), "theirs");
    fs::remove_dir_all(bench.there("stays")).unwrap();
    bench.same();
}

#[test]
fn a_stream_that_breaks_off_or_was_altered_leaves_the_earlier_files_intact() {
    let bench = Bench::new();
    for i in 0..20 {
        bench.write(&format!("f{i}"), &format!("old {i}"));
    }
    bench.upload();
    let (before, had) = (bench.arrived().manifest, bench.tree());
    for i in 0..20 {
        bench.write(&format!("f{i}"), &format!("new {i}"));
    }
    fs::remove_file(bench.here("f7")).unwrap();
    let tree = bench.tree();
    let missing = bench.missing(&tree, &bench.compare(&tree));
    let stream = Bench::stream(&tree, &missing);
    // the last two blocks say that it is the end; tar does without them
    for end in (0..stream.len() - 1024).step_by(512).chain([1, 700, stream.len() / 2 + 1]) {
        let done = bench.apply(&tree, &missing, &stream[..end]);
        assert!(!done.status.success(), "after {end} of {} bytes", stream.len());
    }
    let altered: Vec<u8> = stream.windows(5).position(|w| w == b"new 3").map_or(vec![], |at| {
        let mut other = stream.clone();
        other[at] = b'N';
        other
    });
    let done = bench.apply(&tree, &missing, &altered);
    assert_eq!(done.status.code(), Some(DIFFERENT));
    assert!(
        String::from_utf8_lossy(&done.stderr).contains("the files that arrived differ from those that were sent"),
        "{done:?}"
    );
    bench.break_tool("b2sum", "*-bz*", "./f1: Input/output error");
    let done = bench.apply(&tree, &missing, &stream);
    let error = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success() && error.starts_with("b2sum: ./f1: Input/output error\n"), "{error}");
    bench.repair();
    assert_eq!(bench.arrived().manifest, before);
    assert!(bench.compare(&had).is_same, "and still proven");
    assert!(bench.stages().is_empty(), "nothing is left on a full disk");
    bench.upload();
    bench.same();
}

#[test]
fn files_are_hashed_while_more_arrive() {
    let bench = Bench::new();
    for name in ["a", "b", "c", "d", "e", "f"] {
        bench.write(name, &name.repeat(20 << 20));
    }
    let tree = bench.tree();
    let missing = bench.missing(&tree, &bench.compare(&tree));
    let (arrived, placed) = (tree.manifest.arrived(&missing), tree.manifest.placed(false));
    let stream = Bench::stream(&tree, &missing);
    let mut child = bench.start(APPLY, &[&tree.hash, &arrived, &placed, ""]);
    let mut stdin = child.stdin.take().unwrap();
    let (most, rest) = stream.split_at(stream.len() - 1024);
    stdin.write_all(most).unwrap();
    stdin.flush().unwrap();
    bench.until_staged(&child, "sums", 2 * 64);
    stdin.write_all(rest).unwrap();
    drop(stdin);
    assert!(child.wait_with_output().unwrap().status.success());
    bench.same();
}

#[test]
fn an_upload_that_has_lost_its_connection_does_not_disturb_the_next_one() {
    let bench = Bench::new();
    bench.write("a", &"old".repeat(100_000));
    bench.write("b", &"old".repeat(100_000));
    let tree = bench.tree();
    let missing = bench.missing(&tree, &bench.compare(&tree));
    let start = |tree: &ProjectFiles| {
        let (arrived, placed) = (tree.manifest.arrived(&missing), tree.manifest.placed(false));
        let mut child = bench.start(APPLY, &[&tree.hash, &arrived, &placed, ""]);
        let (stream, stdin) = (Bench::stream(tree, &missing), child.stdin.take().unwrap());
        (child, stdin, stream)
    };
    let (lost, mut lost_stdin, stream) = start(&tree);
    lost_stdin.write_all(&stream[..400_000]).unwrap();
    bench.until_staged(&lost, "t/a", 200_000);

    bench.write("a", &"new".repeat(100_000));
    let (next, mut stdin, stream) = start(&bench.tree());
    stdin.write_all(&stream[..400_000]).unwrap();
    bench.until_staged(&next, "t/a", 200_000);
    assert_eq!(bench.stages(), [bench.stage(&next)]);
    // the node finds out now
    drop(lost_stdin);
    assert!(!lost.wait_with_output().unwrap().status.success());
    stdin.write_all(&stream[400_000..]).unwrap();
    drop(stdin);
    let done = next.wait_with_output().unwrap();
    assert!(done.status.success(), "{done:?}");
    bench.same();
    assert!(bench.stages().is_empty(), "{:?}", bench.stages());
}

#[test]
fn a_node_without_free_inodes_or_space_fails_the_upload_wherever_it_notices() {
    let bench = Bench::new();
    for name in ["a", "b/c", "b/d"] {
        bench.write(name, &name.repeat(20_000));
    }
    let tree = bench.tree();
    let missing = tree.manifest.all();
    let (arrived, placed) = (tree.manifest.arrived(&missing), tree.manifest.placed(false));
    let stream = Bench::stream(&tree, &missing);
    let in_limits = |limits: &str| {
        let script = "mount -t tmpfs -o $1 none $2 && sh -c \"$3\" sh $2 p lab $5 desk:/p '' '' </dev/null >&2 &&
            exec sh -c \"$4\" sh $2 p lab $5 $6 $7 ''";
        let mut command = Command::new("unshare");
        if !rustix::process::geteuid().is_root() {
            command.args(["--user", "--map-root-user"]);
        }
        command.args(["--mount", "timeout", "60", "sh", "-c", script, "sh", limits]);
        command.arg(bench.dir.path()).args([COMPARE, APPLY, &tree.hash, &arrived, &placed]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // it may end before it has read all of it
        let _ = stdin.write_all(&stream);
        drop(stdin);
        let done = child.wait_with_output().unwrap();
        let error = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.success() || error.contains("No space left on device"), "{limits}: {done:?}");
        done.status.success()
    };
    let limits: [fn(usize) -> String; 2] = [|n| format!("nr_inodes={n}"), |n| format!("size={}k", 8 * n)];
    for limits in limits {
        let needed = (4..60).find(|n| in_limits(&limits(*n)));
        assert!(needed.is_some_and(|n| n > 10), "{needed:?} of {}", limits(1));
    }
}

#[test]
fn an_upload_with_another_hash_than_expected_fails() {
    let bench = Bench::new();
    bench.write("train.py", "");
    bench.write("a b", "text");
    let tree = bench.tree();
    let missing = tree.manifest.all();
    let (arrived, whole) = (tree.manifest.arrived(&missing), tree.manifest.placed(false));
    let upload = |arrived: &str, whole: &str| {
        let _ = fs::remove_dir_all(bench.dir.path().join("there"));
        bench.compare(&tree);
        bench.script(APPLY, &[&tree.hash, arrived, whole, ""], &Bench::stream(&tree, &missing)).status.success()
    };
    assert!(upload(&arrived, &whole));
    assert!(!upload("0", &whole) && !bench.there("a b").exists());
    assert!(!upload(&arrived, "0"), "nor with another end than is expected");
}

#[test]
fn a_job_output_in_the_place_of_a_project_file_fails_the_upload_and_is_kept() {
    let bench = Bench::new();
    bench.write("train.py", "");
    bench.upload();
    fs::create_dir(bench.there("out")).unwrap();
    fs::write(bench.there("out/checkpoint"), "mine").unwrap();
    bench.write("out", "a file");
    let tree = bench.tree();
    let missing = bench.missing(&tree, &bench.compare(&tree));
    let done = bench.apply(&tree, &missing, &Bench::stream(&tree, &missing));
    assert!(!done.status.success() && String::from_utf8_lossy(&done.stderr).contains("cannot overwrite"), "{done:?}");
    assert_eq!(fs::read_to_string(bench.there("out/checkpoint")).unwrap(), "mine");
    fs::remove_dir_all(bench.there("out")).unwrap();
    bench.upload();
    bench.same();
}

#[test]
fn what_a_job_wrote_in_a_separate_directory_is_merged() {
    let bench = Bench::new();
    for name in ["train.py", "data", "deep/er"] {
        bench.write(name, "old");
    }
    bench.upload();
    fs::write(bench.there("checkpoint"), "of the first").unwrap();
    fs::write(bench.there("deep/log"), "first").unwrap();
    // as where another job is running
    bench.write("train.py", "new");
    bench.write("data2", "new");
    fs::remove_file(bench.here("data")).unwrap();
    let tree = bench.tree();
    let missing = bench.missing(&tree, &bench.compare(&tree));
    let done = bench.apply_for("j1", &tree, &missing, &Bench::stream(&tree, &missing));
    assert!(done.status.success(), "{done:?}");

    let separate = bench.dir.path().join("there/p+j1");
    let read = |path: PathBuf| fs::read_to_string(path).unwrap();
    assert_eq!(read(bench.there("train.py")), "old", "the first job keeps its files");
    assert!(bench.there("data").exists() && !separate.join("data").exists());
    assert_eq!(
        (read(separate.join("train.py")), read(separate.join("checkpoint"))),
        ("new".into(), "of the first".into())
    );
    assert_ne!(
        inode(&separate.join("deep/er")),
        inode(&bench.there("deep/er")),
        "who writes one does not write the other"
    );

    // both write; the second last
    fs::write(bench.there("deep/log"), "first, longer").unwrap();
    let earlier = std::time::SystemTime::now() - Duration::from_secs(60);
    fs::File::options().write(true).open(bench.there("checkpoint")).unwrap().set_modified(earlier).unwrap();
    fs::write(separate.join("checkpoint"), "of the second").unwrap();
    fs::write(separate.join("deep/best"), "second").unwrap();
    fs::write(separate.join("train.py"), "scribbled over").unwrap();
    // a job that has no process just now has not ended: neither for another's end nor for the next comparison
    let other = bench.script(MERGE, &["j2"], b"");
    assert!(other.status.success() && separate.exists(), "{other:?}");
    let workspace_beside =
        |tree: &ProjectFiles, jobs: &str| bench.compare_as(tree, ("desk:/p", "", jobs)).unwrap().workspace;
    bench.write("data3", "newest");
    let workspace = workspace_beside(&bench.tree(), "j1");
    assert!(
        separate.exists() && !workspace.is_separate,
        "the job has a separate directory, and none uses the project's"
    );
    let workspace = workspace_beside(&bench.tree(), "j0 j1");
    assert!(workspace.is_separate, "the first may have it: {workspace:?}");
    fs::remove_file(bench.here("data3")).unwrap();

    let gathered = bench.script(MERGE, &["j1"], b"");
    assert!(gathered.status.success() && gathered.stdout.is_empty(), "{gathered:?}");
    assert!(!separate.exists());
    assert_eq!(read(bench.there("checkpoint")), "of the second");
    assert_eq!(read(bench.there("deep/log")), "first, longer");
    assert_eq!(read(bench.there("deep/best")), "second");
    assert_eq!(read(bench.there("train.py")), "old");
    bench.upload();
    assert_eq!(read(bench.there("train.py")), "new");
    let known: Vec<_> = fs::read_dir(bench.dir.path().join("there/.p@lab")).unwrap().flatten().collect();
    assert_eq!(known.len(), 3, "origin, shipped and stat: {known:?}");
}

/// A process of a job, which is in no container.
fn job_process() -> Process {
    Process(Command::new("sleep").arg("600").env("HVDCTL_JOB", "j0").spawn().unwrap())
}

#[test]
fn a_process_of_another_user_is_no_job_whatever_it_says() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let bench = Bench::new();
    bench.write("train.py", "");
    bench.upload();
    bench.write("train.py", "new");
    let there = bench.dir.path().join("there");
    let is_separate = || bench.compare(&bench.tree()).workspace.is_separate;
    symlink("p", there.join("workspace")).unwrap();
    let user = Process::of_job(&there, false);
    assert!(!is_separate(), "it has the project as its workspace");
    let job = Process::of_job(&there, true);
    assert!(is_separate(), "as this one, which root runs");
    drop(job);
    fs::remove_file(there.join("workspace")).unwrap();
    symlink("workspace", there.join("workspace")).unwrap();
    assert!(!is_separate(), "whether somebody uses the project can be known");
    drop(user);
    bench.upload();
}

#[test]
fn nobody_else_can_use_a_project_whatever_its_modes_are_here() {
    let bench = Bench::new();
    let files = ["train.py", "pkg/mod.py", "tool", ".env"];
    files.iter().for_each(|name| bench.write(name, "x"));
    // tar reads 256 KiB at once
    bench.write("weights", &"x".repeat(600_000));
    // as on a file system without owners, or under umask 000
    for (name, mode) in [("train.py", 0o666), ("pkg/mod.py", 0o666), ("pkg", 0o1777), ("tool", 0o6777), (".env", 0o644)]
    {
        fs::set_permissions(bench.here(name), Permissions::from_mode(mode)).unwrap();
    }
    let there = bench.dir.path().join("there");
    let tree = bench.tree();
    let missing = bench.missing(&tree, &bench.compare(&tree));
    assert_eq!(accessible(&there), [""; 0], "it has just been created");
    let stream = Bench::stream(&tree, &missing);
    let mut upload =
        bench.start(APPLY, &[&tree.hash, &tree.manifest.arrived(&missing), &tree.manifest.placed(false), ""]);
    let mut stdin = upload.stdin.take().unwrap();
    stdin.write_all(&stream[..stream.len() - 20_000]).unwrap();
    bench.until_staged(&upload, "t/train.py", 1);
    assert_eq!((accessible(&there), with_open_modes(&there)), (Vec::new(), Vec::new()), "while it arrives");
    stdin.write_all(&stream[stream.len() - 20_000..]).unwrap();
    drop(stdin);
    let ended = upload.wait_with_output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!((accessible(&there), with_open_modes(&there)), (Vec::new(), Vec::new()), "in its place");
    let mode = |name: &str| fs::metadata(bench.there(name)).unwrap().permissions().mode() & 0o7777;
    assert_eq!(["train.py", "pkg", "tool", ""].map(mode), [0o644, 0o755, 0o755, 0o700]);

    // what an earlier hvdctl left open, and the directory of a job
    let state = there.join(".p@lab");
    for path in [&bench.there(""), &state] {
        fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    }
    fs::create_dir(there.join("p+j1")).unwrap();
    bench.write("train.py", "new");
    let tree = bench.tree();
    let missing = bench.missing(&tree, &bench.compare_as(&tree, ("desk:/p", "", "j1")).unwrap());
    assert_eq!(accessible(&there), [""; 0]);
    assert!(bench.apply_for("j2", &tree, &missing, &Bench::stream(&tree, &missing)).status.success());
    assert!(bench.apply(&tree, &missing, &Bench::stream(&tree, &missing)).status.success());
    assert_eq!(accessible(&there), [""; 0]);
    assert!(bench.script(MERGE, &["j2"], b"").status.success());
    assert_eq!((accessible(&there), with_open_modes(&there)), (Vec::new(), Vec::new()));
}

#[test]
fn a_project_is_open_to_the_login_and_to_nobody_else() {
    // the group of a login that is not shared, as far as the script can know
    let login = ("4242", "4343");
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let bench = Bench::new();
    bench.write("train.py", "");
    let getent = format!(
        "case $* in 'passwd {0}') echo me:x:{0}:{1}:: ;; 'group {1}') echo me:x:{1}: ;; passwd) echo me:x:{0}:{1}:: ;; esac",
        login.0, login.1
    );
    let tools = bench.dir.path().join("tools");
    fs::create_dir(&tools).unwrap();
    fs::write(tools.join("getent"), format!("#!/bin/sh\n{getent}\n")).unwrap();
    fs::set_permissions(tools.join("getent"), Permissions::from_mode(0o755)).unwrap();
    let bench = Bench { login: Some(format!("{}:{}", login.0, login.1)), ..bench };
    for contents in ["first", "second"] {
        bench.write("train.py", contents);
        bench.upload();
        let top = fs::metadata(bench.there("")).unwrap();
        let is_group = std::os::unix::fs::MetadataExt::gid(&top);
        assert_eq!((top.permissions().mode() & 0o7777, is_group), (0o750, 4343), "{contents}");
    }
    let state = fs::metadata(bench.dir.path().join("there/.p@lab")).unwrap();
    assert_eq!(state.permissions().mode() & 0o7777, 0o700);
}

#[test]
fn who_uses_a_directory_has_to_be_known() {
    let bench = Bench::new();
    bench.write("train.py", "");
    bench.upload();
    bench.write("train.py", "new");
    let _job = job_process();
    bench.break_tool("grep", "*HVDCTL_JOB*", "memory exhausted");
    assert!(bench.failed_comparison("desk:/p").contains("cannot search the processes: grep: memory exhausted"));
    bench.repair();
    let workspace = "cannot statx '/proc/7/root/workspace'";
    bench.break_tool("stat", "*/root/workspace*", &format!("{workspace}: Input/output error"));
    let said = bench.failed_comparison("desk:/p");
    assert!(said.contains("cannot find out who uses p: ") && said.contains("Input/output error"), "{said}");
    // a process that has ended, and a container without this directory
    for harmless in ["No such process", "No such file or directory"] {
        bench.break_tool("stat", "*/root/workspace*", &format!("{workspace}: {harmless}"));
        assert!(!bench.compare(&bench.tree()).workspace.is_separate, "{harmless}");
    }
    bench.repair();

    // nor is a separate directory merged then
    let tree = bench.tree();
    let missing = bench.missing(&tree, &bench.compare(&tree));
    assert!(bench.apply_for("j1", &tree, &missing, &Bench::stream(&tree, &missing)).status.success());
    bench.break_tool("stat", "*/root/workspace*", &format!("{workspace}: Input/output error"));
    assert!(!bench.script(MERGE, &["j1"], b"").status.success());
    assert!(bench.dir.path().join("there/p+j1/train.py").exists());
}

#[test]
fn what_cannot_be_removed_fails_the_upload_and_keeps_what_a_job_wrote() {
    let bench = Bench::new();
    for name in ["train.py", "gone", "d/gone"] {
        bench.write(name, "old");
    }
    bench.upload();
    fs::remove_file(bench.here("gone")).unwrap();
    fs::remove_dir_all(bench.here("d")).unwrap();
    let tree = bench.tree();
    let apply = |id: &str| {
        let missing = bench.missing(&tree, &bench.compare(&tree));
        bench.apply_for(id, &tree, &missing, &Bench::stream(&tree, &missing))
    };
    for (tool, arguments, message) in [
        ("rm", "-df*", "cannot remove './gone': Operation not permitted"),
        ("sort", "'-zr -o '*", "gone: Input/output error"),
    ] {
        bench.break_tool(tool, arguments, message);
        let done = apply("");
        assert!(!done.status.success() && String::from_utf8_lossy(&done.stderr).contains(message), "{done:?}");
        bench.repair();
        assert!(!bench.compare(&tree).is_same);
    }

    assert!(apply("j1").status.success());
    let separate = bench.dir.path().join("there/p+j1");
    fs::write(separate.join("checkpoint"), "mine").unwrap();
    for (tool, arguments) in [("rm", "-df*"), ("cut", "*shipped+j1*"), ("cp", "-aluf*"), ("rm", "-rf*+j1")] {
        bench.break_tool(tool, arguments, "Input/output error");
        let merged = bench.script(MERGE, &["j1"], b"");
        let kept = format!("kept p+j1: {tool}: Input/output error\0");
        assert_eq!(String::from_utf8_lossy(&merged.stdout), kept, "{merged:?}");
        bench.repair();
        assert!(separate.join("checkpoint").exists(), "{tool} {arguments}");
    }
    assert!(bench.script(MERGE, &["j1"], b"").stdout.is_empty());
    assert_eq!(fs::read_to_string(bench.there("checkpoint")).unwrap(), "mine");
    assert!(!separate.exists());
}

#[test]
fn a_comparison_fails_where_a_tool_does() {
    let bench = Bench::new();
    bench.write("train.py", "");
    fs::create_dir_all(bench.there("")).unwrap();
    bench.break_tool("ls", "*", "cannot open directory 'p': Input/output error");
    assert!(bench.failed_comparison("desk:/p").contains("cannot open directory"), "it may belong to another project");
    bench.repair();
    bench.upload();
    fs::write(bench.there("train.py"), "changed").unwrap();
    bench.break_tool("comm", "*/stat*", "./p@lab/stat: Input/output error");
    assert!(bench.failed_comparison("desk:/p").contains("comm: "), "every file may have changed");
}

#[test]
fn another_project_of_the_name_and_a_foreign_directory_are_left_alone() {
    let bench = Bench::new();
    bench.write("train.py", "");
    fs::create_dir_all(bench.there("")).unwrap();
    let tree = bench.tree();
    fs::write(bench.there("theirs"), "").unwrap();
    assert_eq!(bench.compare_as(&tree, ("desk:/p", "", "")).unwrap_err(), ProjectRefusal::Foreign);
    fs::remove_file(bench.there("theirs")).unwrap();
    bench.upload();
    let other = bench.compare_as(&tree, ("desk:/q", "", ""));
    assert_eq!(other.unwrap_err(), ProjectRefusal::Origin("desk:/p".into()));
    assert!(bench.compare_as(&tree, ("desk:/p", "", "")).unwrap().is_same);
    // written by an earlier version on this very machine; it is more exact from then on
    assert!(bench.compare_as(&tree, ("ana@desk#1f0c:/p", "", "")).unwrap().is_same);
    let bob = bench.compare_as(&tree, ("bob@desk#1f0c:/p", "", ""));
    assert_eq!(bob.unwrap_err(), ProjectRefusal::Origin("ana@desk#1f0c:/p".into()));
    // confirmed to be the same, it is from then on
    assert!(bench.compare_as(&tree, ("desk:/p", "shared", "")).unwrap().is_same);
    assert!(bench.compare_as(&tree, ("desk:/q", "shared", "")).unwrap().is_same);
    assert!(bench.compare_as(&tree, ("desk:/q", "", "")).unwrap().is_same);
    assert_eq!(bench.compare_as(&tree, ("desk:/p", "", "")).unwrap_err(), ProjectRefusal::Origin("desk:/q".into()));
}

/// A file, a directory or a link, by a name that may be in a directory.
fn things() -> impl Strategy<Value = Vec<(String, u8)>> {
    prop::collection::vec(("([ab]/)?[a-c' *]{1,2}", any::<u8>()), 0..6)
}

fn lay_out(root: &Path, things: &[(String, u8)]) {
    for (name, kind) in things {
        let path = root.join(name);
        // the first of two that cannot both be there wins
        let _ = match kind % 3 {
            0 => fs::create_dir_all(&path),
            1 => path
                .parent()
                .map_or(Ok(()), fs::create_dir_all)
                .and_then(|()| if path.symlink_metadata().is_ok() { Ok(()) } else { fs::write(&path, [*kind]) }),
            _ => path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| symlink(kind.to_string(), &path)),
        };
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn any_tree_becomes_any_other(trees in prop::collection::vec(things(), 1..4)) {
        let bench = Bench::new();
        for things in trees {
            fs::remove_dir_all(bench.here("")).unwrap();
            fs::create_dir(bench.here("")).unwrap();
            lay_out(&bench.here(""), &things);
            bench.upload();
            prop_assert_eq!(bench.arrived().manifest, bench.tree().manifest);
            let links = |tree: &ProjectFiles| tree.manifest.0.values().filter(|e| matches!(e, ManifestEntry::Link { .. })).count();
            prop_assert_eq!(links(&bench.arrived()), links(&bench.tree()));
        }
    }
}

#[test]
fn a_failed_upload_has_a_kind_and_a_hint() {
    let text = "[cluster]\nname = \"lab\"\nimage = \"x\"\n[[node]]\nhost = \"a\"\n";
    let inventory = crate::inventory::Inventory::parse(text, Path::new("i.toml")).unwrap();
    let explained = |status, output: &str| {
        let failed = NodeError::failed("a", "upload", output).kind(ErrorKind::CommandFailed { status });
        let error = with_hint(&inventory.cluster, failed);
        (error.kind, error.hints.join("\n"))
    };
    let (kind, hint) = explained(1, "tar: t/x: Cannot write: No space left on device");
    assert_eq!(kind, ErrorKind::NoSpace);
    assert!(hint.contains("free space") && hint.contains("the earlier files are intact"));
    let misplaced = "some files are not in place with their type and mode";
    assert!(explained(MISPLACED, misplaced).1.contains("keeps modes"));
    // by then files are in their places, so the hint does not mention the earlier files
    let (kind, late) = explained(MISPLACED, &format!("stat: write error: No space left on device\n{misplaced}"));
    assert_eq!(kind, ErrorKind::NoSpace);
    assert!(late.contains("free space") && !late.contains("intact") && !late.contains("modes"), "{late}");
    let (kind, hint) = explained(DIFFERENT, "the files that arrived differ from those that were sent");
    assert_eq!((kind, hint.contains(".hvdctlignore")), (ErrorKind::FileChanged, true));
    let (_, hint) = explained(1, "cp: cannot overwrite directory './data' with non-directory");
    assert!(hint.contains("move it away"), "{hint}");
    assert_eq!(explained(2, "odd"), (ErrorKind::CommandFailed { status: 2 }, String::new()));
}
