//! The programs of an exported MPIJob's pods, run in a container of a node: nothing else here is like a cluster.

use crate::images::STRANGE;
use crate::state::{Lab, Restore, node_sh, on};
use serde_json::Value;

/// A container with the worker's command, into which as many ranks as a large pod has log in at once. Its
/// PATH has a blank. One rank runs on, and when the pod is stopped it needs a second and a process of its own to
/// save. Prints how many logins failed, the end of their PATH, what the launcher's container reaches, the exit code and what
/// that rank wrote. Arguments: the commands of worker and launcher, and the image.
const POD: &str = r#"set -e
docker rm -f hvdctl-test-pod >/dev/null 2>&1 || true
rm -rf /tmp/hvdctl-test-pod && mkdir /tmp/hvdctl-test-pod && cd /tmp/hvdctl-test-pod
# the operator mounts a directory that is open to others
mkdir -m 777 keys && ssh-keygen -q -t ed25519 -N '' -f keys/id_rsa && install -m 600 keys/id_rsa.pub keys/authorized_keys
docker run -d --name hvdctl-test-pod -v "$PWD/keys:/root/.ssh:ro" -e "PATH=/usr/local/bin:/usr/bin:/bin:/opt/a b" \
  --entrypoint sh "$3" -c "$1" >/dev/null
host=root@$(docker inspect -f '{{.NetworkSettings.IPAddress}}' hvdctl-test-pod)
login() { ssh -i keys/id_rsa -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR "$host" "$@"; }
for second in 1 2 3 4 5 6 7 8 9 10; do ! login true 2>/dev/null || break; sleep 1; done
failed=0
for rank in $(seq 32); do login true 2>/dev/null & done
for login in $(jobs -p); do wait "$login" || failed=$((failed + 1)); done
echo "failed logins: $failed"
login 'echo "PATH: ${PATH#*/bin:/opt}"'
docker run --rm -v "$PWD/keys:/root/.ssh:ro" --entrypoint sh "$3" -c "$2" sh ssh "$host" 'echo reached'
login 'cd / && cat >/tmp/rank.py && python3 /tmp/rank.py' >/dev/null 2>&1 <<'end' &
import signal, subprocess, sys, time
def save(*_):
    time.sleep(1)
    print("saved" if loader.poll() is None else "the loader was killed", file=out, flush=True)
    loader.kill()
    sys.exit()
signal.signal(signal.SIGTERM, save)
loader = subprocess.Popen(["sleep", "60"])
out = open("/tmp/out", "w")
print("up", file=out, flush=True)
while True:
    time.sleep(0.1)
end
until docker exec hvdctl-test-pod cat /tmp/out >/dev/null 2>&1; do sleep 0.1; done
docker stop -t 20 hvdctl-test-pod >/dev/null
docker inspect -f 'exit code {{.State.ExitCode}}' hvdctl-test-pod
docker cp hvdctl-test-pod:/tmp/out - | tar -xO"#;

#[test]
fn the_worker_of_an_mpijob_takes_many_logins_and_lets_its_ranks_save() {
    let lab = Lab::up();
    let _restore = Restore(|| drop(on("node1", "docker rm -f hvdctl-test-pod; rm -rf /tmp/hvdctl-test-pod")));
    let project = lab.project("pods", &[("train.py", "")]);
    let done = lab.hvdctl(&["export", "mpijob", project.to_str().unwrap(), "-np", "2"]).code(0);
    let document: Value = serde_saphyr::from_str(&done.out).unwrap();
    let worker = &document["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0];
    let launcher = &document["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0];
    // Kubernetes replaces `$$`
    let [worker, launcher] = [worker, launcher].map(|pod| pod["command"][2].as_str().unwrap().replace("$$", "$"));
    let stopped = node_sh(
        "node1",
        &format!("timeout 50 bash -c '{}' bash \"$@\"", POD.replace('\'', "'\\''")),
        &[&worker, &launcher, STRANGE],
    );
    assert_eq!(
        stopped.code(0).out,
        "failed logins: 0\nPATH: /a b:/usr/sbin:/sbin\nreached\nexit code 143\nup\nsaved\n"
    );
}
