//! `doctor`: each fault that makes jobs fail or hang is made on a node, reported with its hint, and undone.

use crate::pool::power;
use crate::process::{Done, eventually, s};
use crate::state::{FULL, IMAGE, Lab, NODES, Restore, address, gpu_uuids, id_of, node_sh, on, ours, rank_processes};
use serde_json::Value;

/// Puts things back on node2.
fn undo(script: &str) -> Restore<impl FnMut() + '_> {
    Restore(move || {
        node_sh("node2", script, &[]).code(0);
    })
}

/// The findings of a severity, as `NODES: SEEN`.
fn findings(done: &Done, severity: &str) -> Vec<String> {
    done.out.lines().filter_map(|line| line.strip_prefix(&format!("{severity} "))).map(str::to_owned).collect()
}

/// Runs `doctor` and expects one error, with these texts in it and those in its hint.
#[track_caller]
fn finds(lab: &Lab, words: &str, hint: &str) -> Done {
    let done = lab.hvdctl(&["doctor"]).code(1);
    let errors = findings(&done, "error");
    assert!(errors.len() == 1 && errors[0].contains(words), "not one error with {words:?}:\n{}", done.out);
    let after = done.out.split(errors[0].as_str()).nth(1).unwrap();
    let lines: Vec<&str> = after.lines().skip(1).take(2).collect();
    assert!(lines[0].starts_with("  why: ") && lines[1].starts_with("  hint: "), "{}", done.out);
    assert!(lines[1].contains(hint), "no {hint:?} in {:?}", lines[1]);
    assert!(done.out.lines().last().unwrap().starts_with("failed: 2 nodes, 1 error"), "{}", done.out);
    done
}

/// `doctor` once more where a fault was undone, with `scripts/test --full`.
#[track_caller]
fn is_well_again(lab: &Lab) {
    if FULL {
        is_well(lab);
    }
}

/// `doctor` that finds no error.
#[track_caller]
fn is_well(lab: &Lab) -> Done {
    let done = lab.hvdctl(&["doctor"]).code(0);
    assert_eq!(findings(&done, "error"), Vec::<String>::new());
    assert!(done.out.lines().last().unwrap().starts_with("ok: 2 nodes, no errors"), "{}", done.out);
    done
}

#[test]
fn healthy_nodes() {
    let lab = Lab::empty();
    // nothing there yet: notes, and no faults
    is_well(&lab).says(&[
        "note node[1-2]: its worker is not running",
        "note node[1-2]: there are no keys yet",
        "hint: hvdctl up",
    ]);
    for node in NODES {
        assert_eq!(ours(node), "");
        on(node, "test ! -e /opt/horovod");
    }
    lab.hvdctl(&["up"]).code(0);
    let before = NODES.map(|node| id_of(node, "hworker"));
    let image = [
        "the image has horovodrun (Horovod 0.28.1), torchrun (PyTorch 1.13",
        ", mpirun (Open MPI 4.1.4), env; ",
        "mpi4py ",
    ];
    let done = is_well(&lab).says(&image);
    assert_eq!(findings(&done, "warning"), Vec::<String>::new(), "{}", done.out);
    let done = lab.hvdctl(&["doctor", "--fix", "--json"]).code(0);
    assert_eq!(NODES.map(|node| id_of(node, "hworker")), before);
    let document: Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!(document["ok"], true);
    let nodes = document["nodes"].as_array().unwrap();
    assert!(nodes.len() == 2 && nodes.iter().all(|node| node["ok"] == true && node["reachable"] == true), "{document}");
    assert!(document["fixed"].as_array().unwrap().is_empty());
    // no process of the check is left
    for node in NODES {
        assert!(eventually(s(10), || on(node, "pgrep -af '[M]SG_WAITALL' | grep -v 'sh -c'; :").is_empty()));
    }
}

#[test]
fn an_unreachable_node_hides_nothing_of_the_other() {
    let lab = Lab::up();
    lab.edit("connect_timeout_s = 10", "connect_timeout_s = 3");
    on("node1", "docker stop -t 1 hworker");
    power(&["pause"], "node2");
    let restore = Restore(|| power(&["unpause"], "node2"));
    let done =
        lab.hvdctl(&["doctor"]).code(3).says(&["warning node1: its worker differs from the inventory", "hvdctl up"]);
    assert!(findings(&done, "error")[0].starts_with("node2: cannot log in by ssh"), "{}", done.out);
    lab.hvdctl(&["--on", "node2", "doctor"]).code(4);
    let document: Value = serde_json::from_str(&lab.hvdctl(&["doctor", "--json"]).code(3).out).unwrap();
    assert_eq!((&document["ok"], &document["nodes"][1]["reachable"]), (&false.into(), &false.into()));
    drop(restore);
}

#[test]
fn a_port_that_another_program_has() {
    let lab = Lab::empty();
    lab.hvdctl(&["keys", "push"]).code(0);
    on("node2", "HVDCTL_TEST=1 setsid python3 -m http.server 12345 >/dev/null 2>&1 &");
    let server = || on("node2", "ss -Hltnp 'sport = :12345' | grep -o 'pid=[0-9]*' | head -n 1 | cut -d= -f2");
    assert!(eventually(s(10), || !server().is_empty()));
    let pid = server().trim().to_owned();
    let restore = Restore(|| {
        node_sh("node2", "kill \"$1\"", &[&pid]).code(0);
    });
    let words = format!("node2: port 12345 is in use by python3 (process {pid} of root)");
    finds(&lab, &words, "cluster.port");
    // and nothing is begun there
    lab.hvdctl(&["up"])
        .code(3)
        .complains(&[&format!("node2: cannot use the node: {}", &words[7..]), "hint: end that program"]);
    assert_eq!((ours("node1").as_str(), ours("node2").as_str()), ("hworker running\n", ""));
    lab.hvdctl(&["run", "-np", "2", "--", "true"]).code(125).complains(&["node2: cannot use the node", "python3"]);
    lab.hvdctl(&["verify"]).code(1).complains(&["node2: cannot use the node", "python3"]);
    assert_eq!(on("node1", "ls /opt/horovod/jobs 2>/dev/null; :"), "", "a job was begun");
    assert_eq!(server().trim(), pid, "the other program still has its port");
    drop(restore);
    lab.hvdctl(&["up"]).code(0);
    is_well_again(&lab);
}

#[test]
fn a_firewall_on_the_workers_port_or_on_all_others() {
    let lab = Lab::up();
    // what is dropped is waited for
    lab.edit("connect_timeout_s = 10", "connect_timeout_s = 5");
    let from = address("node1");
    {
        let rule = format!("INPUT -p tcp --dport 12345 -s {from} -j DROP");
        let off = format!("iptables -w 10 -D {rule}");
        on("node2", &format!("iptables -w 10 -I {rule}"));
        let _restore = undo(&off);
        finds(&lab, "node1: cannot log in to node2 on port 12345: Connection timed out", "allow TCP port 12345");
    }
    {
        let rule =
            format!("INPUT -p tcp --dport 1024:65535 ! --sport 12345 -s {from} -m conntrack --ctstate NEW -j DROP");
        let off = format!("iptables -w 10 -D INPUT -p tcp --dport 12345 -s {from} -j ACCEPT; iptables -w 10 -D {rule}");
        let accept = format!("iptables -w 10 -I INPUT -p tcp --dport 12345 -s {from} -j ACCEPT");
        on("node2", &format!("iptables -w 10 -I {rule} && {accept}"));
        let _restore = undo(&off);
        let done = finds(&lab, "node1: cannot reach node2 on random high ports: no answer within 5 s", "above 1023");
        assert!(done.out.contains("a firewall allows port 12345 but not the others"), "{}", done.out);
    }
    is_well_again(&lab);
}

/// The fault behind each line of doctor.sh, all made on node2 at once.
#[test]
fn details_that_only_doctor_reads() {
    let lab = Lab::up();
    let (master, gpu) = (address("node1"), gpu_uuids("node2").remove(0));
    let start = "HVDCTL_TEST=1 setsid setpriv --reuid nobody sleep 300 >/dev/null 2>&1 & echo $!";
    let pid = on("node2", start).trim().to_owned();
    assert!(eventually(s(10), || on("node2", &format!("cat /proc/{pid}/comm")) == "sleep\n"));
    let make = "set -e
        ip link set eth0 mtu 1400
        ip link add hvdctl-test0 type veth peer name hvdctl-test1
        ip link set hvdctl-test0 up
        ip link set hvdctl-test1 up
        ip route add \"$1/32\" dev hvdctl-test0
        cd /proc/sys/net/ipv4/conf
        grep . all/rp_filter eth0/rp_filter >/opt/horovod/test-rp
        echo 0 >all/rp_filter
        echo 1 >eth0/rp_filter
        docker exec hworker sh -c 'cp /etc/hosts /run/test-hosts; sed s/^\"$0\"/10.9.9.9/ /run/test-hosts >/etc/hosts' \"$1\"
        cat >/usr/local/bin/nvidia-smi <<END
#!/bin/sh
case \\$* in *compute-apps*) echo '$2, 31000 MiB, $3' ;; *) exec /usr/bin/nvidia-smi \"\\$@\" ;; esac
END
        chmod 755 /usr/local/bin/nvidia-smi";
    let restore = undo(
        "ip link set eth0 mtu 1500; ip link del hvdctl-test0
         while IFS=: read -r file value; do echo \"$value\" >/proc/sys/net/ipv4/conf/$file; done </opt/horovod/test-rp
         rm -f /usr/local/bin/nvidia-smi; docker exec hworker sh -c 'cat /run/test-hosts >/etc/hosts; rm \
         /run/test-hosts'",
    );
    node_sh("node2", make, &[&master, &pid, &gpu]).code(0);
    let done = lab.hvdctl(&["doctor"]).code(1);
    let mut warnings = findings(&done, "warning");
    warnings.sort();
    let expected = [
        "node2: its interface has a different MTU: node1 1500 · node2 1400".to_owned(),
        format!("node2: other programs use its GPUs: sleep (process {pid} of nobody) on GPU 0 with 31000 MiB"),
        format!(
            "node2: packets to node1 ({master}) leave by hvdctl-test0 instead of eth0, and eth0 drops incoming packets \
             from there (rp_filter)"
        ),
        format!("node2: the host name node1 resolves to 10.9.9.9 in its worker instead of {master}"),
    ];
    assert_eq!(warnings, expected, "{}", done.out);
    // and so it is
    assert!(findings(&done, "error").iter().any(|e| e.contains("on random high ports")), "{}", done.out);
    drop(restore);
    is_well_again(&lab);
}

#[test]
fn fix_ends_processes_of_ended_jobs() {
    let lab = Lab::up();
    let launcher = |id: &str| {
        format!(
            "docker create --name hmaster --label hvdctl.cluster=lab --label hvdctl.role=master --label \
             hvdctl.job={id} \
             {IMAGE} true"
        )
    };
    on("node1", &launcher("20990101-000000-dead"));
    // a rank of it on node2, and one of another cluster's job
    let rank = |id: &str, cluster: &str| {
        format!(
            "mkdir -p /opt/horovod/jobs/{id} && echo '{{\"id\":\"{id}\",\"cluster\":\"{cluster}\"}}' \
             >/opt/horovod/jobs/{id}/job.json && \
             docker exec -d -e HVDCTL_TEST=1 -e HVDCTL_JOB={id} -e HVDCTL_PROGRAM=1 hworker sleep 500"
        )
    };
    on("node2", &rank("20990101-000000-dead", "lab"));
    on("node2", &rank("20990101-000000-beef", "other"));
    assert!(eventually(s(10), || rank_processes("node2").lines().count() == 2), "{}", rank_processes("node2"));
    let done = lab.hvdctl(&["doctor"]).code(1);
    assert_eq!(
        (findings(&done, "error"), findings(&done, "warning")),
        (
            vec!["node2: 1 process of job 20990101-000000-dead, whose launcher is not running".to_owned()],
            vec!["node1: hmaster of the ended job 20990101-000000-dead still exists".to_owned()]
        ),
        "{}",
        done.out
    );
    assert_eq!(rank_processes("node2").lines().count(), 2, "nothing is changed without --fix");
    lab.hvdctl(&["doctor", "--fix"]).code(0).says(&[
        "fixed node1: removed hmaster",
        "fixed node2: ended the remaining processes of job 20990101-000000-dead",
        "ok: 2 nodes, no errors",
    ]);
    assert_eq!(ours("node1"), "hworker running\n");
    let left = on(
        "node2",
        "grep -lz '^HVDCTL_JOB=' /proc/[0-9]*/environ 2>/dev/null | xargs -r cat | tr '\\0' '\\n' | grep \
         '^HVDCTL_JOB'; :",
    );
    assert_eq!(left, "HVDCTL_JOB=20990101-000000-beef\n", "the other cluster's run goes on");
}

#[test]
fn keys_that_were_changed_are_pushed_with_fix() {
    let lab = Lab::up();
    on("node2", "chmod 644 /opt/horovod/ssh/authorized_keys");
    let done = lab.hvdctl(&["doctor"]).code(1).says(&["authorized_keys", "hint: hvdctl keys push"]);
    assert!(findings(&done, "error").iter().all(|error| error.starts_with("node2: ")), "{}", done.out);
    assert_eq!(on("node2", "stat -c %a /opt/horovod/ssh/authorized_keys"), "644\n");
    lab.hvdctl(&["doctor", "--fix"]).code(0).says(&["fixed node2: ", "ok: 2 nodes"]);
    assert_eq!(on("node2", "stat -c %a /opt/horovod/ssh/authorized_keys"), "600\n");
}

/// Tests of behaviour that other tests prove without a lab, and of rare corners of real machines (`scripts/test
/// --full`).
mod full {
    use super::*;

    #[test]
    fn gpus_and_memory_that_are_promised_and_absent() {
        let lab = Lab::empty();
        lab.edit("host = \"node2\"", "host = \"node2\"\ngpus = 2");
        finds(&lab, "node2: the inventory requires 2, nvidia-smi lists 1", "set `gpus` to what it lists");
        lab.edit("\ngpus = 2", "\nslots = 4");
        lab.hvdctl(&["up"]).code(0);
        on("node2", "docker exec hworker sh -c 'printf \"#!/bin/sh\\nexit 255\\n\" >$(command -v nvidia-smi)'");
        finds(
            &lab,
            "node2: its worker was started with 1 GPU and now sees 0",
            "`hvdctl up`, which recreates the worker",
        );
        lab.hvdctl(&["up"]).code(0).says(&["node1: unchanged", "node2: recreated hworker (lost its GPUs)"]);
        on("node2", "docker exec hworker nvidia-smi -L");
        lab.hvdctl(&["--on", "node2", "down"]).code(0);
        lab.edit("[defaults]", "shm_size = \"64m\"\n[defaults]");
        finds(&lab, "node2: /dev/shm of its containers has 64.0 MiB for 4 ranks", "cluster.shm_size");
    }

    #[test]
    fn an_engine_that_is_down() {
        let lab = Lab::up();
        on("node2", "node-engine stop");
        let restore = Restore(|| {
            on("node2", "node-engine start");
            assert!(eventually(s(30), || node_sh("node2", "docker version", &[]).code == 0), "the engine of node2");
        });
        let done = lab.hvdctl(&["doctor"]).code(1);
        let errors = findings(&done, "error");
        assert!(errors.len() == 1 && errors[0].starts_with("node2: cannot reach the Docker Engine"), "{}", done.out);
        done.says(&["hint: start it on that node: sudo systemctl start docker"]);
        drop(restore);
    }

    #[test]
    fn another_image_on_one_node() {
        let lab = Lab::empty();
        let make = "docker tag \"$1\" hvdctl-test/kept:1 && docker run --name hvdctl-test-image --label hvdctl-test=1 \
                --entrypoint sh \"$1\" -c 'echo other >/other' && docker commit hvdctl-test-image \"$1\" && \
                docker rm hvdctl-test-image";
        node_sh("node2", make, &[IMAGE]).code(0);
        let restore = Restore(|| {
            let back = "other=$(docker images -q \"$1\"); docker tag hvdctl-test/kept:1 \"$1\" && docker rmi \
                hvdctl-test/kept:1 && \
                    docker rmi \"$other\"";
            node_sh("node2", back, &[IMAGE]).code(0);
        });
        let short = |node: &str| {
            on(node, &format!("docker images --no-trunc -q {IMAGE}")).trim().trim_start_matches("sha256:")[..12]
                .to_owned()
        };
        let (one, other) = (short("node1"), short("node2"));
        assert_ne!(one, other);
        finds(
            &lab,
            &format!("node2: {IMAGE} is not the same image on all nodes: node1 {one} · node2 {other}"),
            "docker save",
        );
        lab.hvdctl(&["up"]).code(3).complains(&["node2: cannot use the node", &other]);
        assert_eq!((ours("node1").as_str(), ours("node2").as_str()), ("hworker running\n", ""));
        drop(restore);
        lab.hvdctl(&["up"]).code(0);
        is_well_again(&lab);
    }
}
