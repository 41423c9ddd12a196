//! The terminal: a line per node that says what it is doing. The only module that knows `indicatif`.

use super::{Options, Renderer, output_line, transferred};
use crate::core::job::State;
use crate::event::Event;
use console::style;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::collections::BTreeMap;
use std::time::Duration;

/// More lines than this scroll a terminal; further nodes get theirs when others are done.
const LINES: usize = 16;

/// Draws bars on standard error.
pub struct Bars {
    options: Options,
    all: MultiProgress,
    nodes: BTreeMap<String, ProgressBar>,
    phase: Option<ProgressBar>,
    /// Ranks write: nothing may move between their lines.
    still: bool,
}

impl Bars {
    /// A renderer.
    pub fn new(options: Options) -> Bars {
        Bars::on(ProgressDrawTarget::stderr(), options)
    }

    fn on(target: ProgressDrawTarget, options: Options) -> Bars {
        Bars {
            options,
            all: MultiProgress::with_draw_target(target),
            nodes: BTreeMap::new(),
            phase: None,
            still: false,
        }
    }

    fn node(&mut self, node: &str) -> Option<ProgressBar> {
        if self.still || (!self.nodes.contains_key(node) && self.nodes.len() >= LINES) {
            return None;
        }
        let all = &self.all;
        let bar = self.nodes.entry(node.to_owned()).or_insert_with(|| {
            let bar = all.add(ProgressBar::new_spinner());
            bar.set_style(spinner("{spinner:.cyan} {prefix:.bold} {wide_msg} {elapsed:.dim}"));
            bar.set_prefix(node.to_owned());
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        });
        Some(bar.clone())
    }

    fn line(&self, text: &str) {
        if self.still {
            super::err(text);
        } else {
            let _ = self.all.println(text);
        }
    }

    fn clear(&mut self) {
        for (_, bar) in std::mem::take(&mut self.nodes) {
            bar.finish_and_clear();
        }
        if let Some(bar) = self.phase.take() {
            bar.finish_and_clear();
        }
        let _ = self.all.clear();
    }
}

fn spinner(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner())
}

impl Renderer for Bars {
    fn show(&mut self, event: Event) {
        match event {
            Event::Phase(name) if !self.still => {
                let all = &self.all;
                let bar = self.phase.get_or_insert_with(|| {
                    let bar = all.add(ProgressBar::new_spinner());
                    bar.set_style(spinner("{spinner:.cyan} {wide_msg} {elapsed:.dim}"));
                    bar.enable_steady_tick(Duration::from_millis(100));
                    bar
                });
                bar.set_message(name);
            }
            Event::Busy { node, step } => {
                if let Some(bar) = self.node(&node) {
                    bar.set_message(step);
                }
            }
            Event::Transfer { node, what, done, total, rate } => {
                if let Some(bar) = self.node(&node) {
                    bar.set_message(transferred(&what, done, total, rate));
                }
            }
            Event::Done { node, what } => {
                if !self.options.result_names_nodes {
                    self.line(&format!(
                        "{} {} {what}",
                        style("✔").green().for_stderr(),
                        style(&node).bold().for_stderr()
                    ));
                }
                if let Some(bar) = self.nodes.remove(&node) {
                    bar.finish_and_clear();
                }
            }
            Event::Failed(error) => {
                if let Some(bar) = self.nodes.remove(&error.node) {
                    bar.finish_and_clear();
                }
            }
            Event::Note(text) => self.line(&text),
            Event::Warning(text) => self.line(&format!("{} {text}", style("warning:").yellow().bold().for_stderr())),
            Event::Launcher(line) => self.line(&format!("{} {line}", style("[launcher]").dim().for_stderr())),
            Event::Output { rank, node, stderr, line } => {
                if !self.still {
                    self.clear();
                    self.still = true;
                }
                output_line(rank, &node, stderr, &line);
            }
            Event::Job { state: State::Running, .. } => {
                self.clear();
                self.still = true;
            }
            Event::Phase(_) | Event::Job { .. } | Event::Suspend(_) => {}
        }
    }

    fn finish(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::NodeError;
    use indicatif::InMemoryTerm;

    /// What stands on the screen, without the spinners' changing signs and the seconds.
    fn screen(term: &InMemoryTerm) -> Vec<String> {
        let moving = |c: char| ('\u{2800}'..='\u{28ff}').contains(&c);
        let seconds = |word: &str| word.strip_suffix('s').is_some_and(|n| n.parse::<u32>().is_ok());
        let still = |line: &str| {
            let words = line.trim_start_matches(moving).split_whitespace();
            words.filter(|w| !seconds(w)).collect::<Vec<_>>().join(" ")
        };
        term.contents().lines().map(still).collect()
    }

    /// Waits until the screen shows this: bars are drawn by a thread of their own.
    fn shows(term: &InMemoryTerm, expected: &[&str]) {
        for _ in 0..100 {
            if screen(term) == expected {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(screen(term), expected);
    }

    fn busy(node: &str, step: &str) -> Event {
        Event::Busy { node: node.into(), step: step.into() }
    }

    #[test]
    fn a_line_per_busy_node_and_what_is_done_above() {
        console::set_colors_enabled_stderr(false);
        let term = InMemoryTerm::new(12, 60);
        let target = ProgressDrawTarget::term_like(Box::new(term.clone()));
        let options = Options { json: false, quiet: false, verbose: 0, result_names_nodes: false };
        let mut bars = Bars::on(target, options);
        bars.show(Event::Phase("preparing".into()));
        bars.show(busy("node1", "looking"));
        bars.show(busy("node2", "looking"));
        bars.show(busy("node1", "shipping 2 files"));
        bars.show(Event::Done { node: "node2".into(), what: "project unchanged".into() });
        shows(&term, &["✔ node2 project unchanged", "preparing", "node1 shipping 2 files"]);
        bars.show(Event::Failed(NodeError::failed("node1", "ship", "no space")));
        bars.show(Event::Job { id: "x".into(), state: State::Running });
        shows(&term, &["✔ node2 project unchanged"]);
    }

    #[test]
    fn a_transfer_says_how_far_it_is() {
        let term = InMemoryTerm::new(10, 80);
        let options = Options { json: false, quiet: false, verbose: 0, result_names_nodes: true };
        let mut bars = Bars::on(ProgressDrawTarget::term_like(Box::new(term.clone())), options);
        let what = "pulling x:1".to_owned();
        let (done, total, rate) = (1 << 30, 3 << 30, 5 << 20);
        bars.show(Event::Transfer { node: "node1".into(), what, done, total, rate });
        shows(&term, &["node1 pulling x:1: 1.0 GiB of 3.0 GiB, 5.0 MiB/s"]);
        bars.finish();
    }

    #[test]
    fn many_nodes_do_not_scroll_the_terminal() {
        let term = InMemoryTerm::new(40, 60);
        let options = Options { json: false, quiet: false, verbose: 0, result_names_nodes: true };
        let mut bars = Bars::on(ProgressDrawTarget::term_like(Box::new(term.clone())), options);
        for i in 0..100 {
            bars.show(busy(&format!("node{i}"), "connecting"));
        }
        let all: Vec<String> = (0..LINES).map(|i| format!("node{i} connecting")).collect();
        shows(&term, &all.iter().map(String::as_str).collect::<Vec<_>>());
        bars.finish();
        shows(&term, &[]);
    }
}
