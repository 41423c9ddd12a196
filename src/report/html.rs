//! The page of a report.

use super::chart::{self, Axis, ChartLine, Unit, holes, open_svg, path, time_ticks, x};
use super::collected::{GpuHistory, NodeHistory, RankEnd, RankHistory, RankSpan, Report};
use super::escape::escaped;
use super::repeat::{self, controller};
use crate::model::role::names;
use crate::model::stack;
use crate::record::JobState;
use crate::text::nodeset;
use crate::text::quote;
use crate::text::units::{count, span, stamp};
use std::fmt::Write as _;
use std::time::Duration;

/// The most places of ranks that are shown.
const MOST_PLACES: usize = 20;

/// The style sheet. Its colours differ for colour-blind people, too (Okabe and Ito).
const STYLE: &str = include_str!("style.css");
/// The number of colours of lines.
const COLOURS: usize = 8;
/// The shares of an axis up to which, and from which on, the text of a tick is not in the middle of it.
const FIRST: f64 = 0.05;
const LAST: f64 = 0.92;
/// Times that are listed of each GPU.
const LISTED: usize = 5;

fn duration(seconds: f64) -> String {
    span(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

impl Report<'_> {
    /// Returns the page.
    pub fn html(&self) -> String {
        let title = format!("{} – {}", self.job.name, self.job.id);
        let mut page = format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
            <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
            <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
            <title>{}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n",
            escaped(&title)
        );
        self.head(&mut page);
        self.failure(&mut page);
        self.places_of_ranks(&mut page);
        self.missing_parts(&mut page);
        self.timeline(&mut page);
        self.metric_charts(&mut page);
        self.gpu_charts(&mut page);
        self.rank_charts(&mut page);
        self.node_charts(&mut page);
        self.facts(&mut page);
        let _ = write!(
            page,
            "<footer>Written by hvdctl {} on {}. Times are in UTC, by the clock of {}.</footer>\n</main>\n</body>\n</html>\n",
            env!("CARGO_PKG_VERSION"),
            stamp(self.now),
            escaped(self.job.launcher())
        );
        page
    }

    fn head(&self, page: &mut String) {
        let job = self.job;
        let state = job.state.map_or("unknown".to_owned(), |state| state.to_string());
        let length = duration(job.ended.unwrap_or(self.now) - job.started);
        let length = if job.ended.is_some() { format!("{length} long") } else { format!("for {length} so far") };
        let nodes: Vec<&str> = self.nodes.iter().map(|node| node.name.as_str()).collect();
        let _ = write!(
            page,
            "<header>\n<h1>{}</h1>\n<p class=\"state {}\">{}</p>\n<p>Job <code>{}</code> of {}: {} on {}, started {}, {length}.</p>\n\
            <pre class=\"command\">{}</pre>\n</header>\n",
            escaped(&job.name),
            class(job.state),
            escaped(&state),
            escaped(&job.id),
            escaped(&job.operator),
            count(job.ranks as usize, "rank"),
            escaped(&nodeset::with_count(&nodes)),
            stamp(job.started),
            escaped(&quote::command(&job.command)),
        );
    }

    fn failure(&self, page: &mut String) {
        let Some(reason) = &self.job.reason else { return };
        let (class, title) = match class(self.job.state) {
            "failed" => ("failure", "Why it failed"),
            _ => ("note", "Notes"),
        };
        let _ = writeln!(page, "<section class=\"{class}\">\n<h2>{title}</h2>\n<p>{}</p>", escaped(reason));
        if !self.last_lines.is_empty() {
            let lines = escaped(&self.last_lines.join("\n"));
            let _ = writeln!(page, "<p>The last lines of that rank:</p>\n<pre>{lines}</pre>");
        }
        page.push_str("</section>\n");
    }

    fn places_of_ranks(&self, page: &mut String) {
        let Some((time, groups)) = self.places() else { return };
        let sentence = stack::sentence(&groups, Some(self.job.ranks)).unwrap_or_default();
        let _ = writeln!(
            page,
            "<section>\n<h2>Where the ranks were</h2>\n<p>When they were read last, {}: {}.</p>",
            stamp(time),
            escaped(&sentence)
        );
        for group in groups.iter().take(MOST_PLACES) {
            let mut lines = stack::lines_of(group.example().frames(), false);
            lines.extend(stack::others_of(group.example()).iter().map(|other| format!("and {other}")));
            let _ = writeln!(page, "<h3>{}: {}</h3>", escaped(&group.name()), escaped(&group.describe()));
            if !lines.is_empty() {
                let _ = writeln!(page, "<pre>{}</pre>", escaped(&lines.join("\n")));
            }
        }
        if groups.len() > MOST_PLACES {
            let _ = writeln!(page, "<p>{} more places are not shown.</p>", groups.len() - MOST_PLACES);
        }
        page.push_str("</section>\n");
    }

    fn missing_parts(&self, page: &mut String) {
        let missing = self.missing();
        if missing.is_empty() {
            return;
        }
        page.push_str("<section class=\"missing\">\n<h2>What is missing</h2>\n<ul>\n");
        missing.iter().for_each(|line| {
            let _ = writeln!(page, "<li>{}</li>", escaped(line));
        });
        page.push_str("</ul>\n</section>\n");
    }

    fn timeline(&self, page: &mut String) {
        if self.ranks.is_empty() {
            return;
        }
        page.push_str("<section>\n<h2>Ranks over time</h2>\n<div class=\"rows\">\n");
        for (rank, data) in &self.ranks {
            let latest = data.spans.iter().max_by(|a, b| a.start.total_cmp(&b.start));
            let node = latest.map_or("", |span| self.nodes[span.node].name.as_str());
            let _ = write!(
                page,
                "<div class=\"row\"><span class=\"name\">{} <small>{}</small></span>",
                self.name(*rank),
                escaped(node)
            );
            page.push_str("<div class=\"bar\">");
            data.spans.iter().for_each(|one| self.bar(page, *rank, data, one));
            data.waits.iter().for_each(|wait| {
                let end = self.end_of_wait(data, wait);
                let text =
                    format!("{} made no progress for {}: {}", self.name(*rank), duration(end - wait.start), wait.does);
                self.mark(page, "wait", wait.start, end, &text);
            });
            for (time, _) in &self.restarts {
                let _ =
                    write!(page, "<i class=\"restart\" style=\"left:{:.2}%\"></i>", self.scale.share(*time) * 100.0);
            }
            page.push_str("</div></div>\n");
        }
        self.axis(page, "");
        page.push_str(
            "</div>\n<p class=\"legend\"><span class=\"key ok\"></span> ran <span class=\"key failed\"></span> failed \
            <span class=\"key ended\"></span> ended with the others <span class=\"key wait\"></span> no progress</p>\n",
        );
        if !self.restarts.is_empty() {
            page.push_str("<ol class=\"restarts\">\n");
            for (time, text) in &self.restarts {
                let at = duration(time - self.scale.start);
                let _ = writeln!(page, "<li>after {at}: {}</li>", escaped(text));
            }
            page.push_str("</ol>\n");
        }
        page.push_str("</section>\n");
    }

    fn bar(&self, page: &mut String, rank: u32, data: &RankHistory, one: &RankSpan) {
        let lost = self.lost_by(data, one).or(self.job.is_over().then_some(self.scale.end));
        let (end, class, how) = match one.end {
            Some((end, RankEnd::Renumbered)) => (end, "ok", "got another number".to_owned()),
            Some((end, RankEnd::Exited { code: 0, .. })) => (end, "ok", "succeeded".to_owned()),
            Some((end, RankEnd::Exited { asked: true, code, .. })) => {
                (end, "ended", format!("ended with the others ({code})"))
            }
            Some((end, RankEnd::Exited { code, oom, .. })) => {
                let memory = if oom { ", out of memory" } else { "" };
                (end, "failed", format!("failed with exit code {code}{memory}"))
            }
            None => match lost {
                Some(end) => (end, "ended", "its end was not recorded".to_owned()),
                None => (self.scale.end, "ok", "runs".to_owned()),
            },
        };
        let node = &self.nodes[one.node].name;
        self.mark(
            page,
            class,
            one.start,
            end,
            &format!("{} on {node}: {how} after {}", self.name(rank), duration(end - one.start)),
        );
    }

    /// Adds a piece of a bar.
    fn mark(&self, page: &mut String, class: &str, start: f64, end: f64, text: &str) {
        let (left, right) = (self.scale.share(start) * 100.0, self.scale.share(end) * 100.0);
        let width = (right - left).max(0.2);
        let _ = write!(
            page,
            "<i class=\"{class}\" style=\"left:{left:.2}%;width:{width:.2}%\" title=\"{}\"></i>",
            escaped(text)
        );
    }

    /// Adds the axis of time below rows of this class.
    fn axis(&self, page: &mut String, class: &str) {
        let _ = write!(page, "<div class=\"row axis{class}\"><span class=\"name\"></span>");
        self.time_ticks(page);
        page.push_str("</div>\n");
    }

    /// Adds the texts of the axis of time.
    fn time_ticks(&self, page: &mut String) {
        page.push_str("<div class=\"ticks\">");
        for (share, tick) in time_ticks(self.scale) {
            let class = if share > LAST { " class=\"end\"" } else { "" };
            let _ = write!(page, "<span{class} style=\"left:{:.2}%\">{tick}</span>", share * 100.0);
        }
        page.push_str("</div>");
    }

    fn metric_charts(&self, page: &mut String) {
        let found: Vec<_> = self.metrics.iter().filter(|metric| !metric.values.is_empty()).collect();
        if found.is_empty() {
            return;
        }
        page.push_str("<section>\n<h2>Printed by the program</h2>\n<div class=\"charts\">\n");
        for metric in found {
            let lines = metric.values.iter().map(|(rank, series)| ChartLine {
                title: format!("{}: last {}", self.name(*rank), series.last().map_or_else(String::new, chart::number)),
                colour: *rank as usize,
                series,
            });
            let note = metric.describe_no_numbers(&self.job.placement);
            self.chart(page, (metric.name(), note.as_deref()), Unit::None, &lines.collect::<Vec<_>>());
        }
        page.push_str("</div>\n</section>\n");
    }

    fn gpu_charts(&self, page: &mut String) {
        if self.nodes.iter().all(|node| self.gpus(node).is_empty()) {
            return;
        }
        page.push_str("<section>\n<h2>GPUs</h2>\n<p class=\"legend\"><span class=\"key used\"></span> use, 0 to 100 % \
            <span class=\"key power\"></span> power, 0 to the limit <span class=\"key stall\"></span> in use all the time at less \
            than 30 % of the power: kernels that wait, as in a collective operation, or small ones</p>\n<div class=\"rows\">\n");
        for node in &self.nodes {
            for (index, gpu, rank) in self.gpus(node) {
                self.gpu(page, node, index, gpu, rank);
            }
        }
        self.axis(page, " gpu");
        page.push_str("</div>\n");
        let mut stalls = String::new();
        for node in &self.nodes {
            for (index, gpu, _) in self.gpus(node) {
                let found = gpu.stalls.found();
                for (start, end) in found.iter().take(LISTED) {
                    let (from, to) = (duration(start - self.scale.start), duration(end - self.scale.start));
                    let _ = writeln!(stalls, "<li>GPU {index} of {}: from {from} to {to}</li>", escaped(&node.name));
                }
                if found.len() > LISTED {
                    let _ = writeln!(
                        stalls,
                        "<li>GPU {index} of {}: {} more</li>",
                        escaped(&node.name),
                        found.len() - LISTED
                    );
                }
            }
        }
        if !stalls.is_empty() {
            let _ = write!(page, "<h3>100 % use at idle power</h3>\n<ul>\n{stalls}</ul>\n");
        }
        page.push_str("</section>\n");
    }

    fn gpu(&self, page: &mut String, node: &NodeHistory, index: u32, gpu: &GpuHistory, rank: Option<u32>) {
        let of = rank.map_or_else(String::new, |rank| format!(", {}", self.name(rank)));
        let label = format!("{} GPU {index}{of}", node.name);
        let _ = write!(
            page,
            "<div class=\"row gpu\"><span class=\"name\">{} <small>GPU {index}{of}</small></span><div class=\"plot\">{}",
            escaped(&node.name),
            open_svg(&label, self.scale, Some(&Axis::up_to(100.0, Unit::Percent)))
        );
        let limit = gpu.description.limit_w.or(gpu.power.range().map(|(_, most)| most)).unwrap_or(1.0).max(1.0);
        let (used, power) = (
            path(&gpu.used, &Axis::up_to(100.0, Unit::Percent), true),
            path(&gpu.power, &Axis::up_to(limit, Unit::Watts), false),
        );
        let _ = write!(page, "<path class=\"used\" d=\"{used}\"/>");
        for (start, end) in gpu.stalls.found() {
            let (left, right) = (x(self.scale, start), x(self.scale, end));
            let width = (right - left).max(2);
            let _ = write!(page, "<rect class=\"stall\" x=\"{left}\" y=\"0\" width=\"{width}\" height=\"1000\"/>");
        }
        let _ = write!(page, "<path class=\"power\" d=\"{power}\"/></svg></div>");
        let mut texts = Vec::new();
        texts.extend(gpu.used.mean().map(|mean| format!("{} in use", Unit::Percent.format(mean))));
        texts.extend(gpu.power.mean().map(|mean| Unit::Watts.format(mean)));
        texts.extend(gpu.memory.range().map(|(_, most)| format!("up to {}", Unit::Memory.format(most))));
        texts.extend(gpu.temperature.range().map(|(_, most)| format!("{most:.0} °C")));
        let _ = writeln!(page, "<span class=\"value\">{}</span></div>", escaped(&texts.join(", ")));
    }

    fn rank_charts(&self, page: &mut String) {
        let charts = [
            ("Processors, in cores", Unit::Cores),
            ("Memory", Unit::Memory),
            ("Read from disks", Unit::Rate),
            ("Written to disks", Unit::Rate),
        ];
        if self.ranks.values().all(|rank| rank.usage.iter().all(|series| series.mean().is_none())) {
            return;
        }
        page.push_str("<section>\n<h2>Ranks</h2>\n");
        self.charts(page, &charts, |i| {
            let lines = self.ranks.iter().map(|(rank, data)| {
                let colour = data.spans.last().map_or(0, |span| span.node);
                let node = self.nodes.get(colour).map_or("", |node| &node.name);
                ChartLine { title: format!("{} on {node}", self.name(*rank)), colour, series: &data.usage[i] }
            });
            lines.collect()
        });
    }

    fn node_charts(&self, page: &mut String) {
        let charts = [
            ("Processors", Unit::Percent),
            ("Memory", Unit::Memory),
            ("Received from the network", Unit::Rate),
            ("Sent to the network", Unit::Rate),
            ("Read from disks", Unit::Rate),
            ("Written to disks", Unit::Rate),
        ];
        if self.nodes.iter().all(|node| node.usage.iter().all(|series| series.mean().is_none())) {
            return;
        }
        page.push_str("<section>\n<h2>Nodes</h2>\n<p>Of everything that runs on them.</p>\n");
        self.charts(page, &charts, |i| {
            let nodes = self.nodes.iter().enumerate();
            nodes.map(|(colour, node)| ChartLine { title: node.name.clone(), colour, series: &node.usage[i] }).collect()
        });
    }

    /// Adds the charts of a section and ends it. `lines`: those of the chart with this index.
    fn charts<'r>(&'r self, page: &mut String, charts: &[(&str, Unit)], lines: impl Fn(usize) -> Vec<ChartLine<'r>>) {
        self.legend(page);
        page.push_str("<div class=\"charts\">\n");
        for (i, (title, unit)) in charts.iter().enumerate() {
            self.chart(page, (title, None), *unit, &lines(i));
        }
        page.push_str("</div>\n</section>\n");
    }

    /// Adds which node has which colour.
    fn legend(&self, page: &mut String) {
        page.push_str("<p class=\"legend\">");
        for (i, node) in self.nodes.iter().enumerate().take(COLOURS) {
            let _ = write!(page, "<span class=\"key c{i}\"></span> {} ", escaped(&node.name));
        }
        if self.nodes.len() > COLOURS {
            page.push_str("<span>and others in the same colours</span>");
        }
        page.push_str("</p>\n");
    }

    /// Adds a chart with several lines, its title and a note below that.
    fn chart(&self, page: &mut String, (title, note): (&str, Option<&str>), unit: Unit, lines: &[ChartLine<'_>]) {
        let ranges = lines.iter().filter_map(|line| line.series.range());
        let range = ranges.reduce(|(low, high), (least, most)| (low.min(least), high.max(most)));
        let _ = write!(page, "<figure>\n<figcaption>{}", escaped(title));
        // a page of flat lines hides the others
        let instead = match (range, note) {
            (None, None) => ": no values",
            (None, Some(_)) => ": no numbers",
            (Some((0.0, 0.0)), None) => ": 0 all the time",
            _ => "",
        };
        let _ = write!(page, "{instead}</figcaption>");
        if let Some(note) = note {
            let _ = write!(page, "\n<p class=\"nan\">{}</p>", escaped(note));
        } else if !instead.is_empty() {
            page.push_str("</figure>\n");
            return;
        }
        let axis = range.map(|range| Axis::of(range, unit));
        let _ = write!(page, "\n<div class=\"plot\">{}", open_svg(title, self.scale, axis.as_ref()));
        for line in lines {
            let path = axis.as_ref().map_or_else(String::new, |axis| path(line.series, axis, false));
            let title = escaped(&line.title);
            if !path.is_empty() {
                let colour = line.colour % COLOURS;
                let _ = write!(page, "<path class=\"c{colour}\" d=\"{path}\"><title>{title}</title></path>");
            }
            let holes = holes(line.series);
            if !holes.is_empty() {
                let _ = write!(page, "<path class=\"nan\" d=\"{holes}\"><title>no number: {title}</title></path>");
            }
        }
        page.push_str("</svg>");
        for (share, tick) in axis.iter().flat_map(|axis| &axis.ticks) {
            let class = if *share < FIRST { "y first" } else { "y" };
            let _ =
                write!(page, "<span class=\"{class}\" style=\"bottom:{:.2}%\">{}</span>", share * 100.0, escaped(tick));
        }
        page.push_str("</div>\n");
        self.time_ticks(page);
        page.push_str("\n</figure>\n");
    }

    fn facts(&self, page: &mut String) {
        let job = self.job;
        page.push_str("<section>\n<h2>Where and how it ran</h2>\n<table>\n");
        let mut row = |name: &str, value: &str| {
            let _ = writeln!(page, "<tr><th>{name}</th><td>{}</td></tr>", escaped(value));
        };
        if let Some(record) = &job.record {
            if let Some(command) = repeat::command(record) {
                row("Run it again", &command);
            }
            row(
                "Launcher",
                &[job.launcher.map(|one| one.to_string()), job.controller.map(|one| controller(one).to_owned())]
                    .into_iter()
                    .flatten()
                    .collect::<Vec<_>>()
                    .join(", "),
            );
            row(
                "Image",
                record.image.as_deref().unwrap_or(if record.version.is_some() {
                    "none: processes of the login user"
                } else {
                    "not recorded"
                }),
            );
            row("Started by", &format!("hvdctl {}", record.version.as_deref().unwrap_or("earlier than 0.3")));
            let variables = if record.variables.is_empty() { "none".to_owned() } else { record.variables.join(", ") };
            row("Variables that were set", &format!("{variables} (values are not recorded)"));
        }
        if let Some(project) = &job.project {
            let commit = job.commit.as_ref().map(|commit| format!(", commit {commit}")).unwrap_or_default();
            let dirty = if job.dirty == Some(true) { " with changes" } else { "" };
            row("Project", &format!("{project}{commit}{dirty}"));
        }
        for share in &job.placement.shares {
            let last = (share.first + share.ranks).saturating_sub(1);
            let ranks = match share.ranks {
                0 => "no ranks".to_owned(),
                _ if !job.placement.roles.is_empty() => {
                    let all = share.first..share.first.saturating_add(share.ranks);
                    let named: Vec<_> = all.map(|rank| (rank, job.placement.role(rank))).collect();
                    names(named.iter().map(|(rank, role)| (*rank, role.as_ref())))
                }
                1 => format!("rank {}", share.first),
                _ => format!("ranks {} to {last}", share.first),
            };
            let known = self.nodes.iter().find(|node| node.name == share.node);
            row(
                &escaped(&share.node),
                &[Some(ranks), known.and_then(|node| self.description(node))]
                    .into_iter()
                    .flatten()
                    .collect::<Vec<_>>()
                    .join("; "),
            );
        }
        page.push_str("</table>\n</section>\n");
    }

    /// Describes the hardware and the system of a node.
    fn description(&self, node: &NodeHistory) -> Option<String> {
        let description = node.description.as_ref()?;
        let memory = Unit::Memory.format(description.memory_mib);
        let mut text = format!("{}, {memory}", count(description.cores as usize, "core"));
        let gpus = self.gpus(node);
        if let Some((_, first, _)) = gpus.first() {
            let memory = first.description.memory_mib.map(|memory| format!(" of {}", Unit::Memory.format(memory)));
            let (name, driver) = (&first.description.name, &first.description.driver);
            let _ = write!(text, ", {} {name}{}, driver {driver}", gpus.len(), memory.unwrap_or_default());
        }
        let _ = write!(text, ", Linux {}, Python {}", description.kernel, description.python);
        Some(text)
    }
}

/// The class of a state.
fn class(state: Option<JobState>) -> &'static str {
    match state {
        Some(JobState::Succeeded) => "ok",
        Some(JobState::Running | JobState::Starting | JobState::Queued) => "running",
        Some(JobState::Stopped) => "ended",
        _ => "failed",
    }
}

#[cfg(test)]
mod tests {
    use super::super::series::{Scale, Series};
    use super::*;

    #[test]
    fn a_line_without_values_has_no_path() {
        let series = Series::new(Scale::new(0.0, 10.0, 1.0, 10));
        assert_eq!(path(&series, &Axis::up_to(1.0, Unit::None), true), "");
    }
}
