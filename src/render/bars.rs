//! The terminal: a line per node that says what it is doing. The only module that knows `indicatif`.

use super::{Options, Renderer, output_line};
use crate::core::job::State;
use crate::event::Event;
use console::style;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use std::collections::BTreeMap;
use std::time::Duration;

/// More lines than this scroll a terminal; the count of the rest is shown instead.
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
        Bars { options, all: MultiProgress::new(), nodes: BTreeMap::new(), phase: None, still: false }
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
            Event::Phase(_) | Event::Job { .. } => {}
        }
    }

    fn finish(&mut self) {
        self.clear();
    }
}
