//! The sources from which `init` takes machines besides its arguments: a file of another tool, and the operator's ssh
//! configuration.

use crate::error::Error;
use crate::event::Events;
use crate::files;
use crate::init::machines::{self, Host, MachineFault, Machines};
use crate::init::ssh_config::{self, Aliases};
use crate::init::{ansible, hostfile};
use crate::inventory;
use crate::text::nodeset;
use crate::transport::ssh::Client;
use std::path::Path;

/// The most bytes of another tool's file.
const MOST: u64 = 16 << 20;

/// The most names of the ssh configuration in a question that does not only offer these.
const SHOWN: usize = 12;

/// The form of another tool's file.
#[derive(Debug, Clone, Copy)]
pub enum FileForm {
    /// A hostfile.
    Hostfile,
    /// An inventory of Ansible.
    Ansible,
}

impl FileForm {
    /// Reads the machines of a file. `user`: that of machines for which it names none.
    ///
    /// # Errors
    /// A file that cannot be read, with the line, or that has no machines.
    pub fn read(self, file: &Path, user: Option<&str>) -> Result<Machines, Error> {
        type Parse = fn(&str, Option<&str>) -> Result<Machines, MachineFault>;
        let (parse, hint): (Parse, _) = match self {
            FileForm::Hostfile => (hostfile::parse, "a line is HOST, HOST:SLOTS or HOST slots=N; # begins a comment"),
            FileForm::Ansible => {
                (ansible::parse, "only the INI form of Ansible's inventories is read, see docs/reference/cluster.md")
            }
        };
        let text = files::read(file, MOST).map_err(|e| {
            Error::usage(format!("cannot read {}: {e}", file.display()), "name a file that you can read")
        })?;
        let machines = parse(&String::from_utf8_lossy(&text), user)
            .map_err(|MachineFault { line, why }| Error::usage(format!("{}:{line}: {why}", file.display()), hint))?;
        if machines.machines.is_empty() {
            return Err(Error::usage(format!("{} has no hosts", file.display()), hint));
        }
        Ok(machines)
    }
}

/// The machines of the operator's ssh configuration.
#[derive(Debug)]
pub struct SshMachines {
    /// The name of the configuration.
    config: String,
    /// The names that may be nodes.
    machines: Vec<String>,
    /// All that can be picked: also those that are left out unless they are named.
    known: Vec<String>,
}

impl SshMachines {
    /// Reads the configuration, and reports which of its names are left out.
    ///
    /// # Errors
    /// When it cannot be read, or has no machines that may be nodes.
    pub async fn read(events: &Events) -> Result<SshMachines, Error> {
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
        Ok(SshMachines { config, machines, known })
    }

    /// Returns the question which of them become nodes.
    pub fn question(&self) -> String {
        let SshMachines { config, machines, .. } = self;
        let list: String = machines.iter().map(|alias| format!("  {alias}\n")).collect();
        format!(
            "{config} has these machines:\n{list}which? (names as for --on, or all; the first becomes the master): "
        )
    }

    /// Returns the machines that an answer picks: none, all that may be nodes, or those that it names. `user`: the
    /// login of machines without one.
    ///
    /// # Errors
    /// The reason why the answer cannot be read.
    pub fn pick(&self, answer: &str, user: Option<&str>) -> Result<Vec<Host>, String> {
        match answer {
            "" => Ok(Vec::new()),
            "all" => machines::read(&self.machines.join(" "), user),
            names => {
                let names = nodeset::select(&names.replace(' ', ","), &self.known, &nodeset::Groups::new())?;
                machines::read(&names.join(" "), user)
            }
        }
    }
}

/// Returns the question for machines that are typed, with some of the ssh configuration's names.
pub async fn question(events: &Events) -> String {
    // without ssh, or its configuration, names can be typed all the same
    let client = Client::find().await.unwrap_or_default();
    let known = good(ssh_config::read(&client).unwrap_or_default().machines, events);
    let more = if known.len() > SHOWN { format!(", … ({} in all)", known.len()) } else { String::new() };
    let names = match nodeset::fold(&known[..known.len().min(SHOWN)]) {
        names if names.is_empty() => names,
        names => format!("In {}: {names}{more}\n", client.config_name()),
    };
    format!(
        "Which machines? Write [user@]host[:port], as for ssh, or node[1-4]; separate them with \
         spaces.\n{names}machines (the first becomes the master): "
    )
}

/// Returns the aliases that an inventory can hold, and warns of the others.
fn good(aliases: Vec<String>, events: &Events) -> Vec<String> {
    let (good, bad): (Vec<_>, Vec<_>) = aliases.into_iter().partition(|alias| inventory::HOST.read(alias).is_ok());
    if !bad.is_empty() {
        events.warn(format!("these names are not valid in an inventory: {}", bad.join(", ")));
    }
    good
}
