//! The image of Debian 13: PyTorch 2, Open MPI 5, and Python in no PATH but the image's own.

use crate::launchers::COLLECTIVES;
use crate::process::s;
use crate::state::{FULL, Lab, MODERN_IMAGE, Restore, no_job_is_left};

#[test]
fn each_launcher_starts_the_ranks_of_an_image_whose_python_is_only_in_its_own_path() {
    let lab = Lab::up_with(MODERN_IMAGE);
    // the collectives below are under the others
    let verified = [("mpirun", "Open MPI v5."), ("torchrun", "torch 2."), ("env", "torch 2.")];
    for (launcher, library) in &verified[..if FULL { 3 } else { 1 }] {
        let done = lab.hvdctl(&["verify", "--launcher", launcher]).code(0);
        done.says(&["ok: 2 ranks where expected, allreduce correct", library, "Python 3.13"]);
        no_job_is_left();
    }
    // not as many ranks on each node
    lab.edit("host = \"node1\"", "host = \"node1\"\nslots = 2");
    let pi = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/mpi_pi");
    let ranks = ["[0 node1] rank 0 of 3 on node1", "[1 node1] rank 1 of 3 on node1", "[2 node2] rank 2 of 3 on node2"];
    lab.hvdctl(&["train", pi, "-np", "3"]).code(0).says(&ranks).says(&["[0 node1] pi is about 3.1415926536"]);
    let project = lab.project("collectives", &[("train.py", COLLECTIVES)]);
    for launcher in ["torchrun", "env"] {
        let done = lab.hvdctl(&["train", project.to_str().unwrap(), "-np", "3", "--launcher", launcher]).code(0);
        done.says(&["[0 node1] all right", "[1 node1] all right", "[2 node2] all right"]);
        no_job_is_left();
    }
}

#[test]
fn open_mpi_5_leaves_nothing_of_a_job_that_fails_and_starts_again_on_the_nodes_that_are_left() {
    let lab = Lab::up_with(MODERN_IMAGE);
    let launch = |ranks| ["run", "-np", ranks, "--launcher", "mpirun", "--", "sh", "-c"];
    let fails = "[ $OMPI_COMM_WORLD_RANK = 1 ] || exec sleep 300; exit 7";
    let done = lab.hvdctl(&[&launch("2")[..], &[fails]].concat()).code(7);
    done.complains(&["rank 1 on node2 ended with exit code 7"]);
    no_job_is_left();

    let program = "echo attempt $HVDCTL_RESTART of $OMPI_COMM_WORLD_SIZE; [ $HVDCTL_RESTART = 1 ] || exec sleep 300";
    let mut run = lab.start(&[&launch("1:2")[..], &[program]].concat());
    run.until(&["[0 node1] attempt 0 of 2", "[1 node2] attempt 0 of 2"], s(120));
    lab.hvdctl(&["drain", "node2"]).code(0);
    let _restored = Restore(|| drop(lab.hvdctl(&["drain", "--undo", "node2"]).code(0)));
    run.end(s(120)).code(0).says(&["[0 node1] attempt 1 of 1"]).complains(&["node2 left (drained)"]);
    no_job_is_left();
}
