//! Numbers for people.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

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

/// Returns the number with its noun in the singular or plural: `1 node`, `3 nodes`, `2 processes`.
pub fn count(n: usize, noun: &str) -> String {
    let plural = if noun.ends_with('s') { "es" } else { "s" };
    format!("{n} {noun}{}", if n == 1 { "" } else { plural })
}

/// A bandwidth in 10⁹ bytes a second, with three digits: `0.94 GB/s`, `12.5 GB/s`.
pub fn gigabytes(bytes_per_s: f64) -> String {
    match bytes_per_s / 1e9 {
        value @ 99.95.. => format!("{value:.0} GB/s"),
        value @ 9.995.. => format!("{value:.1} GB/s"),
        value @ 0.0995.. => format!("{value:.2} GB/s"),
        value => format!("{value:.4} GB/s"),
    }
}

/// A time in whole seconds, as short as it can be read at a glance: `9s`, `1m02s`, `2h03m`.
pub fn span(time: Duration) -> String {
    match time.as_secs() {
        s @ ..60 => format!("{s}s"),
        s @ ..3600 => format!("{}m{:02}s", s / 60, s % 60),
        s => format!("{}h{:02}m", s / 3600, s % 3600 / 60),
    }
}

/// Formats how long ago something was, in the largest unit: `59 min`, `47 h`, `2 d`.
pub fn age(seconds: u64) -> String {
    match seconds {
        0..3600 => format!("{} min", seconds / 60),
        3600..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// Formats seconds since the epoch as RFC 3339 in UTC: `2026-11-21T12:03:04Z`.
pub fn stamp(seconds: f64) -> String {
    humantime::format_rfc3339_seconds(time(seconds)).to_string()
}

/// Returns the point in time of these seconds since the epoch, which a node may have sent: one outside of the years
/// 1970 to 9999 is the nearest in them, and one that is no number the first.
pub fn time(seconds: f64) -> SystemTime {
    UNIX_EPOCH + Duration::try_from_secs_f64(seconds.clamp(0.0, LAST_SECOND as f64)).unwrap_or_default()
}

/// Formats seconds since the epoch for people, with the date: `2026-11-21 12:03:04 UTC`.
pub fn date_time(seconds: f64) -> String {
    stamp(seconds).replace('T', " ").replace('Z', " UTC")
}

/// The end of the year 9999, after which RFC 3339 has no form.
pub const LAST_SECOND: u64 = 253_402_300_799;

/// A point in time for people, as seen at `now`: `14:02 UTC`, with the date if that is a day ago or more.
pub fn clock(seconds: f64, now: f64) -> String {
    let stamp = stamp(seconds);
    let (date, time) = (&stamp[..10], &stamp[11..16]);
    if now - seconds < 86_400.0 { format!("{time} UTC") } else { format!("{date} {time} UTC") }
}

/// A bandwidth for people: `9.41 Gb/s`, `941 Mb/s`.
pub fn gigabits(bytes_per_s: f64) -> String {
    match bytes_per_s * 8.0 / 1e6 {
        mega @ 99_950.0.. => format!("{:.0} Gb/s", mega / 1e3),
        mega @ 9_995.0.. => format!("{:.1} Gb/s", mega / 1e3),
        mega @ 999.5.. => format!("{:.2} Gb/s", mega / 1e3),
        mega @ 9.95.. => format!("{mega:.0} Mb/s"),
        mega => format!("{mega:.1} Mb/s"),
    }
}

/// A time for people: `85 µs`, `1.2 ms`.
pub fn micros(us: f64) -> String {
    if us < 999.5 { format!("{us:.0} µs") } else { format!("{:.1} ms", us / 1e3) }
}

#[cfg(test)]
mod tests {
    use super::{clock, count, date_time, gigabytes, human, span, stamp};
    use std::time::Duration;

    #[test]
    fn bandwidths() {
        let texts = [0.9412e9, 12.54e9, 450.2e9, 1.2e6].map(gigabytes);
        assert_eq!(texts, ["0.94 GB/s", "12.5 GB/s", "450 GB/s", "0.0012 GB/s"]);
    }

    #[test]
    fn points_in_time() {
        let at = 1_795_262_584.9;
        assert_eq!(stamp(at), "2026-11-21T12:03:04Z");
        assert_eq!(date_time(at), "2026-11-21 12:03:04 UTC");
        assert_eq!(
            [stamp(-1.0), stamp(f64::NAN), stamp(1e300)].map(|text| text[..4].to_owned()),
            ["1970", "1970", "9999"]
        );
        assert_eq!(stamp(1e12), "9999-12-31T23:59:59Z");
        assert_eq!([clock(at, at + 60.0), clock(at, at + 90_000.0)], ["12:03 UTC", "2026-11-21 12:03 UTC"]);
    }

    #[test]
    fn sizes() {
        let sizes = [0, 1023, 1024, 1536, 5 << 20, 3 << 40].map(human);
        assert_eq!(sizes, ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "5.0 MiB", "3.0 TiB"]);
    }

    #[test]
    fn nouns() {
        assert_eq!([count(0, "node"), count(1, "process")], ["0 nodes", "1 process"]);
        assert_eq!([count(3, "node"), count(2, "process")], ["3 nodes", "2 processes"]);
    }

    #[test]
    fn times() {
        let times = [0, 59, 60, 3599, 3600, 360_000].map(|s| span(Duration::from_secs(s)));
        assert_eq!(times, ["0s", "59s", "1m00s", "59m59s", "1h00m", "100h00m"]);
    }
}
