//! Tables as text.

use console::{Term, measure_text_width};
use std::fmt::Display;

/// Formats a cell: `–` if there is no value.
pub fn cell(value: Option<impl Display>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| value.to_string())
}

/// Returns how many columns the terminal has that standard output is; `None` where it is a pipe or a file.
pub fn columns() -> Option<usize> {
    Term::stdout().size_checked().map(|(_, columns)| columns.into())
}

/// Formats rows under a header, columns two spaces apart, without spaces at the ends of lines. Cells may have colours.
pub fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let header = header.iter().map(|h| console::style(h).bold().to_string()).collect();
    let all: Vec<Vec<String>> = std::iter::once(header).chain(rows).collect();
    let widths: Vec<usize> = (0..all[0].len())
        .map(|i| all.iter().filter_map(|r| r.get(i)).map(|c| measure_text_width(c)).max().unwrap_or(0))
        .collect();
    let mut text = String::new();
    for row in all {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(cell);
            line.push_str(&" ".repeat(width - measure_text_width(cell) + 2));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        console::set_colors_enabled(false);
        let rows =
            vec![vec!["node1".into(), "a long cell".into(), "x".into()], vec!["n".into(), String::new(), "y".into()]];
        assert_eq!(
            table(&["NODE", "WHAT", "Z"], rows),
            "NODE   WHAT         Z\nnode1  a long cell  x\nn                   y\n"
        );
    }
}
