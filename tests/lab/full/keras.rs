//! What needs the image with TensorFlow.

use crate::process::{run, s};
use crate::state::{FULL_IMAGE, Lab, no_run_is_left};
use std::path::Path;

#[test]
fn the_digits_are_learnt_with_keras_and_verify_takes_tensorflow() {
    let lab = Lab::empty();
    lab.edit(FULL_IMAGE, "hvdctl-lab/horovod:tensorflow");
    lab.hvdctl(&["keys", "push"]).code(0);
    lab.hvdctl(&["up"]).code(0);
    for controller in ["--gloo", "--mpi"] {
        lab.hvdctl(&["verify", controller]).code(0).says(&["ok: 2 ranks where expected"]);
    }
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/digits_keras");
    let done = run(lab.command(&["train", example.to_str().unwrap(), "-np", "2"]), s(400)).code(0);
    let last =
        done.out.lines().rfind(|l| l.starts_with("[0 node1] test accuracy ")).unwrap_or_else(|| panic!("{}", done.out));
    let accuracy: f64 = last.split_whitespace().nth(4).unwrap().parse().unwrap();
    assert!(accuracy >= 0.95, "{last}");
    no_run_is_left();
}
