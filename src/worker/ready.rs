//! Asks a running worker whether it is ready for ranks: whether it still has the GPUs that it was started with. A
//! container may lose them (`systemctl daemon-reload`, another driver), and a job would then train on CPUs, or fail
//! after its start.

use crate::cluster::observation::ObservedNode;
use crate::error::{ErrorKind, NodeError};
use crate::inventory::{Cluster, Node};
use crate::model::engine::EngineName;
use crate::node::facts::Facts;
use crate::node::gpus::{self, Gpu, GpuDevice, NvidiaSmi};
use crate::node::network;
use crate::text::units::count;

const READY: &str = concat!(
    include_str!("../scripts/node/nvidia_smi.sh"),
    include_str!("../scripts/node/gpus.sh"),
    include_str!("../scripts/worker/ready.sh")
);

/// A worker's answer about its GPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GpuAnswer {
    /// The state of `nvidia-smi` there.
    pub nvidia_smi: NvidiaSmi,
    /// The GPUs that it lists.
    pub gpus: Vec<Gpu>,
    /// Number of the driver's devices (`/dev/nvidia0` …) that can be opened.
    pub opened: usize,
}

impl GpuAnswer {
    /// Parses the script's lines: `KEY VALUE`.
    pub fn parse(text: &str) -> GpuAnswer {
        let (nvidia_smi, gpus) = gpus::read(text);
        let opened = text.lines().filter(|line| line.starts_with("device ")).count();
        GpuAnswer { nvidia_smi, gpus, opened }
    }

    /// Returns how many devices ranks can use there, and the message of an `nvidia-smi` that failed. An image without
    /// that program may have GPUs: then one that can be opened counts for all, because a container loses them together.
    fn usable(&self, least: usize) -> (usize, Option<String>) {
        match &self.nvidia_smi {
            NvidiaSmi::Failed(failed) => (0, Some(failed.to_string())),
            NvidiaSmi::Listed => (GpuDevice::of(&self.gpus).len(), None),
            NvidiaSmi::Missing if self.opened > 0 => (least, None),
            NvidiaSmi::Missing => (0, Some("it has no nvidia-smi and no NVIDIA device".to_owned())),
        }
    }

    /// Returns what a worker of this node lacks, as a sentence; `None` if it has its GPUs.
    pub fn lost_gpus(&self, node: &Node, facts: &Facts) -> Option<String> {
        let least = network::least_gpus(node, facts);
        let (usable, message) = self.usable(least);
        let message = message.map_or_else(String::new, |message| format!(": {message}"));
        (usable < least).then(|| format!("started with {} and now sees {usable}{message}", count(least, "GPU")))
    }
}

/// Asks a running worker. Returns `None` if ranks there need nothing that it could lack.
///
/// # Errors
/// If it, or `nvidia-smi` in it, does not answer within the time limit.
pub async fn ask(cluster: &Cluster, observed: &ObservedNode, worker: &str) -> Result<Option<GpuAnswer>, NodeError> {
    let (node, facts) = (&observed.member.node, &observed.facts);
    if network::least_gpus(node, facts) == 0 || network::gpu_failure(node, facts).is_some() {
        return Ok(None);
    }
    let operation = format!("check the GPUs in {}", cluster.worker);
    let (engine, limit) = (&observed.runtime.engine, cluster.command_timeout);
    let output = engine.run_in(worker, &["sh", "-s"], READY.as_bytes(), &operation, limit).await?;
    let output = observed.member.transport.succeeded(output, &operation)?;
    let answer = GpuAnswer::parse(&String::from_utf8_lossy(&output.stdout));
    match answer.nvidia_smi {
        // slow is not lost
        NvidiaSmi::Failed(failed @ gpus::GpuQueryFailure::NoAnswer) => {
            let message = format!("nvidia-smi: {failed}");
            Err(NodeError::failed(observed.name(), &operation, message)
                .kind(ErrorKind::TimedOut)
                .hint(gpus::hint(&failed)))
        }
        _ => Ok(Some(answer)),
    }
}

/// Returns what a running worker lacks, as [`GpuAnswer::lost_gpus`].
///
/// # Errors
/// As of [`ask`].
pub async fn lost_gpus(cluster: &Cluster, observed: &ObservedNode, worker: &str) -> Result<Option<String>, NodeError> {
    let answer = ask(cluster, observed, worker).await?;
    Ok(answer.and_then(|answer| answer.lost_gpus(&observed.member.node, &observed.facts)))
}

/// Returns the error of a worker that lacks GPUs.
pub fn error(observed: &ObservedNode, worker: &str, lost: &str) -> NodeError {
    NodeError::failed(observed.name(), &format!("run ranks in {worker}"), format!("it was {lost}"))
        .kind(ErrorKind::GpusMissing)
        .hint(format!(
            "`hvdctl up` recreates it; if that does not help, run `{} IMAGE nvidia-smi -L` on the node",
            match observed.member.transport.engine_name() {
                EngineName::Docker => "docker run --rm --gpus all",
                EngineName::Podman => "podman run --rm --device nvidia.com/gpu=all",
            }
        ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::Gpus;

    const TWO: &str = "gpu GPU 0: NVIDIA H200 (UUID: GPU-aa)\ngpu GPU 1: NVIDIA H200 (UUID: GPU-bb)\n";

    #[test]
    fn fewer_gpus_than_the_node_gives_are_lost() {
        let facts = Facts::parse(&format!("nvidia-smi yes\n{TWO}gpu exit 0\nmig exit 0\n"));
        let lost = |gpus: Gpus, facts: &Facts, answer: &str| {
            GpuAnswer::parse(answer).lost_gpus(&Node { gpus, ..Node::default() }, facts)
        };
        let listed = |lines: &str| format!("nvidia-smi yes\n{lines}gpu exit 0\nmig exit 0\n");
        let of_two = |answer: &str| lost(Gpus::Auto, &facts, answer);
        assert_eq!(of_two(&listed(TWO)), None);
        let first = TWO.lines().next().unwrap();
        assert_eq!(of_two(&listed(&format!("{first}\n"))).unwrap(), "started with 2 GPUs and now sees 1");
        assert_eq!(lost(Gpus::Count(1), &facts, &listed(&format!("{first}\n"))), None);
        let fails = "nvidia-smi yes\ngpu Failed to initialize NVML: Unknown Error\ngpu exit 255\nmig exit 255\n";
        let words = "started with 2 GPUs and now sees 0: Failed to initialize NVML: Unknown Error";
        assert_eq!(of_two(fails).unwrap(), words);
        assert_eq!(lost(Gpus::Count(0), &facts, fails), None);
        // images without the program
        assert_eq!(of_two("device /dev/nvidia0\ndevice /dev/nvidia1\n"), None);
        assert!(of_two("").unwrap().ends_with("now sees 0: it has no nvidia-smi and no NVIDIA device"));
        // the machine has no nvidia-smi for itself
        assert!(lost(Gpus::All, &Facts::default(), "").unwrap().starts_with("started with 1 GPU and now sees 0"));
        assert_eq!(lost(Gpus::Auto, &Facts::default(), ""), None);
    }
}
