//! Several programs in one job: the example of a trainer and its generators.

use crate::process::{eventually, s};
use crate::state::{Lab, no_job_is_left, on};
use std::fs;
use std::path::Path;

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/rl");

/// The generators on node2, as their processes are there.
const GENERATORS: &str = "pgrep -f '[g]enerator.py --port' || :";

#[test]
fn a_trainer_learns_from_generators_of_another_node_although_one_is_killed() {
    let lab = Lab::up();
    let files = ["walk.py", "generator.py", "trainer.py", "hvdctl.toml"];
    let texts = files.map(|file| fs::read_to_string(Path::new(EXAMPLE).join(file)).unwrap());
    let texts = texts.map(|text| text.replace("\"trainer.py\"]", "\"trainer.py\", \"--rounds\", \"200\"]"));
    let texts: Vec<(&str, &str)> = files.into_iter().zip(texts.iter().map(String::as_str)).collect();
    let mut job = lab.start(&["train", lab.project("rl", &texts).to_str().unwrap()]);
    job.until(&["[generator 1 node2] generator 1 listens", "[trainer 0 node1] round 3/200"], s(60));
    let killed = on("node2", GENERATORS).lines().next().expect("a generator").to_owned();
    on("node2", &format!("kill -9 {killed}"));
    // the trainer asks it again under its address
    eventually(s(30), || on("node2", GENERATORS).lines().filter(|pid| *pid != killed).count() == 2);
    let done = job.end(s(120)).code(0);
    done.says(&["[trainer 0 node1] round 200/200"])
        .complains(&["generator is ready", "was killed by signal 9; generator is started again, 1 of 3"]);
    no_job_is_left();
    assert_eq!(on("node2", GENERATORS), "");
}
