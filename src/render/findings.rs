//! Findings as text.

use crate::checks::{Finding, Severity};
use console::style;

/// Formats each finding with its severity, then the number of findings of each severity.
pub fn findings(found: &[Finding], nodes: usize) -> String {
    let mut text = String::new();
    for finding in found {
        let word = style(finding.severity);
        let word = match finding.severity {
            Severity::Error => word.red().bold(),
            Severity::Warning => word.yellow().bold(),
            Severity::Note => word.dim(),
        };
        text.push_str(&format!("{word} {finding}\n"));
    }
    let count = |severity, one: &str| {
        let n = found.iter().filter(|finding| finding.severity == severity).count();
        (n, format!("{n} {one}{}", if n == 1 { "" } else { "s" }))
    };
    let (errors, counted) = count(Severity::Error, "error");
    let more: Vec<String> = [count(Severity::Warning, "warning"), count(Severity::Note, "note")]
        .into_iter()
        .filter(|(n, _)| *n > 0)
        .map(|(_, counted)| counted)
        .collect();
    let more = if more.is_empty() { String::new() } else { format!(", {}", more.join(", ")) };
    let plural = if nodes == 1 { "" } else { "s" };
    let verdict = if errors == 0 { "ok" } else { "failed" };
    let errors = if errors == 0 { "no errors" } else { &counted };
    text.push_str(&format!("{verdict}: {nodes} node{plural}, {errors}{more}\n"));
    text
}
