//! The scripts as the nodes run them, in directories of this machine.

use super::*;
use crate::sync::manifest::Comparer;
use crate::sync::tests::{Process, accessible, stranger, with_open_modes};
use std::fs::{self, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// A directory of data here, and a node's directory of data.
struct Bench(tempfile::TempDir);

impl Bench {
    fn new(files: &[(&str, &str)]) -> Bench {
        let bench = Bench(tempfile::tempdir().unwrap());
        fs::create_dir(bench.here("")).unwrap();
        files.iter().for_each(|(name, text)| bench.write(name, text));
        bench
    }

    fn here(&self, name: &str) -> PathBuf {
        self.0.path().join("here").join(name)
    }

    fn there(&self, name: &str) -> PathBuf {
        self.0.path().join("there").join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::create_dir_all(self.here(name).parent().unwrap()).unwrap();
        fs::write(self.here(name), text).unwrap();
    }

    fn files(&self) -> ProjectFiles {
        ProjectFiles::read_data(&self.here("")).unwrap()
    }

    fn start(&self, script: &str, cluster: &str, arguments: &[&str]) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).arg(self.there("")).args(["set", cluster]).args(arguments);
        let tools = self.0.path().join("tools");
        let nfs4 = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/nfs4");
        command.env("PATH", format!("{}:{nfs4}:{}", tools.display(), std::env::var("PATH").unwrap()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    fn script(&self, script: &str, cluster: &str, arguments: &[&str], input: &[u8]) -> Output {
        let mut child = self.start(script, cluster, arguments);
        let (mut stdin, input) = (child.stdin.take().unwrap(), input.to_vec());
        let feeder = std::thread::spawn(move || stdin.write_all(&input));
        let output = child.wait_with_output().unwrap();
        let _ = feeder.join();
        output
    }

    /// Runs a script that succeeds and complains of nothing.
    #[track_caller]
    fn runs(&self, script: &str, arguments: &[&str], input: &[u8]) -> Vec<u8> {
        let output = self.script(script, "lab", arguments, input);
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        output.stdout
    }

    fn compare(&self, files: &ProjectFiles) -> DataState {
        DataState::parse(&self.runs(COMPARE, &[&files.hash, "desk:/set", "", ""], b"")).unwrap()
    }

    /// Compares, and decides what is sent.
    fn change(&self, files: &ProjectFiles) -> ChangeSet {
        let state = self.compare(files);
        let list = |list: &str, hash: &Option<String>| {
            let mut comparer = Comparer::new(&files.manifest);
            if hash.is_some() {
                let records = self.runs(MANIFEST, &[list], b"");
                assert_eq!(*hash, Some(crate::text::digest::in_hex(&records)));
                let records = records.split_inclusive(|byte| *byte == 0);
                records.for_each(|record| comparer.take(&record[..record.len() - 1]).unwrap());
            }
            comparer
        };
        let difference = Arc::new(list(HAS, &state.has).difference());
        ChangeSet::new(files, difference, Some(&list(STAGED, &state.staged).had()), state.is_staging)
    }

    /// Lets the node prepare itself for this change set.
    fn prepare(&self, files: &ProjectFiles, change: &ChangeSet) {
        if change.is_staging || !change.difference.gone.is_empty() {
            let mut pieces = files.prepare(&change.difference, change.kept.clone());
            let input = std::iter::from_fn(|| pieces.blocking_recv()).flat_map(Result::unwrap).collect::<Vec<u8>>();
            self.runs(STAGE, &[], &input);
        }
    }

    /// The tar stream of what a node in this state lacks, and the arguments of the script that takes it.
    fn stream(files: &ProjectFiles, change: &ChangeSet) -> (Vec<u8>, [String; 4]) {
        let (mut pieces, mut stream) = (files.stream(change.sent.clone()), Vec::new());
        while let Some(piece) = pieces.blocking_recv() {
            stream.extend_from_slice(&piece.unwrap());
        }
        let (arrived, placed) = (files.manifest.arrived(&change.sent), files.manifest.placed(false));
        (stream, [files.hash.clone(), arrived, placed, "desk:/set".into()])
    }

    /// Starts the script that takes the stream, from this pipe if there is one.
    fn apply(&self, arguments: &[String; 4], pipe: &str) -> Child {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).chain([pipe]).collect();
        self.start(APPLY, "lab", &arguments)
    }

    /// Compares, and sends the first `bytes` of the stream. Returns what was to be sent, with the number of files that
    /// were there.
    fn send(&self, bytes: usize) -> (Vec<String>, usize, Output) {
        let files = self.files();
        let change = self.change(&files);
        self.prepare(&files, &change);
        let (mut stream, arguments) = Bench::stream(&files, &change);
        stream.truncate(bytes);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).chain([""]).collect();
        let output = self.script(APPLY, "lab", &arguments, &stream);
        let sent = files.manifest.select(&change.sent).map(|(name, _)| name.clone()).collect();
        (sent, change.summary.resumed, output)
    }

    /// Pushes, and returns what was sent.
    #[track_caller]
    fn push(&self) -> Vec<String> {
        let (sent, _, output) = self.send(usize::MAX);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let files = self.files();
        assert!(self.compare(&files).is_same, "proven and unchanged");
        assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{}  -\n", files.hash));
        assert_eq!(ProjectFiles::read_data(&self.there("set")).unwrap().manifest, files.manifest);
        assert!(!self.there(".set@lab/stage").exists());
        sent
    }

    /// The state and the number of files that `data status` shows.
    fn listed(&self) -> Vec<(String, u64, u64)> {
        let output = self.runs(LIST, &[], b"");
        let text = String::from_utf8(output).unwrap();
        text.split('\0').filter_map(DataOnNode::parse).map(|data| (data.state, data.files, data.size)).collect()
    }

    fn break_tool(&self, tool: &str, arguments: &str, message: &str) {
        let tools = self.0.path().join("tools");
        fs::create_dir_all(&tools).unwrap();
        let real = ["/usr/bin", "/bin"].map(|place| Path::new(place).join(tool)).into_iter().find(|path| path.exists());
        let stub = format!(
            "#!/bin/sh\ncase \"$*\" in {arguments}) echo \"{tool}: {message}\" >&2; exit 1 ;; esac\nexec {} \"$@\"\n",
            real.unwrap().display()
        );
        fs::write(tools.join(tool), stub).unwrap();
        fs::set_permissions(tools.join(tool), Permissions::from_mode(0o755)).unwrap();
    }

    fn repair(&self) {
        fs::remove_dir_all(self.0.path().join("tools")).unwrap();
    }
}

#[test]
fn everything_arrives_unchanged_and_only_changes_are_sent() {
    let names =
        ["a b", "-rf", "-", "$(touch x)", "new\nline", "deep/er/ünï", "*", " ", ".git/HEAD", "cache/x", "back\\slash"];
    let bench = Bench::new(&[(".gitignore", "cache\n"), (".hvdctlignore", "*\n")]);
    names.iter().for_each(|name| bench.write(name, name));
    fs::create_dir(bench.here("empty")).unwrap();
    fs::set_permissions(bench.here("empty"), Permissions::from_mode(0o700)).unwrap();
    symlink("a b", bench.here("link")).unwrap();
    assert!(Command::new("mkfifo").arg(bench.here("pipe")).status().unwrap().success());
    assert_eq!(bench.listed(), []);
    assert!(!bench.there("").exists(), "a list creates nothing");
    assert_eq!(bench.push().len(), bench.files().manifest.0.len());
    assert_eq!(bench.listed(), [("complete".to_owned(), 13, bench.files().manifest.size())]);

    bench.write("a b", "changed");
    bench.write("deep/more", "new");
    fs::remove_file(bench.here("*")).unwrap();
    fs::remove_dir_all(bench.here("cache")).unwrap();
    bench.write("cache", "a file now");
    fs::remove_file(bench.here("link")).unwrap();
    fs::create_dir(bench.here("link")).unwrap();
    assert_eq!(bench.push(), ["a b", "cache", "deep", "deep/more", "link"]);

    // what others do to the files on the node is undone, and files of theirs stay
    fs::write(bench.there("set/new\nline"), "other").unwrap();
    fs::set_permissions(bench.there("set/-rf"), Permissions::from_mode(0o600)).unwrap();
    fs::remove_file(bench.there("set/ ")).unwrap();
    assert_eq!(bench.listed()[0].0, "changed");
    fs::write(bench.there("set/theirs"), "x").unwrap();
    let (sent, _, output) = bench.send(usize::MAX);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(sent, [" ", "-rf", "new\nline"]);
    assert_eq!(fs::read_to_string(bench.there("set/theirs")).unwrap(), "x");
    assert_eq!(bench.runs(REMOVE, &[], b""), b"removed\0left\0");
    let left: Vec<_> = fs::read_dir(bench.there("set")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["theirs"]);
    assert!(!bench.there(".set@lab").exists() && bench.there("").exists());
    assert_eq!(bench.runs(REMOVE, &[], b""), b"");
}

#[test]
fn the_answer_of_a_comparison_is_short_however_many_files_there_are() {
    let bench = Bench::new(&[]);
    for i in 0..300 {
        bench.write(&format!("{}/{i}", i % 7), &i.to_string());
    }
    bench.push();
    bench.write("3/3", "changed");
    let short = |files: &ProjectFiles| {
        let answer = bench.runs(COMPARE, &[&files.hash, "desk:/set", "", ""], b"");
        assert!(answer.len() < 300, "{}", String::from_utf8_lossy(&answer));
    };
    short(&bench.files());
    fs::write(bench.there("set/4/4"), "other").unwrap();
    short(&bench.files());
    // and without a proof, as after a push that was interrupted
    fs::remove_file(bench.there(".set@lab/stat")).unwrap();
    short(&bench.files());
    let sent = bench.push();
    assert_eq!(sent.iter().filter(|name| name.contains('/')).collect::<Vec<_>>(), ["3/3", "4/4"]);
    // only what is sent is named by what is sent
    bench.write("5/5", "changed");
    let files = bench.files();
    let (stream, _) = Bench::stream(&files, &bench.change(&files));
    assert!(stream.len() < 10_000, "{}", stream.len());
}

#[test]
fn the_states_of_an_earlier_hvdctl_are_understood() {
    let bench = Bench::new(&[("b", "1"), ("a", "2"), ("d/c", "3")]);
    bench.push();
    let stat = bench.there(".set@lab/stat");
    let states = fs::read(&stat).unwrap();
    assert!(Command::new("sort").arg("-zo").args([&stat, &stat]).status().unwrap().success());
    assert_ne!(fs::read(&stat).unwrap(), states);
    assert_eq!(bench.listed()[0].0, "complete");
    fs::write(bench.there("set/b"), "other").unwrap();
    assert_eq!(bench.push(), ["b"]);
}

#[test]
fn what_replaces_other_data_is_reported() {
    let bench = Bench::new(&[("a", "x")]);
    bench.push();
    let files = bench.files();
    let compared = |origin: &str| {
        DataState::parse(&bench.runs(COMPARE, &[&files.hash, origin, &earlier_origin(origin), "shared"], b"")).unwrap()
    };
    assert_eq!(compared("desk:/other").replaces.as_deref(), Some("desk:/set"));
    assert_eq!(compared("desk:/set").replaces, None);
    assert_eq!(compared("ana@desk#1f0c:/set").replaces, None, "an earlier version wrote less");
}

#[test]
fn a_push_that_puts_files_into_place_is_waited_for() {
    let bench = Bench::new(&[("a", "x")]);
    bench.push();
    bench.break_tool("flock", "'-w 30 9'", "the time is over");
    bench.runs(STOP, &[], b"");
}

#[test]
fn an_interrupted_push_continues_with_the_files_that_are_missing() {
    let bench = Bench::new(&[("z/link", "")]);
    for i in 0..20 {
        bench.write(&format!("{}/{i:02}", i / 10), &i.to_string().repeat(50_000));
    }
    let (sent, resumed, output) = bench.send(1_000_000);
    assert_eq!((sent.len(), resumed, output.status.success()), (24, 0, false), "{output:?}");
    assert!(!bench.there("set").exists(), "a job sees nothing before all is there");
    assert_eq!(bench.listed(), [("incomplete".to_owned(), 0, 0)]);
    let (sent, resumed, output) = bench.send(400_000);
    assert!(resumed > 5 && sent.len() + resumed == 24 && !output.status.success(), "{resumed} {output:?}");
    // meanwhile a file that had arrived changed, another one was removed, a directory became a file
    bench.write("0/00", "changed");
    fs::remove_file(bench.here("0/01")).unwrap();
    fs::remove_dir_all(bench.here("1")).unwrap();
    bench.write("1", "a file now");
    let sent = bench.push();
    assert!(sent.contains(&"0/00".to_owned()) && !sent.contains(&"0/02".to_owned()), "{sent:?}");
    assert_eq!(bench.listed()[0].0, "complete");

    // a file of a changed directory: the old one stays in place until the new one has arrived
    bench.write("0/00", &"new".repeat(100_000));
    let (_, _, output) = bench.send(100_000);
    assert!(!output.status.success());
    assert_eq!(fs::read_to_string(bench.there("set/0/00")).unwrap(), "changed");
    assert_eq!(bench.listed()[0].0, "complete");
    assert_eq!(bench.push(), ["0", "0/00"]);
}

#[test]
fn data_keep_their_origin_until_those_of_another_one_replace_them() {
    let bench = Bench::new(&[("a", "old"), ("b", "old")]);
    bench.push();
    let origin = || fs::read_to_string(bench.there(".set@lab/origin")).unwrap();
    bench.write("a", &"new".repeat(100_000));
    let replace = |bytes: usize| {
        let files = bench.files();
        let change = bench.change(&files);
        bench.prepare(&files, &change);
        let (mut stream, [tree, arrived, placed, _]) = Bench::stream(&files, &change);
        stream.truncate(bytes);
        bench.script(APPLY, "lab", &[&tree, &arrived, &placed, "other:/set", ""], &stream)
    };
    assert!(!replace(100_000).status.success());
    assert_eq!((origin().as_str(), bench.listed()[0].0.as_str()), ("desk:/set\n", "complete"));
    // from here on they are data of both
    bench.break_tool("mv", "*tree*", "Input/output error");
    assert!(!replace(usize::MAX).status.success());
    bench.repair();
    assert_eq!((origin().as_str(), bench.listed()[0].0.as_str()), ("other:/set\n", "incomplete"));
    // data that are new have an origin before they are complete
    let bench = Bench::new(&[("a", &"new".repeat(100_000))]);
    assert!(!bench.send(100_000).2.status.success());
    assert_eq!(fs::read_to_string(bench.there(".set@lab/origin")).unwrap(), "desk:/set\n");
}

#[test]
fn a_failure_at_any_step_of_the_change_is_made_good_without_sending_files_again() {
    let changed = |bench: &Bench| {
        bench.write("d/b", "new");
        bench.write("e/c", "new");
        fs::remove_file(bench.here("gone")).unwrap();
    };
    for (tool, arguments) in [("rm", "'-df '*"), ("cp", "*"), ("rm", "*stage/t"), ("sort", "*'-k 6'"), ("mv", "*tree*")]
    {
        let bench = Bench::new(&[("a", "old"), ("d/b", "old"), ("gone", "old")]);
        bench.push();
        changed(&bench);
        bench.break_tool(tool, arguments, "Input/output error");
        let (_, _, output) = bench.send(usize::MAX);
        assert!(String::from_utf8_lossy(&output.stderr).contains("Input/output error"), "{tool}: {output:?}");
        assert_eq!(bench.listed()[0].0, "incomplete", "{tool} {arguments}");
        bench.repair();
        let sent = bench.push();
        assert!(!sent.contains(&"a".to_owned()) && !sent.contains(&"d/b".to_owned()), "{tool} {arguments}: {sent:?}");
        assert!(!bench.there("set/gone").exists());
    }
    // the first push is renamed as a whole
    for arguments in ["*/m*shipped", "-T*", "*tree"] {
        let bench = Bench::new(&[("a", "old"), ("d/b", "old")]);
        bench.break_tool("mv", arguments, "Input/output error");
        assert!(!bench.send(usize::MAX).2.status.success());
        bench.repair();
        assert!(bench.push().iter().all(|sent| sent == "d"), "{arguments}");
    }
}

#[test]
fn what_is_of_another_kind_on_the_node_is_replaced() {
    let bench = Bench::new(&[("a", "x"), ("b/c", "x"), ("d", "x"), ("e/f", "x")]);
    symlink("a", bench.here("link")).unwrap();
    bench.push();
    fs::remove_file(bench.here("link")).unwrap();
    bench.write("link/x", "y");
    // interrupted before it removes anything
    bench.break_tool("rm", "-df*", "Killed");
    assert!(!bench.send(usize::MAX).2.status.success());
    bench.repair();
    bench.push();
    // by others
    let there = |name: &str| bench.there("set").join(name);
    fs::remove_dir_all(there("b")).unwrap();
    symlink("a", there("b")).unwrap();
    fs::remove_file(there("d")).unwrap();
    fs::create_dir(there("d")).unwrap();
    fs::remove_dir_all(there("e")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, there("e"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    bench.push();
}

#[test]
fn a_push_that_outlives_its_hvdctl_changes_nothing_after_another_has_begun() {
    let bench = Bench::new(&[("a", "first")]);
    bench.push();
    bench.write("a", "second");
    let files = bench.files();
    let change = bench.change(&files);
    let (stream, arguments) = Bench::stream(&files, &change);
    let mut earlier = bench.apply(&arguments, "");
    // all of it, but not the end of the stream
    earlier.stdin.as_mut().unwrap().write_all(&stream).unwrap();
    while !bench.there(".set@lab/push").exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    fs::write(bench.here("a"), "third").unwrap();
    // it writes nothing more to what the next push hashes, though more may still arrive
    let input = earlier.stdin.take();
    bench.push();
    let ended = earlier.wait_with_output().unwrap();
    drop(input);
    assert!(!ended.status.success() && !ended.stderr.is_empty(), "{ended:?}");
    assert_eq!(fs::read_to_string(bench.there("set/a")).unwrap(), "third");
    assert!(bench.compare(&bench.files()).is_same);
}

#[test]
fn only_a_process_that_receives_is_ended_whenever_its_number_is_known() {
    let bench = Bench::new(&[("a", "first")]);
    let stage = bench.there(".set@lab/stage");
    fs::create_dir_all(&stage).unwrap();
    // one that receives, before it has written its number, which is that of another process until then
    let mut other = Command::new("sleep").arg("60").spawn().unwrap();
    fs::write(stage.join("pid"), other.id().to_string()).unwrap();
    let receive = "exec 7>>\"${1%/*}/receiving\"; flock 7; echo; sleep 2; echo $$ >\"$1/pid\"; exec sleep 60";
    let mut receiver = Command::new("sh");
    receiver.args(["-c", receive, "sh"]).arg(&stage).stdout(Stdio::piped());
    let mut receiver = receiver.spawn().unwrap();
    std::io::Read::read_exact(receiver.stdout.as_mut().unwrap(), &mut [0]).unwrap();
    bench.push();
    assert_eq!(receiver.wait().unwrap().signal(), Some(15));
    assert_eq!(other.try_wait().unwrap(), None, "it receives nothing");
    other.kill().unwrap();
    other.wait().unwrap();
}

#[test]
fn a_push_that_was_stopped_puts_nothing_into_place() {
    let bench = Bench::new(&[("a", "first")]);
    assert!(bench.runs(STOP, &[], b"").is_empty() && !bench.there("").exists(), "it creates nothing");
    for is_new in [true, false] {
        let files = bench.files();
        let (stream, arguments) = Bench::stream(&files, &bench.change(&files));
        let mut push = bench.apply(&arguments, "");
        push.stdin.as_mut().unwrap().write_all(&stream).unwrap();
        while !bench.there(".set@lab/push").exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
        bench.runs(STOP, &[], b"");
        drop(push.stdin.take());
        let ended = push.wait_with_output().unwrap();
        assert!(!ended.status.success() && !ended.stderr.is_empty(), "{ended:?}");
        let in_place = fs::read_to_string(bench.there("set/a")).ok();
        assert_eq!(in_place.as_deref(), (!is_new).then_some("first"));
        bench.push();
        bench.write("a", "second");
    }
}

#[test]
fn files_come_through_the_pipe_of_a_relay() {
    let bench = Bench::new(&[("a", "first"), ("d/b", "")]);
    let pipe = || bench.there(".set@lab/relay/pipe");
    let push = |bytes: usize, first: &[u8]| {
        let files = bench.files();
        let change = bench.change(&files);
        bench.prepare(&files, &change);
        bench.runs(RELAY, &[], b"");
        let (stream, arguments) = Bench::stream(&files, &change);
        let push = bench.apply(&arguments, pipe().to_str().unwrap());
        let stream = [first, &stream[..bytes.min(stream.len())]].concat();
        let (relay, pipe) = (pipe(), pipe().with_file_name("spooled"));
        fs::write(pipe, &stream).unwrap();
        let relay = std::thread::spawn(move || fs::OpenOptions::new().write(true).open(relay)?.write_all(&stream));
        let ended = push.wait_with_output().unwrap();
        relay.join().unwrap().map(|()| ended)
    };
    // one that ends in the middle
    let ended = push(2000, b"\n").unwrap();
    assert!(!ended.status.success() && !bench.there("set").exists(), "{ended:?}");
    assert!(String::from_utf8_lossy(&ended.stderr).contains("Unexpected EOF"), "{ended:?}");
    assert!(pipe().exists());
    bench.compare(&bench.files());
    assert!(!pipe().exists(), "a new push removes what a relay has left");
    let ended = push(usize::MAX, b"\n").unwrap();
    assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
    assert!(bench.compare(&bench.files()).is_same && !bench.there(".set@lab/relay").exists());

    // one that never comes; the time is over at once
    bench.write("a", "second");
    bench.break_tool("timeout", "60*", "it was waited for");
    let files = bench.files();
    let (_, arguments) = Bench::stream(&files, &bench.change(&files));
    bench.runs(RELAY, &[], b"");
    let ended = bench.apply(&arguments, pipe().to_str().unwrap()).wait_with_output().unwrap();
    assert!(String::from_utf8_lossy(&ended.stderr).contains("the relay of the node sends nothing"), "{ended:?}");
    bench.repair();
    bench.runs(STOP, &[], b"");
    assert!(!bench.there(".set@lab/relay").exists() && bench.there("set/a").exists());
    // and one whose pipe is gone
    let ended = bench.apply(&arguments, pipe().to_str().unwrap()).wait_with_output().unwrap();
    assert!(!ended.status.success() && !ended.stderr.is_empty(), "{ended:?}");
    bench.push();
}

#[test]
fn nobody_else_can_use_data_even_if_a_relay_sends_other_modes() {
    // tar reads 256 KiB at once
    let bench = Bench::new(&[("tool", "x"), ("d/z", "y"), ("zz", &"z".repeat(600_000))]);
    let (there, text) = (bench.there(""), |files: &ProjectFiles| files.manifest.text());
    // a stream that no parcel makes
    let hostile = |files: &ProjectFiles, manifest: &str| {
        let mut tar = tar::Builder::new(Vec::new());
        let mut append = |name: &str, mode, contents: &[u8]| {
            let mut header = crate::sync::files::file_header(mode, contents.len() as u64, 1);
            tar.append_data(&mut header, name, contents).unwrap();
        };
        append("m", 0o666, manifest.as_bytes());
        append("t/tool", 0o6777, &fs::read(bench.here("tool")).unwrap());
        append("t/d/z", 0o2666, b"y");
        append("t/zz", 0o644, &fs::read(bench.here("zz")).unwrap());
        append("f1", 0o666, b"./d/z\0./tool\0./zz\0");
        let change = bench.change(files);
        bench.prepare(files, &change);
        let all = ChangeSet::new(files, files.differences.all(&files.manifest), None, false);
        (tar.into_inner().unwrap(), Bench::stream(files, &all).1)
    };
    let push = |is_other: bool| {
        let files = bench.files();
        let manifest = if is_other { "f 4755 00 tool\0".to_owned() } else { text(&files) };
        let (stream, arguments) = hostile(&files, &manifest);
        bench.runs(RELAY, &[], b"");
        let pipe = bench.there(".set@lab/relay/pipe");
        let push = bench.apply(&arguments, pipe.to_str().unwrap());
        let mut relay = fs::OpenOptions::new().write(true).open(&pipe).unwrap();
        let (files_of_it, end) = stream.split_at(stream.len() - 1024);
        relay.write_all(&[b"\n", files_of_it].concat()).unwrap();
        // the files are staged, and the stream has not ended
        while !bench.there(".set@lab/stage/t/zz").exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!((accessible(&there), with_open_modes(&there)), (Vec::new(), Vec::new()));
        relay.write_all(end).unwrap();
        drop(relay);
        let ended = push.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(if is_other { DIFFERENT } else { 0 }), "{ended:?}");
        assert_eq!((accessible(&there), with_open_modes(&there)), (Vec::new(), Vec::new()));
    };
    fs::set_permissions(bench.here("tool"), Permissions::from_mode(0o755)).unwrap();
    push(true);
    assert!(!bench.there("set").exists());
    push(false);
    let mode = |name: &str| fs::metadata(bench.there(name)).unwrap().permissions().mode() & 0o7777;
    assert_eq!(["set", ".set@lab", "set/tool", "set/d/z"].map(mode), [0o700, 0o700, 0o755, 0o644]);
    bench.write("tool", "changed");
    push(false);
    assert_eq!(mode("set"), 0o700);
}

#[test]
fn another_user_cannot_keep_data_from_changing() {
    let bench = Bench::new(&[("a", "first")]);
    bench.push();
    // as an earlier hvdctl left them
    let directories = ["set", ".set@lab", ".set@lab/stage"].map(|name| bench.there(name));
    fs::create_dir(&directories[2]).unwrap();
    for path in &directories {
        fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    }
    assert_ne!(accessible(&bench.there("")), [""; 0]);
    let Some(mut flock) = stranger("sh") else { return };
    let hold = "exec 8<\"$1\" 9<\"$2\"; flock -n 8 && flock -n 9 && echo; sleep 600";
    flock.args(["-c", hold, "sh"]).args(&directories[1..]).stdout(Stdio::piped());
    let mut holder = Process(flock.spawn().unwrap());
    std::io::Read::read_exact(holder.0.stdout.as_mut().unwrap(), &mut [0]).unwrap();
    bench.write("a", "second");
    bench.push();
    assert_eq!(accessible(&bench.there("")), [""; 0]);
    let files = fs::read_dir(bench.there(".set@lab")).unwrap().map(|entry| entry.unwrap());
    let locks: Vec<u32> = files.map(|file| file.metadata().unwrap().permissions().mode() & 0o7777).collect();
    assert!(locks.iter().all(|mode| *mode == 0o600), "{locks:?}");
}

#[test]
fn a_full_disk_ends_a_push_at_once() {
    let bench = Bench::new(&[("a", "x")]);
    let files = bench.files();
    let (_, arguments) = Bench::stream(&files, &bench.change(&files));
    // from GNU tar on a full file system
    for message in ["t/a: Cannot write: No space left on device", "t/a: Wrote only 512 of 262144 bytes"] {
        // tar goes on reading
        bench.break_tool("tar", "*", &format!("{message}\" >&2; exec cat >/dev/null; echo \""));
        let mut push = bench.apply(&arguments, "");
        let stdin = push.stdin.take();
        let ended = push.wait_with_output().unwrap();
        assert!(!ended.status.success(), "{ended:?}");
        assert_eq!(String::from_utf8_lossy(&ended.stderr), format!("tar: {message}\n"));
        assert_eq!(failure::files(message), Some(FileFailure::NoSpace));
        drop(stdin);
    }
}

#[test]
fn data_of_others_are_refused() {
    let bench = Bench::new(&[("a", "x")]);
    let files = bench.files();
    let compare = |cluster: &str, origin: &str, replaces: &str| {
        let output = bench.script(COMPARE, cluster, &[&files.hash, origin, &earlier_origin(origin), replaces], b"");
        assert!(output.status.success(), "{output:?}");
        DataState::parse(&output.stdout)
    };
    fs::create_dir_all(bench.there("set")).unwrap();
    assert_eq!(compare("lab", "desk:/set", "yes"), Err(DataRefusal::Foreign));
    fs::remove_dir(bench.there("set")).unwrap();
    symlink("elsewhere", bench.there("set")).unwrap();
    assert_eq!(compare("lab", "desk:/set", "yes"), Err(DataRefusal::Foreign));
    fs::remove_file(bench.there("set")).unwrap();
    assert!(fs::read_dir(bench.there("")).unwrap().next().is_none(), "a comparison creates nothing");
    bench.push();
    assert_eq!(compare("lab", "desk:/other", ""), Err(DataRefusal::Origin("desk:/set".into())));
    assert!(compare("lab", "desk:/other", "yes").unwrap().is_same);
    assert_eq!(compare("lab2", "desk:/set", "yes"), Err(DataRefusal::Cluster("lab".into())));
    assert_eq!(bench.script(REMOVE, "lab2", &[], b"").stdout, b"");
    assert!(bench.there("set/a").exists());
}

#[test]
fn what_is_needed_counts_blocks_of_what_is_sent_alone() {
    let bench = Bench::new(&[("a", "x"), ("b", &"y".repeat(4097))]);
    let files = bench.files();
    let records = files.manifest.text();
    let of_b = records.split_terminator('\0').nth(1).unwrap();
    let of = |records: &[String]| {
        let mut comparer = Comparer::new(&files.manifest);
        records.iter().for_each(|record| comparer.take(record.as_bytes()).unwrap());
        ChangeSet::new(&files, Arc::new(comparer.difference()), None, false)
    };
    let all = of(&[]);
    let text = 4 * records.len() as u64;
    assert_eq!((all.needed(&files), all.summary.bytes), (3 * 4096 + text, 4098));
    let rest = of(&[of_b.to_owned()]);
    assert_eq!((rest.needed(&files), rest.summary.sent), (4096 + text, 1));
    // another mode is another file
    let other = of_b.replace("f 6", "f 7");
    assert!(other != of_b && of(&[other]).summary.sent == 2, "{of_b}");
}

#[test]
fn holes_are_not_sent_and_stay_holes() {
    let bench = Bench::new(&[("a", "x")]);
    let write = |name: &str, size: u64, parts: &[(u64, usize)]| {
        let file = fs::File::create(bench.here(name)).unwrap();
        file.set_len(size).unwrap();
        for (offset, length) in parts {
            std::os::unix::fs::FileExt::write_all_at(&file, &vec![b'x'; *length], *offset).unwrap();
        }
    };
    let many: Vec<(u64, usize)> = (0..100).map(|at| (at << 16, 4096)).collect();
    let sparse = ["many", "hole", "odd", "in the middle"];
    write("many", 100 << 16, &many);
    write("hole", 1 << 20, &[]);
    write("odd", (4 << 20) + 7, &[(3 << 20, 1), ((4 << 20) + 6, 1)]);
    write("in the middle", 64 << 20, &[(0, 9), (32 << 20, 10_000)]);
    write("dense", 200_000, &[(0, 200_000)]);
    let allocated =
        |name: &str| std::os::unix::fs::MetadataExt::blocks(&fs::metadata(bench.there(name)).unwrap()) * 512;
    for is_new in [true, false] {
        if !is_new {
            // files are staged one by one
            bench.write("a", "y");
            write("many", 100 << 16, &many[1..]);
            write("odd", (4 << 20) + 7, &[(2 << 20, 1)]);
        }
        let files = bench.files();
        let change = bench.change(&files);
        let (stream, _) = Bench::stream(&files, &change);
        assert!(stream.len() < 1 << 20, "{}", stream.len());
        assert!(change.summary.bytes < 1 << 20 && change.needed(&files) < 1 << 20, "{change:?}");
        bench.push();
        for name in sparse {
            assert!(allocated(&format!("set/{name}")) < 1 << 20, "{name}: {}", allocated(&format!("set/{name}")));
        }
    }
    assert!(allocated("set/dense") >= 200_000);
}

#[test]
fn a_comparison_counts_the_files_that_fit() {
    let bench = Bench::new(&[("a", "x")]);
    let files = bench.files();
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    let script = "mount -t tmpfs -o nr_inodes=20 none $1 && exec sh -c \"$2\" sh $1 set lab $3 desk:/set '' ''";
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(bench.0.path()).args([COMPARE, &files.hash]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let inodes = DataState::parse(&output.stdout).unwrap().inodes;
    assert!(inodes.is_some_and(|inodes| (10..20).contains(&inodes)), "{inodes:?}");
    assert_eq!(too_many("it has", 20, Some(20), "/d"), None);
    assert_eq!(too_many("it has", 20, None, "/d"), None);
    let words = "they are 5000 files and directories, and /d has room for 1990 more: 3010 are missing";
    assert_eq!(too_many("they are", 5000, Some(1990), "/d").unwrap(), words);
    assert_eq!(DataState::parse(b"inodes -1\0").unwrap().inodes, Some(0));
}
