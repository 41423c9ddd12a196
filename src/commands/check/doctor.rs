//! `hvdctl doctor`.

use crate::checks::{Finding, Severity};
use crate::cli::Doctor;
use crate::cluster::each_node::NodeResults;
use crate::cluster::member::Member;
use crate::commands::check::gpus::{NodeGpus, gpu_table};
use crate::commands::shared::recording::record;
use crate::commands::{Context, Outcome};
use crate::doctor::{Examination, Fixed, examine, fix};
use crate::document::NodeEntry;
use crate::error::{Error, Verdict};
use crate::event::Events;
use crate::gpus::health::report::NodeHealth;
use crate::grade::evidence::of_doctor;
use crate::text::result::ResultText;
use crate::text::units::count;
use console::style;
use schemars::JsonSchema;
use serde::Serialize;

/// `doctor`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DoctorDocument {
    /// The findings.
    pub findings: Vec<Finding>,
    /// The problems that `--fix` fixed.
    pub fixed: Vec<Fixed>,
    /// The nodes; `ok` is false if a finding on the node is an error.
    pub nodes: Vec<NodeEntry<NodeGpus>>,
}

/// `doctor`.
pub async fn run(options: &Doctor, context: &Context) -> Result<Outcome, Error> {
    if !options.fix && options.waiting.limit().is_some() {
        return Err(Error::usage("--wait needs --fix: without it nothing is locked", "leave out --wait"));
    }
    let Context { target, fleet, events, session, .. } = context;
    let examine = async |reported: &Events| {
        let examining = async { examine(target, fleet.members(target, reported).await?, events).await };
        session.cancellation.run(examining).await
    };
    let mut examined = examine(events).await?;
    // nodes that cannot be reached have been reported
    let (quiet, _) = Events::channel();
    let mut fixed = NodeResults { ok: Vec::new(), failed: Vec::new() };
    if options.fix && examined.findings.iter().any(|finding| !finding.fixes.is_empty()) {
        session.lock_all(&examined.members()).await?;
        // findings from before the nodes were locked may be outdated
        examined = examine(&quiet).await?;
        fixed = fix(target, &examined, session, events).await?;
        session.locks.release().await;
        examined = examine(&quiet).await?;
    }
    record(context, of_doctor(&names(&examined.members()), &examined.findings)).await;
    let Examination { findings: found, unreachable, health, .. } = examined;

    let mut text = ResultText::default();
    text.extend(fixed.ok.iter().map(|Fixed { node, what }| format!("fixed {node}: {what}\n")));
    text.push(gpu_table(&health));
    text.push_str(&text_of(&found, target.selected.len()));
    let good = found.iter().all(|finding| finding.severity != Severity::Error) && fixed.failed.is_empty();
    let verdict = Verdict::of_check(good, target.selected.len() - unreachable.len(), &unreachable);
    let offline = unreachable.iter().map(|error| error.node.clone()).collect();
    let outcome = Outcome::new(
        verdict,
        text,
        details(Examined { findings: found, health, unreachable: offline }, fixed.ok, &target.selected),
    );
    // the unreachable nodes are findings
    Ok(Outcome { errors: fixed.failed.iter().map(ToString::to_string).collect(), ..outcome })
}

fn names(members: &[Member]) -> Vec<String> {
    members.iter().map(|member| member.node.name.clone()).collect()
}

/// The results of examining all nodes.
pub(in crate::commands) struct Examined {
    pub(in crate::commands) findings: Vec<Finding>,
    pub(in crate::commands) health: Vec<(String, NodeHealth)>,
    pub(in crate::commands) unreachable: Vec<String>,
}

pub(in crate::commands) fn details(examined: Examined, fixed: Vec<Fixed>, nodes: &[String]) -> DoctorDocument {
    let Examined { findings, health, unreachable } = examined;
    let errors = |node: &String| findings.iter().any(|f| f.severity == Severity::Error && f.nodes.contains(node));
    let node = |name: &String| {
        let entry = NodeEntry::new(name, !errors(name), NodeGpus::of(name, &health));
        NodeEntry { reachable: Some(!unreachable.contains(name)), ..entry }
    };
    let nodes = nodes.iter().map(node).collect();
    DoctorDocument { findings, fixed, nodes }
}

/// Formats each finding with its severity, then the number of findings of each severity.
fn text_of(found: &[Finding], nodes: usize) -> String {
    let mut text = String::new();
    for finding in found {
        let severity = style(finding.severity);
        let severity = match finding.severity {
            Severity::Error => severity.red().bold(),
            Severity::Warning => severity.yellow().bold(),
            Severity::Note => severity.dim(),
        };
        text.push_str(&format!("{severity} {finding}\n"));
    }
    let number = |severity| found.iter().filter(|finding| finding.severity == severity).count();
    let (errors, warnings, notes) = (number(Severity::Error), number(Severity::Warning), number(Severity::Note));
    let verdict = if errors == 0 { "ok" } else { "failed" };
    let errors = if errors == 0 { "no errors".to_owned() } else { count(errors, "error") };
    text.push_str(&format!("{verdict}: {}, {errors}", count(nodes, "node")));
    let more = [(warnings, "warning"), (notes, "note")];
    text.extend(more.iter().filter(|(n, _)| *n > 0).map(|(n, noun)| format!(", {}", count(*n, noun))));
    text.push('\n');
    text
}
