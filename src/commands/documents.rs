//! Every document of `--json`, made of given values by what makes it, has the fields of its type.

#[path = "../../tests/documented/mod.rs"]
pub(super) mod documented;

mod checks;
mod jobs;
mod keys;
mod nodes;
mod status;
mod tools;
mod transfers;

use super::{Outcome, about};
use crate::cli::{self, ExitCode};
use crate::cluster::each_node::NodeResults;
use crate::error::{Error, NodeError};
use crate::grade::best::{Choice, LeftOutNode};
use crate::keys::reachability::TriedLogin;
use crate::model::grade::{Grade, NodeGrade, NodeKind};
use crate::model::idle_rank::IdleRank;
use crate::text::result::ResultText;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

fn refused(node: &str) -> NodeError {
    NodeError::unreachable(
        node,
        "log in by ssh as ana@10.0.0.3",
        "connect to host 10.0.0.3 port 22: Connection refused",
    )
    .hint("see whether `ssh ana@10.0.0.3` works")
}

fn full(node: &str) -> NodeError {
    NodeError::failed(node, "write the keys to /opt/horovod/ssh", "No space left on device")
}

fn failure(error: &Error) -> Value {
    Outcome::failure(error, ExitCode::Own, cli::OutputForm::Result).document
}

/// The best of two nodes.
fn choice() -> Choice {
    let kind = NodeKind {
        gpu: Some("NVIDIA H200".into()),
        gpus: 8,
        gpu_memory_mib: Some(143_771),
        driver: Some(580),
        cores: 192,
    };
    let chosen = NodeGrade {
        node: "node1".into(),
        kind,
        grade: Grade::B,
        score: Some(0.91),
        reasons: names(&["network: sends 71 % of the fastest of its kind"]),
        evidence: 12,
        speed: Some(1.0),
    };
    let left_out = vec![LeftOutNode { node: "node2".into(), reason: "unreachable".into() }];
    Choice { nodes: vec![chosen], left_out }
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn login(from: &str, to: &str, reason: Option<&str>) -> TriedLogin {
    TriedLogin { from: from.into(), to: to.into(), reason: reason.map(str::to_owned) }
}

fn results<T>(ok: Vec<T>, failed: &[NodeError]) -> NodeResults<T> {
    NodeResults { ok, failed: failed.to_vec() }
}

fn idle_rank() -> IdleRank {
    let does = "waiting in flock for a lock on /data/cache".into();
    IdleRank { rank: 1, role: None, node: "node1".into(), since: 1_795_262_584.0, does }
}

/// The results of commands, by name.
#[derive(Default)]
struct Made {
    documents: Vec<(&'static str, Value)>,
    texts: Vec<(&'static str, ResultText)>,
}

impl Made {
    fn add(&mut self, name: &'static str, outcome: Outcome) {
        self.documents.push((name, outcome.document));
        self.texts.push((name, outcome.text));
    }

    fn push(&mut self, document: (&'static str, Value)) {
        self.documents.push(document);
    }

    fn new() -> Made {
        let mut all = Made::default();
        nodes::init_made(&mut all);
        keys::keys_made(&mut all);
        nodes::nodes_made(&mut all);
        checks::doctor_made(&mut all);
        checks::verify_made(&mut all);
        checks::bench_made(&mut all);
        jobs::jobs_made(&mut all);
        nodes::lock_made(&mut all);
        nodes::slurm_made(&mut all);
        tools::tools_made(&mut all);
        all.add("text", about::printed("#compdef hvdctl".into()));
        all.add("dir", about::written_to(Path::new("man1")));
        all.push(("error", failure(&Error::usage("there is no inventory", "hvdctl init writes one"))));
        all.push(("error/unreachable", failure(&Error::Unreachable(vec![refused("node2")]))));
        all
    }
}

fn made() -> BTreeMap<&'static str, Value> {
    let all = Made::new().documents;
    let made: BTreeMap<&str, Value> = all.iter().cloned().collect();
    assert_eq!(made.len(), all.len(), "each node needs a different name");
    made
}

#[test]
fn no_table_is_wider_than_a_terminal() {
    console::set_colors_enabled(false);
    let mut columns = BTreeSet::new();
    for (name, text) in Made::new().texts {
        for table in text.tables() {
            columns.insert(table.heads().join(" "));
            let usual = table.fitted(Some(80));
            assert!(!table.is_in_blocks(80), "{name} has lines instead of a table with usual values:\n{usual}");
            for width in [30, 60, 80, 120] {
                for table in [table.clone(), table.with_awkward_values()] {
                    let shown = table.fitted(Some(width));
                    let is_too_wide = |line: &&str| console::measure_text_width(line) > width;
                    assert_eq!(shown.lines().find(is_too_wide), None, "{name} at {width}:\n{shown}");
                }
            }
        }
    }
    // a new table is added to the values above
    insta::assert_snapshot!(columns.into_iter().collect::<Vec<_>>().join("\n"));
}

#[test]
fn every_document_has_the_fields_of_its_type() {
    let (schema, made) = (documented::schema(), made());
    for (name, value) in &made {
        let name = match name.split('/').collect::<Vec<_>>()[..] {
            ["train-end", "error"] => "error",
            ["train-end", "dry"] => "dry-run",
            ["train-end", "logs"] => "logs-end",
            ["train-end", ..] => "job-end",
            [name, ..] if name.starts_with("train-") => "line",
            [name, ..] => name,
            [] => unreachable!(),
        };
        assert_eq!(documented::faults(&schema, name, value), [""; 0], "{value:#}");
    }
    let lines = made.iter().map(|(name, value)| format!("{name}: {value:#}\n"));
    insta::assert_snapshot!(lines.collect::<String>());
}

#[test]
fn a_document_that_differs_from_its_type_is_found_out() {
    let schema = documented::schema();
    let with = |change: fn(&mut Value)| {
        let mut document = made()["status"].clone();
        change(&mut document);
        documented::faults(&schema, "status", &document).join("\n")
    };
    assert_eq!(with(|_| ()), "");
    assert_eq!(with(|d| d["new"] = 1.into()), "status.new: unknown field");
    assert_eq!(with(|d| d["nodes"][0]["new"] = 1.into()), "status.nodes[0].new: unknown field");
    assert_eq!(with(|d| d["nodes"][0]["slots"] = "4".into()), "status.nodes[0].slots: unexpected value \"4\"");
    assert_eq!(with(|d| drop(d["nodes"][1].as_object_mut().unwrap().remove("ok"))), "status.nodes[1].ok: missing");
}
