//! What needs the image with TensorFlow.

use crate::process::{run, s};
use crate::state::{FULL_IMAGE, Lab, no_job_is_left};
use std::path::Path;

/// A lab whose workers have that image.
fn lab() -> Lab {
    let lab = Lab::empty();
    lab.edit(FULL_IMAGE, "hvdctl-lab/horovod:tensorflow");
    lab.hvdctl(&["keys", "push"]).code(0);
    lab.hvdctl(&["up"]).code(0);
    lab
}

/// Trains an example, and checks the accuracy in the last line with this prefix.
#[track_caller]
fn learns(lab: &Lab, example: &str, line: &str) {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(example);
    let done = run(lab.command(&["train", example.to_str().unwrap(), "-np", "2"]), s(400)).code(0);
    let start = format!("[0 node1] {line} ");
    let last = done.out.lines().rfind(|l| l.starts_with(&start)).unwrap_or_else(|| panic!("{}", done.out));
    let accuracy: f64 = last[start.len()..].split_whitespace().next().unwrap().parse().unwrap();
    assert!(accuracy >= 0.95, "{last}");
    no_job_is_left();
}

#[test]
fn the_digits_are_learnt_with_keras_and_verify_takes_tensorflow() {
    let lab = lab();
    for controller in ["--gloo", "--mpi"] {
        lab.hvdctl(&["verify", controller]).code(0).says(&["ok: 2 ranks where expected"]);
    }
    learns(&lab, "digits_keras", "test accuracy");
}

#[test]
fn the_digits_are_learnt_with_tf_distribute() {
    learns(&lab(), "digits_tf_distribute", "accuracy:");
}
