//! `hvdctl export`: its documents as golden files, valid for the schemas of the resources; its scripts, run with
//! stand-ins for Slurm's commands; and what it refuses.

mod crd;
#[path = "export/roles.rs"]
mod roles;

use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::TempDir;

const MPIJOB: &str = include_str!("fixtures/crds/mpijob-v2beta1.json");
const JOBSET: &str = include_str!("fixtures/crds/jobset-v1alpha2.json");

/// Two nodes with four GPUs each, and variables.
const GPUS: &str = "\
[cluster]
name = \"lab\"
image = \"reg.example.org/horovod:0.28.1\"
shm_size = \"16g\"
[defaults]
gpus = 4
env = { NCCL_DEBUG = \"INFO\", PRICE = \"5$ $(HOME) 'x'\" }
env_file = \"secrets.env\"
ulimits = { memlock = -1 }
devices = [\"/dev/infiniband\"]
[[node]]
host = \"gpu[1-2]\"
";

/// The inventory without settings that have no equivalent.
const PLAIN: &str = "[cluster]\nname = \"lab\"\nimage = \"reg.example.org/torch:2.4\"\n[defaults]\ngpus = 4\n[[node]]\nhost = \"gpu[1-2]\"\n";

const SLURM: &str = "\
[cluster]
name = \"uni\"
[slurm]
partition = \"ml\"
time = \"08:00:00\"
gres = \"gpu:4\"
activate = [\"module load CUDA\", \"source ~/venv/bin/activate\"]
options = [\"--comment=two words\"]
";

/// A directory with an inventory and the project `digits`.
fn directory(inventory: &str, hvdctl_toml: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "inventory.toml", inventory);
    write(dir.path(), "secrets.env", "HF_TOKEN=hidden-1\nWANDB='hidden-2'\n");
    fs::set_permissions(dir.path().join("secrets.env"), fs::Permissions::from_mode(0o600)).unwrap();
    write(dir.path(), "digits/hvdctl.toml", hvdctl_toml);
    write(dir.path(), "digits/train.py", "print('größe')\n");
    write(dir.path(), "digits/lib/model.py", "");
    write(dir.path(), "digits/run.sh", "#!/bin/sh\n");
    write(dir.path(), "digits/requirements.txt", "numpy\n");
    fs::set_permissions(dir.path().join("digits/run.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

fn write(dir: &Path, name: &str, text: &str) {
    let path = dir.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// The output of a command, and its exit code.
struct Written {
    out: String,
    err: String,
    code: Option<i32>,
}

fn hvdctl(dir: &Path, line: &str) -> Written {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hvdctl"));
    command.current_dir(dir).env("HOME", dir).args(arguments(line)).stdin(Stdio::null());
    for name in ["HVDCTL_INVENTORY", "HVDCTL_IMAGE", "XDG_CONFIG_HOME", "COLUMNS", "CLICOLOR_FORCE", "RUST_LOG"] {
        command.env_remove(name);
    }
    let done = command.output().unwrap();
    let err = String::from_utf8(done.stderr).unwrap();
    let time = regex::Regex::new(r"(?m)^\d\d:\d\d:\d\dZ ").unwrap();
    let err = time.replace_all(&err, "").into_owned();
    Written { out: String::from_utf8(done.stdout).unwrap(), err, code: done.status.code() }
}

/// The arguments of a line, of which those in single quotes may have spaces.
fn arguments(line: &str) -> Vec<String> {
    let parts = line.split('\'').enumerate();
    parts
        .flat_map(|(at, part)| if at % 2 == 1 { vec![part] } else { part.split_whitespace().collect() })
        .map(str::to_owned)
        .collect()
}

/// Exports a job, and returns its document and what is shown on standard error.
#[track_caller]
fn exported(dir: &Path, line: &str) -> (String, String) {
    let Written { out, err, code } = hvdctl(dir, line);
    assert_eq!(code, Some(0), "{line}\n{err}");
    assert!(!out.contains("hidden") && !err.contains("hidden"), "{out}{err}");
    (out, err)
}

#[track_caller]
fn parsed(text: &str) -> Value {
    assert_eq!(text.matches("\n---").count(), 0, "one document");
    serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

#[track_caller]
fn faults(document: &Value) -> Vec<String> {
    let schema = if document["kind"] == "JobSet" { JOBSET } else { MPIJOB };
    crd::faults(&serde_json::from_str(schema).unwrap(), document)
}

/// Checks that a document is valid.
#[track_caller]
fn valid(text: &str) -> Value {
    let document = parsed(text);
    assert_eq!(faults(&document), [""; 0], "{text}");
    document
}

#[test]
fn a_horovodrun_job_with_its_project_in_a_config_map() {
    let dir = directory(GPUS, "command = [\"python\", \"train.py\", \"--note\", \"costs $(x) $$\"]\n");
    let (text, err) =
        exported(dir.path(), "export mpijob digits -np 8 --restarts 2 -e WANDB_API_KEY=hidden -e LR=0.1 -e YES=yes");
    let document = valid(&text);
    insta::assert_snapshot!("mpijob_horovodrun", format!("{text}\nstandard error:\n{err}"));
    assert!(err.contains("WANDB_API_KEY is named like a secret: its value is not in the document"), "{err}");
    // a variable that is not set makes no empty secret
    let creation = text.lines().find(|line| line.contains("create secret")).unwrap().trim_start_matches('#');
    let created = Command::new("sh").args(["-c", creation]).env("HF_TOKEN", "x").output().unwrap();
    let complaint = String::from_utf8_lossy(&created.stderr);
    assert!(complaint.contains("WANDB: is not set") || complaint.contains("WANDB: parameter"), "{complaint}");
    let launcher = &document["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0];
    let argv: Vec<&str> = launcher["command"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
    assert_eq!(argv[argv.len() - 2..], ["--note", "costs $$(x) $$$$"]);
}

#[test]
fn a_torchrun_job_with_setup_and_project_in_the_image() {
    let setup = "launcher = \"torchrun\"\nsetup = [\"pip install -r requirements.txt\", \"set -e\\ntrue\"]\nsetup_files = [\"requirements.txt\"]\n";
    let dir = directory(PLAIN, setup);
    let line = "export jobset digits -np 8 --project-in-image --tag reg.example.org/digits:1 --gpu-product \
                'NVIDIA A100-SXM4-80GB' --restarts 1 --name My_Job";
    let (text, err) = exported(dir.path(), line);
    valid(&text);
    insta::assert_snapshot!("jobset_torchrun", format!("{text}\nstandard error:\n{err}"));
    let (text, _) = exported(dir.path(), &format!("{line} -o out.yaml --dockerfile out.docker"));
    assert!(text.starts_with("wrote out.yaml ("), "{text}");
    valid(&fs::read_to_string(dir.path().join("out.yaml")).unwrap());
    assert!(fs::read_to_string(dir.path().join("out.docker")).unwrap().starts_with("FROM reg.example.org/torch:2.4\n"));
    let again = hvdctl(dir.path(), &format!("{line} -o out.yaml"));
    assert!(again.code == Some(2) && again.err.contains("out.yaml exists"), "{}", again.err);
    exported(dir.path(), &format!("{line} -o out.yaml --dockerfile out.docker --force"));
}

#[test]
fn the_ranks_of_env_with_the_project_on_a_claim() {
    let dir = directory(PLAIN, "launcher = \"env\"\n");
    let digest = format!("sha256:{}", "0123456789abcdef".repeat(4));
    let (text, err) = exported(dir.path(), &format!("export jobset digits -np 2 --pvc data.1 --pin {digest}"));
    let document = valid(&text);
    insta::assert_snapshot!("jobset_env", format!("{text}\nstandard error:\n{err}"));
    let pod = &document["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"];
    let env = pod["containers"][0]["env"].as_array().unwrap();
    let config = env.iter().find(|variable| variable["name"] == "TF_CONFIG").unwrap()["value"].as_str().unwrap();
    let config: Value = serde_json::from_str(&config.replace("$(RANK)", "1")).unwrap();
    assert_eq!(config["cluster"]["worker"].as_array().unwrap().len(), 2);
}

#[test]
fn an_mpirun_job_without_gpus() {
    let inventory =
        PLAIN.replace("gpus = 4", "gpus = \"none\"\nslots = 2").replace("[defaults]", "pull = \"always\"\n[defaults]");
    let dir = directory(&inventory, "launcher = \"mpirun\"\n");
    let (text, _) = exported(dir.path(), "export mpijob digits -np 6 -e A=1 --pvc data");
    let document = valid(&text);
    insta::assert_snapshot!("mpijob_mpirun", text);
    assert!(!text.contains("nvidia.com"), "{text}");
    assert_eq!(document["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"], 3);
}

/// One in each kind of place: an API server would drop such a field in silence.
#[test]
fn a_typo_is_no_valid_field() {
    let dir = directory(GPUS, "");
    let (mpijob, _) = exported(dir.path(), "export mpijob digits -np 8");
    let (jobset, _) = exported(dir.path(), "export jobset digits -np 8 --launcher torchrun --gpu-product A100");
    let (claim, _) = exported(dir.path(), "export jobset digits -np 8 --launcher torchrun --pvc data");
    let replica = "/spec/mpiReplicaSpecs/Worker";
    let pod = "/spec/mpiReplicaSpecs/Worker/template/spec";
    let container = "/spec/mpiReplicaSpecs/Worker/template/spec/containers/0";
    let launcher = "/spec/mpiReplicaSpecs/Launcher/template/spec/containers/0";
    let job = "/spec/replicatedJobs/0/template/spec";
    let in_job = "/spec/replicatedJobs/0/template/spec/template/spec";
    let cases: &[(&str, String, &str, &str)] = &[
        (&mpijob, String::new(), "spec", "specs"),
        (&mpijob, String::new(), "apiVersion", "apiversion"),
        (&mpijob, "/metadata".into(), "name", "names"),
        (&mpijob, "/spec".into(), "slotsPerWorker", "slotPerWorker"),
        (&mpijob, "/spec".into(), "launcherCreationPolicy", "launcherCreationpolicy"),
        (&mpijob, "/spec/runPolicy".into(), "cleanPodPolicy", "cleanPodsPolicy"),
        (&mpijob, replica.into(), "replicas", "replica"),
        (&mpijob, replica.into(), "restartPolicy", "restart_policy"),
        (&mpijob, format!("{replica}/template"), "spec", "podSpec"),
        (&mpijob, pod.into(), "automountServiceAccountToken", "autoMountServiceAccountToken"),
        (&mpijob, format!("{pod}/securityContext"), "runAsUser", "runAsUID"),
        (&mpijob, pod.into(), "terminationGracePeriodSeconds", "terminationGracePeriod"),
        (&mpijob, pod.into(), "initContainers", "initContainer"),
        (&mpijob, container.into(), "imagePullPolicy", "pullPolicy"),
        (&mpijob, container.into(), "command", "cmd"),
        (&mpijob, container.into(), "workingDir", "workdir"),
        (&mpijob, format!("{container}/resources"), "limits", "limit"),
        (&mpijob, format!("{container}/readinessProbe"), "tcpSocket", "tcpsocket"),
        (&mpijob, format!("{container}/readinessProbe/tcpSocket"), "port", "ports"),
        (&mpijob, format!("{container}/readinessProbe"), "periodSeconds", "period"),
        (&mpijob, format!("{container}/ports/0"), "containerPort", "container_port"),
        (&mpijob, format!("{container}/volumeMounts/0"), "mountPath", "path"),
        (&mpijob, format!("{launcher}/env/0"), "value", "val"),
        (&mpijob, format!("{launcher}/env/2"), "valueFrom", "valuefrom"),
        (&mpijob, format!("{launcher}/env/2/valueFrom"), "secretKeyRef", "secretRef"),
        (&mpijob, format!("{launcher}/env/2/valueFrom/secretKeyRef"), "key", "keys"),
        (&mpijob, format!("{pod}/volumes/0"), "emptyDir", "emptydir"),
        (&mpijob, format!("{pod}/volumes/1/configMap"), "items", "item"),
        (&mpijob, format!("{pod}/volumes/1/configMap/items/0"), "path", "file"),
        (&mpijob, format!("{pod}/volumes/2/emptyDir"), "sizeLimit", "size"),
        (&jobset, "/metadata".into(), "name", "Name"),
        (&jobset, "/spec".into(), "replicatedJobs", "replicatedJob"),
        (&jobset, "/spec/network".into(), "enableDNSHostnames", "enableDnsHostnames"),
        (&jobset, "/spec/failurePolicy".into(), "maxRestarts", "restarts"),
        (&jobset, "/spec/replicatedJobs/0".into(), "replicas", "replica"),
        (&jobset, job.into(), "completionMode", "completion"),
        (&jobset, job.into(), "backoffLimit", "backofflimit"),
        (&jobset, in_job.into(), "nodeSelector", "nodeSelectors"),
        (&jobset, in_job.into(), "restartPolicy", "restart"),
        (&jobset, format!("{in_job}/containers/0/env/0/valueFrom"), "fieldRef", "field"),
        (&claim, format!("{in_job}/volumes/0"), "persistentVolumeClaim", "pvc"),
        (&claim, format!("{in_job}/volumes/0/persistentVolumeClaim"), "claimName", "name"),
    ];
    for (text, path, name, typo) in cases {
        let mut document = valid(text);
        let object = document.pointer_mut(path).and_then(Value::as_object_mut);
        let object = object.unwrap_or_else(|| panic!("there is no {path}"));
        let value = object.remove(*name).unwrap_or_else(|| panic!("{path} has no {name}: {object:?}"));
        object.insert((*typo).to_owned(), value);
        let found = faults(&document);
        assert!(
            found.iter().any(|fault| fault.ends_with(&format!(".{typo}: unknown field"))),
            "{path}/{typo}: {found:?}"
        );
    }
    // values of the wrong type, and of none that there is
    for (text, path, value) in [
        (&mpijob, "/spec/slotsPerWorker", serde_json::json!("4")),
        (&mpijob, &format!("{container}/command"), serde_json::json!("sshd")),
        (&mpijob, &format!("{launcher}/env/0/value"), serde_json::json!(1)),
        (&mpijob, &format!("{pod}/volumes/2/emptyDir/sizeLimit"), serde_json::json!("16 GB")),
        (&jobset, "/spec/failurePolicy/maxRestarts", serde_json::json!(1.5)),
        (&jobset, "/spec/network/enableDNSHostnames", serde_json::json!("true")),
    ] {
        let mut document = valid(text);
        *document.pointer_mut(path).unwrap_or_else(|| panic!("there is no {path}")) = value;
        assert_ne!(faults(&document), [""; 0], "{path}");
    }
}

/// Values that YAML 1.1, which `kubectl` reads, takes for something else than text.
#[test]
fn values_stay_texts() {
    let values = [
        "<<",
        "2026-01-01T00:00:00Z",
        "yes",
        "off",
        "y",
        "null",
        "~",
        "0755",
        "1e3",
        "0x1f",
        "1_000",
        "12:30:45",
        "2026-01-01",
        "=",
        "#",
        "a: b",
        "- a",
        "",
        " x ",
        "@a",
        "a\u{85}b",
        "!x",
        "*a",
        "{a",
        ".inf",
        "+1",
        "1.",
        "\"q",
    ];
    let dir = directory(PLAIN, "");
    let mut args: Vec<String> = arguments("export mpijob digits -np 8 --pvc data");
    args.extend(values.iter().enumerate().flat_map(|(at, value)| ["-e".to_owned(), format!("V{at}={value}")]));
    let done = Command::new(env!("CARGO_BIN_EXE_hvdctl")).args(&args).current_dir(dir.path()).output().unwrap();
    let text = String::from_utf8(done.stdout).unwrap();
    let document = valid(&text);
    let env = &document["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]["env"];
    for (at, value) in values.iter().enumerate() {
        let found = env.as_array().unwrap().iter().find(|variable| variable["name"] == format!("V{at}")).unwrap();
        assert_eq!(found["value"], *value, "{text}");
        let line = text.lines().skip_while(|line| !line.ends_with(&format!("name: V{at}"))).nth(1).unwrap();
        let plain = line.trim().strip_prefix("value: ").unwrap();
        assert!(plain.starts_with(['"', '\'']), "{line}");
    }
}

#[test]
fn what_has_no_equivalent_is_refused_or_named() {
    let refuse = |inventory: &str, line: &str, words: &[&str]| {
        let dir = directory(inventory, "");
        let Written { out, err, code } = hvdctl(dir.path(), line);
        assert_eq!((out.as_str(), code), ("", Some(2)), "{line}: {err}");
        words.iter().for_each(|word| assert!(err.contains(word), "{line}: no {word:?} in\n{err}"));
    };
    let with = |lines: &str| PLAIN.replace("host = \"gpu[1-2]\"", &format!("host = \"gpu[1-2]\"\n{lines}"));
    let addresses = with("address = \"10.0.0.[1-2]\"\nmounts = [\"/nfs:/nfs\"]");
    for kind in ["mpijob", "sbatch"] {
        let line = format!("export {kind} digits -np 8");
        refuse(
            &addresses,
            &line,
            &["no equivalent for", "gpu[1-2]: address: ", "gpu[1-2]: mounts /nfs at /nfs: ", "--allow-missing"],
        );
    }
    let dir = directory(&addresses, "");
    let (text, err) = exported(dir.path(), "export mpijob digits -np 8 --allow-missing");
    valid(&text);
    assert!(
        text.contains("#   gpu[1-2]: address: ") && err.contains("warning: no equivalent: gpu[1-2]: address: "),
        "{text}{err}"
    );
    let process = PLAIN.replace("image = \"reg.example.org/torch:2.4\"", "runtime = \"process\"");
    refuse(&process, "export mpijob digits -np 8", &["processes without a container", "export sbatch"]);
    refuse(SLURM, "export jobset digits -np 8 --launcher env", &["processes without a container"]);
    refuse(PLAIN, "export jobset digits -np 8", &["the launcher is horovodrun", "hvdctl export mpijob"]);
    refuse(PLAIN, "export mpijob digits -np 8 --launcher env", &["the launcher is env", "hvdctl export jobset"]);
    refuse(PLAIN, "export mpijob digits -np 8 --launcher srun", &["launcher of Slurm", "hvdctl export sbatch"]);
    refuse(PLAIN, "export mpijob digits -np 2:8", &["elastic jobs"]);
    refuse(PLAIN, "export sbatch digits -np 2:8", &["elastic jobs"]);
    refuse(PLAIN, "export mpijob digits -np 7", &["7 ranks do not fill 2 pods with 4 slots each", "-np 4 or 8"]);
    refuse(PLAIN, "export mpijob digits -np 8 --project-in-image", &["--tag REGISTRY/NAME:TAG"]);
    refuse(PLAIN, "export mpijob digits -np 8 --tag a/b:1", &["leave out --tag"]);
    refuse(PLAIN, "export mpijob digits -np 8 --pvc A_b", &["a PersistentVolumeClaim cannot have this name"]);
    refuse(PLAIN, "export mpijob digits -np 8 --pin sha256:12", &["64 hexadecimal digits"]);
    refuse(PLAIN, "export mpijob digits -np 8 -e HOROVOD_RANK=1", &["HOROVOD_RANK"]);
    refuse(PLAIN, "export jobset digits -np 8 --launcher env -e MASTER_PORT=1", &["MASTER_PORT cannot be set"]);
    refuse(PLAIN, "export mpijob digits -np 8 --stall-timeout 5m", &["--stall-timeout"]);
    refuse(PLAIN, "--scheduler slurm export mpijob digits -np 8", &["--scheduler"]);
    refuse(
        &PLAIN.replace("gpus = 4", ""),
        "export mpijob digits -np 8",
        &["gpu1: the inventory does not say how many GPUs", "--gpus-per-node K"],
    );
    refuse(&PLAIN.replace("gpus = 4", "slots = 4"), "export mpijob digits -np 8", &["how many GPUs"]);
    let unequal = format!("{PLAIN}[[node]]\nhost = \"big\"\ngpus = 8\n");
    refuse(&unequal, "export mpijob digits -np 8", &["differ in their GPUs (gpu1: 4, gpu2: 4, big: 8)", "--on"]);
    let env = format!("{PLAIN}[[node]]\nhost = \"other\"\nenv = {{ A = \"1\" }}\n");
    refuse(&env, "export mpijob digits -np 8", &["the variables of other differ from those of gpu1"]);
    refuse(SLURM, "--on gpu1 export sbatch digits -np 8", &["gpu1"]);
    refuse(SLURM, "export sbatch digits -np 8 --sbatch=--array=1-2", &["--array=1-2"]);
    let (text, _) = exported(directory(SLURM, "").path(), "export sbatch digits -np 8 --sbatch=--output=x-%j.log");
    assert!(text.contains("#SBATCH --output=x-%j.log\n"), "{text}");
    let some =
        PLAIN.replace("host = \"gpu[1-2]\"", "host = \"gpu1\"\n[[node]]\nhost = \"gpu2\"\ngpus = \"none\"\nslots = 4");
    let (_, err) = exported(directory(&some, "").path(), "export sbatch digits -np 8");
    assert!(err.contains("the script requests none; --gpus-per-node K"), "{err}");
    let dir = directory(&unequal, "");
    exported(dir.path(), "--on !big export mpijob digits -np 8");
    exported(dir.path(), "export mpijob digits -np 8 --gpus-per-node 2");
}

#[test]
fn a_project_that_is_no_few_texts_needs_another_place() {
    let dir = directory(PLAIN, "");
    let refused = |words: &str| {
        let Written { err, code, .. } = hvdctl(dir.path(), "export mpijob digits -np 8");
        assert_eq!(code, Some(2), "{err}");
        for word in [words, "--pvc NAME", "--project-in-image"] {
            assert!(err.contains(word), "no {word:?} in {err}");
        }
    };
    write(dir.path(), "digits/data.npy", "\0");
    refused("data.npy is binary");
    fs::remove_file(dir.path().join("digits/data.npy")).unwrap();
    write(dir.path(), "digits/large.txt", &"x".repeat(1_000_000));
    refused("a ConfigMap holds at most");
    write(dir.path(), "digits/.hvdctlignore", "*.txt\n");
    valid(&exported(dir.path(), "export mpijob digits -np 8").0);
    write(dir.path(), "digits/secrets.env", "HF_TOKEN=hidden\n");
    fs::set_permissions(dir.path().join("digits/secrets.env"), fs::Permissions::from_mode(0o600)).unwrap();
    let line = "export mpijob digits -np 8 --env-file digits/secrets.env";
    let done = hvdctl(dir.path(), line);
    assert!(done.code == Some(2) && done.err.contains("would be in the ConfigMap"), "{}", done.err);
    let (_, err) = exported(dir.path(), &format!("{line} --project-in-image --tag a/b:1"));
    assert!(err.contains("exclude it with a line in .dockerignore"), "{err}");
    fs::remove_file(dir.path().join("digits/secrets.env")).unwrap();
    write(dir.path(), "digits/a,b", "");
    refused("kubectl does not read a file named a,b");
    exported(dir.path(), "export mpijob digits -np 8 --pvc data");
}

#[test]
fn names_are_those_that_kubernetes_takes() {
    let dir = directory(PLAIN, "");
    for (name, expected) in
        [("a".repeat(64), "aaaaa"), ("4GPUs.v1".to_owned(), "job-4gpus-v1-"), ("A_b".to_owned(), "a-b")]
    {
        for kind in ["mpijob", "jobset --launcher torchrun"] {
            let (text, err) = exported(dir.path(), &format!("export {kind} digits -np 8 --name {name}"));
            let document = valid(&text);
            let found = document["metadata"]["name"].as_str().unwrap();
            assert!(found.starts_with(expected) && found.len() <= 63 - 15, "{found}");
            assert!(err.contains(&format!("warning: the job is named {found}: Kubernetes refuses")), "{err}");
        }
    }
}

/// Stand-ins for Slurm's commands and launchers: three nodes, of which the first has two tasks and the others one each.
const STAND_INS: [(&str, &str); 7] = [
    (
        "scontrol",
        "#!/bin/sh\necho \"scontrol $*\" >>\"$LOG\"\ncase $* in\n\
         *'show hostnames'*) printf 'n1\\nn2\\nn3\\n' ;;\n\
         *) printf 'NodeName=%s Arch=x NodeAddr=%s NodeHostName=h\\n' n1 10.9.0.1 n2 10.9.0.2 n3 n3.lab ;;\nesac\n",
    ),
    ("getent", "#!/bin/sh\nprintf '%s STREAM n3.lab\\n' 127.0.1.1 10.9.0.3\n"),
    ("scancel", "#!/bin/sh\necho \"scancel $*\" >>\"$LOG\"\nkill -TERM \"$(cat \"$LOG.step\")\"\n"),
    (
        "srun",
        "#!/bin/bash\necho \"srun ${*//$'\\n'/ }\" >>\"$LOG\"\nper=2 tasks=1\n\
         while [ $# -gt 0 ]; do case $1 in --ntasks=*) tasks=${1#*=} ;; --ntasks-per-node=1) per=1 ;; -*) ;; *) break ;; esac; shift; done\n\
         for ((rank = 0; rank < tasks; rank++)); do\n\
         if [ \"$per\" = 1 ]; then node=$rank local=0; else node=$((rank < 2 ? 0 : rank - 1)) local=$((rank == 1)); fi\n\
         SLURM_PROCID=$rank SLURM_NODEID=$node SLURM_LOCALID=$local SLURMD_NODENAME=n$((node + 1)) \"$@\" || exit\ndone\n",
    ),
    ("torchrun", "#!/bin/sh\necho \"torchrun $*\" >>\"$LOG\"\n"),
    (
        "mpirun",
        "#!/bin/sh\necho \"mpirun $*\" >>\"$LOG\"\n\
         case $* in *until-asked) trap 'echo \"ended with $OMPI_MCA_odls_base_sigkill_timeout\" >>\"$LOG\"; exit 0' TERM;\n\
         kill -USR2 \"$SCRIPT\"; while :; do sleep 0.05; done ;; esac\n",
    ),
    (
        "horovodrun",
        // as gloo_run.py: a command has all of the environment, here and elsewhere
        "#!/bin/bash\nlog=${0%/*}/../log\n\
         for name in $(compgen -e); do given=\"$given $name=$(printf %q \"${!name}\")\"; done\n\
         tr '\\0' '\\n' </proc/$$/environ >\"$log.seen\"\n\
         echo \"horovodrun ${*//$'\\n'/ }\" >>\"$log\"\n\
         while [ \"$1\" != --start-timeout ]; do shift; done\nshift 2\n\
         command=\"NCCL_SOCKET_IFNAME=eth0 $given $(printf '%q ' \"$@\")\"\n\
         echo \"$command\" >>\"$log.seen\"\n\
         bash -c \"HOROVOD_RANK=0 $command\" && ssh -o A=b -p 22 10.9.0.2 \"HOROVOD_RANK=1 $command\"\n",
    ),
];

/// Runs a script with stand-ins, and returns its exit code and what they were started with.
fn run(dir: &Path, script: &str) -> (Option<i32>, String) {
    let bin = dir.join("bin");
    for (name, text) in STAND_INS {
        write(&bin, name, text);
        fs::set_permissions(bin.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let (log, file) = (dir.join("log"), dir.join("script"));
    let _ = fs::remove_file(&log);
    // the user's own lines, for programs that are not here
    fs::write(&file, script.replace("module load CUDA\nsource ~/venv/bin/activate\n", "")).unwrap();
    let mut bash = Command::new("bash");
    bash.arg(file)
        .current_dir(dir)
        .env("LOG", &log)
        .env("PATH", format!("{}:{}", bin.display(), std::env::var("PATH").unwrap()));
    for (name, value) in [
        ("SLURM_JOB_ID", "77"),
        ("SLURM_JOB_NODELIST", "n[1-3]"),
        ("SLURM_TASKS_PER_NODE", "2,1(x2)"),
        ("SLURMD_NODENAME", "n1"),
    ] {
        bash.env(name, value);
    }
    let done = bash.output().unwrap();
    let err = String::from_utf8_lossy(&done.stderr).into_owned();
    (done.status.code(), fs::read_to_string(&log).unwrap_or_default() + &err)
}

#[test]
fn a_batch_script_starts_every_launcher() {
    let dir = directory(SLURM, "");
    let program = "sh -c 'echo \"$RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $NODE_RANK $MASTER_ADDR:$MASTER_PORT $TF_CONFIG $JAX_PROCESS_ID $X\" >>\"$LOG\"'";
    for launcher in ["env", "torchrun", "srun", "mpirun", "horovodrun"] {
        let (text, err) = exported(
            dir.path(),
            &format!(
                "export sbatch digits -np 4 --launcher {launcher} -e X=$y -e HF_TOKEN --sbatch=--mem=4G -- {program}"
            ),
        );
        assert!(err.contains("warning: set HF_TOKEN before sbatch"), "{err}");
        insta::assert_snapshot!(format!("sbatch_{launcher}"), text);
        shellcheck(&text);
        let (code, log) = run(dir.path(), &text);
        assert!(code != Some(0) && log.contains("HF_TOKEN: set it before sbatch"), "{log}");
        let (code, log) = run(dir.path(), &format!("HF_TOKEN=x\n{text}"));
        assert_eq!(code, Some(0), "{launcher}: {log}");
        // how its ranks get their environment has a test of its own
        let shortened = |line: &str| match line.split_once(" bash -c ") {
            Some((start, _)) if line.starts_with("horovodrun") => format!("{start} …"),
            _ => line.to_owned(),
        };
        let ran = log.lines().filter(|line| !line.starts_with("srun") && !line.starts_with("scontrol"));
        let ran: Vec<String> = ran.map(shortened).collect();
        let config = |rank: u32| {
            format!(
                "{{\"cluster\":{{\"worker\":[\"10.9.0.1:20077\",\"10.9.0.1:20078\",\"10.9.0.2:20077\",\"10.9.0.3:20077\"]}},\"task\":{{\"type\":\"worker\",\"index\":{rank}}}}}"
            )
        };
        let rank = |rank, local, size, node| {
            format!("{rank} {local} 4 {size} {node} 10.9.0.1:20077 {} {rank} $y", config(rank))
        };
        let expected = match launcher {
            "env" => vec![rank(0, 0, 2, 0), rank(1, 1, 2, 0), rank(2, 0, 1, 1), rank(3, 0, 1, 2)],
            "torchrun" => (0..3)
                .map(|node| {
                    let ranks = if node == 0 { 2 } else { 1 };
                    format!(
                        "torchrun --nnodes 3 --node_rank {node} --nproc_per_node {ranks} --master_addr 10.9.0.1 --master_port 20077 \
                         --max_restarts 0 --no_python {}",
                        program.replace('\'', "")
                    )
                })
                .collect(),
            "srun" => vec!["     :   $y".to_owned(); 4],
            "mpirun" => vec![format!(
                "mpirun -np 4 --map-by slot --bind-to none -x PYTHONUNBUFFERED -x HF_TOKEN -x X {}",
                program.replace('\'', "")
            )],
            _ => vec![
                "horovodrun --gloo -np 4 -H 10.9.0.1:2,10.9.0.2:1,10.9.0.3:1 --disable-cache --start-timeout 120 …".to_owned(),
                "     10.9.0.1:20077   $y".to_owned(),
                "     10.9.0.1:20077   $y".to_owned(),
            ],
        };
        assert_eq!(ran, expected, "{launcher}");
    }
}

#[test]
fn a_batch_script_keeps_the_environment_from_command_lines() {
    let dir = directory(SLURM, "");
    let program =
        "sh -c 'echo \"$HOROVOD_RANK: $HF_TOKEN, $HOROVOD_TOKEN, $OF_LOGIN, $NCCL_SOCKET_IFNAME\" >>\"$LOG\"'";
    let options = "-np 4 --launcher horovodrun -e HF_TOKEN -e HOROVOD_TOKEN -e NCCL_DEBUG=INFO";
    let (text, _) = exported(dir.path(), &format!("export sbatch digits {options} -- {program}"));
    let given = "export HF_TOKEN='canary 1' HOROVOD_TOKEN='canary 2' OF_LOGIN=$'canary\\t3' SLURM_JWT='canary 4' NCCL_SOCKET_IFNAME=ib0\n\
                 of_login() { echo canary 5; }\nexport -f of_login\n";
    let (code, log) = run(dir.path(), &format!("{given}{text}"));
    assert_eq!(code, Some(0), "{log}");
    for rank in [0, 1] {
        let line = format!("\n{rank}: canary 1, canary 2, canary\t3, eth0\n");
        assert!(log.contains(&line), "{line:?}\n{log}");
    }
    assert!(log.contains(" --nodelist=n2 "), "a step has the name of a node in Slurm: {log}");
    let seen = fs::read_to_string(dir.path().join("log.seen")).unwrap();
    assert!(seen.contains("SLURM_JOB_ID=77") && seen.contains("PATH="), "{seen}");
    assert!(!seen.contains("canary"), "{seen}");
    let commands = log.lines().filter(|line| line.starts_with("srun") || line.starts_with("horovodrun"));
    assert_eq!(commands.filter(|line| line.contains("canary")).collect::<Vec<_>>(), [""; 0]);
    // nothing is left of it
    let file = seen.rsplit("bash -c ").next().unwrap().split_whitespace().find(|word| word.ends_with("/environment"));
    assert!(!Path::new(file.unwrap()).parent().unwrap().exists(), "{seen}");
}

#[test]
fn a_batch_script_starts_ranks_again_and_ends_them_in_time() {
    let dir = directory(SLURM, "launcher = \"srun\"\n");
    let (text, _) =
        exported(dir.path(), "export sbatch digits -np 1 --restarts 2 -- sh -c 'echo failed >>\"$LOG\"; exit 7'");
    let (code, log) = run(dir.path(), &text.replace("hvdctl_pause=2", "hvdctl_pause=0"));
    assert_eq!((code, log.matches("failed\n").count()), (Some(7), 3), "{log}");
    assert!(log.contains("exit code 7; restart 2 of 2"), "{log}");
    // the ranks save after the signal
    let program =
        "trap \"echo saved >>$LOG; exit 0\" TERM; echo $$ >$LOG.step; kill -USR2 $SCRIPT; while :; do sleep 0.05; done";
    let (text, _) = exported(dir.path(), &format!("export sbatch digits -np 1 --restarts 2 -- sh -c '{program}'"));
    let (code, log) = run(dir.path(), &format!("export SCRIPT=$$\n{text}"));
    assert_eq!(code, Some(0), "{log}");
    // steps only: an srun that gets SIGTERM kills its ranks
    assert!(log.contains("scancel --signal=TERM 77\n") && log.contains("saved\n"), "{log}");
    assert_eq!(log.matches("srun ").count(), 1, "{log}");
    // what is no step is asked to end itself
    let (text, _) = exported(dir.path(), "export sbatch digits -np 1 --launcher mpirun -- until-asked");
    let (code, log) = run(dir.path(), &format!("export SCRIPT=$$\n{text}"));
    assert_eq!((code, log.lines().last()), (Some(0), Some("ended with 5")), "{log}");
    // the signal comes between two attempts
    let program = "echo attempt >>$LOG; (sleep 0.5; kill -USR2 $SCRIPT) & exit 7";
    let (text, _) = exported(dir.path(), &format!("export sbatch digits -np 1 --restarts 2 -- sh -c '{program}'"));
    let paused = text.replace("hvdctl_pause=2", "hvdctl_pause=60");
    let (code, log) = run(dir.path(), &format!("export SCRIPT=$$; echo $$ >\"$LOG.step\"\n{paused}"));
    assert_eq!((code, log.matches("attempt\n").count()), (Some(7), 1), "{log}");
}

#[test]
fn a_batch_script_has_the_variables_and_lines_of_the_user() {
    let dir = directory(SLURM, "");
    // names that a script might use itself
    let given = "-e nodes=5 -e name=run1 -e hosts=z -e count=3 -e pause=60 -e code=c -e counts=9 -e list=l";
    for launcher in ["env", "torchrun"] {
        let program = "sh -c 'echo \"$nodes $name $hosts $count $pause $code $counts $list\" >>\"$LOG\"'";
        let (text, _) =
            exported(dir.path(), &format!("export sbatch digits -np 4 --launcher {launcher} {given} -- {program}"));
        let torchrun = "#!/bin/sh\nwhile [ \"$1\" != --no_python ]; do shift; done\nshift\nexec \"$@\"\n";
        write(dir.path(), "torchrun.sh", torchrun);
        let (code, log) = run(dir.path(), &text.replace("exec torchrun", "exec sh torchrun.sh"));
        assert_eq!(code, Some(0), "{log}");
        assert!(log.contains("\n5 run1 z 3 60 c 9 l\n"), "{log}");
    }
    for (line, message) in [
        ("--launcher env -e TF_CONFIG=x", "TF_CONFIG cannot be set: the exported job sets it"),
        ("--launcher torchrun -e MASTER_PORT=1", "MASTER_PORT cannot be set: the exported job sets it"),
        ("--launcher srun -e UID=1", "UID cannot be set: bash, which runs the script, uses it itself"),
    ] {
        let done = hvdctl(dir.path(), &format!("export sbatch digits -np 4 {line}"));
        assert!(done.code == Some(2) && done.err.contains(message), "{}", done.err);
    }
    // a backslash at the end would take the rest of the line along
    let (text, _) = exported(dir.path(), "export sbatch digits -np 4 --launcher env '--sbatch=--comment=a\\'");
    assert!(text.contains("#SBATCH '--comment=a\\\\'\n"), "{text}");
    // what nodes have is not for jobs of Slurm
    let both = format!(
        "{SLURM}[defaults]\ngpus = 4\nenv = {{ A = \"1\" }}\n[[node]]\nhost = \"n1\"\naddress = \"10.0.0.1\"\n"
    );
    let dir = directory(&both, "");
    let (_, err) = exported(dir.path(), "export sbatch digits -np 4 --launcher env");
    assert!(err.contains("no equivalent: address, env, gpus of [[node]] and [defaults]"), "{err}");
    // lines of processes are those of the script
    let processes = "[cluster]\nname = \"lab\"\nruntime = \"process\"\n[defaults]\ngpus = 2\nactivate = [\"module load X\"]\n[[node]]\nhost = \"n1\"\n";
    let dir = directory(processes, "");
    let (text, _) = exported(dir.path(), "export sbatch digits -np 2 --launcher srun");
    assert!(text.contains("\nmodule load X\n"), "{text}");
}

#[test]
fn a_dockerfile_has_a_file_of_its_own() {
    let dir = directory(PLAIN, "build = \"Dockerfile\"\n");
    write(dir.path(), "digits/Dockerfile", "FROM x\n");
    let export = "export jobset digits -np 8 --launcher torchrun --force";
    for (line, why) in [
        ("--no-setup --dockerfile D", "there is no Dockerfile"),
        ("--tag a/b:1 --dockerfile digits/Dockerfile", "the project's own Dockerfile"),
        ("--tag a/b:1 --dockerfile D -o D", "name the same file"),
        ("--tag a/b:1 --dockerfile D -o ./D", "name the same file"),
    ] {
        let done = hvdctl(dir.path(), &format!("{export} {line}"));
        assert!(done.code == Some(2) && done.err.contains(why), "{}", done.err);
    }
    assert_eq!(fs::read_to_string(dir.path().join("digits/Dockerfile")).unwrap(), "FROM x\n");
    assert!(!dir.path().join("D").exists());
    let taken =
        hvdctl(dir.path(), "export jobset digits -np 8 --launcher torchrun --tag a/b:1 --dockerfile inventory.toml");
    assert!(taken.err.contains("name another file with --dockerfile"), "{}", taken.err);
}

#[test]
fn pods_are_patched_and_valid() {
    let dir = directory(PLAIN, "");
    write(
        dir.path(),
        "pods.yaml",
        "\
metadata:
  labels: {team: vision, build: '007'}
spec:
  imagePullSecrets: [{name: registry}]
  priorityClassName: high
  tolerations: [{key: spot, operator: Exists}]
  containers:
  - name: worker
    env: [{name: NCCL_DEBUG, value: WARN}, {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
    resources: {limits: {vpc.amazonaws.com/efa: 1}}
    securityContext: {capabilities: {add: [IPC_LOCK]}}
    volumeMounts: [{name: data, mountPath: /data}]
  - {name: logger, image: 'fluent-bit:3'}
  volumes:
  - {name: data, persistentVolumeClaim: {claimName: data}}
  - {name: shm, emptyDir: {sizeLimit: 64Gi}}
---
kind: MPIJob
metadata: {labels: {kueue.x-k8s.io/queue-name: gpus}}
spec: {mpiReplicaSpecs: {Launcher: {template: {spec: {nodeSelector: {pool: small}}}}}}
",
    );
    let line = "-np 8 --patch pods.yaml --toleration nvidia.com/gpu:NoSchedule --resource memory=64Gi";
    let (text, _) = exported(dir.path(), &format!("export mpijob digits {line}"));
    let document = valid(&text);
    insta::assert_snapshot!("mpijob_patched", text);
    assert_eq!(document["metadata"]["labels"]["kueue.x-k8s.io/queue-name"], "gpus");
    let spec = |pod: &str| &document["spec"]["mpiReplicaSpecs"][pod]["template"]["spec"];
    assert_eq!(spec("Worker")["containers"][0]["resources"]["limits"]["nvidia.com/gpu"], "4");
    assert_eq!(spec("Launcher")["containers"].as_array().unwrap().len(), 2, "its own, and the one of the patch");
    // a patch changes nothing else
    write(dir.path(), "nothing.yaml", "spec: {}\n");
    let plain = exported(dir.path(), "export mpijob digits -np 8").0;
    assert_eq!(exported(dir.path(), "export mpijob digits -np 8 --patch nothing.yaml").0, plain);
    write(
        dir.path(),
        "jobset.yaml",
        "kind: JobSet\nspec: {replicatedJobs: [{name: node, template: {spec: {activeDeadlineSeconds: 600}}}]}\n",
    );
    let line = "export jobset digits -np 8 --launcher torchrun --patch jobset.yaml";
    let document = valid(&exported(dir.path(), line).0);
    assert_eq!(document["spec"]["replicatedJobs"][0]["template"]["spec"]["activeDeadlineSeconds"], 600);
    for (line, why) in [
        ("mpijob digits -np 8 --patch jobset.yaml", "its kind is JobSet, but the document's is MPIJob"),
        ("mpijob digits -np 8 --patch none.yaml", "--patch none.yaml: cannot read it"),
        ("mpijob digits -np 8 --patch secrets.env", "--patch secrets.env"),
        ("mpijob digits -np 8 --toleration a:Never", "NoSchedule, PreferNoSchedule or NoExecute"),
        ("mpijob digits -np 8 --resource gpu=4", "DOMAIN/NAME"),
    ] {
        let done = hvdctl(dir.path(), &format!("export {line}"));
        assert!(done.code == Some(2) && done.err.contains(why) && done.out.is_empty(), "{line}: {}", done.err);
        assert!(!done.err.contains("hidden"), "{}", done.err);
    }
}

#[test]
fn gpus_of_other_makers_are_asked_for_or_the_export_is_refused() {
    let amd = PLAIN.replace("gpus = 4", "gpus = \"none\"\nslots = 4\ndevices = [\"/dev/kfd\", \"/dev/dri\"]");
    let limits = |inventory: &str, line: &str| {
        let (text, err) = exported(directory(inventory, "").path(), line);
        let document = valid(&text);
        let job = &document["spec"]["replicatedJobs"][0]["template"]["spec"];
        (job["parallelism"].clone(), job["template"]["spec"]["containers"][0]["resources"]["limits"].to_string(), err)
    };
    let jobset = "export jobset digits --launcher torchrun -np 8";
    let (pods, resources, _) = limits(&amd, &format!("{jobset} --resource amd.com/gpu=4"));
    assert_eq!((pods, resources.as_str()), (2.into(), r#"{"amd.com/gpu":"4"}"#));
    let slice = "--resource nvidia.com/mig-1g.10gb=2 --resource rdma/hca=1";
    let (pods, resources, _) = limits(PLAIN, &format!("{jobset} {slice}"));
    assert_eq!((pods, resources.as_str()), (4.into(), r#"{"nvidia.com/mig-1g.10gb":"2","rdma/hca":"1"}"#));
    // a pod that has half of the ranks has half of the accelerators
    let (_, resources, _) = limits(PLAIN, "export jobset digits --launcher env -np 8 --resource amd.com/gpu=4");
    assert_eq!(resources, r#"{"amd.com/gpu":"1"}"#);
    let (_, resources, err) = limits(&amd, &format!("{jobset} --gpus-per-node 0"));
    assert!(
        resources == "null" && err.contains("the pods ask for no GPU, but in the inventory gpu[1-2] has devices"),
        "{err}"
    );
    let (_, _, err) = limits(PLAIN, &format!("{jobset} --gpus-per-node 0"));
    assert!(err.contains("gpu[1-2] has GPUs"), "{err}");
    let refused = |line: &str| {
        let dir = directory(&amd, "");
        write(
            dir.path(),
            "efa.yaml",
            "spec: {containers: [{name: worker, resources: {limits: {vpc.amazonaws.com/efa: 1}}}]}\n",
        );
        write(
            dir.path(),
            "gaudi.yaml",
            "spec: {containers: [{name: ranks, resources: {limits: {habana.ai/gaudi: 1}}}]}\n",
        );
        hvdctl(dir.path(), line)
    };
    for line in ["export mpijob digits -np 8", jobset, "export mpijob digits -np 8 --patch efa.yaml"] {
        let done = refused(line);
        assert!(done.code == Some(2) && done.out.is_empty(), "{line}: {}", done.err);
        assert!(done.err.contains("has devices /dev/kfd, /dev/dri") && done.err.contains("--resource"), "{}", done.err);
    }
    assert_eq!(refused(&format!("{jobset} --patch gaudi.yaml")).code, Some(0), "the patch asks for them");
    let product = refused(&format!("{jobset} --resource amd.com/gpu=4 --gpu-product MI300X"));
    assert!(product.code == Some(2) && product.err.contains("--gpu-product names GPUs of NVIDIA"), "{}", product.err);
    let both = refused(&format!("{jobset} --resource amd.com/gpu=4 --gpus-per-node 2"));
    assert!(both.code == Some(2) && both.err.contains("amd.com/gpu and nvidia.com/gpu"), "{}", both.err);
}

#[test]
fn a_memory_limit_that_shared_memory_reaches_is_named() {
    let dir = directory(PLAIN, "");
    let launcher = "spec: {containers: [{name: launcher, resources: {limits: {memory: 1Gi}}}]}\n";
    write(dir.path(), "launcher.yaml", launcher);
    write(dir.path(), "shm.yaml", "spec: {volumes: [{name: shm, emptyDir: {sizeLimit: 64Gi}}]}\n");
    write(dir.path(), "disk.yaml", "spec: {volumes: [{name: shm, emptyDir: {medium: ''}}]}\n");
    let jobset = "jobset digits -np 8 --launcher torchrun";
    for (line, container, limit, size) in [
        ("mpijob digits -np 8 --resource memory=8Gi", "worker", "8Gi", "8Gi"),
        ("mpijob digits -np 8 --resource memory=32Gi --patch shm.yaml", "worker", "32Gi", "64Gi"),
        (&format!("{jobset} --resource memory=8000M"), "ranks", "8000M", "8Gi"),
    ] {
        let (_, err) = exported(dir.path(), &format!("export {line}"));
        let said = format!(
            "the memory limit of the container {container}, {limit}, includes its /dev/shm, which may grow to {size}: "
        );
        assert_eq!(err.matches(&said).count(), 1, "{err}");
    }
    for fine in [
        "mpijob digits -np 8",
        "mpijob digits -np 8 --resource memory=9Gi",
        // it has no ranks
        "mpijob digits -np 8 --patch launcher.yaml",
        "mpijob digits -np 8 --resource memory=4Gi --patch disk.yaml",
        &format!("{jobset} --resource memory=64Gi"),
    ] {
        let (_, err) = exported(dir.path(), &format!("export {fine}"));
        assert!(!err.contains("memory limit"), "{err}");
    }
}

#[test]
fn the_patch_of_the_guide_gives_limits_to_every_container() {
    let guide = include_str!("../docs/guide/kubernetes.md");
    let patch = guide.split("```").find_map(|block| block.strip_prefix("yaml\n# limits.yaml")).unwrap();
    let patch = format!("#{patch}");
    let dir = directory(PLAIN, "");
    write(dir.path(), "limits.yaml", &patch);
    let (text, err) = exported(dir.path(), "export mpijob digits -np 8 --patch limits.yaml");
    assert!(!err.contains("memory limit"), "{err}");
    let document = valid(&text);
    for pod in ["Launcher", "Worker"] {
        let spec = &document["spec"]["mpiReplicaSpecs"][pod]["template"]["spec"];
        let lists = ["initContainers", "containers"].map(|list| spec[list].as_array().unwrap());
        assert_eq!(lists.map(Vec::len), [1, 1], "{text}");
        for container in lists.into_iter().flatten() {
            let limits = &container["resources"]["limits"];
            assert!(limits["cpu"].is_string() && limits["memory"].is_string(), "{container}");
        }
    }
}

#[test]
fn sizes_beyond_what_kubernetes_takes_are_refused() {
    let dir = directory(PLAIN, "");
    for (line, why) in [
        ("jobset digits -np 4294967295 --launcher torchrun", "do not fill"),
        ("jobset digits -np 801 --launcher env", "more than TF_CONFIG can name"),
    ] {
        let done = hvdctl(dir.path(), &format!("export {line}"));
        assert!(done.code == Some(2) && done.err.contains(why), "{}", done.err);
    }
    (0..1000).for_each(|number| write(dir.path(), &format!("digits/n/{number}"), "x"));
    let done = hvdctl(dir.path(), "export jobset digits -np 8 --launcher torchrun");
    assert!(done.code == Some(2) && done.err.contains("files, but a document names at most 1000"), "{}", done.err);
    fs::remove_dir_all(dir.path().join("digits/n")).unwrap();
    write(dir.path(), "digits/..x", "x");
    let done = hvdctl(dir.path(), "export jobset digits -np 8 --launcher torchrun");
    assert!(done.code == Some(2) && done.err.contains("..x"), "{}", done.err);
}

#[track_caller]
fn shellcheck(script: &str) {
    use std::io::Write as _;
    let mut child = Command::new("shellcheck")
        .args(["--norc", "-e", "SC1090,SC1091,SC2016", "-s", "bash", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    let done = child.wait_with_output().unwrap();
    assert!(done.status.success(), "{}\n{script}", String::from_utf8_lossy(&done.stdout));
}
