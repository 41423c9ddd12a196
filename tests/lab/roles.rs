//! Several programs in one job: the example of a trainer and its generators.

use crate::process::{eventually, s};
use crate::state::{Lab, no_job_is_left, on};

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/rl");

/// The generators on node2, as their processes are there.
const GENERATORS: &str = "pgrep -f '[g]enerator.py --port' || :";

#[test]
fn a_trainer_learns_from_generators_of_another_node_although_one_is_killed() {
    let lab = Lab::up();
    let mut job = lab.start(&["train", EXAMPLE, "--", "python3", "trainer.py", "--rounds", "2000"]);
    job.until(&["[generator 1 node2] generator 1 listens", "[trainer 0 node1] round 3/2000"], s(60));
    let killed = on("node2", GENERATORS).lines().next().expect("a generator").to_owned();
    on("node2", &format!("kill -9 {killed}"));
    // the trainer asks it again under its address
    eventually(s(30), || on("node2", GENERATORS).lines().filter(|pid| *pid != killed).count() == 2);
    job.until(&["generator is started again, 1 of 3"], s(30));
    let done = job.end(s(120)).code(0);
    done.says(&["[trainer 0 node1] round 2000/2000"]).complains(&["generator is ready"]);
    no_job_is_left();
    assert_eq!(on("node2", GENERATORS), "");
}
