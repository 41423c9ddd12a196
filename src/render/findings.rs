//! Findings as text.

use crate::checks::{Finding, Severity};
use crate::text::units::count;
use console::style;

/// Formats each finding with its severity, then the number of findings of each severity.
pub fn findings(found: &[Finding], nodes: usize) -> String {
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
