//! Texts of YAML, and documents without a type, whose fields keep their order.

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Serialize, Serializer};
use serde_saphyr::DoubleQuoted;
use std::fmt;

/// A text of the user's. It is in quotes where YAML 1.1, which `kubectl` reads, may take it for a number, a time or a
/// date; what else it takes for no text, the serializer quotes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct YamlText(String);

impl YamlText {
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl<T: Into<String>> From<T> for YamlText {
    fn from(text: T) -> YamlText {
        YamlText(text.into())
    }
}

impl Serialize for YamlText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let is_number_like = self.0.chars().all(|c| c.is_ascii_hexdigit() || "_:.+-=<xXoOtTzZ ".contains(c));
        if is_number_like {
            DoubleQuoted(self.0.as_str()).serialize(serializer)
        } else {
            serializer.serialize_str(&self.0)
        }
    }
}

/// A value of a document.
#[derive(Debug, Clone, PartialEq)]
pub enum YamlValue {
    /// No value; in a patch it removes the field.
    Null,
    /// A Boolean.
    Bool(bool),
    /// An integer.
    Integer(i64),
    /// Another number.
    Float(f64),
    /// Text.
    Text(String),
    /// A list.
    List(Vec<YamlValue>),
    /// A mapping.
    Map(YamlMap),
}

/// The fields of a mapping, in their order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct YamlMap(pub Vec<(String, YamlValue)>);

impl YamlMap {
    /// Returns the value of a field.
    pub fn get(&self, name: &str) -> Option<&YamlValue> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    /// Returns the value of a field.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut YamlValue> {
        self.0.iter_mut().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    /// Returns the text of a field.
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.get(name) {
            Some(YamlValue::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// Returns the mapping of a field.
    pub fn map(&self, name: &str) -> Option<&YamlMap> {
        self.get(name).and_then(YamlValue::as_map)
    }

    /// Returns the mappings of a field that is a list.
    pub fn maps(&self, name: &str) -> impl Iterator<Item = &YamlMap> {
        let list = match self.get(name) {
            Some(YamlValue::List(list)) => list.as_slice(),
            _ => &[],
        };
        list.iter().filter_map(YamlValue::as_map)
    }
}

impl YamlValue {
    /// Returns a mapping.
    pub fn as_map(&self) -> Option<&YamlMap> {
        match self {
            YamlValue::Map(map) => Some(map),
            _ => None,
        }
    }

    /// Returns what the value is, for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            YamlValue::Null => "null",
            YamlValue::Bool(_) => "a Boolean",
            YamlValue::Integer(_) | YamlValue::Float(_) => "a number",
            YamlValue::Text(_) => "text",
            YamlValue::List(_) => "a list",
            YamlValue::Map(_) => "a mapping",
        }
    }
}

impl Serialize for YamlValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            YamlValue::Null => serializer.serialize_unit(),
            YamlValue::Bool(value) => serializer.serialize_bool(*value),
            YamlValue::Integer(value) => serializer.serialize_i64(*value),
            YamlValue::Float(value) => serializer.serialize_f64(*value),
            YamlValue::Text(text) => YamlText::from(text.as_str()).serialize(serializer),
            YamlValue::List(list) => serializer.collect_seq(list),
            YamlValue::Map(map) => {
                serializer.collect_map(map.0.iter().map(|(name, value)| (YamlText::from(name.as_str()), value)))
            }
        }
    }
}

impl<'de> Deserialize<'de> for YamlValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<YamlValue, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = YamlValue;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a value of YAML")
    }

    fn visit_bool<E>(self, value: bool) -> Result<YamlValue, E> {
        Ok(YamlValue::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<YamlValue, E> {
        Ok(YamlValue::Integer(value))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<YamlValue, E> {
        i64::try_from(value).map(YamlValue::Integer).map_err(|_| E::custom(format!("{value} is too large a number")))
    }

    fn visit_f64<E>(self, value: f64) -> Result<YamlValue, E> {
        Ok(YamlValue::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<YamlValue, E> {
        Ok(YamlValue::Text(value.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<YamlValue, E> {
        Ok(YamlValue::Null)
    }

    fn visit_none<E>(self) -> Result<YamlValue, E> {
        Ok(YamlValue::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<YamlValue, D::Error> {
        YamlValue::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<YamlValue, A::Error> {
        let mut found = Vec::new();
        while let Some(value) = list.next_element()? {
            found.push(value);
        }
        Ok(YamlValue::List(found))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<YamlValue, A::Error> {
        let mut found = Vec::new();
        while let Some((name, value)) = map.next_entry::<String, YamlValue>()? {
            found.push((name, value));
        }
        Ok(YamlValue::Map(YamlMap(found)))
    }
}
