//! The stranger of `mallory.rs` where no worker of the node's engine runs the ranks, or not alone: a Slurm of the cluster's
//! own, with root of one of its nodes and a rank from its queue, and processes of a login, with another login's beside them.

use crate::mallory::{NAMES, PROBE, Stranger, backwards, compare, gains, gains_of_rank, strangers_stop};
use crate::pool::node_command;
use crate::process::{Running, run, s};
use crate::state::{IMAGE, Lab, NODES, Restore, address, lab_dir, no_job_is_left, node_sh, on, ours, tell_jobs};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::thread;
use std::time::Instant;

/// Secrets that only a job may read: in a file for `--env-file`, and in the start-up file of a login.
const SECRETS: [&str; 2] = ["of-the-file", "of-the-login"];

/// A file with the first secret.
fn env_file(lab: &Lab) -> String {
    let file = lab.path().join("secrets");
    fs::write(&file, format!("TOKEN={}\n", SECRETS[0])).unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    file.to_str().unwrap().to_owned()
}

fn strangers() -> [Stranger; 2] {
    NODES.map(|node| Stranger::on_node(node, &json!({ "secrets": backwards(&SECRETS) })))
}

/// A second stand-in GPU on node1, until this is dropped.
fn second_gpu() -> impl Drop {
    let file = "/etc/hvdctl-lab/gpus";
    let install = "nvidia-container-runtime-hook install /usr/bin/nvidia-smi all";
    let one = Restore(move || drop(node_sh("node1", &format!("sed -i 2,9d {file}; {install}"), &[])));
    on("node1", &format!("echo '1 GPU-00000000-408c-da96-7a9b-000000000002' >>{file} && {install}"));
    one
}

/// Prints what a rank can do that tries, and then does what would mislead the daemons of the queue: a process that
/// passes for a rank of another job, and a directory, deeper than Python recurses, where the agent will write a file.
const RANK: &str = r#"
python3 -c "$1" "$2"
HVDCTL_PROGRAM=1 HVDCTL_JOB=20990101-000000-dead sleep 600 &
python3 -c 'import os
os.chdir("/opt/horovod/jobs/" + os.environ["HVDCTL_JOB"])
for _ in range(3000): os.mkdir("queue.new"); os.chdir("queue.new")'
echo tried to mislead
wait
"#;

/// Waits for the file `go` in the directory of its job.
const WAITS: &str = "echo ready; while [ ! -e /opt/horovod/jobs/$HVDCTL_JOB/go ]; do sleep 0.1; done";

/// Returns the access that root of node2 gains on node1 by the queue.
fn root_of_another_node() -> BTreeSet<String> {
    let names = [&NAMES[..], &[(r"^(/opt/horovod/(jobs|slurm@CLUSTER))/(?!munge\.key).*", r"\1/…")]].concat();
    let settings = json!({
        "limit": 3, "stop": "/nowhere", "names": names, "secrets": backwards(&SECRETS),
        "places": [], "own": ["/opt/horovod", "/run"], "ignore": r"^/run(/|$)(?!.*\.sock$)",
    });
    let srun = ["docker", "exec", "hslurm", "srun", "--nodelist=node1", "--ntasks=1", "python3", "-c", PROBE];
    let done = run(node_command("node2", &[&srun[..], &[&settings.to_string()]].concat()), s(60));
    if done.code == 0 { gains("root of another node", &done.out) } else { BTreeSet::new() }
}

/// Logs in to an address with every private key that root finds on a node.
const LOG_IN: &str = r#"
for key in $(grep -rl 'PRIVATE KEY' /opt /etc/ssh /root /home /run /tmp /var/tmp 2>/dev/null); do
  echo "tried $key"
  for port in 22 12345; do
    timeout 10 ssh -i "$key" -p "$port" -o IdentitiesOnly=yes -o BatchMode=yes -o StrictHostKeyChecking=no \
      -o UserKnownHostsFile=/dev/null "root@$1" true 2>/dev/null && echo "in by $key"
  done
done
:"#;

/// Returns true if root of node2 finds a key for node1 or its worker.
fn logs_in() -> bool {
    let done = node_sh("node2", LOG_IN, &[&address("node1")]).code(0);
    assert!(done.out.contains("tried /opt/horovod/ssh/ssh_host_ed25519_key"), "it finds no key: {}", done.out);
    done.out.contains("in by ")
}

/// A command of Slurm's as root of a node that is not the master, and whether it succeeds.
fn slurm_of_another_node(command: &str) -> bool {
    node_sh("node2", &format!("docker exec hslurm {command}"), &[]).code == 0
}

/// Returns the reason why node1 takes no jobs, by Slurm.
fn reason(lab: &Lab) -> String {
    let document: Value = serde_json::from_str(&lab.hvdctl(&["--json", "slurm", "status"]).ok()).unwrap();
    let nodes = document["nodes"].as_array().unwrap();
    let node = nodes.iter().find(|node| node["node"] == "node1").cloned().unwrap_or_default();
    node["reason"].as_str().unwrap_or_default().to_owned()
}

/// Returns true if root of node2 still commands the queue when node2 is no longer in the inventory. Its files and
/// containers have not been removed.
fn drains_after_it_left(lab: &Lab) -> bool {
    let both = fs::read_to_string(lab.inventory()).unwrap();
    fs::write(lab.inventory(), &both[..both.rfind("[[node]]").unwrap()]).unwrap();
    // a cluster of one node would listen on the loopback
    lab.edit("host = \"node1\"", &format!("host = \"node1\"\naddress = \"{}\"", address("node1")));
    lab.hvdctl(&["slurm", "up"]).code(0);
    let drains = slurm_of_another_node("scontrol update nodename=node1 state=drain reason=left");
    fs::write(lab.inventory(), both).unwrap();
    drains
}

#[test]
fn a_stranger_gets_only_what_is_listed_of_a_queue() {
    let lab = Lab::empty();
    let _stop = strangers_stop();
    let _gpu = second_gpu();
    lab.edit("connection_idle_s = 0", "connection_idle_s = 0\nstop_grace_s = 3");
    lab.edit("gpus = 1", "slots = 4\ngpus = 1");
    lab.edit("host = \"node1\"", "host = \"node1\"\ngpus = 2");

    // nodes of two owners have no queue together: root of one is root of all
    lab.edit("host = \"node2\"", "host = \"node2\"\nowner = \"bob\"");
    let refused = lab.hvdctl(&["slurm", "up"]);
    assert_ne!(refused.code, 0, "{}", refused.out);
    refused.complains(&["nodes of one owner", "node2"]);
    assert_eq!(NODES.map(ours), ["", ""]);
    NODES.iter().for_each(|node| assert_eq!(on(node, "ls -d /opt/horovod/slurm* 2>/dev/null; :"), "", "{node}"));
    lab.edit("\nowner = \"bob\"", "");

    lab.hvdctl(&["up"]).code(0);
    let strangers = strangers();
    lab.hvdctl(&["slurm", "up"]).code(0);
    let env_file = env_file(&lab);
    let one = ["-np", "1", "--gpus-per-node", "1", "--launcher", "env"];
    let named = |name| [&["run", "--name", name][..], &one].concat();
    let mut other = lab.start(&[&named("other")[..], &["--env-file", &env_file, "--", "sh", "-c", WAITS]].concat());
    other.until(&["ready"], s(60));
    let mut gained = root_of_another_node();
    gained.extend(logs_in().then(|| "root of another node: log in to it".to_owned()));
    let settings = json!({
        "limit": 3, "stop": "/nowhere", "names": NAMES, "job": "HVDCTL_JOB", "places": [], "gpus": 1,
        "own": ["/opt/horovod/jobs", "/opt/horovod/projects", "/opt/horovod/data", "/opt/horovod/slurm@lab", "/data"],
        "ignore": "/jobs/$HVDCTL_JOB(/|$)",
    });
    let settings = settings.to_string();
    let mut rank = lab.start(&[&named("mallory")[..], &["--", "sh", "-c", RANK, "sh", PROBE, &settings]].concat());
    rank.until(&["tried to mislead"], s(90));
    let misleads_since = Instant::now();

    // what Slurm says of the rank's job changes, and the agent writes it
    let of_rank = "squeue -h -o '%i %j' | sed -n 's/ mallory[.].*//p'";
    let operator = |command: &str| lab.hvdctl(&["slurm", "exec", "--", "sh", "-c", command]).code(0);
    operator(&format!("scontrol suspend $({of_rank})"));
    lab.hvdctl(&["run", "-np", "1", "--launcher", "env", "--", "true"]).code(0);
    // its nodes are examined every 5 s
    thread::sleep(s(7).saturating_sub(misleads_since.elapsed()));
    let is_drained = reason(&lab).starts_with("hvdctl: job 20990101-");
    gained.extend(is_drained.then(|| "rank under Slurm: drain its own node".to_owned()));
    operator(&format!("scontrol resume $({of_rank}) && scancel $({of_rank})"));
    let ended = rank.end(s(60));
    gained.extend((!ended.err.contains("was stopped")).then(|| "rank under Slurm: outlive its allocation".to_owned()));
    gained.extend(gains_of_rank("rank under Slurm", &ended));

    let drains = slurm_of_another_node("scontrol update nodename=node1 state=drain reason=mallory");
    gained.extend(drains.then(|| "root of another node: drain every node".to_owned()));
    let cancels = slurm_of_another_node("sh -c 'scancel $(squeue -h -o %i)'");
    if cancels {
        other.end(s(60));
        gained.insert("root of another node: cancel every job".to_owned());
    } else {
        NODES.iter().for_each(|node| tell_jobs(node, "go", ""));
        other.end(s(60)).code(0);
    }
    gained.extend(drains_after_it_left(&lab).then(|| "root of a node that has left: drain every node".to_owned()));
    Stranger::stop_all();
    let mut seen: BTreeSet<String> = strangers.into_iter().flat_map(Stranger::end).collect();
    // it is the attack itself that listens there
    seen.retain(|line| !line.contains(": connect srun at "));
    for daemon in ["slurmctld", "slurmd"] {
        let listens = |line: &String| line.contains(&format!(": connect {daemon} at "));
        assert!(seen.iter().any(listens), "no port of {daemon} was found: {seen:?}");
    }
    gained.extend(seen);
    compare(&gained, &["rank under Slurm", "root of another node"]);
    lab.hvdctl(&["slurm", "down", "--force"]).code(0);
    no_job_is_left();
}

/// The directory in which a login of a node finds horovodrun and its imports.
const PACKAGES: &str = "/opt/hvdctl-test/horovod";

/// Horovod of the image on a node without containers of its own, for the login `plain`, whose start-up file has a secret;
/// and an own name that leads where the other node finds it, which Gloo needs. Until this is dropped.
fn horovod_without_an_engine() -> impl Drop {
    let undo = format!(
        "mv /home/plain/.profile.away /home/plain/.profile; rm -rf {PACKAGES}
        cat /run/hvdctl-test-hosts >/etc/hosts; rm /run/hvdctl-test-hosts"
    );
    let restore = Restore(move || NODES.iter().for_each(|node| drop(node_sh(node, &undo, &[]))));
    let script = format!(
        "mkdir -p {PACKAGES}
        docker run --rm -v {PACKAGES}:/out {IMAGE} sh -c 'cd /usr/lib/python3/dist-packages &&
          cp -r /usr/local/bin/horovodrun /usr/local/lib/python3.*/dist-packages/horovod /usr/lib/python3.*/distutils \
            cloudpickle packaging psutil yaml /out'
        cp -a /home/plain/.profile /home/plain/.profile.away
        printf '%s\\n' 'export WANDB_API_KEY={} PYTHONPATH={PACKAGES} PATH=$PATH:{PACKAGES}' >>/home/plain/.profile
        chmod 600 /home/plain/.profile
        cp /etc/hosts /run/hvdctl-test-hosts
        sed \"s/^127.0.1.1 /$1 /\" /run/hvdctl-test-hosts >/etc/hosts",
        SECRETS[1]
    );
    NODES.iter().for_each(|node| drop(node_sh(node, &script, &[&address(node)]).code(0)));
    restore
}

/// An inventory of processes of a login.
fn processes_of(lab: &Lab, name: &str, login: &str, port: u16) -> PathBuf {
    let file = lab.path().join(format!("{name}.toml"));
    let text = format!(
        "[cluster]\nname = \"{name}\"\nruntime = \"process\"\nport = {port}\nssh_config = \"{}\"\nconnection_idle_s = 0\n\
         key_type = \"ed25519\"\n\n[defaults]\nuser = \"{login}\"\ngpus = 0\nslots = 2\n\n[[node]]\nhost = \"node1\"\n\n\
         [[node]]\nhost = \"node2\"\n",
        lab_dir().join("ssh_config").display()
    );
    fs::write(&file, text).unwrap();
    file
}

#[test]
fn a_stranger_gets_only_what_is_listed_of_processes_of_a_login() {
    let lab = Lab::empty();
    let _stop = strangers_stop();
    let _horovod = horovod_without_an_engine();
    let [first, other] = [("lab", "plain", 12345), ("other", "asks", 12346)]
        .map(|(name, login, port)| processes_of(&lab, name, login, port).to_str().unwrap().to_owned());
    let _purged = Restore(|| {
        for inventory in [&first, &other] {
            lab.hvdctl(&["-i", inventory, "stop"]);
            lab.hvdctl(&["-i", inventory, "down", "--purge", "-y"]).code(0);
        }
    });
    let strangers = strangers();
    for inventory in [&first, &other] {
        lab.hvdctl(&["-i", inventory, "keys", "push"]).code(0);
        lab.hvdctl(&["-i", inventory, "up"]).code(0);
    }
    let project = lab.project("first", &[("train.sh", "echo ready; exec sleep 600")]);
    let train = ["-i", &first, "train", project.to_str().unwrap(), "-np", "2", "--map-by", "node"];
    let given = ["--launcher", "horovodrun", "--gloo", "--env-file", &env_file(&lab), "--", "sh", "train.sh"];
    let mut job = lab.start(&[&train[..], &given].concat());
    job.until(&["[0 node1] ready", "[1 node2] ready"], s(60));

    let settings = json!({
        "limit": 3, "stop": "/nowhere", "names": NAMES, "secrets": backwards(&SECRETS), "places": ["/tmp", "/run", "/dev/shm"],
        "own": ["/var/tmp/hvdctl-lab"],
    });
    let one = ["-i", &other, "run", "-np", "1", "--launcher", "env", "--", "python3", "-c", PROBE];
    let rank = run(lab.command(&[&one[..], &[&settings.to_string()]].concat()), s(120)).code(0);
    let mut gained = gains_of_rank("another login", &rank);
    assert!(job.runs(), "{}", job.err());
    Stranger::stop_all();
    gained.extend(strangers.into_iter().flat_map(Stranger::end));
    end(job, &lab, &first);
    compare(&gained, &["another login"]);
}

fn end(job: Running, lab: &Lab, inventory: &str) {
    lab.hvdctl(&["-i", inventory, "stop"]).code(0);
    job.end(s(60)).code(143);
}
