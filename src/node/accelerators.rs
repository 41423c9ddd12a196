//! Accelerators of other makers than NVIDIA, which containers get by `devices` of the inventory alone.

/// The most accelerators that a node is believed to have.
const MOST: u32 = 64;

/// The maker of an accelerator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Maker {
    /// AMD.
    Amd,
    /// Intel's GPUs for data centers.
    Intel,
    /// Habana, of Intel.
    Gaudi,
    /// AWS.
    Neuron,
    /// Huawei.
    Ascend,
    /// Google.
    Tpu,
}

/// The accelerators of one maker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accelerators {
    /// Their maker.
    pub maker: Maker,
    /// Their number.
    pub count: u32,
}

impl Accelerators {
    /// Parses `MAKER COUNT`.
    pub fn parse(value: &str) -> Option<Accelerators> {
        let (maker, count) = value.split_once(' ')?;
        let maker = match maker {
            "amd" => Maker::Amd,
            "intel" => Maker::Intel,
            "gaudi" => Maker::Gaudi,
            "neuron" => Maker::Neuron,
            "ascend" => Maker::Ascend,
            "tpu" => Maker::Tpu,
            _ => return None,
        };
        let count = count.parse().ok().filter(|count| (1..=MOST).contains(count))?;
        Some(Accelerators { maker, count })
    }

    /// Returns what one of them is called.
    pub fn name(self) -> &'static str {
        match self.maker {
            Maker::Amd => "AMD GPU",
            Maker::Intel => "Intel GPU",
            Maker::Gaudi => "Intel Gaudi accelerator",
            Maker::Neuron => "AWS Neuron device",
            Maker::Ascend => "Ascend NPU",
            Maker::Tpu => "TPU",
        }
    }

    /// Returns the software that the image needs for them.
    pub fn software(self) -> &'static str {
        match self.maker {
            Maker::Amd => "ROCm",
            Maker::Intel => "Intel's oneAPI",
            Maker::Gaudi => "Intel Gaudi's software",
            Maker::Neuron => "the Neuron SDK",
            Maker::Ascend => "CANN",
            Maker::Tpu => "libtpu",
        }
    }

    /// Returns the devices of the node that a container needs.
    pub fn devices(self) -> Vec<String> {
        let numbered = |prefix: &str| (0..self.count).map(|number| format!("{prefix}{number}")).collect();
        let (mut devices, others): (Vec<String>, &[&str]) = match self.maker {
            Maker::Amd => (Vec::new(), &["/dev/kfd", "/dev/dri"]),
            Maker::Intel => (Vec::new(), &["/dev/dri"]),
            Maker::Gaudi => (Vec::new(), &["/dev/accel"]),
            Maker::Neuron => (numbered("/dev/neuron"), &[]),
            Maker::Ascend => (numbered("/dev/davinci"), &["/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"]),
            Maker::Tpu => (numbered("/dev/accel"), &[]),
        };
        devices.extend(others.iter().map(|device| (*device).to_owned()));
        devices
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accelerators_are_read_and_name_their_devices() {
        let of = |value: &str| Accelerators::parse(value).map(|found| found.devices().join(" "));
        assert_eq!(of("amd 8").as_deref(), Some("/dev/kfd /dev/dri"));
        assert_eq!(of("neuron 2").as_deref(), Some("/dev/neuron0 /dev/neuron1"));
        assert_eq!(of("tpu 1").as_deref(), Some("/dev/accel0"));
        for none in ["", "amd", "amd x", "amd 0", "amd 65", "amd -1", "other 1"] {
            assert_eq!(of(none), None, "{none}");
        }
    }
}
