//! A Spark cluster as a job.

use super::learns;
use crate::process::{eventually, run, s};
use crate::state::{Lab, on};

#[test]
fn the_digits_are_learnt_on_a_spark_cluster_whose_executors_are_graded() {
    let lab = Lab::up_with_full_image();
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/spark");
    lab.hvdctl(&["train", example, "-np", "2", "--no-setup"])
        .code(1)
        .complains(&["there is no Java runtime in this image", "without --no-setup"]);
    // downloads and builds a package of 300 MB, and gives an image of 2 GB to the other node
    run(lab.command(&["image", "build", example]), s(900)).code(0);
    let out = learns(&lab, "spark", "2", "test accuracy").out;
    let (_, graded) = out.split_once("executors, the fastest first:\n").unwrap_or_else(|| panic!("{out}"));
    let speed = |line: &str| -> Option<f64> { line.strip_suffix(" rounds/s")?.rsplit(' ').next()?.parse().ok() };
    let speeds: Vec<f64> = graded.lines().map_while(speed).collect();
    assert!(speeds.len() == 2 && speeds[0] >= speeds[1], "{out}");
    for node in ["node1", "node2"] {
        assert!(graded.contains(node), "{out}");
    }
    // the secret is in the image, for root alone
    let in_worker = |command: &str| on("node2", &format!("docker exec hworker {command}"));
    assert_eq!(in_worker("stat -c '%a %U %s' /etc/spark/secret"), "600 root 65\n");

    // a stopped job removes that of the job from the worker, which stays
    let configuration = || in_worker("find /tmp -name spark-defaults.conf");
    let job = lab.start(&["train", example, "-np", "2", "--", "python3", "train.py", "--epochs", "1000000"]);
    // Spark's own log is on standard error
    assert!(eventually(s(180), || job.err().contains("Started distributed training")), "{}", job.err());
    assert_ne!(configuration(), "");
    lab.hvdctl(&["stop"]).code(0);
    job.end(s(30)).code(143);
    assert_eq!(configuration(), "");
}
