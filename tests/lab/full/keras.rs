//! Tests that need the image with TensorFlow.

use super::learns;
use crate::state::Lab;

/// A lab whose workers have that image.
fn lab() -> Lab {
    Lab::up_with("hvdctl-lab/horovod:tensorflow")
}

#[test]
fn the_digits_are_learnt_with_keras_and_verify_takes_tensorflow() {
    let lab = lab();
    for controller in ["--gloo", "--mpi"] {
        lab.hvdctl(&["verify", controller]).code(0).says(&["ok: 2 ranks where expected"]);
    }
    learns(&lab, "digits_keras", "2", "test accuracy");
}

#[test]
fn the_digits_are_learnt_with_tf_distribute() {
    learns(&lab(), "digits_tf_distribute", "2", "accuracy:");
}
