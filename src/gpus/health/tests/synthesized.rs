//! Documents as drivers from 450 to 580 write them, for several models in several states.

/// The state of a synthesized GPU, whatever its model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum State {
    Sound,
    Lost,
    UnknownError,
    WithoutEcc,
    EccErrors,
    Slowed,
    Divided,
}

pub(super) const STATES: [State; 7] = [
    State::Sound,
    State::Lost,
    State::UnknownError,
    State::WithoutEcc,
    State::EccErrors,
    State::Slowed,
    State::Divided,
];

pub(super) const DRIVERS: [&str; 12] = [
    "450.248.02",
    "460.106.00",
    "470.256.02",
    "510.108.03",
    "515.105.01",
    "525.147.05",
    "530.30.02",
    "535.183.01",
    "545.23.08",
    "550.163.01",
    "570.133.20",
    "580.159.04",
];

/// A model: its name, its memory in MiB, and what differs from others.
#[derive(Debug, Clone, Copy)]
pub(super) struct Model {
    pub(super) name: &'static str,
    pub(super) memory: u64,
    pub(super) has_ecc: bool,
    /// Rows are remapped; earlier GPUs retire pages.
    pub(super) remaps: bool,
    pub(super) has_mig: bool,
    pub(super) is_hopper: bool,
}

pub(super) const MODELS: [Model; 5] = [
    Model { name: "NVIDIA H100 80GB HBM3", memory: 81559, has_ecc: true, remaps: true, has_mig: true, is_hopper: true },
    Model { name: "NVIDIA H200", memory: 143_771, has_ecc: true, remaps: true, has_mig: true, is_hopper: true },
    Model {
        name: "NVIDIA A100-SXM4-40GB",
        memory: 40960,
        has_ecc: true,
        remaps: true,
        has_mig: true,
        is_hopper: false,
    },
    Model {
        name: "Tesla V100-SXM2-32GB",
        memory: 32768,
        has_ecc: true,
        remaps: false,
        has_mig: false,
        is_hopper: false,
    },
    Model {
        name: "NVIDIA GeForce RTX 3090",
        memory: 24576,
        has_ecc: false,
        remaps: false,
        has_mig: false,
        is_hopper: false,
    },
];

/// An element with a text.
fn leaf(name: &str, text: &str) -> String {
    format!("<{name}>{text}</{name}>\n")
}

fn element(name: &str, children: &[String]) -> String {
    format!("<{name}>\n{}</{name}>\n", children.concat())
}

/// A document as a driver writes it for eight GPUs of a model, of which the third is in this state.
pub(super) fn document(driver: &str, model: Model, state: State) -> String {
    let major = driver.split('.').next().unwrap().parse().unwrap();
    let gpu = |index| Writer { major, model, state: if index == 2 { state } else { State::Sound } }.gpu(index);
    let gpus: String = (0..8).map(gpu).collect();
    format!(
        "<?xml version=\"1.0\" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM \
         \"nvsmi_device_v12.dtd\">\n<nvidia_smi_log>\n{}{}{}{gpus}\
         </nvidia_smi_log>\n",
        leaf("timestamp", "Thu Nov 26 09:00:17 2026"),
        leaf("driver_version", driver),
        leaf("attached_gpus", "8"),
    )
}

/// Writes the element of a GPU.
struct Writer {
    /// The first number of the driver's version.
    major: u32,
    model: Model,
    state: State,
}

impl Writer {
    fn gpu(&self, index: u32) -> String {
        let value = |text: &str| self.value(text);
        let mut parts = vec![
            leaf("product_name", self.model.name),
            leaf("persistence_mode", "Enabled"),
            self.mig(),
            leaf("uuid", &format!("GPU-{index}")),
            leaf("vbios_version", &value("92.00.45.00.03")),
            self.link(),
            leaf("performance_state", &value("P0")),
            self.slowdowns(),
            element(
                "fb_memory_usage",
                &[leaf("total", &value(&format!("{} MiB", self.model.memory))), leaf("used", &value("0 MiB"))],
            ),
            element("utilization", &[leaf("gpu_util", &value("0 %"))]),
            self.errors(),
            self.repairs(),
            self.temperature(),
            self.power(),
            element("clocks", &[leaf("sm_clock", &value("1410 MHz"))]),
            element("max_clocks", &[leaf("sm_clock", &value("1410 MHz"))]),
            leaf("processes", ""),
        ];
        if self.major >= 560 {
            parts.push(leaf("gpu_recovery_action", if self.state == State::Lost { "Reboot" } else { "None" }));
        }
        if self.major >= 525 {
            parts.push(element("fabric", &[leaf("state", if self.model.is_hopper { "Completed" } else { "N/A" })]));
        }
        format!("<gpu id=\"00000000:{index:02X}:00.0\">\n{}</gpu>\n", parts.concat())
    }

    /// Returns the text that a lost GPU reports for every value that is not stored in its driver.
    fn value(&self, text: &str) -> String {
        match self.state {
            State::Lost if self.major < 525 => "GPU is lost".to_owned(),
            State::Lost => "[GPU is lost]".to_owned(),
            _ => text.to_owned(),
        }
    }

    fn counts_errors(&self) -> bool {
        self.model.has_ecc && self.state != State::WithoutEcc
    }

    fn ecc(&self, text: &str) -> String {
        if self.counts_errors() { self.value(text) } else { "N/A".to_owned() }
    }

    fn mig(&self) -> String {
        let is_divided = self.state == State::Divided && self.model.has_mig;
        let mode = if is_divided { "Enabled" } else { "Disabled" };
        let mode = if self.model.has_mig { mode } else { "N/A" };
        let counts = element("ecc_error_count", &[leaf("volatile_count", "0")]);
        let device = |index: &str| element("mig_device", &[leaf("index", index), counts.clone()]);
        let devices = match is_divided {
            true => element("mig_devices", &[device("0"), device("1")]),
            false => leaf("mig_devices", "None"),
        };
        element("mig_mode", &[leaf("current_mig", mode), leaf("pending_mig", mode)]) + &devices
    }

    fn link(&self) -> String {
        let [max_gen, now_gen, width] = ["4", "1", "16x"].map(|text| self.value(text));
        let generation = element("pcie_gen", &[leaf("max_link_gen", &max_gen), leaf("current_link_gen", &now_gen)]);
        let width = element("link_widths", &[leaf("max_link_width", &width), leaf("current_link_width", &width)]);
        element("pci", &[element("pci_gpu_link_info", &[generation, width])])
    }

    fn slowdowns(&self) -> String {
        let word = if self.major < 535 { "throttle" } else { "event" };
        let reason = |key: &str, text: &str| leaf(&format!("clocks_{word}_reason_{key}"), &self.value(text));
        let slowed = if self.state == State::Slowed { "Active" } else { "Not Active" };
        let reasons =
            [reason("gpu_idle", "Not Active"), reason("hw_slowdown", slowed), reason("sw_power_cap", "Active")];
        element(&format!("clocks_{word}_reasons"), &reasons)
    }

    fn errors(&self) -> String {
        let errors = if self.state == State::EccErrors { "3" } else { "0" };
        let count = |name: &str, text: &str| leaf(name, &self.ecc(text));
        let counts = match self.model.remaps {
            false => element("double_bit", &[count("device_memory", errors), count("total", errors)]),
            true if self.major < 550 => count("sram_uncorrectable", "0") + &count("dram_uncorrectable", errors),
            true => {
                let sram = count("sram_uncorrectable_parity", "0") + &count("sram_uncorrectable_secded", "0");
                sram + &count("dram_uncorrectable", errors)
            }
        };
        let mode = match (self.model.has_ecc, self.counts_errors()) {
            (false, _) => "N/A",
            (true, false) => "Disabled",
            (true, true) => "Enabled",
        };
        let of = |since: &str| element(since, std::slice::from_ref(&counts));
        element("ecc_mode", &[leaf("current_ecc", mode)]) + &element("ecc_errors", &[of("volatile"), of("aggregate")])
    }

    fn repairs(&self) -> String {
        let pages = if self.model.remaps { "N/A".to_owned() } else { self.ecc("No") };
        let pages = element("retired_pages", &[leaf("pending_blacklist", &pages), leaf("pending_retirement", &pages)]);
        let pending = self.ecc(if self.state == State::EccErrors { "Yes" } else { "No" });
        pages
            + &match (self.model.remaps, self.major) {
                (false, ..470) => String::new(),
                (false, _) => leaf("remapped_rows", "N/A"),
                (true, _) => {
                    let failure = leaf("remapped_row_failure", &self.ecc("No"));
                    element("remapped_rows", &[leaf("remapped_row_pending", &pending), failure])
                }
            }
    }

    fn temperature(&self) -> String {
        let limit = match self.model.is_hopper && self.major >= 535 {
            true => leaf("gpu_temp_tlimit", &self.value("40 C")),
            false => leaf("gpu_temp_slow_threshold", &self.value("89 C")),
        };
        element("temperature", &[leaf("gpu_temp", &self.value("40 C")), limit])
    }

    fn power(&self) -> String {
        let is_unknown = self.state == State::UnknownError;
        let draw = if is_unknown { "[Unknown Error]".to_owned() } else { self.value("70.10 W") };
        let limit = self.value("400.00 W");
        let default = leaf("default_power_limit", &limit);
        match self.major {
            ..525 => element("power_readings", &[leaf("power_draw", &draw), leaf("power_limit", &limit), default]),
            525..550 => {
                let now = leaf("current_power_limit", &limit);
                element("gpu_power_readings", &[leaf("power_draw", &draw), now, default])
            }
            _ => {
                let draws = leaf("average_power_draw", "N/A") + &leaf("instant_power_draw", &draw);
                element("gpu_power_readings", &[draws, leaf("current_power_limit", &limit), default])
            }
        }
    }
}
