//! The status of all nodes as metrics, in the text format of Prometheus:
//! <https://prometheus.io/docs/instrumenting/exposition_formats/>.

use super::NodeStatus;
use crate::document::NodeEntry;
use crate::node::gpus::GpuDevice;
use std::fmt::Write as _;

/// A sample: labels beyond those of the cluster, and the value.
type MetricSample<'a> = (Vec<(&'a str, String)>, f64);

/// Returns the metrics. A node that was not reached has only those that say so.
pub(super) fn metrics(cluster: &str, nodes: &[&NodeEntry<NodeStatus>], now: f64) -> String {
    let of_all = |value: &dyn Fn(&NodeEntry<NodeStatus>) -> f64| -> Vec<MetricSample<'_>> {
        nodes.iter().map(|node| (vec![("node", node.node.clone())], value(node))).collect()
    };
    let of_reached = |value: &dyn Fn(&NodeStatus) -> Option<f64>| -> Vec<MetricSample<'_>> {
        let value =
            |node: &&NodeEntry<NodeStatus>| Some((vec![("node", node.node.clone())], value(node.result.as_ref()?)?));
        nodes.iter().filter_map(value).collect()
    };
    let flag = |is_true: bool| f64::from(u8::from(is_true));
    let statuses = || nodes.iter().filter_map(|node| Some((node.node.clone(), node.result.as_ref()?)));
    let workers = statuses().filter_map(|(node, status)| {
        let worker = status.worker.as_ref()?.to_string();
        Some((vec![("node", node), ("status", worker)], 1.0))
    });
    let jobs = statuses().flat_map(|(node, status)| {
        status.jobs.iter().map(move |job| (vec![("node", node.clone()), ("job", job.clone())], 1.0))
    });
    let idle = statuses().flat_map(|(node, status)| {
        let labels = move |rank: u32| vec![("node", node.clone()), ("rank", rank.to_string())];
        status.idle.iter().map(move |idle| (labels(idle.rank), (now - idle.since).max(0.0)))
    });
    let mut text = String::new();
    let mut metric = |name: &str, help: &str, samples: Vec<MetricSample<'_>>| {
        if samples.is_empty() {
            return;
        }
        let _ = writeln!(text, "# HELP hvdctl_{name} {help}\n# TYPE hvdctl_{name} gauge");
        for (labels, value) in samples {
            let mut all = vec![("cluster", cluster.to_owned())];
            all.extend(labels);
            let all: Vec<String> = all.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
            let _ = writeln!(text, "hvdctl_{name}{{{}}} {value}", all.join(","));
        }
    };
    metric(
        "status_time_seconds",
        "When the nodes were queried, in seconds since the epoch.",
        vec![(Vec::new(), now.floor())],
    );
    metric("node_up", "Whether the node answered.", of_all(&|node| flag(node.result.is_some())));
    metric("node_ok", "Whether nothing failed on the node.", of_all(&|node| flag(node.ok)));
    metric("node_slots", "Ranks that the node takes.", of_reached(&|status| Some(f64::from(status.slots))));
    let gpus = of_reached(&|status| status.gpus.as_ref().map(|gpus| GpuDevice::of(gpus).len() as f64));
    metric("node_gpus", "GPUs of the node; missing if nvidia-smi failed.", gpus);
    let drained = of_reached(&|status| Some(flag(status.drained.is_some())));
    metric("node_drained", "Whether the node is drained and gets no new jobs.", drained);
    metric("node_jobs", "Jobs on the node.", of_reached(&|status| Some(status.jobs.len() as f64)));
    metric("worker_status", "The status of the worker: 1 for the current one.", workers.collect());
    metric("job_on_node", "Jobs by the nodes that they have.", jobs.collect());
    metric("rank_idle_seconds", "Seconds for which a rank has made no progress.", idle.collect());
    text
}

/// Escapes the value of a label.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::NodeError;
    use crate::model::idle_rank::IdleRank;
    use crate::worker::plan::WorkerStatus;
    use regex::Regex;
    use std::collections::BTreeSet;

    fn status() -> NodeStatus {
        NodeStatus {
            master: true,
            engine: Some("28.1".into()),
            engine_name: None,
            worker: Some(WorkerStatus::Up),
            differs: Vec::new(),
            image: None,
            gpus: None,
            nvidia_smi: None,
            slots: 8,
            jobs: vec!["20261121-120304-k7qd".into()],
            idle: vec![IdleRank {
                rank: 3,
                role: None,
                node: "node1".into(),
                since: 1_795_000_000.0,
                does: "waiting".into(),
            }],
            drained: None,
            network: None,
            findings: Vec::new(),
        }
    }

    #[test]
    fn every_line_is_of_the_format_and_every_metric_comes_once() {
        let hostile = "no\\de\"1\n# TYPE x";
        let down: NodeEntry<NodeStatus> = NodeEntry::unreached(&NodeError::failed("node2", "log in", "timed out"));
        let nodes = [NodeEntry::reached("node1", true, status()), NodeEntry::reached(hostile, true, status()), down];
        let text = metrics("lab", &nodes.iter().collect::<Vec<_>>(), 1_795_000_060.5);
        let comment = Regex::new(r"^# (HELP hvdctl_[a-z_]+ [ -~]+|TYPE hvdctl_[a-z_]+ gauge)$").unwrap();
        let label = r#"[a-z]+="(?:[^"\\\n]|\\\\|\\"|\\n)*""#;
        let sample = Regex::new(&format!(r"^(hvdctl_[a-z_]+)\{{{label}(?:,{label})*\}} [0-9]+(\.[0-9]+)?$")).unwrap();
        let (mut types, mut seen) = (BTreeSet::new(), BTreeSet::new());
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("# TYPE ") {
                assert!(types.insert(name.to_owned()), "{line} comes twice");
            }
            assert!(comment.is_match(line) || sample.is_match(line), "{line}");
            assert!(line.starts_with('#') || seen.insert(line.rsplit_once(' ').unwrap().0.to_owned()), "{line}");
        }
        for line in [
            "hvdctl_status_time_seconds{cluster=\"lab\"} 1795000060",
            "hvdctl_node_up{cluster=\"lab\",node=\"node1\"} 1",
            "hvdctl_node_up{cluster=\"lab\",node=\"node2\"} 0",
            "hvdctl_node_slots{cluster=\"lab\",node=\"node1\"} 8",
            "hvdctl_worker_status{cluster=\"lab\",node=\"node1\",status=\"up\"} 1",
            "hvdctl_job_on_node{cluster=\"lab\",node=\"node1\",job=\"20261121-120304-k7qd\"} 1",
            "hvdctl_rank_idle_seconds{cluster=\"lab\",node=\"node1\",rank=\"3\"} 60.5",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(!text.contains("hvdctl_node_slots{cluster=\"lab\",node=\"node2\"}"), "{text}");
        assert!(!text.contains("hvdctl_node_gpus"), "what is not known is left out: {text}");
    }
}
