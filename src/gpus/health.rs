//! The health of a machine's GPUs: what `nvidia-smi -q -x` says of them (this file), and the rest of what
//! `src/scripts/node/health.sh` reports ([`report`]).
//!
//! Drivers from 450 to 580 name some elements differently, and have more from version to version. So the document is
//! read as a tree (`element.rs`), from which this file takes what it knows. What a driver does not report is
//! [`Reading::Absent`]; what it tried to read and could not is [`Reading::Failed`], which is never taken for a good
//! value.

mod element;
pub mod report;
#[cfg(test)]
mod tests;

pub use crate::node::reading::Reading;
use crate::node::reading::{any, is_failure, number, sum, switch, text};
use element::Element;
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;

/// A reason why the clocks of a GPU are slowed down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Slowdown {
    /// The hardware protects itself, for a reason that the driver does not name: power, or heat.
    Hardware,
    /// The hardware is too hot.
    HardwareHeat,
    /// The power supply asked for less.
    PowerBrake,
    /// The driver keeps the GPU below its temperature limit.
    SoftwareHeat,
    /// The driver keeps the GPU below its power limit, as it does under full load.
    PowerCap,
    /// Someone has set lower clocks (`nvidia-smi -ac`).
    ClockSetting,
}

impl fmt::Display for Slowdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Slowdown::Hardware => "hardware slowdown",
            Slowdown::HardwareHeat => "hardware slowdown by heat",
            Slowdown::PowerBrake => "hardware slowdown by the power supply",
            Slowdown::SoftwareHeat => "slowdown by heat",
            Slowdown::PowerCap => "power cap",
            Slowdown::ClockSetting => "clock setting",
        })
    }
}

/// The ends of the names of their elements. Before them newer drivers have `clocks_event_reason`, older ones
/// `clocks_throttle_reason`.
const SLOWDOWNS: [(&str, Slowdown); 6] = [
    ("hw_slowdown", Slowdown::Hardware),
    ("hw_thermal_slowdown", Slowdown::HardwareHeat),
    ("hw_power_brake_slowdown", Slowdown::PowerBrake),
    ("sw_thermal_slowdown", Slowdown::SoftwareHeat),
    ("sw_power_cap", Slowdown::PowerCap),
    ("applications_clocks_setting", Slowdown::ClockSetting),
];

/// The number of NVLinks of a GPU, and of those that are active.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Links {
    /// The active ones.
    pub active: u32,
    /// All that the GPU has.
    pub all: u32,
}

/// A process that uses a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct GpuProcess {
    /// Its id on the machine.
    pub pid: u32,
    /// Its program.
    pub program: String,
    /// The memory of the GPU that it uses, in MiB.
    #[serde(skip)]
    pub memory_mib: Reading<u64>,
}

/// The observed state of a GPU. Values that the GPU or its driver does not report are null.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct GpuHealth {
    /// Its index on its machine.
    pub index: u32,
    /// Its place on the PCI bus, as `00000000:41:00.0`.
    pub bus: String,
    /// The product's name.
    pub name: Reading<String>,
    /// The identity that survives reboots and re-numbering.
    pub uuid: Reading<String>,
    /// The version of its firmware.
    pub vbios: Reading<String>,
    /// Its memory in MiB.
    pub memory_mib: Reading<u64>,
    /// The part of it that is in use, in MiB.
    pub used_memory_mib: Reading<u64>,
    /// Its utilization in the last second, in percent.
    pub utilization_percent: Reading<u32>,
    /// True if the driver stays loaded when no program uses the GPU.
    pub persistence: Reading<bool>,
    /// True if it is in MIG mode.
    pub mig: Reading<bool>,
    /// True if it will be in MIG mode after its next reset.
    pub mig_pending: Reading<bool>,
    /// The number of MIG devices into which it is divided.
    pub mig_devices: u32,
    /// Its temperature in °C.
    pub temperature_c: Reading<i64>,
    /// The number of °C left until it is slowed down.
    pub margin_c: Reading<i64>,
    /// Its power draw, in W.
    pub power_w: Reading<f64>,
    /// Its power limit, in W.
    pub power_limit_w: Reading<f64>,
    /// Its default power limit, in W.
    pub default_power_limit_w: Reading<f64>,
    /// The clock of its processors in MHz.
    pub clock_mhz: Reading<u64>,
    /// Their highest clock in MHz.
    pub max_clock_mhz: Reading<u64>,
    /// The reasons why its clocks are slowed down now.
    pub slowdowns: Vec<Slowdown>,
    /// Its performance state; 0 is the fastest.
    pub performance_state: Reading<u32>,
    /// True if errors in its memory are corrected.
    pub ecc: Reading<bool>,
    /// Uncorrectable errors in its memory since the driver was loaded.
    pub uncorrected_errors: Reading<u64>,
    /// Uncorrectable errors over its whole life.
    pub lifetime_uncorrected_errors: Reading<u64>,
    /// True if a reset will retire a page of its memory or remap a row.
    pub repair_pending: Reading<bool>,
    /// True if a row could not be remapped.
    pub repair_failed: Reading<bool>,
    /// The generation of its PCIe link now. It drops while the GPU is idle.
    pub pcie_generation: Reading<u32>,
    /// The highest one that card and slot have.
    pub max_pcie_generation: Reading<u32>,
    /// The lanes of the link now.
    pub pcie_width: Reading<u32>,
    /// The maximum of the chip; a card or a slot may be wired with fewer.
    pub max_pcie_width: Reading<u32>,
    /// The programs that may use CUDA: `Default` (all), `Exclusive_Process` (one at a time), `Prohibited` (none).
    pub compute_mode: Reading<String>,
    /// The state of its license, if it is a virtual GPU (vGPU) that needs one: `Unlicensed (Restricted)`.
    pub license: Reading<String>,
    /// The action that the driver recommends, `None` if it recommends none. Earlier drivers only say whether it is a
    /// reset.
    pub recovery_action: Reading<String>,
    /// The state of its NVLink fabric, on machines that have one: `Completed`.
    pub fabric: Reading<String>,
    /// Its NVLinks; null if it has none, or `nvidia-smi nvlink -s` failed.
    pub links: Option<Links>,
    /// The processes that use it.
    pub processes: Vec<GpuProcess>,
    /// Values that the driver could not read, each as the name of an element and the driver's message.
    pub failures: Vec<String>,
}

impl GpuHealth {
    /// Reads an element `gpu`.
    fn new(index: u32, gpu: &Element) -> GpuHealth {
        let watts = |keys: &[&str]| watts(gpu, keys);
        let temperature: Reading<i64> = number(gpu.text("temperature/gpu_temp"));
        let limit: Reading<i64> = number(gpu.text("temperature/gpu_temp_slow_threshold"));
        let distance = match (temperature.known(), limit.known()) {
            (Some(temperature), Some(limit)) => Reading::Known(limit.saturating_sub(*temperature)),
            _ => Reading::Absent,
        };
        // a link that is down has none
        let lanes = |key: &str| {
            number(gpu.text(&format!("pci/pci_gpu_link_info/link_widths/{key}"))).filter(|lanes| *lanes > 0)
        };
        let license = |product: &str| text(gpu.text(&format!("{product}/license_status")));
        let failures = gpu.leaves().into_iter().filter(|(name, text)| *name != "process_name" && is_failure(text));
        let is_mig_device = |element: &&Element| element.name == "mig_device";
        GpuHealth {
            index,
            bus: gpu.id.clone(),
            name: text(gpu.text("product_name")),
            uuid: text(gpu.text("uuid")),
            vbios: text(gpu.text("vbios_version")),
            memory_mib: number(gpu.text("fb_memory_usage/total")),
            used_memory_mib: number(gpu.text("fb_memory_usage/used")),
            utilization_percent: number(gpu.text("utilization/gpu_util")),
            persistence: switch(gpu.text("persistence_mode")),
            mig: switch(gpu.text("mig_mode/current_mig")),
            mig_pending: switch(gpu.text("mig_mode/pending_mig")),
            mig_devices: gpu
                .child("mig_devices")
                .map_or(0, |devices| devices.children.iter().filter(is_mig_device).count() as u32),
            temperature_c: temperature,
            // GPUs from Hopper on report how far they are from their limit instead of the limit
            margin_c: number(gpu.text("temperature/gpu_temp_tlimit")).or(distance),
            power_w: watts(&["instant_power_draw", "average_power_draw", "power_draw"]),
            power_limit_w: watts(&["current_power_limit", "enforced_power_limit", "power_limit"]),
            default_power_limit_w: watts(&["default_power_limit"]),
            clock_mhz: number(gpu.text("clocks/sm_clock")),
            max_clock_mhz: number(gpu.text("max_clocks/sm_clock")),
            slowdowns: slowdowns(gpu),
            performance_state: number(gpu.text("performance_state")),
            ecc: switch(gpu.text("ecc_mode/current_ecc")),
            uncorrected_errors: uncorrected(gpu, "volatile"),
            lifetime_uncorrected_errors: uncorrected(gpu, "aggregate"),
            repair_pending: repair_pending(gpu),
            repair_failed: repair_failed(gpu),
            pcie_generation: number(gpu.text("pci/pci_gpu_link_info/pcie_gen/current_link_gen")),
            max_pcie_generation: number(gpu.text("pci/pci_gpu_link_info/pcie_gen/max_link_gen")),
            pcie_width: lanes("current_link_width"),
            max_pcie_width: lanes("max_link_width"),
            compute_mode: text(gpu.text("compute_mode")),
            // the older name is that of the product when it was called GRID
            license: license("vgpu_software_licensed_product").or(license("grid_licensed_product")),
            recovery_action: text(gpu.text("gpu_recovery_action")).or(reset_status(gpu)),
            fabric: fabric(gpu),
            links: None,
            processes: processes(gpu),
            failures: failures.map(|(name, message)| format!("{name}: {}", printable(message))).collect(),
        }
    }

    /// Returns whether it does nothing, as far as it says: its PCIe link and its clocks may then be slow.
    pub fn is_idle(&self) -> bool {
        self.utilization_percent.known().is_none_or(|percent| *percent == 0)
    }

    /// Returns the values that decide whether the GPU is sound and could not be understood, each with its name: those
    /// of a driver that writes them differently.
    pub fn unread(&self) -> Vec<(&'static str, &str)> {
        fn failed<'a, T>(name: &'static str, reading: &'a Reading<T>) -> Option<(&'static str, &'a str)> {
            match reading {
                Reading::Failed(text) if !is_failure(text) => Some((name, text)),
                _ => None,
            }
        }
        let all = [
            failed("uncorrected ECC errors", &self.uncorrected_errors),
            failed("pending repairs of memory", &self.repair_pending),
            failed("failed repairs of memory", &self.repair_failed),
            failed("PCIe width", &self.pcie_width),
            failed("largest PCIe width", &self.max_pcie_width),
            failed("memory", &self.memory_mib),
            failed("reset status", &self.recovery_action),
        ];
        all.into_iter().flatten().collect()
    }
}

/// The GPUs of a machine as `nvidia-smi -q -x` describes them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MachineHealth {
    /// The driver's version.
    pub driver: String,
    /// The number of GPUs that it reports.
    pub attached: usize,
    /// The GPUs that it describes.
    pub gpus: Vec<GpuHealth>,
    /// The message that it wrote between the elements; empty if there is none.
    pub message: String,
}

impl MachineHealth {
    /// Reads the XML document.
    ///
    /// # Errors
    /// If it is none, with the reason.
    pub fn read(document: &str) -> Result<MachineHealth, String> {
        let root = Element::read(document)?;
        let gpus: Vec<&Element> = root.children.iter().filter(|child| child.name == "gpu").collect();
        let driver = text(root.text("driver_version")).known().cloned().unwrap_or_default();
        if driver.is_empty() && gpus.is_empty() {
            return Err("it names neither a driver nor a GPU".to_owned());
        }
        Ok(MachineHealth {
            driver,
            attached: number(root.text("attached_gpus")).known().copied().unwrap_or(gpus.len()),
            gpus: (0..).zip(gpus).map(|(index, gpu)| GpuHealth::new(index, gpu)).collect(),
            message: printable(&root.text.split_whitespace().collect::<Vec<_>>().join(" ")),
        })
    }
}

/// Returns the first of these readings of a GPU's power that there is.
fn watts(gpu: &Element, keys: &[&str]) -> Reading<f64> {
    // drivers before 525 have the readings of one power supply only
    let of = |(section, key): (&str, &&str)| number(gpu.text(&format!("{section}/{key}")));
    let sections = ["gpu_power_readings", "power_readings"].into_iter();
    let all = sections.flat_map(|section| keys.iter().map(move |key| (section, key)));
    all.fold(Reading::Absent, |found: Reading<f64>, key| found.or(of(key)))
}

/// Returns whether its memory is repaired when it is reset.
fn repair_pending(gpu: &Element) -> Reading<bool> {
    any([
        switch(gpu.text("retired_pages/pending_retirement")),
        switch(gpu.text("retired_pages/pending_blacklist")),
        switch(gpu.text("remapped_rows/remapped_row_pending")),
        switch(gpu.text("ecc_errors/channel_repair_pending")),
        switch(gpu.text("ecc_errors/tpc_repair_pending")),
    ])
}

/// Returns whether its memory could not be repaired.
fn repair_failed(gpu: &Element) -> Reading<bool> {
    any([
        switch(gpu.text("remapped_rows/remapped_row_failure")),
        switch(gpu.text("ecc_errors/unrepairable_memory")),
        switch(gpu.text("ecc_errors/aggregate/sram_threshold_exceeded")),
    ])
}

/// Returns the state of the NVLink fabric: of one that has been set up, the first thing that is wrong with it.
fn fabric(gpu: &Element) -> Reading<String> {
    let state = text(gpu.text("fabric/state"));
    let wrong = |key: &str, good: &str| {
        let value = text(gpu.text(key)).known().cloned()?;
        (value != good).then(|| Reading::Known(format!("Completed, {value}")))
    };
    match state.known().map(String::as_str) {
        Some("Completed") => {
            wrong("fabric/status", "Success").or_else(|| wrong("fabric/health/summary", "Healthy")).unwrap_or(state)
        }
        _ => state,
    }
}

/// Returns whether drivers that do not name a recovery action ask for a reset, in the words of those that do.
fn reset_status(gpu: &Element) -> Reading<String> {
    let is = |key: &str| switch(gpu.text(&format!("gpu_reset_status/{key}")));
    let known = |action: &str| Reading::Known(action.to_owned());
    match (is("reset_required"), is("drain_and_reset_recommended")) {
        (Reading::Known(true), _) => known("Reset"),
        (_, Reading::Known(true)) => known("Drain and Reset"),
        (Reading::Failed(text), _) | (_, Reading::Failed(text)) => Reading::Failed(text),
        (Reading::Absent, Reading::Absent) => Reading::Absent,
        _ => known("None"),
    }
}

/// Returns what slows the clocks.
fn slowdowns(gpu: &Element) -> Vec<Slowdown> {
    let is_active = |key: &str| {
        ["event", "throttle"]
            .iter()
            .any(|word| gpu.text(&format!("clocks_{word}_reasons/clocks_{word}_reason_{key}")) == "Active")
    };
    SLOWDOWNS.into_iter().filter(|(key, _)| is_active(key)).map(|(_, slowdown)| slowdown).collect()
}

/// Adds the uncorrectable errors of all kinds of memory. Before Ampere they were called double-bit errors.
fn uncorrected(gpu: &Element, since: &str) -> Reading<u64> {
    let count = |key: &str| number(gpu.text(&format!("ecc_errors/{since}/{key}")));
    let kinds = ["sram_uncorrectable", "sram_uncorrectable_parity", "sram_uncorrectable_secded", "dram_uncorrectable"];
    count("double_bit/total").or(sum(kinds.into_iter().map(count)))
}

fn processes(gpu: &Element) -> Vec<GpuProcess> {
    let listed = gpu.child("processes").into_iter().flat_map(|processes| &processes.children);
    let process = |process: &Element| {
        let pid = process.text("pid").parse().ok()?;
        let memory_mib = number(process.text("used_memory"));
        Some(GpuProcess { pid, program: printable(process.text("process_name")), memory_mib })
    };
    listed.filter_map(process).collect()
}

/// Returns a text of a machine as it may be shown on a terminal, and not much of it.
fn printable(text: &str) -> String {
    text.chars().take(200).map(|c| if c.is_control() { '?' } else { c }).collect()
}
