//! What is wrong with an inventory, and where.

use crate::error::Error;
use serde::Serialize;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The most characters of a line that an excerpt shows.
const WIDEST_EXCERPT: usize = 120;

/// All that is wrong with one file, in the order of its lines.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Faults {
    /// The file as it was named.
    #[serde(serialize_with = "super::lossy")]
    pub file: PathBuf,
    /// At least one fault.
    pub faults: Vec<Fault>,
}

/// One fault of a file.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Fault {
    /// The line, from 1; 0 where the file could not be read at all.
    pub line: usize,
    /// The column in characters, from 1; 0 where the file could not be read at all.
    pub column: usize,
    /// The field, what was expected and what was found, on one line.
    pub message: String,
    /// The line it is about; `None` where it is about something that the file lacks.
    pub excerpt: Option<Excerpt>,
}

/// A line of the file with a mark, safe to show on a terminal.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Excerpt {
    /// The line without what could disturb a terminal; of a long line the part around the mark, with `…`.
    pub text: String,
    /// Characters of `text` in front of the mark.
    pub offset: usize,
    /// Characters under the mark; at least 1.
    pub width: usize,
}

impl Faults {
    /// A fault of the file as a whole, without a place.
    pub(super) fn of_file(file: &Path, message: String) -> Faults {
        let fault = Fault { line: 0, column: 0, message, excerpt: None };
        Faults { file: file.to_owned(), faults: vec![fault] }
    }

    /// The first byte of `bytes` that is no UTF-8 is at `at`.
    pub(super) fn not_utf8(file: &Path, bytes: &[u8], at: usize) -> Faults {
        let valid = bytes.get(..at).and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default();
        let valid = without_mark(valid);
        let found = bytes.get(at).copied().unwrap_or_default();
        let (line, column) = Places::new(valid).place(valid.len());
        let message = format!("expected UTF-8 text, found the byte 0x{found:02x}");
        Faults { file: file.to_owned(), faults: vec![Fault { line, column, message, excerpt: None }] }
    }
}

impl fmt::Display for Faults {
    /// A heading, then each fault indented under it; no newline at the end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.file.display();
        match self.faults.len() {
            1 => write!(f, "{file}: 1 fault")?,
            count => write!(f, "{file}: {count} faults")?,
        }
        for Fault { line, column, message, excerpt } in &self.faults {
            if *line == 0 {
                write!(f, "\n  {file}: {message}")?;
            } else {
                write!(f, "\n  {file}:{line}:{column}: {message}")?;
            }
            if let Some(Excerpt { text, offset, width }) = excerpt {
                let number = line.to_string();
                write!(f, "\n    {number} | {}", text.trim_end())?;
                let gutter = number.len();
                write!(f, "\n    {:gutter$} | {:offset$}", "", "")?;
                for _ in 0..*width {
                    f.write_str("^")?;
                }
            }
        }
        Ok(())
    }
}

impl std::error::Error for Faults {}

/// The text without the byte order mark that some editors put in front; no editor counts it as a column.
pub(super) fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// Finds lines and columns of byte offsets.
pub(super) struct Places<'t> {
    text: &'t str,
    /// Where each line starts.
    starts: Vec<usize>,
}

impl<'t> Places<'t> {
    pub(super) fn new(text: &'t str) -> Places<'t> {
        let starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Places { text, starts }
    }

    /// Line and column, both from 1, of a byte offset.
    pub(super) fn place(&self, offset: usize) -> (usize, usize) {
        let offset = self.floor(offset);
        let line = self.line(offset);
        let column = self.text[self.starts[line - 1]..offset].chars().count() + 1;
        (line, column)
    }

    /// The line, from 1, of a byte offset.
    pub(super) fn line(&self, offset: usize) -> usize {
        self.starts.partition_point(|start| *start <= offset).max(1)
    }

    /// The first line that `span` touches, marked as far as `span` reaches on it.
    pub(super) fn excerpt(&self, span: &Range<usize>) -> Excerpt {
        let start = self.floor(span.start);
        let line = self.starts[self.line(start) - 1];
        let end = self.text[line..].find('\n').map_or(self.text.len(), |length| line + length);
        let before: Vec<char> = self.text[line..start].chars().collect();
        let after: Vec<char> = self.text[start..end].trim_end_matches('\r').chars().map(harmless).collect();
        let marked = self.text[start..self.floor(span.end).clamp(start, end)].trim_end().chars().count();

        // The mark begins in the left half of the window.
        let from = if before.len() + after.len() <= WIDEST_EXCERPT {
            0
        } else {
            before.len().saturating_sub(WIDEST_EXCERPT / 2)
        };
        let until = WIDEST_EXCERPT.saturating_sub(before.len() - from).min(after.len());
        let mut text = String::new();
        text.push_str(if from > 0 { "…" } else { "" });
        let offset = before.len() - from + usize::from(from > 0);
        text.extend(before[from..].iter().copied().map(harmless));
        text.extend(&after[..until]);
        text.push_str(if until < after.len() { "…" } else { "" });
        Excerpt { text, offset, width: marked.clamp(1, until.max(1)) }
    }

    /// The nearest boundary of a character at or before a byte offset; `\r\n` is one.
    fn floor(&self, offset: usize) -> usize {
        let mut offset = offset.min(self.text.len());
        while !self.text.is_char_boundary(offset) {
            offset -= 1;
        }
        let (before, after) = self.text.split_at(offset);
        if before.ends_with('\r') && after.starts_with('\n') { offset - 1 } else { offset }
    }
}

/// What a terminal may show for a character: one character for each, so that the mark stays in place.
pub(super) fn harmless(c: char) -> char {
    match c {
        '\t' => ' ',
        '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' => '\u{fffd}',
        c if c.is_control() => '\u{fffd}',
        c => c,
    }
}

/// A text from the file in quotes, with escapes for what could disturb a terminal, shortened.
pub(super) fn quoted(text: &str) -> String {
    let mut chars = text.chars();
    let head: String = chars.by_ref().take(60).collect();
    let cut = if chars.next().is_some() { "…" } else { "" };
    format!("{head:?}{cut}")
}
impl From<Faults> for Error {
    fn from(faults: Faults) -> Error {
        Error::Inventory(faults.to_string())
    }
}
