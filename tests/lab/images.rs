//! Images as other people make them.

use crate::state::{IMAGE, Lab, NODES, no_job_is_left, on};

/// Built from `scripts/image/strange`.
const STRANGE: &str = "hvdctl-lab/horovod:strange";

/// The variables that every rank must have, and whether each of the programs on the way to it sees the image's.
const ENVIRONMENT: &str = "printf '%s|' rank \"$HF_HOME\" \"$PYTHONPATH\" \"$MY_FLAG\" \"$HOME\" \"$LANG\"";

#[test]
fn an_image_that_is_made_for_another_purpose() {
    let lab = Lab::empty();
    lab.edit(IMAGE, STRANGE);
    lab.edit("host = \"node1\"", "host = \"node1\"\nslots = 1");
    lab.hvdctl(&["up"]).code(0);
    // of the image's sshd_config, this would have been added to hvdctl's own
    for node in NODES {
        let listeners = on(node, "ss -Hltn 'sport = :12345' | awk '{ print $4 }'");
        assert!(listeners.lines().count() == 1 && !listeners.contains("0.0.0.0"), "{node}: {listeners}");
    }
    lab.hvdctl(&["verify", "--gloo"]).code(0);
    let expected = "rank|/models/a|/opt/app|it's \"1\" $x|/srv|C.UTF-8|";
    let ranks = [format!("[0 node1] {expected}"), format!("[1 node2] {expected}")];
    let launchers: [&[&str]; 5] =
        [&["--gloo"], &["--mpi"], &["--launcher", "torchrun"], &["--launcher", "mpirun"], &["--launcher", "env"]];
    for launcher in launchers {
        let args = [&["run", "-np", "2"], launcher, &["--", "sh", "-c", ENVIRONMENT]].concat();
        lab.hvdctl(&args).code(0).says(&[&ranks[0], &ranks[1]]);
    }
    // and what is typed by hand
    lab.hvdctl(&["exec", "-c", "--", "sh", "-c", ENVIRONMENT]).code(0).says(&[expected]);
    lab.hvdctl(&["doctor"]).code(0);
    no_job_is_left();
}
