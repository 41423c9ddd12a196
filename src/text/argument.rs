//! An argument of the program that a job starts.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt as _;

/// Any bytes except NUL, as for execve(2). In JSON a string, or a list of bytes if they are not UTF-8.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "Argument")]
pub enum ProgramArgument {
    /// An argument in UTF-8.
    Text(String),
    /// The name of a file from another system, for example.
    Bytes(Vec<u8>),
}

impl From<OsString> for ProgramArgument {
    fn from(argument: OsString) -> ProgramArgument {
        String::from_utf8(argument.into_vec())
            .map_or_else(|e| ProgramArgument::Bytes(e.into_bytes()), ProgramArgument::Text)
    }
}

impl From<&str> for ProgramArgument {
    fn from(argument: &str) -> ProgramArgument {
        ProgramArgument::Text(argument.to_owned())
    }
}

/// For people: bytes that are no UTF-8 are replaced by U+FFFD.
impl fmt::Display for ProgramArgument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProgramArgument::Text(text) => f.write_str(text),
            ProgramArgument::Bytes(bytes) => f.write_str(&String::from_utf8_lossy(bytes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_keeps_every_byte() {
        let words: Vec<ProgramArgument> = [&b"a b"[..], b"", b"\xff\n", "\u{fffd}".as_bytes()]
            .map(|bytes| OsString::from_vec(bytes.to_vec()).into())
            .into();
        let json = serde_json::to_string(&words).unwrap();
        assert_eq!(json, "[\"a b\",\"\",[255,10],\"\u{fffd}\"]");
        assert_eq!(serde_json::from_str::<Vec<ProgramArgument>>(&json).unwrap(), words);
    }
}
