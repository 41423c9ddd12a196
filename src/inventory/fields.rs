//! The fields of an inventory. This is their one description: the reader, the list of known fields in messages, the JSON
//! Schema and the table in `docs/inventory.md` all follow from it.
//!
//! It is a table rather than structs that derive `serde::Deserialize` and `schemars::JsonSchema`, because serde stops at
//! the first fault and the reader reports all of them with their places. What the reader has accepted becomes JSON, and
//! from that serde makes [`Cluster`](super::Cluster) and [`Node`](super::Node).

use super::check::{self, Rule, integer, within};
use super::container;
use super::nodes;
use super::reader::{Checked, FieldReader, NO_HINT};
use serde_json::{Value, json};
use std::path::Path;
use toml::Spanned;
use toml::de::DeValue;

/// One field of a table.
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// A sentence for editors and `docs/inventory.md`.
    pub(super) doc: &'static str,
    /// Whether `[defaults]` may have it, too.
    is_shared: bool,
}

/// The values that a field takes.
pub(super) enum Kind {
    /// A string.
    Text(&'static Rule),
    /// A string in which `[1-16]` stands for as many; read as a list.
    Range(&'static Rule),
    /// The path of a file on the operator's machine.
    File,
    /// One of these strings.
    Choice(&'static [&'static str]),
    /// A port number.
    Port,
    /// A number of slots.
    Slots,
    /// Whole seconds, from the first to the second.
    Seconds(u64, u64),
    /// `true` or `false`.
    Flag,
    /// A number of bytes; read as a number.
    Size,
    /// A number, a word, or a list of indices and UUIDs.
    Gpus,
    Mounts,
    Devices,
    Ulimits,
    Env,
}

/// What values depend on beside themselves.
#[derive(Clone, Copy)]
pub(super) struct Context<'p> {
    /// `~/` on the operator's machine.
    pub(super) home: Option<&'p Path>,
    /// The cluster's own directory in every container.
    pub(super) jobs_dir: &'p str,
}

/// The tables of an inventory.
pub const TABLES: &[&str] = &["cluster", "defaults", "groups", "node"];

const fn field(name: &'static str, kind: Kind, doc: &'static str) -> Field {
    Field { name, kind, doc, is_shared: false }
}

const fn shared(name: &'static str, kind: Kind, doc: &'static str) -> Field {
    Field { name, kind, doc, is_shared: true }
}

/// The fields of `[cluster]`.
pub(super) static CLUSTER: [Field; 22] = [
    field("name", Kind::Text(&check::NAME), "Name of the cluster; on the label of everything hvdctl makes on the nodes."),
    field("image", Kind::Text(&check::IMAGE), "Image of all containers. Name a version to keep jobs repeatable."),
    field(
        "pull",
        Kind::Choice(&["missing", "always", "never"]),
        "When `up` pulls the image from its registry: where a node does not have it, each time, or never.",
    ),
    field("port", Kind::Port, "Port of the workers' sshd, over which the nodes reach each other."),
    field("worker", Kind::Text(&check::CONTAINER), "Name of the worker's container on every node."),
    field("master", Kind::Text(&check::CONTAINER), "Name of the launcher's container on the master."),
    field("ssh_dir", Kind::Text(&check::DIRECTORY), "Directory on the nodes for the cluster's keys."),
    field("projects_dir", Kind::Text(&check::DIRECTORY), "Directory on the nodes for the projects that `train` uploads."),
    field("jobs_dir", Kind::Text(&check::DIRECTORY), "Directory on the nodes for the records and logs of jobs."),
    field(
        "key_type",
        Kind::Choice(&["rsa", "ed25519"]),
        "Type of the key pair with which the containers reach each other.",
    ),
    field("controller", Kind::Choice(&["gloo", "mpi"]), "What starts and connects the ranks."),
    field("shm_size", Kind::Size, "Size of /dev/shm in the containers. Too little of it kills data loaders and NCCL."),
    field(
        "ssh_config",
        Kind::File,
        "An ssh configuration of this cluster's own, read before yours; relative to the inventory.",
    ),
    field("connect_timeout_s", Kind::Seconds(1, 600), "Seconds for one node to answer."),
    field("command_timeout_s", Kind::Seconds(1, 86_400), "Seconds for one step on one node."),
    field("start_timeout_s", Kind::Seconds(1, 86_400), "Seconds for all ranks of a job to start, else it has failed."),
    field("stop_grace_s", Kind::Seconds(0, 3600), "Seconds between SIGTERM and SIGKILL when a job is stopped."),
    field(
        "stall_timeout_s",
        Kind::Seconds(0, 604_800),
        "Seconds that a rank may keep the others waiting, unless --stall-timeout says otherwise; 0: forever.",
    ),
    field(
        "idle_margin_s",
        Kind::Seconds(0, 86_400),
        "Seconds that a rank may do nothing at all beyond 1.5 times the stall time-out.",
    ),
    field(
        "restart_pause_s",
        Kind::Seconds(0, 300),
        "Seconds before the first of --restarts; each further pause is twice the one before, at most 300 s.",
    ),
    field(
        "worker_idle_s",
        Kind::Seconds(5, 86_400),
        "Seconds after which a job's own worker exits when nothing runs in it and no hvdctl stopped it.",
    ),
    field(
        "keep_alive_s",
        Kind::Seconds(1, 600),
        "Seconds between keep-alive probes of every SSH connection; it is lost after 3 unanswered ones. `up` recreates \
         workers when this changes.",
    ),
];

/// The fields of `[[node]]`, and among them those of `[defaults]`.
pub(super) static NODE: [Field; 16] = [
    field(
        "host",
        Kind::Range(&check::HOST),
        "What ssh is given: an alias, a name or an address. gpu[01-16] stands for sixteen nodes.",
    ),
    field(
        "name",
        Kind::Range(&check::NODE_NAME),
        "What hvdctl calls the node; otherwise the host. With a range of hosts, a range of as many.",
    ),
    shared("user", Kind::Text(&check::USER), "User to log in as; otherwise your ssh configuration decides."),
    shared("ssh_port", Kind::Port, "Port of the machine's own sshd; otherwise your ssh configuration decides."),
    shared(
        "identity",
        Kind::File,
        "Your private key for the nodes; otherwise your ssh configuration decides. Relative to the inventory.",
    ),
    shared(
        "jump",
        Kind::Text(&check::JUMP),
        "Jump hosts, as ssh -J takes them; \"none\" overrides those of your ssh configuration.",
    ),
    shared(
        "gpus",
        Kind::Gpus,
        "GPUs for jobs: the first so many, \"auto\" (all that nvidia-smi lists), \"all\" (at least one), \"none\", or a \
         list of indices and UUIDs.",
    ),
    shared("slots", Kind::Slots, "Most ranks of one job; otherwise one per GPU, or by the CPU cores."),
    field(
        "address",
        Kind::Range(&check::ADDRESS),
        "Address on the network between the nodes; otherwise found out. With a range of hosts, one of as many, like \
         10.0.0.[1-16].",
    ),
    shared(
        "interface",
        Kind::Text(&check::INTERFACE),
        "Network interface between the nodes, if they have several; otherwise found out.",
    ),
    shared("mounts", Kind::Mounts, "More directories and files of the node in the containers, beside hvdctl's own."),
    shared("devices", Kind::Devices, "Devices of the node in the containers; a directory stands for all in it."),
    shared("ulimits", Kind::Ulimits, "Limits of the processes in the containers by name. RDMA wants memlock = -1."),
    shared("env", Kind::Env, "Environment of every rank beside the image's; nothing secret."),
    shared(
        "env_file",
        Kind::File,
        "A file on this machine with more of it, NAME=VALUE lines; its values may be secret. Relative to the inventory.",
    ),
    field("master", Kind::Flag, "Whether jobs are launched here; one node at most says true."),
];

/// The fields of `[defaults]`.
pub(super) fn defaults() -> impl Iterator<Item = &'static Field> {
    NODE.iter().filter(|field| field.is_shared)
}

/// The names of the fields of `[cluster]`.
pub static CLUSTER_FIELDS: &[&str] = &names::<22>(&CLUSTER, false);

/// The names of the fields of `[defaults]`: those of a node that many nodes may share.
pub static DEFAULTS_FIELDS: &[&str] = &names::<12>(&NODE, true);

/// The names of the fields of `[[node]]`.
pub static NODE_FIELDS: &[&str] = &names::<16>(&NODE, false);

const fn names<const N: usize>(fields: &[Field], only_shared: bool) -> [&'static str; N] {
    let (mut names, mut count, mut index) = ([""; N], 0, 0);
    while index < fields.len() {
        if fields[index].is_shared || !only_shared {
            names[count] = fields[index].name;
            count += 1;
        }
        index += 1;
    }
    assert!(count == N, "the number of fields");
    names
}

impl Kind {
    /// Completes "expected …".
    pub(super) fn expected(&self) -> String {
        match self {
            Kind::Text(rule) | Kind::Range(rule) => rule.expected.to_owned(),
            Kind::File => check::FILE.expected.to_owned(),
            Kind::Choice(words) => {
                let words: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
                let (last, first) = words.split_last().expect("a choice has words");
                format!("{} or {last}", first.join(", "))
            }
            Kind::Port => "a port from 1 to 65535".to_owned(),
            Kind::Slots => "a number of slots from 1 to 1024".to_owned(),
            Kind::Seconds(least, most) => format!("{least} to {most} whole seconds"),
            Kind::Flag => "true or false".to_owned(),
            Kind::Size => check::SIZE.to_owned(),
            Kind::Gpus => check::GPUS.to_owned(),
            Kind::Mounts => container::MOUNT.to_owned(),
            Kind::Devices => container::DEVICE.to_owned(),
            Kind::Ulimits => container::LIMIT.to_owned(),
            Kind::Env => container::ENV_VALUE.to_owned(),
        }
    }

    /// Reads a value as JSON, or reports what is wrong with it.
    pub(super) fn read(
        &self,
        value: &Spanned<DeValue<'_>>,
        context: Context<'_>,
        reader: &mut FieldReader<'_, '_>,
    ) -> Option<Value> {
        let expected = self.expected();
        let text = |accept: &dyn Fn(&str) -> Checked<Value>| match value.get_ref() {
            DeValue::String(text) => Some(accept(text)),
            _ => None,
        };
        let number = |least, most| integer(value.get_ref()).map(|number| within(number, least, most).map(Value::from));
        let accepted = match self {
            Kind::Text(rule) => text(&|text| rule.check(text).map(|()| text.into())),
            Kind::Range(rule) => text(&|text| nodes::names(text, rule).map(Value::from)),
            Kind::File => text(&|text| check::file(text, context.home).map(|()| text.into())),
            Kind::Choice(words) => text(&|text| if words.contains(&text) { Ok(text.into()) } else { Err(NO_HINT) }),
            Kind::Port => number(1, 65_535),
            Kind::Slots => number(1, 1024),
            Kind::Seconds(least, most) => number(*least, *most),
            Kind::Flag => value.get_ref().as_bool().map(|flag| Ok(flag.into())),
            Kind::Size => match value.get_ref() {
                DeValue::String(text) => Some(check::size_text(text).map(Value::from)),
                value => integer(value).map(|number| check::size(number).map(Value::from)),
            },
            Kind::Gpus => match value.get_ref() {
                DeValue::Array(items) if !items.is_empty() => return reader.list(check::GPU, value, container::gpu()),
                DeValue::Array(_) => Some(Err("an empty one is written \"none\"".into())),
                DeValue::String(text) if matches!(text.as_ref(), "auto" | "all") => Some(Ok(json!(text))),
                DeValue::String(text) if text == "none" => Some(Ok(json!(0))),
                DeValue::String(_) => Some(Err(NO_HINT)),
                _ => number(0, 1024),
            },
            Kind::Mounts => return reader.list(&expected, value, container::mount(context.jobs_dir)),
            Kind::Devices => return reader.list(&expected, value, container::device()),
            Kind::Ulimits => {
                return reader.entries(container::LIMIT_NAME, &expected, value, container::limit_name, container::ulimit);
            }
            Kind::Env => return container::env(&expected, value, reader),
        };
        reader.judge(&expected, value, accepted)
    }
}
