//! Reads the tables of the file and continues after a fault, so that all of them are found in one pass.

use super::check::{NAME, separator};
use super::fault::{FaultReport, quoted};
use super::fields;
use super::kind::ValueKind;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::collections::HashSet;
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

/// A table of the file.
pub(super) struct Section<'a> {
    /// Its name in messages: `cluster`.
    label: &'static str,
    /// Its heading, or the whole of an inline table.
    span: Range<usize>,
    table: &'a DeTable<'a>,
    pub(super) report: &'a FaultReport<'a>,
    /// The good values by the names of their fields.
    pub(super) values: Map<String, Value>,
}

impl<'a> Section<'a> {
    /// Reads a table and reports what is wrong with its fields.
    pub(super) fn read(
        label: &'static str,
        span: Range<usize>,
        table: &'a DeTable<'a>,
        report: &'a FaultReport<'a>,
    ) -> Section<'a> {
        let mut section = Section { label, span, table, report, values: Map::new() };
        let known = fields::names(label);
        for key in table.keys().filter(|key| !known.contains(&key.get_ref().as_ref())) {
            let name = key.get_ref();
            report.at(key.span(), format!("{}: {}", section.path(name), unknown(name, label, &known)));
        }
        for field in fields::of(label) {
            let Some(value) = section.value(field.name) else { continue };
            if let Some(value) = read(&field.kind, value, &section.path(field.name), report) {
                section.values.insert(field.name.to_owned(), value);
            }
        }
        section
    }

    /// Reads the table of this name inside of this one, which is there at most once.
    pub(super) fn table(&self, name: &'static str) -> Option<Section<'a>> {
        let value = self.value(name)?;
        match value.get_ref() {
            DeValue::Table(table) => Some(Section::read(name, value.span(), table, self.report)),
            _ => {
                self.fault(name, &format!("expected one table [{name}], found {}", found(value, self.report)));
                None
            }
        }
    }

    /// Returns whether the table has no fields, known or not.
    pub(super) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Returns the place of a field's value, or else of the table's heading.
    pub(super) fn span(&self, name: &str) -> Range<usize> {
        self.value(name).map_or(self.span.clone(), Spanned::span)
    }

    /// A field as it stands in the file.
    pub(super) fn value(&self, name: &str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.table.get(name)
    }

    /// Reports a field that must be there and is not.
    pub(super) fn require(&self, name: &str, expected: &str) {
        if self.value(name).is_none() {
            self.fault(name, &format!("missing; expected {expected}"));
        }
    }

    /// Reports a fault that involves several fields, at the field's value or else at the table's heading.
    pub(super) fn fault(&self, name: &str, message: &str) {
        self.report.at(self.span(name), format!("{}: {message}", self.path(name)));
    }

    /// Returns the name of a field in messages, also of an unknown one.
    fn path(&self, name: &str) -> String {
        let name = if NAME.check(name).is_ok() { name.to_owned() } else { quoted(name) };
        if self.label.is_empty() { name } else { format!("{}.{name}", self.label) }
    }
}

/// Reads a value, or reports what is wrong with it. `path` is how messages name it.
fn read(kind: &ValueKind, value: &Spanned<DeValue<'_>>, path: &str, report: &FaultReport<'_>) -> Option<Value> {
    let before = report.count();
    let list = value.get_ref().as_array().and_then(|items| Some((items, kind.entry(items.len())?)));
    let good = match (kind, value.get_ref(), list) {
        (_, _, Some((items, kind))) => {
            let mut known = HashSet::new();
            let mut list = Vec::new();
            for item in items {
                let Some(good) = read(kind, item, path, report) else { continue };
                let target = good.get("target").unwrap_or(&good).to_string();
                if !matches!(kind, ValueKind::Nodes) && !known.insert(target.clone()) {
                    report.at(item.span(), format!("{path}: duplicate entry {target}"));
                }
                list.push(good);
            }
            Value::Array(list)
        }
        (ValueKind::Table(names, kind), DeValue::Table(table), _) => {
            let mut entries = Map::new();
            for (key, value) in table {
                let name = key.get_ref();
                if let Err(hint) = names.check(name) {
                    report.at(key.span(), format!("{path}: {}", refusal(names.expected, &quoted(name), &hint)));
                }
                entries.extend(read(kind, value, path, report).map(|value| (name.to_string(), value)));
            }
            Value::Object(entries)
        }
        _ => {
            // no field accepts what JSON cannot hold
            let json = Value::deserialize(ValueDeserializer::from(value.clone())).unwrap_or_default();
            kind.read(&json).unwrap_or_else(|hint| {
                let message = refusal(&kind.expected(), &found(value, report), &hint);
                report.at(value.span(), format!("{path}: {message}"));
                Value::Null
            })
        }
    };
    (report.count() == before).then_some(good)
}

/// Values that were read, as what they make together. A field that is absent or was refused has its default.
pub(super) fn typed<T: DeserializeOwned>(values: Map<String, Value>) -> T {
    serde_json::from_value(Value::Object(values)).expect("the reader accepts what the types take")
}

/// Returns a description of a value in the file.
pub(super) fn found(value: &Spanned<DeValue<'_>>, report: &FaultReport<'_>) -> String {
    match value.get_ref() {
        DeValue::Array(_) => "an array".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
        DeValue::String(text) => quoted(text),
        _ => report.source(&value.span()),
    }
}

/// "expected …, found …", with the hint if there is one.
fn refusal(expected: &str, found: &str, hint: &str) -> String {
    format!("expected {expected}, found {found}{}{hint}", separator(hint))
}

/// The message for a field that the table `label` does not have.
fn unknown(name: &str, label: &str, known: &[&str]) -> String {
    let tables = [
        ("[bench]", "bench"),
        ("[cluster]", "cluster"),
        ("[defaults]", "defaults"),
        ("[[node]]", "node"),
        ("[pool]", "pool"),
        ("[slurm]", "slurm"),
    ];
    let with_it = tables.iter().filter(|(_, table)| *table != label && fields::names(table).contains(&name));
    let with_it: Vec<&str> = with_it.map(|(written, _)| *written).collect();
    let hint = match nearest(name, known) {
        Some(near) => format!("; did you mean `{near}`?"),
        None if with_it.is_empty() => String::new(),
        None => format!("; it belongs in {}", with_it.join(" or ")),
    };
    format!("unknown field{hint} (known: {})", known.join(", "))
}

/// The known name that an unknown one was most probably meant to be.
fn nearest<'k>(name: &str, known: &[&'k str]) -> Option<&'k str> {
    let name = name.to_lowercase().replace('-', "_");
    // the distance costs the product of both lengths
    if !(3..=40).contains(&name.len()) {
        return None;
    }
    let is_near = |known: &str| {
        let distance = strsim::osa_distance(&name, known);
        distance <= known.len().max(name.len()) / 3 || known.contains(&name) || name.contains(known)
    };
    known.iter().copied().filter(|known| is_near(known)).min_by_key(|known| strsim::osa_distance(&name, known))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggestions() {
        for (name, table, expected) in [
            ("gpu", "node", Some("gpus")),
            ("GPUS", "node", Some("gpus")),
            ("hots", "node", Some("host")),
            ("ssh-port", "node", Some("ssh_port")),
            ("port", "node", Some("ssh_port")),
            ("hostname", "node", Some("host")),
            ("adress", "node", Some("address")),
            ("connect_timeout", "cluster", Some("connect_timeout_s")),
            ("interfaces_name", "node", Some("interface")),
            ("colour", "cluster", None),
            ("", "cluster", None),
            ("nodes", "", Some("node")),
            ("default", "", Some("defaults")),
        ] {
            assert_eq!(nearest(name, &fields::names(table)), expected, "{name}");
        }
    }
}
