//! Rules on the health of GPUs.

use crate::gpus::health::report::{KernelLog, NodeHealth, Xid};
use crate::gpus::health::{GpuHealth, MachineHealth, Reading, Slowdown};
use crate::inventory::Node;
use crate::model::check::Check;
use crate::model::finding::Severity::{Error, Note, Warning};
use crate::model::finding::{Finding, Severity};
use crate::node::differing::differing;
use crate::node::facts::Facts;
use crate::node::{gpus, network};
use crate::text::nodeset;
use crate::text::units::{count, human};
use std::collections::{BTreeMap, BTreeSet};

#[cfg(test)]
mod tests;
mod xids;

/// °C below the limit of a GPU at which there is a warning.
const NARROW_MARGIN: i64 = 3;
/// MiB of a GPU that may be in use by no process: earlier drivers count what they reserve.
const MOST_UNOWNED: u64 = 1024;
/// Models whose memory the system uses as well.
const OF_SYSTEM: [&str; 3] = ["GH200", "GB200", "GB300"];

/// A node with the health of its GPUs.
#[derive(Debug, Clone, Copy)]
pub struct GpuNode<'a> {
    /// Its line in the inventory.
    pub node: &'a Node,
    /// Its facts.
    pub facts: &'a Facts,
    /// The health of its GPUs.
    pub health: &'a NodeHealth,
}

impl<'a> GpuNode<'a> {
    /// Returns the GPUs that jobs may use. Those that the inventory leaves out may be as they are.
    fn gpus(&self, machine: &'a MachineHealth) -> Vec<&'a GpuHealth> {
        let chosen: BTreeSet<&str> =
            network::chosen_gpus(self.node, self.facts).iter().map(|device| device.gpu.uuid.as_str()).collect();
        let listed = |gpu: &GpuHealth| {
            gpu.uuid.known().is_some_and(|uuid| self.facts.gpus.iter().any(|listed| listed.uuid == *uuid))
        };
        let is_chosen =
            |gpu: &&GpuHealth| !listed(gpu) || gpu.uuid.known().is_some_and(|uuid| chosen.contains(uuid.as_str()));
        machine.gpus.iter().filter(is_chosen).collect()
    }

    /// Returns how many GPUs are examined; 0 if they are not known.
    pub fn examined(&self) -> usize {
        self.health.machine().map_or(0, |machine| self.gpus(machine).len())
    }

    fn finding(&self, severity: Severity, check: Check, message: impl Into<String>) -> Finding {
        Finding::new(severity, check, &self.node.name, message)
    }
}

/// Applies the rules.
pub fn examine(nodes: &[GpuNode<'_>]) -> Vec<Finding> {
    let mut found: Vec<Finding> = nodes.iter().flat_map(of_node).collect();
    found.extend(between(nodes));
    found.extend(lanes(nodes));
    found
}

fn of_node(node: &GpuNode<'_>) -> Vec<Finding> {
    let health = node.health;
    let mut found = Vec::new();
    match &health.machine {
        // another rule has this node's `nvidia-smi` already
        Some(Err(_)) if network::gpu_failure(node.node, node.facts).is_some() => {}
        Some(Err(error)) => {
            let message = format!("nvidia-smi -q failed: {error}");
            found.push(
                node.finding(Error, Check::NvidiaSmi, message)
                    .explain("its GPUs may not be healthy", gpus::hint(error)),
            );
        }
        Some(Ok(machine)) => {
            found.extend(health.complaint.as_ref().map(|complaint| {
                let message = format!("nvidia-smi -q reported: {complaint}");
                node.finding(Error, Check::NvidiaSmi, message).explain("a GPU does not answer", gpus::hint(complaint))
            }));
            found.extend(missing(node, machine));
            found.extend(RULES.iter().flat_map(|rule| rule.apply(node, machine)));
            found.extend(links(node, machine));
            found.extend(unlike(node, machine));
        }
        None => {}
    }
    found.extend(health.xids.iter().map(|xid| of_xid(node, xid)));
    found.extend(of_log(node));
    found.extend(diagnosis(node));
    found
}

/// A rule on single GPUs. GPUs of a node with the same text have one finding.
struct GpuRule {
    severity: Severity,
    check: Check,
    find: fn(&GpuHealth) -> Option<String>,
    why: &'static str,
    hint: &'static str,
}

impl GpuRule {
    fn apply(&self, node: &GpuNode<'_>, machine: &MachineHealth) -> Vec<Finding> {
        let found = node.gpus(machine).into_iter().filter_map(|gpu| Some(((self.find)(gpu)?, gpu.index.to_string())));
        let finding = |(text, indices): (String, Vec<String>)| {
            let message = format!("{}: {text}", gpus_of(&indices));
            node.finding(self.severity, self.check, message).explain(self.why, self.hint)
        };
        nodeset::alike(found).into_iter().map(finding).collect()
    }
}

/// Names GPUs by their indices.
fn gpus_of(indices: &[String]) -> String {
    match indices {
        [index] => format!("GPU {index}"),
        _ => format!("GPUs {}", indices.join(", ")),
    }
}

const RULES: [GpuRule; 19] = [
    GpuRule {
        severity: Warning,
        check: Check::GpuLost,
        find: |gpu| failures(gpu).filter(|_| !is_serious(gpu)),
        why: "some cards cannot report it; a broken sensor looks the same",
        hint: "see `nvidia-smi -q` on the node",
    },
    GpuRule {
        severity: Error,
        check: Check::GpuLost,
        find: |gpu| failures(gpu).filter(|_| is_serious(gpu)),
        why: "the driver no longer reaches all of it; jobs on it fail or hang",
        hint: "see `sudo dmesg` on the node for Xid errors, and reset the GPU (`nvidia-smi --gpu-reset -i N`) or \
            reboot the node",
    },
    GpuRule {
        severity: Error,
        check: Check::GpuLost,
        find: |gpu| {
            let action = gpu.recovery_action.known().filter(|action| *action != "None")?;
            Some(format!("the driver recommends: {action}"))
        },
        why: "it had an error from which it does not recover on its own",
        hint: "do what the driver recommends: `nvidia-smi --gpu-reset -i N`, or a reboot of the node",
    },
    GpuRule {
        severity: Error,
        check: Check::GpuClocks,
        find: |gpu| slowed(gpu, &[Slowdown::PowerBrake, Slowdown::HardwareHeat, Slowdown::Hardware]),
        why: "all ranks wait for the slowest GPU",
        hint: "check fans, air flow and power supplies of the node",
    },
    GpuRule {
        severity: Warning,
        check: Check::GpuClocks,
        find: |gpu| slowed(gpu, &[Slowdown::SoftwareHeat]),
        why: "all ranks wait for the slowest GPU",
        hint: "check fans and air flow of the node",
    },
    GpuRule {
        severity: Note,
        check: Check::GpuClocks,
        find: |gpu| slowed(gpu, &[Slowdown::PowerCap, Slowdown::ClockSetting]),
        why: "",
        hint: "",
    },
    GpuRule {
        severity: Warning,
        check: Check::GpuHeat,
        find: |gpu| {
            let margin = gpu.margin_c.known().filter(|margin| **margin <= NARROW_MARGIN)?;
            let temperature = gpu.temperature_c.known()?;
            Some(format!("{temperature} C, {margin} C below its slowdown limit"))
        },
        why: "all ranks wait for the slowest GPU",
        hint: "check fans and air flow of the node",
    },
    GpuRule {
        severity: Error,
        check: Check::GpuMemory,
        find: |gpu| {
            let errors = gpu.uncorrected_errors.known().filter(|errors| **errors > 0)?;
            Some(format!("{} since the driver was loaded", count(*errors as usize, "uncorrectable ECC error")))
        },
        why: "results may be wrong, and programs that touch that memory are ended",
        hint: "reset the GPU (`nvidia-smi --gpu-reset -i N`) or reboot the node; if they come back, have the GPU \
            replaced",
    },
    GpuRule {
        severity: Error,
        check: Check::GpuMemory,
        find: |gpu| {
            gpu.repair_pending
                .known()
                .filter(|is_pending| **is_pending)
                .map(|_| "a repair of its memory is pending".into())
        },
        why: "the broken part of its memory stays in use until the GPU is reset",
        hint: "reset the GPU (`nvidia-smi --gpu-reset -i N`) or reboot the node",
    },
    GpuRule {
        severity: Error,
        check: Check::GpuMemory,
        find: |gpu| {
            gpu.repair_failed
                .known()
                .filter(|has_failed| **has_failed)
                .map(|_| "its memory could not be repaired".into())
        },
        why: "it has no spare memory left for what breaks",
        hint: "have the GPU replaced",
    },
    GpuRule {
        severity: Warning,
        check: Check::GpuPcie,
        find: |gpu| {
            // an idle GPU saves power
            let busy = Some(gpu).filter(|gpu| !gpu.is_idle())?;
            narrow("PCIe", "generation ", &busy.pcie_generation, &busy.max_pcie_generation)
        },
        why: "data reach the GPU slowly",
        hint: "reseat the GPU or its riser, and check the settings of the firmware",
    },
    GpuRule {
        severity: Error,
        check: Check::Nvlink,
        find: |gpu| {
            let state = gpu.fabric.known().filter(|state| *state != "Completed")?;
            Some(format!("its NVLink fabric is not ready: {state}"))
        },
        why: "CUDA programs on this machine fail at their start, with error 802",
        hint: "see `sudo systemctl status nvidia-fabricmanager` on the node; its version must be that of the driver",
    },
    GpuRule {
        severity: Note,
        check: Check::GpuSettings,
        find: |gpu| gpu.persistence.known().filter(|is_on| !**is_on).map(|_| "persistence mode is off".into()),
        why: "the driver is loaded anew for every program, which takes seconds",
        hint: "run `sudo systemctl enable --now nvidia-persistenced` on the node, or `sudo nvidia-smi -pm 1`",
    },
    GpuRule {
        severity: Warning,
        check: Check::GpuSettings,
        find: |gpu| match (&gpu.mig, &gpu.mig_pending) {
            (Reading::Known(now), Reading::Known(then)) if now != then => {
                Some(format!("its next reset switches MIG mode {}", if *then { "on" } else { "off" }))
            }
            _ => None,
        },
        why: "the node then has other devices",
        hint: "reset the GPU now (`nvidia-smi --gpu-reset -i N`), or set the mode back (`nvidia-smi -mig 0` or `1`)",
    },
    GpuRule {
        severity: Warning,
        check: Check::GpuUsers,
        find: |gpu| {
            unowned(gpu)
                .map(|bytes| format!("{} of its memory are in use by no process that nvidia-smi lists", human(bytes)))
        },
        why: "a job that needs this memory runs out of it",
        hint: "`sudo fuser -v /dev/nvidia*` on the node shows programs that nvidia-smi does not; one outside of it may \
               have the memory if the node is a container; a killed one may hang in the driver (`sudo dmesg`): \
               `nvidia-smi --gpu-reset -i N` or a reboot frees the memory",
    },
    GpuRule { severity: Note, check: Check::GpuSettings, find: settings, why: "", hint: "" },
    GpuRule {
        severity: Error,
        check: Check::GpuSettings,
        find: |gpu| compute_mode(gpu, "Prohibited"),
        why: "no CUDA program can use the GPU",
        hint: "run `sudo nvidia-smi -c DEFAULT` on the node",
    },
    GpuRule {
        severity: Warning,
        check: Check::GpuSettings,
        find: |gpu| {
            let license = gpu.license.known()?;
            let is_slowed = license.starts_with("Unlicensed") && !license.contains("Unrestricted");
            is_slowed.then(|| format!("its vGPU license: {license}"))
        },
        why: "the driver slows a virtual GPU down that has no license, and may refuse programs what they need",
        hint: "see `sudo systemctl status nvidia-gridd` on the node, and its license server",
    },
    GpuRule {
        severity: Warning,
        check: Check::GpuLost,
        find: |gpu| {
            let unread: Vec<String> = gpu.unread().iter().map(|(name, text)| format!("{name} ({text})")).collect();
            (!unread.is_empty()).then(|| format!("cannot understand its {}", unread.join(", ")))
        },
        why: "this part of its health was not checked",
        hint: "see `nvidia-smi -q` on the node; a newer hvdctl may know this driver",
    },
];

/// Values that working cards cannot always report: fans, limits of power, and data stored on the board.
const MINOR: [&str; 6] = ["fan", "power", "accounting", "encoder", "inforom", "serial"];
/// The number of these values that a working GPU may fail to report.
const MOST_MINOR: usize = 4;

/// Returns true if the driver could not read a value that every working GPU has, or reports that the GPU is lost.
fn is_serious(gpu: &GpuHealth) -> bool {
    let is_minor = |failure: &String| {
        let (name, message) = failure.split_once(": ").unwrap_or((failure, ""));
        MINOR.iter().any(|minor| name.contains(minor))
            && (message.contains("Unknown Error") || message.contains("ERR!"))
    };
    gpu.failures.len() > MOST_MINOR || !gpu.failures.iter().all(is_minor)
}

/// Returns the values that the driver could not read, as a sentence.
fn failures(gpu: &GpuHealth) -> Option<String> {
    let (first, rest) = gpu.failures.split_first()?;
    let rest = if rest.is_empty() { String::new() } else { format!(", and {} more", count(rest.len(), "value")) };
    Some(format!("cannot read {first}{rest}"))
}

/// Returns how many bytes of a GPU's memory are in use by no process, if that is much. Those of MIG devices are listed
/// elsewhere, and the memory of a Grace processor's GPU is the system's as well.
fn unowned(gpu: &GpuHealth) -> Option<u64> {
    let is_of_system = gpu.name.known().is_some_and(|name| OF_SYSTEM.iter().any(|model| name.contains(model)));
    let used = gpu.used_memory_mib.known().filter(|_| !is_of_system && gpu.mig != Reading::Known(true))?;
    let mut owned = gpu.processes.iter().map(|process| process.memory_mib.known().copied());
    let owned = owned.try_fold(0, |sum: u64, memory| Some(sum.saturating_add(memory?)))?;
    // where the node is a container, the driver lists not even the processes of our own job
    if gpu.processes.is_empty() && !gpu.is_idle() {
        return None;
    }
    let unowned = used.saturating_sub(owned);
    (unowned > MOST_UNOWNED).then(|| unowned.saturating_mul(1 << 20))
}

fn slowed(gpu: &GpuHealth, kinds: &[Slowdown]) -> Option<String> {
    // the more precise ones come first
    let kind = kinds.iter().find(|kind| gpu.slowdowns.contains(kind))?;
    let clock = match (gpu.clock_mhz.known(), gpu.max_clock_mhz.known()) {
        (Some(now), Some(most)) => format!(", {now} of {most} MHz"),
        _ => String::new(),
    };
    Some(format!("{kind}{clock}"))
}

/// GPUs with fewer PCIe lanes than their chip has. Some cards are wired with half of them, so one is slow only if
/// others of its model have more.
fn lanes(nodes: &[GpuNode<'_>]) -> Vec<Finding> {
    let mut most: BTreeMap<&String, u32> = BTreeMap::new();
    let machines = nodes.iter().filter_map(|node| node.health.machine());
    for (name, width) in machines.flat_map(|m| &m.gpus).filter_map(|gpu| gpu.name.known().zip(gpu.pcie_width.known())) {
        let known = most.entry(name).or_default();
        *known = (*known).max(*width);
    }
    let is_slower = |gpu: &GpuHealth| {
        let (name, width) = (gpu.name.known(), gpu.pcie_width.known());
        name.and_then(|name| most.get(name)).zip(width).is_some_and(|(most, width)| width < most)
    };
    let finding = |node: &GpuNode<'_>, (severity, text): (Severity, String), indices: &[String]| {
        let finding = node.finding(severity, Check::GpuPcie, format!("{}: {text}", gpus_of(indices)));
        match severity {
            Note => finding.explain("its card or slot may be wired that way", ""),
            _ => finding.explain(
                "data reach the GPU slowly: the card may sit badly, or the slot share its lanes",
                "reseat the GPU or its riser; see `nvidia-smi -q -d PCIE` on the node",
            ),
        }
    };
    let of_node = |node: &GpuNode<'_>| {
        let gpus = node.health.machine().map(|machine| node.gpus(machine)).unwrap_or_default();
        let narrow = gpus.into_iter().filter_map(|gpu| {
            let text = narrow("PCIe lanes", "", &gpu.pcie_width, &gpu.max_pcie_width)?;
            Some(((if is_slower(gpu) { Warning } else { Note }, text), gpu.index.to_string()))
        });
        let narrow = nodeset::alike(narrow);
        narrow.into_iter().map(|(value, indices)| finding(node, value, &indices)).collect::<Vec<_>>()
    };
    nodes.iter().flat_map(of_node).collect()
}

fn narrow(what: &str, unit: &str, now: &Reading<u32>, most: &Reading<u32>) -> Option<String> {
    let (now, most) = (now.known()?, most.known()?);
    (now < most).then(|| format!("{what}: {unit}{now} of {most}"))
}

fn compute_mode(gpu: &GpuHealth, mode: &str) -> Option<String> {
    gpu.compute_mode.known().filter(|now| *now == mode).map(|now| format!("its compute mode is {now}"))
}

/// Settings that make a GPU slower or less useful than it could be.
fn settings(gpu: &GpuHealth) -> Option<String> {
    let limit = gpu.power_limit_w.known().zip(gpu.default_power_limit_w.known());
    let power = limit.filter(|(limit, default)| *limit < *default);
    let power = power.map(|(limit, default)| format!("its power limit is {limit:.0} W, by default {default:.0} W"));
    let ecc = gpu.ecc.known().filter(|is_on| !**is_on).map(|_| "ECC is off".to_owned());
    let mode = compute_mode(gpu, "Exclusive_Process").map(|mode| format!("{mode}: two ranks cannot share it"));
    let all: Vec<String> = power.into_iter().chain(ecc).chain(mode).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// GPUs that are there, and that `nvidia-smi` does not describe.
fn missing(node: &GpuNode<'_>, machine: &MachineHealth) -> Option<Finding> {
    let described = machine.gpus.len();
    let message = match node.health.unlisted.as_slice() {
        [] if machine.attached <= described => return None,
        [] => format!("nvidia-smi counts {} and describes {described}", count(machine.attached, "GPU")),
        unlisted => format!("nvidia-smi does not list the {} at {}", noun(unlisted.len()), unlisted.join(", ")),
    };
    Some(node.finding(Error, Check::GpuLost, message).explain(
        "the driver could not start it, or has lost it",
        "see `sudo dmesg` on the node (RmInitAdapter, Xid), and reboot it; if that does not help, reseat the GPU",
    ))
}

fn noun(number: usize) -> &'static str {
    if number == 1 { "GPU" } else { "GPUs" }
}

/// NVLinks that are inactive. A GPU may have fewer than its chip could have, so each is compared with the best of its
/// model there.
fn links(node: &GpuNode<'_>, machine: &MachineHealth) -> Vec<Finding> {
    let finding = |gpu: &GpuHealth| {
        let links = gpu.links?;
        let others = machine.gpus.iter().filter(|other| other.name == gpu.name);
        let best = others.filter_map(|other| Some(other.links?.active)).max().filter(|best| *best > links.active)?;
        // one without any may have no bridge
        let severity = if links.active == 0 { Warning } else { Error };
        let message = format!("GPU {}: {} of {best} NVLinks are active", gpu.index, links.active);
        Some(node.finding(severity, Check::Nvlink, message).explain(
            "GPUs that exchange data over it wait, or use the slower PCIe",
            "see `nvidia-smi nvlink -s` and `-e` on the node; reset the GPUs or reboot the node, or check the bridge",
        ))
    };
    node.gpus(machine).into_iter().filter_map(finding).collect()
}

/// The GPUs of a node that are not as most there.
fn unlike(node: &GpuNode<'_>, machine: &MachineHealth) -> Vec<Finding> {
    let differ = |severity, what: &str, value: fn(&GpuHealth) -> Option<String>| {
        let values = node.gpus(machine).into_iter().filter_map(|gpu| Some((value(gpu)?, gpu.index.to_string())));
        let mut groups = nodeset::alike(values);
        groups.sort_by_key(|(_, indices)| std::cmp::Reverse(indices.len()));
        let (first, odd) = groups.split_first().filter(|(_, odd)| !odd.is_empty())?;
        let odd: Vec<String> = odd.iter().map(|(value, indices)| format!("{} {value}", gpus_of(indices))).collect();
        let message = format!("its GPUs differ in {what}: {}; the others {}", odd.join(", "), first.0);
        let why = "ranks on unlike GPUs wait for the slowest, and need different batches";
        Some(
            node.finding(severity, Check::GpuModels, message)
                .explain(why, "choose GPUs of one kind with `gpus` of this [[node]]"),
        )
    };
    let model = differ(Warning, "their model", model);
    model.into_iter().chain(differ(Note, "their VBIOS", |gpu| gpu.vbios.known().cloned())).collect()
}

/// Model and memory.
fn model(gpu: &GpuHealth) -> Option<String> {
    let name = gpu.name.known()?;
    Some(match gpu.memory_mib.known() {
        Some(memory) => format!("{name} with {memory} MiB"),
        None => name.clone(),
    })
}

/// Nodes whose GPUs are not those of most.
fn between(nodes: &[GpuNode<'_>]) -> Vec<Finding> {
    let compare = |severity, what: &str, value: fn(&GpuHealth) -> Option<String>| {
        let of_node = |node: &GpuNode<'_>| {
            let gpus = node.gpus(node.health.machine()?);
            let values = nodeset::alike(gpus.into_iter().filter_map(|gpu| Some((value(gpu)?, String::new()))));
            let values: Vec<String> = values.into_iter().map(|(value, _)| value).collect();
            (!values.is_empty()).then(|| values.join(" and "))
        };
        let values = nodes.iter().filter_map(|node| Some((node.node, of_node(node)?))).collect();
        differing(severity, Check::GpuModels, &format!("the {what} differ"), values)
    };
    let models = compare(Warning, "GPUs", model).map(|finding| {
        finding.explain(
            "all ranks wait for the slowest GPU, and the smallest memory limits the batch of all",
            "select nodes of one kind with `--on`",
        )
    });
    models.into_iter().chain(compare(Note, "VBIOS versions of the GPUs", |gpu| gpu.vbios.known().cloned())).collect()
}

fn of_xid(node: &GpuNode<'_>, xid: &Xid) -> Finding {
    let (severity, meaning) = xids::meaning(xid.number);
    let machine = node.health.machine();
    let at = |gpu: &GpuHealth| gpu.bus.to_ascii_lowercase().contains(&xid.bus.to_ascii_lowercase());
    let is_left_out =
        machine.is_some_and(|machine| machine.gpus.iter().any(at) && !node.gpus(machine).into_iter().any(at));
    let is_foreign = node.health.foreign.iter().any(|bus| bus.starts_with(&xid.bus.to_ascii_lowercase()));
    let severity = if is_left_out || is_foreign { Note } else { severity };
    let owner = if is_foreign { " (not a GPU of this node)" } else { "" };
    let times = if xid.count == 1 { String::new() } else { format!(", {} times", xid.count) };
    let meaning = meaning.unwrap_or(&xid.text);
    let message = format!("Xid {} of the GPU at {}{owner} since the boot{times}: {meaning}", xid.number, xid.bus);
    let (why, hint) = match severity {
        Error => {
            ("the GPU does not work before a reboot", "reboot the node; if it comes back, reseat the GPU or replace it")
        }
        Warning => {
            ("it may be the hardware, or the driver", "see `sudo dmesg` on the node; reset the GPU or reboot the node")
        }
        Note => ("", ""),
    };
    node.finding(severity, Check::Xid, message).explain(why, hint)
}

/// A kernel log that could not be read whole.
fn of_log(node: &GpuNode<'_>) -> Option<Finding> {
    node.health.machine.as_ref()?;
    let message = match &node.health.log {
        KernelLog::Whole => return None,
        KernelLog::Partial => "its kernel log no longer reaches back to the boot".to_owned(),
        KernelLog::Unread(reason) => format!("its kernel log cannot be read: {reason}"),
    };
    Some(node.finding(Note, Check::Xid, message).explain("earlier errors of its GPUs (Xid) are not known", ""))
}

/// Returns the findings of DCGM.
fn diagnosis(node: &GpuNode<'_>) -> Vec<Finding> {
    let hint = "run `sudo dcgmi diag -r 1 -v` on the node";
    match &node.health.diagnosis {
        None => Vec::new(),
        Some(Err(reason)) => {
            let message = format!("dcgmi diag -r 1 has no result: {reason}");
            let why = "DCGM is installed, and may not be running";
            vec![
                node.finding(Note, Check::Dcgm, message)
                    .explain(why, "run `sudo systemctl start nvidia-dcgm` on the node"),
            ]
        }
        Some(Ok(diagnosis)) if diagnosis.failed.is_empty() => {
            vec![node.finding(Note, Check::Dcgm, format!("DCGM: {} passed", count(diagnosis.passed, "test")))]
        }
        Some(Ok(diagnosis)) => {
            let finding = |test: &crate::gpus::health::report::FailedTest| {
                let severity = if test.result.starts_with("Fail") { Error } else { Warning };
                let message = if test.message.is_empty() { String::new() } else { format!(": {}", test.message) };
                node.finding(severity, Check::Dcgm, format!("DCGM: {} {}{message}", test.name, test.result))
                    .explain("its GPUs may fail in a job", hint)
            };
            diagnosis.failed.iter().map(finding).collect()
        }
    }
}
