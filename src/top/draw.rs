//! Draws a job on a terminal of any size.

use super::view::{View, WatchedNode, WatchedRank};
use crate::text::units::{count, span};
use console::{Alignment, pad_str};
use ratatui::Frame;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use std::time::Duration;

/// The share of the width that names of nodes have at most.
const NAME: u16 = 6;

/// Options of a drawing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DrawOptions {
    /// Set if colours are used (`NO_COLOR`, `--color`).
    pub has_colours: bool,
    /// The first rank that is shown, counted in rows.
    pub first: usize,
}

/// Returns the most rows that can be scrolled over.
pub fn last_first(view: &View, height: u16) -> usize {
    view.ranks.len().saturating_sub(rows(view, height).0)
}

/// Returns how many rows ranks and nodes have.
fn rows(view: &View, height: u16) -> (usize, usize) {
    // head, message, both headings, the empty line between them, and the last line
    let free = usize::from(height).saturating_sub(6);
    let nodes = view.nodes.len().min((free / 3).max(1));
    (free.saturating_sub(nodes).max(1), nodes)
}

/// Draws it.
pub fn draw(frame: &mut Frame<'_>, view: &View, now: f64, options: DrawOptions) {
    let area = frame.area();
    let (ranks, nodes) = rows(view, area.height);
    let widest = usize::from(area.width / NAME).max(4);
    let name =
        view.nodes.iter().map(|node| console::measure_text_width(&node.name)).max().unwrap_or(4).clamp(4, widest);
    let labels = view.ranks.keys().map(|rank| view.label(*rank).chars().count());
    let number = labels.max().unwrap_or_default().clamp(4, widest.max(10));
    let style = |style: Style| if options.has_colours { style } else { Style { fg: None, bg: None, ..style } };
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let warning = style(Style::new().fg(Color::Yellow)).add_modifier(Modifier::BOLD);
    let mut lines = vec![Line::styled(head(view, now), bold)];
    let message = view.end.clone().or_else(|| view.message.clone()).unwrap_or_default();
    lines.push(Line::styled(message, if view.end.is_some() { bold } else { warning }));
    let heading = style(Style::new().fg(Color::Cyan)).add_modifier(Modifier::BOLD);
    lines.push(Line::styled(
        format!(
            "  {} {} GPU   USE      W     MEM   CPU   AGE  LAST LINE",
            pad_str("RANK", number, Alignment::Right, None),
            pad_str("NODE", name, Alignment::Left, None)
        ),
        heading,
    ));
    let first = options.first.min(view.ranks.len().saturating_sub(ranks));
    let shown: Vec<_> = view.ranks.iter().skip(first).take(ranks).collect();
    for (rank, one) in &shown {
        let (text, is_marked) = rank_row(view, **rank, one, (number, name), now);
        let ended = style(Style::new().fg(Color::DarkGray));
        lines.push(Line::styled(
            text,
            if is_marked {
                warning
            } else if one.code.is_some() {
                ended
            } else {
                Style::new()
            },
        ));
    }
    lines.push(Line::default());
    lines.push(Line::styled(
        format!(
            "  {}   CPU      MEM  RECEIVED      SENT      READ   WRITTEN",
            pad_str("NODE", name + 5, Alignment::Left, None)
        ),
        heading,
    ));
    for node in by_need(view, now).into_iter().take(nodes) {
        let fault = view.fault(node, now);
        let is_faulty = fault.is_some();
        lines.push(Line::styled(node_row(node, fault, name + 5), if is_faulty { warning } else { Style::new() }));
    }
    lines.resize(usize::from(area.height).saturating_sub(1), Line::default());
    lines.push(Line::styled(footer(view, first, (shown.len(), nodes)), style(Style::new().fg(Color::DarkGray))));
    for (y, line) in (0..area.height).zip(&lines) {
        frame.buffer_mut().set_line(area.x, area.y + y, line, area.width);
    }
}

/// Formats the last line: how to leave, and how many ranks and nodes are shown, from this rank on.
fn footer(view: &View, first: usize, (ranks, nodes): (usize, usize)) -> String {
    let mut last = vec!["q: quit   s: stacks".to_owned()];
    if view.ranks.len() > ranks {
        last.push(format!("up, down: ranks {} to {} of {}", first + 1, first + ranks, view.ranks.len()));
    }
    if view.nodes.len() > nodes {
        last.push(format!("{} more nodes", view.nodes.len() - nodes));
    }
    if view.head.sample == 0 {
        last.push("no samples: sample_s was 0, or an earlier hvdctl started the job".to_owned());
    }
    last.join("   ")
}

/// Draws a text from a row on, which keys there are, and which lines are shown if not all of them are. Returns the first
/// row that is shown.
pub fn page(frame: &mut Frame<'_>, text: &str, first: usize, keys: &str) -> usize {
    let area = frame.area();
    let lines: Vec<String> = text.lines().map(|line| console::strip_ansi_codes(line).into_owned()).collect();
    let rows = usize::from(area.height).saturating_sub(1);
    let first = first.min(lines.len().saturating_sub(rows));
    for (y, line) in (0..area.height.saturating_sub(1)).zip(lines.iter().skip(first)) {
        frame.buffer_mut().set_line(area.x, area.y + y, &Line::raw(line), area.width);
    }
    let last = match lines.len() > rows {
        true => format!("{keys}   lines {} to {} of {}", first + 1, first + rows, lines.len()),
        false => keys.to_owned(),
    };
    if area.height > 0 {
        frame.buffer_mut().set_line(area.x, area.y + area.height - 1, &Line::raw(last), area.width);
    }
    first
}

fn head(view: &View, now: f64) -> String {
    let head = &view.head;
    let attempt = if head.attempt > 1 { format!("  attempt {}", head.attempt) } else { String::new() };
    let running = view.ranks.values().filter(|rank| rank.code.is_none()).count();
    let faulty = view.nodes.iter().filter(|node| view.fault(node, now).is_some()).count();
    let faulty = if faulty > 0 { format!("  {faulty} of {} nodes silent", view.nodes.len()) } else { String::new() };
    let elapsed = span(Duration::try_from_secs_f64(now - head.began).unwrap_or_default());
    format!("{}  {}  {elapsed}{attempt}  {running} of {} ranks run{faulty}", head.name, head.id, view.ranks.len())
}

/// Returns the nodes in the order in which they are shown: those with a fault first.
fn by_need(view: &View, now: f64) -> Vec<&WatchedNode> {
    let mut nodes: Vec<&WatchedNode> = view.nodes.iter().collect();
    nodes.sort_by_key(|node| view.fault(node, now).is_none());
    nodes
}

/// Returns the row of a rank, and whether it is marked: it makes no progress, or prints values that are no numbers.
fn rank_row(view: &View, rank: u32, one: &WatchedRank, (label, name): (usize, usize), now: f64) -> (String, bool) {
    let gpu = view.gpu(rank);
    let is_stalled = one.waits.is_some() || gpu.as_ref().is_some_and(|gpu| gpu.is_stalled);
    let is_marked = one.code.is_none() && (is_stalled || one.no_numbers > 0);
    let node = view.nodes.get(one.node);
    // what it used before it was silent is nothing of the present
    let is_known = node.is_some_and(|node| view.fault(node, now).is_none());
    let (gpu, used) = (gpu.filter(|_| is_known), one.usage.filter(|_| is_known));
    let node = node.map_or("", |node| node.name.as_str());
    let usage = gpu.as_ref().map(|gpu| gpu.usage);
    let number = |value: Option<f64>, unit: &str| value.map_or("–".to_owned(), |value| format!("{value:.0}{unit}"));
    let memory = usage.and_then(|usage| usage.memory_mib).or(used.map(|usage| usage.memory_mib));
    let age = one.line.0.map(|time| span(Duration::try_from_secs_f64(now - time).unwrap_or_default()));
    let text = match (one.code, &one.waits) {
        (Some(code), _) => format!("ended with exit code {code}"),
        (None, Some(does)) => format!("no progress: {does}"),
        (None, None) if one.no_numbers > 0 => {
            format!("nan or inf in {}: {}", count(one.no_numbers as usize, "line"), one.line.1)
        }
        (None, None) => one.line.1.clone(),
    };
    let row = format!(
        "{} {} {} {:>3} {:>5} {:>6} {:>7} {:>5} {:>5}  {text}",
        if is_marked { '!' } else { ' ' },
        pad_str(&view.label(rank), label, Alignment::Right, Some("…")),
        pad_str(node, name, Alignment::Left, Some("…")),
        gpu.as_ref().map_or("–".to_owned(), |gpu| gpu.index.to_string()),
        number(usage.and_then(|usage| usage.use_percent), "%"),
        number(usage.and_then(|usage| usage.power_w), ""),
        memory.map_or("–".to_owned(), |mib| size(mib * 1024.0)),
        number(used.map(|usage| usage.processor_percent), "%"),
        age.unwrap_or_else(|| "–".to_owned()),
    );
    (row, is_marked)
}

fn node_row(node: &WatchedNode, fault: Option<String>, name: usize) -> String {
    let mark = if fault.is_some() { '!' } else { ' ' };
    let start = format!("{mark} {}", pad_str(&node.name, name, Alignment::Left, Some("…")));
    match (fault, &node.usage) {
        (Some(fault), _) => format!("{start}  {fault}"),
        (None, None) => format!("{start}    –"),
        (None, Some(usage)) => format!(
            "{start} {:>4.0}% {:>8} {:>9} {:>9} {:>9} {:>9}",
            usage.processor_percent,
            size(usage.memory_mib * 1024.0),
            rate(usage.received_kib_s),
            rate(usage.sent_kib_s),
            rate(usage.read_kib_s),
            rate(usage.written_kib_s)
        ),
    }
}

/// Formats KiB in three digits at most.
fn size(kib: f64) -> String {
    let (mut value, mut unit) = (kib, "K");
    for larger in ["M", "G", "T"] {
        if value >= 999.5 {
            (value, unit) = (value / 1024.0, larger);
        }
    }
    if value < 9.95 && unit != "K" { format!("{value:.1}{unit}") } else { format!("{value:.0}{unit}") }
}

fn rate(kib: f64) -> String {
    format!("{}/s", size(kib))
}
