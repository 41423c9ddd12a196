//! What is wrong with an inventory, and where.

use crate::error::Error;
use serde::Serialize;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::DeValue;

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

/// The faults so far, and the text they are in.
pub(super) struct Report<'t> {
    text: &'t str,
    places: Places<'t>,
    faults: Vec<(Option<Range<usize>>, String)>,
}

impl<'t> Report<'t> {
    pub(super) fn new(text: &'t str) -> Report<'t> {
        Report { text, places: Places::new(text), faults: Vec::new() }
    }

    /// A fault at a place.
    pub(super) fn at(&mut self, span: Range<usize>, message: impl Into<String>) {
        self.faults.push((Some(span), message.into()));
    }

    /// Something that the whole file lacks.
    pub(super) fn lacking(&mut self, message: impl Into<String>) {
        self.faults.push((None, message.into()));
    }

    /// The line, from 1, where a span begins.
    pub(super) fn line(&self, span: &Range<usize>) -> usize {
        self.places.line(span.start)
    }

    pub(super) fn is_clean(&self) -> bool {
        self.faults.is_empty()
    }

    /// The faults in the order of their places; what the whole file lacks stands at its beginning.
    pub(super) fn into_faults(mut self, file: &Path) -> Faults {
        self.faults.sort_by_key(|(span, _)| span.as_ref().map_or(0, |span| span.start));
        let fault = |(span, message): (Option<Range<usize>>, String)| match span {
            Some(span) => {
                let (line, column) = self.places.place(span.start);
                Fault { line, column, message, excerpt: Some(self.places.excerpt(&span)) }
            }
            None => Fault { line: 1, column: 1, message, excerpt: None },
        };
        let mut faults: Vec<Fault> = self.faults.into_iter().map(fault).collect();
        faults.dedup();
        Faults { file: file.to_owned(), faults }
    }

    /// What stands in the file: with its type where that is what is wrong.
    pub(super) fn found(&self, value: &Spanned<DeValue<'_>>, with_type: bool) -> String {
        let kind = match value.get_ref() {
            DeValue::Array(_) => return "an array".to_owned(),
            DeValue::Table(_) => return "a table".to_owned(),
            DeValue::Boolean(_) => "",
            DeValue::String(_) => "the string ",
            DeValue::Integer(_) => "the integer ",
            DeValue::Float(_) => "the float ",
            DeValue::Datetime(_) => "the date ",
        };
        let shown = match value.get_ref() {
            DeValue::String(text) => quoted(text),
            _ => self.source(&value.span()),
        };
        if with_type { format!("{kind}{shown}") } else { shown }
    }

    /// What stands where the parser stopped.
    pub(super) fn found_here(&self, span: &Range<usize>) -> String {
        match self.text.get(span.start..).and_then(|rest| rest.chars().next()) {
            None => "the end of the file".to_owned(),
            Some('\r' | '\n') => "the end of the line".to_owned(),
            Some(next) => format!("`{}`", self.source(&(span.start..span.end.max(span.start + next.len_utf8())))),
        }
    }

    /// The text of a span as it stands in the file, up to the end of its line, shortened and safe to show.
    pub(super) fn source(&self, span: &Range<usize>) -> String {
        let text = self.text.get(span.clone()).unwrap_or_default();
        let mut chars = text.lines().next().unwrap_or_default().chars();
        let mut source: String = chars.by_ref().take(40).map(harmless).collect();
        source.push_str(if chars.next().is_some() { "…" } else { "" });
        source
    }
}

/// Finds lines and columns of byte offsets.
struct Places<'t> {
    text: &'t str,
    /// Where each line starts.
    starts: Vec<usize>,
}

impl<'t> Places<'t> {
    fn new(text: &'t str) -> Places<'t> {
        let starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Places { text, starts }
    }

    /// Line and column, both from 1, of a byte offset.
    fn place(&self, offset: usize) -> (usize, usize) {
        let offset = self.floor(offset);
        let line = self.line(offset);
        let column = self.text[self.starts[line - 1]..offset].chars().count() + 1;
        (line, column)
    }

    /// The line, from 1, of a byte offset.
    fn line(&self, offset: usize) -> usize {
        self.starts.partition_point(|start| *start <= offset).max(1)
    }

    /// The first line that `span` touches, marked as far as `span` reaches on it.
    fn excerpt(&self, span: &Range<usize>) -> Excerpt {
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
fn harmless(c: char) -> char {
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
