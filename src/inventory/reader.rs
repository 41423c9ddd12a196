//! Reads fields out of a TOML table and goes on after a fault, so that all of them are found in one pass.

use super::fault::{Report, quoted};
use super::fields::{CLUSTER_FIELDS, DEFAULTS_FIELDS, Field, NODE_FIELDS};
use super::kind::Context;
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Byte range in the text.
pub(super) type Span = Range<usize>;

/// Why a value of the right type is refused, beyond what was expected; may be empty.
pub(super) type Hint = Cow<'static, str>;

/// The outcome of a check.
pub(super) type Checked<T> = Result<T, Hint>;

/// A value that was refused without more to say.
pub(super) const NO_HINT: Hint = Cow::Borrowed("");

/// The most entries of a list.
const LONGEST_LIST: usize = 64;

/// A table of the file. Unknown fields are reported when it is opened.
pub(super) struct Section<'a, 't> {
    /// How messages name it: `cluster`.
    label: &'static str,
    /// Its heading, or the whole of an inline table; `None` for a table that the file lacks.
    span: Option<Span>,
    table: Option<&'a DeTable<'t>>,
    /// Known fields that an unknown one seems to mean: these are not missing on top of it.
    meant: Vec<&'static str>,
    /// The good values by the names of their fields.
    pub(super) values: Map<String, Value>,
}

impl<'a, 't> Section<'a, 't> {
    /// Opens a table and reports its unknown fields.
    pub(super) fn open(
        label: &'static str,
        known: &'static [&'static str],
        span: Span,
        table: &'a DeTable<'t>,
        report: &mut Report<'_>,
    ) -> Section<'a, 't> {
        let mut section = Section { span: Some(span), table: Some(table), ..Section::absent(label) };
        for (key, value) in table.iter().filter(|(key, _)| !known.contains(&key.get_ref().as_ref())) {
            let name = key.get_ref();
            let hint = match (nearest(name, known), &tables_with(name)[..]) {
                (Some(near), _) => {
                    section.meant.push(near);
                    format!("; did you mean `{near}`?")
                }
                (None, []) => String::new(),
                (None, tables) => format!("; it belongs in {}", tables.join(" or ")),
            };
            let (thing, things) = match (label, value.get_ref()) {
                ("", DeValue::Table(_) | DeValue::Array(_)) => ("table", "tables"),
                ("", _) => ("field", "tables"),
                _ => ("field", "fields"),
            };
            let message = format!("{}: unknown {thing}{hint} ({things}: {})", section.path(name), known.join(", "));
            report.at(key.span(), message);
        }
        section
    }

    /// Stands for a table that the file does not have.
    pub(super) fn absent(label: &'static str) -> Section<'a, 't> {
        Section { label, span: None, table: None, meant: Vec::new(), values: Map::new() }
    }

    /// Reads these fields into `values` and reports what is wrong with them.
    pub(super) fn read(
        mut self,
        fields: impl Iterator<Item = &'static Field>,
        context: Context<'_>,
        report: &mut Report<'_>,
    ) -> Section<'a, 't> {
        for field in fields {
            let Some(value) = self.value(field.name) else { continue };
            let mut reader = FieldReader { path: self.path(field.name), report };
            if let Some(value) = field.kind.read(value, context, &mut reader) {
                self.values.insert(field.name.to_owned(), value);
            }
        }
        self
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
        self.table?.get(name)
    }

    /// Whether a field is there and was refused.
    pub(super) fn is_refused(&self, name: &str) -> bool {
        self.value(name).is_some() && !self.values.contains_key(name)
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

    /// Reports that a field is wrong in itself or beside others: where its value is, or else at the table's heading.
    pub(super) fn fault(&self, name: &str, message: &str, report: &mut Report<'_>) {
        report.at(self.span_or_heading(name), format!("{}: {message}", self.path(name)));
    }

    /// How messages name a field, also one that the user made up.
    fn path(&self, name: &str) -> String {
        let bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        let plain = !name.is_empty() && name.len() <= 60 && name.chars().all(bare);
        let name = if plain { Cow::Borrowed(name) } else { Cow::Owned(quoted(name)) };
        if self.label.is_empty() { name.into_owned() } else { format!("{}.{name}", self.label) }
    }
}

/// Reads the value of one field.
pub(super) struct FieldReader<'r, 't> {
    /// How messages name the field: `cluster.port`.
    path: String,
    report: &'r mut Report<'t>,
}

impl FieldReader<'_, '_> {
    /// Reports a fault of the field.
    pub(super) fn fault(&mut self, span: Span, message: &str) {
        self.report.at(span, format!("{}: {message}", self.path));
    }

    /// Reports a value unless it was accepted; `None` is a value of the wrong type.
    pub(super) fn judge(
        &mut self,
        expected: &str,
        value: &Spanned<DeValue<'_>>,
        accepted: Option<Checked<Value>>,
    ) -> Option<Value> {
        let (with_type, hint) = match accepted {
            Some(Ok(good)) => return Some(good),
            Some(Err(hint)) => (false, hint),
            None => (true, NO_HINT),
        };
        let found = self.report.found(value, with_type);
        self.fault(value.span(), &refusal(expected, &found, &hint));
        None
    }

    /// Reads a list; each entry that is refused is reported where it stands.
    pub(super) fn list(
        &mut self,
        expected: &str,
        value: &Spanned<DeValue<'_>>,
        mut accept: impl FnMut(&DeValue<'_>) -> Option<Checked<Value>>,
    ) -> Option<Value> {
        match value.get_ref() {
            DeValue::Array(items) if items.len() <= LONGEST_LIST => {
                let read: Vec<_> =
                    items.iter().map(|item| self.judge(expected, item, accept(item.get_ref()))).collect();
                read.into_iter().collect()
            }
            DeValue::Array(items) => {
                let found = items.len();
                self.fault(value.span(), &format!("expected a list of at most {LONGEST_LIST}, found one of {found}"));
                None
            }
            _ => self.judge(&format!("a list, each {expected}"), value, None),
        }
    }

    /// Reads a table whose keys are names that `known` accepts.
    pub(super) fn entries(
        &mut self,
        key_expected: &str,
        expected: &str,
        value: &Spanned<DeValue<'_>>,
        known: fn(&str) -> Checked<()>,
        accept: fn(&DeValue<'_>) -> Option<Checked<Value>>,
    ) -> Option<Value> {
        let DeValue::Table(table) = value.get_ref() else { return self.judge("a table", value, None) };
        let mut entries = Map::new();
        let mut good = true;
        for (key, value) in table {
            let name = key.get_ref();
            if let Err(hint) = known(name) {
                self.fault(key.span(), &refusal(key_expected, &quoted(name), &hint));
                good = false;
            }
            match self.judge(expected, value, accept(value.get_ref())) {
                Some(value) => drop(entries.insert(name.to_string(), value)),
                None => good = false,
            }
        }
        good.then_some(Value::Object(entries))
    }
}

/// "expected …, found …", with the hint if there is one.
pub(super) fn refusal(expected: &str, found: &str, hint: &Hint) -> String {
    let separator = if hint.is_empty() { "" } else { "; " };
    format!("expected {expected}, found {found}{separator}{hint}")
}

/// The tables, as they are written, that have a field.
fn tables_with(field: &str) -> Vec<&'static str> {
    let tables = [("[cluster]", CLUSTER_FIELDS), ("[defaults]", DEFAULTS_FIELDS), ("[[node]]", NODE_FIELDS)];
    tables.into_iter().filter(|(_, fields)| fields.contains(&field)).map(|(table, _)| table).collect()
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
        .map(|known| (strsim::osa_distance(&name, known), *known))
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

#[cfg(test)]
mod tests {
    use super::super::{CLUSTER_FIELDS, NODE_FIELDS, TABLES};
    use super::nearest;

    #[test]
    fn suggestions() {
        for (name, fields, expected) in [
            ("gpu", NODE_FIELDS, Some("gpus")),
            ("GPUS", NODE_FIELDS, Some("gpus")),
            ("hots", NODE_FIELDS, Some("host")),
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
