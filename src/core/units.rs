//! Numbers for people.

/// Bytes in powers of 1024, with one decimal from KiB on: `512 B`, `1.5 MiB`.
pub fn human(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut unit = "B";
    for larger in ["KiB", "MiB", "GiB", "TiB"] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = larger;
    }
    if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::human;

    #[test]
    fn sizes() {
        let sizes = [0, 1023, 1024, 1536, 5 << 20, 3 << 40].map(human);
        assert_eq!(sizes, ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "5.0 MiB", "3.0 TiB"]);
    }
}
