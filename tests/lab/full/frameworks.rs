//! Tests that need the image with JAX and Accelerate.

use super::learns;
use crate::state::{Lab, no_job_is_left};

/// A lab whose workers have that image, with two slots each.
fn lab() -> Lab {
    let lab = Lab::up_with("hvdctl-lab/horovod:modern-frameworks");
    lab.edit("gpus = 1", "gpus = 1\nslots = 2");
    lab
}

/// A sum over all ranks, and a step of a model whose gradient is the number of the rank.
const ACCELERATE: &str = "
import os, torch
from accelerate import Accelerator, InitProcessGroupKwargs
# on CPUs Accelerate takes MPI where PyTorch has it
accelerator = Accelerator(cpu=True, kwargs_handlers=[InitProcessGroupKwargs(backend='gloo')])
rank, size = accelerator.process_index, accelerator.num_processes
total = accelerator.reduce(torch.tensor([rank + 1.0]), reduction='sum').item()
assert accelerator.gather(torch.tensor([rank])).tolist() == list(range(size))
model = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.zeros_(model.weight)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
accelerator.backward(model(torch.tensor([[float(rank)]])).sum())
optimizer.step()
weight = accelerator.unwrap_model(model).weight.item()
print(f'local rank {accelerator.local_process_index}: sum {total:g}, weight {weight:g}', flush=True)
os._exit(0)  # as in COLLECTIVES
";

#[test]
fn the_digits_are_learnt_with_jax() {
    let lab = lab();
    lab.hvdctl(&["doctor"]).code(0).says(&["JAX 0."]);
    learns(&lab, "digits_jax", "4", "accuracy:");
}

#[test]
fn ranks_communicate_with_accelerate() {
    let lab = lab();
    let project = lab.project("accelerated", &[("train.py", ACCELERATE)]);
    for launcher in ["torchrun", "env"] {
        let done = lab.hvdctl(&["train", project.to_str().unwrap(), "-np", "4", "--launcher", launcher]).code(0);
        for (rank, node, local) in [(0, 1, 0), (1, 1, 1), (2, 2, 0), (3, 2, 1)] {
            let line = format!("[{rank} node{node}] local rank {local}: sum 10, weight -1.5\n");
            assert!(done.out.contains(&line), "{line}{}", done.out);
        }
        no_job_is_left();
    }
}
