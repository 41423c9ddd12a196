//! The inventory's settings for containers other than the image, observed on the nodes themselves.

use crate::state::{Lab, NODES, files_with, gpu_uuids, inspect, node_sh, on, tell_jobs};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

#[test]
fn mounts_devices_limits_and_environment_are_where_the_ranks_are() {
    let lab = Lab::empty();
    for node in NODES {
        on(node, &format!("mkdir -p /opt/horovod/test-data && echo data of {node} >/opt/horovod/test-data/file"));
    }
    let secrets = lab.path().join("secrets.env");
    fs::write(&secrets, "# a secret\nTOKEN=s3cr3t-w0rd = 'x'\nBOTH=file\n").unwrap();
    fs::set_permissions(&secrets, fs::Permissions::from_mode(0o600)).unwrap();
    lab.edit(
        "gpus = 1",
        "gpus = 1\nmounts = [\"/opt/horovod/test-data:/data:ro\"]\ndevices = [\"/dev/zero:/dev/hvdctl-test:r\"]\n\
         ulimits = { memlock = 32768, nofile = { soft = 1234, hard = 4321 } }\nenv_file = \"secrets.env\"\n\
         env = { PLAIN = \"two words $HOME\", BOTH = \"table\" }",
    );
    lab.edit("host = \"node2\"", "host = \"node2\"\nenv = { PLAIN = \"another\" }");
    lab.edit("[defaults]", "shm_size = \"96m\"\n[defaults]");
    lab.hvdctl(&["up"]).code(0);
    for node in NODES {
        let worker = inspect(node, "hworker");
        let host = &worker["HostConfig"];
        let limit = |name: &str, soft: i64, hard: i64| json!({ "Name": name, "Soft": soft, "Hard": hard });
        assert_eq!(host["Ulimits"], json!([limit("memlock", 32768, 32768), limit("nofile", 1234, 4321)]), "{node}");
        let device =
            json!({ "PathOnHost": "/dev/zero", "PathInContainer": "/dev/hvdctl-test", "CgroupPermissions": "r" });
        assert_eq!(host["Devices"], json!([device]), "{node}");
        let seen = node_sh(
            node,
            "docker exec hworker sh -c 'cat /data/file; head -c 3 /dev/hvdctl-test | od -An -tx1; touch /data/x'",
            &[],
        );
        assert_eq!(seen.out, format!("data of {node}\n 00 00 00\n"));
        assert!(seen.err.contains("Read-only file system"), "{}", seen.err);
    }
    lab.hvdctl(&["up"]).code(0).says(&["nothing to do"]);

    // in a rank it is all the same, on the master in hmaster and elsewhere in hworker
    let script = "cat /data/file; touch /data/x 2>/dev/null || echo read-only; head -c 3 /dev/hvdctl-test | od -An -tx1
        nvidia-smi -L; echo $(df --output=size,target /dev/shm | tail -n 1)
        ulimit -l; ulimit -n; echo \"$PLAIN|$BOTH|$TOKEN\"
        while [ ! -e /opt/horovod/jobs/$HVDCTL_JOB/go ]; do sleep 0.1; done";
    let run = lab.start(&["run", "-np", "2", "--", "sh", "-c", script]);
    let looked = "for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' <$f; echo; done 2>/dev/null | grep -v grep | grep -c \
        s3cr3t-w0rd;
         docker ps -aq | xargs docker inspect | grep -c s3cr3t-w0rd;
         cat /opt/horovod/jobs/*/job.json | grep -c s3cr3t-w0rd; stat -c '%a %u' /opt/horovod/jobs/*/env.json; :";
    crate::process::eventually(crate::process::s(60), || run.out().matches("s3cr3t-w0rd").count() == 2);
    for node in NODES {
        assert_eq!(on(node, looked), "0\n0\n0\n600 0\n", "{node}");
    }
    for node in NODES {
        tell_jobs(node, "go", "");
    }
    let done = run.end(crate::process::s(60)).code(0);
    for (rank, plain) in [("0 node1", "two words $HOME"), ("1 node2", "another")] {
        let node = &rank[2..];
        let gpus = on(node, "nvidia-smi -L");
        let lines = [
            &format!("data of {node}"),
            "read-only",
            " 00 00 00",
            gpus.trim_end(),
            &format!("{} /dev/shm", 96 << 10),
            "32",
            "1234",
            &format!("{plain}|table|s3cr3t-w0rd = 'x'"),
        ];
        let prefix = format!("[{rank}] ");
        let said: Vec<&str> = done.out.lines().filter_map(|line| line.strip_prefix(&prefix)).collect();
        assert_eq!(said, lines, "{rank}");
        assert_eq!(on(node, "ls /opt/horovod/jobs/*/env.json 2>/dev/null; :"), "", "it is gone with the job");
    }

    // the environment is the next job's and asks for no other worker; the rest does
    lab.edit("PLAIN = \"another\"", "PLAIN = \"changed\"");
    lab.hvdctl(&["up", "--dry-run"]).code(0).says(&["nothing to do"]);
    lab.edit("memlock = 32768, ", "");
    lab.edit("/dev/zero:/dev/hvdctl-test:r", "/dev/zero:/dev/hvdctl-test");
    lab.edit(":/data:ro", ":/data");
    lab.hvdctl(&["up", "--dry-run"]).code(0).says(&["recreate hworker (mounts, devices, ulimits)"]);
    lab.edit("/opt/horovod/test-data", "/opt/horovod/test-absent");
    lab.hvdctl(&["up"]).code(1).complains(&["start hworker", "/opt/horovod/test-absent"]);
    on("node1", "test ! -e /opt/horovod/test-absent");
}

#[test]
fn just_the_gpus_that_are_named() {
    let lab = Lab::empty();
    let uuids = NODES.map(|node| gpu_uuids(node).remove(0));
    lab.edit("gpus = 1", "gpus = [1]");
    lab.hvdctl(&["up"]).code(1).complains(&[
        &format!("node1: cannot find the configured GPUs: the inventory requires 1, nvidia-smi lists 0 {}", uuids[0]),
        "hint: ",
    ]);
    lab.edit("gpus = [1]", "gpus = [0]");
    lab.edit("host = \"node2\"", &format!("host = \"node2\"\ngpus = [\"{}\"]", uuids[1]));
    lab.hvdctl(&["up"]).code(0);
    for (node, asked) in NODES.iter().zip(["0", &uuids[1]]) {
        let request = &inspect(node, "hworker")["HostConfig"]["DeviceRequests"][0];
        assert_eq!((&request["DeviceIDs"], &request["Count"]), (&json!([asked]), &json!(0)), "{node}");
    }
    let document: Value = serde_json::from_str(&lab.hvdctl(&["verify", "--json"]).code(0).out).unwrap();
    for (node, uuid) in document["nodes"].as_array().unwrap().iter().zip(&uuids) {
        let gpus = node["ranks"][0]["report"]["gpus"].as_array().unwrap();
        assert!(gpus.len() == 1 && gpus[0].as_str().unwrap().contains(uuid), "{gpus:?}");
    }
    // also where NVIDIA's runtime is the default one, and the image asks for all GPUs
    lab.edit("gpus = [0]", "gpus = 0");
    lab.hvdctl(&["up"]).code(0);
    assert_eq!(on("node1", "docker exec hworker printenv NVIDIA_VISIBLE_DEVICES"), "void\n");
}

#[test]
fn an_image_that_a_node_lacks_comes_from_its_registry() {
    const IMAGE: &str = "127.0.0.1:5597/hvdctl-test/image:1";
    // the engine reads its encoding only in the right alphabet
    const PASSWORD: &str = "?>~hunter2?>~";
    let lab = Lab::empty();
    let _restore = crate::state::Restore(|| {
        for node in NODES {
            on(node, &format!("kill $(cat /opt/hvdctl-test.pid); docker rmi {IMAGE}; rm /opt/hvdctl-test.*; :"));
        }
    });
    for node in NODES {
        let start = "printf %s \"$1\" >/opt/hvdctl-test.py
                     HVDCTL_TEST=1 setsid python3 /opt/hvdctl-test.py 5597 30000000 \"ana:$2\" >/dev/null 2>&1 &
                     echo $! >/opt/hvdctl-test.pid
                     for i in $(seq 100); do
                       bash -c 'exec 3<>/dev/tcp/127.0.0.1/5597' 2>/dev/null && exit 0
                       sleep 0.1
                     done
                     exit 1";
        node_sh(node, start, &[include_str!("registry.py"), PASSWORD]).code(0);
    }
    lab.edit(crate::state::IMAGE, IMAGE);
    let id = |node: &str| on(node, &format!("docker images --no-trunc -q {IMAGE}"));
    let dry = lab.hvdctl(&["up", "--dry-run"]).code(0);
    dry.says(&[&format!("node[1-2] (2): pull {IMAGE}, start hworker"), "2 of 2 nodes would be changed"]);
    assert_eq!(NODES.map(id), ["", ""], "a dry run gets nothing");

    lab.hvdctl(&["up"]).code(1).complains(&["node1: cannot pull the image", "`docker login 127.0.0.1:5597` here"]);
    // what is in the directory of the test is all that the operator's Docker knows
    let config = format!(r#"{{"auths": {{"127.0.0.1:5597": {{"username": "ana", "password": "{PASSWORD}"}}}}}}"#);
    std::fs::write(lab.path().join("config.json"), config).unwrap();
    // nothing in this image can be started, but it is pulled, and the progress is reported in bytes
    let done = lab.hvdctl(&["up"]).code(1).complains(&["node1: cannot start hworker", "node2: cannot start hworker"]);
    let reported = |what: &str| done.err.lines().any(|line| line.contains(" node1: ") && line.contains(what));
    assert!(reported(&format!("ing {IMAGE}: ")) && reported(" of 28.6 MiB"), "{}", done.err);
    let ids = NODES.map(id);
    assert!(ids.iter().all(|id| id.starts_with("sha256:")), "{ids:?}");
    let again = lab.hvdctl(&["up"]).code(1);
    assert!(!again.err.contains("ing 127.0.0.1"), "it is there: {}", again.err);
    lab.hvdctl(&["image", "pull"]).code(0).says(&["node[1-2] (2): unchanged"]);
    for node in NODES {
        let left = files_with(
            node,
            "hunter2",
            "/root /home /etc /opt /tmp /var/log /var/lib/docker/image /var/lib/docker/containers",
        );
        assert_eq!(left, [""; 0], "the password is on {node}");
    }
    // the other commands get none
    for node in NODES {
        on(node, &format!("docker rmi {IMAGE}"));
    }
    lab.hvdctl(&["run", "-np", "1", "--", "true"]).code(125).complains(&["cannot find the image", "No such image"]);
    assert_eq!(NODES.map(id), ["", ""]);
}

/// Tests of behaviour that other tests prove without a lab, and of rare corners of real machines (`scripts/test
/// --full`).
mod full {
    use super::*;

    #[test]
    fn an_image_that_no_registry_has_is_an_error_with_a_hint() {
        let lab = Lab::empty();
        lab.edit(crate::state::IMAGE, "127.0.0.1:1/none/such");
        lab.hvdctl(&["up", "--dry-run"]).code(0).says(&["node[1-2] (2): pull 127.0.0.1:1/none/such, start hworker"]);
        let hint = "docker save 127.0.0.1:1/none/such | ssh node1 sudo docker load";
        lab.hvdctl(&["up"]).code(1).complains(&[
            "node1: cannot pull the image 127.0.0.1:1/none/such:latest: ",
            "connection refused",
            hint,
        ]);
        lab.edit("[defaults]", "pull = \"never\"\n[defaults]");
        lab.hvdctl(&["up"])
            .code(1)
            .complains(&["node1: cannot find the image 127.0.0.1:1/none/such: No such image", hint]);
        lab.edit("pull = \"never\"", "pull = \"always\"");
        lab.edit("127.0.0.1:1/none/such", crate::state::IMAGE);
        // it is there, and all the same the registry is asked
        lab.hvdctl(&["up"]).code(1).complains(&["cannot pull the image"]);
    }
}
