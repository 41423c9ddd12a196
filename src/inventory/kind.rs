//! The kinds of fields: what they expect, and how their values are read as JSON.

use super::check::{self, Rule, integer, within};
use super::reader::{Checked, FieldReader, NO_HINT};
use super::{container, nodes};
use serde_json::{Value, json};
use std::path::Path;
use toml::Spanned;
use toml::de::DeValue;

/// The values that a field takes.
pub(super) enum Kind {
    /// A string.
    Text(&'static Rule),
    /// A string in which `[1-16]` stands for as many; read as a list.
    Range(&'static Rule),
    /// The path of a file on the operator's machine.
    File,
    /// One of these strings.
    Choice(&'static [&'static str]),
    /// An integer, named by the first, from the second to the third.
    Number(&'static str, u64, u64),
    /// `true` or `false`.
    Flag,
    /// A number of bytes; read as a number.
    Size,
    /// A number, a word, or a list of indices and UUIDs.
    Gpus,
    Mounts,
    Devices,
    Ulimits,
    Env,
}

/// What values depend on beside themselves.
#[derive(Clone, Copy)]
pub(super) struct Context<'p> {
    /// `~/` on the operator's machine.
    pub(super) home: Option<&'p Path>,
    /// The cluster's own directory in every container.
    pub(super) jobs_dir: &'p str,
}

pub(super) const PORT: Kind = Kind::Number("a port", 1, 65_535);

/// A time-out or pause.
pub(super) const fn seconds(least: u64, most: u64) -> Kind {
    Kind::Number("whole seconds", least, most)
}

impl Kind {
    /// Completes "expected …".
    pub(super) fn expected(&self) -> String {
        match self {
            Kind::Text(rule) | Kind::Range(rule) => rule.expected.to_owned(),
            Kind::File => check::FILE.expected.to_owned(),
            Kind::Choice(words) => {
                let words: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
                let (last, first) = words.split_last().expect("a choice has words");
                format!("{} or {last}", first.join(", "))
            }
            Kind::Number(what, least, most) => format!("{what} from {least} to {most}"),
            Kind::Flag => "true or false".to_owned(),
            Kind::Size => check::SIZE.to_owned(),
            Kind::Gpus => check::GPUS.to_owned(),
            Kind::Mounts => container::MOUNT.to_owned(),
            Kind::Devices => container::DEVICE.to_owned(),
            Kind::Ulimits => container::LIMIT.to_owned(),
            Kind::Env => container::ENV_VALUE.to_owned(),
        }
    }

    /// Reads a value as JSON, or reports what is wrong with it.
    pub(super) fn read(
        &self,
        value: &Spanned<DeValue<'_>>,
        context: Context<'_>,
        reader: &mut FieldReader<'_, '_>,
    ) -> Option<Value> {
        let expected = self.expected();
        let text = |accept: &dyn Fn(&str) -> Checked<Value>| match value.get_ref() {
            DeValue::String(text) => Some(accept(text)),
            _ => None,
        };
        let number = |least, most| integer(value.get_ref()).map(|number| within(number, least, most).map(Value::from));
        let accepted = match self {
            Kind::Text(rule) => text(&|text| rule.check(text).map(|()| text.into())),
            Kind::Range(rule) => text(&|text| nodes::names(text, rule).map(Value::from)),
            Kind::File => text(&|text| check::file(text, context.home).map(|()| text.into())),
            Kind::Choice(words) => text(&|text| if words.contains(&text) { Ok(text.into()) } else { Err(NO_HINT) }),
            Kind::Number(_, least, most) => number(*least, *most),
            Kind::Flag => value.get_ref().as_bool().map(|flag| Ok(flag.into())),
            Kind::Size => match value.get_ref() {
                DeValue::String(text) => Some(check::size_text(text).map(Value::from)),
                value => integer(value).map(|number| check::size(number).map(Value::from)),
            },
            Kind::Gpus => match value.get_ref() {
                DeValue::Array(items) if !items.is_empty() => return reader.list(check::GPU, value, container::gpu()),
                DeValue::Array(_) => Some(Err("an empty one is written \"none\"".into())),
                DeValue::String(text) if matches!(text.as_ref(), "auto" | "all") => Some(Ok(json!(text))),
                DeValue::String(text) if text == "none" => Some(Ok(json!(0))),
                DeValue::String(_) => Some(Err(NO_HINT)),
                _ => number(0, 1024),
            },
            Kind::Mounts => return reader.list(&expected, value, container::mount(context.jobs_dir)),
            Kind::Devices => return reader.list(&expected, value, container::device()),
            Kind::Ulimits => {
                return reader.entries(
                    container::LIMIT_NAME,
                    &expected,
                    value,
                    container::limit_name,
                    container::ulimit,
                );
            }
            Kind::Env => return container::env(&expected, value, reader),
        };
        reader.judge(&expected, value, accepted)
    }
}
