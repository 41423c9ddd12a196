//! The example for unequal nodes.

use crate::process::{run, s};
use crate::state::Lab;

/// The lines with the losses, and the accuracy, of a job whose second rank has this speed.
fn train(lab: &Lab, speed: &str) -> Vec<String> {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/digits_unequal");
    let program = format!(
        "[ \"$HOROVOD_RANK\" = 0 ] || export HVDCTL_SPEED={speed}; exec python train.py --epochs 3 --target-accuracy 0.9"
    );
    let done = run(lab.command(&["train", example, "-np", "2", "--", "sh", "-c", &program]), s(300)).code(0);
    done.out
        .lines()
        .filter(|line| line.contains(": loss ") || line.contains(" of the 32 images"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn a_slow_rank_gets_fewer_images_and_the_model_is_the_same() {
    let lab = Lab::up();
    let (equal, unequal) = (train(&lab, "1"), train(&lab, "0.5"));
    assert!(
        unequal.contains(&"[1 node2] rank 1 on node2: speed 0.5, 11 of the 32 images of a step".to_owned()),
        "{unequal:?}"
    );
    let losses = |lines: &[String]| -> Vec<f64> {
        lines.iter().filter_map(|line| line.split(": loss ").nth(1)?.parse().ok()).collect()
    };
    let (equal, unequal) = (losses(&equal), losses(&unequal));
    assert_eq!(equal.len(), 3);
    assert!(equal.iter().zip(&unequal).all(|(a, b)| (a - b).abs() < 0.001), "{equal:?} {unequal:?}");
}
