//! The guides: their blocks can be read, their settings are valid, and what is not executed is listed here.
//! `tests/lab/guides.rs` executes them.

mod guide;

use guide::{Outcome, Step, compare, differences, outcomes, script, steps};
use hvdctl::inventory::Inventory;
use hvdctl::sync::project::ProjectFile;
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// Blocks that need what the lab does not have: the guide and the first line of the block.
const NOT_EXECUTED: &[(&str, &str)] = &[
    // it compiles hvdctl
    (
        "first-cluster.md",
        "cargo install --locked --path .    # in a clone of the repository; installs to ~/.cargo/bin; needs Rust 1.88 or later",
    ),
    // an image of 8 GB
    ("images.md", "hvdctl image build ./examples/images/cuda12    # builds it on the master and gives it to all nodes"),
    // what hvdctl replaces, typed on each node
    ("own-script.md", "torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint node1:29500 \\"),
    // it waits for its user; tests/lab/notebook.rs opens it
    ("notebook.md", "$ hvdctl notebook ./work"),
    // an account with AWS, and Kubernetes; tests/export.rs has the documents
    ("kubernetes.md", "read -rs HF_TOKEN && export HF_TOKEN"),
    ("kubernetes.md", "# two machines with four GPUs each; eksctl installs NVIDIA's device plugin for such machines"),
    (
        "kubernetes.md",
        "kubectl apply --server-side -f https://raw.githubusercontent.com/kubeflow/mpi-operator/RELEASE/deploy/v2beta1/mpi-operator.yaml",
    ),
    ("kubernetes.md", "hvdctl -i cloud/inventory.toml export mpijob examples/digits -np 8 -o digits.yaml"),
    ("kubernetes.md", "eksctl delete cluster --name train --region eu-central-1"),
    // a site's Slurm, which tests/lab/full/conformance.rs has, and Apptainer
    ("slurm.md", "ssh ana@login.example.edu mkdir -p bin"),
    ("slurm.md", "module load Python CUDA                     # whatever the site's documents say"),
    (
        "slurm.md",
        "hvdctl run -np 2 --launcher env --sbatch=--time=5 -- sh -c 'echo \"rank $RANK of $WORLD_SIZE on $(hostname)\"'",
    ),
    ("slurm.md", "hvdctl jobs                 # queued, and why; or running"),
    ("slurm.md", "hvdctl train ./myproject -np 8 -d"),
    ("slurm.md", "hvdctl train ./myproject -np 8 --sbatch=--signal=USR1@300"),
    ("slurm.md", "salloc --nodes=2 --ntasks-per-node=4 --gres=gpu:4 --time=1:00:00"),
    ("slurm.md", "hvdctl train ./myproject -np 8 --launcher env -- apptainer exec --nv ~/image.sif python train.py"),
];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

#[track_caller]
fn same(expected: &str, output: &str) {
    assert_eq!(compare(&lines(expected), output), None);
}

#[track_caller]
fn differs(expected: &str, output: &str, why: &str) {
    let found = compare(&lines(expected), output).expect("no difference is found");
    assert!(found.contains(why), "{found}");
}

#[test]
fn numbers_ids_and_widths_may_differ() {
    same("NODE   CORES  AGE\nnode1  2      3 min", "NODE  CORES AGE\nnode1 16    1 h 2 min\n");
    same("20261121-120304-k7qd failed", "20261128-070102-00ab failed\n");
    same("image 3f2a9c11d0e4", "image 0011223344ff\n");
    same("engine Docker 20.10.24+dfsg1", "engine Docker 28.5.2\n");
    same("sent 1.2 MiB in 3 s to 172.28.100.11:22", "sent 900 B in 250 ms to 10.0.0.7:22\n");
    same("loss 0.0080, accuracy 0.9806, 0.3 s", "loss 1.1, accuracy 0.9, 12.4 s\n");
    same("started by ana@desk", "started by root@vm-1.example.org\n");
    same("done", "\n12:03:04Z node1: start hworker\n12:03:04Z node[1-2]: ready\n\ndone\n");
    same("warning: a", "12:03:04Z warning: a\n");
}

#[test]
fn words_may_not_differ() {
    differs("node1 up", "node2 up\n", "no \"node1 up\"");
    differs("node1 up", "node1 stopped\n", "no \"node1 up\"");
    differs("GPUS JOB", "GPUS\n", "no \"GPUS JOB\"");
    differs("a", "a\nb\n", "\"b\" is not on the page");
    differs("a\nb", "b\na\n", "\"b\" is not on the page");
    differs("a", "", "no \"a\"");
    differs("", "a\n", "\"a\" is not on the page");
    differs("exit code", "exit code 1\n", "no \"exit code\"");
    differs("2 ranks", "two ranks\n", "no \"# ranks\"");
    differs("node1: –", "node1: 3\n", "no ");
    differs("done", "done\n12:03:04Z warning: a\n", "\"warning: a\" is not on the page");
    differs("done", "done\nnode1: failed\n", "\"node1: failed\" is not on the page");
}

#[test]
fn an_ellipsis_stands_for_text_or_lines() {
    same("a\n…\nz", "a\nb\nc\nz\n");
    same("a\n…\nz", "a\nz\n");
    same("wrote …known_hosts (…)", "wrote /opt/x/known_hosts (2 keys)\n");
    same("a …", "a b c\n");
    differs("a\n…\nz", "a\nb\n", "no \"z\"");
    differs("a\n…\nz", "b\nz\n", "no \"a\"");
    differs("a …z", "a b\n", "no ");
    differs("…\nz", "z\na\n", "\"a\" is not on the page");
}

#[test]
fn ranks_write_at_the_same_time() {
    let page = "[0 node1] one\n[1 node2] one\n[0 node1] two\ndone";
    same(page, "[1 node2] one\n[0 node1] one\n[0 node1] two\ndone\n");
    differs(page, "[1 node2] one\n[0 node1] two\n[0 node1] one\ndone\n", "is not on the page");
    differs(page, "[0 node1] one\n[0 node1] two\ndone\n", "no ");
    differs(page, "[1 node1] one\n[0 node1] one\n[0 node1] two\ndone\n", "no ");
    // of a rank that the page leaves out, anything; of one that it shows, what it shows
    same("[0 node1] one\n…", "[1 node2] x\n[0 node1] one\n[0 node1] two\n");
    differs("[0 node1] one\n…", "[0 node1] two\n", "no ");
}

const PAGE: &str = "\
Text.

```console
$ cd /tmp && x=1
$ echo \"$x\" &&
>   echo b
1
b
```

<!-- exit code 3 or 4 -->
```console
$ sh -c 'exit 3'
```

```sh
true
```

```toml
# a b.toml
not = \"a file\"
```

```toml
# sub/file.toml
a = 'x'
```

<!-- not executed: it needs a registry -->
```sh
docker push
```
";

#[test]
fn blocks_are_read() {
    let command = |line, text: &str, output: &[&str]| Step::Command {
        line,
        text: text.to_owned(),
        output: output.iter().map(|&line| line.to_owned()).collect(),
        codes: vec![0],
    };
    assert_eq!(
        steps(PAGE).unwrap(),
        [
            command(4, "cd /tmp && x=1", &[]),
            command(5, "echo \"$x\" &&\n  echo b", &["1", "b"]),
            Step::Command { line: 13, text: "sh -c 'exit 3'".into(), output: Vec::new(), codes: vec![3, 4] },
            Step::Script { line: 16, text: "true".into() },
            Step::File { line: 25, path: "sub/file.toml".into(), text: "a = 'x'\n".into() },
            Step::Skipped { line: 31, first: "docker push".into(), reason: "it needs a registry".into() },
        ]
    );
    for (page, fault) in [
        ("```sh\ntrue\n", "line 1: a block without an end"),
        ("```console\ntrue\n```\n", "line 2: output without a command"),
        ("```console\n```\n", "line 1: a block without a command"),
        ("<!-- exit code x -->\n", "line 1: \"x\" is no exit code"),
        ("<!-- exit code 1 -->\ntext\n", "line 2: the comment above belongs to no block"),
        ("<!-- exit code 1 -->\n```sh\nfalse\n```\n", "line 2: the comment above belongs to no command"),
        ("<!-- not executed: no -->\n```text\n```\n", "line 2: the comment above belongs to no command"),
    ] {
        assert_eq!(steps(page).unwrap_err(), fault);
    }
}

/// Runs a page in an empty directory.
fn run(page: &str) -> Vec<String> {
    let steps = steps(page).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let done = Command::new("bash").args(["-c", &script(&steps)]).current_dir(&dir).output().unwrap();
    differences(&steps, &outcomes(&String::from_utf8_lossy(&done.stdout)))
}

#[test]
fn a_page_runs_in_one_shell() {
    let page = "```toml\n# p/a.toml\nit's = 1\n```\n```console\n$ cd p; export A=b\n$ cat a.toml; cat\nit's = 1\n```\n\
                ```sh\nB=$A\n```\n<!-- exit code 4 -->\n```console\n$ echo $B >&2; sh -c 'exit 4'\nb\n```\n";
    assert_eq!(run(page), Vec::<String>::new());
}

#[test]
fn a_page_that_is_wrong_is_found_out() {
    let faults = |page: &str| run(page).join("\n");
    let found = faults("```console\n$ echo a\nb\n```\n```console\n$ echo c\n```\n");
    assert!(
        found.contains("line 2: `echo a`: no \"b\"") && found.contains("line 6: `echo c`: \"c\" is not"),
        "{found}"
    );
    let found = faults("```console\n$ false\n$ true\n```\n");
    assert!(found.starts_with("line 2: `false`: exit code 1, not [0]"), "{found}");
    let found = faults("<!-- exit code 1 -->\n```console\n$ true\n```\n");
    assert!(found.starts_with("line 3: `true`: exit code 0, not [1]"), "{found}");
    // each command of a script
    let found = faults("```sh\nfalse\ntrue\n```\n```sh\ntrue\n```\n");
    assert!(found.contains("exit code none, not [0]"), "{found}");
    let found = faults("```console\n$ exit 0\n$ true\n```\n");
    assert!(found.contains("exit code none"), "{found}");
    let one = [Step::Script { line: 1, text: "true".into() }];
    assert_eq!(differences(&one, &[]), ["line 1: `true` was not reached"]);
    let ended = Outcome { output: String::new(), code: Some(0) };
    assert_eq!(differences(&one, &[ended]), Vec::<String>::new());
}

/// The pages below docs/guide, by name.
fn pages() -> Vec<(String, String)> {
    let mut pages: Vec<(String, String)> = fs::read_dir(root().join("docs/guide"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read_to_string(&path).unwrap()))
        .collect();
    pages.sort();
    assert!(pages.len() > 5, "{pages:?}");
    pages
}

#[test]
fn what_is_not_executed_is_listed() {
    let mut found = Vec::new();
    for (page, text) in pages() {
        for step in steps(&text).unwrap_or_else(|fault| panic!("{page}: {fault}")) {
            if let Step::Skipped { first, .. } = step {
                found.push((page.clone(), first));
            }
        }
    }
    let found: BTreeSet<(&str, &str)> = found.iter().map(|(page, first)| (page.as_str(), first.as_str())).collect();
    assert_eq!(found, NOT_EXECUTED.iter().copied().collect());
}

/// Each page is executed by `tests/lab/guides.rs`, by one of `tests/lab/full/`, or has no commands.
#[test]
fn every_page_is_executed() {
    let tests = ["tests/lab/guides.rs", "tests/lab/full/guides.rs"];
    let tests: String = tests.iter().filter_map(|file| fs::read_to_string(root().join(file)).ok()).collect();
    for (page, text) in pages() {
        let has_steps = steps(&text).unwrap().iter().any(|step| !matches!(step, Step::Skipped { .. }));
        let is_executed = tests.contains(&format!("\"{page}\""));
        assert_eq!(is_executed, has_steps, "{page}");
    }
}

/// The first example imports nothing that Horovod's own image lacks (docker/horovod/Dockerfile of 0.28.1).
#[test]
fn the_first_example_runs_in_the_image_that_init_proposes() {
    let there = ["argparse", "os", "socket", "sys", "time", "horovod", "numpy", "torch"];
    let program = fs::read_to_string(root().join("examples/digits/train.py")).unwrap();
    let import = regex::Regex::new(r"(?m)^\s*(?:import|from) (\w+)").unwrap();
    let imported: BTreeSet<&str> = import.captures_iter(&program).map(|found| found.extract::<1>().1[0]).collect();
    assert!(imported.contains("torch"), "{imported:?}");
    assert_eq!(imported.iter().filter(|module| !there.contains(module)).collect::<Vec<_>>(), Vec::<&&str>::new());
}

/// Parts of inventories and of a project's file are valid, and other TOML can be read.
#[test]
fn settings_are_valid() {
    let block = regex::Regex::new(r"(?ms)^```toml\n(.*?)^```$").unwrap();
    let mut inventories = 0;
    for (page, text) in pages() {
        for part in block.captures_iter(&text).map(|found| found[1].to_owned()) {
            part.parse::<toml::Table>().unwrap_or_else(|fault| panic!("{page}: {fault}\n{part}"));
            if !part.contains("\n[") && !part.starts_with('[') {
                continue;
            }
            let dir = tempfile::tempdir().unwrap();
            if part.contains("[[role]]") {
                fs::write(dir.path().join("hvdctl.toml"), &part).unwrap();
                ProjectFile::read(dir.path()).unwrap_or_else(|fault| panic!("{page}: {fault}\n{part}"));
                continue;
            }
            inventories += 1;
            let has = |name: &str| part.lines().any(|line| line == name);
            let mut whole = part.clone();
            if !has("[cluster]") {
                whole = format!("[cluster]\nname = \"lab\"\n\n{whole}");
            }
            if !has("[[node]]") && !has("[slurm]") {
                whole += "\n[[node]]\nhost = \"node1\"\n";
            }
            let file = dir.path().join("inventory.toml");
            fs::write(&file, &whole).unwrap();
            Inventory::load(&file).unwrap_or_else(|faults| panic!("{page}: {faults}\n{whole}"));
        }
    }
    assert!(inventories >= 2, "{inventories}");
}
