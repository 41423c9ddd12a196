//! Upload: the nodes have the project as it is here, byte for byte, and what a job wrote stays.

use crate::images::relays;
use crate::pool::network_bridge;
use crate::process::{eventually, run, s};
use crate::state::{FULL, Lab, NODES, id_of, node_sh, on, tell_jobs};
use std::fs;
use std::io::{Read, Write as _};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Names, kinds, modes, contents and targets of a directory's entries, sorted, one record each. The directory is the
/// first argument. Where the record of a file that a job wrote would stand (`by-rank-*`) there is nothing.
const LIST: &str = r#"cd -- "$1" && export LC_ALL=C && find . -mindepth 1 -not -name 'by-rank-*' -print0 | sort -z |
xargs -0 sh -c 'for f; do stat --printf "%F %a %N" -- "$f"; [ ! -f "$f" ] || [ -h "$f" ] || sha256sum <"$f"; echo; done' sh"#;

fn list_here(directory: &Path) -> String {
    let mut command = Command::new("sh");
    command.args(["-c", LIST, "sh"]).arg(directory);
    run(command, s(10)).ok()
}

const WRITE: &str =
    "import os; open('by-rank-' + (os.environ.get('HOROVOD_RANK') or os.environ['RANK']), 'w').write('x')\n";

#[test]
fn odd_names_arrive_identical_and_never_reach_a_shell() {
    let lab = Lab::up();
    let project = lab.project("my pro'ject $(touch hit) ü", &[("train.py", WRITE)]);
    for name in [
        "a b.txt",
        "quo\"te's",
        "$(touch hit)",
        "`touch hit`",
        "new\nline",
        "-rf",
        "--",
        "*",
        "back\\slash",
        " ",
        "ünï",
        ".hidden",
    ] {
        fs::write(project.join(name), format!("contents of {name}")).unwrap();
    }
    fs::create_dir_all(project.join("deep/er/ and deeper")).unwrap();
    fs::create_dir(project.join("empty directory")).unwrap();
    fs::write(project.join("deep/er/ and deeper/empty"), "").unwrap();
    fs::write(project.join("deep/binary"), (0..=255u8).cycle().take(300_000).collect::<Vec<u8>>()).unwrap();
    fs::write(project.join("tool.sh"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(project.join("tool.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(project.join("a b.txt"), fs::Permissions::from_mode(0o640)).unwrap();
    symlink("a b.txt", project.join("link")).unwrap();
    symlink("/nowhere at all", project.join("dangling")).unwrap();
    symlink("deep", project.join("directory link")).unwrap();

    let done = lab.hvdctl(&["train", project.to_str().unwrap(), "-np", "2", "--launcher", "env"]).code(0);
    done.complains(&["node1: uploaded", "node2: uploaded"]);
    let here = list_here(&project);
    assert!(here.lines().count() > 20, "{here}");
    let names: Vec<String> = NODES.iter().map(|node| on(node, "ls /opt/horovod/projects").trim().to_owned()).collect();
    assert_eq!(names[0], names[1]);
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    assert!(!names[0].is_empty() && names[0].chars().all(plain), "{names:?}");
    let directory = format!("/opt/horovod/projects/{}", names[0]);
    for (rank, node) in NODES.iter().enumerate() {
        assert_eq!(node_sh(node, LIST, &[&directory]).ok(), here, "{node}");
        assert_eq!(node_sh(node, "cat \"$1/by-rank-$2\"", &[&directory, &rank.to_string()]).ok(), "x");
        let hits = "touch /var/tmp/hit; find / -xdev -name hit 2>/dev/null; rm /var/tmp/hit";
        assert_eq!(on(node, hits), "/var/tmp/hit\n", "{node}: beside the one that was planted, a name was expanded");
    }
    // the same project in the container
    assert_eq!(node_sh("node2", "docker exec hworker sh -c \"$1\" sh /workspace", &[LIST]).ok(), here);

    let again = lab.hvdctl(&["train", project.to_str().unwrap(), "-np", "2", "--launcher", "env"]).code(0);
    again.complains(&["node1: project unchanged", "node2: project unchanged"]);
}

#[test]
fn what_is_ignored_stays_here_and_data_arrive_whole() {
    let lab = Lab::up();
    let files = [("train.py", WRITE), (".hvdctlignore", "*.bin\n"), (".gitignore", "cache/\n"), ("big.bin", "x")];
    let project = lab.project("p", &files);
    for directory in ["cache", ".git"] {
        fs::create_dir(project.join(directory)).unwrap();
        fs::write(project.join(directory).join("x"), "x").unwrap();
    }
    lab.hvdctl(&["train", project.to_str().unwrap(), "-np", "2", "--launcher", "env"]).code(0);
    for (rank, node) in NODES.iter().enumerate() {
        let there = on(node, "ls -A /opt/horovod/projects/p");
        assert_eq!(there, format!(".gitignore\n.hvdctlignore\nby-rank-{rank}\ntrain.py\n"));
    }

    // the workers are up without data, and the next job's ranks read them all the same
    let data = lab.path().join("set");
    fs::create_dir_all(data.join("part one")).unwrap();
    fs::write(data.join(".gitignore"), "*\n").unwrap();
    fs::write(data.join("part one/a"), "A").unwrap();
    fs::write(data.join("b"), vec![7; 3_000_000]).unwrap();
    // so much that relays pay: the operator sends it once
    const LARGE: u64 = 128 << 20;
    fs::write(data.join("large"), vec![7; LARGE as usize]).unwrap();
    let data = data.to_str().unwrap();
    let bridge = format!("/sys/class/net/{}/statistics/tx_bytes", network_bridge());
    let sent = || fs::read_to_string(&bridge).unwrap().trim().parse::<u64>().unwrap();
    let before = sent();
    let done = lab.hvdctl(&["--json", "data", "push", data]).code(0);
    let document: serde_json::Value = serde_json::from_str(&done.out).unwrap();
    let sum =
        |field: &str| -> u64 { document["nodes"].as_array().unwrap().iter().map(|n| n[field].as_u64().unwrap()).sum() };
    let all = LARGE + 3_000_003;
    assert_eq!((sum("files"), sum("sent")), (8, 2 * all), "{}", done.out);
    assert!((all..all * 101 / 100).contains(&sum("from_operator")), "{}", done.out);
    // with the relay itself
    assert!(sent() - before < 2 * all, "{} bytes for data of {all}", sent() - before);
    assert_eq!(NODES.map(relays), ["", ""]);
    let read = "cat '/data/set/part one/a' && stat -c %s /data/set/b && { touch /data/set/c 2>&1 || echo refused; }";
    let train = |expected: &str| {
        let done = lab
            .hvdctl(&["train", project.to_str().unwrap(), "-np", "2", "--launcher", "env", "--", "sh", "-c", read])
            .code(0);
        for (rank, node) in NODES.iter().enumerate() {
            for line in [expected, "refused"] {
                assert!(done.out.contains(&format!("[{rank} {node}] {line}\n")), "{}", done.out);
            }
        }
    };
    train("A3000000");
    fs::write(Path::new(data).join("part one/a"), "B").unwrap();
    assert!(lab.hvdctl(&["data", "push", data]).ok().contains("node[1-2] (2): pushed 1 file, 1 B\n"));
    NODES.iter().for_each(|node| {
        assert_eq!(on(node, "ls -A /opt/horovod/data/.set@*"), "lock\norigin\nreceiving\nshipped\nstat\ntree\n")
    });
    assert!(lab.hvdctl(&["data", "push", data]).ok().contains("node[1-2] (2): unchanged\n"));
    train("B3000000");
    assert!(lab.hvdctl(&["data", "status"]).ok().contains("set   node[1-2] (2)  complete"));
    on("node2", "echo >>'/opt/horovod/data/set/part one/a'");
    lab.hvdctl(&["data", "status"]).code(1).says(&["node2  changed"]);
    assert!(lab.hvdctl(&["data", "rm", "set"]).ok().contains("node[1-2] (2): removed\n"));
    NODES.iter().for_each(|node| assert_eq!(on(node, "ls -A /opt/horovod/data"), ""));
}

#[test]
fn a_job_keeps_its_files_during_another_upload_and_the_next_job_has_both_outputs() {
    let lab = Lab::empty();
    lab.edit("gpus = 1", "gpus = 0\nslots = 2");
    lab.hvdctl(&["up"]).code(0);
    let waits = "import os, time
open('checkpoint', 'w').write('of the first')
print('waiting', flush=True)
while not os.path.exists('/opt/horovod/jobs/' + os.environ['HVDCTL_JOB'] + '/go'): time.sleep(0.1)
import lazy";
    let project = lab.project("p", &[("train.py", waits), ("lazy.py", "print('lazy is old')"), ("gone.py", "")]);
    let path = project.to_str().unwrap();
    let mut first = lab.start(&["train", path, "-np", "2", "--gpus-per-node", "1", "--map-by", "node"]);
    first.until(&["[0 node1] waiting", "[1 node2] waiting"], s(90));
    let worker = id_of("node2", "hworker");

    fs::write(project.join("lazy.py"), "print('lazy is new')").unwrap();
    fs::remove_file(project.join("gone.py")).unwrap();
    let reads = "import lazy, os; print(open('checkpoint').read()); open('second', 'w').close(); print(os.getcwd())";
    let args = |on| ["--on", on, "train", path, "-np", "1", "--gpus-per-node", "1", "--", "python3", "-c", reads];
    // in its own hmaster, beside the first one's rank in hworker
    let done = lab.hvdctl(&args("node2")).code(0);
    assert_eq!(done.out, "[0 node2] lazy is new\n[0 node2] of the first\n[0 node2] /workspace\n");
    let there = "cd /opt/horovod/projects && cat p/lazy.py && test -e p/gone.py && ls -d p*";
    assert_eq!(on("node2", there), "print('lazy is old')p\n", "it is the first one's until that has ended");
    // what the second wrote is in the project's directory already
    on("node2", "test -e /opt/horovod/projects/p/second");

    for node in NODES {
        tell_jobs(node, "go", "");
    }
    let done = first.end(s(90)).code(0);
    for rank in ["[0 node1]", "[1 node2]"] {
        assert!(done.out.contains(&format!("{rank} lazy is old")), "{}", done.out);
    }
    // the next one has the new files, all that was written, and the same worker
    let done = lab.hvdctl(&["train", path, "-np", "2", "--map-by", "node", "--", "python3", "-c", reads]).code(0);
    for rank in ["[0 node1]", "[1 node2]"] {
        done.out.lines().find(|line| *line == format!("{rank} lazy is new")).expect("the new files");
        done.out.lines().find(|line| *line == format!("{rank} of the first")).expect("the checkpoint");
    }
    on("node2", "cd /opt/horovod/projects && test ! -e p/gone.py -a -e p/second");
    assert_eq!(id_of("node2", "hworker"), worker);
}

/// Tests of behaviour that other tests prove without a lab, and of rare corners of real machines (`scripts/test
/// --full`).
mod full {
    use super::*;

    #[test]
    fn a_sparse_file_costs_a_node_what_it_costs_here() {
        const SIZE: u64 = 256 << 20;
        let lab = Lab::up();
        let data = lab.path().join("sparse");
        fs::create_dir(&data).unwrap();
        let mut file = fs::File::create(data.join("model")).unwrap();
        file.set_len(SIZE).unwrap();
        file.write_all(b"begins").unwrap();
        drop(file);
        lab.hvdctl(&["data", "push", data.to_str().unwrap(), "--as", "sparse"]).code(0);
        for node in NODES {
            let see = "cd /opt/horovod/data/sparse && stat -c '%s %b' model && head -c 6 model";
            let shown = on(node, see);
            let (size, rest) = shown.split_once(' ').unwrap();
            let (blocks, text) = rest.split_once('\n').unwrap();
            assert_eq!((size.parse::<u64>().unwrap(), text), (SIZE, "begins"), "{node}");
            assert!(blocks.parse::<u64>().unwrap() * 512 < 1 << 20, "{node}: {blocks} blocks");
        }
        lab.hvdctl(&["data", "rm", "sparse", "-y"]).code(0);
    }

    #[test]
    fn deleted_files_are_removed_and_outputs_are_kept() {
        let lab = Lab::up();
        let project =
            lab.project("p", &[("train.py", WRITE), ("gone.txt", "old"), ("kept.txt", "kept"), ("kind", "a file")]);
        fs::create_dir(project.join("directory")).unwrap();
        fs::write(project.join("directory/inside"), "x").unwrap();
        let path = project.to_str().unwrap();
        lab.hvdctl(&["train", path, "-np", "2"]).code(0);

        fs::remove_file(project.join("gone.txt")).unwrap();
        fs::remove_dir_all(project.join("directory")).unwrap();
        fs::write(project.join("kept.txt"), "changed").unwrap();
        fs::write(project.join("new.txt"), "new").unwrap();
        // a file becomes a directory
        fs::remove_file(project.join("kind")).unwrap();
        fs::create_dir(project.join("kind")).unwrap();
        fs::write(project.join("kind/now"), "a directory").unwrap();
        // someone changed the copy on one node by hand
        on("node2", "echo other >/opt/horovod/projects/p/train.py");
        lab.hvdctl(&["train", path, "-np", "2"]).code(0);
        for (rank, node) in NODES.iter().enumerate() {
            assert_eq!(node_sh(node, LIST, &["/opt/horovod/projects/p"]).ok(), list_here(&project), "{node}");
            assert_eq!(
                on(node, "ls /opt/horovod/projects/p"),
                format!("by-rank-{rank}\nkept.txt\nkind\nnew.txt\ntrain.py\n")
            );
        }
        // what a job wrote is not sent back, and not taken for a part of the project
        assert!(!project.join("by-rank-0").exists());

        // a node without ranks gets the same files too: a later job may use it
        fs::write(project.join("kept.txt"), "third").unwrap();
        lab.hvdctl(&["train", path, "-np", "1"]).code(0);
        assert_eq!(on("node2", "cat /opt/horovod/projects/p/kept.txt"), "third");
    }

    #[test]
    fn a_part_of_a_repository_arrives_while_programs_write_to_it() {
        let lab = Lab::up();
        let project = lab.project(
            "repo/part",
            &[("train.py", "print('go')"), ("data/x", "large"), (".env", "KEY=secret"), ("notebook", "")],
        );
        fs::write(project.join("../.gitignore"), "data/\n.env\n").unwrap();
        fs::create_dir(project.join("../.git")).unwrap();
        fs::write(project.join("../.git/HEAD"), "").unwrap();
        symlink("/mnt/nvme//imagenet/./x", project.join("imagenet")).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for turn in 0_u64.. {
                    if stop.load(Relaxed) {
                        break;
                    }
                    let mut log =
                        fs::File::options().create(true).append(true).open(project.join("train.log")).unwrap();
                    log.write_all(&b"line\n".repeat(1000)).unwrap();
                    if turn % 16 == 0 {
                        fs::write(project.join("notebook"), turn.to_string().repeat(100_000)).unwrap();
                    }
                    std::thread::sleep(s(1) / 50);
                }
            });
            for _ in 0..2 {
                let done = lab.hvdctl(&["train", project.to_str().unwrap(), "-np", "2"]);
                let notes = ["2 entries by ", "1 link leads out of the project", "imagenet -> /mnt/nvme//imagenet/./x"];
                done.code(0).complains(&notes);
            }
            stop.store(true, Relaxed);
        });
        let listed = NODES.map(|node| node_sh(node, LIST, &["/opt/horovod/projects/part"]).ok());
        assert!(listed[0].contains("train.log") && listed[0].contains("'/mnt/nvme//imagenet/./x'"), "{}", listed[0]);
        assert!(!listed[0].contains(".env") && !listed[0].contains("data"), "{}", listed[0]);
        assert_eq!(listed[0], listed[1]);
    }

    #[test]
    fn a_directory_that_was_emptied_is_still_there_and_what_a_link_leads_to_is_not_touched() {
        let lab = Lab::up();
        let project = lab.project("p", &[("logs/a.txt", "a"), ("d/f", "f"), ("d/g", "g")]);
        let directory = project.to_str().unwrap();
        let look =
            ["train", directory, "-np", "2", "--", "sh", "-c", "ls -d logs && echo x >logs/by-rank-$HOROVOD_RANK"];
        fs::write(project.join("train.py"), "").unwrap();
        lab.hvdctl(&look).code(0);
        for node in NODES {
            // a job moved a directory of the project elsewhere and left a link
            on(
                node,
                "mkdir /opt/horovod/else && echo mine >/opt/horovod/else/f && cd /opt/horovod/projects/p && rm -r d && \
                 ln -s ../../else d",
            );
        }
        fs::remove_file(project.join("logs/a.txt")).unwrap();
        fs::remove_dir_all(project.join("d")).unwrap();
        lab.hvdctl(&look).code(0).says(&["[0 node1] logs", "[1 node2] logs"]);
        for (rank, node) in NODES.iter().enumerate() {
            assert_eq!(on(node, "ls /opt/horovod/projects/p/logs"), format!("by-rank-{rank}\n"));
            assert_eq!(on(node, "cat /opt/horovod/else/f; rm -r /opt/horovod/else"), "mine\n");
        }
    }

    #[test]
    fn a_full_disk_ends_the_upload_with_its_error() {
        let lab = Lab::up();
        let project = lab.project("p", &[("train.py", "")]);
        for i in 0..3000 {
            fs::write(project.join(format!("{i:04}")), vec![b'x'; 4096]).unwrap();
        }
        let small = crate::state::Restore(|| drop(node_sh("node2", "umount /opt/horovod/projects", &[])));
        on("node2", "mkdir -p /opt/horovod/projects && mount -t tmpfs -o size=4m,mode=755 none /opt/horovod/projects");
        let path = project.to_str().unwrap();
        let small_ones = "0[0-9][0-9][0-9]";
        fs::write(project.join(".hvdctlignore"), "[123][0-9][0-9][0-9]\n0[1-9][0-9][0-9]\n").unwrap();
        lab.hvdctl(&["train", path, "-np", "2", "--", "true"]).code(0);
        let before = on("node2", &format!("cd /opt/horovod/projects/p && stat -c '%i %n' {small_ones}"));
        assert_eq!(before.lines().count(), 100);
        fs::remove_file(project.join(".hvdctlignore")).unwrap();
        let done = lab.hvdctl(&["train", path, "-np", "2"]).code(125);
        done.complains(&[
            "node2: cannot upload the project to /opt/horovod/projects/p",
            "No space left on device",
            "hint: free space",
        ]);
        crate::state::no_job_is_left();
        // the earlier tree is whole, and nothing of the new one is left to fill the disk
        let after = on("node2", &format!("cd /opt/horovod/projects/p && stat -c '%i %n' {small_ones}"));
        assert_eq!(after, before);
        assert_eq!(on("node2", "ls -A /opt/horovod/projects/.p@lab"), "origin\nshipped\nstat\n");
        drop(small);
        lab.hvdctl(&["train", path, "-np", "2", "--", "true"]).code(0);
        assert_eq!(on("node2", "ls /opt/horovod/projects/p | wc -l"), "3001\n");
    }

    #[test]
    fn a_connection_that_breaks_in_the_middle_leaves_the_earlier_tree_whole() {
        let lab = Lab::up();
        let project = lab.project("p", &[("train.py", "print('old')")]);
        let path = project.to_str().unwrap();
        lab.hvdctl(&["train", path, "-np", "2"]).code(0).says(&["[0 node1] old", "[1 node2] old"]);
        fs::write(project.join("train.py"), "print('new')").unwrap();
        fs::File::create(project.join("data")).unwrap().set_len(512 << 20).unwrap();
        let run = lab.start(&["train", path, "-np", "2"]);
        // the servers of the operator's sessions go while the file comes
        on(
            "node2",
            "cd /opt/horovod/projects/.p@lab
         for i in $(seq 5000); do [ -z \"$(find . -name data -size +1M)\" ] || { came=1; break; }; sleep 0.02; done
         [ -n \"$came\" ] || exit 1
         kill -9 $(pgrep -f '^sshd: workshop') || :",
        );
        run.end(s(120)).code(125).complains(&["node2: ", "hint: "]);
        crate::state::no_job_is_left();
        let there = "cd /opt/horovod/projects/p && cat train.py && ls";
        assert_eq!(on("node2", there), "print('old')train.py\n");
        assert!(eventually(s(30), || on("node2", "ls -A /opt/horovod/projects/.p@lab") == "origin\nshipped\nstat\n"));
        lab.hvdctl(&["train", path, "-np", "2"]).code(0).says(&["[0 node1] new", "[1 node2] new"]);
    }

    #[test]
    fn a_node_that_accepts_nothing_of_the_project_fails_and_delays_no_other() {
        let lab = Lab::up();
        let project = lab.project("p", &[("train.py", "")]);
        // more than connection and pipes take, and more than one node may be ahead of another
        fs::write(project.join("data"), vec![b'x'; 32 << 20]).unwrap();
        lab.edit("[cluster]", "[cluster]\ncommand_timeout_s = 15");
        on("node2", "printf '#!/bin/sh\\nexec sleep 97\\n' >/usr/local/bin/tar && chmod 755 /usr/local/bin/tar");
        let stuck = crate::state::Restore(|| {
            on("node2", "rm -f /usr/local/bin/tar; kill $(pgrep -f '^sleep 97'); :");
        });
        let done = lab.hvdctl(&["train", project.to_str().unwrap(), "-np", "2"]).code(125);
        done.complains(&["node2: cannot upload the project", "no progress for 15 s", "hint: check the node's disk"]);
        assert_eq!(on("node1", "ls -A /opt/horovod/projects/.p@lab"), "origin\nshipped\nstat\n");
        crate::state::no_job_is_left();
        drop(stuck);
        assert!(eventually(s(20), || on("node2", "ls -A /opt/horovod/projects/.p@lab") == "origin\n"));
        lab.hvdctl(&["train", project.to_str().unwrap(), "-np", "2", "--", "true"]).code(0);
    }

    #[test]
    fn a_large_file_arrives_and_another_project_of_the_name_does_not() {
        const SIZE: u64 = if FULL { 1 << 30 } else { 1 << 28 };
        let lab = Lab::up();
        let project = lab.project("p", &[("train.py", "import os; print(os.path.getsize('large'))")]);
        // no zeros: neither a hole nor a compression makes it less
        let random = fs::File::open("/dev/urandom").unwrap();
        std::io::copy(&mut random.take(SIZE), &mut fs::File::create(project.join("large")).unwrap()).unwrap();
        symlink("/etc/hostname", project.join("out of it")).unwrap();
        let mut train = lab.start(&["train", project.to_str().unwrap(), "-np", "2"]);
        let mut peak = 0;
        eventually(s(240), || {
            let status = fs::read_to_string(format!("/proc/{}/status", train.pid())).unwrap_or_default();
            let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
            peak = line.and_then(|l| l.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(peak);
            !train.runs()
        });
        train.end(s(60)).code(0).says(&[&format!("[0 node1] {SIZE}\n"), &format!("[1 node2] {SIZE}\n")]);
        assert!((1..200 << 10).contains(&peak), "hvdctl took {peak} KiB of memory for it");
        assert_eq!(on("node1", "readlink '/opt/horovod/projects/p/out of it'"), "/etc/hostname\n");
        let mut sum = Command::new("sha256sum");
        sum.arg(project.join("large"));
        let sum = run(sum, s(60)).ok()[..64].to_owned();
        for node in NODES {
            assert_eq!(on(node, "sha256sum </opt/horovod/projects/p/large")[..64], sum, "{node}");
        }

        let other = lab.project("elsewhere/p", &[("train.py", "print('other')")]);
        let other = other.to_str().unwrap();
        let done = lab.hvdctl(&["--on", "node1", "train", other, "-np", "1"]).code(125);
        done.complains(&["another project has this name", project.to_str().unwrap(), "hint:", "--as NAME"]);
        on("node1", "test -e /opt/horovod/projects/p/large");
        let done = lab.hvdctl(&["--on", "node1", "train", other, "-np", "1", "--as", "q"]).code(0);
        assert_eq!(done.out, "[0 node1] other\n");
        on("node1", "cd /opt/horovod/projects && test -e p/large -a ! -e q/large -a -e q/train.py");
    }

    #[test]
    fn of_thousands_of_files_only_what_changed_goes_over_the_wire() {
        const FILES: usize = if FULL { 10_000 } else { 2_000 };
        let lab = Lab::up();
        let count = "import os; print(sum(len(files) for _, _, files in os.walk('.')))";
        let project = lab.project("many", &[("train.py", count)]);
        for i in 0..FILES {
            let directory = project.join(format!("directory {}", i % 100));
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join(i.to_string()), vec![b'x'; i % 500]).unwrap();
        }
        let train = || lab.hvdctl(&["train", project.to_str().unwrap(), "-np", "2"]).code(0);
        let first = train();
        let all = FILES + 1;
        let first = first.says(&[&format!("[0 node1] {all}\n"), &format!("[1 node2] {all}\n")]);
        first.complains(&[&format!("node1: uploaded {all} files")]);
        let inodes = || NODES.map(|node| on(node, "cd /opt/horovod/projects/many && stat -c '%n %i %Z' */* | sort"));
        let before = inodes();
        train().complains(&["node1: project unchanged", "node2: project unchanged"]);
        assert_eq!(inodes(), before);

        fs::remove_file(project.join("directory 7/107")).unwrap();
        fs::rename(project.join("directory 8/108"), project.join("directory 9/108")).unwrap();
        fs::write(project.join("directory 10/110"), "changed").unwrap();
        let done = train().says(&[&format!("[0 node1] {FILES}\n"), &format!("[1 node2] {FILES}\n")]);
        done.complains(&["node1: uploaded 2 files", "node2: uploaded 2 files", "removed 2 files"]);
        let wanted: Vec<&str> = ["directory 10/110 ", "directory 7/107 ", "directory 8/108 "].into();
        for (node, (before, after)) in NODES.iter().zip(before.iter().zip(inodes().iter())) {
            let kept: Vec<&str> = before.lines().filter(|line| !after.lines().any(|other| other == *line)).collect();
            assert_eq!(kept.len(), wanted.len(), "{node}: {kept:?}");
            assert!(kept.iter().zip(&wanted).all(|(line, name)| line.starts_with(name)), "{node}: {kept:?}");
            assert_eq!(on(node, "cat '/opt/horovod/projects/many/directory 10/110'"), "changed");
        }
    }
}
