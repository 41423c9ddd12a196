//! The use of resources by ranks, nodes and GPUs while a job runs, as it is recorded next to the log.

use crate::cluster::{Cluster, eventually};
use crate::job::{Method, Spec};
use hvdctl::record::JobState;
use hvdctl::record::frames::{Frame, FrameKind, Parser};
use hvdctl::record::samples::Sample;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

/// Prints what the real one printed of an H200 (`tests/fixtures/nvidia-smi`), in the fields that are asked for, again
/// and again. The second GPU has no sensor for its power.
const NVIDIA_SMI: &str = "#!/bin/sh
case $1 in --query-gpu=index,uuid,*) ;; *) echo 'unexpected query'; exit 1 ;; esac
echo $$ >>/run/cluster/shared/smi
while :; do
  echo '0, GPU-00000000-0000-0000-0000-000000000001, NVIDIA H200, 580.159.04, 143771, 700.00, 100, 883, 696.45, 52, 1455, 3201'
  echo '1, GPU-00000000-0000-0000-0000-000000000002, NVIDIA H200, 580.159.04, 143771, [N/A], 0, 0, [N/A], 31, 345, 3201'
  sleep 1
done
";

/// Reads the samples of a node.
fn samples(cluster: &Cluster, index: usize) -> Vec<(u32, Sample)> {
    let text = fs::read(cluster.job_file(index, "samples")).unwrap_or_default();
    let sample = |frame: Frame| match frame.kind {
        FrameKind::Sample(sample) => Some((frame.rank, sample)),
        _ => None,
    };
    Parser::default().push(&text).into_iter().filter_map(sample).collect()
}

#[test]
fn ranks_nodes_and_gpus_are_sampled_while_a_job_runs() {
    let cluster = Cluster::new();
    let smi = cluster.dir().join("cluster/bin/nvidia-smi");
    fs::write(&smi, NVIDIA_SMI).unwrap();
    fs::set_permissions(&smi, Permissions::from_mode(0o755)).unwrap();
    // each rank computes in a child process, holds 200 MiB, and ends when the file is there
    let program = "import subprocess
held = b'x' * (200 << 20)
child = subprocess.Popen([sys.executable, '-c', 'while True: pass'])
while not os.path.exists('/run/cluster/shared/enough'): time.sleep(0.1)
child.kill()";
    let job = cluster.start(&Spec { ranks: [2, 1], sample: 1, ..Spec::python(Method::Env, program) });
    let is_busy = |sample: &Sample| matches!(sample, Sample::Rank(rank) if rank.processor_percent > 5.0);
    let seen = |index: usize, rank: u32| samples(&cluster, index).iter().any(|(of, one)| *of == rank && is_busy(one));
    assert!(eventually(|| seen(0, 0) && seen(0, 1) && seen(1, 2)), "{:?}", samples(&cluster, 0));
    let has_power =
        |(_, sample): &(u32, Sample)| matches!(sample, Sample::Gpu { usage, .. } if usage.power_w == Some(696.0));
    assert!(eventually(|| samples(&cluster, 0).iter().any(has_power)), "{:?}", samples(&cluster, 0));
    fs::write(cluster.shared("enough"), "").unwrap();
    let end = job.end();
    assert_eq!(end.ending.state(), JobState::Succeeded, "{}", end.all);
    let of_first = samples(&cluster, 0);
    let number = |is: fn(&Sample) -> bool| of_first.iter().filter(|(_, sample)| is(sample)).count();
    let memory = of_first.iter().find_map(|(_, sample)| match sample {
        Sample::Rank(rank) => Some(rank.memory_mib),
        _ => None,
    });
    assert!(memory.is_some_and(|memory| memory > 200.0), "{of_first:?}");
    // what stays the same is written once, by one of the two ranks
    assert_eq!(number(|sample| matches!(sample, Sample::NodeDescription(_))), 1, "{of_first:?}");
    assert_eq!(number(|sample| matches!(sample, Sample::GpuDescription { .. })), 2, "{of_first:?}");
    assert_eq!(number(|sample| matches!(sample, Sample::Place(_))), 2, "{of_first:?}");
    assert!(number(|sample| matches!(sample, Sample::Node(_))) > 0, "{of_first:?}");
    let without =
        |(_, sample): &(u32, Sample)| matches!(sample, Sample::Gpu { index: 1, usage } if usage.power_w.is_none());
    assert!(of_first.iter().any(without), "{of_first:?}");
    // one nvidia-smi for each node
    assert_eq!(fs::read_to_string(cluster.shared("smi")).unwrap().lines().count(), 2);
}

#[test]
fn a_job_without_samples_has_none() {
    let cluster = Cluster::new();
    let end = cluster.start(&Spec::shell(Method::Env, "sleep 2")).end();
    assert_eq!(end.ending.state(), JobState::Succeeded, "{}", end.all);
    assert!(!cluster.job_file(0, "samples").exists());
}
