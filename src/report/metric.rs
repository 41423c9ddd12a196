//! Values that a program prints, found by a regular expression.

use super::series::{Scale, Series};
use crate::text::visible::one_line;
use regex::Regex;
use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::LazyLock;

/// Number of lines that are named because they came nearest to a pattern without a match.
const NEAREST: usize = 3;
/// The most characters of such a line.
const LINE: usize = 160;
/// The most ranks that are drawn of one metric; more could not be distinguished.
const RANKS: usize = 64;

/// Control sequences for colour and style, which may stand inside of a value.
static STYLE: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\x1b\[[0-9;:]*[A-Za-z]").expect("a valid pattern"));

/// A pattern whose first group is a number.
#[derive(Debug, Clone)]
pub struct Pattern {
    regex: Regex,
    name: String,
    /// The words in it, in lower case.
    words: Vec<String>,
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Pattern, String> {
        let regex = Regex::new(text).map_err(|error| error.to_string())?;
        let Some(group) = regex.capture_names().nth(1) else {
            return Err("the pattern needs a group with the number: 'loss ([0-9.]+)'".to_owned());
        };
        let before = text.split('(').next().unwrap_or_default();
        let before: String = before.chars().filter(|c| !r"\^$.*+?[]{}|".contains(*c)).collect();
        let before = before.trim().trim_end_matches([':', '=']).trim();
        let name = group.unwrap_or(if before.is_empty() { text } else { before }).to_owned();
        let words = text.split(|c: char| !c.is_alphabetic()).filter(|word| word.len() > 2).map(str::to_lowercase);
        Ok(Pattern { regex, name, words: words.collect() })
    }
}

/// The values of one pattern.
#[derive(Debug)]
pub struct Metric {
    pattern: Pattern,
    scale: Scale,
    /// By rank.
    pub values: BTreeMap<u32, Series>,
    /// Ranks beyond those that are drawn.
    pub are_more: bool,
    /// Lines without a match, and how many of the pattern's words they have.
    nearest: Vec<(usize, String)>,
}

impl Metric {
    pub(super) fn new(pattern: Pattern, scale: Scale) -> Metric {
        Metric { pattern, scale, values: BTreeMap::new(), are_more: false, nearest: Vec::new() }
    }

    /// Returns the name of the group, else the text before it.
    pub fn name(&self) -> &str {
        &self.pattern.name
    }

    /// Returns the pattern as it was given.
    pub fn pattern(&self) -> &str {
        self.pattern.regex.as_str()
    }

    /// Takes a line of a rank.
    pub(super) fn take(&mut self, time: f64, rank: u32, line: &str) {
        let line = STYLE.replace_all(line, "");
        let found = self.pattern.regex.captures(&line).and_then(|found| found.get(1));
        // as programs write them: 1,234.5
        let number = found.and_then(|found| found.as_str().replace([',', '_'], "").trim().parse().ok());
        match number.filter(|number: &f64| number.is_finite()) {
            Some(_) if self.values.len() >= RANKS && !self.values.contains_key(&rank) => self.are_more = true,
            Some(number) => self.values.entry(rank).or_insert_with(|| Series::new(self.scale)).add(time, number),
            None if self.values.is_empty() => self.note(&line),
            None => {}
        }
    }

    /// Remembers a line if it is near.
    fn note(&mut self, line: &str) {
        let lower = line.to_lowercase();
        let words = self.pattern.words.iter().filter(|word| lower.contains(word.as_str())).count();
        let score = 2 * words + usize::from(line.contains(|c: char| c.is_ascii_digit()));
        let is_nearer = self.nearest.len() < NEAREST || self.nearest.last().is_some_and(|(least, _)| score > *least);
        // lines that differ only in their numbers say the same
        let shape = |text: &str| text.replace(|c: char| c.is_ascii_digit(), "");
        let line = one_line(line, LINE);
        if score > 1 && is_nearer && self.nearest.iter().all(|(_, other)| shape(other) != shape(&line)) {
            self.nearest.push((score, line));
            self.nearest.sort_by_key(|(score, _)| std::cmp::Reverse(*score));
            self.nearest.truncate(NEAREST);
        }
    }

    /// Returns the lines that came nearest if none matched.
    pub fn nearest(&self) -> impl Iterator<Item = &str> {
        self.nearest.iter().filter(|_| self.values.is_empty()).map(|(_, line)| line.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metric(pattern: &str, lines: &[&str]) -> Metric {
        let mut metric = Metric::new(pattern.parse().unwrap(), Scale::new(0.0, 100.0, 1.0, 10));
        lines.iter().for_each(|line| metric.take(5.0, 0, line));
        metric
    }

    #[test]
    fn a_number_is_read_however_it_is_written() {
        for (pattern, line, number) in [
            ("loss ([0-9.]+)", "epoch 1: loss 0.25", 0.25),
            ("loss[:=] *(\\S+)", "loss=1e-3", 1e-3),
            ("tokens/s: (?P<speed>[0-9,]+)", "tokens/s: 1,234,567 on 8 GPUs", 1_234_567.0),
            ("loss ([0-9.]+)", "\x1b[1mloss \x1b[32m2.5\x1b[0m", 2.5),
            ("(-?[0-9.]+) reward", "-3.5 reward", -3.5),
        ] {
            assert_eq!(metric(pattern, &[line]).values[&0].last(), Some(number), "{line}");
        }
        assert!(metric("loss (\\S+)", &["loss nan", "loss x"]).values.is_empty());
    }

    #[test]
    fn a_metric_has_a_name() {
        for (pattern, name) in [
            ("loss ([0-9.]+)", "loss"),
            ("val_loss: *(\\d+)", "val_loss"),
            ("(?P<speed>[0-9]+) it/s", "speed"),
            ("([0-9]+) it/s", "([0-9]+) it/s"),
        ] {
            assert_eq!(metric(pattern, &[]).name(), name);
        }
        assert!("loss [0-9]+".parse::<Pattern>().unwrap_err().contains("needs a group"));
        assert!("loss ([0-9".parse::<Pattern>().unwrap_err().contains("unclosed"));
    }

    #[test]
    fn without_a_match_the_nearest_lines_are_known() {
        let lines =
            ["starting", "Train Loss: 0.5 (step 1)", "Train Loss: 0.4 (step 2)", "step 7", "loss is high", "lr 0.1"];
        let nearest = metric("train_loss ([0-9.]+)", &lines);
        assert_eq!(nearest.nearest().collect::<Vec<_>>(), ["Train Loss: 0.5 (step 1)", "loss is high"]);
        assert_eq!(metric("loss ([0-9.]+)", &["loss 1", "loss is high"]).nearest().count(), 0);
    }
}
