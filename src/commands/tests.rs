//! Whole commands over scripted nodes, from the command line to exit code, output and what is left on the nodes.

mod bench;
mod best;
mod connections;
mod data;
mod env;
mod faults;
mod gpus;
mod grade;
mod health;
mod image;
mod inventories;
mod jobs;
mod leases;
mod network;
mod owners;
mod pool;
mod queue;
mod records;
mod reports;
mod roles;
mod rotation;
mod setup;
mod signals;
mod steps;
mod trips;

use super::documents::documented;
use super::{Outcome, run_until_signalled};
use crate::cli::{Cli, Description, Global, rewrite};
use crate::cluster::fleet::Fleet;
use crate::cluster::target::Target;
use crate::event::{Event, Events};
use crate::inventory::Inventory;
use crate::model::role::label;
use crate::render::json::Line;
use crate::transport::node::TransportKind;
use crate::transport::node::scripted::Nodes;
use crate::transport::privileges::process;
use crate::transport::sudo::SudoPasswords;
use clap::Parser;
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::time::{sleep, timeout};

/// Both nodes, the master first.
const NODES: [&str; 2] = ["node1", "node2"];

/// The inventory of these nodes.
fn inventory(nodes: &Nodes) -> Inventory {
    let mut text = "[cluster]\nname = \"lab\"\nimage = \"test/horovod:1\"\nkey_type = \"ed25519\"\n\
                    command_timeout_s = 30\n"
        .to_owned();
    nodes.names().iter().for_each(|name| text.push_str(&format!("\n[[node]]\nhost = \"{name}\"\n")));
    Inventory::parse(&text, Path::new("inventory.toml")).unwrap()
}

/// The result of a command.
#[derive(Debug)]
struct Done {
    /// The command line, for messages.
    line: String,
    code: u8,
    /// Standard output.
    out: String,
    /// Notes and warnings, and behind them the errors, on standard error.
    err: String,
    /// The output of ranks, each line behind its rank.
    ranks: String,
}

impl Done {
    /// Asserts the exit code.
    #[track_caller]
    fn code(&self, code: u8) -> &Done {
        assert_eq!(self.code, code, "{self}");
        self
    }

    /// Asserts that these texts are on standard output.
    #[track_caller]
    fn says(&self, texts: &[&str]) -> &Done {
        texts.iter().for_each(|text| assert!(self.out.contains(text), "{text:?} is not in\n{self}"));
        self
    }

    /// Asserts that these texts are on standard error.
    #[track_caller]
    fn complains(&self, texts: &[&str]) -> &Done {
        texts.iter().for_each(|text| assert!(self.err.contains(text), "{text:?} is not in\n{self}"));
        self
    }
}

impl Done {
    /// Standard output as the one document of `--json`.
    #[track_caller]
    fn document(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self}"))
    }
}

impl std::fmt::Display for Done {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}\n-- out\n{}\n-- err\n{}\n-- ranks\n{}", self.line, self.code, self.out, self.err, self.ranks)
    }
}

/// Runs hvdctl to its end. Its document and its lines are held against their types, whether `--json` is given or not.
async fn hvdctl(nodes: &Nodes, line: &str) -> Done {
    let (_nobody, signals) = mpsc::unbounded_channel();
    hvdctl_with(nodes, line, signals).await
}

/// Runs hvdctl with the signals that it gets.
async fn hvdctl_with(nodes: &Nodes, line: &str, signals: UnboundedReceiver<u8>) -> Done {
    hvdctl_on(nodes, inventory(nodes), line, signals).await
}

/// Runs hvdctl with another inventory.
async fn hvdctl_on(nodes: &Nodes, inventory: Inventory, line: &str, signals: UnboundedReceiver<u8>) -> Done {
    let sudo = SudoPasswords::of(&inventory, false);
    hvdctl_by(nodes, inventory, line, signals, sudo).await
}

/// Runs hvdctl for an operator with these passwords.
async fn hvdctl_by(
    nodes: &Nodes,
    inventory: Inventory,
    line: &str,
    signals: UnboundedReceiver<u8>,
    sudo: SudoPasswords,
) -> Done {
    let words: Vec<&str> = line.split(' ').collect();
    let argv = std::iter::once("hvdctl").chain(words.clone()).map(Into::into);
    let Cli { global, command } = Cli::try_parse_from(rewrite(argv)).unwrap();
    // with --json nothing is asked and nothing answered, as without a terminal
    let global = Global { yes: !global.json, ..global };
    let (json, Description { exit, output, .. }) = (global.json, command.description());
    let (events, receiver) = Events::channel();
    let target = Target::new(inventory, global.on.as_deref()).unwrap();
    let fleet = Fleet::over(TransportKind::Scripted(nodes.clone()), Arc::new(sudo), &events);
    // a test's thread has a small stack
    let work = Box::pin(run_until_signalled(command, &global, &events, signals, async { Ok((target, fleet)) }));
    let result = timeout(Duration::from_secs(24 * 3600), work).await.unwrap_or_else(|_| panic!("{line} never ends"));
    let held = held(nodes);
    // what it left is closed by then, as at the end of a process
    sleep(Duration::from_secs(1)).await;
    nodes.assert_all_expected();
    drop(events);
    let (mut err, mut ranks, mut failed) = (String::new(), String::new(), Vec::new());
    while let Ok(event) = receiver.receive(Duration::ZERO) {
        if let Some(line) = Line::of(&event) {
            documented::hold(&words, &serde_json::to_string(&line).unwrap());
        }
        match event {
            Event::Note(text) => err.push_str(&format!("{text}\n")),
            Event::Warning(text) => err.push_str(&format!("warning: {text}\n")),
            Event::Failed { error, .. } => {
                assert!(!failed.contains(&error), "{line} reports twice: {error}");
                failed.push(error);
            }
            Event::Output { rank, role, line, .. } => {
                ranks.push_str(&format!("{} {}\n", label(rank, role.as_ref()), String::from_utf8_lossy(&line)));
            }
            _ => {}
        }
    }
    assert!(
        held.is_empty() || err.contains("exited without waiting"),
        "{line} ended before {held:?} had been given back"
    );
    let outcome = result.unwrap_or_else(|error| Outcome::failure(&error, exit, output));
    let Outcome { code, text, document, errors } = outcome;
    documented::hold(&words, &document.to_string());
    let out = if json { format!("{document}\n") } else { text.to_string() };
    let shown = errors.iter().filter(|_| !json);
    shown.for_each(|error| err.push_str(&format!("error: {error}\n")));
    Done { line: line.to_owned(), code, out, err, ranks }
}

/// The nodes whose leases are this process's.
fn held(nodes: &Nodes) -> Vec<String> {
    let ours = |name: &String| nodes.state(name).lease.is_some_and(|lease| lease.id.starts_with(process()));
    nodes.names().into_iter().filter(ours).collect()
}

/// Asserts that no lease is held any more.
#[track_caller]
fn assert_given_back(nodes: &Nodes, when: &str) {
    for node in NODES {
        assert_eq!(nodes.state(node).lease, None, "the lease of {node} is still held {when}");
    }
}

/// Asserts that both workers run, and nothing else.
#[track_caller]
fn assert_up(nodes: &Nodes, when: &str) {
    for node in NODES {
        assert_eq!(nodes.state(node).ps(), ["hworker running"], "{node} {when}");
    }
    assert_given_back(nodes, when);
}

/// Two nodes that are up.
async fn two_up() -> Nodes {
    let nodes = Nodes::new(&NODES);
    hvdctl(&nodes, "up").await.code(0);
    nodes
}

/// Two nodes that are up, with workers that differ in their image, and a job whose launcher is on node1 and whose rank
/// is in the worker of node2.
async fn during_a_job() -> Nodes {
    let nodes = two_up().await;
    NODES.iter().for_each(|node| nodes.edit(node, |state| state.containers[0].image = "older".into()));
    let labels = [("hvdctl.cluster", "lab"), ("hvdctl.role", "master"), ("hvdctl.job", "run-1")];
    nodes.edit("node1", |state| state.add("hmaster", &labels));
    nodes.edit("node2", |state| state.facts = format!("rank run-1 7 {} lab -\n", state.containers[0].id));
    nodes
}
