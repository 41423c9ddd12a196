//! The scripts as the nodes run them, in directories of this machine.

use super::*;
use crate::sync::outputs::JobOutput;
use crate::text::digest::in_hex;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};

/// A script's output.
fn sh(script: &str, args: &[&str], input: &[u8]) -> Vec<u8> {
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let feeder = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().unwrap();
    feeder.join().unwrap().unwrap();
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

/// The outputs of the job `j1` in the projects' directory `root`.
fn found(root: &str) -> NodeOutputs {
    let mut found = NodeOutputs::parse(&sh(LIST, &[root, "p", "lab", "j1"], b""));
    let names = names(found.files().map(|(name, _)| name));
    if let Some(directory) = &found.directory {
        let hashed = sh(HASH, &[&format!("{root}/{directory}")], &names);
        found.add_hashes(&hashed);
    }
    found
}

fn uploaded(known: &std::path::Path, list: &str, files: &[(&str, &str)]) {
    fs::create_dir_all(known).unwrap();
    let text: String = files.iter().map(|(name, text)| format!("f 644 {} {name}\0", in_hex(text.as_bytes()))).collect();
    fs::write(known.join(list), text).unwrap();
}

#[test]
fn what_is_new_or_changed_is_found_under_any_name() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().to_str().unwrap();
    assert_eq!(found(root), NodeOutputs::default(), "there is no project");
    let at = |name: &str| dir.path().join("p").join(name);
    fs::create_dir_all(at("deep/__pycache__")).unwrap();
    for (name, text) in
        [("train.py", "code"), ("data", "scribbled"), ("-n ew\nline'", "x"), ("deep/__pycache__/a", "x")]
    {
        fs::write(at(name), text).unwrap();
    }
    symlink("data", at("deep/latest")).unwrap();
    uploaded(&dir.path().join(".p@lab"), "shipped", &[("train.py", "code"), ("data", "as it was")]);
    let outputs = found(root).outputs;
    assert_eq!(outputs.keys().collect::<Vec<_>>(), ["-n ew\nline'", "data", "deep/latest"]);
    assert_eq!(outputs["deep/latest"], JobOutput::Link("data".into()));
    let JobOutput::File { hash, mode, size, .. } = &outputs["data"] else { panic!() };
    assert_eq!((hash.as_str(), mode & 0o700, *size), (in_hex(b"scribbled").as_str(), 0o600, 9));

    // the job's separate directory takes precedence
    fs::create_dir(dir.path().join("p+j1")).unwrap();
    fs::write(dir.path().join("p+j1/train.py"), "new code").unwrap();
    fs::write(dir.path().join("p+j1/best"), "x").unwrap();
    uploaded(&dir.path().join(".p@lab"), "shipped+j1", &[("train.py", "new code")]);
    let own = found(root);
    assert_eq!((own.directory.as_deref(), own.outputs.len()), (Some("p+j1"), 1));
}

/// Unpacks what tar reads of these files, which have the given contents when they are listed and are changed by
/// `change` before tar reads them. A name that ends with `@` is that of a link to the contents.
fn unpacked(files: &[(&str, &[u8])], change: impl FnOnce(&std::path::Path)) -> (tempfile::TempDir, BTreeSet<String>) {
    let dir = tempfile::tempdir().unwrap();
    let (there, here) = (dir.path().join("there"), dir.path().join("here"));
    fs::create_dir(&there).unwrap();
    let downloads: Vec<Download> = files
        .iter()
        .map(|(name, text)| {
            let output = if name.ends_with('@') {
                let target = str::from_utf8(text).unwrap();
                symlink(target, there.join(name)).unwrap();
                JobOutput::Link(target.to_owned())
            } else {
                fs::write(there.join(name), text).unwrap();
                JobOutput::File { hash: in_hex(text), mode: 0o640, size: text.len() as u64, time: 1.0 }
            };
            Download { path: (*name).to_owned(), node: "n1".into(), name: (*name).to_owned(), output, uploaded: None }
        })
        .collect();
    change(&there);
    let names = names(downloads.iter().map(|download| &*download.name));
    let mut command = Command::new("sh");
    command.args(["-c", SEND, "sh"]).arg(&there).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(&names).unwrap();
    let stream = child.wait_with_output().unwrap().stdout;
    let target = TargetDirectory::open(&here).unwrap();
    let (placed, unpacked) = unpack(&stream[..], &downloads, &target);
    assert!(unpacked.is_ok(), "{unpacked:?}");
    (dir, placed)
}

#[test]
fn files_of_any_name_arrive() {
    let long: Vec<u8> = (0..300_000u32).map(|i| (i % 251) as u8).collect();
    let name = "n".repeat(200);
    let files =
        [("a b", &b"hello"[..]), ("-x", b""), ("long", &long), ("q'\n", b"odd"), ("back\\n", b"x"), (&name, b"y")];
    let (dir, placed) = unpacked(&files, |there| {
        fs::remove_file(there.join("-x")).unwrap();
        fs::hard_link(there.join("a b"), there.join("another")).unwrap();
        fs::write(there.join("-x"), "").unwrap();
    });
    assert_eq!(placed.len(), files.len());
    for (name, text) in files {
        assert!(fs::read(dir.path().join("here").join(name)).unwrap() == text, "{name:?}");
    }
}

#[test]
fn a_file_that_was_changed_is_left_out_and_no_other() {
    let files = [("shrunk", &b"contents"[..]), ("replaced", b"old"), ("gone", b"x"), ("kind", b"x"), ("grown", b"log")];
    let (dir, placed) = unpacked(&files, |there| {
        fs::write(there.join("shrunk"), "con").unwrap();
        fs::write(there.join("replaced"), "new").unwrap();
        fs::remove_file(there.join("gone")).unwrap();
        fs::remove_file(there.join("kind")).unwrap();
        symlink("/etc/passwd", there.join("kind")).unwrap();
        fs::write(there.join("grown"), "log and more").unwrap();
    });
    assert_eq!(placed, BTreeSet::from(["grown".to_owned()]));
    let here: Vec<_> = fs::read_dir(dir.path().join("here")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(here.len(), 2, "{here:?}");
    assert_eq!(fs::read_to_string(dir.path().join("here/grown")).unwrap(), "log");
}

#[test]
fn links_arrive_unless_they_were_changed() {
    let long = "d/".repeat(100) + "end";
    let names = ["to-file@", "dangling@", "long@", "gone@", "other@", "file@", "empty"];
    let contents = ["empty", "no such/file", &long, "empty", "empty", "empty", ""];
    let files: Vec<(&str, &[u8])> = names.into_iter().zip(contents.map(str::as_bytes)).collect();
    let (dir, placed) = unpacked(&files, |there| {
        ["gone@", "other@", "file@", "empty"].iter().for_each(|name| fs::remove_file(there.join(name)).unwrap());
        symlink("elsewhere", there.join("other@")).unwrap();
        fs::write(there.join("file@"), "empty").unwrap();
        symlink("/etc/passwd", there.join("empty")).unwrap();
    });
    assert_eq!(placed.iter().collect::<Vec<_>>(), ["dangling@", "long@", "to-file@"]);
    for (name, target) in names.into_iter().zip(contents) {
        let link = fs::read_link(dir.path().join("here").join(name)).ok();
        assert_eq!(link.as_deref(), placed.contains(name).then_some(std::path::Path::new(target)), "{name}");
    }
}

#[test]
fn a_stream_that_breaks_off_or_was_altered_writes_only_what_was_listed() {
    let dir = tempfile::tempdir().unwrap();
    let target = TargetDirectory::open(&dir.path().join("here")).unwrap();
    let output = |text: &[u8]| JobOutput::File { hash: in_hex(text), mode: 0o640, size: text.len() as u64, time: 1.0 };
    let download = |name: &str, text: &[u8]| Download {
        path: name.to_owned(),
        node: "n1".into(),
        name: name.to_owned(),
        output: output(text),
        uploaded: None,
    };
    let downloads = [download("a", &[b'a'; 2000]), download("b", &[b'b'; 2000])];
    let mut tar = tar::Builder::new(Vec::new());
    for (name, text) in [("./a", [b'a'; 2000]), ("./c", [b'c'; 2000]), ("../b", [b'b'; 2000]), ("./b", [b'b'; 2000])] {
        let mut header = tar::Header::new_gnu();
        header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_mode(0o644);
        header.set_size(2000);
        header.set_cksum();
        tar.append(&header, &text[..]).unwrap();
    }
    let stream = tar.into_inner().unwrap();
    let entries = |end: usize| unpack(&stream[..end], &downloads, &target).0;
    for (end, whole) in [(0, 0), (100, 0), (600, 0), (2600, 1), (9000, 1), (stream.len(), 2)] {
        assert_eq!(entries(end).len(), whole, "after {end} of {} bytes", stream.len());
    }
    drop(target);
    let mut written: Vec<_> = fs::read_dir(dir.path())
        .unwrap()
        .chain(fs::read_dir(dir.path().join("here")).unwrap())
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    written.sort();
    assert_eq!(written, [".hvdctl-fetch", "a", "b", "here"]);
}

#[test]
fn a_project_from_a_node_gets_no_mode_that_gives_others_a_right() {
    let dir = tempfile::tempdir().unwrap();
    let mut tar = tar::Builder::new(Vec::new());
    let mut append = |kind, name: &str, mode, contents: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(contents.len() as u64);
        tar.append_data(&mut header, name, contents).unwrap();
    };
    append(tar::EntryType::Directory, "d", 0o7555, b"");
    append(tar::EntryType::Regular, "d/x", 0o6777, b"x");
    append(tar::EntryType::Regular, &"n".repeat(200), 0o640, b"y");
    unpack_project(&tar.into_inner().unwrap()[..], dir.path()).unwrap();
    let mode = |name: &str| {
        std::os::unix::fs::PermissionsExt::mode(&dir.path().join(name).metadata().unwrap().permissions()) & 0o7777
    };
    assert_eq!(["d", "d/x", &"n".repeat(200)].map(mode), [0o555, 0o755, 0o640]);
}

#[test]
fn a_name_without_an_end_is_not_read_into_memory() {
    let dir = tempfile::tempdir().unwrap();
    for kind in [tar::EntryType::GNULongName, tar::EntryType::GNULongLink, tar::EntryType::XHeader] {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(u64::from(u32::MAX));
        header.set_cksum();
        // it would come to an end only after 4 GiB
        let stream = || header.as_bytes()[..].chain(io::repeat(b'n'));
        let error = unpack_project(stream(), dir.path()).unwrap_err();
        assert_eq!(error.to_string(), "the node sends a name that is too long");
        let target = TargetDirectory::open(&dir.path().join("here")).unwrap();
        let error = unpack(stream(), &[], &target).1.unwrap_err();
        assert_eq!(error.to_string(), "the node sends a name that is too long");
    }
}

/// A project with files in `d` and `d/e`, and a directory elsewhere with files of the same names and contents, which a
/// link may lead to.
fn project_and_elsewhere(dir: &std::path::Path) {
    for (top, secret) in [("root/p/d", "x"), ("elsewhere", "x")] {
        fs::create_dir_all(dir.join(top).join("e")).unwrap();
        fs::write(dir.join(top).join("a"), secret).unwrap();
        fs::write(dir.join(top).join("e/b"), secret).unwrap();
    }
}

/// Replaces a path of the project with a link, as a rank may do between two steps of `fetch`.
fn exchange(dir: &std::path::Path, what: &str) {
    let (there, elsewhere) = (dir.join("root/p"), dir.join("elsewhere"));
    fs::rename(there.join(what), there.join("moved")).unwrap();
    symlink(elsewhere.join(what.strip_prefix("d/").unwrap_or_default()), there.join(what)).unwrap();
}

#[test]
fn no_link_that_replaces_a_directory_or_a_file_is_followed() {
    for (what, left) in [("d", vec![]), ("d/e", vec!["d/a"]), ("d/a", vec!["d/e/b"])] {
        let dir = tempfile::tempdir().unwrap();
        project_and_elsewhere(dir.path());
        let root = dir.path().join("root");
        let listed = NodeOutputs::parse(&sh(LIST, &[root.to_str().unwrap(), "p", "lab", "j1"], b""));
        let outputs = found(root.to_str().unwrap()).outputs;
        assert_eq!(outputs.keys().collect::<Vec<_>>(), ["d/a", "d/e/b"]);
        exchange(dir.path(), what);
        let top = root.join("p");
        let mut hashed = listed.clone();
        hashed.add_hashes(&sh(HASH, &[top.to_str().unwrap()], &names(listed.files().map(|(name, _)| name))));
        assert_eq!(hashed.outputs.keys().collect::<Vec<_>>(), left, "hashes, {what}");
        let downloads: Vec<Download> = outputs
            .into_iter()
            .map(|(name, output)| Download { path: name.clone(), node: "n1".into(), name, output, uploaded: None })
            .collect();
        let mut send = Command::new("sh")
            .args(["-c", SEND, "sh"])
            .arg(&top)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        send.stdin.take().unwrap().write_all(&names(downloads.iter().map(|download| &*download.name))).unwrap();
        let output = send.wait_with_output().unwrap();
        let target = TargetDirectory::open(&dir.path().join("here")).unwrap();
        let (placed, unpacked) = unpack(&output.stdout[..], &downloads, &target);
        unpacked.unwrap();
        assert_eq!(placed.iter().collect::<Vec<_>>(), left, "{what}");
        // a link itself is no failure: it is sent as a link, and left out here
        assert_eq!(output.status.code(), Some(if what == "d/a" { 0 } else { 2 }), "{what}");
    }
}

#[test]
fn a_project_is_copied_without_what_a_link_leads_to() {
    let dir = tempfile::tempdir().unwrap();
    project_and_elsewhere(dir.path());
    let root = dir.path().join("root");
    uploaded(&root.join(".p@lab"), "shipped", &[("d/a", "x"), ("d/e/b", "x")]);
    let copy = || {
        let mut copy = Command::new("sh");
        copy.args(["-c", COPY, "sh"]).arg(&root).args(["p", "lab", "j1"]).output().unwrap()
    };
    let names_of = |stream: &[u8]| {
        let mut archive = TarStream::new(stream);
        let entries = archive.entries().unwrap();
        entries.map(|entry| entry.unwrap().path().unwrap().display().to_string()).collect::<Vec<_>>()
    };
    let whole = copy();
    assert!(whole.status.success(), "{whole:?}");
    assert_eq!(names_of(&whole.stdout), ["./d/a", "./d/e/b"]);
    exchange(dir.path(), "d/e");
    let part = copy();
    assert_eq!(part.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&part.stderr).contains("./d/e: it points outside the project"), "{part:?}");
    assert_eq!(names_of(&part.stdout), ["./d/a"]);
}

#[test]
fn directories_of_any_name_and_many_files_arrive() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    let odd = ["a & b", "back\\1\\", "p|q;r", "new\nline\n", "-x", "~", "*", "[.]", "$(x)"];
    for directory in odd {
        fs::create_dir_all(root.join("p").join(directory).join("deep")).unwrap();
        fs::write(root.join("p").join(directory).join("deep/f"), directory).unwrap();
        symlink("./.", root.join("p").join(directory).join("link")).unwrap();
    }
    for number in 0..450 {
        fs::write(root.join(format!("p/{number}")), format!("{number}")).unwrap();
    }
    let outputs = found(root.to_str().unwrap()).outputs;
    assert_eq!(outputs.len(), 450 + 2 * odd.len());
    let downloads: Vec<Download> = outputs
        .into_iter()
        .map(|(name, output)| Download { path: name.clone(), node: "n1".into(), name, output, uploaded: None })
        .collect();
    let stream =
        sh(SEND, &[root.join("p").to_str().unwrap()], &names(downloads.iter().map(|download| &*download.name)));
    let target = TargetDirectory::open(&dir.path().join("here")).unwrap();
    let (placed, unpacked) = unpack(&stream[..], &downloads, &target);
    unpacked.unwrap();
    assert_eq!(placed.len(), downloads.len());
}
