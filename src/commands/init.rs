//! `init`: writes an inventory of the named machines, with what was found on them.

use super::Outcome;
use super::target::{BUILT_IMAGE, DEFAULT_IMAGE};
use crate::cli::{Global, Init};
use crate::cluster::fleet::Fleet;
use crate::cluster::target::Target;
use crate::document::NodeEntry;
use crate::error::{Error, NodeError, Verdict};
use crate::event::{Events, Message};
use crate::files;
use crate::init::ansible;
use crate::init::draft::{self, DraftNode, Probe};
use crate::init::draft_file;
use crate::init::hostfile;
use crate::init::machines::{self, Fault, Host, Machines};
use crate::init::probe;
use crate::init::ssh_config::{self, Aliases};
use crate::inventory::{self, Inventory};
use crate::node::gpus::{Device, Gpu, NvidiaSmi};
use crate::terminal::{self, Echo};
use crate::text::nodeset;
use crate::text::quote;
use crate::text::table::{cell, table};
use crate::text::units::count;
use crate::transport::ssh::Client;
use schemars::JsonSchema;
use serde::Serialize;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The most bytes of another tool's file.
const MOST: u64 = 16 << 20;

/// `init`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct InitDocument {
    /// The file that was written.
    pub file: String,
    /// The machines.
    pub nodes: Vec<NodeEntry<InitNode>>,
}

/// A machine that was given to `init`. One that could not be read has `error`; with `--no-probe` it has neither `error`
/// nor `found`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct InitNode {
    /// The machine as ssh is given it.
    #[serde(flatten)]
    pub host: Host,
    /// What was found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found: Option<FoundMachine>,
    /// The earlier machine that is the same one, so this one was left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub same_as: Option<String>,
}

/// What `init` found on a machine.
#[derive(Debug, Serialize, JsonSchema)]
pub struct FoundMachine {
    /// The machine's own name.
    pub hostname: String,
    /// The address that the node will have; null if it is not clear.
    pub address: Option<String>,
    /// All its addresses.
    pub addresses: Vec<String>,
    /// Processor cores.
    pub cores: u32,
    /// Its GPUs.
    pub gpus: Vec<Gpu>,
    /// How root is obtained: `login` or `sudo`; null if it cannot be.
    pub root: Option<String>,
    /// The version of the Docker Engine, or null.
    pub docker: Option<String>,
    /// Those of the requested images that are there.
    pub images: Vec<String>,
    /// Reasons why the machine cannot be a node yet.
    pub concerns: Vec<String>,
}

/// Writes the inventory.
///
/// # Errors
/// Wrong usage, or a file that exists already.
pub async fn run(options: &Init, global: &Global, events: &Events) -> Result<Outcome, Error> {
    if global.on.is_some() {
        return Err(Error::usage(
            "--on cannot be used with init, which writes the inventory",
            "name the machines as arguments",
        ));
    }
    let wrong = |field: &str, why: String| Error::usage(format!("{field}: {why}"), "see hvdctl init --help");
    inventory::NAME.read(&options.name).map_err(|why| wrong("--name", why))?;
    let images: Vec<&str> = global.image.as_deref().map_or(vec![DEFAULT_IMAGE, BUILT_IMAGE], |image| vec![image]);
    inventory::IMAGE.read(images[0]).map_err(|why| wrong("--image", why))?;
    let file = file(options, global);
    // before the first question
    draft_file::check_free(&file, options.force)?;

    let Machines { machines, groups, notes } = machines(options, global, events).await?;
    notes.into_iter().for_each(|note| events.note(note));
    let mut entries = draft::entries(machines);
    if !options.no_probe {
        let mut inventory = Inventory::parse(&draft::text(&options.name, images[0], &entries), &file)?;
        // machines that may not become nodes
        inventory.cluster.connection_idle = Duration::ZERO;
        let fleet = Fleet::over_ssh(global.strict, Arc::default(), events);
        let results = probe::all(&Target::new(inventory, None)?, &fleet, &images, events).await?;
        for (entry, result) in entries.iter_mut().zip(results) {
            entry.found = Some(result);
        }
        if options.from_ssh_config {
            draft::unprobed_last(&mut entries);
        }
        draft::find_duplicates(&mut entries);
    }
    warn(&entries, events);
    let text =
        draft::text(&options.name, draft::image(&images, &entries), &entries) + &draft::groups(&groups, &entries);
    Inventory::parse(&text, &file)?;
    draft_file::write(&file, &text, options.force)?;
    Ok(outcome(&file, options, global, &entries))
}

/// `-o`, else `-i`, else the one that hvdctl looks for here.
fn file(options: &Init, global: &Global) -> PathBuf {
    options.output.clone().or_else(|| global.inventory.clone()).unwrap_or_else(|| "inventory.toml".into())
}

/// The machines of a file of another tool, else those of [`hosts`].
async fn machines(options: &Init, global: &Global, events: &Events) -> Result<Machines, Error> {
    type Parse = fn(&str, Option<&str>) -> Result<Machines, Fault>;
    let (file, parse, hint): (_, Parse, _) = match (&options.from_hostfile, &options.from_ansible) {
        (Some(file), _) => (file, hostfile::parse, "a line is HOST, HOST:SLOTS or HOST slots=N; # begins a comment"),
        (_, Some(file)) => {
            (file, ansible::parse, "only the INI form of Ansible's inventories is read, see docs/cli.md")
        }
        _ => return Ok(hosts(options, global, events).await?.into()),
    };
    let text = files::read(file, MOST)
        .map_err(|e| Error::usage(format!("cannot read {}: {e}", file.display()), "name a file that you can read"))?;
    let machines = parse(&String::from_utf8_lossy(&text), options.user.as_deref())
        .map_err(|Fault { line, why }| Error::usage(format!("{}:{line}: {why}", file.display()), hint))?;
    if machines.machines.is_empty() {
        return Err(Error::usage(format!("{} has no hosts", file.display()), hint));
    }
    Ok(machines)
}

/// The machines: those that were named, else those of the ssh configuration, else those that are typed.
async fn hosts(options: &Init, global: &Global, events: &Events) -> Result<Vec<Host>, Error> {
    let read = |text: &str| machines::read(text, options.user.as_deref());
    let wrong = |why: String| Error::usage(why, SPELLING);
    let may_ask = !global.yes & !global.json & std::io::stdin().is_terminal() & terminal::present();
    let hosts = if !options.hosts.is_empty() {
        read(&options.hosts.join(" ")).map_err(wrong)?
    } else if options.from_ssh_config {
        let client = Client::find().await?;
        let Aliases { machines, left_out } = ssh_config::read(&client)?;
        let (machines, config) = (good(machines, events), client.config_name());
        let others: Vec<String> = left_out.iter().map(|(name, reason)| format!("{name} ({reason})")).collect();
        if !others.is_empty() {
            let hint = "name a machine as HOST, or add it to the file, if it is to be a node";
            events.note(format!("left out of {config}: {}; {hint}", others.join(", ")));
        }
        if machines.is_empty() {
            let why = match others.len() {
                0 => format!("{config} has no host names (`Host` lines without * and ?)"),
                _ => format!("{config} has no machines that may be nodes"),
            };
            return Err(Error::usage(why, "name the machines: hvdctl init node1 node2"));
        }
        let known = [machines.clone(), good(left_out.into_iter().map(|(name, _)| name).collect(), events)].concat();
        let pick = |answer: &str| match answer {
            "" => Ok(Vec::new()),
            "all" => read(&machines.join(" ")),
            names => {
                let picked = nodeset::select(&names.replace(' ', ","), &known, &nodeset::Groups::new())?;
                read(&picked.join(" "))
            }
        };
        let list: String = machines.iter().map(|alias| format!("  {alias}\n")).collect();
        let question = format!(
            "{config} has these machines:\n{list}which? (names as for --on, or all; the first becomes the master): "
        );
        if may_ask { ask(question, events, pick).await? } else { pick("all").map_err(wrong)? }
    } else if may_ask {
        ask(question(events).await, events, read).await?
    } else {
        let hint = "name them: hvdctl init node1 ana@node2:2222; or take those of ~/.ssh/config: --from-ssh-config";
        return Err(Error::usage("no machines were named", hint));
    };
    if hosts.is_empty() { Err(wrong("no machine was named".into())) } else { Ok(hosts) }
}

const SPELLING: &str =
    "write a machine as [user@]host[:port], as for ssh; node[1-4] names four, [fd00::1]:22 has a port";

/// The aliases that an inventory can hold.
fn good(aliases: Vec<String>, events: &Events) -> Vec<String> {
    let (good, bad): (Vec<_>, Vec<_>) = aliases.into_iter().partition(|alias| inventory::HOST.read(alias).is_ok());
    if !bad.is_empty() {
        events.warn(format!("these names are not valid in an inventory: {}", bad.join(", ")));
    }
    good
}

/// The question for the machines, with some of the ssh configuration's names.
async fn question(events: &Events) -> String {
    const SHOWN: usize = 12;
    // without ssh, or its configuration, names can be typed all the same
    let client = Client::find().await.unwrap_or_default();
    let known = good(ssh_config::read(&client).unwrap_or_default().machines, events);
    let more = if known.len() > SHOWN { format!(", … ({} in all)", known.len()) } else { String::new() };
    let names = match nodeset::fold(&known[..known.len().min(SHOWN)]) {
        names if names.is_empty() => names,
        names => format!("In {}: {names}{more}\n", client.config_name()),
    };
    format!(
        "Which machines? Write [user@]host[:port], as for ssh, or node[1-4]; separate them by spaces.\n{names}\
         machines (the first becomes the master): "
    )
}

/// Asks until the answer can be read.
async fn ask(
    mut prompt: String,
    events: &Events,
    read: impl Fn(&str) -> Result<Vec<Host>, String>,
) -> Result<Vec<Host>, Error> {
    loop {
        match read(terminal::ask(events, &prompt, Echo::Shown).await?.trim()) {
            Ok(hosts) => return Ok(hosts),
            Err(why) => prompt = format!("{why}\ntry again: "),
        }
    }
}

/// Warns of machines that cannot be nodes as they are, and of machines that are named twice.
fn warn(entries: &[DraftNode], events: &Events) {
    for entry in entries {
        if let Some(other) = &entry.same_as {
            events.warn(Message::of(&entry.name, format!("skipped, because it is the same machine as {other}")));
        } else if let Some(probe) = entry.probe() {
            for (what, hint) in probe.concerns() {
                events.warn(Message::of(&entry.name, what).hint(hint));
            }
        }
    }
}

fn outcome(file: &Path, options: &Init, global: &Global, entries: &[DraftNode]) -> Outcome {
    let failed: Vec<NodeError> = entries.iter().filter_map(DraftNode::error).cloned().collect();
    let written = entries.iter().filter(|entry| entry.same_as.is_none()).count();
    let mut text = String::new();
    if !options.no_probe {
        text = table(&["NODE", "ADDRESS", "CORES", "GPUS", "DOCKER"], entries.iter().map(row));
    }
    // other commands find the file without -i only at its default path
    let by_itself = options.output.is_none() & global.inventory.is_none();
    let named = if by_itself { String::new() } else { format!(" -i {}", quote::readable(&file.to_string_lossy())) };
    text.push_str(&format!("wrote {} with {}; ", file.display(), count(written, "node")));
    if failed.is_empty() {
        text.push_str(&format!(
            "review it, then run:\n  hvdctl{named} keys push\n  hvdctl{named} up\n  hvdctl{named} verify\n"
        ));
    } else {
        let nodes: Vec<String> = failed.iter().map(|error| error.node.clone()).collect();
        text.push_str(&format!(
            "cannot probe {}: fix these nodes, then run the same command again with --force\n",
            nodeset::fold(&nodes)
        ));
    }
    Outcome::new(Verdict::Nodes { done: entries.len() - failed.len(), failed: &failed }, text, details(file, entries))
}

pub(super) fn details(file: &Path, entries: &[DraftNode]) -> InitDocument {
    InitDocument { file: file.display().to_string(), nodes: entries.iter().map(node).collect() }
}

fn row(entry: &DraftNode) -> Vec<String> {
    let Some(probe) = entry.probe() else {
        return [&entry.name, "not probed", "–", "–", "–"].map(str::to_owned).to_vec();
    };
    let gpus = &probe.facts.gpus;
    let named = |gpu: &Gpu| format!("{} ({})", Device::of(gpus).len(), gpu.name);
    vec![
        entry.name.clone(),
        cell(address(probe)),
        probe.facts.cores.to_string(),
        match &probe.facts.nvidia_smi {
            NvidiaSmi::Failed(_) => "unknown".into(),
            _ => gpus.first().map_or_else(|| "0".into(), named),
        },
        match &probe.docker {
            Some(Ok(version)) => version.clone(),
            Some(Err(_)) => "unknown".into(),
            None => "none".into(),
        },
    ]
}

fn address(probe: &Probe) -> Option<String> {
    probe.address().map(|(_, address)| address.to_string())
}

fn node(entry: &DraftNode) -> NodeEntry<InitNode> {
    let details =
        InitNode { host: entry.host.clone(), found: entry.probe().map(machine), same_as: entry.same_as.clone() };
    NodeEntry { error: entry.error().cloned(), ..NodeEntry::new(&entry.name, entry.error().is_none(), details) }
}

fn machine(probe: &Probe) -> FoundMachine {
    FoundMachine {
        hostname: probe.facts.hostname.clone(),
        address: address(probe),
        addresses: probe.facts.network.addresses.iter().map(|(_, address)| address.to_string()).collect(),
        cores: probe.facts.cores,
        gpus: probe.facts.gpus.clone(),
        root: probe.root.clone().and_then(Result::ok),
        docker: probe.docker.clone().and_then(Result::ok),
        images: probe.images.clone(),
        concerns: probe.concerns().into_iter().map(|(what, _)| what).collect(),
    }
}
