//! Charts as SVG that fits any width. Lines are drawn in a square of 1000 units that the page stretches; what is to be
//! read is text of the page, which is not stretched.

use super::series::{Scale, Series};
use std::fmt::Write as _;

/// The side of the square.
const SIDE: f64 = 1000.0;
/// The most intervals between the ticks of the axis of time, and of values.
const TIME_TICKS: f64 = 5.0;
const TICKS: f64 = 4.0;
/// The least ticks of an axis of values.
const LEAST_TICKS: f64 = 3.0;
/// The room above the highest value, and below the lowest one unless that is 0, as a share of the range.
const ROOM: f64 = 0.06;

/// Seconds between two ticks of the axis of time; in longer jobs they are whole days.
const SPANS: [u32; 17] = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200];
const DAY: u32 = 86_400;

/// A line of a chart.
pub(super) struct ChartLine<'a> {
    /// The text that appears when the pointer is on the line.
    pub(super) title: String,
    /// The number of its colour.
    pub(super) colour: usize,
    pub(super) series: &'a Series,
}

/// The unit of a chart's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    /// Percent.
    Percent,
    /// Percent of one core, shown as cores.
    Cores,
    /// MiB.
    Memory,
    /// KiB a second.
    Rate,
    /// Watts.
    Watts,
    /// Whatever a program prints.
    None,
}

impl Unit {
    /// Returns by what values up to this one are divided, and the unit behind them.
    fn scale(self, most: f64) -> (f64, &'static str) {
        let of = |units: [&'static str; 3]| match most {
            _ if most < 1000.0 => (1.0, units[0]),
            _ if most < 1000.0 * 1024.0 => (1024.0, units[1]),
            _ => (1024.0 * 1024.0, units[2]),
        };
        match self {
            Unit::Percent => (1.0, " %"),
            Unit::Cores => (100.0, ""),
            Unit::Memory => of([" MiB", " GiB", " TiB"]),
            Unit::Rate => of([" KiB/s", " MiB/s", " GiB/s"]),
            Unit::Watts => (1.0, " W"),
            Unit::None => (1.0, ""),
        }
    }

    /// Formats a value.
    pub(super) fn format(self, value: f64) -> String {
        let (divisor, unit) = self.scale(value);
        match self {
            Unit::Percent | Unit::Watts => format!("{value:.0}{unit}"),
            Unit::Cores | Unit::Memory | Unit::Rate | Unit::None => format!("{}{unit}", number(value / divisor)),
        }
    }
}

/// Formats a number with at most three significant digits, or all digits before the point.
pub(super) fn number(value: f64) -> String {
    let digits = match value.abs() {
        0.0 => return "0".to_owned(),
        size if !(1e-3..1e6).contains(&size) => return format!("{value:.2e}"),
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        size if size >= 0.1 => 3,
        _ => 5,
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// A mark of an axis: its place as a share of the axis, and its text.
pub(super) type Tick = (f64, String);

/// The axis of a chart's values.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Axis {
    low: f64,
    high: f64,
    /// Round values.
    pub(super) ticks: Vec<Tick>,
}

impl Axis {
    /// Returns the axis of values from 0 to this one.
    pub(super) fn up_to(greatest: f64, unit: Unit) -> Axis {
        Axis::of((0.0, greatest), unit)
    }

    /// Returns the axis of values in this range. It begins at 0; only what a program prints may be far from that.
    pub(super) fn of((least, greatest): (f64, f64), unit: Unit) -> Axis {
        let is_near = unit != Unit::None || least < greatest * 0.5 || least == greatest;
        let low = if is_near && least >= 0.0 { 0.0 } else { least };
        let greatest = if unit == Unit::Percent { 100.0 } else { greatest };
        let greatest = if greatest > low { greatest } else { low + 1.0 };
        let room = (greatest - low) * ROOM;
        let (low, high) = (if low == 0.0 { 0.0 } else { low - room }, greatest + room);
        let mut axis = Axis { low, high, ticks: Vec::new() };
        let (divisor, suffix) = unit.scale(low.abs().max(greatest.abs()));
        let mut step = round_step((high - low) / divisor / TICKS);
        let first_of = |step: f64| (low / divisor / step).ceil();
        // far from 0, few multiples may be in the range
        if (first_of(step) + LEAST_TICKS - 1.0) * step * divisor > high {
            step = round_step(step / 2.6);
        }
        // of an infinite range there are none
        let values = (0..=2 * TICKS as u32).map(|i| (first_of(step) + f64::from(i)) * step);
        let within = values.filter(|value| value.is_finite() && *value * divisor <= high);
        axis.ticks = within.map(|value| (axis.share(value * divisor), round_number(value, step) + suffix)).collect();
        axis
    }

    /// Returns how far up a value is, from 0 to 1.
    fn share(&self, value: f64) -> f64 {
        ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }
}

/// Returns the least of 1, 2 and 5 times a power of ten that is no less.
fn round_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * power >= least * (1.0 - 1e-9));
    factor.unwrap_or(10.0) * power
}

/// Formats a multiple of a step with as many digits as the step has.
fn round_number(value: f64, step: f64) -> String {
    let (size, digit) = (value.abs().log10().floor(), step.log10().floor());
    if value.abs() < step / 2.0 {
        "0".to_owned()
    } else if size >= 6.0 || digit < -4.0 {
        format!("{value:.0$e}", (size - digit).clamp(0.0, 15.0) as usize)
    } else {
        format!("{value:.0$}", -digit.min(0.0) as usize)
    }
}

/// Returns the path of a line on an axis. `filled`: with the area below it.
pub(super) fn path(series: &Series, axis: &Axis, filled: bool) -> String {
    let mut path = String::new();
    let at =
        |(share, value): (f64, f64)| ((share * SIDE).round() as i64, (SIDE - axis.share(value) * SIDE).round() as i64);
    for piece in series.pieces() {
        let mut points = piece.iter().copied().map(at);
        let Some(first) = points.next() else { continue };
        let mut before = first;
        let _ = write!(path, "M{} {}", first.0, first.1);
        // a single point is a short line
        if piece.len() == 1 {
            path.push_str("h3");
        }
        for point in points {
            let (x, y) = (point.0 - before.0, point.1 - before.1);
            let _ = if y < 0 { write!(path, "l{x}{y}") } else { write!(path, "l{x} {y}") };
            before = point;
        }
        if filled {
            let _ = write!(path, "V{SIDE}H{}z", first.0);
        }
    }
    path
}

/// Returns the path of the marks where a program printed something else than a number.
pub(super) fn holes(series: &Series) -> String {
    series.holes().fold(String::new(), |mut path, share| {
        let _ = write!(path, "M{} 0V{SIDE}", (share * SIDE).round());
        path
    })
}

/// Opens the drawing of a chart, with lines for the ticks of the time and of an axis.
pub(super) fn open_svg(label: &str, scale: Scale, axis: Option<&Axis>) -> String {
    let mut svg = format!("<svg viewBox=\"0 0 {SIDE} {SIDE}\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"");
    super::escape::escape(&mut svg, label);
    svg.push_str("\"><path class=\"grid\" d=\"");
    for (share, _) in time_ticks(scale) {
        let _ = write!(svg, "M{} 0V{SIDE}", (share * SIDE).round());
    }
    for (share, _) in axis.iter().flat_map(|axis| &axis.ticks) {
        let _ = write!(svg, "M0 {}H{SIDE}", (SIDE - share * SIDE).round());
    }
    svg.push_str("\"/>");
    svg
}

/// Returns the ticks of the axis of time.
pub(super) fn time_ticks(scale: Scale) -> Vec<Tick> {
    let length = scale.end - scale.start;
    let step = SPANS.into_iter().map(f64::from).find(|step| length / step <= TIME_TICKS);
    let step = step.unwrap_or_else(|| round_step(length / f64::from(DAY) / TIME_TICKS) * f64::from(DAY));
    let at = (0..=TIME_TICKS as u32).map(|i| f64::from(i) * step).filter(|at| *at <= length);
    at.map(|at| (at / length, round_span(at as u64))).collect()
}

/// Formats a round time since the start of a job: `30s`, `1m30s`, `2h`, `3d`.
fn round_span(seconds: u64) -> String {
    let parts = [("d", seconds / 86_400), ("h", seconds / 3600 % 24), ("m", seconds / 60 % 60), ("s", seconds % 60)];
    let text: String = parts.iter().filter(|(_, n)| *n > 0).map(|(unit, n)| format!("{n}{unit}")).collect();
    if text.is_empty() { "0".to_owned() } else { text }
}

/// Returns a point in time as a coordinate.
pub(super) fn x(scale: Scale, time: f64) -> i64 {
    (scale.share(time) * SIDE).round() as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let numbers = [0.0, 0.25, 0.000_01, 12_345.0, 1_234_567.0, 2.71999, 99.95, -0.5, 7.0];
        let texts = ["0", "0.25", "1.00e-5", "12345", "1.23e6", "2.72", "100", "-0.5", "7"];
        assert_eq!(numbers.map(number), texts);
        assert_eq!(Unit::Memory.format(20_480.0), "20 GiB");
        assert_eq!(Unit::Rate.format(0.0), "0 KiB/s");
        assert_eq!(Unit::Cores.format(250.0), "2.5");
    }

    /// The least and the greatest value of an axis, and its ticks.
    fn axis(range: (f64, f64), unit: Unit) -> (f64, f64, String) {
        let axis = Axis::of(range, unit);
        let texts: Vec<&str> = axis.ticks.iter().map(|(_, text)| text.as_str()).collect();
        let rounded = |value: f64| (value * 1000.0).round() / 1000.0;
        (rounded(axis.low), rounded(axis.high), texts.join(", "))
    }

    #[test]
    fn an_axis_begins_at_zero_unless_printed_values_are_far_from_it_and_has_room_above() {
        for (range, low, high, ticks) in [
            ((3.0, 10.0), 0.0, 10.6, "0, 5, 10"),
            ((990.0, 1000.0), 989.4, 1000.6, "990, 995, 1000"),
            ((1000.1, 1000.9), 1000.052, 1000.948, "1000.2, 1000.4, 1000.6, 1000.8"),
            ((-2.0, 4.0), -2.36, 4.36, "-2, 0, 2, 4"),
            ((0.0, 3.0), 0.0, 3.18, "0, 1, 2, 3"),
            ((0.0, 0.07), 0.0, 0.074, "0, 0.02, 0.04, 0.06"),
            ((5.0, 5.0), 0.0, 5.3, "0, 2, 4"),
            ((0.0, 0.0), 0.0, 1.06, "0, 0.5, 1.0"),
            ((-5.0, -5.0), -5.06, -3.94, "-5.0, -4.5, -4.0"),
            ((0.0, 4.2e6), 0.0, 4_452_000.0, "0, 2e6, 4e6"),
        ] {
            let (real_low, real_high, real_ticks) = axis(range, Unit::None);
            assert_eq!((real_low, real_high, &*real_ticks), (low, high, ticks), "{range:?}");
        }
        assert_eq!(axis((73.0, 82.0), Unit::Percent), (0.0, 106.0, "0 %, 50 %, 100 %".into()));
        assert_eq!(axis((990.0, 515_000.0), Unit::Memory).2, "0 GiB, 200 GiB, 400 GiB");
        assert_eq!(axis((0.0, 250.0), Unit::Cores).2, "0, 1, 2");
        // nothing panics, and what cannot be divided has no ticks
        for range in [(-f64::MAX, f64::MAX), (1e16, 1e16 + 2.0), (0.0, f64::MIN_POSITIVE), (-1e-300, 0.0)] {
            assert!(axis(range, Unit::None).2.matches(',').count() < 9, "{range:?}");
        }
    }

    #[test]
    fn the_ticks_of_time_are_round() {
        for (length, texts) in [
            (1.0, "0, 1s"),
            (35.0, "0, 10s, 20s, 30s"),
            (140.0, "0, 30s, 1m, 1m30s, 2m"),
            (3599.0, "0, 15m, 30m, 45m"),
            (5.0 * 3600.0, "0, 1h, 2h, 3h, 4h, 5h"),
            (86_400.0, "0, 6h, 12h, 18h, 1d"),
            (4.0 * 86_400.0, "0, 1d, 2d, 3d, 4d"),
            (30.0 * 86_400.0, "0, 10d, 20d, 30d"),
        ] {
            let ticks = time_ticks(Scale::new(100.0, 100.0 + length, 5.0, 100));
            let found: Vec<&str> = ticks.iter().map(|(_, text)| text.as_str()).collect();
            assert_eq!(found.join(", "), texts, "{length}");
            assert!(ticks.iter().all(|(share, _)| (0.0..=1.0).contains(share)), "{ticks:?}");
        }
        assert_eq!(time_ticks(Scale::new(0.0, 40.0, 5.0, 100))[1].0, 0.25);
    }

    #[test]
    fn a_path_has_every_point_once() {
        let mut series = Series::new(Scale::new(0.0, 100.0, 5.0, 10));
        [(5.0, 0.0), (15.0, 10.0), (25.0, 5.0)].into_iter().for_each(|(time, value)| series.add(time, value));
        let axis = Axis::up_to(10.0, Unit::None);
        // the highest value is not at the edge
        assert_eq!(path(&series, &axis, false), "M50 1000l100-943l100 471");
        assert_eq!(path(&series, &axis, true), "M50 1000l100-943l100 471V1000H50z");
        series.add_hole(31.0);
        assert_eq!(holes(&series), "M350 0V1000");
    }
}
