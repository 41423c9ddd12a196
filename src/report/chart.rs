//! Charts as SVG that fits any width. Lines are drawn in a square of 1000 units that the page stretches; what is to be
//! read is text of the page, which is not stretched.

use super::series::{Scale, Series};
use crate::text::units::span;
use std::fmt::Write as _;
use std::time::Duration;

/// The side of the square.
const SIDE: f64 = 1000.0;
/// The ticks of the axis of time.
const TICKS: u32 = 4;

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
    /// Formats a value.
    pub(super) fn format(self, value: f64) -> String {
        let scaled = |mut value: f64, units: [&str; 3]| {
            let mut unit = units[0];
            for larger in &units[1..] {
                if value >= 1000.0 {
                    (value, unit) = (value / 1024.0, larger);
                }
            }
            format!("{} {unit}", number(value))
        };
        match self {
            Unit::Percent => format!("{value:.0} %"),
            Unit::Cores => number(value / 100.0),
            Unit::Memory => scaled(value, ["MiB", "GiB", "TiB"]),
            Unit::Rate => scaled(value, ["KiB/s", "MiB/s", "GiB/s"]),
            Unit::Watts => format!("{value:.0} W"),
            Unit::None => number(value),
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

/// Returns the bounds of an axis for values in this range. It begins at 0; only what a program prints may be far from
/// that.
pub(super) fn bounds((least, greatest): (f64, f64), unit: Unit) -> (f64, f64) {
    let is_near = unit != Unit::None || least < greatest * 0.5 || least == greatest;
    let low = if is_near && least >= 0.0 { 0.0 } else { least };
    let greatest = if unit == Unit::Percent { 100.0 } else { greatest };
    let high = if greatest > low { greatest } else { low + 1.0 };
    (low, high)
}

/// Returns the path of a line between bounds. `filled`: with the area below it.
pub(super) fn path(series: &Series, (low, high): (f64, f64), filled: bool) -> String {
    let mut path = String::new();
    let at = |(share, value): (f64, f64)| {
        let height = ((value - low) / (high - low)).clamp(0.0, 1.0);
        ((share * SIDE).round() as i64, (SIDE - height * SIDE).round() as i64)
    };
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

/// Opens the drawing of a chart, with lines for its ticks.
pub(super) fn open_svg(label: &str) -> String {
    let mut svg = format!("<svg viewBox=\"0 0 {SIDE} {SIDE}\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"");
    super::escape::escape(&mut svg, label);
    svg.push_str("\"><path class=\"grid\" d=\"");
    for tick in 0..=TICKS {
        let at = f64::from(tick) * SIDE / f64::from(TICKS);
        let _ = write!(svg, "M{at} 0V{SIDE}");
        if tick % 2 == 0 {
            let _ = write!(svg, "M0 {at}H{SIDE}");
        }
    }
    svg.push_str("\"/>");
    svg
}

/// Returns the texts of the axis of time.
pub(super) fn ticks(scale: Scale) -> Vec<String> {
    let tick = |i: u32| (scale.end - scale.start) * f64::from(i) / f64::from(TICKS);
    (0..=TICKS).map(|i| span(Duration::try_from_secs_f64(tick(i)).unwrap_or_default())).collect()
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

    #[test]
    fn an_axis_begins_at_zero_unless_printed_values_are_far_from_it() {
        let printed = [(3.0, 10.0), (990.0, 1000.0), (-2.0, 4.0), (5.0, 5.0), (0.0, 0.0), (-5.0, -5.0)];
        let axes = [(0.0, 10.0), (990.0, 1000.0), (-2.0, 4.0), (0.0, 5.0), (0.0, 1.0), (-5.0, -4.0)];
        assert_eq!(printed.map(|range| bounds(range, Unit::None)), axes);
        assert_eq!(bounds((990.0, 1000.0), Unit::Memory), (0.0, 1000.0));
        assert_eq!(bounds((73.0, 82.0), Unit::Percent), (0.0, 100.0));
    }

    #[test]
    fn a_path_has_every_point_once() {
        let mut series = Series::new(Scale::new(0.0, 100.0, 5.0, 10));
        [(5.0, 0.0), (15.0, 10.0), (25.0, 5.0)].into_iter().for_each(|(time, value)| series.add(time, value));
        assert_eq!(path(&series, (0.0, 10.0), false), "M50 1000l100-1000l100 500");
        assert_eq!(path(&series, (0.0, 10.0), true), "M50 1000l100-1000l100 500V1000H50z");
    }
}
