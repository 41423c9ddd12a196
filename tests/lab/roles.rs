//! Several programs in one job: the example of a trainer and its generators.

use crate::process::{eventually, s};
use crate::state::{Lab, MODERN_IMAGE, no_job_is_left, on};
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

#[test]
fn each_role_runs_in_its_own_image_on_the_nodes_that_on_names() {
    let lab = Lab::up();
    let file = format!(
        "[[role]]\nname = 'asks'\ncommand = ['python3', 'ask.py']\nlauncher = 'env'\nranks = 1\nneeds = ['server']\n\
         [[role]]\nname = 'server'\ncommand = ['python3', '-m', 'http.server', '$PORT_HTTP']\nlauncher = 'env'\n\
         ranks = 1\nports = ['http']\nready = 'port http'\nimage = '{MODERN_IMAGE}'\n"
    );
    let ask = "import os, sys, urllib.request\n\
               answer = urllib.request.urlopen('http://' + os.environ['HVDCTL_ROLE_SERVER_HTTP'])\n\
               print('Python/%d.%d' % sys.version_info[:2], 'asked', answer.headers['Server'])\n";
    let project = lab.project("asks", &[("hvdctl.toml", &file), ("ask.py", ask)]);
    let train = |on: &str| lab.hvdctl(&["train", project.to_str().unwrap(), "--on", on]).code(0);
    // the launcher's container has the image of the ranks in it
    for (on, node, python) in [
        ("asks=node1,server=node2", "node1", "asked SimpleHTTP/0.6 Python/3.13."),
        ("asks=node2,server=node1", "node2", "asked SimpleHTTP/0.6 Python/3.13."),
    ] {
        train(on).says(&[&format!("[asks 0 {node}] Python/3.11 {python}")]);
        no_job_is_left();
    }
    // what has no role has the cluster's image again
    lab.hvdctl(&["run", "-np", "2", "--launcher", "env", "--", "python3", "-V"])
        .code(0)
        .says(&["[1 node2] Python 3.11."]);
}
