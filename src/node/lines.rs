//! Values of the lines that scripts print.

/// Splits a value at spaces into N parts, of which the last may contain spaces.
pub fn parts<const N: usize>(value: &str) -> Option<[&str; N]> {
    value.splitn(N, ' ').collect::<Vec<_>>().try_into().ok()
}

/// Returns a part that is known, which `-` is not.
pub fn known(part: &str) -> Option<String> {
    (part != "-").then(|| part.to_owned())
}
