//! Launchers other than `horovodrun`: ranks find each other, end as under any launcher, and leave nothing.

use crate::pool::{THIRD, power, wake};
use crate::process::s;
use crate::state::{
    FULL, IMAGE, Lab, NODES, Restore, no_job_is_left, no_session_is_left, node_sh, on, ours, rank_processes,
};
use serde_json::Value;
use std::fs;

const LAUNCHERS: [&str; 3] = ["torchrun", "env", "mpirun"];

/// Collective operations of PyTorch with Gloo, each with a known result.
pub const COLLECTIVES: &str = "
import os, torch, torch.distributed as dist
dist.init_process_group('gloo')
rank, size = dist.get_rank(), dist.get_world_size()
ranks = list(range(size))
value = torch.tensor([rank + 1.0])
dist.all_reduce(value)
assert value.item() == size * (size + 1) / 2
value = torch.tensor([rank + 1.0])
dist.all_reduce(value, op=dist.ReduceOp.MAX)
assert value.item() == size
value = torch.tensor([rank + 1.0])
dist.reduce(value, 1)
assert rank != 1 or value.item() == size * (size + 1) / 2
value = torch.tensor([rank])
dist.broadcast(value, 1)
assert value.item() == 1
parts = [torch.zeros(1, dtype=torch.int64) for _ in ranks]
dist.all_gather(parts, torch.tensor([rank]))
assert [part.item() for part in parts] == ranks
dist.gather(torch.tensor([rank]), parts if rank == 0 else None)
assert [part.item() for part in parts] == ranks
mine = torch.zeros(1, dtype=torch.int64)
dist.scatter(mine, [torch.tensor([10 * other]) for other in ranks] if rank == 0 else None)
assert mine.item() == 10 * rank
got = torch.zeros(1, dtype=torch.int64)
if rank == 0:
    dist.send(torch.tensor([7]), size - 1)
elif rank == size - 1:
    dist.recv(got, 0)
    assert got.item() == 7
objects = [None] * size
dist.all_gather_object(objects, {'rank': rank})
assert objects == [{'rank': other} for other in ranks]
dist.barrier()
print('all right', flush=True)
# before 2.8, PyTorch may wait forever for a thread of its own when it destroys the group \
(https://github.com/pytorch/pytorch/pull/154976)
os._exit(0)
";

#[test]
fn ranks_communicate_under_each_launcher() {
    let lab = Lab::up();
    // the collectives below are under env as well, and modern.rs verifies mpirun
    for launcher in if FULL { &LAUNCHERS[..] } else { &LAUNCHERS[..1] } {
        let document: Value =
            serde_json::from_str(&lab.hvdctl(&["verify", "--launcher", launcher, "--json"]).code(0).out).unwrap();
        let reports: Vec<&Value> =
            document["nodes"].as_array().unwrap().iter().flat_map(|node| node["ranks"].as_array().unwrap()).collect();
        assert_eq!(reports.len(), 2, "{document}");
        assert!(
            reports.iter().all(|rank| rank["report"]["sum"] == 3 && rank["faults"] == Value::Array(vec![])),
            "{document}"
        );
        no_job_is_left();
    }
    let project =
        lab.project("collectives", &[("train.py", COLLECTIVES), ("hvdctl.toml", "launcher = \"torchrun\"\n")]);
    // not as many ranks on each node
    lab.edit("host = \"node1\"", "host = \"node1\"\nslots = 2");
    for options in [&[][..], &["--launcher", "env"]] {
        let args = [&["train", project.to_str().unwrap(), "-np", "3"], options].concat();
        lab.hvdctl(&args).code(0).says(&["[0 node1] all right", "[1 node1] all right", "[2 node2] all right"]);
        no_job_is_left();
    }
}

#[test]
fn a_launcher_that_cannot_do_it_is_refused_before_anything_is_uploaded() {
    let lab = Lab::up();
    let project = lab.project("p", &[("train.py", "")]);
    let train = ["train", project.to_str().unwrap(), "-np", "2", "--launcher"];
    lab.hvdctl(&[&train[..], &["slurm"]].concat()).code(2).complains(&["invalid value 'slurm'", "torchrun"]);
    let done = lab.hvdctl(&[&train[..], &["torchrun", "--controller", "mpi"]].concat()).code(2);
    done.complains(&["--controller is for horovodrun, but the launcher is torchrun"]);
    node_sh("node1", "docker exec hworker mv /usr/bin/torchrun /usr/bin/torchrun.away", &[]).code(0);
    let _restored = Restore(|| {
        node_sh("node1", "docker exec hworker mv /usr/bin/torchrun.away /usr/bin/torchrun", &[]);
    });
    let done = lab.hvdctl(&[&train[..], &["torchrun"]].concat()).code(125);
    done.complains(&["has no torchrun", "hvdctl doctor lists the launchers"]);
    let mpich = "docker exec hworker sh -c 'printf \"#!/bin/sh\\necho HYDRA build details:\\n\" \
        >/usr/local/bin/mpirun; chmod +x \
                 /usr/local/bin/mpirun'";
    node_sh("node1", mpich, &[]).code(0);
    let _removed = Restore(|| {
        node_sh("node1", "docker exec hworker rm -f /usr/local/bin/mpirun", &[]);
    });
    let done = lab.hvdctl(&[&train[..], &["mpirun"]].concat()).code(125);
    done.complains(&["is that of MPICH", "install Open MPI in the image"]);
    for node in NODES {
        node_sh(node, "! test -e /opt/horovod/projects/p", &[]).code(0);
    }
}

/// A program that has its state in memory. It ends when the number of ranks was each of these in turn. Where there is a
/// file `fails-once`, it fails before it is known to Horovod.
pub fn kept_project(lab: &Lab, sizes: &str) -> String {
    let program = "
import os, sys, time
if os.path.exists('/tmp/fails-once'):
    os.remove('/tmp/fails-once')
    sys.exit('there are no data')
import torch
import horovod.torch as hvd
hvd.init()
wanted = [int(size) for size in os.environ['SIZES'].split()]

@hvd.elastic.run
def train(state):
    began = state.step
    while state.step < began + 5 or state.sizes != wanted:
        hvd.allreduce(torch.ones(100), name='x')
        time.sleep(0.2)
        state.step += 1
        state.sizes = state.sizes + [hvd.size()] * (state.sizes[-1:] != [hvd.size()])
        state.commit()
        print('step', state.step, 'of', hvd.size(), flush=True)

train(hvd.elastic.TorchState(step=0, sizes=[]))
";
    let config = format!("command = [\"env\", \"SIZES={sizes}\", \"python3\", \"train.py\"]\n");
    let project = lab.project("kept", &[("train.py", program), ("hvdctl.toml", &config)]);
    project.to_str().unwrap().to_owned()
}

#[test]
fn ranks_of_an_elastic_program_live_on_when_a_node_leaves_and_comes_back() {
    let lab = Lab::up();
    let mut run = lab.start(&["train", &kept_project(&lab, "2 1 2"), "-np", "1:2"]);
    run.until(&["[0 node1] step 8 of 2", "[1 node2] step 8 of 2"], s(120));
    on("node2", "docker exec hworker touch /tmp/fails-once && docker kill hworker");
    run.until(&[" of 1"], s(60));
    lab.hvdctl(&["jobs"]).code(0).says(&["running", "1 of 2"]);
    lab.hvdctl(&["up"]).code(0).says(&["node2: started hworker again (stopped)\n"]);
    let done = run.end(s(120)).code(0);
    assert_eq!(done.out.matches("[0 node1] step 1 ").count(), 1, "{}", done.out);
    done.complains(&[
        "node2 left (",
        "continues in place with 1 of 2 ranks",
        "node2 left (a rank there ended with exit code 1); the job continues in place with 1 of 2 ranks",
        "node2 joined; the job continues in place with 2 of 2 ranks",
    ]);
    no_job_is_left();
}

#[test]
fn outputs_come_from_nodes_without_the_master() {
    // the launcher is on the master, which is not selected
    let lab = Lab::three_up(IMAGE);
    let project = lab.project("others", &[("train.py", "import os; open('own-' + os.environ['RANK'], 'w')")]);
    let results = lab.path().join("others-results");
    let on = ["--on", "node2,node3", "train", project.to_str().unwrap(), "-np", "2", "--launcher", "env"];
    let done = lab.hvdctl(&[&on[..], &["--fetch", results.to_str().unwrap()]].concat());
    let done = done.code(0).complains(&["2 fetched"]);
    assert!(["own-0", "own-1"].iter().all(|name| results.join(name).exists()), "{}", done.err);
    no_job_is_left();
    lab.hvdctl(&["down"]).code(0);
}

#[test]
fn a_node_that_is_added_to_the_inventory_joins_an_elastic_job() {
    let lab = Lab::empty();
    let inventory = fs::read_to_string(lab.inventory()).unwrap();
    let at = inventory.rfind("[[node]]").unwrap();
    fs::write(lab.inventory(), &inventory[..at]).unwrap();
    lab.hvdctl(&["up"]).code(0);
    let program = "
import os, time
attempt, rank = os.environ['HVDCTL_RESTART'], os.environ['RANK']
open('output' + rank, 'a').write(attempt)
print('attempt', attempt, 'of', os.environ['WORLD_SIZE'], os.environ['TOKEN'], open('data/a').read(), flush=True)
if attempt == '0':
    time.sleep(300)
while not os.path.exists('/tmp/goes-on'):
    time.sleep(0.1)
";
    let project = lab.project("grows", &[("train.py", program), ("data/a", "content")]);
    let train = ["train", project.to_str().unwrap(), "-np", "1:2", "--launcher", "env", "-e", "TOKEN=word"];
    let mut run = lab.start(&train);
    run.until(&["[0 node1] attempt 0 of 1 word content"], s(120));
    lab.hvdctl(&["jobs"]).code(0).says(&["running"]);

    fs::write(lab.inventory(), &inventory).unwrap();
    lab.hvdctl(&["up", "--dry-run"]).code(0).complains(&["node2 would join job "]);
    // a job supervisor that does not answer
    on("node1", "docker pause hmaster");
    let resumed = Restore(|| drop(on("node1", "docker unpause hmaster")));
    let warning = ["warning: node1: cannot add nodes to job ", "the job supervisor did not accept the nodes"];
    lab.hvdctl(&["up"]).code(0).says(&["node2: "]).complains(&warning);
    assert_eq!(
        on("node2", "ls /opt/horovod/jobs && ls -A /opt/horovod/jobs/.worker@lab"),
        "",
        "a node that did not join has nothing of the job"
    );
    assert_eq!(on("node1", "ls /opt/horovod/jobs/*/joining* 2>/dev/null || :"), "");
    drop(resumed);
    lab.hvdctl(&["up"]).code(0).complains(&["node2 joins job "]);
    run.until(&["[0 node1] attempt 1 of 2 word content"], s(60));
    lab.hvdctl(&["up"]).code(0).says(&["nothing to do"]);
    let document: Value = serde_json::from_str(&lab.hvdctl(&["jobs", "--json"]).code(0).out).unwrap();
    let job = &document["jobs"][0];
    assert_eq!((&job["ranks"], &job["placement"]["shares"][1]["node"]), (&2.into(), &"node2".into()), "{document}");
    let directory = format!("/opt/horovod/jobs/{}", job["id"].as_str().unwrap());
    assert_eq!(on("node2", &format!("cd {directory} && stat -c %a env.json job.json")), "600\n600\n");
    on("node2", "docker exec hworker touch /tmp/goes-on");
    on("node1", "docker exec hmaster touch /tmp/goes-on");
    let done = run.end(s(60)).code(0);
    done.complains(&["node2 joined; the job continues with 2 of 2 ranks"]);
    lab.hvdctl(&["logs"]).code(0).says(&["[1 node2] attempt 1 of 2 word content"]);
    lab.hvdctl(&["fetch"]).code(0).says(&["output0", "output1"]);
    no_job_is_left();
    assert_eq!(on("node2", &format!("ls {directory}/env.json 2>/dev/null || :")), "");
}

/// Tests of behaviour that other tests prove without a lab, and of rare corners of real machines (`scripts/test
/// --full`).
mod full {
    use super::*;

    #[test]
    fn a_rank_that_ends_and_a_job_that_is_stopped_leave_nothing() {
        let lab = Lab::up();
        let program = |way: &str| {
            format!(
                "[ ${{RANK:-$OMPI_COMM_WORLD_RANK}} = 1 ] || exec sleep 300; for i in $(seq 30); do echo line $i; done; {way}"
            )
        };
        let eats = "exec python3 -c 'all = [b\"x\" * (1 << 20) for i in range(2000)]'";
        let ends = [
            ("exit 7", 7, "rank 1 on node2 ended with exit code 7"),
            ("kill -STOP $$", 137, "rank 1 on node2 hung: it was stopped"),
            (eats, 137, "rank 1 on node2 ran out of memory"),
            ("kill -9 $$", 137, "rank 1 on node2 was killed by signal 9"),
        ];
        on("node2", "docker update --memory 256m --memory-swap 256m hworker");
        for launcher in LAUNCHERS {
            for (way, code, words) in ends {
                let program = program(way);
                let args =
                    ["run", "-np", "2", "--launcher", launcher, "--stall-timeout", "5s", "--", "sh", "-c", &program];
                let done = lab.hvdctl(&args).code(code);
                let out = done.out.clone();
                done.complains(&[words]);
                assert_eq!(out.lines().filter(|line| line.starts_with("[1 node2] line")).count(), 30, "{out}");
                no_job_is_left();
                assert_eq!(NODES.map(ours), ["hworker running\n"; 2], "{launcher} {way}");
            }
            // the next job on these nodes, which is stopped
            let waits = "echo ready; exec sleep 300";
            let mut run = lab.start(&["run", "-np", "2", "--launcher", launcher, "--", "sh", "-c", waits]);
            run.until(&["[0 node1] ready", "[1 node2] ready"], s(60));
            run.signal("INT");
            let done = run.end(s(60)).code(130);
            no_job_is_left();
            no_session_is_left(done.pid);
        }
    }

    #[test]
    fn a_program_that_is_not_python_is_seen_line_by_line() {
        let lab = Lab::up();
        let perl = "print \"step $_\\n\" for 1..3; sleep 300";
        for launcher in LAUNCHERS {
            let mut run = lab.start(&["run", "-np", "2", "--launcher", launcher, "--", "perl", "-e", perl]);
            run.until(&["[0 node1] step 3", "[1 node2] step 3"], s(60));
            run.signal("INT");
            run.end(s(60)).code(130);
            no_job_is_left();
        }
    }

    #[test]
    fn an_elastic_job_continues_without_a_node_and_takes_it_back() {
        let lab = Lab::up();
        let program = "echo attempt $HVDCTL_RESTART; [ $HVDCTL_RESTART = 2 ] || exec sleep 300";
        let mut run = lab.start(&["run", "-np", "1:2", "--", "sh", "-c", program]);
        run.until(&["[0 node1] attempt 0", "[1 node2] attempt 0"], s(120));
        on("node2", "docker kill hworker");
        run.until(&["[0 node1] attempt 1"], s(60));
        lab.hvdctl(&["jobs"]).code(0).says(&["running", "1 of 2"]);
        lab.hvdctl(&["up"]).code(0).says(&["node2: started hworker again (stopped)\n"]);
        let done = run.end(s(120)).code(0).says(&["[0 node1] attempt 2", "[1 node2] attempt 2"]);
        done.complains(&[
            "node2 left (",
            "continues with 1 of 2 ranks",
            "node2 joined; the job continues with 2 of 2 ranks",
        ]);
        lab.hvdctl(&["logs"]).code(0).complains(&["Z: node2 left (", "Z: node2 joined; "]);
        no_job_is_left();
    }

    #[test]
    fn a_dry_run_says_what_would_run_on_each_node() {
        let lab = Lab::up();
        let of = |launcher: &str| {
            lab.hvdctl(&["run", "-np", "2", "--launcher", launcher, "--dry-run", "--", "train"]).code(0)
        };
        of("torchrun").says(&[
            "launcher on node1: torchrun --nnodes 2 --node_rank 0",
            "launcher on node2: torchrun --nnodes 2 --node_rank 1",
        ]);
        of("env").says(&["rank on node1: env RANK=0 LOCAL_RANK=0 WORLD_SIZE=2", "rank on node2: env RANK=1"]);
        of("mpirun").says(&["launcher: mpirun --allow-run-as-root -np 2"]);
        of("env")
            .says(&["cores on node1: all for every rank; bind none, OMP_NUM_THREADS=", "cores on node2: all for "]);
        lab.edit("host = \"node1\"", "host = \"node1\"\nslots = 2");
        let bound = ["run", "-np", "2", "--bind", "core", "-e", "OMP_NUM_THREADS=3"];
        let dry = lab.hvdctl(&[&bound[..], &["--dry-run", "--", "true"]].concat()).code(0);
        let line = dry.out.lines().find(|line| line.starts_with("cores on node1: ")).unwrap();
        let cpus: Vec<&str> = line["cores on node1: ".len()..]
            .split(';')
            .next()
            .unwrap()
            .split(", ")
            .map(|of| of.split(' ').next().unwrap())
            .collect();
        assert_eq!(
            *line,
            format!("cores on node1: {} for rank 0, {} for rank 1; bind core, OMP_NUM_THREADS=3", cpus[0], cpus[1])
        );
        let tells = "sed -n 's/^Cpus_allowed_list:.//p' /proc/self/status; echo $OMP_NUM_THREADS";
        let done = lab.hvdctl(&[&bound[..], &["--launcher", "torchrun", "--", "sh", "-c", tells]].concat()).code(0);
        done.says(&[&format!("[0 node1] {}\n", cpus[0]), &format!("[1 node1] {}\n", cpus[1]), "[1 node1] 3\n"]);
        assert_eq!(NODES.map(ours), ["hworker running\n"; 2]);
    }

    #[test]
    fn the_examples_of_other_launchers_work() {
        let lab = Lab::up();
        let example = |name: &str| format!("{}/examples/{name}", env!("CARGO_MANIFEST_DIR"));
        lab.hvdctl(&["train", &example("mpi_pi"), "-np", "2"]).code(0).says(&["[0 node1] pi is about 3.1415926536"]);
        let digits = example("digits_ddp");
        for launcher in if FULL { &["torchrun", "env"][..] } else { &["torchrun"] } {
            let args = [
                "train",
                &digits,
                "-np",
                "2",
                "--launcher",
                launcher,
                "--",
                "python",
                "train.py",
                "--target-accuracy",
                "0.97",
            ];
            lab.hvdctl(&args).code(0).says(&["[0 node1] accuracy: 0.9"]);
        }
    }

    /// A rank is killed after the share of the other is finished.
    #[test]
    fn only_the_failed_share_of_the_inference_example_is_done_again() {
        let lab = Lab::up();
        let example = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/inference");
        let texts = ["infer.py", "digits.csv", "hvdctl.toml"]
            .map(|file| (file, fs::read_to_string(format!("{example}/{file}")).unwrap()));
        let waits =
            "import time\nwhile rank == 1 and os.environ['HVDCTL_RESTART'] == '0':\n    time.sleep(0.1)\n\n# 3. ";
        let files = texts.each_ref().map(|(file, text)| (*file, text.replace("# 3. ", waits)));
        let files = files.each_ref().map(|(file, text)| (*file, text.as_str()));
        let project = lab.project("inference", &files);
        let results = lab.path().join("results");
        let [project, fetched] = [&project, &results].map(|path| path.to_str().unwrap());
        let mut job = lab.start(&["train", project, "-np", "2", "--restarts", "2", "--fetch", fetched]);
        job.until(&["of them right: labels/part-00000-of-00002.jsonl"], s(120));
        on("node2", "pkill -9 -f '[p]ython3 infer.py'");
        let done = job.end(s(120)).code(0);
        done.says(&[
            "[0 node1] labels/part-00000-of-00002.jsonl is there already",
            "of them right: labels/part-00001-of-00002.jsonl",
        ]);
        let mut lines = Vec::new();
        for share in 0..2 {
            let text = fs::read_to_string(results.join(format!("labels/part-0000{share}-of-00002.jsonl"))).unwrap();
            let read = |line: &str| serde_json::from_str::<Value>(line).unwrap()["line"].as_u64().unwrap();
            lines.extend(text.lines().skip(1).map(read));
        }
        lines.sort_unstable();
        let images = texts[1].1.lines().count() as u64;
        assert_eq!(lines, (1..=images).collect::<Vec<_>>(), "each image has one label");
        no_job_is_left();
    }

    #[test]
    fn an_elastic_job_goes_on_without_a_node_that_loses_power_and_takes_it_back() {
        let lab = Lab::three_up(IMAGE);
        let program = "echo attempt $HVDCTL_RESTART; [ $HVDCTL_RESTART = 2 ] || exec sleep 600";
        let mut run = lab.start(&["run", "-np", "2:3", "--", "sh", "-c", program]);
        run.until(&["[0 node1] attempt 0", "[1 node2] attempt 0", "[2 node3] attempt 0"], s(120));
        power(&["kill"], THIRD);
        let restore = Restore(|| wake(THIRD));
        run.until(&["[0 node1] attempt 1", "[1 node2] attempt 1"], s(120));
        lab.hvdctl(&["jobs"]).complains(&[THIRD]).says(&["running", "2 of 3"]);
        drop(restore);
        lab.hvdctl(&["up"]).code(0).says(&["node3: started hworker again"]);
        let done = run.end(s(180)).code(0).says(&["[0 node1] attempt 2", "[2 node3] attempt 2"]);
        done.complains(&["node3 left (", "with 2 of 3 ranks", "node3 joined; the job continues with 3 of 3 ranks"]);
        no_job_is_left();
        assert_eq!(rank_processes(THIRD), "", "processes of the job are left on {THIRD}");
        assert_eq!(ours(THIRD), "hworker running\n");
        lab.hvdctl(&["down"]).code(0);
    }

    #[test]
    fn a_drained_node_leaves_an_elastic_job_and_gets_no_ranks() {
        let lab = Lab::up();
        let program = "echo attempt $HVDCTL_RESTART; [ $HVDCTL_RESTART = 2 ] || exec sleep 300";
        let mut run = lab.start(&["run", "-np", "1:2", "--launcher", "env", "--", "sh", "-c", program]);
        run.until(&["[0 node1] attempt 0", "[1 node2] attempt 0"], s(120));
        let restore = Restore(|| drop(lab.hvdctl(&["drain", "--undo", "node[1-2]"]).code(0)));
        let drained = lab.hvdctl(&["drain", "node[1-2]"]).code(0);
        drained.says(&["node1: drained; job ", "stays", "node2: drained; it leaves job "]);
        run.until(&["[0 node1] attempt 1"], s(60));
        lab.hvdctl(&["status"]).code(0).says(&["node1 is drained by ", "node2 is drained by "]);
        drop(restore);
        let done = run.end(s(120)).code(0).says(&["[0 node1] attempt 2", "[1 node2] attempt 2"]);
        done.complains(&["node2 left (drained)", "node2 joined"]);

        lab.hvdctl(&["drain", "node2"]).code(0);
        let _restore = Restore(|| drop(lab.hvdctl(&["drain", "--undo", "node2"]).code(0)));
        lab.hvdctl(&["run", "-np", "2", "--", "true"])
            .code(125)
            .complains(&["node2 is drained by", "drain --undo node2"]);
        lab.hvdctl(&["run", "-np", "1", "--", "true"]).code(0).complains(&["node2 is drained by", "gets no ranks"]);
        lab.hvdctl(&["verify"]).code(0).says(&["ok: 1 rank where expected"]);
        no_job_is_left();
    }
}
