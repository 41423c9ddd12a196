//! Scripts for nodes, with the values of their variables.

use crate::text::quote;
use std::collections::BTreeSet;
use zeroize::Zeroizing;

/// A script and the variables that it reads. They may be secrets: they are not printed, and are wiped after use.
///
/// The script's comments state the names: `# Variables: port, targets (one a line).` A shell would take one that is not
/// set for an empty text, so a debug build panics unless exactly these are set.
#[derive(Clone)]
pub struct Script {
    variables: Zeroizing<String>,
    names: BTreeSet<&'static str>,
    source: &'static str,
}

impl Script {
    /// Creates a script from its source, a file in `scripts/`.
    pub fn new(source: &'static str) -> Script {
        Script { variables: Zeroizing::default(), names: BTreeSet::new(), source }
    }

    /// Sets a variable.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: &str) -> Script {
        self.variables = quote::joined(&[&self.variables, &quote::assign(name, value)]);
        self.names.insert(name);
        self
    }

    /// Returns what the shell reads.
    pub fn whole(&self) -> Zeroizing<String> {
        debug_assert!(
            self.names.iter().eq(&stated(self.source)),
            "a script states the variables {:?}, and was given {:?}",
            stated(self.source),
            self.names
        );
        quote::joined(&[&self.variables, self.source])
    }
}

/// Returns the variables that the comments of a script state. Explanations in parentheses are left out.
fn stated(source: &str) -> BTreeSet<String> {
    let comments: String = source.lines().map(|line| line.strip_prefix('#').unwrap_or("\n")).collect();
    let mut names = BTreeSet::new();
    for list in comments.split("Variables:").skip(1) {
        let mut depth = 0;
        let is_outside = |c: &char| {
            depth += i32::from(*c == '(') - i32::from(*c == ')');
            depth == 0 && *c != ')'
        };
        let list: String = list.chars().filter(is_outside).take_while(|c| !matches!(c, '.' | '\n')).collect();
        names.extend(list.split(',').map(|name| name.trim().to_owned()));
    }
    names
}

#[cfg(test)]
mod tests;
