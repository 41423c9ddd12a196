//! The resources that pods ask for, the taints that they tolerate, and the check that GPUs of the inventory are among
//! them.

use super::patch::{containers, pods};
use super::yaml::{YamlMap, YamlValue};
use super::{ExportRequest, PodRequest};
use crate::error::Error;
use crate::inventory::{Gpus, Node};
use crate::text::nodeset;
use crate::text::quote::readable;
use serde::Serialize;

/// The resource by which the device plugin of NVIDIA gives GPUs.
pub(super) const GPU: &str = "nvidia.com/gpu";
/// Beginnings of resources that are accelerators, as their device plugins name them.
const ACCELERATORS: &[&str] = &[
    "nvidia.com/gpu",
    "nvidia.com/mig-",
    "amd.com/gpu",
    "gpu.intel.com/i915",
    "gpu.intel.com/xe",
    "habana.ai/gaudi",
    "aws.amazon.com/neuron",
    "google.com/tpu",
    "huawei.com/Ascend",
];
/// Resources that share one accelerator: their numbers are memory or percentages.
const SHARES: &[&str] = &["nvidia.com/gpumem", "nvidia.com/gpucores", "gpu.intel.com/i915_monitoring"];
/// Parts of the names of resources that are network devices.
const NETWORK: &[&str] = &["rdma", "efa", "hostdev", "sriov", "hca", "netdevice"];
/// Beginnings of the devices of accelerators.
const DEVICES: &[&str] = &[
    "/dev/kfd",
    "/dev/dri",
    "/dev/accel",
    "/dev/habanalabs",
    "/dev/neuron",
    "/dev/davinci",
    "/dev/nvidia",
    "/dev/dxg",
];

/// A resource of each pod that has ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GivenResource {
    /// Its name.
    pub name: String,
    /// Its quantity.
    pub quantity: String,
}

impl GivenResource {
    /// Parses `NAME=N`.
    ///
    /// # Errors
    /// A name or number that Kubernetes does not take as a resource.
    pub fn parse(text: &str) -> Result<GivenResource, String> {
        const SHAPE: &str = "expected NAME=N, for example amd.com/gpu=4";
        let (name, quantity) = text.split_once('=').ok_or(SHAPE)?;
        let is_own = matches!(name, "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-");
        if !is_own && !name.split_once('/').is_some_and(|(domain, name)| is_domain(domain) && is_name(name)) {
            return Err(format!("{SHAPE}; a device plugin's resource is DOMAIN/NAME"));
        }
        // of other resources only whole ones can be had
        let number = quantity.trim_end_matches(|c: char| is_own && "mkKMGTPEi".contains(c));
        let is_number = number.bytes().all(|b| b.is_ascii_digit() || (is_own && b == b'.'));
        let is_number = is_number && number.starts_with(|c: char| c.is_ascii_digit()) && number.len() <= 15;
        match is_number {
            true => Ok(GivenResource { name: name.to_owned(), quantity: quantity.to_owned() }),
            false => Err(format!("{name} needs a {}number", if is_own { "" } else { "whole " })),
        }
    }

    /// Returns the number of accelerators, if it is such a resource.
    fn accelerators(&self) -> Option<u32> {
        let is_one = ACCELERATORS.iter().any(|start| self.name.starts_with(start))
            && !SHARES.iter().any(|share| self.name.starts_with(share));
        is_one.then(|| self.quantity.parse().unwrap_or(u32::MAX))
    }
}

impl PodRequest {
    /// Returns the accelerators of a pod that options give: the name of their resource, and their number.
    ///
    /// # Errors
    /// Several of them.
    pub(super) fn accelerators(&self) -> Result<Option<(&str, u32)>, Error> {
        let given = self.resources.iter().filter_map(|one| Some((one.name.as_str(), one.accelerators()?)));
        let of_option = self.gpus.filter(|gpus| *gpus > 0).map(|gpus| (GPU, gpus));
        let all: Vec<(&str, u32)> = given.chain(of_option).collect();
        match all.as_slice() {
            [] => Ok(self.gpus.map(|gpus| (GPU, gpus))),
            [one] => Ok(Some(*one)),
            [(one, _), (other, _), ..] => Err(Error::usage(
                format!("the options give {one} and {other}, but each number would be that of the ranks of a pod"),
                "name one of them by --resource NAME=N without --gpus-per-node, and others by --patch",
            )),
        }
    }
}

/// A taint that pods tolerate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Toleration {
    key: String,
    operator: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    effect: Option<String>,
}

impl Toleration {
    /// Parses `KEY[=VALUE][:EFFECT]`, as `kubectl taint` has it.
    ///
    /// # Errors
    /// A text that Kubernetes does not take as a taint.
    pub fn parse(text: &str) -> Result<Toleration, String> {
        const SHAPE: &str = "expected KEY[=VALUE][:EFFECT], as `kubectl describe node` shows a taint";
        let (taint, effect) = match text.rsplit_once(':') {
            Some((taint, effect)) => (taint, Some(effect.to_owned())),
            None => (text, None),
        };
        let (key, value) = match taint.split_once('=') {
            Some((key, value)) => (key, Some(value.to_owned())),
            None => (taint, None),
        };
        let is_key = match key.split_once('/') {
            Some((domain, name)) => is_domain(domain) && is_name(name),
            None => is_name(key),
        };
        if !is_key || !value.as_deref().is_none_or(|value| value.is_empty() || is_name(value)) {
            return Err(SHAPE.to_owned());
        }
        if !effect.as_deref().is_none_or(|effect| ["NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&effect)) {
            return Err(format!("{SHAPE}; EFFECT is NoSchedule, PreferNoSchedule or NoExecute"));
        }
        // a taint without a value has the empty one
        let operator = if value.is_some() { "Equal" } else { "Exists" };
        Ok(Toleration { key: key.to_owned(), operator, value, effect })
    }
}

fn is_domain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(|part| is_name(part) && !part.contains('_'))
}

/// Returns true for a name as labels and resources have it.
fn is_name(text: &str) -> bool {
    let is_end = |c: char| c.is_ascii_alphanumeric();
    text.len() <= 63
        && text.starts_with(is_end)
        && text.ends_with(is_end)
        && text.chars().all(|c| is_end(c) || "-_.".contains(c))
}

/// Checks that a document asks for GPUs if the inventory has some. Returns a warning where it may do without.
///
/// # Errors
/// A document whose pods would run without GPUs although no option says so.
pub(super) fn check_gpus(request: &ExportRequest<'_>, document: &YamlMap) -> Result<Option<String>, Error> {
    let has_some = |node: &&Node| {
        let is_given = match &node.gpus {
            Gpus::Count(count) => *count > 0,
            Gpus::List(_) | Gpus::All => true,
            Gpus::Auto => false,
        };
        is_given || !accelerator_devices(node).is_empty()
    };
    let nodes: Vec<&Node> = request.nodes.iter().filter(has_some).collect();
    if nodes.is_empty() || pods(document).iter().any(|pod| asks_for_devices(pod)) {
        return Ok(None);
    }
    let devices = nodes.first().map(|node| accelerator_devices(node)).unwrap_or_default();
    let what = if devices.is_empty() { "GPUs".to_owned() } else { format!("devices {}", devices.join(", ")) };
    let names: Vec<String> = nodes.iter().map(|node| node.name.clone()).collect();
    let what = format!("the pods ask for no GPU, but in the inventory {} has {what}", nodeset::fold(&names));
    match request.allow_missing || request.pods.accelerators()?.is_some_and(|(_, count)| count == 0) {
        true => Ok(Some(what)),
        false => Err(Error::usage(
            what,
            "name the resource of the device plugin: --resource amd.com/gpu=N (`kubectl describe node` lists them under \
             Allocatable); or export without GPUs: --gpus-per-node 0",
        )),
    }
}

/// The name of an MPIJob's container without ranks.
const WITHOUT_RANKS: &str = "launcher";

/// Returns a warning for each container whose memory limit its `/dev/shm` reaches, which counts as its memory.
pub(super) fn shared_memory(document: &YamlMap) -> Vec<String> {
    let mut warnings: Vec<String> = pods(document).into_iter().flat_map(shared_memory_of).collect();
    warnings.dedup();
    warnings
}

fn shared_memory_of(pod: &YamlMap) -> Vec<String> {
    let volumes: Vec<&YamlMap> = pod.map("spec").into_iter().flat_map(|spec| spec.maps("volumes")).collect();
    let size_of = |name: &str| {
        let volume = volumes.iter().find(|volume| volume.text("name") == Some(name))?.map("emptyDir")?;
        volume.get("sizeLimit").filter(|_| volume.text("medium") == Some("Memory"))
    };
    let ranks = containers(pod).filter(|container| container.text("name") != Some(WITHOUT_RANKS));
    let warning = |container: &YamlMap| {
        let mounted = container.maps("volumeMounts").find(|mount| mount.text("mountPath") == Some("/dev/shm"))?;
        let size = size_of(mounted.text("name")?)?;
        let limit = container.map("resources")?.map("limits")?.get("memory")?;
        (amount(limit)? <= amount(size)?).then(|| {
            format!(
                "the memory limit of the container {}, {}, includes its /dev/shm, which may grow to {}: what fills it is \
                 killed (OOMKilled); raise the limit (--resource memory=N), or lower shm_size in the inventory",
                readable(container.text("name").unwrap_or_default()),
                written(limit),
                written(size)
            )
        })
    };
    ranks.filter_map(warning).collect()
}

fn written(quantity: &YamlValue) -> String {
    match quantity {
        YamlValue::Text(text) => readable(text),
        YamlValue::Integer(number) => number.to_string(),
        YamlValue::Float(number) => number.to_string(),
        other => other.kind().to_owned(),
    }
}

/// Returns a quantity of Kubernetes as a number, if it is one
/// (`staging/src/k8s.io/apimachinery/pkg/api/resource/quantity.go`).
fn amount(quantity: &YamlValue) -> Option<f64> {
    let text = match quantity {
        YamlValue::Text(text) => text,
        YamlValue::Integer(number) => return Some(*number as f64),
        YamlValue::Float(number) => return Some(*number),
        _ => return None,
    };
    // also a number with an exponent, as 1e9
    if let Ok(number) = text.parse::<f64>() {
        return number.is_finite().then_some(number);
    }
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[number.len()..] {
        "m" => 1e-3,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "E" => 1e18,
        "Ki" => 1024.0,
        "Mi" => 1024f64.powi(2),
        "Gi" => 1024f64.powi(3),
        "Ti" => 1024f64.powi(4),
        "Pi" => 1024f64.powi(5),
        "Ei" => 1024f64.powi(6),
        _ => return None,
    };
    number.parse::<f64>().ok().map(|number| number * unit)
}

/// Returns the devices of a node that are accelerators.
fn accelerator_devices(node: &Node) -> Vec<String> {
    let sources = node.container.devices.iter().map(|device| device.source.as_str());
    let found = sources.filter(|source| DEVICES.iter().any(|start| source.starts_with(start)));
    found.map(readable).collect()
}

/// Returns true if a container of the pod asks for a resource of a device plugin that is no network device, or for a
/// resource claim.
fn asks_for_devices(pod: &YamlMap) -> bool {
    let is_device = |name: &str| name.contains('/') && !NETWORK.iter().any(|part| name.contains(part));
    let is_some =
        |value: &YamlValue| !matches!(value, YamlValue::Text(zero) if zero == "0") && *value != YamlValue::Integer(0);
    containers(pod).filter_map(|container| container.map("resources")).any(|resources| {
        let lists = ["limits", "requests"].into_iter().filter_map(|list| resources.map(list));
        let mut all = lists.flat_map(|list| &list.0);
        all.any(|(name, value)| is_device(name) && is_some(value)) || resources.maps("claims").next().is_some()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_those_of_kubernetes() {
        let of = |text: &str| amount(&YamlValue::Text(text.to_owned()));
        for (text, expected) in
            [("8Gi", 8_589_934_592.0), ("1.5G", 1.5e9), ("8e9", 8e9), ("1000m", 1.0), ("512", 512.0), ("2E", 2e18)]
        {
            assert_eq!(of(text), Some(expected), "{text}");
        }
        assert_eq!(amount(&YamlValue::Integer(7)), Some(7.0));
        for bad in ["", "Gi", "8GiB", "inf", "8 Gi", "x"] {
            assert_eq!(of(bad), None, "{bad}");
        }
    }

    #[test]
    fn resources_and_tolerations_are_those_of_kubernetes() {
        let of = |text: &str| GivenResource::parse(text).map(|found| (found.quantity.clone(), found.accelerators()));
        assert_eq!(of("amd.com/gpu=4").unwrap(), ("4".to_owned(), Some(4)));
        assert_eq!(of("nvidia.com/mig-1g.10gb=2").unwrap().1, Some(2));
        assert_eq!(of("nvidia.com/gpu.shared=2").unwrap().1, Some(2));
        for other in ["vpc.amazonaws.com/efa=1", "nvidia.com/gpumem=3000", "cpu=1.5", "memory=16Gi", "cpu=500m"] {
            assert_eq!(of(other).unwrap().1, None, "{other}");
        }
        for bad in [
            "",
            "gpu=1",
            "amd.com/gpu",
            "amd.com/gpu=",
            "amd.com/gpu=1.5",
            "amd.com/gpu=-1",
            "a b/c=1",
            "/gpu=1",
            "cpu=Gi",
        ] {
            assert!(of(bad).is_err(), "{bad}");
        }
        let of = |text: &str| Toleration::parse(text).map(|found| serde_json::to_string(&found).unwrap());
        assert_eq!(of("nvidia.com/gpu").unwrap(), r#"{"key":"nvidia.com/gpu","operator":"Exists"}"#);
        assert_eq!(
            of("dedicated=train:NoSchedule").unwrap(),
            r#"{"key":"dedicated","operator":"Equal","value":"train","effect":"NoSchedule"}"#
        );
        assert_eq!(of("a=:NoExecute").unwrap(), r#"{"key":"a","operator":"Equal","value":"","effect":"NoExecute"}"#);
        for bad in ["", ":NoSchedule", "a:Never", "a b", "a=b c", "/a", "=x"] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }
}
