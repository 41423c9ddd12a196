//! The export of projects with roles.

use super::*;

/// A trainer with two agents of torchrun, generators that start first, and a server that neither needs.
const ROLES: &str = "\
[[role]]
name = \"trainer\"
command = [\"python\", \"train.py\", \"--to\", \"$HVDCTL_ROLE_GENERATOR_HTTP\"]
launcher = \"torchrun\"
ranks = 8
needs = [\"generator\"]
env = { LR = \"0.1\", NCCL_DEBUG = \"WARN\" }

[[role]]
name = \"generator\"
command = [\"sh\", \"-c\", \"exec serve --port ${PORT_HTTP} --name $HOSTNAME\"]
launcher = \"env\"
ranks = 2
gpus = 2
ports = [\"http\", \"metrics\"]
ready = \"http://:$PORT_HTTP/health?deep=1\"
ready_timeout_s = 301
beside = \"trainer\"
ends = \"restarts 3\"
env = { API_KEY = \"hidden\" }

[[role]]
name = \"Log_Server\"
command = [\"log\"]
launcher = \"env\"
ranks = 1
gpus = 0
ports = [\"in\"]
ready = \"port in\"
ends = \"with generator\"
";

/// Returns the replicated jobs of a JobSet, by their names.
fn jobs(document: &Value) -> Vec<(&str, &Value)> {
    let jobs = document["spec"]["replicatedJobs"].as_array().unwrap();
    jobs.iter().map(|job| (job["name"].as_str().unwrap(), &job["template"]["spec"])).collect()
}

/// Returns the value of a variable of a job's ranks.
fn variable<'a>(job: &'a Value, name: &str) -> &'a Value {
    let env = job["template"]["spec"]["containers"][0]["env"].as_array().unwrap();
    env.iter().find(|variable| variable["name"] == name).map_or(&Value::Null, |variable| &variable["value"])
}

#[test]
fn each_role_is_a_replicated_job() {
    let dir = directory(GPUS, ROLES);
    let (text, err) = exported(dir.path(), "export jobset digits --allow-missing --restarts 1 -e LR=0.2");
    let document = valid(&text);
    insta::assert_snapshot!("jobset_roles", format!("{text}\nstandard error:\n{err}"));
    let jobs = jobs(&document);
    let names: Vec<&str> = jobs.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["generator", "trainer", "log-server"], "a role comes after those that it needs");
    let [generator, trainer, log] = [0, 1, 2].map(|at| jobs[at].1);
    // options, then the role, then the inventory
    assert_eq!((variable(trainer, "LR"), variable(generator, "LR")), (&"0.2".into(), &"0.2".into()));
    assert_eq!((variable(trainer, "NCCL_DEBUG"), variable(log, "NCCL_DEBUG")), (&"WARN".into(), &"INFO".into()));
    let addresses = "digits-generator-0-0.digits:20000,digits-generator-0-1.digits:20000";
    for job in [generator, trainer, log] {
        assert_eq!(variable(job, "HVDCTL_ROLE_GENERATOR_HTTP"), addresses);
        assert_eq!(variable(job, "HVDCTL_ROLE_LOG_SERVER_HOSTS"), "digits-log-server-0-0.digits");
        let roles = &job["template"]["metadata"]["annotations"]["hvdctl/roles"];
        let roles: Value = serde_json::from_str(roles.as_str().unwrap()).unwrap();
        assert_eq!(roles["generator"]["ports"]["http"], serde_json::json!(addresses.split(',').collect::<Vec<_>>()));
        let hosts = roles["trainer"]["hosts"].as_array().unwrap();
        assert_eq!((roles["trainer"]["ranks"].as_u64(), hosts.len()), (Some(8), 8));
        assert_eq!((&hosts[3], &hosts[4]), (&"digits-trainer-0-0.digits".into(), &"digits-trainer-0-1.digits".into()));
    }
    assert_eq!(
        (variable(generator, "PORT_METRICS"), variable(trainer, "PORT_METRICS")),
        (&"20001".into(), &Value::Null)
    );
}

#[test]
fn one_role_may_be_exported_alone() {
    let dir = directory(PLAIN, ROLES);
    let (text, _) = exported(dir.path(), "export jobset digits --role generator -np 3 -- other '$PORT_METRICS'");
    let document = valid(&text);
    let jobs = jobs(&document);
    assert_eq!((jobs.len(), jobs[0].0, &jobs[0].1["completions"]), (1, "generator", &3.into()));
    assert_eq!(jobs[0].1["template"]["spec"]["containers"][0]["command"], serde_json::json!(["other", "20001"]));
    assert_eq!(document["spec"]["successPolicy"]["targetReplicatedJobs"], serde_json::json!(["generator"]));
}

#[test]
fn roles_that_a_document_cannot_have_are_refused_or_named() {
    let refuse = |toml: &str, line: &str, words: &[&str]| {
        let done = hvdctl(directory(PLAIN, toml).path(), line);
        let is_named = words.iter().all(|word| done.err.contains(word));
        assert!(done.code == Some(2) && done.out.is_empty() && is_named, "{line}: {}{}", done.out, done.err);
    };
    let jobset = "export jobset digits";
    let with = |old: &str, new: &str| {
        assert!(ROLES.contains(old), "{old}");
        ROLES.replacen(old, new, 1)
    };
    refuse(ROLES, "export mpijob digits", &["export mpijob does not support roles", "hvdctl export jobset"]);
    refuse(ROLES, "export sbatch digits", &["export sbatch does not support roles", "hvdctl train"]);
    refuse(ROLES, "export jobset digits -np 8", &["-np 8 does not say of which role"]);
    refuse(
        ROLES,
        "export jobset digits -np trainer=7",
        &["7 ranks of the role trainer do not fill 2 pods", "trainer=4"],
    );
    refuse(ROLES, "export jobset digits -np x=7", &["no role x"]);
    refuse("", "export jobset digits --role x", &["no role x", "has no [[role]]"]);
    refuse("", "export jobset digits", &["the number of ranks is missing", "-np N"]);
    refuse(&with("gpus = 2", "gpus = 8"), jobset, &["a rank of the role generator needs 8, but a pod has 4 GPUs"]);
    refuse(&with("launcher = \"torchrun\"", "launcher = \"mpirun\""), jobset, &["the role trainer is mpirun"]);
    let torchrun = with("launcher = \"env\"", "launcher = \"torchrun\"");
    refuse(&torchrun, jobset, &["the role generator has ports, but the 2 ranks of a pod"]);
    let of_agents = torchrun.replacen("ranks = 2", "ranks = 4", 1);
    refuse(&of_agents, &format!("{jobset} --slots 1"), &["role generator: restarts of torchrun in several pods"]);
    let line = with("\"http://:$PORT_HTTP/health?deep=1\"", "\"line up\"");
    refuse(&line, jobset, &["role generator: ready \"line …\"", "port NAME", "--allow-missing"]);
    refuse(&with("ranks = 2", "ranks_per_node = 1"), jobset, &["`ranks_per_node` without `nodes`", "-np generator=N"]);
    refuse(ROLES, &format!("{jobset} -e PORT_HTTP=1"), &["PORT_HTTP cannot be set"]);
    let (annotations, variable) = ("more ranks than the annotations of a pod can name", "more than TF_CONFIG can name");
    for (np, why) in [
        ("trainer=4294967292", annotations),
        ("trainer=9000", annotations),
        ("generator=4294967295", annotations),
        ("Log_Server=801", variable),
    ] {
        refuse(ROLES, &format!("{jobset} -np {np}"), &[why]);
    }
    // one that is not needed may become ready in any way
    let dir = directory(PLAIN, &with("\"port in\"", "\"line up\""));
    exported(dir.path(), jobset);
    let dir = directory(PLAIN, &with("\"http://:$PORT_HTTP/health?deep=1\"", "\"file run/up\""));
    let (text, err) = exported(dir.path(), &format!("{jobset} --pvc data"));
    let document = valid(&text);
    let probe = &jobs(&document)[0].1["template"]["spec"]["containers"][0]["startupProbe"];
    assert_eq!(probe["exec"]["command"], serde_json::json!(["test", "-e", "/workspace/run/up"]));
    assert!(err.contains("role generator: ready \"file …\": a file that an earlier start left"), "{err}");
}
