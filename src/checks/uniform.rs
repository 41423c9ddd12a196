//! What has to be the same on every node, and who is the odd one out.

use super::{Finding, NodeView, Severity};
use crate::inventory::Node;
use crate::launch::VERSIONS;
use crate::text::nodeset;

/// Nodes by what they have.
pub(super) struct Groups {
    /// The one that the others are measured against comes first: the largest, and among equals the master's.
    groups: Vec<(String, Vec<String>)>,
}

impl Groups {
    /// Groups nodes by a value; none where all have the same.
    pub(super) fn of(values: &[(&Node, String)]) -> Option<Groups> {
        let mut groups: Vec<(String, Vec<String>)> = Vec::new();
        for (node, value) in values {
            match groups.iter_mut().find(|(other, _)| other == value) {
                Some((_, nodes)) => nodes.push(node.name.clone()),
                None => groups.push((value.clone(), vec![node.name.clone()])),
            }
        }
        let master = values.iter().find(|(node, _)| node.master).map(|(node, _)| &node.name);
        let has_master = |nodes: &[String]| master.is_some_and(|master| nodes.contains(master));
        groups.sort_by_key(|(_, nodes)| (std::cmp::Reverse(nodes.len()), !has_master(nodes)));
        (groups.len() > 1).then_some(Groups { groups })
    }

    /// The nodes that are not like the others.
    pub(super) fn odd(&self) -> Vec<String> {
        self.groups.iter().skip(1).flat_map(|(_, nodes)| nodes.clone()).collect()
    }

    /// `gpu[01-07] 535.161 · gpu08 550.54`.
    pub(super) fn told(&self, shown: impl Fn(&str) -> String) -> String {
        let group = |(value, nodes): &(String, Vec<String>)| format!("{} {}", nodeset::fold(nodes), shown(value));
        self.groups.iter().map(group).collect::<Vec<_>>().join(" · ")
    }
}

/// Versions that differ.
pub(super) fn examine(views: &[NodeView<'_>]) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut compare =
        |what: &'static str, severity, why: &str, cure: &str, of: &dyn Fn(&NodeView<'_>) -> Option<String>| {
            let values: Vec<(&Node, String)> = views.iter().filter_map(|view| Some((view.node, of(view)?))).collect();
            if let Some(groups) = Groups::of(&values) {
                let seen = format!("another {what} than the others: {}", groups.told(str::to_owned));
                found.push(Finding::new(severity, "versions", "", seen).about(groups.odd()).why(why).cure(cure));
            }
        };
    let ranks = "ranks of different versions hang in their first exchange or give different numbers";
    let image = "the same image on every node, then hvdctl up: docker save IMAGE | ssh NODE sudo docker load";
    for (what, key) in [("Python", "python"), ("PyTorch", "torch"), ("TensorFlow", "tensorflow"), ("MXNet", "mxnet")]
        .into_iter()
        .chain(VERSIONS)
        .chain([("CUDA", "cuda"), ("NCCL", "nccl")])
    {
        compare(what, Severity::Error, ranks, image, &|view| {
            let inside = view.inside.filter(|inside| !inside.values.is_empty())?;
            Some(inside.values.get(key).map_or_else(|| "none".to_owned(), Clone::clone))
        });
    }
    compare(
        "NVIDIA driver",
        Severity::Warning,
        "an older driver may not run what the image brings, and speed differs",
        "install the same driver on every node, and restart it",
        &|view| view.details?.driver.clone(),
    );
    let same = "seldom the cause of trouble, but the first thing to know when one node behaves in another way";
    compare("Docker Engine", Severity::Note, same, "", &|view| Some(view.engine?.version.to_owned()));
    compare("kernel", Severity::Note, same, "", &|view| view.details?.kernel.clone());
    found
}
