//! `hvdctl doctor`.

use super::{Context, Outcome, unless_signalled};
use crate::cli::Doctor;
use crate::core::doctor::{Finding, Severity};
use crate::error::{Error, exit};
use crate::ops::doctor::{Examined, examine, fix};
use crate::render::findings::findings;
use serde_json::{Value, json};

/// `doctor`.
pub async fn run(options: &Doctor, context: Context) -> Result<Outcome, Error> {
    let Context { target, events, cancel, .. } = context;
    let work = async {
        let examined = examine(&target, &events).await?;
        if !options.fix || examined.findings.iter().all(|finding| finding.fixes.is_empty()) {
            return Ok((examined, Vec::new(), Vec::new()));
        }
        let (done, failed) = fix(&target, &examined, &events).await?;
        // what is left is seen and not reckoned
        Ok((examine(&target, &events).await?, done, failed))
    };
    let (examined, done, failed) = unless_signalled(&cancel, work).await?;
    let Examined { findings: found, unreachable, .. } = &examined;

    let mut text: String = done.iter().map(|(node, what)| format!("fixed {node}: {what}\n")).collect();
    text.push_str(&findings(found, target.selected.len()));
    let good = found.iter().all(|finding| finding.severity != Severity::Error) && failed.is_empty();
    let code = match unreachable.len() {
        0 if good => exit::OK,
        0 => exit::FAILED,
        n if n == target.selected.len() => exit::UNREACHABLE,
        _ => exit::PARTLY,
    };
    Ok(Outcome { code, text, document: document(good, found, &done, &target.selected, unreachable), failed })
}

pub(super) fn document(
    good: bool,
    found: &[Finding],
    done: &[(String, String)],
    nodes: &[String],
    unreachable: &[String],
) -> Value {
    let errors = |node: &String| found.iter().any(|f| f.severity == Severity::Error && f.nodes.contains(node));
    let node = |name: &String| json!({ "node": name, "ok": !errors(name), "reachable": !unreachable.contains(name) });
    let finding = |finding: &Finding| {
        let mut value = json!(finding);
        value["fixable"] = json!(!finding.fixes.is_empty());
        value
    };
    json!({
        "ok": good,
        "findings": found.iter().map(finding).collect::<Vec<_>>(),
        "fixed": done.iter().map(|(node, what)| json!({ "node": node, "what": what })).collect::<Vec<_>>(),
        "nodes": nodes.iter().map(node).collect::<Vec<_>>(),
    })
}
