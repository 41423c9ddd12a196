//! Scripts for nodes, and the values that they are given.

use crate::text::quote;
use zeroize::Zeroizing;

/// A script with the variables that it wants. They may be secrets: they are not printed, and wiped after use.
#[derive(Clone)]
pub struct Script {
    text: Zeroizing<String>,
    source: &'static str,
}

impl Script {
    /// A script by its text, which is a file in `scripts/`.
    pub fn new(source: &'static str) -> Script {
        Script { text: Zeroizing::default(), source }
    }

    /// Sets a variable.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Script {
        // a NUL cannot come out of TOML, a file name or an argument vector; without it quoting always succeeds
        let line = quote::assign(name, value).or_else(|| quote::assign(name, &Zeroizing::new(value.replace('\0', ""))));
        self.text = quote::joined(&[self.text.as_str(), line.unwrap_or_default().as_str()]);
        self
    }

    /// What the shell reads.
    pub fn whole(&self) -> Zeroizing<String> {
        quote::joined(&[self.text.as_str(), self.source])
    }
}
