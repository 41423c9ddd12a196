//! The GPUs that a node's CDI files describe to Podman (`nvidia-ctk cdi generate`).

use super::gpus::{Gpu, GpuDevice, GpuRequest};
use std::collections::BTreeSet;

/// The name of all GPUs.
const ALL: &str = "all";

/// The command that describes the GPUs of a node as they are now.
pub const GENERATE: &str = "sudo nvidia-ctk cdi generate --output=";

/// The file that it writes by default.
const FILE: &str = "/etc/cdi/nvidia.yaml";

/// The devices that the files offer: the names after `nvidia.com/gpu=`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CdiDevices {
    /// The files that describe GPUs.
    files: Vec<String>,
    /// The files that cannot be read.
    unreadable: Vec<String>,
    names: BTreeSet<String>,
}

impl CdiDevices {
    /// Reads a line of `node/facts.sh`: `read`, `file PATH`, `unreadable PATH` or `name NAME`.
    pub(super) fn read(&mut self, line: &str) {
        match line.split_once(' ') {
            Some(("file", path)) => self.files.push(path.to_owned()),
            Some(("unreadable", path)) => self.unreadable.push(path.to_owned()),
            Some(("name", name)) => drop(self.names.insert(name.to_owned())),
            _ => {}
        }
    }

    fn has(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// Returns the name that the files have for a device, of those that `nvidia-ctk` gives by index or by UUID.
    fn name_of(&self, device: GpuDevice<'_>) -> Option<String> {
        let place = device.place();
        let prefix = if device.mig.is_some() { "mig" } else { "gpu" };
        let names = [device.uuid().to_owned(), place.clone(), format!("{prefix}{place}")];
        names.into_iter().find(|name| self.has(name))
    }

    /// Returns a request of a node with these GPUs by names that the files have, as far as they describe what it asks
    /// for: the inventory may name a GPU by its UUID, and the file by its index.
    pub(super) fn translate(&self, request: GpuRequest, gpus: &[Gpu]) -> GpuRequest {
        let devices = GpuDevice::of(gpus);
        let named = |id: String| match devices.iter().find(|device| device.is(&id)) {
            Some(device) if !self.has(&id) => self.name_of(*device).unwrap_or(id),
            _ => id,
        };
        match request {
            GpuRequest::First(count) if (0..count).any(|index| !self.has(&index.to_string())) => {
                let names: Option<Vec<String>> =
                    devices.iter().take(count as usize).map(|device| self.name_of(*device)).collect();
                let all = names.filter(|names| names.len() == count as usize);
                all.map_or(GpuRequest::First(count), GpuRequest::Devices)
            }
            GpuRequest::Devices(ids) => GpuRequest::Devices(ids.into_iter().map(named).collect()),
            request => request,
        }
    }

    /// Returns what is wrong with the files for a request that is translated, with what to do; `None` if Podman finds
    /// all that is asked for.
    pub fn fault(&self, request: &GpuRequest, gpus: &[Gpu]) -> Option<(String, String)> {
        if request.is_none() {
            return None;
        }
        if let Some(path) = self.unreadable.first() {
            let message =
                format!("{path}, which describes devices to Podman, cannot be read by the user of its engine");
            return Some((message, format!("make it readable, on the node: sudo chmod a+r {path}")));
        }
        let Some(file) = self.files.last() else {
            let message = "no CDI file in /etc/cdi or /var/run/cdi describes its GPUs to Podman";
            let hint =
                format!("install nvidia-container-toolkit on the node, then `{GENERATE}{FILE}`, or set `gpus = 0`");
            return Some((message.to_owned(), hint));
        };
        let missing = self.missing(request, gpus);
        (!missing.is_empty()).then(|| {
            let written = if file.ends_with(".yaml") { file } else { FILE };
            let message = format!("{} does not describe {} to Podman", self.files.join(" and "), missing.join(", "));
            (message, format!("generate it again, on the node: {GENERATE}{written}"))
        })
    }

    fn missing(&self, request: &GpuRequest, gpus: &[Gpu]) -> Vec<String> {
        let unnamed = |id: &String| !self.has(id);
        let quoted = |id: String| format!("nvidia.com/gpu={id}");
        match request {
            GpuRequest::None | GpuRequest::Unstated => Vec::new(),
            GpuRequest::First(count) => (0..*count).map(|i| i.to_string()).filter(unnamed).map(quoted).collect(),
            GpuRequest::Devices(ids) => ids.iter().filter(|id| unnamed(id)).cloned().map(quoted).collect(),
            GpuRequest::All if !self.has(ALL) => vec![quoted(ALL.to_owned())],
            // `all` are those of which the file was written, which may have names of their owner's choice
            GpuRequest::All if self.names.iter().any(|name| is_common(name)) => {
                let devices = GpuDevice::of(gpus).into_iter();
                let lacking = devices.filter(|device| self.name_of(*device).is_none());
                lacking.map(|device| format!("the GPU {device}")).collect()
            }
            GpuRequest::All => Vec::new(),
        }
    }
}

/// Returns true if `nvidia-ctk` generates names of this form.
fn is_common(name: &str) -> bool {
    let index = name.strip_prefix("gpu").or(name.strip_prefix("mig")).unwrap_or(name);
    let is_index = !index.is_empty() && index.bytes().all(|byte| byte.is_ascii_digit() || byte == b':');
    is_index || name.starts_with("GPU-") || name.starts_with("MIG-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::gpus::list;

    const LISTED: &str = "GPU 0: NVIDIA H200 (UUID: GPU-aa)\nGPU 1: NVIDIA H200 (UUID: GPU-bb)";
    const MIG: &str = "GPU 0: NVIDIA H200 (UUID: GPU-aa)\n  MIG 3g.71gb Device 0: (UUID: MIG-x)\n  \
                       MIG 3g.71gb Device 1: (UUID: MIG-y)\nGPU 1: NVIDIA H200 (UUID: GPU-bb)";

    fn offered(names: &str) -> CdiDevices {
        let mut cdi = CdiDevices::default();
        cdi.read("read");
        cdi.read("file /etc/cdi/nvidia.yaml");
        names.split_whitespace().for_each(|name| cdi.read(&format!("name {name}")));
        cdi
    }

    fn devices(ids: &[&str]) -> GpuRequest {
        GpuRequest::Devices(ids.iter().map(|id| (*id).to_owned()).collect())
    }

    /// Returns the request that Podman gets, and the missing devices.
    fn asked(names: &str, request: GpuRequest, listed: &str) -> (GpuRequest, String) {
        let (gpus, cdi) = (list(listed.lines()).0, offered(names));
        let request = cdi.translate(request, &gpus);
        let fault = cdi.fault(&request, &gpus).map(|(message, _)| message).unwrap_or_default();
        let missing = fault.strip_prefix("/etc/cdi/nvidia.yaml does not describe ").unwrap_or(&fault);
        (request, missing.strip_suffix(" to Podman").unwrap_or(missing).to_owned())
    }

    #[test]
    fn a_device_has_the_name_that_the_file_gives_it() {
        for (names, request, expected) in [
            ("0 1 all", GpuRequest::All, GpuRequest::All),
            ("0 1 all", devices(&["GPU-bb", "0"]), devices(&["1", "0"])),
            ("0 1 all", devices(&["gpu-BB"]), devices(&["1"])),
            ("gpu0 gpu1 all", devices(&["GPU-bb", "0"]), devices(&["gpu1", "gpu0"])),
            ("GPU-aa GPU-bb all", devices(&["GPU-bb", "0"]), devices(&["GPU-bb", "GPU-aa"])),
            ("0 1 GPU-aa GPU-bb all", devices(&["GPU-bb", "0"]), devices(&["GPU-bb", "0"])),
            ("0 1 all", GpuRequest::First(1), GpuRequest::First(1)),
            ("GPU-aa GPU-bb all", GpuRequest::First(1), devices(&["GPU-aa"])),
            ("all", GpuRequest::All, GpuRequest::All),
            ("fast slow all", GpuRequest::All, GpuRequest::All),
            ("fast slow all", devices(&["fast"]), devices(&["fast"])),
        ] {
            assert_eq!(asked(names, request, LISTED), (expected, String::new()), "{names}");
        }
        for (names, request, expected) in [
            ("0:0 0:1 1 all", devices(&["MIG-y", "1"]), devices(&["0:1", "1"])),
            ("mig0:0 mig0:1 gpu1 all", devices(&["MIG-x"]), devices(&["mig0:0"])),
            ("MIG-x MIG-y GPU-bb all", devices(&["MIG-x", "GPU-bb"]), devices(&["MIG-x", "GPU-bb"])),
            ("0:0 0:1 1 all", GpuRequest::All, GpuRequest::All),
        ] {
            assert_eq!(asked(names, request, MIG), (expected, String::new()), "{names}");
        }
    }

    #[test]
    fn what_the_file_lacks_is_named() {
        for (names, request, listed, missing) in [
            // a GPU was added, or divided, after the file was written
            ("0 all", GpuRequest::All, LISTED, "the GPU 1 GPU-bb"),
            ("GPU-aa all", GpuRequest::All, LISTED, "the GPU 1 GPU-bb"),
            ("0 1 all", GpuRequest::All, MIG, "the GPU MIG-x, the GPU MIG-y"),
            ("0:0 1 all", devices(&["MIG-y", "1"]), MIG, "nvidia.com/gpu=MIG-y"),
            ("0 all", devices(&["GPU-bb"]), LISTED, "nvidia.com/gpu=GPU-bb"),
            ("0 all", devices(&["0", "1"]), LISTED, "nvidia.com/gpu=1"),
            ("0 all", GpuRequest::First(2), LISTED, "nvidia.com/gpu=1"),
            ("0 1", GpuRequest::All, LISTED, "nvidia.com/gpu=all"),
            ("", GpuRequest::All, LISTED, "nvidia.com/gpu=all"),
            ("", GpuRequest::None, LISTED, ""),
            ("", GpuRequest::Unstated, LISTED, ""),
        ] {
            assert_eq!(asked(names, request, listed).1, missing, "{names}");
        }
        // the command replaces the file that there is
        let mut cdi = offered("0 all");
        let gpus = list(LISTED.lines()).0;
        let hint = |cdi: &CdiDevices| cdi.fault(&GpuRequest::All, &gpus).unwrap().1;
        assert!(hint(&cdi).ends_with("sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"), "{}", hint(&cdi));
        cdi.read("file /var/run/cdi/nvidia.yaml");
        assert!(hint(&cdi).ends_with("--output=/var/run/cdi/nvidia.yaml"), "{}", hint(&cdi));
        cdi.read("unreadable /etc/cdi/x.yaml");
        assert!(hint(&cdi).ends_with("sudo chmod a+r /etc/cdi/x.yaml"), "{}", hint(&cdi));
        let (message, hint) = CdiDevices::default().fault(&GpuRequest::First(1), &gpus).unwrap();
        assert!(message.starts_with("no CDI file") && hint.contains("--output=/etc/cdi/nvidia.yaml`, or"), "{hint}");
    }
}
