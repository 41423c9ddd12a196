//! The GPUs that `nvidia-smi` lists on a machine or in a container, and those that a container is to have.

use crate::node::reading::{Reading, number};
use crate::text::failure;
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;

/// The exit code of `nvidia-smi` for a query that an older driver or the GPU does not know (nvidia-smi(1)).
const UNKNOWN_QUERY: [i32; 2] = [2, 3];
/// Its exit code if it has listed everything and a GPU's infoROM is corrupted. Such GPUs work.
pub(crate) const INFO_ROM: i32 = 14;
/// The exit code of `timeout`, which limits it.
const TIMED_OUT: i32 = 124;

/// A failed call of `nvidia-smi`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GpuQueryFailure {
    /// It was not waited for any longer (`nvidia_smi.sh`).
    NoAnswer,
    /// It ended with this message, or exit code.
    Said(String),
}

impl fmt::Display for GpuQueryFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GpuQueryFailure::NoAnswer => "no answer within 20 s",
            GpuQueryFailure::Said(message) => message,
        })
    }
}

/// A GPU as `nvidia-smi -L` lists it: `GPU 0: NVIDIA H200 (UUID: GPU-…)`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Gpu {
    /// Index on its machine.
    pub index: u32,
    /// The product's name.
    pub name: String,
    /// The identity that survives reboots and re-numbering.
    pub uuid: String,
    /// Its memory in MiB.
    #[serde(skip)]
    pub memory_mib: Reading<u64>,
    /// Its MIG devices, if it is in MIG mode. Programs can then use only these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mig: Option<Vec<MigDevice>>,
}

/// A MIG device as `nvidia-smi -L` lists it: `MIG 3g.20gb Device 0: (UUID: MIG-…)`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct MigDevice {
    /// Its profile, such as `3g.20gb`.
    pub profile: String,
    /// Its identity.
    pub uuid: String,
}

/// A device that programs can use: a GPU, or a MIG device of one. One rank uses one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuDevice<'a> {
    /// The GPU.
    pub gpu: &'a Gpu,
    /// The MIG device; `None` for a whole GPU.
    pub mig: Option<&'a MigDevice>,
}

impl<'a> GpuDevice<'a> {
    /// Returns all devices of these GPUs, in their order.
    pub fn of(gpus: &'a [Gpu]) -> Vec<GpuDevice<'a>> {
        let of_gpu = |gpu: &'a Gpu| match &gpu.mig {
            None => vec![GpuDevice { gpu, mig: None }],
            Some(devices) => devices.iter().map(|mig| GpuDevice { gpu, mig: Some(mig) }).collect(),
        };
        gpus.iter().flat_map(of_gpu).collect()
    }

    /// Returns its UUID.
    pub fn uuid(&self) -> &'a str {
        self.mig.map_or(&self.gpu.uuid, |mig| &mig.uuid)
    }

    /// Returns its index as `nvidia-ctk` writes it: that of the GPU, and of a MIG device also its place in that.
    pub fn place(&self) -> String {
        let devices = self.gpu.mig.iter().flatten();
        let place = self.mig.and_then(|mig| devices.into_iter().position(|device| device.uuid == mig.uuid));
        place.map_or(self.gpu.index.to_string(), |place| format!("{}:{place}", self.gpu.index))
    }

    /// Returns whether an index or UUID of the inventory names it. MIG devices have no index of their own.
    pub fn is(&self, id: &str) -> bool {
        self.uuid().eq_ignore_ascii_case(id) || self.mig.is_none() && self.gpu.index.to_string() == id
    }
}

impl fmt::Display for GpuDevice<'_> {
    /// Writes what the inventory may name it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mig {
            None => write!(f, "{} {}", self.gpu.index, self.gpu.uuid),
            Some(mig) => f.write_str(&mig.uuid),
        }
    }
}

/// The state of `nvidia-smi` on a machine or in a container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum NvidiaSmi {
    /// There is no such program.
    #[default]
    Missing,
    /// It has listed all GPUs.
    Listed,
    /// It failed: the GPUs are not known.
    Failed(GpuQueryFailure),
}

/// Reads the lines of `src/scripts/node/gpus.sh`. If `nvidia-smi` failed, the GPUs are those that it listed all the
/// same.
pub fn read(text: &str) -> (NvidiaSmi, Vec<Gpu>) {
    let values = |key: &'static str| text.split('\n').filter_map(move |line| line.strip_prefix(key)?.strip_prefix(' '));
    if values("nvidia-smi").next().is_none() {
        return (NvidiaSmi::Missing, Vec::new());
    }
    let code = |key| values(key).filter_map(|line| line.strip_prefix("exit ")?.parse::<i32>().ok()).next();
    let lines = |key| values(key).filter(|line| !line.starts_with("exit "));
    let (mut gpus, unknown) = list(lines("gpu"));
    let listed = code("gpu").map(|code| if code == INFO_ROM && !gpus.is_empty() { 0 } else { code });
    let (described, other): (Vec<_>, Vec<_>) = lines("mig").partition(|line| queried(line).is_some());
    for (index, mode, memory) in described.into_iter().filter_map(queried) {
        for gpu in gpus.iter_mut().filter(|gpu| gpu.index == index) {
            gpu.memory_mib = number(memory);
            if mode == "Enabled" {
                gpu.mig.get_or_insert_default();
            }
        }
    }
    let query = code("mig").map(|code| if UNKNOWN_QUERY.contains(&code) || code == INFO_ROM { 0 } else { code });
    let other = other.into_iter().find(|line| !is_blank(line)).filter(|_| query != Some(0));
    let failed = failure(listed, unknown).or_else(|| failure(query, other));
    (failed.map_or(NvidiaSmi::Listed, NvidiaSmi::Failed), gpus)
}

/// Reads the lines of `nvidia-smi -L`. Returns the GPUs, and the first line that is none: a message.
pub fn list<'a>(lines: impl Iterator<Item = &'a str>) -> (Vec<Gpu>, Option<&'a str>) {
    let (mut gpus, mut message) = (Vec::<Gpu>::new(), None);
    for line in lines.filter(|line| !is_blank(line)) {
        match (gpu(line), mig_device(line), gpus.last_mut()) {
            (Some(gpu), ..) => gpus.push(gpu),
            (None, Some(device), Some(gpu)) => gpu.mig.get_or_insert_default().push(device),
            _ => message = message.or(Some(line.trim())),
        }
    }
    (gpus, message)
}

/// Returns the next step where `nvidia-smi` failed.
pub fn hint(failed: &GpuQueryFailure) -> &'static str {
    let GpuQueryFailure::Said(message) = failed else {
        return "if it is slow, run `sudo nvidia-smi -pm 1` on the node; if it hangs, see `sudo dmesg` there, and reboot \
                the node";
    };
    match failure::nvidia_smi(message) {
        Some(failure::NvidiaSmiFailure::DriverMismatch) => {
            "the driver was updated and the old one is still loaded: reboot the node, or unload and load its modules"
        }
        Some(failure::NvidiaSmiFailure::NoDriver) => {
            "load or install the driver on the node (`sudo modprobe nvidia`, `sudo dmesg`); without GPUs set `gpus = 0`"
        }
        Some(failure::NvidiaSmiFailure::NoDevices) => {
            "see `sudo dmesg` on the node for why its GPUs are gone; without GPUs set `gpus = 0`"
        }
        Some(failure::NvidiaSmiFailure::LostGpu) => {
            "a GPU does not answer its driver: see `sudo dmesg` on the node for Xid errors, and reboot it"
        }
        None => "run `nvidia-smi` on the node, and see `sudo dmesg` there; without GPUs set `gpus = 0`",
    }
}

/// Returns why a call of `nvidia-smi` failed, given its exit code if it ended, and its message if it wrote one.
pub(crate) fn failure(code: Option<i32>, message: Option<&str>) -> Option<GpuQueryFailure> {
    match (code, message) {
        (None | Some(TIMED_OUT), _) => Some(GpuQueryFailure::NoAnswer),
        (_, Some(message)) => Some(GpuQueryFailure::Said(message.trim().to_owned())),
        (Some(0), None) => None,
        (Some(code), None) => Some(GpuQueryFailure::Said(format!("exit code {code}"))),
    }
}

/// Returns whether a line is not about a GPU: `nvidia-smi` warns of a corrupted infoROM after its list, and the dynamic
/// linker of a library of LD_PRELOAD that is not there.
pub(crate) fn is_blank(line: &str) -> bool {
    line.trim().is_empty() || line.starts_with("WARNING:") || line.starts_with("ERROR: ld.so:")
}

/// Parses `GPU 0: NVIDIA H200 (UUID: GPU-…)`.
fn gpu(line: &str) -> Option<Gpu> {
    let (index, rest) = line.strip_prefix("GPU ")?.split_once(": ")?;
    let (name, uuid) = rest.rsplit_once(" (UUID: ")?;
    let uuid = uuid.trim_end().strip_suffix(')')?.to_owned();
    Some(Gpu { index: index.parse().ok()?, name: name.to_owned(), uuid, ..Gpu::default() })
}

/// Parses `  MIG 3g.20gb     Device  0: (UUID: MIG-…)`.
fn mig_device(line: &str) -> Option<MigDevice> {
    let (profile, uuid) = line.trim().strip_prefix("MIG ")?.rsplit_once(" (UUID: ")?;
    let uuid = uuid.strip_suffix(')')?.to_owned();
    Some(MigDevice { profile: profile.split_whitespace().next()?.to_owned(), uuid })
}

/// Parses `0, Enabled, 81920` into the index, the MIG mode and the memory; a GPU that cannot be divided has the mode
/// `[N/A]`.
fn queried(line: &str) -> Option<(u32, &str, &str)> {
    let (index, rest) = line.split_once(',')?;
    let (mode, memory) = rest.split_once(',').unwrap_or((rest, ""));
    Some((index.trim().parse().ok()?, mode.trim(), memory))
}

/// The GPUs that a container asks the engine for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum GpuRequest {
    /// None, whatever the image asks for.
    None,
    /// None, but what the image asks for by itself is not refused: the node may have GPUs that no `nvidia-smi` lists
    /// (Jetson, WSL 2).
    Unstated,
    /// All (`--gpus all`).
    All,
    /// The first so many (`--gpus 2`).
    First(u32),
    /// These, by index or UUID (`--gpus device=…`).
    Devices(Vec<String>),
}

impl GpuRequest {
    /// Returns whether the engine is asked for none.
    pub fn is_none(&self) -> bool {
        matches!(self, GpuRequest::None | GpuRequest::Unstated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A100: &str = "gpu GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-2ac4)\n";
    const MIG: &str =
        "gpu   MIG 3g.20gb     Device  0: (UUID: MIG-c6d4)\ngpu   MIG 3g.20gb     Device  1: (UUID: MIG-cba6)\n";

    fn answer(lines: &str, code: i32) -> (NvidiaSmi, Vec<Gpu>) {
        read(&format!("nvidia-smi yes\nmig 0, [N/A]\nmig 1, [N/A]\nmig exit 0\n{lines}gpu \ngpu exit {code}\n"))
    }

    fn uuids(gpus: &[Gpu]) -> String {
        GpuDevice::of(gpus).iter().map(GpuDevice::uuid).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_list_is_read_and_no_program_is_another_fact_than_one_that_fails() {
        assert_eq!(read("cores 8\n"), (NvidiaSmi::Missing, Vec::new()));
        assert_eq!(answer("", 0), (NvidiaSmi::Listed, Vec::new()));
        let (state, gpus) = answer("gpu GPU 0: NVIDIA H200 (UUID: GPU-aa)\ngpu GPU 1: NVIDIA H200 (UUID: GPU-bb)\n", 0);
        assert_eq!((state, uuids(&gpus).as_str(), gpus[1].index), (NvidiaSmi::Listed, "GPU-aa GPU-bb", 1));
        assert_eq!(gpus[0].name, "NVIDIA H200");
    }

    #[test]
    fn a_failure_has_nvidia_smis_own_words() {
        let mismatch = "Failed to initialize NVML: Driver/library version mismatch";
        let no_driver = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that \
            the latest \
                         NVIDIA driver is installed and running.";
        let lost = "Unable to determine the device handle for GPU0000:41:00.0: Unknown Error";
        let two = "gpu GPU 0: NVIDIA H200 (UUID: GPU-aa)\n";
        for (lines, code, expected) in [
            (format!("gpu {mismatch}\ngpu NVML library version: 550.144\n"), 18, mismatch),
            (format!("gpu {no_driver}\ngpu \n"), 9, no_driver),
            ("gpu No devices were found\n".into(), 6, "No devices were found"),
            ("gpu No devices were found\n".into(), 0, "No devices were found"),
            (format!("{two}gpu {lost}\ngpu GPU 2: NVIDIA H200 (UUID: GPU-cc)\n"), 0, lost),
            (two.into(), 15, "exit code 15"),
            ("gpu WARNING: infoROM is corrupted at gpu 0000:3B:00.0\n".into(), 14, "exit code 14"),
            (String::new(), 139, "exit code 139"),
            (
                "gpu   MIG 3g.20gb     Device  0: (UUID: MIG-c6d4)\n".into(),
                0,
                "MIG 3g.20gb     Device  0: (UUID: MIG-c6d4)",
            ),
        ] {
            assert_eq!(answer(&lines, code).0, NvidiaSmi::Failed(GpuQueryFailure::Said(expected.into())), "{lines}");
        }
        assert_eq!(answer(two, 124).0, NvidiaSmi::Failed(GpuQueryFailure::NoAnswer), "it was ended");
        let hung = "nvidia-smi yes\nmig exit 0\n";
        assert_eq!(read(hung).0, NvidiaSmi::Failed(GpuQueryFailure::NoAnswer), "it could not be killed");
        // it has listed everything
        let warns = format!("{two}gpu WARNING: infoROM is corrupted at gpu 0000:3B:00.0\n");
        assert_eq!(answer(&warns, 14).0, NvidiaSmi::Listed);
    }

    #[test]
    fn mig_devices_take_the_place_of_their_gpu() {
        let mig = |modes: &str| {
            read(&format!("nvidia-smi yes\n{modes}{A100}{MIG}gpu GPU 1: A100 (UUID: GPU-5d5b)\ngpu exit 0\n"))
        };
        let (state, gpus) = mig("mig 0, Enabled\nmig 1, Disabled\nmig exit 0\n");
        assert_eq!((state, uuids(&gpus).as_str()), (NvidiaSmi::Listed, "MIG-c6d4 MIG-cba6 GPU-5d5b"));
        assert_eq!(gpus[0].mig.as_ref().unwrap()[1].profile, "3g.20gb");
        let failed = |text: &str| Reading::Failed(text.to_owned());
        // in MIG mode without a MIG device
        assert_eq!(uuids(&mig("mig 0, Enabled\nmig 1, Enabled\nmig exit 0\n").1), "MIG-c6d4 MIG-cba6");
        // a driver that does not know the mode
        let unknown = "mig Field \"mig.mode.current\" is not a valid field to query.\nmig \nmig exit 2\n";
        assert_eq!(mig(unknown).0, NvidiaSmi::Listed);
        assert_eq!(uuids(&mig(unknown).1), "MIG-c6d4 MIG-cba6 GPU-5d5b");
        assert_eq!(
            mig("mig Unknown Error\nmig exit 255\n").0,
            NvidiaSmi::Failed(GpuQueryFailure::Said("Unknown Error".into()))
        );
        assert_eq!(mig("").0, NvidiaSmi::Failed(GpuQueryFailure::NoAnswer));
        // the memory of a GPU, which not all have of their own, and that of one that is lost
        let read = |memory: &str| mig(&format!("mig 0, Enabled, {memory}\nmig 1, [N/A], 81920\nmig exit 0\n"));
        for (text, memory) in
            [("40960", Reading::Known(40_960)), ("[N/A]", Reading::Absent), ("[GPU is lost]", failed("GPU is lost"))]
        {
            let (state, gpus) = read(text);
            assert_eq!((state, uuids(&gpus).as_str()), (NvidiaSmi::Listed, "MIG-c6d4 MIG-cba6 GPU-5d5b"), "{text}");
            assert_eq!((&gpus[0].memory_mib, &gpus[1].memory_mib), (&memory, &Reading::Known(81_920)));
        }
        // before driver 470
        let older = "GPU 0: A100-SXM4-40GB (UUID: GPU-5d5b)\n  MIG 1c.3g.20gb Device 0: (UUID: MIG-GPU-5d5b/1/0)";
        let (gpus, message) = list(older.lines());
        assert_eq!((uuids(&gpus).as_str(), message), ("MIG-GPU-5d5b/1/0", None));
    }

    #[test]
    fn devices_are_named_by_index_or_uuid() {
        let (_, gpus) = answer(&format!("{A100}{MIG}gpu GPU 1: A100 (UUID: GPU-5d5b)\n"), 0);
        let named = |id: &str| {
            GpuDevice::of(&gpus).iter().filter(|device| device.is(id)).map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!((named("1"), named("gpu-5D5B")), (vec!["1 GPU-5d5b".to_owned()], vec!["1 GPU-5d5b".to_owned()]));
        assert_eq!(named("MIG-cba6"), ["MIG-cba6"]);
        assert_eq!((named("0"), named("GPU-2ac4")), (vec![], vec![]), "a GPU that is divided is no device");
    }
}
