//! The result of a command as text: lines, and tables that are fitted to the terminal when they are shown.

use super::table::Table;
use std::fmt::{self, Display, Formatter};

/// Lines and tables.
#[derive(Debug, Clone, Default)]
pub struct ResultText {
    parts: Vec<Part>,
}

#[derive(Debug, Clone)]
enum Part {
    Lines(String),
    Table(Table),
}

impl ResultText {
    /// Adds lines, each with its end.
    pub fn push_str(&mut self, lines: &str) {
        match self.parts.last_mut() {
            _ if lines.is_empty() => {}
            Some(Part::Lines(text)) => text.push_str(lines),
            _ => self.parts.push(Part::Lines(lines.to_owned())),
        }
    }

    /// Adds lines and tables.
    pub fn push(&mut self, more: impl Into<ResultText>) {
        for part in more.into().parts {
            match part {
                Part::Lines(lines) => self.push_str(&lines),
                Part::Table(_) => self.parts.push(part),
            }
        }
    }

    /// Returns whether there are neither lines nor tables.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Formats it with tables that have no line of more than `width` columns, if there is a limit.
    pub fn fitted(&self, width: Option<usize>) -> String {
        let part = |part: &Part| match part {
            Part::Lines(lines) => lines.clone(),
            Part::Table(table) => table.fitted(width),
        };
        self.parts.iter().map(part).collect()
    }

    /// Returns its tables.
    #[cfg(test)]
    pub fn tables(&self) -> impl Iterator<Item = &Table> {
        self.parts.iter().filter_map(|part| match part {
            Part::Table(table) => Some(table),
            Part::Lines(_) => None,
        })
    }
}

impl Display for ResultText {
    /// Formats it in full.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.fitted(None))
    }
}

impl From<Table> for ResultText {
    fn from(table: Table) -> ResultText {
        ResultText { parts: vec![Part::Table(table)] }
    }
}

impl From<String> for ResultText {
    fn from(lines: String) -> ResultText {
        ResultText::from(lines.as_str())
    }
}

impl From<&str> for ResultText {
    fn from(lines: &str) -> ResultText {
        let mut text = ResultText::default();
        text.push_str(lines);
        text
    }
}

impl Extend<String> for ResultText {
    fn extend<I: IntoIterator<Item = String>>(&mut self, lines: I) {
        lines.into_iter().for_each(|lines| self.push_str(&lines));
    }
}
