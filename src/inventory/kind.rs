//! The kinds of fields: what they expect, how their values are read, and their JSON Schema.

use super::check::{self, Checked, Rule, range};
use super::container;
use serde_json::{Value, json};

/// The values that a field takes.
pub(super) enum ValueKind {
    /// A string.
    Text(&'static Rule),
    /// A string in which `[1-16]` stands for as many; read as a list.
    Range(&'static Rule),
    /// One of these strings.
    Choice(&'static [&'static str]),
    /// An integer, named by the first, from the second to the third.
    Number(&'static str, u64, u64),
    /// `true` or `false`.
    Flag,
    /// A number of bytes, also as text; read as a number.
    Size,
    /// A number of GB/s, also with a fraction; read as bytes a second.
    Bandwidth,
    /// A number, a string, or a list of [`ValueKind::Gpu`].
    Gpus,
    /// An index or UUID; read as text.
    Gpu,
    /// A [`container::Mount`].
    Mount,
    /// A [`container::Device`].
    Device,
    /// A [`container::Ulimit`].
    Limit,
    /// The value of a variable; read as text.
    Variable,
    /// Nodes as for `--on`, or a list of such.
    Nodes,
    /// A list.
    List(&'static ValueKind),
    /// A table whose names follow a rule.
    Table(&'static Rule, &'static ValueKind),
}

pub(super) const PORT: ValueKind = ValueKind::Number("a port", 1, 65_535);

/// A time-out or pause.
pub(super) const fn seconds(least: u64, most: u64) -> ValueKind {
    ValueKind::Number("whole seconds", least, most)
}

/// The highest bandwidth in GB/s.
const FASTEST: f64 = 10_000.0;

/// The most entries of a list.
pub const LONGEST_LIST: usize = 64;

impl ValueKind {
    /// Completes "expected …".
    pub(super) fn expected(&self) -> String {
        match self {
            ValueKind::Text(rule) | ValueKind::Range(rule) => rule.expected,
            ValueKind::Choice(values) => return format!("\"{}\"", values.join("\" or \"")),
            ValueKind::Number(what, least, most) => return format!("{what} from {least} to {most}"),
            ValueKind::Flag => "true or false",
            ValueKind::Size => "a size of at least 64k, like \"512m\", \"8g\" or a number of bytes",
            ValueKind::Bandwidth => "a number of GB/s above 0, up to 10000, like 1.25",
            ValueKind::Gpus => {
                "a number of GPUs from 0 to 1024, \"auto\", \"all\", \"none\", or a list of indices and UUIDs"
            }
            ValueKind::Gpu => check::GPU.expected,
            ValueKind::Mount => check::MOUNT.expected,
            ValueKind::Device => check::DEVICE.expected,
            ValueKind::Limit => "a number, -1 for no limit, or { soft = 1024, hard = 4096 }",
            ValueKind::Variable => "a string or a whole number",
            ValueKind::Nodes => "nodes as for --on, like \"gpu[01-08],!gpu03\", or a list of such",
            ValueKind::List(entry) => return format!("a list of at most {LONGEST_LIST}, each {}", entry.expected()),
            ValueKind::Table(_, value) => return format!("a table, each value {}", value.expected()),
        }
        .to_owned()
    }

    /// Returns the kind of each entry, if the value may be a list of so many.
    pub(super) fn entry(&self, length: usize) -> Option<&ValueKind> {
        match self {
            ValueKind::List(entry) if length <= LONGEST_LIST => Some(entry),
            ValueKind::Gpus if (1..=LONGEST_LIST).contains(&length) => Some(&ValueKind::Gpu),
            ValueKind::Nodes if length > 0 => Some(&ValueKind::Nodes),
            _ => None,
        }
    }

    /// Reads a value that is no list or table of others, as JSON. An error says why it is refused, and may be empty.
    pub(super) fn read(&self, value: &Value) -> Checked<Value> {
        let good = |is_good: bool| if is_good { Ok(value.clone()) } else { Err(String::new()) };
        let number_in = |least, most| value.as_u64().is_some_and(|number| (least..=most).contains(&number));
        match (self, value) {
            (ValueKind::Text(rule), Value::String(text)) => rule.check(text).and_then(|()| good(true)),
            (ValueKind::Range(rule), Value::String(text)) => range(text, rule).map(Value::from),
            (ValueKind::Choice(values), Value::String(text)) => good(values.contains(&text.as_str())),
            (ValueKind::Number(_, least, most), _) => good(number_in(*least, *most)),
            (ValueKind::Flag, _) => good(value.is_boolean()),
            (ValueKind::Size, _) => {
                let bytes = value.as_u64().and_then(check::size);
                bytes.or_else(|| check::parse_size(value.as_str()?)).map(Value::from).ok_or_else(String::new)
            }
            (ValueKind::Bandwidth, _) => {
                let gigabytes = value.as_f64().filter(|gigabytes| *gigabytes > 0.0 && *gigabytes <= FASTEST);
                // at least one, because 0 would require nothing
                gigabytes.map(|gigabytes| json!((gigabytes * 1e9).max(1.0).round() as u64)).ok_or_else(String::new)
            }
            (ValueKind::Gpus, Value::String(text)) if text == "none" => Ok(json!(0)),
            (ValueKind::Gpus, _) => good(value == "auto" || value == "all" || number_in(0, 1024)),
            (ValueKind::Gpu, Value::String(_) | Value::Number(_)) => {
                let gpu = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                check::GPU.check(&gpu).map(|()| Value::from(gpu))
            }
            (ValueKind::Mount, Value::String(_) | Value::Object(_)) => {
                container::mount(value).map(|mount| json!(mount))
            }
            (ValueKind::Device, Value::String(text)) => container::device(text).map(|device| json!(device)),
            (ValueKind::Limit, Value::Number(_) | Value::Object(_)) => {
                container::ulimit(value).map(|limit| json!(limit))
            }
            (ValueKind::Variable, Value::String(text)) => good(!text.contains('\0')),
            (ValueKind::Variable, Value::Number(number)) if number.is_i64() => Ok(json!(number.to_string())),
            (ValueKind::Nodes, Value::String(_)) => good(true),
            _ => good(false),
        }
    }

    /// The form of the value as a JSON Schema.
    pub(super) fn schema(&self) -> Value {
        let integer = |least: u64, most: u64| json!({ "type": "integer", "minimum": least, "maximum": most });
        match self {
            ValueKind::Text(rule) => string(rule),
            ValueKind::Range(rule) => {
                json!({ "type": "string", "anyOf": [{ "pattern": rule.pattern }, { "pattern": "\\[[0-9,-]+\\]" }] })
            }
            ValueKind::Choice(values) => json!({ "enum": values }),
            ValueKind::Number(_, least, most) => integer(*least, *most),
            ValueKind::Flag => json!({ "type": "boolean" }),
            ValueKind::Size => json!({
                "type": ["integer", "string"], "minimum": 65536, "pattern": "^[0-9]+([kKmMgGtT]([iI]?[bB])?|[bB])?$",
            }),
            ValueKind::Bandwidth => json!({ "type": "number", "exclusiveMinimum": 0, "maximum": FASTEST }),
            ValueKind::Gpus => json!({ "anyOf": [
                integer(0, 1024),
                { "enum": ["auto", "all", "none"] },
                { "type": "array", "minItems": 1, "maxItems": LONGEST_LIST, "items": ValueKind::Gpu.schema() },
            ] }),
            ValueKind::Gpu => json!({ "anyOf": [integer(0, 1023), string(&check::GPU)] }),
            ValueKind::Mount => {
                let path = json!({ "type": "string" });
                let fields = json!({ "source": path, "target": path, "read_only": { "type": "boolean" } });
                json!({ "anyOf": [string(&check::MOUNT), record(fields, &["source", "target"])] })
            }
            ValueKind::Device => string(&check::DEVICE),
            ValueKind::Limit => {
                let limit = json!({ "type": "integer", "minimum": -1 });
                json!({ "anyOf": [limit, record(json!({ "soft": limit, "hard": limit }), &["soft", "hard"])] })
            }
            ValueKind::Variable => json!({ "type": ["string", "integer"] }),
            ValueKind::Nodes => json!({ "type": ["string", "array"], "minItems": 1, "items": { "type": "string" } }),
            ValueKind::List(entry) => json!({ "type": "array", "maxItems": LONGEST_LIST, "items": entry.schema() }),
            ValueKind::Table(names, value) => {
                json!({ "type": "object", "propertyNames": string(names), "additionalProperties": value.schema() })
            }
        }
    }
}

fn string(rule: &Rule) -> Value {
    json!({ "type": "string", "maxLength": rule.longest, "pattern": rule.pattern })
}

/// The schema of a table with these properties and no others.
pub(super) fn record(properties: Value, required: &[&str]) -> Value {
    json!({ "type": "object", "additionalProperties": false, "required": required, "properties": properties })
}
