//! Reads fields out of a TOML table and goes on after a fault, so that all of them are found in one pass.

use super::fault::{Fault, Faults, Places, harmless, quoted};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Byte range in the text.
pub(super) type Span = Range<usize>;

/// Why a value of the right type is not good enough: what more there is to say than what was expected; may be empty.
pub(super) type Hint = Cow<'static, str>;

/// A value that was refused without more to say.
pub(super) const NO_HINT: Hint = Cow::Borrowed("");

/// More entries than this are no list of a node's devices or mounts.
const LONGEST_LIST: usize = 64;

/// The faults so far, and the text they are in.
pub(super) struct Report<'t> {
    text: &'t str,
    places: Places<'t>,
    faults: Vec<(Option<Span>, String)>,
}

impl<'t> Report<'t> {
    pub(super) fn new(text: &'t str) -> Report<'t> {
        Report { text, places: Places::new(text), faults: Vec::new() }
    }

    /// A fault at a place.
    pub(super) fn at(&mut self, span: Span, message: impl Into<String>) {
        self.faults.push((Some(span), message.into()));
    }

    /// Something that the whole file lacks.
    pub(super) fn lacking(&mut self, message: impl Into<String>) {
        self.faults.push((None, message.into()));
    }

    /// The line, from 1, where a span begins.
    pub(super) fn line(&self, span: &Span) -> usize {
        self.places.line(span.start)
    }

    pub(super) fn is_clean(&self) -> bool {
        self.faults.is_empty()
    }

    /// The faults in the order of their places; what the whole file lacks stands at its beginning.
    pub(super) fn into_faults(mut self, file: &Path) -> Faults {
        self.faults.sort_by_key(|(span, _)| span.as_ref().map_or(0, |span| span.start));
        let fault = |(span, message): (Option<Span>, String)| match span {
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
    pub(super) fn found_here(&self, span: &Span) -> String {
        match self.text.get(span.start..).and_then(|rest| rest.chars().next()) {
            None => "the end of the file".to_owned(),
            Some('\r' | '\n') => "the end of the line".to_owned(),
            Some(next) => format!("`{}`", self.source(&(span.start..span.end.max(span.start + next.len_utf8())))),
        }
    }

    /// The text of a span as it stands in the file, up to the end of its line, shortened and safe to show.
    pub(super) fn source(&self, span: &Span) -> String {
        let text = self.text.get(span.clone()).unwrap_or_default();
        let mut chars = text.lines().next().unwrap_or_default().chars();
        let mut source: String = chars.by_ref().take(40).map(harmless).collect();
        source.push_str(if chars.next().is_some() { "…" } else { "" });
        source
    }
}

/// A table of the file with the fields it may have. Unknown ones are reported when it is opened.
pub(super) struct Section<'a, 't> {
    /// How messages name it: `cluster`.
    label: &'static str,
    fields: &'static [&'static str],
    /// Its heading, or the whole of an inline table; `None` for a table that the file lacks.
    span: Option<Span>,
    table: Option<&'a DeTable<'t>>,
    /// Known fields that an unknown one seems to mean: these are not missing on top of it.
    meant: Vec<&'static str>,
}

impl<'a, 't> Section<'a, 't> {
    /// A table with its unknown fields reported. `elsewhere` tells where else a field may be.
    pub(super) fn open(
        label: &'static str,
        fields: &'static [&'static str],
        span: Span,
        table: &'a DeTable<'t>,
        elsewhere: fn(&str) -> Vec<&'static str>,
        report: &mut Report<'_>,
    ) -> Section<'a, 't> {
        let mut section = Section { label, fields, span: Some(span), table: Some(table), meant: Vec::new() };
        for (key, value) in table.iter().filter(|(key, _)| !fields.contains(&key.get_ref().as_ref())) {
            let (name, elsewhere) = (key.get_ref(), elsewhere(key.get_ref()));
            let hint = match (nearest(name, fields), &elsewhere[..]) {
                (Some(near), _) => {
                    section.meant.push(near);
                    format!("; did you mean `{near}`?")
                }
                (None, []) => String::new(),
                (None, places) => format!("; it belongs in {}", places.join(" or ")),
            };
            let (thing, things) = match (label, value.get_ref()) {
                ("", DeValue::Table(_) | DeValue::Array(_)) => ("table", "tables"),
                ("", _) => ("field", "tables"),
                _ => ("field", "fields"),
            };
            let message = format!("{}: unknown {thing}{hint} ({things}: {})", section.path(name), fields.join(", "));
            report.at(key.span(), message);
        }
        section
    }

    /// Stands for a table that the file does not have.
    pub(super) fn absent(label: &'static str, fields: &'static [&'static str]) -> Section<'a, 't> {
        Section { label, fields, span: None, table: None, meant: Vec::new() }
    }

    /// Where a field's value is.
    pub(super) fn span(&self, name: &str) -> Option<Span> {
        self.value(name).map(Spanned::span)
    }

    /// Where a field's value is, or else the table's heading.
    pub(super) fn span_or_heading(&self, name: &str) -> Span {
        self.span(name).or_else(|| self.span.clone()).unwrap_or_default()
    }

    /// A field as it stands in the file.
    pub(super) fn value(&self, name: &str) -> Option<&'a Spanned<DeValue<'t>>> {
        debug_assert!(self.fields.contains(&name), "{name} is not in the list of the fields of {}", self.label);
        self.table?.get(name)
    }

    /// Reports a field that must be there and is not.
    pub(super) fn require(&self, name: &'static str, expected: &str, report: &mut Report<'_>) {
        if let (Some(span), None) = (&self.span, self.value(name))
            && !self.is_meant(name)
        {
            report.at(span.clone(), format!("{}: missing; expected {expected}", self.path(name)));
        }
    }

    /// Whether an unknown field seems to mean this one.
    pub(super) fn is_meant(&self, name: &str) -> bool {
        self.meant.contains(&name)
    }

    /// Reports that the value of a field is wrong in itself or beside others.
    pub(super) fn fault(&self, name: &str, span: Span, message: &str, report: &mut Report<'_>) {
        report.at(span, format!("{}: {message}", self.path(name)));
    }

    /// A string that `accept` takes.
    pub(super) fn text<T>(
        &self,
        name: &str,
        expected: &str,
        report: &mut Report<'_>,
        accept: impl FnOnce(&str) -> Result<T, Hint>,
    ) -> Option<T> {
        self.read(name, expected, report, |value| match value {
            DeValue::String(text) => Some(accept(text)),
            _ => None,
        })
    }

    /// An integer of a range.
    pub(super) fn whole(&self, name: &str, expected: &str, range: Range<u64>, report: &mut Report<'_>) -> Option<u64> {
        self.read(name, expected, report, |value| integer(value).map(|number| within(number, range)))
    }

    /// `true` or `false`.
    pub(super) fn flag(&self, name: &str, report: &mut Report<'_>) -> Option<bool> {
        self.read(name, "true or false", report, |value| value.as_bool().map(Ok))
    }

    /// A value of whatever type `accept` takes; it gives `None` for a type it does not know.
    pub(super) fn read<T>(
        &self,
        name: &str,
        expected: &str,
        report: &mut Report<'_>,
        accept: impl FnOnce(&DeValue<'t>) -> Option<Result<T, Hint>>,
    ) -> Option<T> {
        let value = self.value(name)?;
        self.judge(name, expected, value, accept(value.get_ref()), report)
    }

    /// A list of such values; each that is refused is reported where it stands.
    pub(super) fn list<T>(
        &self,
        name: &str,
        expected: &str,
        report: &mut Report<'_>,
        mut accept: impl FnMut(&DeValue<'t>) -> Option<Result<T, Hint>>,
    ) -> Option<Vec<T>> {
        let value = self.value(name)?;
        match value.get_ref() {
            DeValue::Array(items) if items.len() <= LONGEST_LIST => {
                let judge =
                    |item: &Spanned<DeValue<'t>>| self.judge(name, expected, item, accept(item.get_ref()), report);
                let read: Vec<Option<T>> = items.iter().map(judge).collect();
                read.into_iter().collect()
            }
            DeValue::Array(items) => {
                let message = format!("expected a list of at most {LONGEST_LIST}, found one of {}", items.len());
                self.fault(name, value.span(), &message, report);
                None
            }
            _ => self.judge(name, &format!("a list, each {expected}"), value, None, report),
        }
    }

    /// A table whose keys are names that `known` takes.
    pub(super) fn entries<T>(
        &self,
        name: &str,
        key_expected: &str,
        expected: &str,
        report: &mut Report<'_>,
        known: impl Fn(&str) -> Result<(), Hint>,
        accept: impl Fn(&DeValue<'t>) -> Option<Result<T, Hint>>,
    ) -> Option<BTreeMap<String, T>> {
        let value = self.value(name)?;
        let DeValue::Table(table) = value.get_ref() else {
            return self.judge(name, "a table", value, None, report);
        };
        let mut good = true;
        let mut entries = BTreeMap::new();
        for (key, value) in table {
            if let Err(hint) = known(key.get_ref()) {
                let separator = if hint.is_empty() { "" } else { "; " };
                let message = format!("expected {key_expected}, found {}{separator}{hint}", quoted(key.get_ref()));
                self.fault(name, key.span(), &message, report);
                good = false;
            }
            match self.judge(name, expected, value, accept(value.get_ref()), report) {
                Some(value) => drop(entries.insert(key.get_ref().to_string(), value)),
                None => good = false,
            }
        }
        good.then_some(entries)
    }

    /// Reports a value unless it was accepted; `None` is a type that nobody knows.
    fn judge<T>(
        &self,
        name: &str,
        expected: &str,
        value: &Spanned<DeValue<'t>>,
        accepted: Option<Result<T, Hint>>,
        report: &mut Report<'_>,
    ) -> Option<T> {
        let (with_type, hint) = match accepted {
            Some(Ok(good)) => return Some(good),
            Some(Err(hint)) => (false, hint),
            None => (true, NO_HINT),
        };
        let separator = if hint.is_empty() { "" } else { "; " };
        let found = report.found(value, with_type);
        let message = format!("expected {expected}, found {found}{separator}{hint}");
        self.fault(name, value.span(), &message, report);
        None
    }

    /// How messages name a field, also one that the user made up.
    fn path(&self, name: &str) -> String {
        let bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        let plain = !name.is_empty() && name.len() <= 60 && name.chars().all(bare);
        let name = if plain { Cow::Borrowed(name) } else { Cow::Owned(quoted(name)) };
        if self.label.is_empty() { name.into_owned() } else { format!("{}.{name}", self.label) }
    }
}

/// An integer of the file; the inner `None` is one that no number here can be. The outer is another type.
pub(super) fn integer(value: &DeValue<'_>) -> Option<Option<u64>> {
    let integer = value.as_integer()?;
    Some(u64::from_str_radix(integer.as_str(), integer.radix()).ok())
}

/// The number, if it is in the range.
pub(super) fn within(number: Option<u64>, range: Range<u64>) -> Result<u64, Hint> {
    number.filter(|number| range.contains(number)).ok_or(NO_HINT)
}

/// The known name that an unknown one was most probably meant to be.
fn nearest(name: &str, known: &[&'static str]) -> Option<&'static str> {
    // Nobody means a short name by a long one, and the distance costs the product of both lengths.
    if name.len() > 40 {
        return None;
    }
    let name = name.to_lowercase().replace('-', "_");
    let near = known
        .iter()
        .map(|known| (distance(&name, known), *known))
        .filter(|(distance, known)| *distance <= (known.len().max(name.len()) / 3).max(1))
        .min_by_key(|(distance, _)| *distance);
    if let Some((_, near)) = near {
        return Some(near);
    }
    // `hostname` for `host`, `port` for `ssh_port`: if it is only one.
    let only = |alike: &dyn Fn(&str, &str) -> bool| {
        let mut known = known.iter().filter(|known| name.len().min(known.len()) >= 3 && alike(&name, known));
        match (known.next(), known.next()) {
            (Some(only), None) => Some(*only),
            _ => None,
        }
    };
    only(&|name, known| name.starts_with(known) || known.starts_with(name))
        .or_else(|| only(&|name, known| name.contains(known) || known.contains(name)))
}

/// How many characters have to be put in, taken out, changed or swapped with the next to make one name the other.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let change = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = change.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::super::{CLUSTER_FIELDS, NODE_FIELDS, TABLES};
    use super::{distance, nearest};

    #[test]
    fn distances() {
        for (a, b, expected) in
            [("", "", 0), ("a", "", 1), ("gpu", "gpus", 1), ("hots", "host", 1), ("port", "port", 0), ("ab", "cd", 2)]
        {
            assert_eq!((distance(a, b), distance(b, a)), (expected, expected), "{a} {b}");
        }
    }

    #[test]
    fn suggestions() {
        for (name, fields, expected) in [
            ("gpu", NODE_FIELDS, Some("gpus")),
            ("GPUS", NODE_FIELDS, Some("gpus")),
            ("ssh-port", NODE_FIELDS, Some("ssh_port")),
            ("port", NODE_FIELDS, Some("ssh_port")),
            ("hostname", NODE_FIELDS, Some("host")),
            ("adress", NODE_FIELDS, Some("address")),
            ("user_name", NODE_FIELDS, Some("user")),
            ("connect_timeout", CLUSTER_FIELDS, Some("connect_timeout_s")),
            ("timeout", CLUSTER_FIELDS, None), // three of them
            ("interfaces_name", NODE_FIELDS, Some("interface")),
            ("colour", CLUSTER_FIELDS, None),
            ("", CLUSTER_FIELDS, None),
            ("nodes", TABLES, Some("node")),
            ("default", TABLES, Some("defaults")),
        ] {
            assert_eq!(nearest(name, fields), expected, "{name}");
        }
    }
}
