//! Secret text.

use std::fmt;
use zeroize::Zeroizing;

/// Secret text, which cannot be printed by accident and is wiped from memory after use.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Wraps a text.
    pub fn new(text: Zeroizing<String>) -> Secret {
        Secret(text)
    }

    /// Wraps a text that is no secret, where one is expected.
    pub fn plain(text: impl Into<String>) -> Secret {
        Secret(Zeroizing::new(text.into()))
    }

    /// Returns the text, which may go to the node's standard input and nowhere else.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}
