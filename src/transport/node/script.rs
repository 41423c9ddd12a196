//! Scripts for nodes, with the values of their variables.

use crate::text::quote;
use zeroize::Zeroizing;

/// A script and the variables that it reads. They may be secrets: they are not printed, and are wiped after use.
#[derive(Clone)]
pub struct Script {
    variables: Zeroizing<String>,
    source: &'static str,
}

impl Script {
    /// Creates a script from its source, a file in `scripts/`.
    pub fn new(source: &'static str) -> Script {
        Script { variables: Zeroizing::default(), source }
    }

    /// Sets a variable.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Script {
        self.variables = quote::joined(&[&self.variables, &quote::assign(name, value)]);
        self
    }

    /// Returns what the shell reads.
    pub fn whole(&self) -> Zeroizing<String> {
        quote::joined(&[&self.variables, self.source])
    }
}
