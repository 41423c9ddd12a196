//! `hvdctl keys status`.

use crate::commands::Outcome;
use crate::commands::shared::context::{Context, login_table, node_table, with_role};
use crate::document::NodeEntry;
use crate::error::{Error, NodeError, Verdict};
use crate::keys::files::{KeyFault, KeyReport, NodeKeys};
use crate::keys::reachability::{AbsentNode, FailedLogins, Matrix, TriedLogin};
use crate::keys::status::{KeysObservation, observe};
use crate::text::table::{cell, id, key, text};
use crate::worker::logins;
use schemars::JsonSchema;
use serde::Serialize;

/// `keys status`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct KeysStatus {
    /// The step that completes an unfinished rotation, or null.
    pub rotation: Option<KeyFault>,
    /// The nodes.
    pub nodes: Vec<NodeEntry<NodeKeys>>,
    /// Logins from worker to worker; null if none was tried.
    pub logins: Option<Logins>,
}

/// Logins from worker to worker.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Logins {
    /// True if every login worked.
    pub ok: bool,
    /// Nodes whose worker is not running.
    pub absent: Vec<AbsentNode>,
    /// The failures by reason.
    pub failed: Vec<FailedLogins>,
    /// Every login that was tried.
    pub pairs: Vec<TriedLogin>,
}

impl From<&Matrix> for Logins {
    fn from(matrix: &Matrix) -> Logins {
        let (absent, failed, pairs) = (matrix.absent.clone(), matrix.rows(), matrix.pairs.clone());
        Logins { ok: matrix.is_good(), absent, failed, pairs }
    }
}

/// `keys status`.
pub async fn run(context: &Context) -> Result<Outcome, Error> {
    let Context { target, events, .. } = context;
    let KeysObservation { report, workers, failed } =
        observe(&target.inventory, context.connect().await?, events).await;
    let matrix = logins::check(&target.inventory, &workers, events).await?;
    Ok(outcome(&report, &matrix, &failed))
}

pub(in crate::commands) fn outcome(report: &KeyReport, matrix: &Matrix, failed: &[NodeError]) -> Outcome {
    let rows = report.rows.iter().map(|row| NodeEntry::reached(&row.node, row.faults.is_empty(), row.clone()));
    let nodes: Vec<_> = rows.chain(failed.iter().map(NodeEntry::unreached)).collect();
    let header = [
        key("NODE"),
        text("KEY"),
        id("FINGERPRINT"),
        text("OWNER/MODES"),
        key("AGREED"),
        key("PINNED"),
        key("REACHES"),
    ];
    let mut text = node_table(header, &nodes, |_, row| cells(row, matrix));
    for KeyFault { text: fault, hint } in report.rows.iter().flat_map(|row| &row.faults).chain(&report.rotation) {
        text.push_str(&format!("{fault}\n  hint: {hint}\n"));
    }
    let warnings = report.rows.iter().flat_map(|row| row.warnings.iter().map(|warning| (&row.node, warning)));
    text.extend(warnings.map(|(node, warning)| format!("warning: {node}: {warning}\n")));
    let all_reached = matrix.pairs.iter().all(|pair| pair.reason.is_none());
    if !all_reached {
        text.push_str("failed logins:\n");
        text.push(login_table(matrix));
    }
    let is_good = report.is_clean() && all_reached;
    let verdict = Verdict::of_check(is_good, report.rows.len(), failed);
    let logins = (!matrix.pairs.is_empty()).then(|| matrix.into());
    Outcome::new(verdict, text, KeysStatus { rotation: report.rotation.clone(), nodes, logins })
}

fn cells(row: &NodeKeys, matrix: &Matrix) -> Vec<String> {
    let unexpected = (!row.unexpected.is_empty()).then(|| format!("{}!", row.unexpected.join(", ")));
    let keys: Vec<String> = row.key.iter().map(|key| key.kind().to_string()).chain(unexpected).collect();
    let more = if row.further > 0 { format!(" +{}", row.further) } else { String::new() };
    let (reached, tried) = matrix.reached(&row.node);
    let modes: Vec<String> = row.modes.iter().map(ToString::to_string).collect();
    let yes = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
    vec![
        with_role(&row.node, row.master),
        cell((!keys.is_empty()).then(|| keys.join(", "))),
        cell(row.fingerprint.as_ref().map(|fingerprint| format!("{fingerprint}{more}"))),
        if modes.is_empty() { "ok".to_owned() } else { modes.join(", ") },
        row.agreed.map_or("?".to_owned(), yes),
        yes(row.pinned),
        cell((tried > 0).then(|| format!("{reached} of {tried}"))),
    ]
}
