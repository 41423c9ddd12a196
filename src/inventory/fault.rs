//! The faults of an inventory, each with its place.

use crate::error::Error;
use crate::text::units::count;
use std::cell::RefCell;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The most characters of a line that is shown.
const WIDEST_EXCERPT: usize = 120;

/// All that is wrong with one file, in the order of its lines.
#[derive(Debug, Clone, PartialEq)]
pub struct Faults {
    /// The file as it was named.
    pub file: PathBuf,
    /// At least one fault.
    pub faults: Vec<FieldFault>,
}

/// One fault of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldFault {
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// The field, what was expected and what was found, on one line.
    pub message: String,
    /// The line with a mark under what is wrong, safe to show on a terminal; `None` if it is long, or the file lacks
    /// something.
    pub excerpt: Option<String>,
}

impl fmt::Display for Faults {
    /// A heading, then each fault indented under it; no newline at the end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.file.display();
        write!(f, "{file}: {}", count(self.faults.len(), "fault"))?;
        for FieldFault { line, column, message, excerpt } in &self.faults {
            write!(f, "\n  {file}:{line}:{column}: {message}")?;
            for line in excerpt.iter().flat_map(|excerpt| excerpt.lines()) {
                write!(f, "\n    {line}")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for Faults {}

impl From<Faults> for Error {
    fn from(faults: Faults) -> Error {
        Error::Inventory(faults.to_string())
    }
}

/// The text without the byte order mark that some editors put in front; no editor counts it as a column.
pub(super) fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// The faults found so far in a text.
pub(super) struct FaultReport<'t> {
    text: &'t str,
    /// The offset at which each line starts.
    lines: Vec<usize>,
    faults: RefCell<Vec<FieldFault>>,
}

impl<'t> FaultReport<'t> {
    pub(super) fn new(text: &'t str) -> FaultReport<'t> {
        let lines = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        FaultReport { text, lines, faults: RefCell::default() }
    }

    /// Adds a fault at a place; at `0..0` what the whole file lacks.
    pub(super) fn at(&self, span: Range<usize>, message: impl Into<String>) {
        self.faults.borrow_mut().push(self.fault(&span, message.into()));
    }

    /// Returns the line, from 1, where a span begins.
    pub(super) fn line(&self, span: &Range<usize>) -> usize {
        self.lines.partition_point(|start| *start <= span.start)
    }

    /// Returns how many faults there are.
    pub(super) fn count(&self) -> usize {
        self.faults.borrow().len()
    }

    /// Returns the text of a span up to the end of its line, shortened and safe to show.
    pub(super) fn source(&self, span: &Range<usize>) -> String {
        let text = self.text.get(span.clone()).unwrap_or_default();
        text.lines().next().unwrap_or_default().chars().take(40).map(harmless).collect()
    }

    /// Returns the faults in the order of their places.
    pub(super) fn into_faults(self, file: &Path) -> Faults {
        let mut faults = self.faults.take();
        faults.sort_by_key(|fault| (fault.line, fault.column));
        faults.dedup();
        Faults { file: file.to_owned(), faults }
    }

    fn fault(&self, span: &Range<usize>, message: String) -> FieldFault {
        let number = self.line(span);
        let start = self.lines[number - 1];
        let characters = |until: usize| self.text.get(start..until).unwrap_or_default().chars().count();
        let before = characters(span.start);
        let line: String = self.text[start..].lines().next().unwrap_or_default().chars().map(harmless).collect();
        let (length, gutter) = (line.chars().count(), number.to_string().len());
        let mark = "^".repeat(characters(span.end).min(length).saturating_sub(before).max(1));
        let excerpt = format!("{number} | {}\n{:gutter$} | {:before$}{mark}", line.trim_end(), "", "");
        let has_excerpt = *span != (0..0) && length <= WIDEST_EXCERPT;
        FieldFault { line: number, column: before + 1, message, excerpt: has_excerpt.then_some(excerpt) }
    }
}

/// Returns the character that a terminal may show for another one: one for each, so that the mark stays in place.
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
    let head: String = text.chars().take(60).collect();
    format!("{head:?}{}", if head.len() < text.len() { "…" } else { "" })
}
