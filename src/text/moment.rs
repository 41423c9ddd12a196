//! Points in time as an operator writes them.

use jiff::civil::{Date, DateTime, Time};
use jiff::tz::{Offset, TimeZone};
use jiff::{Timestamp, ZonedDateTime};

/// The forms that are understood, for messages.
pub const FORMS: &str = "10m or 2h (ago), 14:30, today, yesterday, 2026-11-21, 2026-11-21 10:15:00, or with a zone \
                         2026-11-21T10:15:00Z, 2026-11-21T10:15:00+09:00";

/// Reads a point in time and returns it in seconds since the epoch. One without a zone is by the clock on the wall in
/// the zone of `now`, one without a date is today there.
///
/// # Errors
/// If it has none of the [`FORMS`], or is before 1970.
pub fn parse(text: &str, now: &ZonedDateTime) -> Result<f64, String> {
    let text = text.trim();
    let today = now.date();
    let (time, zone) = match text.to_lowercase().as_str() {
        "now" => return Ok(seconds(now.timestamp())),
        "today" => (today.to_datetime(Time::midnight()), None),
        "yesterday" => (today.yesterday().unwrap_or(today).to_datetime(Time::midnight()), None),
        _ => {
            let (wall, zone) = zone_of(text)?;
            (wall_clock(wall, today).ok_or_else(|| format!("{text:?} is no time; expected {FORMS}"))?, zone)
        }
    };
    let zone = zone.unwrap_or_else(|| now.time_zone().clone());
    let moment = time.to_zoned_datetime(zone).map_err(|error| error.to_string())?.timestamp();
    if moment < Timestamp::UNIX_EPOCH {
        return Err("it is before 1970".to_owned());
    }
    Ok(seconds(moment))
}

fn seconds(moment: Timestamp) -> f64 {
    moment.as_nanosecond() as f64 / 1e9
}

/// Splits off the zone of a time, if it has one.
fn zone_of(text: &str) -> Result<(&str, Option<TimeZone>), String> {
    let is_digit = |c: char| c.is_ascii_digit();
    for name in ["Z", "z", "UTC", "GMT"] {
        if let Some(wall) = text.strip_suffix(name).filter(|wall| wall.trim_end().ends_with(is_digit)) {
            return Ok((wall.trim_end(), Some(TimeZone::UTC)));
        }
    }
    // the hyphens of a date are before its time
    let Some(at) = text.rfind(['+', '-']).filter(|at| text[..*at].contains(':')) else {
        let last = text.rsplit(' ').next().filter(|name| name.starts_with(|c: char| c.is_ascii_alphabetic()));
        return match last.filter(|_| text.contains(':')) {
            // CET is not the same everywhere
            Some(name) => Err(format!("the zone {name:?} is not known here; write Z or an offset such as +09:00")),
            None => Ok((text, None)),
        };
    };
    let digits: String = text[at + 1..].chars().filter(|c| *c != ':').collect();
    let is_offset = matches!(digits.len(), 2 | 4) && digits.chars().all(is_digit);
    let part = |range| digits.get(range).and_then(|part: &str| part.parse::<i32>().ok());
    let minutes = is_offset.then(|| part(0..2).unwrap_or_default() * 60 + part(2..4).unwrap_or_default());
    let sign = if text[at..].starts_with('-') { -1 } else { 1 };
    let offset = minutes.and_then(|minutes| Offset::from_seconds(sign * minutes * 60).ok());
    let offset = offset.ok_or_else(|| format!("{:?} is no offset; expected one such as +09:00", &text[at..]))?;
    Ok((text[..at].trim_end(), Some(TimeZone::fixed(offset))))
}

/// Reads a date, a time, or both.
fn wall_clock(text: &str, today: Date) -> Option<DateTime> {
    let iso = text.get(..10).zip(text.get(10..).and_then(|rest| rest.strip_prefix(['T', 't'])));
    let (date, time) = match iso.or_else(|| text.split_once(' ')) {
        Some((date, time)) => (Some(date), Some(time.trim_start())),
        None if text.contains(':') => (None, Some(text)),
        None => (Some(text), None),
    };
    let date = match date {
        None => today,
        Some(date) if date.eq_ignore_ascii_case("today") => today,
        Some(date) if date.eq_ignore_ascii_case("yesterday") => today.yesterday().ok()?,
        // others are not read as dates by mistake: 20261121 or 11/21
        Some(date) if date.len() == 10 && date.as_bytes()[4] == b'-' => date.parse().ok()?,
        Some(_) => return None,
    };
    let time = match time {
        None => Time::midnight(),
        Some(time) => {
            // 9:05 is a time as well
            let padded = if time.as_bytes().get(1) == Some(&b':') { format!("0{time}") } else { time.to_owned() };
            let is_time = padded.len() >= 5 && padded.as_bytes()[2] == b':';
            is_time.then(|| padded.replace(',', ".").parse().ok()).flatten()?
        }
    };
    Some(date.to_datetime(time))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-28T19:00:00 in this zone.
    fn now(zone: &str) -> ZonedDateTime {
        let zone = TimeZone::get(zone).unwrap_or_else(|_| TimeZone::posix(zone).unwrap());
        "2026-11-28T19:00:00".parse::<DateTime>().unwrap().to_zoned_datetime(zone).unwrap()
    }

    fn read(text: &str, zone: &str) -> String {
        match parse(text, &now(zone)) {
            Ok(seconds) => Timestamp::from_nanosecond((seconds * 1e9) as i128).unwrap().to_string(),
            Err(error) => error,
        }
    }

    #[test]
    fn a_time_without_a_zone_is_by_the_clock_on_the_wall() {
        const TOKYO: &str = "JST-9";
        for (text, expected) in [
            ("2026-11-28 18:30:00", "2026-11-28T09:30:00Z"),
            ("2026-11-28T18:30", "2026-11-28T09:30:00Z"),
            ("2026-11-28", "2026-11-27T15:00:00Z"),
            ("18:30", "2026-11-28T09:30:00Z"),
            ("9:05", "2026-11-28T00:05:00Z"),
            ("18:30:15", "2026-11-28T09:30:15Z"),
            ("today", "2026-11-27T15:00:00Z"),
            ("Yesterday", "2026-11-26T15:00:00Z"),
            ("yesterday 18:30", "2026-11-27T09:30:00Z"),
            ("now", "2026-11-28T10:00:00Z"),
        ] {
            assert_eq!(read(text, TOKYO), expected, "{text}");
        }
        // the same text on another wall
        assert_eq!(read("2026-11-28 18:30:00", "MST7"), "2026-11-29T01:30:00Z");
        // an hour that is skipped or comes twice in the year
        let berlin = "CET-1CEST,M3.5.0,M10.5.0/3";
        assert_eq!(read("2026-07-01 12:00", berlin), "2026-07-01T10:00:00Z");
        assert_eq!(read("2026-03-29 02:30", berlin), "2026-03-29T01:30:00Z");
        assert_eq!(read("2026-10-25 02:30", berlin), "2026-10-25T00:30:00Z");
    }

    #[test]
    fn a_zone_counts_where_it_is_given() {
        for (text, expected) in [
            ("2026-11-21T10:15:00Z", "2026-11-21T10:15:00Z"),
            ("2026-11-21 10:15:00 UTC", "2026-11-21T10:15:00Z"),
            ("10:15 UTC", "2026-11-28T10:15:00Z"),
            ("10:15Z", "2026-11-28T10:15:00Z"),
            ("2026-11-21T10:15:00+09:00", "2026-11-21T01:15:00Z"),
            ("2026-11-21T10:15:00+0900", "2026-11-21T01:15:00Z"),
            ("2026-11-21 10:15:00 -07", "2026-11-21T17:15:00Z"),
            ("2026-11-21T10:15:00.5Z", "2026-11-21T10:15:00.5Z"),
        ] {
            assert_eq!(read(text, "JST-9"), expected, "{text}");
        }
        let nanoseconds = parse("2026-11-28T10:00:00.123456789Z", &now("JST-9")).unwrap();
        assert!((nanoseconds - 1_795_860_000.123_456_8).abs() < 1e-6, "{nanoseconds}");
    }

    #[test]
    fn what_is_no_time_is_refused_by_name() {
        for (text, expected) in [
            ("", "\"\" is no time; expected 10m or 2h (ago), 14:30"),
            ("10", "\"10\" is no time"),
            ("tomorrow", "\"tomorrow\" is no time"),
            ("11/21/2026", "is no time"),
            ("20261121", "is no time"),
            ("2026-13-01", "is no time"),
            ("25:00", "is no time"),
            ("2026-11-21 10:15:00 CET", "the zone \"CET\" is not known here; write Z or an offset such as +09:00"),
            ("2026-11-21T10:15:00+9", "\"+9\" is no offset"),
            ("2026-11-21T10:15:00+99:00", "\"+99:00\" is no offset"),
            ("1969-12-31T23:59:59Z", "it is before 1970"),
            ("ä:é", "is no time"),
        ] {
            assert!(read(text, "JST-9").contains(expected), "{text}: {}", read(text, "JST-9"));
        }
    }
}
