//! Secret text.

use std::fmt;
use zeroize::Zeroizing;

/// Parts of the names of variables that only their owner should read.
const SECRET: [&str; 6] = ["SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "API_KEY"];

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

/// Returns whether a variable is named like a secret, and has a value of one.
pub fn is_secret_value(name: &str, value: &str) -> bool {
    let name = name.to_ascii_uppercase();
    // as those of MAX_TOKENS and TOKENIZERS_PARALLELISM
    let is_setting = matches!(value, "true" | "false") || value.parse::<u32>().is_ok();
    let is_token = name.contains("TOKEN") && !is_setting;
    is_token || SECRET.iter().any(|part| name.contains(part)) || name.ends_with("_KEY") || name == "KEY"
}
