//! A Spark cluster as a job.

use super::learns;
use crate::state::Lab;

#[test]
fn the_digits_are_learnt_on_a_spark_cluster_whose_executors_are_graded() {
    let lab = Lab::up_with_full_image();
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/spark");
    lab.hvdctl(&["train", example, "-np", "2", "--no-setup"])
        .code(1)
        .complains(&["there is no Java runtime in this image", "without --no-setup"]);
    let out = learns(&lab, "spark", "2", "test accuracy").out;
    let (_, graded) = out.split_once("executors, the fastest first:\n").unwrap_or_else(|| panic!("{out}"));
    let speed = |line: &str| -> Option<f64> { line.strip_suffix(" rounds/s")?.rsplit(' ').next()?.parse().ok() };
    let speeds: Vec<f64> = graded.lines().map_while(speed).collect();
    assert!(speeds.len() == 2 && speeds[0] >= speeds[1], "{out}");
    for node in ["node1", "node2"] {
        assert!(graded.contains(node), "{out}");
    }
}
