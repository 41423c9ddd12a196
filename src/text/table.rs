//! Tables as text, whole or fitted to a number of columns.

use super::wrap::{push_line, wrap};
use console::{Term, measure_text_width};
use std::collections::BTreeSet;
use std::fmt::Display;
use std::iter::once;

/// The fewest columns that a text is wrapped to in a table, if it is longer.
const NARROWEST_TEXT: usize = 12;

/// The fewest columns that a note is wrapped to, and the longest word for which a text stays wider. An id of a job
/// fits.
const NARROWEST_NOTE: usize = 20;

/// The fewest columns that a table is fitted to.
const NARROWEST: usize = 30;

/// The fewest characters of a shortened identifier behind its prefix, such as `GPU-` or `SHA256:`.
const SHORT_ID: usize = 8;

/// A word of an identifier column with more characters is shortened.
const LONG_ID: usize = 20;

/// The kind of a column's contents, which decides how a table that is wider than the terminal shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnKind {
    /// The name of a node, a number or a state: stays whole.
    Key,
    /// Identifiers: shortened to beginnings that are unique in the column.
    Id,
    /// Names, lists and sentences: wrapped in the column.
    Text,
    /// A sentence about the row: stands below it if there is no room to wrap it in.
    Note,
    /// A detail, which is left out: the one with the highest number first.
    Detail(u8),
}

/// A column of a table.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    /// Its head.
    pub head: &'static str,
    /// The kind of its contents.
    pub kind: ColumnKind,
}

/// Returns a column that stays whole.
pub const fn key(head: &'static str) -> Column {
    Column { head, kind: ColumnKind::Key }
}

/// Returns a column of identifiers.
pub const fn id(head: &'static str) -> Column {
    Column { head, kind: ColumnKind::Id }
}

/// Returns a column of texts.
pub const fn text(head: &'static str) -> Column {
    Column { head, kind: ColumnKind::Text }
}

/// Returns a column of notes.
pub const fn note(head: &'static str) -> Column {
    Column { head, kind: ColumnKind::Note }
}

/// Returns a column that is left out if there is no room; the one with the highest number first.
pub const fn detail(order: u8, head: &'static str) -> Column {
    Column { head, kind: ColumnKind::Detail(order) }
}

/// Formats a cell: `–` if there is no value.
pub fn cell(value: Option<impl Display>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| value.to_string())
}

/// Returns how many columns the terminal has that standard output is; `None` where it is a pipe or a file.
pub fn columns() -> Option<usize> {
    Term::stdout().size_checked().map(|(_, columns)| columns.into())
}

/// Rows under a header. Cells may have colours.
#[derive(Debug, Clone)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Makes a table. A row may have fewer cells than there are columns.
    pub fn new(columns: impl Into<Vec<Column>>, rows: impl IntoIterator<Item = Vec<String>>) -> Table {
        let one_line = |cell: String| cell.replace(['\n', '\r', '\t'], " ");
        let rows = rows.into_iter().map(|row| row.into_iter().map(one_line).collect()).collect();
        Table { columns: columns.into(), rows }
    }

    /// Formats the table with columns two spaces apart, and no line longer than `width`, if there is a limit.
    pub fn fitted(&self, width: Option<usize>) -> String {
        let all: Vec<usize> = (0..self.columns.len()).collect();
        let natural = ColumnLayout { shown: &all, widths: self.widths(), below: &[], limit: usize::MAX };
        match width.map(|width| width.max(NARROWEST)) {
            Some(width) if total(&all, &natural.widths) > width => self.shortened().squeezed(width),
            _ => self.lines(&natural),
        }
    }

    /// Returns the display width of each column.
    fn widths(&self) -> Vec<usize> {
        let cells = |i: usize| self.rows.iter().filter_map(move |row| row.get(i).map(String::as_str));
        let width = |(i, column): (usize, &Column)| {
            once(column.head).chain(cells(i)).map(measure_text_width).max().unwrap_or_default()
        };
        self.columns.iter().enumerate().map(width).collect()
    }

    /// Shortens the identifiers.
    fn shortened(&self) -> Table {
        let mut table = self.clone();
        for (i, column) in self.columns.iter().enumerate() {
            if column.kind == ColumnKind::Id {
                let cells: BTreeSet<&str> =
                    self.rows.iter().filter_map(|row| row.get(i)).flat_map(|cell| words(cell)).collect();
                for cell in table.rows.iter_mut().filter_map(|row| row.get_mut(i)) {
                    *cell = shorten(cell, &cells);
                }
            }
        }
        table
    }

    /// Makes the table fit: wraps texts, moves notes below their rows, leaves out details, and at last formats each row
    /// as a block of lines.
    fn squeezed(&self, width: usize) -> String {
        let mut shown: Vec<usize> = (0..self.columns.len()).collect();
        let mut below = Vec::new();
        loop {
            if let Some(widths) = self.wrapped_widths(&shown, width) {
                return self.lines(&ColumnLayout { shown: &shown, widths, below: &below, limit: width });
            }
            let kind = |i: &usize| self.columns[*i].kind;
            let last_note = shown.iter().rposition(|i| kind(i) == ColumnKind::Note);
            let details = shown.iter().enumerate().filter_map(|(at, i)| match kind(i) {
                ColumnKind::Detail(order) => Some((order, at)),
                _ => None,
            });
            match (last_note, details.max()) {
                (Some(at), _) => below.insert(0, shown.remove(at)),
                (None, Some((_, at))) => drop(shown.remove(at)),
                (None, None) => return self.blocks(width),
            }
        }
    }

    /// Returns the width of each column such that these fit, the widest texts wrapped; `None` if they do not fit.
    fn wrapped_widths(&self, shown: &[usize], width: usize) -> Option<Vec<usize>> {
        let mut widths = self.widths();
        let head = |i: usize| measure_text_width(self.columns[i].head);
        let longest_word = |i: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(i));
            cells.flat_map(|cell| cell.split_whitespace()).map(measure_text_width).max().unwrap_or_default()
        };
        let least = |i: usize, natural: usize| match self.columns[i].kind {
            ColumnKind::Text if natural <= NARROWEST_NOTE => natural,
            ColumnKind::Text => natural.min(longest_word(i).clamp(NARROWEST_TEXT, NARROWEST_NOTE).max(head(i))),
            ColumnKind::Note => natural.min(NARROWEST_NOTE.max(head(i))),
            ColumnKind::Key | ColumnKind::Id | ColumnKind::Detail(_) => natural,
        };
        let least: Vec<usize> = widths.iter().enumerate().map(|(i, natural)| least(i, *natural)).collect();
        loop {
            if total(shown, &widths) <= width {
                return Some(widths);
            }
            let can_shrink = shown.iter().copied().filter(|i| widths[*i] > least[*i]);
            let widest = can_shrink.max_by_key(|i| widths[*i])?;
            widths[widest] -= 1;
        }
    }

    fn lines(&self, layout: &ColumnLayout<'_>) -> String {
        let mut text = String::new();
        let heads: Vec<String> = self.columns.iter().map(|c| console::style(c.head).bold().to_string()).collect();
        let line_of = |row: &[String], text: &mut String| {
            let wrapped = |i: &usize| {
                let cell = row.get(*i).map_or("", String::as_str);
                wrap(cell, layout.widths[*i])
            };
            let cells: Vec<Vec<String>> = layout.shown.iter().map(wrapped).collect();
            for line in 0..cells.iter().map(Vec::len).max().unwrap_or_default() {
                let mut whole = String::new();
                for (cell, i) in cells.iter().zip(layout.shown) {
                    let part = cell.get(line).map_or("", String::as_str);
                    whole.push_str(part);
                    whole.push_str(&" ".repeat(layout.widths[*i].saturating_sub(measure_text_width(part)) + 2));
                }
                push_line(text, &whole);
            }
        };
        line_of(&heads, &mut text);
        for row in &self.rows {
            line_of(row, &mut text);
            for i in layout.below {
                let cell = row.get(*i).filter(|cell| !is_empty(cell));
                let labelled = cell.map(|cell| format!("{}: {cell}", self.columns[*i].head.to_lowercase()));
                let lines = labelled.into_iter().flat_map(|cell| wrap(&cell, layout.limit - 2));
                lines.for_each(|line| push_line(&mut text, &format!("  {line}")));
            }
        }
        text
    }

    /// Formats each row as a block: a line for each cell with a value behind its head, and an empty line between rows.
    fn blocks(&self, width: usize) -> String {
        let head = self.columns.iter().map(|column| measure_text_width(column.head)).max().unwrap_or_default() + 2;
        let block = |row: &Vec<String>| {
            let mut text = String::new();
            for (column, cell) in self.columns.iter().zip(row).filter(|(_, cell)| !is_empty(cell)) {
                for (at, line) in wrap(cell, width.saturating_sub(head).max(1)).iter().enumerate() {
                    let name = if at == 0 { column.head } else { "" };
                    let space = " ".repeat(head - measure_text_width(name));
                    push_line(&mut text, &format!("{}{space}{line}", console::style(name).bold()));
                }
            }
            text
        };
        self.rows.iter().map(block).collect::<Vec<_>>().join("\n")
    }
}

/// The arrangement of a table's columns, and their widths.
struct ColumnLayout<'a> {
    /// The columns that are shown, from left to right.
    shown: &'a [usize],
    /// The width of each column of the table.
    widths: Vec<usize>,
    /// The columns whose cells stand below their rows.
    below: &'a [usize],
    /// The most columns of a line.
    limit: usize,
}

/// Returns the width of a line with these columns.
fn total(shown: &[usize], widths: &[usize]) -> usize {
    shown.iter().map(|i| widths[*i]).sum::<usize>() + 2 * shown.len().saturating_sub(1)
}

/// Returns whether a cell has no value.
fn is_empty(cell: &str) -> bool {
    cell.is_empty() || cell == "–"
}

fn words(cell: &str) -> impl Iterator<Item = &str> {
    cell.split(' ').filter(|word| word.chars().count() > LONG_ID)
}

/// Shortens the long words of a cell to beginnings that none of the `others` has.
fn shorten(cell: &str, others: &BTreeSet<&str>) -> String {
    let shorten = |word: &str| match word.chars().count() > LONG_ID {
        true => beginning(word, others),
        false => word.to_owned(),
    };
    cell.split(' ').map(shorten).collect::<Vec<_>>().join(" ")
}

fn beginning(word: &str, others: &BTreeSet<&str>) -> String {
    let prefix = word.find(['-', ':']).filter(|at| *at < SHORT_ID).map_or(0, |at| at + 1);
    let shared = |other: &&str| word.chars().zip(other.chars()).take_while(|(a, b)| a == b).count();
    let unique = others.iter().filter(|other| **other != word).map(shared).max().map_or(0, |shared| shared + 1);
    let most = (prefix + SHORT_ID).max(unique);
    match word.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &word[..end]),
        None => word.to_owned(),
    }
}

#[cfg(test)]
impl Table {
    /// Returns the heads of its columns.
    pub fn heads(&self) -> Vec<&'static str> {
        self.columns.iter().map(|column| column.head).collect()
    }

    /// Returns whether its rows are blocks of lines at this width.
    pub fn is_in_blocks(&self, width: usize) -> bool {
        self.fitted(Some(width)) == self.shortened().blocks(width)
    }

    /// Returns it with longer values than anyone has: fully qualified names, UUIDs, long lists and sentences.
    pub fn with_awkward_values(&self) -> Table {
        let value = |(column, cell): (&Column, &String)| match column.kind {
            ColumnKind::Key if column.head.starts_with("NODE") => "gpu-worker-0001.rack-17.cluster.example.org".into(),
            ColumnKind::Key => cell.clone(),
            ColumnKind::Id => "GPU-4f1e0a7c-1111-aaaa-8a2e-0123456789ab".into(),
            ColumnKind::Text | ColumnKind::Note | ColumnKind::Detail(_) => {
                format!("{cell} 深層学習 {}", "20261121-120304-k7qd,no-answer-from-the-node-within-20-s ".repeat(16))
            }
        };
        let row = |row: &Vec<String>| self.columns.iter().zip(row).map(value).collect();
        Table { columns: self.columns.clone(), rows: self.rows.iter().map(row).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rows(rows: &[&[&str]]) -> Vec<Vec<String>> {
        rows.iter().map(|row| row.iter().map(|cell| (*cell).to_owned()).collect()).collect()
    }

    fn shown(table: &Table, width: impl Into<Option<usize>>) -> String {
        console::set_colors_enabled(false);
        table.fitted(width.into())
    }

    #[test]
    fn columns_line_up() {
        let table = Table::new([key("NODE"), text("WHAT"), key("Z")], rows(&[&["node1", "a long cell", "x"], &["n"]]));
        assert_eq!(shown(&table, None), "NODE   WHAT         Z\nnode1  a long cell  x\nn\n");
        assert_eq!(shown(&table, 80), shown(&table, None));
    }

    #[test]
    fn identifiers_keep_a_unique_beginning() {
        let uuids = ["GPU-4f1e0a7c-1111-aaaa-8a2e-0123456789ab", "GPU-4f1e0a7c-1112-aaaa-8a2e-0123456789ab"];
        let cells = [&["0", uuids[0]][..], &["1", uuids[1]], &["2", uuids[0]], &["3", "–"]];
        let table = Table::new([key("RANK"), id("GPU")], rows(&cells));
        insta::assert_snapshot!(shown(&table, 40), @r"
        RANK  GPU
        0     GPU-4f1e0a7c-1111…
        1     GPU-4f1e0a7c-1112…
        2     GPU-4f1e0a7c-1111…
        3     –
        ");
        assert!(shown(&table, 46).contains(uuids[1]), "there is room for all of it");
        let one = Table::new([key("KEY"), id("FINGERPRINT")], rows(&[&["x", "SHA256:uNiVztksCsDhcc0u9e8BrTqza +2"]]));
        assert!(shown(&one, 35).contains("x    SHA256:uNiVztks… +2\n"));
    }

    #[test]
    fn a_table_that_is_too_wide_wraps_then_moves_then_leaves_out() {
        let columns = [key("JOB"), text("NAME"), detail(1, "WHO"), detail(2, "PROJECT"), key("CODE"), note("WHY")];
        let cells = [
            &["20261121-120304-k7qd", "resnet", "ana@desk", "vision", "1", "node2: rank 3 was killed by SIGKILL"][..],
            &["20261121-120304-k7qe", "a-name-of-more-than-twenty-characters", "bob@desk", "vision", "0", ""],
        ];
        let table = Table::new(columns, rows(&cells));
        insta::assert_snapshot!(shown(&table, 90), @r"
        JOB                   NAME                   WHO       PROJECT  CODE  WHY
        20261121-120304-k7qd  resnet                 ana@desk  vision   1     node2: rank 3 was
                                                                              killed by SIGKILL
        20261121-120304-k7qe  a-name-of-more-than-   bob@desk  vision   0
                              twenty-characters
        ");
        insta::assert_snapshot!(shown(&table, 60), @r"
        JOB                   NAME                    WHO       CODE
        20261121-120304-k7qd  resnet                  ana@desk  1
          why: node2: rank 3 was killed by SIGKILL
        20261121-120304-k7qe  a-name-of-more-than-    bob@desk  0
                              twenty-characters
        ");
        insta::assert_snapshot!(shown(&table, 40), @r"
        JOB      20261121-120304-k7qd
        NAME     resnet
        WHO      ana@desk
        PROJECT  vision
        CODE     1
        WHY      node2: rank 3 was killed by
                 SIGKILL

        JOB      20261121-120304-k7qe
        NAME     a-name-of-more-than-twenty-
                 characters
        WHO      bob@desk
        PROJECT  vision
        CODE     0
        ");
    }

    #[test]
    fn wide_characters_count_twice() {
        let table = Table::new([text("NAME"), key("N")], rows(&[&["深層学習の長い名前のジョブ", "1"]]));
        insta::assert_snapshot!(shown(&table, 30), @r"
        NAME                        N
        深層学習の長い名前のジョブ  1
        ");
        let table = Table::new([text("NAME"), key("NUMBER")], rows(&[&["深層学習の長い名前のジョブ", "1"]]));
        insta::assert_snapshot!(shown(&table, 30), @r"
        NAME                    NUMBER
        深層学習の長い名前のジ  1
        ョブ
        ");
    }

    fn column() -> impl Strategy<Value = Column> {
        let kinds = [
            ColumnKind::Key,
            ColumnKind::Id,
            ColumnKind::Text,
            ColumnKind::Note,
            ColumnKind::Detail(1),
            ColumnKind::Detail(2),
        ];
        (prop::sample::select(vec!["N", "NODE", "OWNER/MODES"]), prop::sample::select(kinds.to_vec()))
            .prop_map(|(head, kind)| Column { head, kind })
    }

    proptest! {
        #[test]
        fn no_line_is_too_long(
            columns in prop::collection::vec(column(), 1..9),
            cells in prop::collection::vec(prop::collection::vec("[a-z深é \\-,]{0,90}", 0..9), 0..5),
            width in 30..120usize,
        ) {
            console::set_colors_enabled(false);
            let count = columns.len();
            let table = Table::new(columns, cells.into_iter().map(|row| row.into_iter().take(count).collect()));
            for line in table.fitted(Some(width)).lines() {
                prop_assert!(measure_text_width(line) <= width, "{line:?}");
            }
        }
    }
}
