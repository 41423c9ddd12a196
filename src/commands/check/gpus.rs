//! The GPUs of nodes, as `doctor` shows them, and in the documents of `doctor` and `verify`.

use crate::gpus::health::report::NodeHealth;
use crate::gpus::health::{GpuHealth, Reading};
use crate::text::nodeset;
use crate::text::result::ResultText;
use crate::text::table::{Table, detail, key, text};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt::Display;

/// The GPUs of a node.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct NodeGpus {
    /// The version of its NVIDIA driver; null if it has none, or `nvidia-smi` failed.
    pub driver: Option<String>,
    /// Its GPUs; empty if it has none for jobs, or `nvidia-smi` failed.
    pub gpus: Vec<GpuHealth>,
}

impl NodeGpus {
    /// Returns what is known of the GPUs of a node.
    pub fn of(node: &str, health: &[(String, NodeHealth)]) -> NodeGpus {
        let machine = health.iter().find(|(name, _)| name == node).and_then(|(_, health)| health.machine());
        machine.map_or_else(NodeGpus::default, |machine| NodeGpus {
            driver: Some(machine.driver.clone()),
            gpus: machine.gpus.clone(),
        })
    }
}

/// Formats one row for the like GPUs of each node; nothing if there are none.
pub fn gpu_table(health: &[(String, NodeHealth)]) -> ResultText {
    let mut rows = Vec::new();
    for (node, health) in health {
        let Some(machine) = health.machine() else { continue };
        let like = nodeset::alike(machine.gpus.iter().map(|gpu| ((&gpu.name, &gpu.memory_mib), gpu)));
        for ((name, memory), gpus) in like {
            let number = |value: fn(&GpuHealth) -> Option<f64>| span(gpus.iter().filter_map(|gpu| value(gpu)));
            let links = gpus.iter().filter_map(|gpu| gpu.links).map(|links| f64::from(links.active));
            let devices: u32 = gpus.iter().map(|gpu| gpu.mig_devices).sum();
            let mig = if devices > 0 { format!(" ({devices} MIG devices)") } else { String::new() };
            let width = number(|gpu| gpu.pcie_width.known().copied().map(f64::from));
            rows.push(vec![
                node.clone(),
                format!("{} x {}{mig}", gpus.len(), shown(name)),
                memory.known().map_or_else(|| "–".to_owned(), |mib| format!("{} GiB", mib.div_ceil(1024))),
                machine.driver.clone(),
                with_unit(number(|gpu| gpu.temperature_c.known().map(|celsius| *celsius as f64)), " C"),
                with_unit(number(|gpu| gpu.power_w.known().copied()), " W"),
                with_unit(width, " lanes"),
                span(links),
                gpus.iter().map(|gpu| gpu.processes.len()).sum::<usize>().to_string(),
            ]);
        }
    }
    let columns = [
        key("NODE"),
        text("GPUS"),
        key("MEMORY"),
        detail(3, "DRIVER"),
        key("TEMPERATURE"),
        key("POWER"),
        detail(2, "PCIE"),
        detail(1, "NVLINKS"),
        key("PROCESSES"),
    ];
    if rows.is_empty() { ResultText::default() } else { Table::new(columns, rows).into() }
}

fn shown(reading: &Reading<impl Display>) -> String {
    match reading {
        Reading::Known(value) => value.to_string(),
        Reading::Absent => "unknown".to_owned(),
        Reading::Failed(message) => message.clone(),
    }
}

/// Formats the range of some numbers; `–` if there are none.
fn span(numbers: impl Iterator<Item = f64>) -> String {
    let numbers: Vec<f64> = numbers.collect();
    let least = numbers.iter().copied().fold(f64::INFINITY, f64::min).round();
    let most = numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max).round();
    match numbers.len() {
        0 => "–".to_owned(),
        _ if least == most => format!("{least}"),
        _ => format!("{least}-{most}"),
    }
}

fn with_unit(span: String, unit: &str) -> String {
    if span == "–" { span } else { span + unit }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn like_gpus_of_a_node_share_a_row() {
        console::set_colors_enabled(false);
        let recorded = include_str!("../../../tests/fixtures/nvidia-smi/h200-580-busy.xml");
        let idle = include_str!("../../../tests/fixtures/nvidia-smi/h200-580-idle.xml");
        let end = idle.find("<gpu ").unwrap();
        let two = recorded.replace("</nvidia_smi_log>", &idle[end..]);
        let lines: String = two.lines().map(|line| format!("xml {line}\n")).collect();
        let health = vec![
            ("node1".to_owned(), NodeHealth::parse(&format!("{lines}xml exit 0\n"))),
            ("node2".to_owned(), NodeHealth::parse("xml exit 9\n")),
        ];
        insta::assert_snapshot!(gpu_table(&health), @r"
        NODE   GPUS             MEMORY   DRIVER      TEMPERATURE  POWER     PCIE      NVLINKS  PROCESSES
        node1  2 x NVIDIA H200  141 GiB  580.159.04  36-49 C      79-410 W  16 lanes  –        1
        ");
        assert!(gpu_table(&health[1..]).is_empty());
        let gpus = NodeGpus::of("node1", &health);
        assert_eq!((gpus.driver.as_deref(), gpus.gpus.len()), (Some("580.159.04"), 2));
        assert_eq!(NodeGpus::of("node2", &health).gpus, []);
    }
}
