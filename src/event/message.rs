//! Messages for people.

use crate::error::{Error, NodeError};
use crate::model::finding::Finding;
use std::fmt;

/// A note or a warning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// A sentence.
    Text {
        /// The node that it is about, if it is about one.
        node: Option<String>,
        /// The sentence, of one or several lines.
        text: String,
        /// The next step.
        hint: Option<String>,
    },
    /// A failure in spite of which the command continues.
    Failure(NodeError),
    /// The finding of a rule.
    Finding(Finding),
}

impl Message {
    /// Returns a message about a node.
    pub fn of(node: &str, text: impl Into<String>) -> Message {
        Message::Text { node: Some(node.to_owned()), text: text.into(), hint: None }
    }

    /// Sets the next step of a sentence; a failure and a finding have their own.
    #[must_use]
    pub fn hint(self, next: impl Into<String>) -> Message {
        match self {
            Message::Text { node, text, .. } => Message::Text { node, text, hint: Some(next.into()) },
            Message::Failure(_) | Message::Finding(_) => self,
        }
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Message::Text { node, text, hint } => {
                node.iter().try_for_each(|node| write!(f, "{node}: "))?;
                f.write_str(text)?;
                hint.iter().try_for_each(|hint| write!(f, "\n  hint: {hint}"))
            }
            Message::Failure(error) => error.fmt(f),
            Message::Finding(finding) => finding.fmt(f),
        }
    }
}

impl From<String> for Message {
    fn from(text: String) -> Message {
        Message::Text { node: None, text, hint: None }
    }
}

impl From<&str> for Message {
    fn from(text: &str) -> Message {
        text.to_owned().into()
    }
}

impl From<&String> for Message {
    fn from(text: &String) -> Message {
        text.clone().into()
    }
}

impl From<NodeError> for Message {
    fn from(error: NodeError) -> Message {
        Message::Failure(error)
    }
}

impl From<&NodeError> for Message {
    fn from(error: &NodeError) -> Message {
        Message::Failure(error.clone())
    }
}

impl From<Error> for Message {
    fn from(error: Error) -> Message {
        Message::from(&error)
    }
}

impl From<&Error> for Message {
    fn from(error: &Error) -> Message {
        error.to_string().into()
    }
}

impl From<&Finding> for Message {
    fn from(finding: &Finding) -> Message {
        Message::Finding(finding.clone())
    }
}
