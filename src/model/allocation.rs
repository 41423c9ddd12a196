//! Who has what of a node, as errors tell it.

use crate::text::nodeset;
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;

/// What a run has of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "Allocation")]
pub struct Hold {
    /// The run's id.
    #[serde(rename = "id")]
    pub job: String,
    /// Its name.
    pub name: String,
    /// Its project, if it has one.
    #[serde(skip)]
    pub project: Option<String>,
    /// The port of its workers; none in records of hvdctl before that was written down.
    #[serde(skip)]
    pub port: Option<u16>,
    /// Who started it, `user@host`.
    pub operator: String,
    /// The GPUs and slots; none: the whole node.
    pub part: Option<Part>,
}

/// A part of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Part {
    /// How many slots.
    pub slots: u32,
    /// The UUIDs of the GPUs.
    pub gpus: Vec<String>,
}

/// Runs in the way of another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// What they have of which node; never empty.
    pub holds: Vec<(String, Hold)>,
    /// Selected nodes that nobody has anything of.
    pub free: Vec<String>,
}

impl Held {
    /// The next step.
    pub fn hint(&self) -> String {
        let job = self.holds.first().map_or("ID", |(_, hold)| hold.job.as_str());
        let free = match self.free.len() {
            0 => String::new(),
            _ => format!("; nobody has {0}: --on {0}", nodeset::fold(&self.free)),
        };
        format!("--wait waits for its end, hvdctl stop {job} ends it{free}")
    }
}

impl fmt::Display for Held {
    /// A line for each run and what it has.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut told: Vec<(&Hold, Vec<String>)> = Vec::new();
        for (node, hold) in &self.holds {
            match told.iter_mut().find(|(other, _)| *other == hold) {
                Some((_, nodes)) => nodes.push(node.clone()),
                None => told.push((hold, vec![node.clone()])),
            }
        }
        let lines = told.iter().map(|(hold, nodes)| {
            let Hold { job, name, operator, part, .. } = hold;
            let it = if nodes.len() == 1 { "it" } else { "each" };
            let what = match part {
                None => format!("has {it} for itself"),
                Some(Part { slots, gpus }) if gpus.is_empty() => {
                    format!("has {slots} slot{} of {it}", if *slots == 1 { "" } else { "s" })
                }
                Some(Part { gpus, .. }) => format!("has {} of {it}", gpus.join(", ")),
            };
            format!("{}: the run {job} ({name}) of {operator} is under way there and {what}", nodeset::fold(nodes))
        });
        f.write_str(&lines.collect::<Vec<_>>().join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(job: &str, part: Option<Part>) -> Hold {
        Hold { job: job.into(), name: "digits".into(), project: None, port: None, operator: "ana@desk".into(), part }
    }

    #[test]
    fn who_is_in_the_way_is_told_once_for_all_nodes() {
        let part = Part { slots: 1, gpus: Vec::new() };
        let held = Held {
            holds: vec![
                ("node1".into(), held("j1", None)),
                ("node2".into(), held("j1", None)),
                ("node3".into(), held("j2", Some(part))),
            ],
            free: vec!["node4".into(), "node5".into()],
        };
        assert_eq!(
            held.to_string(),
            "node[1-2]: the run j1 (digits) of ana@desk is under way there and has each for itself\n\
             node3: the run j2 (digits) of ana@desk is under way there and has 1 slot of it"
        );
        assert_eq!(
            held.hint(),
            "--wait waits for its end, hvdctl stop j1 ends it; nobody has node[4-5]: --on node[4-5]"
        );
    }
}
