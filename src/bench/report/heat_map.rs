//! A matrix of the values between nodes as text: numbers with bars, or bars alone where numbers have no room.

use console::{measure_text_width, style};
use std::fmt::Write as _;

/// The columns of a terminal that a map may take.
const WIDTH: usize = 80;
/// The columns of a number with its bar and the space before it.
const CELL: usize = 7;
/// From the lowest to the highest value.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Below these shares of the median a value is red or yellow.
const COLOURED: (f64, f64) = (0.5, 0.8);

/// Formats the values from each node (rows) to each other (columns), with `unit` in the heading; `None` if there is no
/// value, or no room for so many nodes. A bar shows the share of the highest value; a missing value is `x`.
pub fn heat_map(names: &[&str], unit: &str, value: impl Fn(usize, usize) -> Option<f64>) -> Option<String> {
    let n = names.len();
    let edges = (0..n).flat_map(|from| (0..n).map(move |to| (from, to))).filter(|(from, to)| from != to);
    let mut known: Vec<f64> = edges.filter_map(|(from, to)| value(from, to)).collect();
    known.sort_by(f64::total_cmp);
    let (most, median) = (*known.last()?, known[known.len() / 2]);

    let digits = n.to_string().len();
    let labels: Vec<String> = names.iter().enumerate().map(|(i, name)| format!("{:>digits$} {name}", i + 1)).collect();
    let label = labels.iter().map(|label| measure_text_width(label)).max()?;
    let width = match () {
        () if label + n * CELL <= WIDTH => CELL,
        () if label + 2 + n <= WIDTH => 1,
        () => return None,
    };
    let mut text = format!("{unit} from the row's node to the column's node\n{:label$}", "");
    text.push_str(if width == 1 { "  " } else { "" });
    (1..=n).for_each(|i| text.push_str(&cell(&if width == 1 { i % 10 } else { i }.to_string(), width)));
    text.push('\n');
    for (from, name) in labels.iter().enumerate() {
        let _ = write!(text, "{name}{}", " ".repeat(label - measure_text_width(name)));
        text.push_str(if width == 1 { "  " } else { "" });
        for to in 0..n {
            text.push_str(&match value(from, to) {
                _ if from == to => cell("·", width),
                None => style(cell("x", width)).red().to_string(),
                Some(value) => coloured(value, median, &cell(&shown(value, most, width), width)),
            });
        }
        text.push('\n');
    }
    Some(text)
}

/// Fills a cell from the left.
fn cell(text: &str, width: usize) -> String {
    format!("{text:>width$}")
}

/// Formats a value: three digits and its bar, or the bar alone.
fn shown(value: f64, most: f64, width: usize) -> String {
    let share = if most > 0.0 { value / most } else { 0.0 };
    let bar = BARS[((share * BARS.len() as f64).ceil() as usize).clamp(1, BARS.len()) - 1];
    let decimals = match value {
        99.95.. => 0,
        9.995.. => 1,
        _ => 2,
    };
    if width == 1 { bar.to_string() } else { format!("{value:.decimals$}{bar}") }
}

fn coloured(value: f64, median: f64, text: &str) -> String {
    match value / median {
        share if share < COLOURED.0 => style(text).red().bold().to_string(),
        share if share < COLOURED.1 => style(text).yellow().to_string(),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(n: usize) -> Vec<String> {
        (1..=n).map(|i| format!("node{i}")).collect()
    }

    fn map(n: usize, value: impl Fn(usize, usize) -> Option<f64>) -> Option<String> {
        console::set_colors_enabled(false);
        let names = names(n);
        heat_map(&names.iter().map(String::as_str).collect::<Vec<_>>(), "Gb/s", value)
    }

    #[test]
    fn numbers_have_bars() {
        let value = |from, to| match (from, to) {
            (0, 1) => Some(9.414),
            (1, 0) => Some(0.94),
            (2, _) => None,
            _ => Some(4.705),
        };
        assert_eq!(
            map(3, value).unwrap(),
            "Gb/s from the row's node to the column's node\n\
             \u{20}            1      2      3\n\
             1 node1      ·  9.41█  4.71▄\n\
             2 node2  0.94▁      ·  4.71▄\n\
             3 node3      x      x      ·\n"
        );
    }

    #[test]
    fn no_line_is_wider_than_a_terminal() {
        for n in 2..90 {
            let Some(map) = map(n, |_, _| Some(960.0)) else {
                assert!(n > 60, "{n}");
                continue;
            };
            let widest = map.lines().map(measure_text_width).max().unwrap();
            assert!(widest <= WIDTH, "{n}: {widest}");
            assert_eq!(map.contains("960█"), n <= 10, "{n}");
            assert_eq!(map.lines().count(), n + 2);
        }
    }

    #[test]
    fn without_values_there_is_no_map() {
        assert_eq!(map(3, |_, _| None), None);
        assert!(map(2, |_, _| Some(0.0)).unwrap().contains("0.00▁"));
    }
}
