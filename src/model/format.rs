//! The numbers of the forms in which hvdctl stores its state on the nodes.
//!
//! A number is raised by a change that an earlier hvdctl would misread; a new field that it may ignore changes no
//! number. What has no number has the first form. A reader refuses a higher number by name and leaves what has it
//! untouched.

/// The form of `job.json`, `launch.json` and `result.json`, in their field `format`.
pub const FILES: u32 = 1;

/// The form of the labels of containers, in the label `hvdctl.format`.
pub const LABELS: u32 = 1;

/// A form that is unknown here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("written by a newer hvdctl (format {found}); this one reads up to {known}")]
pub struct NewerFormat {
    /// Its number.
    pub found: String,
    /// The highest number that is known.
    pub known: u32,
}

/// Checks that a form is known. What is no number is not.
///
/// # Errors
/// [`NewerFormat`] if it is not.
pub fn check(found: &str, known: u32) -> Result<(), NewerFormat> {
    match found.parse::<u32>() {
        Ok(number) if number <= known => Ok(()),
        _ => Err(NewerFormat { found: found.to_owned(), known }),
    }
}
