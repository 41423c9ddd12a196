//! A value as `nvidia-smi` reports it.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::str::FromStr;

/// Texts of `nvidia-smi` for what a GPU or a driver does not have.
const ABSENT: [&str; 5] = ["", "N/A", "Not Supported", "Not Available", "Requested functionality has been deprecated"];

/// Parts of its texts for what it could not read.
const FAILURES: [&str; 6] =
    ["Unknown Error", "GPU is lost", "GPU requires reset", "GPU access blocked", "ERR!", "Reset Required"];

/// A value as `nvidia-smi` reports it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Reading<T> {
    /// The value.
    Known(T),
    /// The GPU or the driver has none: `N/A`, `[Not Supported]`, or no such element.
    #[default]
    Absent,
    /// It could not be read, in the driver's words: `Unknown Error`, `GPU is lost`.
    Failed(String),
}

impl<T> Reading<T> {
    /// Returns the value, if it is known.
    pub fn known(&self) -> Option<&T> {
        match self {
            Reading::Known(value) => Some(value),
            Reading::Absent | Reading::Failed(_) => None,
        }
    }

    /// Returns this reading, or the other one if it is absent.
    #[must_use]
    pub(crate) fn or(self, other: Reading<T>) -> Reading<T> {
        if matches!(self, Reading::Absent) { other } else { self }
    }

    /// Returns this reading; a known value that does not pass is absent.
    #[must_use]
    pub(crate) fn filter(self, passes: impl FnOnce(&T) -> bool) -> Reading<T> {
        match self {
            Reading::Known(value) if !passes(&value) => Reading::Absent,
            reading => reading,
        }
    }

    fn then<V>(self, read: impl FnOnce(&T) -> Option<V>) -> Reading<V>
    where
        T: ToString,
    {
        match self {
            Reading::Known(value) => read(&value).map_or_else(|| Reading::Failed(value.to_string()), Reading::Known),
            Reading::Absent => Reading::Absent,
            Reading::Failed(message) => Reading::Failed(message),
        }
    }
}

impl<T: Serialize> Serialize for Reading<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.known().serialize(serializer)
    }
}

impl<T: JsonSchema> JsonSchema for Reading<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        Option::<T>::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Option::<T>::json_schema(generator)
    }
}

/// Returns whether a text is the driver's message instead of a value.
pub(crate) fn is_failure(text: &str) -> bool {
    FAILURES.iter().any(|message| text.contains(message))
}

/// Reads a text.
pub(crate) fn text(text: &str) -> Reading<String> {
    let text = text.trim().trim_start_matches('[').trim_end_matches(']');
    match text {
        _ if ABSENT.contains(&text) => Reading::Absent,
        _ if is_failure(text) => Reading::Failed(text.to_owned()),
        _ => Reading::Known(text.to_owned()),
    }
}

/// Reads a number, which may have a unit: `49 C`, `16x`, `P0`.
pub(crate) fn number<T: FromStr>(value: &str) -> Reading<T> {
    if value.trim() == "None" {
        return Reading::Absent;
    }
    text(value).then(|text| {
        let first = text.split(' ').next().unwrap_or_default();
        first.trim_start_matches('P').trim_end_matches('x').parse().ok()
    })
}

/// Reads what is one of two.
pub(crate) fn switch(value: &str) -> Reading<bool> {
    text(value).then(|text| match text.as_str() {
        "Enabled" | "Yes" | "Active" => Some(true),
        "Disabled" | "No" | "Not Active" => Some(false),
        _ => None,
    })
}

/// Adds readings. One that failed makes the sum unknown.
pub(crate) fn sum(readings: impl IntoIterator<Item = Reading<u64>>) -> Reading<u64> {
    readings.into_iter().fold(Reading::Absent, |sum, reading| match (sum, reading) {
        (failed @ Reading::Failed(_), _) | (_, failed @ Reading::Failed(_)) => failed,
        (sum, Reading::Absent) => sum,
        (Reading::Absent, known) => known,
        (Reading::Known(sum), Reading::Known(more)) => Reading::Known(sum.saturating_add(more)),
    })
}

/// Returns whether one of these is on. One that failed makes that unknown, unless another is on.
pub(crate) fn any(readings: impl IntoIterator<Item = Reading<bool>>) -> Reading<bool> {
    readings.into_iter().fold(Reading::Absent, |found, reading| match (found, reading) {
        (Reading::Known(true), _) | (_, Reading::Known(true)) => Reading::Known(true),
        (failed @ Reading::Failed(_), _) | (_, failed @ Reading::Failed(_)) => failed,
        (found, Reading::Absent) => found,
        (_, known) => known,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_read_is_no_value() {
        let failed = |text: &str| Reading::<u64>::Failed(text.to_owned());
        for (text, expected) in [
            ("143771 MiB", Reading::Known(143_771)),
            ("16x", Reading::Known(16)),
            ("P8", Reading::Known(8)),
            ("N/A", Reading::Absent),
            ("[N/A]", Reading::Absent),
            ("[Not Supported]", Reading::Absent),
            ("", Reading::Absent),
            ("None", Reading::Absent),
            ("[Unknown Error]", failed("Unknown Error")),
            ("Unknown Error", failed("Unknown Error")),
            ("[GPU is lost]", failed("GPU is lost")),
            ("many", failed("many")),
        ] {
            assert_eq!(number(text), expected, "{text}");
        }
        assert_eq!(number("409.90 W"), Reading::Known(409.9));
        assert_eq!(number("-2 C"), Reading::Known(-2));
        assert_eq!((switch("Yes"), switch("Not Active"), switch("N/A")), (known(true), known(false), Reading::Absent));
        assert_eq!(switch("Perhaps"), Reading::Failed("Perhaps".into()));
        assert_eq!(text("None"), Reading::Known("None".into()));
    }

    fn known<T>(value: T) -> Reading<T> {
        Reading::Known(value)
    }

    #[test]
    fn readings_add_up() {
        fn failed<T>() -> Reading<T> {
            Reading::Failed("Unknown Error".into())
        }
        assert_eq!(sum([known(1), Reading::Absent, known(2)]), known(3));
        assert_eq!(sum([known(u64::MAX), known(2)]), known(u64::MAX));
        assert_eq!(sum([Reading::Absent, Reading::Absent]), Reading::Absent);
        assert_eq!(sum([known(1), failed()]), failed());
        assert_eq!(any([failed(), known(true)]), known(true));
        assert_eq!(any([known(false), failed()]), failed());
        assert_eq!(any([known(false), Reading::Absent]), known(false));
    }
}
