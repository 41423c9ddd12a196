//! The report of `src/scripts/node/health.sh` on a node: the document of `nvidia-smi`, NVLinks, GPUs on the PCI bus,
//! errors in the kernel log, and the diagnosis of DCGM.

use super::{Links, MachineHealth, printable};
use crate::node::gpus;
use std::collections::BTreeMap;

/// The extent to which the kernel log since the boot could be read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum KernelLog {
    /// All of it.
    #[default]
    Whole,
    /// It no longer reaches back to the boot.
    Partial,
    /// Nothing, for this reason.
    Unread(String),
}

/// An error that NVIDIA's driver wrote to the kernel log since the boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Xid {
    /// The GPU's place on the PCI bus, as `0000:41:00`.
    pub bus: String,
    /// Its number.
    pub number: u32,
    /// The number of times that it occurred there.
    pub count: u32,
    /// The driver's message when it last occurred.
    pub text: String,
}

/// A test of DCGM that did not pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedTest {
    /// Its name.
    pub name: String,
    /// Its result, such as `Fail` or `Warn`.
    pub result: String,
    /// Its message; empty if it has none.
    pub message: String,
}

/// The result of `dcgmi diag -r 1`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Diagnosis {
    /// The number of tests that passed.
    pub passed: usize,
    /// The tests that did not pass; a skipped test is in neither.
    pub failed: Vec<FailedTest>,
}

/// The health of a node's GPUs.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeHealth {
    /// The report of `nvidia-smi`, or the reason why it has none; `None` if the program is not installed.
    pub machine: Option<Result<MachineHealth, gpus::GpuQueryFailure>>,
    /// Its complaint where it has described GPUs all the same.
    pub complaint: Option<gpus::GpuQueryFailure>,
    /// GPUs that its driver has and `nvidia-smi` does not list, by their places on the PCI bus, as `0000:41:00.0`.
    pub unlisted: Vec<String>,
    /// GPUs of its machine that are not the node's, by the same places: the node is a container that was given others.
    pub foreign: Vec<String>,
    /// The extent to which the kernel log was read.
    pub log: KernelLog,
    /// The errors in it.
    pub xids: Vec<Xid>,
    /// The result of DCGM, or the reason why it could not be asked; `None` if it was not asked, or is not installed.
    pub diagnosis: Option<Result<Diagnosis, String>>,
}

impl NodeHealth {
    /// Reads the script's lines: `KEY VALUE`. Unknown keys are passed over.
    pub fn parse(report: &str) -> NodeHealth {
        let lines = |key: &'static str| {
            report.lines().filter_map(move |line| line.strip_prefix(key)).filter_map(|rest| rest.strip_prefix(' '))
        };
        let mut health = NodeHealth {
            machine: None,
            complaint: None,
            unlisted: Vec::new(),
            foreign: lines("pci-foreign").map(printable).collect(),
            log: KernelLog::Whole,
            xids: lines("xid").filter_map(xid).collect(),
            diagnosis: None,
        };
        for log in lines("log") {
            health.log = match log.strip_prefix("unread ") {
                Some(reason) => KernelLog::Unread(printable(reason)),
                None => KernelLog::Partial,
            };
        }
        if lines("nvidia-smi").chain(lines("xml")).next().is_some() {
            let output: Vec<&str> = lines("xml").collect();
            let (machine, complaint) = machine(&output);
            (health.machine, health.complaint) = (Some(machine), complaint);
        }
        if let Some(Ok(machine)) = &mut health.machine {
            let links = links(lines("link"));
            for gpu in &mut machine.gpus {
                gpu.links = gpu.uuid.known().and_then(|uuid| links.get(uuid)).copied();
            }
            let is_listed = |bus: &&str| machine.gpus.iter().any(|gpu| gpu.bus.to_lowercase().ends_with(bus));
            // where `nvidia-smi` gives no places, none can be missing
            let has_places = machine.gpus.iter().all(|gpu| !gpu.bus.is_empty());
            health.unlisted = lines("pci").filter(|bus| has_places && !is_listed(bus)).map(printable).collect();
        }
        if report.lines().any(|line| line == "dcgmi") || lines("dcgmi").next().is_some() {
            let output: Vec<&str> = lines("dcgmi").collect();
            health.diagnosis = Some(diagnosis(&output));
        }
        health
    }

    /// Returns what `nvidia-smi` says, if it does.
    pub fn machine(&self) -> Option<&MachineHealth> {
        self.machine.as_ref().and_then(|machine| machine.as_ref().ok())
    }
}

/// Splits the lines of a program from its exit code; `None` if it did not end.
fn exit_code<'a>(output: &[&'a str]) -> (Vec<&'a str>, Option<i32>) {
    let code = output.iter().rev().find_map(|line| line.strip_prefix("exit ")?.parse().ok());
    (output.iter().filter(|line| !line.starts_with("exit ")).copied().collect(), code)
}

/// Reads the output of `nvidia-smi -q -x`. Returns also its complaint where it described GPUs.
fn machine(output: &[&str]) -> (Result<MachineHealth, gpus::GpuQueryFailure>, Option<gpus::GpuQueryFailure>) {
    let (lines, code) = exit_code(output);
    let read = MachineHealth::read(&lines.join("\n"));
    let first = lines.iter().map(|line| line.trim()).find(|line| !gpus::is_blank(line));
    let message = first.filter(|line| !line.starts_with('<')).map(printable);
    let code = code.map(|code| if code == gpus::INFO_ROM && read.is_ok() { 0 } else { code });
    match read {
        Ok(machine) => {
            let between = Some(machine.message.clone()).filter(|message| !message.is_empty());
            let complaint = gpus::failure(code, between.as_deref().or(message.as_deref().filter(|_| code != Some(0))));
            (Ok(machine), complaint)
        }
        Err(error) => {
            let not_read = || gpus::GpuQueryFailure::Said(format!("its XML cannot be read: {error}"));
            let failure = gpus::failure(code, message.as_deref());
            (Err(failure.unwrap_or_else(not_read)), None)
        }
    }
}

/// Reads the lines of `nvidia-smi nvlink -s`: the links of each GPU that has some, by UUID.
fn links<'a>(lines: impl Iterator<Item = &'a str>) -> BTreeMap<String, Links> {
    let (mut found, mut current) = (BTreeMap::<String, Links>::new(), None);
    for line in lines {
        let line = line.trim();
        if line.starts_with("GPU ") {
            current = line.rsplit_once("(UUID: ").map(|(_, uuid)| uuid.trim_end_matches(')').to_owned());
        } else if let (Some(uuid), true) = (&current, line.starts_with("Link ")) {
            let links = found.entry(uuid.clone()).or_default();
            links.all += 1;
            links.active += u32::from(line.contains("GB/s"));
        }
    }
    found
}

/// Parses `COUNT NVRM: Xid (PCI:0000:41:00): 79, pid=…, GPU has fallen off the bus.`
fn xid(value: &str) -> Option<Xid> {
    let (count, line) = value.split_once(' ')?;
    let (bus, rest) = line.split_once("Xid (")?.1.split_once("):")?;
    let rest = rest.trim_start();
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let text = rest[end..].trim_start_matches([',', ' ']);
    let text = ["pid='<unknown>', ", "pid=<unknown>, ", "name=<unknown>, "]
        .iter()
        .fold(text, |text, unknown| text.strip_prefix(unknown).unwrap_or(text));
    Some(Xid {
        bus: printable(bus.trim_start_matches("PCI:")),
        number: rest[..end].parse().ok()?,
        count: count.parse().ok()?,
        text: printable(text),
    })
}

/// Reads the table of `dcgmi diag -r 1`: `| Persistence Mode | Fail |`, and below it what was found.
fn diagnosis(output: &[&str]) -> Result<Diagnosis, String> {
    const RESULTS: [&str; 3] = ["Pass", "Fail", "Warn"];
    let (lines, code) = exit_code(output);
    let mut diagnosis = Diagnosis::default();
    let mut is_failed = false;
    for line in &lines {
        let Some((name, result)) = cells(line) else { continue };
        // version 4 has a line for each GPU: `| | GPU0: Pass |`
        let result = if name.is_empty() { result.rsplit(": ").next().unwrap_or(result) } else { result };
        match RESULTS.into_iter().find(|word| result.starts_with(word)) {
            Some("Pass") => {
                diagnosis.passed += usize::from(!name.is_empty());
                is_failed = is_failed && name.is_empty();
            }
            Some(_) if !name.is_empty() && name != "Warning" => {
                is_failed = true;
                let (name, result) = (printable(name), printable(result));
                diagnosis.failed.push(FailedTest { name, result, message: String::new() });
            }
            _ if matches!(name, "" | "Warning" | "Error" | "Info") && is_failed => {
                if let Some(test) = diagnosis.failed.last_mut() {
                    let separator = if test.message.is_empty() { "" } else { " " };
                    test.message = printable(&format!("{}{separator}{result}", test.message));
                }
            }
            _ => is_failed = false,
        }
    }
    if diagnosis.passed + diagnosis.failed.len() > 0 {
        return Ok(diagnosis);
    }
    let message = lines.iter().map(|line| line.trim()).find(|line| !line.is_empty());
    Err(match (code, message) {
        (None | Some(124), _) => "no answer".to_owned(),
        (_, Some(message)) => printable(message),
        (Some(code), None) => format!("exit code {code}"),
    })
}

/// Returns the two cells of a line of a table.
fn cells(line: &str) -> Option<(&str, &str)> {
    let (name, result) = line.trim().strip_prefix('|')?.strip_suffix('|')?.split_once('|')?;
    Some((name.trim(), result.trim()))
}
