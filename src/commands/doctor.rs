//! `hvdctl doctor`.

use super::Outcome;
use super::context::Context;
use super::output::{self, DoctorFinding, Fixed, NoDetails, NodeEntry};
use crate::checks::{Finding, Severity};
use crate::cli::Doctor;
use crate::doctor::{Examination, claim, examine, fix};
use crate::error::{Error, exit};
use crate::render::findings::findings;

/// `doctor`.
pub async fn run(options: &Doctor, context: &Context) -> Result<Outcome, Error> {
    if !options.fix && options.waiting.limit().is_some() {
        return Err(Error::usage("--wait needs --fix: without it nothing is locked", "leave out --wait"));
    }
    let Context { target, events, session, .. } = context;
    let examine = || session.cancellation.run(examine(target, events));
    let mut examined = examine().await?;
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    if options.fix && examined.findings.iter().any(|finding| !finding.fixes.is_empty()) {
        claim(&examined, session).await?;
        // findings from before the nodes were locked may be outdated
        examined = examine().await?;
        (done, failed) = fix(target, &examined, session, events).await?;
        session.locks.release().await;
        examined = examine().await?;
    }
    let Examination { findings: found, unreachable, .. } = &examined;

    let mut text: String = done.iter().map(|(node, what)| format!("fixed {node}: {what}\n")).collect();
    text.push_str(&findings(found, target.selected.len()));
    let good = found.iter().all(|finding| finding.severity != Severity::Error) && failed.is_empty();
    let code = match unreachable.len() {
        0 if good => exit::OK,
        0 => exit::FAILED,
        n if n == target.selected.len() => exit::UNREACHABLE,
        _ => exit::PARTLY,
    };
    Ok(Outcome::new(code, text, &document(good, found, &done, &target.selected, unreachable), &failed))
}

pub(super) fn document(
    good: bool,
    found: &[Finding],
    done: &[(String, String)],
    nodes: &[String],
    unreachable: &[String],
) -> output::Doctor {
    let errors = |node: &String| found.iter().any(|f| f.severity == Severity::Error && f.nodes.contains(node));
    let node = |name: &String| {
        let entry = NodeEntry::new(name, !errors(name), NoDetails {});
        NodeEntry { reachable: Some(!unreachable.contains(name)), ..entry }
    };
    let finding = |f: &Finding| DoctorFinding { finding: f.clone(), fixable: !f.fixes.is_empty() };
    output::Doctor {
        ok: good,
        findings: found.iter().map(finding).collect(),
        fixed: done.iter().map(|(node, what)| Fixed { node: node.clone(), what: what.clone() }).collect(),
        nodes: nodes.iter().map(node).collect(),
    }
}
