//! Concurrent jobs, on separate or shared nodes, and restarted jobs.

use crate::lease::is_given_back;
use crate::process::{Running, eventually, s};
use crate::state::{
    FULL, Lab, NODES, Restore, controllers, no_job_is_left, no_session_is_left, node_sh, on, ours, rank_processes,
    tell_jobs,
};
use serde_json::Value;

/// Says where it is and waits for a file of its own name in the directory of its job.
const WAITS: &str = "echo ready; while [ ! -e /opt/horovod/jobs/$HVDCTL_JOB/go-$0 ]; do sleep 0.1; done; echo gone";

fn go(name: &str) {
    NODES.iter().for_each(|node| tell_jobs(node, &format!("go-{name}"), ""));
}

/// The environments of the programs of a job on a node that have this variable.
fn variable(node: &str, job: &str, name: &str) -> Vec<String> {
    let script = "for p in $(grep -lzxF \"HVDCTL_JOB=$1\" /proc/[0-9]*/environ 2>/dev/null); do
          grep -qzxF HVDCTL_PROGRAM=1 \"$p\" && tr '\\0' '\\n' <\"$p\" | sed -n \"s/^$2=//p\"
        done | sort -u; :";
    node_sh(node, script, &[job, name]).ok().lines().map(str::to_owned).collect()
}

fn job(lab: &Lab, name: &str) -> Value {
    let document: Value = serde_json::from_str(&lab.hvdctl(&["--json", "jobs"]).ok()).unwrap();
    let jobs = document["jobs"].as_array().unwrap();
    jobs.iter().find(|job| job["name"] == name).unwrap_or_else(|| panic!("no {name} in {document:#}")).clone()
}

/// The number of jobs that count as "many".
const MANY: usize = if FULL { 10 } else { 3 };

/// Asserts that nothing of many jobs is left but their records, which say this of them, in any order.
#[track_caller]
fn only_records_are_left(lab: &Lab, mut wanted: Vec<(&str, u64)>) {
    no_job_is_left();
    is_given_back();
    assert_eq!(NODES.map(ours), ["hworker running\n", "hworker running\n"]);
    let document: Value = serde_json::from_str(&lab.hvdctl(&["--json", "jobs"]).ok()).unwrap();
    let of = |job: &Value| (job["state"].as_str().unwrap().to_owned(), job["code"].as_u64().unwrap());
    let mut there: Vec<(String, u64)> = document["jobs"].as_array().unwrap().iter().map(of).collect();
    there.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(there, wanted.into_iter().map(|(state, code)| (state.to_owned(), code)).collect::<Vec<_>>());
}

#[test]
fn jobs_share_the_slots_of_nodes() {
    let lab = Lab::empty();
    lab.edit("gpus = 1", "gpus = 0\nslots = 2");
    lab.hvdctl(&["up"]).code(0);
    let says = "import os, time
print('this is', open('mine').read(), flush=True)
while not os.path.exists('/opt/horovod/jobs/' + os.environ['HVDCTL_JOB'] + '/go-' + open('mine').read()): \
time.sleep(0.1)";
    let start = |name: &str, controller: &str| -> Running {
        let project = lab.project(name, &[("train.py", says), ("mine", name)]);
        lab.start(&[
            "train",
            project.to_str().unwrap(),
            "-np",
            "2",
            "--gpus-per-node",
            "1",
            "--map-by",
            "node",
            controller,
        ])
    };
    let mut first = start("first", "--gloo");
    first.until(&["[0 node1] this is first", "[1 node2] this is first"], s(60));
    // a project of its own in a worker of its own, beside the other one's
    let mut second = start("second", "--mpi");
    second.until(&["[0 node1] this is second", "[1 node2] this is second"], s(90));
    let id = job(&lab, "second")["id"].as_str().unwrap().to_owned();
    assert_eq!(ours("node1"), format!("hmaster running\nhmaster-{id} running\nhworker running\n"));
    assert_eq!(ours("node2"), format!("hworker running\nhworker-{id} running\n"));
    // every container has the directory of its own job alone
    let mut ids = [job(&lab, "first")["id"].as_str().unwrap().to_owned(), id.clone()];
    ids.sort();
    let see = "for c in $(docker ps -q --filter label=hvdctl.cluster=lab); do
          docker exec $c ls -A /opt/horovod/jobs; done | sort; ls /opt/horovod/jobs/*/env.json | wc -l";
    NODES.iter().for_each(|node| assert_eq!(on(node, see), format!("{}\n2\n", ids.join("\n")), "{node}"));

    let words = ["--gpus-per-node", "1", "--", "true"];
    let full = lab.hvdctl(&[&["run", "-np", "1"], &words[..]].concat()).code(125);
    full.complains(&["(first)", "(second)", "1 slot", "hvdctl stop"]);
    lab.hvdctl(&["run", "-np", "1", "--", "true"]).code(125).complains(&["(first)", "(second)"]);
    lab.hvdctl(&["run", "-np", "1", "--gpus-per-node", "3", "--", "true"]).code(2).complains(&["it has 2 slots"]);
    lab.hvdctl(&["up"]).code(0);

    // the end of one does not affect the other; its workers end with it, although no hvdctl watches
    go("second");
    second.end(s(60)).code(0);
    assert!(eventually(s(20), || NODES.iter().all(|node| !ours(node).contains(&id))), "{:?}", NODES.map(ours));
    assert!(first.runs());
    let mut third = start("third", "--gloo");
    third.until(&["[1 node2] this is third"], s(90));
    let id = job(&lab, "third")["id"].as_str().unwrap().to_owned();
    third.signal("INT");
    third.end(s(60)).code(130);
    assert!(eventually(s(20), || NODES.iter().all(|node| !ours(node).contains(&id))), "{:?}", NODES.map(ours));

    // if neither the job supervisor nor hvdctl could remove its workers, the next up does, and their slots count as
    // free
    let mut fourth = start("fourth", "--gloo");
    fourth.until(&["[1 node2] this is fourth"], s(90));
    let id = job(&lab, "fourth")["id"].as_str().unwrap().to_owned();
    fourth.signal("KILL");
    fourth.end(s(30));
    on("node1", &format!("docker kill hmaster-{id}"));
    assert!(eventually(s(60), || variable("node2", &id, "HVDCTL_JOB").is_empty()), "{}", rank_processes("node2"));
    assert_eq!(ours("node2"), format!("hworker running\nhworker-{id} running\n"));
    lab.hvdctl(&["up"]).code(0).says(&["its job has ended"]);
    assert_eq!(ours("node2"), "hworker running\n");
    lab.hvdctl(&["run", "-np", "2", "--gpus-per-node", "1", "--map-by", "node", "--launcher", "env", "--", "true"])
        .code(0);
    assert!(first.runs());
    go("first");
    first.end(s(60)).code(0);
    no_job_is_left();
    // whether the job wrote files in the container whose supervisor was killed was not examined
    assert_eq!(NODES.map(ours), [&format!("hmaster-{id} exited\nhworker running\n"), "hworker running\n"]);
}

#[test]
fn a_gpu_is_allocated_to_one_job_and_its_ranks_see_no_other() {
    let lab = Lab::up();
    let one = ["--on", "node1", "run", "-np", "1", "--gpus-per-node"];
    lab.hvdctl(&[&one[..], &["2", "--", "true"]].concat()).code(2).complains(&["--gpus-per-node 2", "it has 1 GPU"]);
    let mut a = lab.start(&[&one[..], &["1", "--name", "a", "--", "sh", "-c", WAITS, "a"]].concat());
    a.until(&["[0 node1] ready"], s(60));
    let uuid = crate::state::gpu_uuids("node1").remove(0);
    let job = job(&lab, "a");
    assert_eq!(job["placement"]["shares"][0]["gpus"][0], uuid.as_str(), "{job}");
    let id = job["id"].as_str().unwrap();
    assert_eq!(variable("node1", id, "CUDA_VISIBLE_DEVICES"), ["0"]);
    assert_eq!(variable("node1", id, "CUDA_DEVICE_ORDER"), ["PCI_BUS_ID"]);
    lab.hvdctl(&[&one[..], &["1", "--", "true"]].concat()).code(125).complains(&[&uuid, "(a)"]);
    go("a");
    a.end(s(60)).code(0);
    no_job_is_left();

    // a second GPU, and a job on each of them at the same time
    let file = "/etc/hvdctl-lab/gpus";
    let install = "nvidia-container-runtime-hook install /usr/bin/nvidia-smi all";
    let _one = Restore(|| drop(node_sh("node1", &format!("sed -i 2,9d {file}; {install}"), &[])));
    let other = "GPU-00000000-408c-da96-7a9b-000000000002";
    on("node1", &format!("echo '1 {other}' >>{file} && {install}"));
    lab.edit("host = \"node1\"", "host = \"node1\"\ngpus = 2");
    lab.hvdctl(&["up"]).code(0);
    let mut runs = ["b", "c"].map(|name| {
        let mut run = lab.start(&[&one[..], &["1", "--name", name, "--", "sh", "-c", WAITS, name]].concat());
        run.until(&["[0 node1] ready"], s(60));
        run
    });
    let ids = ["b", "c"].map(|name| self::job(&lab, name)["id"].as_str().unwrap().to_owned());
    assert_eq!(ids.map(|id| variable("node1", &id, "CUDA_VISIBLE_DEVICES").concat()), ["0", "1"]);
    let allocated = ["b", "c"].map(|name| self::job(&lab, name)["placement"]["shares"][0]["gpus"][0].clone());
    assert_eq!(allocated, [uuid.as_str(), other]);
    lab.hvdctl(&[&one[..], &["1", "--", "true"]].concat()).code(125).complains(&["(b)", "(c)"]);
    assert!(runs.iter_mut().all(Running::runs));
    for (run, name) in runs.into_iter().zip(["b", "c"]) {
        go(name);
        run.end(s(60)).code(0);
    }
    no_job_is_left();
}

/// Tests of behaviour that other tests prove without a lab, repeated on real nodes (`scripts/test --full`).
mod full {
    use super::*;

    #[test]
    fn many_jobs_at_once_have_the_nodes_one_after_the_other() {
        let lab = Lab::up();
        // each job needs all slots; its ranks print when they were running
        let program = "date +%s.%N; sleep 0.3; date +%s.%N";
        let start = |i: usize| {
            let controller = ["--gloo", "--mpi"][i % 2];
            lab.start(&["run", "-np", "2", controller, "--wait", "600s", "--", "sh", "-c", program])
        };
        let all: Vec<Running> = (0..MANY).map(start).collect();
        let mut times: Vec<(f64, f64)> = Vec::new();
        for run in all {
            let done = run.end(s(400)).code(0);
            let time = |line: &str| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap();
            let mut said: Vec<f64> = done.out.lines().map(time).collect();
            said.sort_by(f64::total_cmp);
            assert_eq!(said.len(), 4, "two of each rank: {}", done.out);
            times.push((said[0], said[3]));
            no_session_is_left(done.pid);
        }
        times.sort_by(|a, b| a.0.total_cmp(&b.0));
        assert!(times.windows(2).all(|two| two[0].1 < two[1].0), "two of them at the same time: {times:?}");
        only_records_are_left(&lab, vec![("succeeded", 0); MANY]);
    }

    #[test]
    fn many_jobs_are_under_way_at_the_same_time() {
        let lab = Lab::empty();
        lab.edit("gpus = 1", "gpus = 0\nslots = 10");
        lab.edit("[defaults]", "start_timeout_s = 300\n[defaults]");
        lab.hvdctl(&["up"]).code(0);
        let mut all: Vec<Running> = (0..MANY)
            .map(|i| {
                let own = ["run", "-np", "2", "--gpus-per-node", "1", "--map-by", "node", "--wait", "300s"];
                let program = [["--gloo", "--mpi"][i % 2], "--", "sh", "-c", WAITS, "all"];
                lab.start(&[&own[..], &program[..]].concat())
            })
            .collect();
        for run in &mut all {
            run.until(&["[0 node1] ready", "[1 node2] ready"], s(240));
        }
        assert!(all.iter_mut().all(Running::runs));
        for node in NODES {
            let names = ours(node);
            let of = |start: &str| names.lines().filter(|name| name.starts_with(start)).count();
            assert_eq!((of("hmaster"), of("hworker")), if node == "node1" { (MANY, 1) } else { (0, MANY) }, "{names}");
        }
        go("all");
        for run in all {
            let pid = run.end(s(120)).code(0).says(&["[0 node1] gone", "[1 node2] gone"]).pid;
            no_session_is_left(pid);
        }
        only_records_are_left(&lab, vec![("succeeded", 0); MANY]);
    }

    #[test]
    fn a_failed_job_is_restarted_from_its_checkpoint() {
        let lab = Lab::up();
        let fails_once = "import os, sys
rank = os.environ.get('HOROVOD_RANK') or os.environ['OMPI_COMM_WORLD_RANK']
print('try', os.environ['HVDCTL_RESTART'], flush=True)
if rank == '1' and not os.path.exists('checkpoint'):
    open('checkpoint', 'w').write('half')
    sys.exit(7)
if rank == '1': print('goes on from', open('checkpoint').read())";
        for controller in controllers("--mpi") {
            let name = format!("again{controller}");
            let project = lab.project(&name, &[("train.py", fails_once)]);
            let project = project.to_str().unwrap();
            let done =
                lab.hvdctl(&["train", project, "-np", "2", controller, "--restarts", "3", "--name", &name]).code(0);
            done.says(&["[1 node2] try 0", "[1 node2] try 1", "[1 node2] goes on from half"])
                .complains(&["rank 1 on node2 ended with exit code 7", "attempt 2 of 4"]);
            no_job_is_left();
            let job = job(&lab, &name);
            assert_eq!(
                (&job["state"], &job["code"], &job["restarts"]),
                (&"succeeded".into(), &0.into(), &3.into()),
                "{job}"
            );
            assert_eq!(job["attempts"].as_array().unwrap().len(), 1, "{job}");
            let exits = job["attempts"][0]["exits"].as_array().unwrap();
            assert!(exits.iter().any(|exit| exit["rank"] == 1 && exit["code"] == 7), "{job}");
            let id = job["id"].as_str().unwrap();
            for node in NODES {
                on(node, &format!("test ! -e /opt/horovod/jobs/{id}/env.json"));
            }
        }
    }

    #[test]
    fn a_restarted_job_continues_without_a_lost_node() {
        let lab = Lab::up();
        let program = "echo try $HVDCTL_RESTART; [ $HVDCTL_RESTART = 0 ] || exit 0; exec sleep 300";
        for controller in controllers("--gloo") {
            let name = format!("without{controller}");
            let words = ["run", "-np", "2", controller, "--restarts", "2", "--name", &name, "--", "sh", "-c", program];
            let mut run = lab.start(&words);
            run.until(&["[0 node1] try 0", "[1 node2] try 0"], s(60));
            on("node2", "docker kill hworker");
            let done = run.end(s(120)).code(0).says(&["[0 node1] try 1"]);
            assert!(!done.out.contains("[1 node2] try 1"), "{}", done.out);
            done.complains(&["attempt 2 of 3 begins in 2 s", "node2 did not answer: 1 rank on the other nodes"]);
            no_job_is_left();
            let job = job(&lab, &name);
            assert_eq!((&job["state"], job["attempts"].as_array().unwrap().len()), (&"succeeded".into(), 1), "{job}");
            assert_eq!(job["attempts"][0]["silent"][0], "node2", "{job}");
            lab.hvdctl(&["up"]).code(0);
        }
    }

    #[test]
    fn a_job_that_never_succeeds_ends_with_its_code_and_one_that_is_stopped_is_not_started_again() {
        let lab = Lab::up();
        // one that never succeeds ends with its code; one that is stopped meanwhile is not started again
        let once = "if [ \"${HOROVOD_RANK:-$OMPI_COMM_WORLD_RANK}\" = 0 ]; then echo one; exit 9; fi; exec sleep 300";
        let done = lab.hvdctl(&["run", "-np", "2", "--restarts", "1", "--", "sh", "-c", once]).code(9);
        assert_eq!(done.out.lines().filter(|line| *line == "[0 node1] one").count(), 2, "{}", done.out);
        no_job_is_left();
        let mut stopped = lab.start(&["run", "-np", "2", "--restarts", "1000", "--", "sh", "-c", "exit 9"]);
        assert!(eventually(s(60), || stopped.err().contains("attempt 3 of 1001 begins in 4 s")), "{}", stopped.err());
        assert!(stopped.err().contains("attempt 2 of 1001 begins in 2 s"), "{}", stopped.err());
        assert!(stopped.runs());
        stopped.signal("INT");
        stopped.end(s(60)).code(130);
        no_job_is_left();
        lab.hvdctl(&["jobs"]).code(0).says(&["stopped (restarted"]);
        let attempts = job(&lab, "sh")["attempts"].clone();
        let pause = attempts[1]["started"].as_f64().unwrap() - attempts[0]["ended"].as_f64().unwrap();
        assert!(pause >= 2.0, "{attempts}");
    }

    #[test]
    fn many_jobs_in_a_row_leave_nothing_but_their_records() {
        let lab = Lab::up();
        let mut wanted = Vec::new();
        for i in 0..MANY {
            // every third fails
            let (state, code) = if i % 3 == 2 { ("failed", 7) } else { ("succeeded", 0) };
            let controller = ["--gloo", "--mpi"][i % 2];
            let program = ["sh", "-c", "echo here; exit $0", &code.to_string()];
            let done = lab.hvdctl(&[&["run", "-np", "2", controller, "--"], &program[..]].concat()).code(code);
            // where one failed first the other may have been ended before it said anything
            assert!(code != 0 || done.out.lines().count() == 2, "{}", done.out);
            no_session_is_left(done.pid);
            wanted.push((state, code as u64));
        }
        only_records_are_left(&lab, wanted);
    }
}
