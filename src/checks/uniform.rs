//! Rules on values that must be equal on all nodes.

use super::Severity::{Error, Note, Warning};
use super::{Finding, NodeView, Severity};
use crate::inventory::Node;
use crate::launch::VERSIONS;
use crate::text::nodeset;
use std::cmp::Reverse;

/// The finding about the nodes whose value is not that of most; it has all values as `gpu[01-07] 535.161 · gpu08 550.54`. `None` if
/// there is one value. In a tie, the master's value counts as right.
pub(super) fn differing(
    severity: Severity,
    check: &'static str,
    what: &str,
    values: Vec<(&Node, String)>,
) -> Option<Finding> {
    let of_master = values.iter().find(|(node, _)| node.master).map(|(_, value)| value.clone());
    let mut groups = nodeset::alike(values.into_iter().map(|(node, value)| (value, node.name.clone())));
    groups.sort_by_key(|(value, nodes)| (Reverse(nodes.len()), Some(value) != of_master.as_ref()));
    if groups.len() < 2 {
        return None;
    }
    let texts: Vec<String> = groups.iter().map(|(value, nodes)| format!("{} {value}", nodeset::fold(nodes))).collect();
    let odd = groups.into_iter().skip(1).flat_map(|(_, nodes)| nodes).collect();
    Some(Finding::of_nodes(severity, check, odd, format!("{what}: {}", texts.join(" · "))))
}

/// The frameworks in an image, with their keys in [`Versions`](super::Versions).
const FRAMEWORKS: [(&str, &str); 4] =
    [("PyTorch", "torch"), ("TensorFlow", "tensorflow"), ("MXNet", "mxnet"), ("JAX", "jax")];

/// Versions that differ, and what the images have.
pub(super) fn examine(views: &[NodeView<'_>]) -> Vec<Finding> {
    let compare = |severity, what: &str, version: &dyn Fn(&NodeView<'_>) -> Option<String>| {
        let versions = views.iter().filter_map(|view| Some((view.node, version(view)?))).collect();
        differing(severity, "versions", &format!("the {what} differs"), versions)
    };
    let mut found = Vec::new();
    let libraries = VERSIONS.into_iter().chain([("CUDA", "cuda"), ("NCCL", "nccl")]);
    for (what, key) in [("Python", "python")].into_iter().chain(FRAMEWORKS).chain(libraries) {
        let version = |view: &NodeView<'_>| {
            let versions = view.inside.filter(|versions| !versions.is_empty())?;
            Some(versions.get(key).map_or("none", String::as_str).to_owned())
        };
        found.extend(compare(Error, what, &version).map(|finding| {
            finding.explain(
                "ranks with different versions may hang, or compute different results",
                "load the same image on every node (docker save IMAGE | ssh NODE sudo docker load), then hvdctl up",
            )
        }));
    }
    let driver = compare(Warning, "NVIDIA driver", &|view| view.details?.driver.clone());
    found.extend(driver.map(|finding| {
        finding.explain(
            "an older driver may be too old for the image, and speeds may differ",
            "install the same driver on every node, and restart the nodes",
        )
    }));
    found.extend(compare(Note, "Docker Engine", &|view| Some(view.engine?.version.to_owned())));
    found.extend(compare(Note, "kernel", &|view| view.details?.kernel.clone()));
    found.extend(views.iter().filter_map(image));
    found
}

/// The launchers and frameworks of a node's image.
fn image(view: &NodeView<'_>) -> Option<Finding> {
    let versions = view.inside?;
    let launchers = versions.get("launchers")?;
    let version = |(name, key): (&str, &str)| versions.get(key).map(|version| format!("{name} {version}"));
    let frameworks: Vec<String> = FRAMEWORKS.into_iter().chain([("mpi4py", "mpi4py")]).filter_map(version).collect();
    let frameworks = if frameworks.is_empty() { "none".to_owned() } else { frameworks.join(", ") };
    Some(view.note("launchers", format!("the image has {launchers}; frameworks: {frameworks}")))
}
