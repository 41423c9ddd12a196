//! Plots of a benchmark as SVG: bus bandwidths over sizes, and the matrix of bandwidths between nodes. The colours
//! differ for colour-blind people, too, and the background is white in a dark viewer.

use super::text::Best;
use super::{BenchFormat, BenchReport};
use crate::bench::collectives::{Collectives, Exchange};
use crate::model::collective::{Collective, Dtype, format_size};
use crate::text::result::ResultText;
use plotters::coord::Shift;
use plotters::element::DynElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// An area of the drawing.
type PlotArea<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

/// The layout of the drawing, in pixels.
const MARGIN: i32 = 24;
const LEAST_WIDTH: i32 = 800;
const CURVES_HEIGHT: i32 = 420;
const TITLE: i32 = 36;
const LEGEND: i32 = 190;

/// The size of the matrix, and of one of its cells: the least and the most.
const MATRIX: i32 = 720;
const CELL: (i32, i32) = (15, 60);
/// Cells of this size have room for a number.
const CELL_WITH_NUMBER: i32 = 38;

/// The width of a letter as a share of its height, in the widest usual fonts.
const LETTER: f64 = 0.62;
/// plotters divides sizes of fonts by this.
const FONT_SCALE: f64 = 1.24;

const INK: RGBColor = RGBColor(34, 34, 34);
const FAINT: RGBColor = RGBColor(221, 221, 221);
const UNMEASURED: RGBColor = RGBColor(119, 119, 119);

/// Colours that people with any colour vision can tell apart (Okabe and Ito), with the operations that have them.
const SERIES: [(Collective, RGBColor); 5] = [
    (Collective::AllReduce, RGBColor(0, 114, 178)),
    (Collective::AllGather, RGBColor(230, 159, 0)),
    (Collective::ReduceScatter, RGBColor(0, 158, 115)),
    (Collective::Broadcast, RGBColor(213, 94, 0)),
    (Collective::AllToAll, RGBColor(204, 121, 167)),
];

/// From the lowest to the highest value: dark blue to yellow (the scale cividis), which also differ in their
/// brightness.
const SCALE: [(u8, u8, u8); 5] = [(0, 34, 78), (67, 78, 108), (125, 124, 120), (188, 175, 111), (254, 232, 56)];

/// A drawing of the measurements. No error is known: the drawing goes to memory.
pub struct SvgFormat;

impl BenchFormat for SvgFormat {
    fn format(&self, report: &BenchReport<'_>) -> anyhow::Result<ResultText> {
        let all = Best::of_each(&report.measured.directions);
        let bandwidth = |from, to| all.get(&(from, to))?.bandwidth();
        Ok(svg(&report.names(), bandwidth, report.collectives())?.into())
    }
}

/// Draws what was measured. `bandwidth`: from one node to another, in bytes a second; `None` if it was not measured.
fn svg(
    names: &[&str],
    bandwidth: impl Fn(usize, usize) -> Option<f64>,
    collectives: Option<&Collectives>,
) -> anyhow::Result<String> {
    let curves = collectives.and_then(Curves::new);
    let matrix = BandwidthMatrix::new(names, bandwidth);
    let top = if curves.is_some() { CURVES_HEIGHT } else { 0 };
    let (width, height) = (matrix.width().max(LEAST_WIDTH), top + if names.is_empty() { 0 } else { matrix.height() });
    let mut text = String::new();
    {
        let size = (u32::try_from(width)?, u32::try_from(height)?);
        let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
        root.fill(&WHITE)?;
        let (upper, lower) = root.split_vertically(top);
        if let Some(curves) = curves {
            curves.draw(&upper)?;
        }
        if !names.is_empty() {
            matrix.draw(&lower)?;
        }
        root.present()?;
    }
    Ok(text)
}

/// A style of text of this height.
fn font(height: f64, horizontal: HPos, vertical: VPos) -> TextStyle<'static> {
    ("sans-serif", height * FONT_SCALE).into_font().color(&INK).pos(Pos::new(horizontal, vertical))
}

fn title(area: &PlotArea<'_>, text: String) -> Drawn {
    area.draw(&Text::new(text, (MARGIN, MARGIN), font(15.0, HPos::Left, VPos::Center)))
}

/// An operation with its colour and its points.
type Curve = (Collective, RGBColor, Vec<(f64, f64)>);

/// The bus bandwidths of each operation over the sizes of the array.
struct Curves {
    ranks: u32,
    dtype: Dtype,
    /// Sizes in bytes, with bandwidths in GB/s.
    series: Vec<Curve>,
    /// The bandwidth that a ring can reach, in GB/s.
    limit: Option<f64>,
}

impl Curves {
    /// `None` where there is nothing to draw. Only one type of elements is drawn, because the others look alike.
    fn new(measured: &Collectives) -> Option<Curves> {
        let exchanges = measured.exchanges.iter();
        let known: Vec<&Exchange> = exchanges.filter(|of| of.bytes > 0 && of.bus_bandwidth.is_finite()).collect();
        let is_float32 = known.iter().any(|of| of.dtype == Dtype::Float32);
        let dtype = if is_float32 { Dtype::Float32 } else { known.first()?.dtype };
        let points = |collective: Collective| {
            let own = known.iter().filter(|of| (of.collective, of.dtype) == (collective, dtype));
            let mut points: Vec<(f64, f64)> = own.map(|of| (of.bytes as f64, of.bus_bandwidth)).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            points
        };
        let series = SERIES.map(|(collective, colour)| (collective, colour, points(collective)));
        let limits = known.iter().filter_map(|of| Some(of.bus_bandwidth / of.ring_share.filter(|share| *share > 0.0)?));
        let limit = limits.filter(|limit| limit.is_finite()).max_by(f64::total_cmp);
        let series = series.into_iter().filter(|(.., points)| !points.is_empty()).collect();
        Some(Curves { ranks: measured.ranks, dtype, series, limit })
    }

    fn draw(&self, area: &PlotArea<'_>) -> Drawn {
        let all = || self.series.iter().flat_map(|(.., points)| points);
        let least = all().map(|(x, _)| *x).min_by(f64::total_cmp).unwrap_or(1.0);
        let most = all().map(|(x, _)| *x).max_by(f64::total_cmp).unwrap_or(1.0).max(4.0 * least);
        let highest = all().map(|(_, y)| *y).chain(self.limit).max_by(f64::total_cmp).unwrap_or_default();
        let highest = if highest > 0.0 { highest * 1.08 } else { 1.0 };
        let what = self.dtype.to_string();
        title(area, format!("Bus bandwidth of collectives with {} ranks by array size ({what})", self.ranks))?;
        let (plot, legend) =
            area.margin(TITLE, MARGIN, MARGIN, MARGIN).split_horizontally(LEAST_WIDTH - LEGEND - 2 * MARGIN);
        let mut chart = ChartBuilder::on(&plot)
            .margin_right(16)
            .margin_top(8)
            .x_label_area_size(34)
            .y_label_area_size(64)
            // the ends are a little further away, so that rounding leaves their labels inside
            .build_cartesian_2d((0.99 * least..1.01 * most).log_scale().base(4.0), 0.0..highest)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_labels(12)
            .max_light_lines(1)
            .bold_line_style(FAINT)
            .axis_style(INK)
            .label_style(("sans-serif", 12.0 * FONT_SCALE).into_font().color(&INK))
            .axis_desc_style(("sans-serif", 13.0 * FONT_SCALE).into_font().color(&INK))
            .x_label_formatter(&|size: &f64| format_size(size.round() as u64))
            .y_label_formatter(&|value: &f64| format!("{}", (value * 1e4).round() / 1e4))
            .y_desc("GB/s")
            .draw()?;
        if let Some(limit) = self.limit {
            chart.draw_series(DashedLineSeries::new([(least, limit), (most, limit)], 8, 5, INK.stroke_width(2)))?;
        }
        for (collective, colour, points) in &self.series {
            chart.draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?;
            for point in points {
                chart.plotting_area().draw(&(EmptyElement::at(*point) + mark(*collective, *colour, (0, 0))))?;
            }
        }
        self.draw_legend(&legend)
    }

    fn draw_legend(&self, area: &PlotArea<'_>) -> Drawn {
        let mut y = 20;
        let mut label = |text: String, draw: &dyn Fn(i32) -> Drawn| {
            draw(y)?;
            area.draw(&Text::new(text, (38, y), font(12.0, HPos::Left, VPos::Center)))?;
            y += 24;
            Drawn::Ok(())
        };
        for (collective, colour, _) in &self.series {
            label(collective.to_string(), &|y| {
                area.draw(&PathElement::new([(0, y), (30, y)], colour.stroke_width(2)))?;
                area.draw(&mark(*collective, *colour, (15, y)))
            })?;
        }
        if let Some(limit) = self.limit {
            label(format!("limit of a ring, {limit:.3} GB/s"), &|y| {
                let dashes = [(0, 8), (11, 19), (22, 30)];
                dashes.iter().try_for_each(|(from, to)| {
                    area.draw(&PathElement::new([(*from, y), (*to, y)], INK.stroke_width(2)))
                })
            })?;
        }
        Ok(())
    }
}

/// A mark of a point: its form tells the operation as well as its colour.
fn mark<'b>(
    collective: Collective,
    colour: RGBColor,
    (x, y): (i32, i32),
) -> DynElement<'static, SVGBackend<'b>, (i32, i32)> {
    let around = |r: i32, offsets: &[(i32, i32)]| -> Vec<(i32, i32)> {
        offsets.iter().map(|(dx, dy)| (x + r * dx, y + r * dy)).collect()
    };
    match collective {
        Collective::AllReduce => Circle::new((x, y), 4, colour.filled()).into_dyn(),
        Collective::AllGather => Polygon::new(around(4, &[(-1, -1), (1, -1), (1, 1), (-1, 1)]), colour).into_dyn(),
        Collective::ReduceScatter => Polygon::new(around(5, &[(0, -1), (1, 1), (-1, 1)]), colour).into_dyn(),
        Collective::Broadcast => Polygon::new(around(5, &[(0, -1), (1, 0), (0, 1), (-1, 0)]), colour).into_dyn(),
        Collective::AllToAll => Polygon::new(around(5, &[(0, 1), (1, -1), (-1, -1)]), colour).into_dyn(),
    }
}

/// The bandwidths between nodes.
struct BandwidthMatrix<'a> {
    names: &'a [&'a str],
    /// In the unit, from each node (rows) to each other.
    values: Vec<Vec<Option<f64>>>,
    most: f64,
    unit: &'static str,
    cell: i32,
    /// The height of names, and the room that the longest one takes.
    font: f64,
    label: i32,
}

impl<'a> BandwidthMatrix<'a> {
    fn new(names: &'a [&'a str], bandwidth: impl Fn(usize, usize) -> Option<f64>) -> BandwidthMatrix<'a> {
        let n = names.len();
        let value = |from, to| bandwidth(from, to).filter(|value| from != to && value.is_finite());
        let values: Vec<Vec<Option<f64>>> = (0..n).map(|from| (0..n).map(|to| value(from, to)).collect()).collect();
        let most = values.iter().flatten().flatten().copied().max_by(f64::total_cmp).unwrap_or_default();
        let (unit, factor) = if most * 8.0 >= 1e9 { ("Gb/s", 8e-9) } else { ("Mb/s", 8e-6) };
        let scaled = |row: Vec<Option<f64>>| row.into_iter().map(|value| value.map(|value| value * factor)).collect();
        let cell = (MATRIX / i32::try_from(n.max(1)).unwrap_or(i32::MAX)).clamp(CELL.0, CELL.1);
        let font = f64::from(cell - 3).min(13.0);
        let longest = names.iter().map(|name| name.chars().count()).max().unwrap_or_default();
        let label = (longest as f64 * LETTER * font).ceil() as i32 + 8;
        let values = values.into_iter().map(scaled).collect();
        BandwidthMatrix { names, values, most: most * factor, unit, cell, font, label }
    }

    fn side(&self) -> i32 {
        self.cell * i32::try_from(self.names.len()).unwrap_or(i32::MAX / 64)
    }

    fn width(&self) -> i32 {
        2 * MARGIN + self.label + self.side() + LEGEND
    }

    fn height(&self) -> i32 {
        TITLE + MARGIN + self.label + self.side().max(120) + MARGIN
    }

    fn draw(&self, area: &PlotArea<'_>) -> Drawn {
        let unit = self.unit;
        title(area, format!("TCP bandwidth from the row's node to the column's node, in {unit}"))?;
        let (left, top) = (MARGIN + self.label, TITLE + MARGIN / 2 + self.label);
        let at = |index: usize| self.cell * i32::try_from(index).unwrap_or_default();
        for (index, name) in self.names.iter().enumerate() {
            let middle = at(index) + self.cell / 2;
            let row = font(self.font, HPos::Right, VPos::Center);
            area.draw(&Text::new(*name, (left - 8, top + middle), row))?;
            let column = font(self.font, HPos::Left, VPos::Center).transform(FontTransform::Rotate270);
            area.draw(&Text::new(*name, (left + middle, top - 8), column))?;
        }
        for (from, row) in self.values.iter().enumerate() {
            for (to, value) in row.iter().enumerate() {
                self.draw_cell(area, (left + at(to), top + at(from)), *value, from == to)?;
            }
        }
        self.draw_legend(area, (left + self.side() + MARGIN, top))
    }

    fn draw_cell(&self, area: &PlotArea<'_>, (x, y): (i32, i32), value: Option<f64>, is_own: bool) -> Drawn {
        let corners = [(x + 1, y + 1), (x + self.cell - 1, y + self.cell - 1)];
        let middle = (x + self.cell / 2, y + self.cell / 2);
        let centred = |height: f64| font(height, HPos::Center, VPos::Center);
        let Some(value) = value else {
            if is_own {
                return area.draw(&Rectangle::new(corners, FAINT.filled()));
            }
            area.draw(&Rectangle::new(corners, UNMEASURED.stroke_width(1)))?;
            return area.draw(&Text::new("×", middle, centred(self.font).color(&UNMEASURED)));
        };
        let colour = scale(if self.most > 0.0 { value / self.most } else { 0.0 });
        area.draw(&Rectangle::new(corners, colour.filled()))?;
        if self.cell >= CELL_WITH_NUMBER {
            let ink = if brightness(colour) < 0.5 { WHITE } else { INK };
            area.draw(&Text::new(number(value), middle, centred(12.0).color(&ink)))?;
        }
        Ok(())
    }

    fn draw_legend(&self, area: &PlotArea<'_>, (x, y): (i32, i32)) -> Drawn {
        let height = self.side().clamp(60, 240);
        for line in 0..height {
            let share = f64::from(height - 1 - line) / f64::from(height - 1);
            area.draw(&Rectangle::new([(x, y + line), (x + 16, y + line + 1)], scale(share).filled()))?;
        }
        for (share, line) in [(1.0, 0), (0.5, height / 2), (0.0, height)] {
            let text = format!("{} {}", number(share * self.most), self.unit);
            area.draw(&Text::new(text, (x + 24, y + line), font(12.0, HPos::Left, VPos::Center)))?;
        }
        let is_missing = |(from, row): (usize, &Vec<Option<f64>>)| {
            row.iter().enumerate().any(|(to, value)| from != to && value.is_none())
        };
        if self.values.iter().enumerate().any(is_missing) {
            let style = font(12.0, HPos::Left, VPos::Center);
            area.draw(&Text::new("× not measured", (x, y + height + 26), style))?;
        }
        Ok(())
    }
}

/// Formats a value with three digits.
fn number(value: f64) -> String {
    let decimals = match value {
        99.95.. => 0,
        9.995.. => 1,
        _ => 2,
    };
    format!("{value:.decimals$}")
}

/// Returns the colour of a share of the highest value.
fn scale(share: f64) -> RGBColor {
    let place = share.clamp(0.0, 1.0) * (SCALE.len() - 1) as f64;
    let lower = (place as usize).min(SCALE.len() - 2);
    let (from, to) = (SCALE[lower], SCALE[lower + 1]);
    let between =
        |from: u8, to: u8| (f64::from(from) + (f64::from(to) - f64::from(from)) * (place - lower as f64)).round() as u8;
    RGBColor(between(from.0, to.0), between(from.1, to.1), between(from.2, to.2))
}

/// Returns how bright a colour looks, from 0 to 1.
fn brightness(RGBColor(red, green, blue): RGBColor) -> f64 {
    (0.299 * f64::from(red) + 0.587 * f64::from(green) + 0.114 * f64::from(blue)) / 255.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(n: usize, length: usize) -> Vec<String> {
        (1..=n).map(|i| format!("node{i:0>width$}", width = length - 4)).collect()
    }

    fn drawn(
        names: &[String],
        value: impl Fn(usize, usize) -> Option<f64>,
        collectives: Option<&Collectives>,
    ) -> String {
        svg(&names.iter().map(String::as_str).collect::<Vec<_>>(), value, collectives).unwrap()
    }

    fn count(text: &str, what: &str) -> usize {
        text.matches(what).count()
    }

    fn collectives() -> Collectives {
        let exchange = |collective, bytes: u64, bus_bandwidth: f64| Exchange {
            collective,
            dtype: Dtype::Float32,
            bytes,
            time_us: 1.0,
            algorithm_bandwidth: bus_bandwidth,
            bus_bandwidth,
            ring_share: Some(bus_bandwidth / 1.176),
        };
        let sizes = (10..=28).step_by(2);
        let reached = |bytes: u64, index: usize| (0.3 + 0.15 * index as f64) * bytes as f64 / (bytes as f64 + 2e6);
        let of = |(index, (collective, _)): (usize, &(Collective, RGBColor))| {
            let collective = *collective;
            sizes
                .clone()
                .map(move |power| exchange(collective, 1 << power, reached(1 << power, index)))
                .collect::<Vec<_>>()
        };
        let exchanges = SERIES.iter().enumerate().flat_map(of).collect();
        Collectives { ranks: 8, exchanges, ..Collectives::default() }
    }

    /// Writes plots to look at.
    fn show(name: &str, text: &str) {
        if let Some(directory) = std::env::var_os("HVDCTL_TEST_PLOTS") {
            std::fs::write(std::path::Path::new(&directory).join(name), text).unwrap();
        }
    }

    #[test]
    fn every_number_of_nodes_has_room() {
        for (n, length) in [(2, 5), (3, 30), (8, 12), (18, 30), (64, 30)] {
            let names = names(n, length);
            let value = |from: usize, to: usize| match (from, to) {
                (1, _) => Some(0.94 * 1.25e8),
                (0, 2) => None,
                _ => Some((9.4 - ((from * 7 + to * 3) % 5) as f64 * 0.4) * 1.25e8),
            };
            let text = drawn(&names, value, Some(&collectives()));
            show(&format!("{n}.svg"), &text);
            assert!(text.starts_with("<svg ") && text.trim_end().ends_with("</svg>"));
            for name in &names {
                assert_eq!(count(&text, &format!("\n{name}\n")), 2, "{n}: {name}");
            }
            assert!(text.contains("in Gb/s") && text.contains("limit of a ring, 1.176 GB/s"));
            assert_eq!(text.contains("× not measured"), n > 2);
            assert_eq!(text.contains("\n0.94\n"), n <= 18, "numbers where they have room");
            let size = |name: &str| -> i32 {
                let rest = text.split_once(&format!("{name}=\"")).unwrap().1;
                rest.split_once('"').unwrap().0.parse().unwrap()
            };
            let (width, height) = (size("width"), size("height"));
            for (x, y) in places(&text) {
                assert!((0..=width).contains(&x) && (0..=height).contains(&y), "{n}: {x} {y} of {width} {height}");
            }
        }
    }

    /// Returns the anchors of all texts.
    fn places(text: &str) -> Vec<(i32, i32)> {
        let attribute = |tag: &str, name: &str| -> i32 {
            tag.split_once(&format!(" {name}=\"")).unwrap().1.split_once('"').unwrap().0.parse().unwrap()
        };
        text.split("<text").skip(1).map(|tag| (attribute(tag, "x"), attribute(tag, "y"))).collect()
    }

    #[test]
    fn each_collective_has_a_curve() {
        let names = names(2, 5);
        let value = |_, _| Some(1.1e8);
        let text = drawn(&names, value, Some(&collectives()));
        for (collective, _) in SERIES {
            assert_eq!(count(&text, &format!("\n{collective}\n")), 1, "{collective:?}");
        }
        assert!(text.contains("with 8 ranks by array size (float32)") && text.contains("\n256M\n"), "{text}");
        // one size, another type, and no link that was measured
        let mut one = collectives();
        one.exchanges.truncate(1);
        (one.exchanges[0].ring_share, one.exchanges[0].dtype) = (None, Dtype::Bfloat16);
        let text = drawn(&names, value, Some(&one));
        assert!(text.contains("(bfloat16)") && !text.contains("limit of a ring") && text.contains("in Mb/s"));

        for none in [None, Some(&Collectives::default())] {
            let text = drawn(&names, value, none);
            assert!(!text.contains("collectives") && text.contains("TCP bandwidth"));
        }
    }

    #[test]
    fn what_was_not_measured_has_no_colour() {
        let text = drawn(&names(3, 5), |_, _| None, None);
        assert_eq!(count(&text, "\n×\n"), 6);
        assert!(text.contains("0.00 Mb/s"));
        let odd = drawn(&names(2, 5), |from, _| Some([f64::NAN, 1e6][from]), None);
        assert_eq!((count(&odd, "\n×\n"), count(&odd, "\n8.00\n")), (1, 1), "{odd}");
    }

    #[test]
    fn the_scale_grows_brighter() {
        let brightnesses: Vec<f64> = (0..=20).map(|i| brightness(scale(f64::from(i) / 20.0))).collect();
        assert!(brightnesses.windows(2).all(|pair| pair[1] > pair[0]), "{brightnesses:?}");
    }
}
