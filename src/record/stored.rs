//! The form of the files in which a job is stored on its nodes: JSON with the number of the form in `format`.

use crate::model::format::{self, FILES};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::error::Category;

/// The fault of a file without contents, which a full disk leaves behind.
pub const MISSING: &str = "empty or missing";

/// The contents of a file after its number.
#[derive(Serialize)]
struct Numbered<'a, T> {
    format: u32,
    #[serde(flatten)]
    contents: &'a T,
}

/// The part of a file that is read first.
#[derive(Deserialize)]
struct Number {
    format: Option<Value>,
}

/// Formats the contents of the file `name` as JSON with its number.
///
/// # Errors
/// A message that names the file, if JSON cannot represent them.
pub fn write<T: Serialize>(name: &str, contents: &T) -> Result<String, String> {
    json(name, &Numbered { format: FILES, contents })
}

/// Formats the contents of the file `name`, and checks that they are read back: JSON has no number that is infinite or
/// undefined, and serializes it as null.
///
/// # Errors
/// As [`write()`], and if they could not be read.
pub fn write_checked<T: Serialize + DeserializeOwned>(name: &str, contents: &T) -> Result<String, String> {
    let text = write(name, contents)?;
    match read::<T>(&text) {
        Ok(_) => Ok(text),
        Err(reason) => Err(format!("cannot write {name}: {reason}")),
    }
}

/// Formats `value` as JSON. An empty text in its place would be a file or a program that fails much later.
///
/// # Errors
/// A message that names what could not be written, if JSON cannot represent it.
pub fn json<T: Serialize + ?Sized>(name: &str, value: &T) -> Result<String, String> {
    serde_json::to_string(value).map_err(|error| format!("cannot write {name}: {error}"))
}

/// Reads a file of this or an earlier form.
///
/// # Errors
/// A message, if it is of a later form, incomplete, or not of the expected form.
pub fn read<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    // first: a later form may differ in everything else
    if let Ok(Number { format: Some(number) }) = serde_json::from_str(text) {
        format::check(&number.to_string(), FILES).map_err(|newer| newer.to_string())?;
    }
    serde_json::from_str(text).map_err(|error| match error.classify() {
        _ if text.trim().is_empty() => MISSING.to_owned(),
        Category::Data => error.to_string(),
        Category::Eof => format!("incomplete: {error}"),
        Category::Syntax | Category::Io => format!("not JSON: {error}"),
    })
}
