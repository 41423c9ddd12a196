//! Elastic jobs that learn.

use crate::pool::{THIRD, power, wake};
use crate::process::s;
use crate::state::{FULL_IMAGE, Lab, Restore, no_job_is_left};

/// Runs a project's `train.py`, whose first attempt waits at the fifth epoch until a node has left, and the second at the ninth until
/// it has joined.
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
    let elastic = ("horovodrun", include_str!("../../../examples/digits_elastic/train.py"));
    let ddp = ("torchrun", include_str!("../../../examples/digits_ddp/train.py"));
    for (launcher, program) in [elastic, ddp] {
        let project = lab.project(launcher, &[("train.py", program), ("paced.py", PACED)]);
        // the nodes share the cores of this machine
        let train = ["train", project.to_str().unwrap(), "--launcher", launcher, "-e", "OMP_NUM_THREADS=1", "-np"];
        let program = ["--epochs", "15", "--target-accuracy", "0.95"];
        lab.hvdctl(&[&train[..], &["3", "--", "python", "train.py"], &program].concat()).code(0);

        let mut run = lab.start(&[&train[..], &["2:3", "--", "python", "paced.py"], &program].concat());
        run.until(&["[0 node1] epoch 4/15"], s(120));
        power(&["kill"], THIRD);
        let restore = Restore(|| wake(THIRD));
        run.until(&["[0 node1] epoch 8/15"], s(120));
        lab.hvdctl(&["jobs"]).complains(&[THIRD]).says(&["running", "2 of 3"]);
        drop(restore);
        lab.hvdctl(&["up"]).code(0).says(&["node3: start hworker again"]);
        let done = run.end(s(180)).code(0).says(&["[0 node1] epoch 15/15"]);
        assert_eq!(done.out.matches("[0 node1] epoch 4/15").count(), 1, "{}", done.out);
        done.complains(&["node3 left (", "with 2 of 3 ranks", "node3 joined; the job continues with 3 of 3 ranks"]);
        no_job_is_left();
    }
    lab.hvdctl(&["down"]).code(0);
}
