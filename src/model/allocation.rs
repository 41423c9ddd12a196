//! The allocation of nodes to jobs.

use crate::text::nodeset;
use crate::text::units::count;
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;

/// The part of a node that is allocated to a job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Allocation {
    /// The job's id.
    #[serde(rename = "id")]
    pub job: String,
    /// Its name; empty if it is not known.
    pub name: String,
    /// Its project, if it has one.
    #[serde(skip)]
    pub project: Option<String>,
    /// The port of its workers.
    #[serde(skip)]
    pub port: u16,
    /// The operator who started it, `user@host`; empty if unknown.
    pub operator: String,
    /// The reason why its record cannot be read; null if it can.
    pub unreadable: Option<String>,
    /// The GPUs and slots; null for the whole node.
    pub resources: Option<Resources>,
}

/// A part of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Resources {
    /// The number of slots.
    pub slots: u32,
    /// The UUIDs of the GPUs.
    pub gpus: Vec<String>,
}

/// Jobs whose allocations conflict with a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllocationConflict {
    /// Their allocations by node; never empty.
    pub allocations: Vec<(String, Allocation)>,
    /// Selected nodes without an allocation.
    pub free: Vec<String>,
}

impl AllocationConflict {
    /// The next step.
    pub fn hint(&self) -> String {
        let job = self.allocations.first().map_or("ID", |(_, allocation)| allocation.job.as_str());
        let free = match self.free.len() {
            0 => String::new(),
            _ => format!("; free nodes: --on {}", nodeset::fold(&self.free)),
        };
        format!("wait with --wait, or stop the job with `hvdctl stop {job}`{free}")
    }
}

impl fmt::Display for AllocationConflict {
    /// A line for each job and what is allocated to it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let allocations = self.allocations.iter().map(|(node, allocation)| (allocation, node.clone()));
        let lines = nodeset::alike(allocations).into_iter().map(|(allocation, nodes)| {
            let Allocation { job, name, operator, resources, unreadable, .. } = allocation;
            let verb = if nodes.len() == 1 { "is" } else { "are" };
            let nodes = nodeset::fold(&nodes);
            let what = match resources {
                None => format!("{nodes} {verb} allocated exclusively"),
                Some(Resources { slots, gpus }) if gpus.is_empty() => {
                    format!("{nodes}: {} allocated", count(*slots as usize, "slot"))
                }
                Some(Resources { gpus, .. }) => format!("{nodes}: {} allocated", gpus.join(", ")),
            };
            match unreadable {
                None => format!("{what} to job {job} ({name}) of {operator}"),
                Some(reason) => format!("{what} to job {job}, whose record cannot be read: {reason}"),
            }
        });
        f.write_str(&lines.collect::<Vec<_>>().join("\n"))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns the allocation of a job on a node; the whole node if `resources` is `None`.
    pub(crate) fn allocated(job: &str, resources: Option<Resources>) -> Allocation {
        Allocation {
            job: job.into(),
            name: "digits".into(),
            project: None,
            port: 12345,
            operator: "ana@desk".into(),
            unreadable: None,
            resources,
        }
    }

    #[test]
    fn the_conflicting_job_is_named_once_for_all_nodes() {
        let part = Resources { slots: 1, gpus: Vec::new() };
        let conflict = AllocationConflict {
            allocations: vec![
                ("node1".into(), allocated("j1", None)),
                ("node2".into(), allocated("j1", None)),
                ("node3".into(), allocated("j2", Some(part))),
            ],
            free: vec!["node4".into(), "node5".into()],
        };
        assert_eq!(
            conflict.to_string(),
            "node[1-2] are allocated exclusively to job j1 (digits) of ana@desk\n\
             node3: 1 slot allocated to job j2 (digits) of ana@desk"
        );
        let unreadable =
            Allocation { job: "j3".into(), unreadable: Some("empty or missing".into()), ..Allocation::default() };
        assert_eq!(
            AllocationConflict { allocations: vec![("node1".into(), unreadable)], free: Vec::new() }.to_string(),
            "node1 is allocated exclusively to job j3, whose record cannot be read: empty or missing"
        );
        assert_eq!(
            conflict.hint(),
            "wait with --wait, or stop the job with `hvdctl stop j1`; free nodes: --on node[4-5]"
        );
    }
}
