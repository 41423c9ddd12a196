//! Values that a program prints, found by a regular expression.

use super::series::{Scale, Series};
use crate::launch::placement::Placement;
use crate::model::role::names;
use crate::text::units::date_time;
use crate::text::visible::one_line;
use regex::Regex;
use regex_syntax::ast::Ast;
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

/// Values that are no numbers, as programs write them.
const NO_NUMBER: &str = r"(?-x:(?i:[-+]?(?:nan|inf(?:inity)?)\b))";
/// The most ranks whose values that are no numbers are described one by one.
const DESCRIBED: usize = 4;

/// The numbers of steps in a line, those of the smallest step first.
static STEPS: LazyLock<[Regex; 4]> = LazyLock::new(|| {
    ["(step)s?", "(iter(?:ation)?)s?", "(batch)", "(epoch)s?"].map(|name| {
        let pattern = format!(r#"(?i)(?:^|[^a-z]){name}["']?\s*[:=#]?\s*[\[(]?([0-9]+)(?:$|[^.0-9]|\.$|\.[^0-9])"#);
        Regex::new(&pattern).expect("a valid pattern")
    })
});

/// Returns the step of a line, as it names it: `step 120`, `epoch 3`.
fn step_of(line: &str) -> Option<String> {
    let found = STEPS.iter().find_map(|step| step.captures(line))?;
    Some(format!("{} {}", found[1].to_lowercase(), &found[2]))
}

/// A value of a name that is no number: `loss nan`, `loss=-inf`, `loss: tensor(nan)`, and not in a sentence.
static NAMED: LazyLock<Regex> = LazyLock::new(|| {
    let value = r"[-+]?(?:nan|inf|infinity)";
    let pattern = format!(
        r#"(?i)[:=(]\s*{value}(?:$|[\s,;)\]}}|%"'/])|[a-z_)"']\s+{value}(?:\s*$|\s*[,;)\]}}|%/]|\s+[^a-z\s]|\s+[\w/]+\s*[:=]?\s*(?:[-+]?[0-9]|{value}\b))"#
    );
    Regex::new(&pattern).expect("a valid pattern")
});

/// Returns whether a line without control sequences names a value that is no number.
pub fn names_no_number(line: &str) -> bool {
    NAMED.is_match(line)
}

/// A pattern whose first group is a number.
#[derive(Debug, Clone)]
pub struct Pattern {
    regex: Regex,
    /// The pattern with a value that is no number in place of the group.
    no_number: Option<Regex>,
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
        let parsed = regex_syntax::ast::parse::Parser::new().parse(text).ok();
        let place = parsed.as_ref().and_then(first_group);
        let no_number = place.and_then(|(start, end)| {
            Regex::new(&format!("{}{NO_NUMBER}{}", text.get(..start)?, text.get(end..)?)).ok()
        });
        Ok(Pattern { regex, no_number, name, words: words.collect() })
    }
}

/// Returns where the first group of a pattern begins and ends.
fn first_group(ast: &Ast) -> Option<(usize, usize)> {
    match ast {
        Ast::Group(group) if group.capture_index() == Some(1) => Some((group.span.start.offset, group.span.end.offset)),
        Ast::Group(group) => first_group(&group.ast),
        Ast::Repetition(repetition) => first_group(&repetition.ast),
        Ast::Alternation(alternation) => alternation.asts.iter().find_map(first_group),
        Ast::Concat(concat) => concat.asts.iter().find_map(first_group),
        _ => None,
    }
}

impl Pattern {
    /// Returns the value in a line; one that is not finite stands for all that are no numbers.
    fn value(&self, line: &str) -> Option<f64> {
        let found = self.regex.captures(line);
        let group = found.as_ref().and_then(|found| found.get(1));
        // as programs write them: 1,234.5
        let number = group.and_then(|group| group.as_str().replace([',', '_'], "").trim().parse().ok());
        let none = self.no_number.as_ref().and_then(|none| none.find(line));
        let begins_at = found.and_then(|found| found.get(0)).map(|found| found.start());
        // `loss nan, validation loss 0.5`: the first one counts, as it does among numbers
        let is_before = none.is_some_and(|none| begins_at.is_none_or(|number| none.start() < number));
        if is_before { Some(f64::NAN) } else { number.or(none.map(|_| f64::NAN)) }
    }
}

/// Values of a rank that are no numbers: NaN and infinite ones.
#[derive(Debug, Clone, PartialEq)]
pub struct NoNumbers {
    /// Their number.
    pub count: u64,
    /// The time of the first one, in seconds since the epoch.
    pub first: f64,
    /// The step of that line, if it has one: `step 120`.
    pub step: Option<String>,
}

/// The values of one pattern.
#[derive(Debug)]
pub struct Metric {
    pattern: Pattern,
    scale: Scale,
    /// By rank.
    pub values: BTreeMap<u32, Series>,
    /// The values that are no numbers, by rank.
    pub no_numbers: BTreeMap<u32, NoNumbers>,
    /// Ranks beyond those that are drawn.
    pub are_more: bool,
    /// Lines without a match, and how many of the pattern's words they have.
    nearest: Vec<(usize, String)>,
}

impl Metric {
    pub(super) fn new(pattern: Pattern, scale: Scale) -> Metric {
        Metric {
            pattern,
            scale,
            values: BTreeMap::new(),
            no_numbers: BTreeMap::new(),
            are_more: false,
            nearest: Vec::new(),
        }
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
        let Some(value) = self.pattern.value(&line) else {
            if self.values.is_empty() {
                self.note(&line);
            }
            return;
        };
        if !value.is_finite() {
            self.count(time, rank, &line);
        }
        if self.values.len() >= RANKS && !self.values.contains_key(&rank) {
            self.are_more = true;
            return;
        }
        let series = self.values.entry(rank).or_insert_with(|| Series::new(self.scale));
        if value.is_finite() { series.add(time, value) } else { series.add_hole(time) }
    }

    /// Counts a value that is no number.
    fn count(&mut self, time: f64, rank: u32, line: &str) {
        let new = || NoNumbers { count: 0, first: f64::INFINITY, step: None };
        let known = self.no_numbers.entry(rank).or_insert_with(new);
        known.count = known.count.saturating_add(1);
        if time < known.first {
            (known.first, known.step) = (time, step_of(line));
        }
    }

    /// Describes the values that are no numbers, if there are any. `placement`: that of the job's ranks.
    pub fn describe_no_numbers(&self, placement: &Placement) -> Option<String> {
        let first = |one: &NoNumbers| {
            let step = one.step.as_ref().map_or_else(String::new, |step| format!(" ({step})"));
            format!("{}{step}", date_time(one.first))
        };
        let values = |count: u64| {
            if count == 1 {
                "1 value that is no number".to_owned()
            } else {
                format!("{count} values that are no numbers")
            }
        };
        if self.no_numbers.len() <= DESCRIBED {
            let texts = self.no_numbers.iter().map(|(rank, one)| {
                let the_first = if one.count == 1 { "" } else { "the first " };
                let rank = placement.name(*rank);
                format!("{rank} printed {}, {the_first}at {}", values(one.count), first(one))
            });
            return Some(texts.collect::<Vec<_>>().join("; ")).filter(|text| !text.is_empty());
        }
        let (rank, earliest) = self.no_numbers.iter().min_by(|a, b| a.1.first.total_cmp(&b.1.first))?;
        let named: Vec<_> = self.no_numbers.keys().map(|rank| (*rank, placement.role(*rank))).collect();
        let ranks = names(named.iter().map(|(rank, role)| (*rank, role.as_ref())));
        let count = self.no_numbers.values().map(|one| one.count).fold(0, u64::saturating_add);
        Some(format!(
            "{ranks} printed {}, the first was of {} at {}",
            values(count),
            placement.name(*rank),
            first(earliest)
        ))
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
        assert!(metric("loss (\\S+)", &["loss x"]).values.is_empty());
    }

    #[test]
    fn what_is_no_number_is_counted_whether_or_not_the_pattern_matches_it() {
        for pattern in
            ["loss ([0-9.]+)", r"loss (\S+)", r"(?:loss (?P<x>(?:\d+)(\.\d+)?))", r"(?x) loss \s ( [0-9.]+ ) # it"]
        {
            for (line, count) in [
                ("loss nan", 1),
                ("loss NaN,", 1),
                ("loss -inf", 1),
                ("loss Infinity lr 0.1", 1),
                ("\x1b[31mloss nan\x1b[0m", 1),
                ("loss nan, val loss 0.5", 1),
                ("loss 0.5, val loss nan", 0),
                ("loss 0.5", 0),
                ("loss info: none", 0),
                ("loss nan_count 3", 0),
                ("lossnan", 0),
            ] {
                let metric = metric(pattern, &[line]);
                assert_eq!(metric.no_numbers.get(&0).map_or(0, |none| none.count), count, "{pattern} {line}");
                let holes = metric.values.get(&0).map_or(0, |series| series.holes().count());
                assert_eq!(holes as u64, count, "{pattern} {line}");
            }
        }
        assert_eq!(metric("loss (\\S+)", &["loss 1e999"]).no_numbers[&0].count, 1);
        // a line with none is not one that came near
        assert_eq!(metric("train_loss ([0-9.]+)", &["train_loss nan 1"]).nearest().count(), 0);
    }

    #[test]
    fn what_is_no_number_has_its_first_time_and_step() {
        let mut metric = metric("loss ([0-9.]+)", &[]);
        const AT: f64 = 1_795_262_584.0;
        metric.take(AT + 9.0, 1, "step 3 loss nan");
        metric.take(AT, 1, "step 2 loss nan");
        assert_eq!(
            metric.describe_no_numbers(&Placement::default()).unwrap(),
            "rank 1 printed 2 values that are no numbers, the first at 2026-11-21 12:03:04 UTC (step 2)"
        );
        metric.take(AT, 0, "loss inf");
        assert!(
            metric
                .describe_no_numbers(&Placement::default())
                .unwrap()
                .starts_with("rank 0 printed 1 value that is no number, at 2026-11-21 12:03:04 UTC; rank 1")
        );
        (2..100).for_each(|rank| metric.take(AT + f64::from(rank), rank, "loss nan"));
        let text = metric.describe_no_numbers(&Placement::default()).unwrap();
        assert_eq!(
            text,
            "ranks 0-99 printed 101 values that are no numbers, the first was of rank 0 at 2026-11-21 12:03:04 UTC"
        );
        assert!(metric.are_more && metric.values.len() == RANKS);
    }

    #[test]
    fn a_step_is_found_however_it_is_written() {
        for (line, step) in [
            ("step 120 loss nan", Some("step 120")),
            ("[Epoch 3/10] loss=nan", Some("epoch 3")),
            ("epoch 3, global_step=70: loss nan", Some("step 70")),
            (r#"{"iteration": 5, "loss": NaN}"#, Some("iteration 5")),
            ("Iter [7/100] loss nan", Some("iter 7")),
            ("batch 4. loss nan", Some("batch 4")),
            ("step time 0.5 s loss nan", None),
            ("step 0.5 s loss nan", None),
            ("footstep", None),
        ] {
            assert_eq!(step_of(line).as_deref(), step, "{line}");
        }
    }

    #[test]
    fn a_line_names_a_value_that_is_no_number_or_only_speaks_of_it() {
        for line in [
            "step 3 loss nan",
            "loss=-inf lr=0.1",
            "loss: tensor(nan, device='cuda:0')",
            "loss nan, accuracy 0.1",
            "loss nan accuracy 0.1",
            "loss nan 0.8 s",
            r#"{"loss": NaN}"#,
            "train_loss Infinity",
        ] {
            assert!(names_no_number(line), "{line}");
        }
        for line in [
            "[INFO] loss 0.5",
            "12:00:00 INF starting",
            "info: none",
            "ignoring nan values of the data",
            "banana nano nan_count=0",
            "loss 0.5",
        ] {
            assert!(!names_no_number(line), "{line}");
        }
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
