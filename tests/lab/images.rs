//! Images as other people make them.

use crate::pool::network_bridge;
use crate::process::{Done, eventually, run, s};
use crate::state::{
    FULL, IMAGE, Lab, NODES, Restore, no_job_is_left, no_session_is_left, node_sh, on, ours, processes,
};
use serde_json::Value;
use std::process::Command;

/// Built from `scripts/image/strange`.
pub const STRANGE: &str = "hvdctl-lab/horovod:strange";

/// The variables that every rank must have, and whether each of the programs on the way to it sees the image's.
const ENVIRONMENT: &str = "printf '%s|' rank \"$HF_HOME\" \"$PYTHONPATH\" \"$MY_FLAG\" \"$HOME\" \"$LANG\"";

#[test]
fn an_image_that_is_made_for_another_purpose() {
    let lab = Lab::empty();
    lab.edit(IMAGE, STRANGE);
    lab.edit("host = \"node1\"", "host = \"node1\"\nslots = 1");
    lab.hvdctl(&["up"]).code(0);
    // of the image's sshd_config, this would have been added to hvdctl's own
    for node in NODES {
        let listeners = on(node, "ss -Hltn 'sport = :12345' | awk '{ print $4 }'");
        assert!(listeners.lines().count() == 1 && !listeners.contains("0.0.0.0"), "{node}: {listeners}");
    }
    lab.hvdctl(&["verify", "--gloo"]).code(0);
    let expected = "rank|/models/a|/opt/app|it's \"1\" $x|/srv|C.UTF-8|";
    let ranks = [format!("[0 node1] {expected}"), format!("[1 node2] {expected}")];
    // one of each way on which ranks are started, then those that share it
    let launchers: [&[&str]; 5] =
        [&["--gloo"], &["--mpi"], &["--launcher", "env"], &["--launcher", "mpirun"], &["--launcher", "torchrun"]];
    for launcher in &launchers[..if FULL { 5 } else { 3 }] {
        let args = [&["run", "-np", "2"][..], launcher, &["--", "sh", "-c", ENVIRONMENT]].concat();
        lab.hvdctl(&args).code(0).says(&[&ranks[0], &ranks[1]]);
    }
    // and what is typed by hand
    lab.hvdctl(&["exec", "-c", "--", "sh", "-c", ENVIRONMENT]).code(0).says(&[expected]);
    lab.hvdctl(&["doctor"]).code(0);
    no_job_is_left();
}

/// An image of two layers, which is built on a node.
pub const PUSHED: &str = "hvdctl-lab/pushed:1";

/// Its lower layer.
const BASE_MIB: u64 = 3;

/// Builds it with this text in its upper layer of so many MiB.
pub fn build(node: &str, text: &str, mib: u64) {
    let script = format!(
        "cd /root && mkdir -p pushed && cd pushed && {{ [ -e base ] || head -c {BASE_MIB}M /dev/urandom >base; }} &&
           head -c {mib}M /dev/urandom >top && printf '{text}' >>top &&
           printf 'FROM scratch\\nENV A=1\\nCOPY base /base\\nCOPY top /top\\n' >Dockerfile && docker build -q -t \
           {PUSHED} ."
    );
    on(node, &script);
}

/// The hash of a file in the image of a node.
fn hash_in(node: &str, file: &str) -> String {
    let copy = format!(
        "id=$(docker create {PUSHED} none) && docker cp $id:{file} - | tar xO | sha256sum; docker rm $id >/dev/null"
    );
    on(node, &copy)
}

/// Removes the image and all that belongs to it from both nodes.
pub fn without_image() {
    for node in NODES {
        node_sh(node, &format!("docker rmi -f {PUSHED}; docker image prune -f; rm -rf /root/pushed"), &[]);
    }
}

/// Returns traces of a push on a node: other names of the image, and ports that lead to the operator.
fn left_by_pushes(node: &str) -> String {
    on(
        node,
        "docker images --digests --format '{{.Repository}}@{{.Digest}}' | grep hvdctl-push
           ss -Hltnp src 127.0.0.1 | grep -E 'sshd|python'; ls /var/lib/docker/tmp | grep GetImageBlob; true",
    )
}

/// The bytes that a push has sent to node2.
fn sent(done: &Done) -> u64 {
    let document: Value = serde_json::from_str(&done.out).unwrap();
    document["nodes"].as_array().unwrap().iter().find(|node| node["node"] == "node2").unwrap()["sent"].as_u64().unwrap()
}

#[test]
fn an_image_is_pushed_without_a_registry() {
    let lab = Lab::empty();
    without_image();
    let _restore = Restore(without_image);
    build("node1", "first", 1);
    lab.hvdctl(&["image", "status", PUSHED]).code(1).says(&["node1  ", "node2  missing", "2 of 2 layers"]);
    let done = lab.hvdctl(&["--json", "image", "push", PUSHED]).code(0);
    let all = (BASE_MIB + 1) << 20;
    assert!((all..all * 101 / 100).contains(&sent(&done)), "{}", done.out);
    assert_eq!(hash_in("node1", "/top"), hash_in("node2", "/top"));
    lab.hvdctl(&["image", "status", PUSHED]).code(0).says(&["node[1-2] (2)"]);
    lab.hvdctl(&["image", "push", PUSHED]).code(0).says(&["node[1-2] (2): unchanged\n", "nothing to do"]);

    // of another last layer only that one is sent
    build("node1", "second", 1);
    let done = lab.hvdctl(&["--json", "image", "push", PUSHED, "--from", "node1"]).code(0);
    assert!(((1 << 20)..(1 << 20) * 102 / 100).contains(&sent(&done)), "{}", done.out);
    assert_eq!(hash_in("node1", "/top"), hash_in("node2", "/top"));

    // from a file of docker save, where a node has lost it
    let file = lab.path().join("image.tar");
    for pack in ["cat", "gzip"] {
        std::fs::write(&file, on_bytes("node1", &format!("docker save {PUSHED} | {pack}"))).unwrap();
        on("node2", &format!("docker rmi {PUSHED}"));
        lab.hvdctl(&["image", "push", PUSHED, "--from", file.to_str().unwrap()]).code(0).says(&["node2: pushed"]);
    }
    assert_eq!(NODES.map(left_by_pushes), ["", ""]);
}

/// The standard output of a script on a node.
fn on_bytes(node: &str, script: &str) -> Vec<u8> {
    let done = crate::pool::node_command(node, &["sh", "-c", script]).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    done.stdout
}

/// Runs `tc` for the interface that leads to the nodes.
fn tc(arguments: &str) {
    let mut command = Command::new("tc");
    command.args(["qdisc"]).args(arguments.replace("BRIDGE", &network_bridge()).split(' '));
    run(command, s(10));
}

#[test]
fn a_push_that_is_cut_off_or_forbidden_leaves_nothing() {
    let lab = Lab::empty();
    without_image();
    let _restore = Restore(without_image);
    build("node1", "first", 20);
    {
        tc("add dev BRIDGE root tbf rate 20mbit burst 64kb latency 400ms");
        let _fast = Restore(|| tc("del dev BRIDGE root"));
        for signal in ["KILL", "INT"] {
            let push = lab.start(&["image", "push", PUSHED]);
            let pid = push.pid();
            let began = "ls -s /var/lib/docker/tmp | awk '/GetImageBlob/ && $1 > 1000' | grep .";
            assert!(eventually(s(60), || node_sh("node2", began, &[]).code == 0), "{}", push.err());
            push.signal(signal);
            let done = push.end(s(60));
            if signal == "INT" {
                done.code(130).complains(&["interrupted"]);
                no_session_is_left(pid);
            }
            // its engine stops by itself
            let blobs = "ls /var/lib/docker/tmp | grep GetImageBlob";
            assert!(eventually(s(30), || node_sh("node2", blobs, &[]).code != 0), "after {signal}");
        }
        let is_clean = || left_by_pushes("node2").is_empty();
        assert!(eventually(s(20), is_clean), "{}", left_by_pushes("node2"));
    }
    // it starts itself again, and listens a moment later
    let reload = "pkill -HUP -o -x sshd; sleep 0.5; until ss -Hltn 'sport = :22' | grep -q .; do sleep 0.1; done";
    on("node2", &format!("echo 'AllowTcpForwarding no' >/etc/ssh/sshd_config.d/00-test.conf; {reload}"));
    let _allowed = Restore(|| {
        node_sh("node2", &format!("rm -f /etc/ssh/sshd_config.d/00-test.conf; {reload}"), &[]);
    });
    // then a program there forwards it
    lab.hvdctl(&["image", "push", PUSHED]).code(0).says(&["node1: unchanged\n", "node2: pushed"]);
    assert_eq!(hash_in("node1", "/top"), hash_in("node2", "/top"));
    assert_eq!(NODES.map(left_by_pushes), ["", ""]);
}

/// A project whose package only `setup` can have installed, by a stand-in for pip that knows a directory of wheels.
const SETUP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/digits_setup");

const WHEELS: &str = r#"
mkdir -p /opt/hvdctl-test/wheels/pip && cd /opt/hvdctl-test/wheels && : >pip/__init__.py
cat >pip/__main__.py <<'E'
import glob, sys, zipfile
if "install" in sys.argv:
    for line in open(sys.argv[-1]):
        wheel, = glob.glob("/wheels/" + line.strip().replace("==", "-") + "-*.whl")
        zipfile.ZipFile(wheel).extractall("/usr/lib/python3/dist-packages")
E
python3 - <<'E'
import zipfile
with zipfile.ZipFile("tabulate-0.9.0-py3-none-any.whl", "w") as wheel:
    wheel.writestr("tabulate.py", "def tabulate(rows, headers, floatfmt):\n    return f'a table of {len(rows)} digits'\n")
E"#;

/// Removes the images of projects, and what was put on the nodes for them.
fn without_projects() {
    for node in NODES {
        let remove = "docker rm -f $(docker ps -aq --filter label=hvdctl.cluster=lab); docker rmi -f $(docker images \
            -q 'hvdctl/*') hvdctl-lab/small:1
                      docker image prune -f; rm -rf /opt/hvdctl-test/wheels";
        node_sh(node, remove, &[]);
    }
}

/// A Dockerfile whose last instruction is this one.
fn dockerfile(image: &str, last: &str) -> String {
    format!("FROM {image}\nCOPY requirements.txt sub /x/\nRUN echo \"$http_proxy\" | sha256sum >/proxy\n{last}\n")
}

/// An image of the node's own Python and OpenSSH, which is pushed in seconds.
const SMALL: &str = "hvdctl-lab/small:1";
const IMPORT: &str = "cd / && tar -c --exclude='*docker*' --exclude='*containerd*' --exclude=ctr --exclude=dnet \
    --exclude=ovrouter \
                      bin sbin lib lib64 etc root tmp usr/bin usr/sbin usr/lib usr/lib64 | docker import - \
                      hvdctl-lab/small:1";

#[test]
fn a_project_trains_in_an_image_of_its_own() {
    let lab = Lab::empty();
    let _restore = Restore(without_projects);
    NODES.iter().for_each(|node| drop(on(node, WHEELS)));
    let env = r#"env = { PYTHONPATH = "/wheels", http_proxy = "http://ana:hunter2@127.0.0.1:9" }"#;
    lab.edit("gpus = 1", &format!("gpus = 1\n{env}\nmounts = [\"/opt/hvdctl-test/wheels:/wheels:ro\"]"));
    // the program itself needs PyTorch, whose image takes a minute
    let uses = "from tabulate import tabulate; print(tabulate(range(10), headers=(), floatfmt=''))";
    let (image, command) = match FULL {
        true => (IMAGE, &["--"][..0]),
        false => (SMALL, &["--launcher", "env", "--", "python3", "-c", uses][..]),
    };
    lab.edit(IMAGE, image);
    if !FULL {
        on("node1", IMPORT);
        lab.hvdctl(&["image", "push"]).code(0);
    }
    lab.hvdctl(&["up"]).code(0);
    let done = lab.hvdctl(&[&["train", SETUP, "-np", "2"], command].concat()).code(0);
    done.says(&[
        "[0 node1] a table of 10 digits",
        if FULL { "[1 node2] rank 1" } else { "[1 node2] a table of 10 digits" },
    ]);

    // a Dockerfile is built by the engine's own builder; only what it copies makes another image
    let file = ("hvdctl.toml", "build = \"Dockerfile\"\ncommand = [\"cat\", \"/x/f\", \"/proxy\"]\n");
    let files =
        [file, ("Dockerfile", &dockerfile(image, "")), ("requirements.txt", ""), ("sub/f", "of sub\n"), ("other", "")];
    let project = lab.project("own", &files);
    let of_project =
        |arguments: &[&str]| lab.start(&[&["--on", "node1"], arguments, &[project.to_str().unwrap()]].concat());
    let build = || of_project(&["image", "build"]).end(s(60));
    let built = build().code(0).out.replace(": built\n", "");
    std::fs::write(project.join("other"), "changed").unwrap();
    build().code(0).says(&[&format!("{built}: nothing to do")]);
    let proxy = on("node1", "echo http://ana:hunter2@127.0.0.1:9 | sha256sum");
    of_project(&["train", "-np", "1", "--launcher", "env"])
        .end(s(60))
        .code(0)
        .says(&["[0 node1] of sub", &format!("[0 node1] {}", proxy.trim())]);
    let described = on("node1", &format!("docker history --no-trunc {built}; docker image inspect {built}"));
    assert!(described.contains("sha256sum") && !described.contains("hunter2"), "{described}");

    std::fs::write(project.join("Dockerfile"), dockerfile(image, "RUN echo why; exit 7")).unwrap();
    build().code(1).complains(&[
        "step 4 of 4 (RUN echo why; exit 7)",
        "returned a non-zero code: 7\n",
        "\n        why\n",
    ]);
    std::fs::write(project.join("Dockerfile"), dockerfile(image, "RUN sleep 4711")).unwrap();
    let running = of_project(&["image", "build"]);
    assert!(eventually(s(30), || !processes("node1", "sleep 4711$").is_empty()), "{}", running.err());
    running.signal("INT");
    running.end(s(30)).code(130);
    let is_clean = || processes("node1", "sleep 4711$").is_empty() && !on("node1", "docker ps -a").contains("4711");
    assert!(eventually(s(30), is_clean), "the engine goes on");
    assert_eq!(ours("node1"), "hworker running\n");
}

/// The relays of a node, and whether they run.
pub fn relays(node: &str) -> String {
    on(
        node,
        "docker ps -a --filter label=hvdctl.role=relay --format '{{.State}}'; docker images --format '{{.Repository}}' \
         | grep hvdctl-relay
           ss -Hltnp | grep hvdctl; true",
    )
}

/// Tests of behaviour that other tests prove without a lab (`scripts/test --full`).
mod full {
    use super::*;

    #[test]
    fn an_image_of_a_node_goes_to_another_by_relays_which_resume() {
        const MIB: u64 = 64;
        let lab = Lab::empty();
        without_image();
        let _restore = Restore(|| {
            without_image();
            node_sh("node1", "tc qdisc del dev eth0 root", &[]);
        });
        build("node1", "first", MIB);
        // what the spool of node2's relay has, in MiB
        let spooled = || -> u64 {
            let script = "for c in $(docker ps -aq --filter label=hvdctl.role=relay); do
              du -sm $(docker inspect -f '{{.GraphDriver.Data.UpperDir}}' $c)/spool | cut -f 1; done";
            node_sh("node2", script, &[]).out.trim().parse().unwrap_or(0)
        };
        let interface = format!("/sys/class/net/{}/statistics/rx_bytes", network_bridge());
        let here = || -> u64 { std::fs::read_to_string(&interface).unwrap().trim().parse().unwrap() };
        let before = here();
        on("node1", "tc qdisc add dev eth0 root tbf rate 100mbit burst 64kb latency 400ms");
        let push = lab.start(&["image", "push", PUSHED]);
        assert!(eventually(s(90), || spooled() >= 24), "{}", push.err());
        push.signal("KILL");
        push.end(s(20));
        // they end by themselves, and keep what they have
        let has_ended = |node| relays(node).starts_with("exited\nhvdctl-relay/") && !relays(node).contains("127.0.0.1");
        assert!(eventually(s(20), || NODES.iter().all(|node| has_ended(node))), "{:?}", NODES.map(relays));
        on("node1", "tc qdisc del dev eth0 root");

        let done = lab.hvdctl(&["--json", "image", "push", PUSHED]).code(0);
        let all = (BASE_MIB + MIB) << 20;
        let rest = all - (20 << 20);
        assert!((1..rest).contains(&sent(&done)), "{}", done.out);
        assert!(here() - before < all / 4, "{} bytes of an image of {all} came to the operator", here() - before);
        assert_eq!(hash_in("node1", "/top"), hash_in("node2", "/top"));
        assert_eq!(NODES.map(relays), ["", ""]);
        assert_eq!(NODES.map(left_by_pushes), ["", ""]);
    }
}
