//! `init`: writes an inventory of the named machines, with what was found on them.

pub mod document;

use crate::cli::{Global, Init};
use crate::cluster::fleet::Fleet;
use crate::commands::Outcome;
use crate::commands::shared::target::{BUILT_IMAGE, DEFAULT_IMAGE};
use crate::error::{Error, NodeError, Verdict};
use crate::event::{Events, Message};
use crate::init::draft::{self, DraftNode};
use crate::init::draft_file;
use crate::init::machines::{self, Host, Machines};
use crate::init::probe;
use crate::init::sources::{self, FileForm, SshMachines};
use crate::inventory::{self, Inventory};
use crate::node::gpus::{Gpu, GpuDevice, NvidiaSmi};
use crate::terminal::{self, Echo};
use crate::text::nodeset;
use crate::text::quote;
use crate::text::result::ResultText;
use crate::text::table::{Column, Table, cell, key, text};
use crate::text::units::count;
use document::{address, details};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The hint on the form in which a machine is written.
const SPELLING: &str =
    "write a machine as [user@]host[:port], as for ssh; node[1-4] names four, [fd00::1]:22 has a port";

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
        let inventory = Inventory::parse(&draft::text(&options.name, images[0], &entries), &file)?;
        let fleet = Fleet::over_ssh(global.strict, Arc::default(), events);
        probe::examine(&mut entries, inventory, &fleet, &images, events).await?;
        if options.from_ssh_config {
            draft::unprobed_last(&mut entries);
        }
        draft::find_duplicates(&mut entries);
    }
    let image = draft::image(&images, &entries);
    warn(image, &entries, events);
    let text = draft::text(&options.name, image, &entries) + &draft::groups(&groups, &entries);
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
    match (&options.from_hostfile, &options.from_ansible) {
        (Some(file), _) => FileForm::Hostfile.read(file, options.user.as_deref()),
        (_, Some(file)) => FileForm::Ansible.read(file, options.user.as_deref()),
        _ => Ok(hosts(options, global, events).await?.into()),
    }
}

/// The machines: those that were named, else those of the ssh configuration, else those that are typed.
async fn hosts(options: &Init, global: &Global, events: &Events) -> Result<Vec<Host>, Error> {
    let user = options.user.as_deref();
    let read = |text: &str| machines::read(text, user);
    let wrong = |why: String| Error::usage(why, SPELLING);
    let may_ask = !global.yes & !global.json & std::io::stdin().is_terminal() & terminal::present();
    let hosts = if !options.hosts.is_empty() {
        read(&options.hosts.join(" ")).map_err(wrong)?
    } else if options.from_ssh_config {
        let configured = SshMachines::read(events).await?;
        let pick = |answer: &str| configured.pick(answer, user);
        if may_ask { ask(configured.question(), events, pick).await? } else { pick("all").map_err(wrong)? }
    } else if may_ask {
        ask(sources::question(events).await, events, read).await?
    } else {
        let hint = "name them: hvdctl init node1 ana@node2:2222; or take those of ~/.ssh/config: --from-ssh-config";
        return Err(Error::usage("no machines were named", hint));
    };
    if hosts.is_empty() { Err(wrong("no machine was named".into())) } else { Ok(hosts) }
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

/// Warns of machines that cannot be nodes as they are, of machines that are named twice, and of GPUs that the image
/// cannot use.
fn warn(image: &str, entries: &[DraftNode], events: &Events) {
    for entry in entries {
        if let Some(other) = &entry.same_as {
            events.warn(Message::of(&entry.name, format!("skipped, because it is the same machine as {other}")));
        } else if let Some(probe) = entry.probe() {
            for (what, hint) in probe.concerns() {
                events.warn(Message::of(&entry.name, what).hint(hint));
            }
        }
    }
    if let Some((nodes, what, hint)) = draft::unsupported_gpus(image, entries) {
        events.warn(Message::of(&nodeset::fold(&nodes), what).hint(hint));
    }
}

fn outcome(file: &Path, options: &Init, global: &Global, entries: &[DraftNode]) -> Outcome {
    let failed: Vec<NodeError> = entries.iter().filter_map(DraftNode::error).cloned().collect();
    let written = entries.iter().filter(|entry| entry.same_as.is_none()).count();
    let mut text = ResultText::default();
    if !options.no_probe {
        text.push(Table::new(COLUMNS, entries.iter().map(row)));
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

const COLUMNS: [Column; 5] = [key("NODE"), key("ADDRESS"), key("CORES"), text("GPUS"), text("ENGINE")];

fn row(entry: &DraftNode) -> Vec<String> {
    let Some(probe) = entry.probe() else {
        return [&entry.name, "not probed", "–", "–", "–"].map(str::to_owned).to_vec();
    };
    let gpus = &probe.facts.gpus;
    let named = |gpu: &Gpu| format!("{} ({})", GpuDevice::of(gpus).len(), gpu.name);
    vec![
        entry.name.clone(),
        cell(address(probe)),
        probe.facts.cores.to_string(),
        match &probe.facts.nvidia_smi {
            NvidiaSmi::Failed(_) => "unknown".into(),
            _ => gpus.first().map_or_else(|| "0".into(), named),
        },
        match &probe.engine {
            Some(Ok(version)) => probe.engine_name.with(version),
            Some(Err(_)) => "unknown".into(),
            None => "none".into(),
        },
    ]
}
