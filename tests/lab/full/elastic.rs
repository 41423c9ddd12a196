//! Elastic jobs that learn.

use crate::launchers::kept_project;
use crate::pool::{THIRD, power, wake};
use crate::process::s;
use crate::state::{FULL_IMAGE, IMAGE, Lab, Restore, no_job_is_left};

/// Runs a project's `train.py`, whose ranks wait at the fourth commit until a node has left, and at the eighth until it
/// has joined.
const KEPT: &str = "
import runpy, time
import horovod.torch as hvd
TorchState = hvd.elastic.TorchState
commit = TorchState.commit
def pace(self):
    commit(self)
    while (self.epoch, hvd.size()) in ((4, 3), (8, 2)):
        print('waits at', self.epoch, flush=True)
        time.sleep(1)
        self.check_host_updates()
TorchState.commit = pace
runpy.run_path('train.py', run_name='__main__')
";

/// Runs a project's `train.py`, whose first attempt waits at the fifth epoch until a node has left, and the second at
/// the ninth until it has joined.
const PACED: &str = "
import os, runpy, time
from torch.utils.data.distributed import DistributedSampler
attempt, set_epoch = int(os.environ['HVDCTL_RESTART']), DistributedSampler.set_epoch
def pace(self, epoch):
    if attempt < 2 and epoch == 4 * (attempt + 1):
        time.sleep(600)
    set_epoch(self, epoch)
DistributedSampler.set_epoch = pace
runpy.run_path('train.py', run_name='__main__')
";

#[test]
fn an_elastic_job_that_loses_a_node_to_power_off_reaches_the_accuracy_of_an_undisturbed_one() {
    let lab = Lab::three_up(FULL_IMAGE);
    let kept = ["[0 node1] waits at 4", "[0 node1] waits at 8", "in place with"];
    let restarted = ["[0 node1] epoch 4/15", "[0 node1] epoch 8/15", "which start again"];
    let elastic = ("horovodrun", include_str!("../../../examples/digits_elastic/train.py"), KEPT, kept);
    let ddp = ("torchrun", include_str!("../../../examples/digits_ddp/train.py"), PACED, restarted);
    for (launcher, program, paced, [leaves, joins, how]) in [elastic, ddp] {
        let data = include_str!("../../../examples/digits/digits.csv");
        let project = lab.project(launcher, &[("train.py", program), ("paced.py", paced), ("digits.csv", data)]);
        // the nodes share the cores of this machine
        let train = ["train", project.to_str().unwrap(), "--launcher", launcher, "-e", "OMP_NUM_THREADS=1", "-np"];
        let program = ["--epochs", "15", "--target-accuracy", "0.95"];
        lab.hvdctl(&[&train[..], &["3", "--", "python", "train.py"], &program].concat()).code(0);

        let mut run = lab.start(&[&train[..], &["2:3", "--", "python", "paced.py"], &program].concat());
        run.until(&[leaves], s(120));
        power(&["kill"], THIRD);
        let restore = Restore(|| wake(THIRD));
        run.until(&[joins], s(120));
        lab.hvdctl(&["jobs"]).complains(&[THIRD]).says(&["running", "2 of 3"]);
        drop(restore);
        lab.hvdctl(&["up"]).code(0).says(&["node3: started hworker again"]);
        let done = run.end(s(180)).code(0).says(&["[0 node1] epoch 15/15"]);
        assert_eq!(done.out.matches("[0 node1] epoch 3/15").count(), 1, "{}", done.out);
        done.complains(&["node3 left (", " 2 of 3 ranks", "node3 joined; the job continues ", how]);
        no_job_is_left();
    }
    lab.hvdctl(&["down"]).code(0);
}

#[test]
fn hosts_are_added_and_removed_until_only_that_of_rank_0_is_the_same() {
    let lab = Lab::three_up(IMAGE);
    let undrained = Restore(|| drop(lab.hvdctl(&["drain", "--undo", "node[1-3]"]).code(0)));
    lab.hvdctl(&["drain", THIRD]).code(0);
    let mut run = lab.start(&["train", &kept_project(&lab, "2 3 2"), "-np", "1:3"]);
    run.until(&["[0 node1] step 5 of 2", "[1 node2] step 5 of 2"], s(120));
    lab.hvdctl(&["drain", "--undo", THIRD]).code(0);
    lab.hvdctl(&["up"]).code(0);
    // this command does not follow the log of a node that was not there at its start
    run.until(&[" of 3"], s(120));
    lab.hvdctl(&["drain", "node2"]).code(0);
    let done = run.end(s(120)).code(0).complains(&[
        "node3 joined; the job continues in place with 3 of 3 ranks",
        "node2 left (drained); the job continues in place with 2 of 3 ranks",
    ]);
    assert_eq!(done.out.matches("[0 node1] step 1 ").count(), 1, "{}", done.out);
    no_job_is_left();
    drop(undrained);
    lab.hvdctl(&["down"]).code(0);
}
