//! The roles of a project: the tables `[[role]]` of its `hvdctl.toml`.

use crate::inventory::{IMAGE, LINE, VARIABLE};
use crate::model::launcher::LauncherName;
use crate::model::role::{Ends, ReadyWhen};
use crate::model::role_size::RoleSize;
use crate::text::argument::ProgramArgument;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use toml::Spanned;

/// The most letters of the name of a role or of a port.
const LONGEST: usize = 32;

/// The time in which a role has to be ready, unless the file sets another.
const READY_TIMEOUT: u64 = 600;

/// The most restarts of a role.
const MOST_RESTARTS: u32 = 1000;

/// The beginning of a URL by which a role is ready. Its host is left out: each rank is asked at its own node.
const HTTP: &str = "http://:";

/// A table `[[role]]`. `docs/reference/project.md` has its fields with these comments.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct RoleTable {
    /// The name of the role: at most 32 letters, digits, `-` and `_`.
    name: String,
    /// The program and its arguments. `$PORT_NAME` and `${PORT_NAME}` stand for a port of the rank.
    command: Vec<String>,
    /// The launcher of its ranks. Without it `--launcher`, otherwise `launcher` of the file, otherwise that of the
    /// inventory.
    launcher: Option<LauncherName>,
    /// The number of its ranks. They are placed on as few nodes as they fit on.
    ranks: Option<NonZeroU32>,
    /// The number of its nodes. Without `ranks_per_node` it has a rank on every slot of them.
    nodes: Option<NonZeroU32>,
    /// The number of its ranks on each of its nodes. Without `nodes` these are the nodes of the role that `beside`
    /// names, or all that other roles leave.
    ranks_per_node: Option<NonZeroU32>,
    /// The number of GPUs of each rank, which sees no other ones; of slots on nodes without GPUs. A rank with 0 takes
    /// neither. Without it, each rank takes one, and sees the GPUs of all ranks of its role on its node.
    gpus: Option<u32>,
    /// Names of ports, of lower-case letters, digits and `_`. Each rank gets a free port of its node for each name.
    #[serde(default)]
    ports: Vec<String>,
    /// The condition under which a rank is ready: `http://:$PORT_NAME/path` answers, `port NAME` accepts connections,
    /// `line TEXT` is a part of a line that it has written, `file PATH` was written since the rank was started (relative to
    /// its working directory). Without it a rank is ready when it has started.
    ready: Option<String>,
    /// The seconds in which all ranks of the role have to be ready if another role needs it. The default is 600.
    ready_timeout_s: Option<NonZeroU32>,
    /// Names of the roles that have to be ready before this one begins.
    #[serde(default)]
    needs: Vec<String>,
    /// The name of the role whose nodes it shares. Without it, it has nodes of its own.
    beside: Option<String>,
    /// The effect of its end: `ends the job`, `with NAME` (it is ended when that role has ended) or `restarts N` (it is
    /// started again up to N times if it fails). The default is `ends the job` for the first role, otherwise `with` the
    /// first role.
    ends: Option<String>,
    /// Variables of its ranks. `-e` and `--env-file` replace them.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// The image of its ranks, in place of the cluster's and of that which `build` makes.
    image: Option<String>,
    /// As `setup` of the file, in place of it: commands that add to the image what the role needs.
    setup: Option<Vec<String>>,
    /// As `setup_files` of the file, for the `setup` of the role.
    #[serde(default)]
    setup_files: Vec<String>,
    /// Without containers: lines of bash that set up the environment of its ranks, in place of `activate` of the
    /// inventory.
    activate: Option<Vec<String>>,
}

/// The environment of a role's ranks on their nodes, as far as the role has its own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RoleEnvironment {
    /// The image that replaces the cluster's and that of the project's Dockerfile.
    pub image: Option<String>,
    /// The commands that add to the image, in place of those of the project.
    pub setup: Option<Vec<String>>,
    /// The files that these read.
    pub setup_files: Vec<String>,
    /// The lines that replace those of `activate` in the inventory.
    pub activate: Option<Vec<String>>,
}

/// A role of a project.
#[derive(Debug, Clone, PartialEq)]
pub struct ProjectRole {
    /// Its name.
    pub name: String,
    /// The line of the file in which its table begins, from 1.
    pub line: usize,
    /// The program and its arguments.
    pub command: Vec<ProgramArgument>,
    /// The launcher that the role names.
    pub launcher: Option<LauncherName>,
    /// The number of its ranks; `None` if the file leaves that to the command line.
    pub size: Option<RoleSize>,
    /// The number of GPUs (or of slots, where there are none) of each rank, which sees no other ones; `None`: one, and it
    /// sees those of its role.
    pub gpus: Option<u32>,
    /// The names of its ports.
    pub ports: Vec<String>,
    /// The condition under which a rank is ready; none: when it has started.
    pub ready: Option<ReadyWhen>,
    /// Seconds for that.
    pub ready_timeout: u64,
    /// The numbers of the roles that have to be ready before it begins.
    pub needs: Vec<usize>,
    /// The number of the role whose nodes it shares.
    pub beside: Option<usize>,
    /// The effect of its end.
    pub ends: Ends,
    /// Variables of its ranks.
    pub env: BTreeMap<String, String>,
    /// The environment of its ranks on their nodes.
    pub environment: RoleEnvironment,
}

/// A fault of a table: what it is, and the way out.
pub(super) type TableFault = (String, String);

/// Returns the roles of these tables. `text`: the file, for the lines of faults.
///
/// # Errors
/// The first fault, with its line.
pub(super) fn read(text: &str, tables: Vec<Spanned<RoleTable>>) -> Result<Vec<ProjectRole>, TableFault> {
    let lines: Vec<usize> = tables.iter().map(|table| text[..table.span().start].matches('\n').count() + 1).collect();
    let tables: Vec<RoleTable> = tables.into_iter().map(Spanned::into_inner).collect();
    let at = |role: usize, (why, hint): TableFault| {
        (format!("line {}: the role {}: {why}", lines[role], crate::text::quote::readable(&tables[role].name)), hint)
    };
    let names: Vec<&str> = tables.iter().map(|table| table.name.as_str()).collect();
    for (number, table) in tables.iter().enumerate() {
        check_name(table, &names[..number]).map_err(|fault| at(number, fault))?;
    }
    check_variables(&tables).map_err(|(role, fault)| at(role, fault))?;
    let role = |(number, table)| role((number, lines[number]), table, &names).map_err(|fault| at(number, fault));
    let roles = tables.iter().enumerate().map(role).collect::<Result<Vec<_>, _>>()?;
    check_graph(&roles).map_err(|(role, fault)| at(role, fault))?;
    check_environments(&roles).map_err(|(role, fault)| at(role, fault))?;
    if !roles.is_empty() && roles.iter().all(|role| role.ends != Ends::Job) {
        let hint = "give one role `ends = \"ends the job\"`, which is the default of the first one";
        return Err(("no role ends the job".to_owned(), hint.to_owned()));
    }
    Ok(roles)
}

fn fault<T>(why: impl Into<String>, hint: impl Into<String>) -> Result<T, TableFault> {
    Err((why.into(), hint.into()))
}

/// Checks the name of a role, after those of the roles `before` it.
fn check_name(table: &RoleTable, before: &[&str]) -> Result<(), TableFault> {
    let (name, is_allowed) = (table.name.as_str(), |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'));
    if name.is_empty() || name.len() > LONGEST || !name.chars().all(is_allowed) {
        return fault("its name is not plain", format!("use 1 to {LONGEST} letters, digits, `-` or `_`"));
    }
    if before.contains(&name) {
        return fault("another role has this name", "give each role a name of its own");
    }
    Ok(())
}

/// Returns a name as it is in the names of variables.
fn in_variable(name: &str) -> String {
    name.to_ascii_uppercase().replace('-', "_")
}

/// Checks that no two roles or ports have the same variable: `HVDCTL_ROLE_NAME_PORT`, `HVDCTL_ROLE_NAME_HOSTS`.
fn check_variables(tables: &[RoleTable]) -> Result<(), (usize, TableFault)> {
    let mut seen: BTreeMap<String, &str> = BTreeMap::new();
    for (number, table) in tables.iter().enumerate() {
        for port in table.ports.iter().map(String::as_str).chain(["hosts"]) {
            let variable = format!("HVDCTL_ROLE_{}_{}", in_variable(&table.name), in_variable(port));
            if let Some(other) = seen.insert(variable.clone(), &table.name) {
                let of = if other == table.name { "two of its ports" } else { &format!("it and the role {other}") };
                let hint = "use other names of roles or ports, and not `hosts` for a port";
                return Err((number, (format!("{of} would have the same variable {variable}"), hint.to_owned())));
            }
        }
    }
    Ok(())
}

/// Reads a table, which begins in this line. `names`: those of all roles.
fn role((number, line): (usize, usize), table: &RoleTable, names: &[&str]) -> Result<ProjectRole, TableFault> {
    if table.command.is_empty() || table.command[0].is_empty() || table.command.iter().any(|part| part.contains('\0')) {
        return fault("its command names no program", "as in command = [\"python\", \"train.py\"]");
    }
    let is_plain = |port: &&String| {
        let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        !port.is_empty() && port.len() <= LONGEST && port.chars().all(allowed)
    };
    if let Some(port) = table.ports.iter().find(|port| !is_plain(port)) {
        let hint = format!("use 1 to {LONGEST} lower-case letters, digits or `_`, as in ports = [\"http\"]");
        return fault(format!("{port:?} is not a name of a port"), hint);
    }
    if let Some(why) = table.env.keys().find_map(|name| VARIABLE.read(name).err()) {
        return fault(format!("env: {why}"), "as in env = { EPOCHS = \"10\" }");
    }
    let known = |name: &String| match names.iter().position(|other| *other == name.as_str()) {
        Some(role) => Ok(role),
        None => fault(format!("there is no role {name:?}"), format!("the roles are {}", names.join(", "))),
    };
    let timeout = table.ready_timeout_s.map_or(READY_TIMEOUT, |seconds| u64::from(seconds.get()));
    Ok(ProjectRole {
        name: table.name.clone(),
        line,
        command: table.command.iter().map(|part| part.as_str().into()).collect(),
        launcher: table.launcher,
        size: size(table)?,
        gpus: table.gpus,
        ready: table.ready.as_deref().map(|text| ready(text, &table.ports)).transpose()?,
        ports: table.ports.clone(),
        ready_timeout: timeout,
        needs: table.needs.iter().map(known).collect::<Result<_, _>>()?,
        beside: table.beside.as_ref().map(known).transpose()?,
        ends: match &table.ends {
            Some(text) => ends(text, known)?,
            None if number == 0 => Ends::Job,
            None => Ends::With { role: 0 },
        },
        env: table.env.clone(),
        environment: environment(table)?,
    })
}

fn environment(table: &RoleTable) -> Result<RoleEnvironment, TableFault> {
    if let Some(Err(why)) = table.image.as_deref().map(|image| IMAGE.read(image)) {
        return fault(format!("image: {why}"), "as in image = \"team/serve:2026-11\"");
    }
    if table.setup.is_none() && !table.setup_files.is_empty() {
        let hint = "give the role a `setup` as well, or move `setup_files` next to the `setup` of the file";
        return fault("it has `setup_files` without `setup`, whose commands would read them", hint);
    }
    if let Some(why) = table.activate.iter().flatten().find_map(|line| LINE.read(line).err()) {
        return fault(format!("activate: {why}"), "as in activate = [\"source ~/serve/bin/activate\"]");
    }
    let RoleTable { image, setup, setup_files, activate, .. } = table;
    let (image, setup) = (image.clone(), setup.clone());
    Ok(RoleEnvironment { image, setup, setup_files: setup_files.clone(), activate: activate.clone() })
}

/// Checks that roles that share nodes find the same there: a node has one worker.
fn check_environments(roles: &[ProjectRole]) -> Result<(), (usize, TableFault)> {
    for (number, role) in roles.iter().enumerate() {
        let Some(other) = role.beside.map(|other| &roles[other]) else { continue };
        let (own, theirs) = (&role.environment, &other.environment);
        let different = [
            ("image", own.image != theirs.image),
            ("setup", own.setup != theirs.setup),
            ("setup_files", own.setup_files != theirs.setup_files),
            ("activate", own.activate != theirs.activate),
        ];
        if let Some((field, _)) = different.into_iter().find(|(_, is_different)| *is_different) {
            let why = format!("its `{field}` is not that of {}, whose nodes it shares (`beside`)", other.name);
            let hint = format!("give both the same `{field}`, or the role nodes of its own: remove `beside`");
            return Err((number, (why, hint)));
        }
    }
    Ok(())
}

fn size(table: &RoleTable) -> Result<Option<RoleSize>, TableFault> {
    let [ranks, nodes, per_node] = [table.ranks, table.nodes, table.ranks_per_node].map(|n| n.map(NonZeroU32::get));
    match (ranks, nodes, per_node) {
        (Some(_), Some(_), _) | (Some(_), _, Some(_)) => {
            fault("it has `ranks` together with `nodes` or `ranks_per_node`", "leave out `ranks`, or the others")
        }
        (_, Some(_), _) if table.beside.is_some() => {
            fault("it has `nodes` and `beside`: it gets the nodes of that role", "use `ranks` or `ranks_per_node`")
        }
        (Some(ranks), ..) => Ok(Some(RoleSize::Ranks(ranks))),
        (_, Some(nodes), ranks) => Ok(Some(RoleSize::Nodes { nodes, ranks })),
        (_, _, Some(ranks)) => Ok(Some(RoleSize::PerNode(ranks))),
        _ => Ok(None),
    }
}

/// Reads the condition under which a rank is ready. `ports`: those of the role.
fn ready(text: &str, ports: &[String]) -> Result<ReadyWhen, TableFault> {
    let has = |port: &str| match ports.iter().any(|known| known == port) {
        true => Ok(()),
        false => {
            let known = if ports.is_empty() { "it has none".to_owned() } else { ports.join(", ") };
            fault(format!("ready: it has no port {port:?}"), format!("name it in `ports` of the role ({known})"))
        }
    };
    if let Some(rest) = text.strip_prefix(HTTP) {
        let port = rest.split('/').next().unwrap_or_default();
        let name = port.strip_prefix("$PORT_");
        let name = name.or_else(|| port.strip_prefix("${PORT_").and_then(|name| name.strip_suffix('}')));
        match (name, port.parse::<u16>()) {
            (Some(name), _) if name.contains(|c: char| c.is_ascii_lowercase()) => {
                let hint = format!("write $PORT_{}: it is the name of a variable", name.to_ascii_uppercase());
                return fault(format!("ready: the port {name:?} is not in capitals"), hint);
            }
            (Some(name), _) => has(&name.to_ascii_lowercase())?,
            (None, Ok(1..)) => {}
            _ => return fault(format!("ready: {text:?} has no port"), "as in ready = \"http://:$PORT_HTTP/health\""),
        }
        return Ok(ReadyWhen::Http { url: text.to_owned() });
    }
    match text.split_once(' ').map(|(kind, of)| (kind, of.trim())) {
        Some(("port", name)) => has(name).map(|()| ReadyWhen::Port { name: name.to_owned() }),
        Some(("line", text)) if !text.is_empty() => Ok(ReadyWhen::Line { text: text.to_owned() }),
        Some(("file", path)) if !path.is_empty() => Ok(ReadyWhen::File { path: path.to_owned() }),
        _ => fault(
            format!("ready: {text:?} is no condition"),
            "one of \"http://:$PORT_NAME/path\", \"port NAME\", \"line TEXT\", \"file PATH\"",
        ),
    }
}

/// Reads the effect of the end of a role.
fn ends(text: &str, known: impl Fn(&String) -> Result<usize, TableFault>) -> Result<Ends, TableFault> {
    if text == "ends the job" {
        return Ok(Ends::Job);
    }
    match text.split_once(' ') {
        Some(("with", name)) => known(&name.to_owned())
            .map(|role| Ends::With { role })
            .map_err(|(why, hint)| (format!("ends: {why}"), hint)),
        Some(("restarts", times)) => match times.parse() {
            Ok(times @ 1..=MOST_RESTARTS) => Ok(Ends::Restarts { times }),
            _ => fault(format!("ends: {text:?} has no number of 1 to {MOST_RESTARTS}"), "as in ends = \"restarts 3\""),
        },
        _ => fault(format!("ends: {text:?} is no end"), "one of \"ends the job\", \"with NAME\", \"restarts N\""),
    }
}

/// Checks that no role needs itself, shares nodes with itself, or ends with itself, also over other roles.
fn check_graph(roles: &[ProjectRole]) -> Result<(), (usize, TableFault)> {
    let ended_with = |role: &ProjectRole| match role.ends {
        Ends::With { role } => Some(role),
        _ => None,
    };
    for field in ["needs", "beside", "ends"] {
        let next = |role: usize| match field {
            "needs" => roles[role].needs.clone(),
            "beside" => Vec::from_iter(roles[role].beside),
            _ => Vec::from_iter(ended_with(&roles[role])),
        };
        for start in 0..roles.len() {
            if let Some(path) = circle(start, next) {
                let path: Vec<&str> = path.into_iter().map(|role| roles[role].name.as_str()).collect();
                let why = match path.as_slice() {
                    [_, _] => format!("{field} names the role itself"),
                    path => format!("{field} leads in a circle: {}", path.join(" → ")),
                };
                return Err((start, (why, format!("remove one of the names in `{field}`"))));
            }
        }
    }
    Ok(())
}

/// Returns the way from a role back to it, if there is one.
fn circle(start: usize, next: impl Fn(usize) -> Vec<usize>) -> Option<Vec<usize>> {
    let (mut ways, mut seen) = (vec![vec![start]], Vec::new());
    while let Some(way) = ways.pop() {
        for role in next(way[way.len() - 1]) {
            let longer = [way.as_slice(), &[role]].concat();
            if role == start {
                return Some(longer);
            }
            if !seen.contains(&role) {
                seen.push(role);
                ways.push(longer);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::ProjectFile;
    use super::*;

    const TRAINER: &str = "[[role]]\nname = 'trainer'\ncommand = ['a']\n";

    fn read(text: &str) -> Result<Vec<ProjectRole>, String> {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("hvdctl.toml"), text).unwrap();
        ProjectFile::read(directory.path()).map(|file| file.roles).map_err(|error| error.to_string())
    }

    #[test]
    fn a_role_has_what_its_table_says() {
        let roles = read(&format!(
            "{TRAINER}nodes = 2\n\n[[role]]\nname = 'gen-1'\ncommand = ['b', '$PORT_HTTP']\nlauncher = 'env'\n\
             ranks = 2\ngpus = 0\nports = ['http']\nready = 'http://:$PORT_HTTP/health'\nready_timeout_s = 5\n\
             needs = ['trainer']\nbeside = 'trainer'\nends = 'restarts 3'\nenv = {{ A = '1' }}\n\
             [[role]]\nname = 'other'\ncommand = ['c']\nimage = 'team/serve:1'\nsetup = ['x']\n\
             setup_files = ['y']\nactivate = ['module load z']\n"
        ))
        .unwrap();
        let (trainer, generator, other) = (&roles[0], &roles[1], &roles[2]);
        assert_eq!(trainer.size, Some(RoleSize::Nodes { nodes: 2, ranks: None }));
        assert_eq!((trainer.ends, trainer.gpus, trainer.ready_timeout), (Ends::Job, None, 600));
        assert_eq!((other.ends, other.size, &other.ready), (Ends::With { role: 0 }, None, &None));
        let expected = ProjectRole {
            name: "gen-1".into(),
            line: 6,
            command: vec!["b".into(), "$PORT_HTTP".into()],
            launcher: Some(LauncherName::Env),
            size: Some(RoleSize::Ranks(2)),
            gpus: Some(0),
            ports: vec!["http".into()],
            ready: Some(ReadyWhen::Http { url: "http://:$PORT_HTTP/health".into() }),
            ready_timeout: 5,
            needs: vec![0],
            beside: Some(0),
            ends: Ends::Restarts { times: 3 },
            env: BTreeMap::from([("A".to_owned(), "1".to_owned())]),
            environment: RoleEnvironment::default(),
        };
        assert_eq!(*generator, expected);
        let own = RoleEnvironment {
            image: Some("team/serve:1".into()),
            setup: Some(vec!["x".into()]),
            setup_files: vec!["y".into()],
            activate: Some(vec!["module load z".into()]),
        };
        assert_eq!(other.environment, own);
        for (text, expected) in [
            ("http://:$PORT_A/x", ReadyWhen::Http { url: "http://:$PORT_A/x".into() }),
            ("http://:${PORT_A}", ReadyWhen::Http { url: "http://:${PORT_A}".into() }),
            ("http://:8000/x", ReadyWhen::Http { url: "http://:8000/x".into() }),
            ("port a", ReadyWhen::Port { name: "a".into() }),
            ("line it is up", ReadyWhen::Line { text: "it is up".into() }),
            ("file a b", ReadyWhen::File { path: "a b".into() }),
        ] {
            assert_eq!(ready(text, &["a".to_owned()]), Ok(expected));
        }
    }

    #[test]
    fn each_fault_has_its_line_and_a_way_out() {
        let of = |rest: &str| format!("{TRAINER}ranks = 1\n{rest}");
        let second = |rest: &str| of(&format!("\n[[role]]\nname = 'generator'\ncommand = ['b']\n{rest}"));
        for (text, words, hint) in [
            (
                of("[[role]]\nname = 'trainer'\ncommand = ['b']"),
                "line 5: the role trainer: another role has this name",
                "a name of its own",
            ),
            (
                of("[[role]]\nname = 'Trainer'\ncommand = ['b']"),
                "the same variable HVDCTL_ROLE_TRAINER_HOSTS",
                "other names",
            ),
            (of("ports = ['hosts']"), "two of its ports would have the same variable", "not `hosts`"),
            (of("[[role]]\nname = 'a b'\ncommand = ['b']"), "its name is not plain", "1 to 32 letters"),
            (
                of("[[role]]\nname = 'b'\ncommand = []"),
                "line 5: the role b: its command names no program",
                "as in command",
            ),
            (second("needs = ['generator']"), "line 6: the role generator: needs names the role itself", "`needs`"),
            (
                of("needs = ['generator']\n[[role]]\nname = 'generator'\ncommand = ['b']\nneeds = ['trainer']"),
                "needs leads in a circle: trainer → generator → trainer",
                "`needs`",
            ),
            (second("beside = 'generator'"), "beside names the role itself", "`beside`"),
            (second("beside = 'x'"), "there is no role \"x\"", "the roles are trainer, generator"),
            (second("ends = 'with x'"), "ends: there is no role \"x\"", "the roles are trainer, generator"),
            (second("ends = 'with generator'"), "ends names the role itself", "`ends`"),
            (second("ends = 'sometimes'"), "ends: \"sometimes\" is no end", "\"restarts N\""),
            (second("ends = 'restarts 0'"), "has no number of 1 to 1000", "restarts 3"),
            (of("ends = 'restarts 2'"), "no role ends the job", "ends the job"),
            (second("ready = 'port x'"), "ready: it has no port \"x\"", "(it has none)"),
            (second("ports = ['a']\nready = 'http://:$PORT_HTTP/'"), "ready: it has no port \"http\"", "(a)"),
            (
                second("ports = ['http']\nready = 'http://:$PORT_http/'"),
                "ready: the port \"http\" is not in capitals",
                "write $PORT_HTTP",
            ),
            (second("ready = 'http://:/x'"), "has no port", "$PORT_HTTP"),
            (second("ready = 'http://host:1/x'"), "is no condition", "line TEXT"),
            (second("ports = ['A']"), "\"A\" is not a name of a port", "lower-case"),
            (second("env = { 'A B' = '1' }"), "line 6: the role generator: env: ", "EPOCHS"),
            (second("image = 'a b'"), "line 6: the role generator: image: ", "team/serve"),
            (second("setup_files = ['x']"), "it has `setup_files` without `setup`", "next to the `setup` of the file"),
            (second("activate = ['']"), "line 6: the role generator: activate: ", "source"),
            (
                second("beside = 'trainer'\nimage = 'x'"),
                "line 6: the role generator: its `image` is not that of trainer, whose nodes it shares (`beside`)",
                "give both the same `image`",
            ),
            (second("beside = 'trainer'\nsetup = ['x']"), "its `setup` is not that of trainer", "remove `beside`"),
            (second("beside = 'trainer'\nactivate = ['x']"), "its `activate` is not", "remove `beside`"),
            (second("ranks = 1\nnodes = 1"), "`ranks` together with `nodes`", "leave out"),
            (second("nodes = 1\nbeside = 'trainer'"), "it has `nodes` and `beside`", "ranks_per_node"),
            (second("rank = 1"), "unknown field `rank`", "fix or remove"),
            (second("ranks = 0"), "line 9", "fix or remove"),
            (format!("command = ['x']\n{TRAINER}"), "it has `command` and roles", "move `command`"),
        ] {
            let error = read(&text).unwrap_err();
            assert!(error.contains(words) && error.contains(hint), "{words}: {error}");
        }
    }
}
