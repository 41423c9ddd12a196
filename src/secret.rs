//! Text that must not be seen.

use std::fmt;
use zeroize::Zeroizing;

/// Text that must not be seen: it cannot be printed by accident and is wiped from memory after use.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Wraps a text.
    pub fn new(text: Zeroizing<String>) -> Secret {
        Secret(text)
    }

    /// A text that is none, to be written like one.
    pub fn plain(text: impl Into<String>) -> Secret {
        Secret(Zeroizing::new(text.into()))
    }

    /// The text; the caller sees to it that it goes nowhere but to the node's standard input.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}
