//! `[groups]`: names for sets of nodes, each an expression as for `--on`, in which other groups may stand.

use super::check;
use super::fault::{Report, quoted};
use super::reader::{Section, Span, refusal};
use crate::text::nodeset::{Groups, NONE_LEFT, groups_in, select};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use toml::de::DeValue;

/// More groups than this are none.
pub(super) const MOST: usize = 256;

const EXPECTED: &str = "nodes as for --on, like \"gpu[01-08],!gpu03\", or a list of such";

/// One group as it is written: its parts with their places.
struct Definition {
    span: Span,
    parts: Vec<(Span, String)>,
}

/// The nodes of each group. Where the nodes' names are not known for sure, only the form is judged.
pub(super) fn groups(root: &Section<'_, '_>, nodes: Option<&Vec<String>>, report: &mut Report<'_>) -> Groups {
    let Some(value) = root.value("groups") else { return Groups::new() };
    let DeValue::Table(table) = value.get_ref() else {
        let message = format!("expected one table [groups], found {}", report.found(value, true));
        root.fault("groups", &message, report);
        return Groups::new();
    };
    if table.len() > MOST {
        let message = format!("expected at most {MOST} groups, found {}", table.len());
        root.fault("groups", &message, report);
        return Groups::new();
    }
    let mut definitions = BTreeMap::new();
    let mut good = true;
    for (key, value) in table {
        let name = key.get_ref();
        if let Err(hint) = check::NAME.check(name) {
            let expected = format!("a name of {}", check::NAME.expected);
            report.at(key.span(), format!("groups: {}", refusal(&expected, &quoted(name), &hint)));
            good = false;
        }
        let items = match value.get_ref() {
            DeValue::Array(items) if !items.is_empty() => items.iter().collect(),
            _ => vec![value],
        };
        let mut parts = Vec::new();
        for item in items {
            match item.get_ref() {
                DeValue::String(text) => parts.push((item.span(), text.to_string())),
                _ => {
                    let found = report.found(item, true);
                    report.at(item.span(), format!("groups.{}: expected {EXPECTED}, found {found}", shown(name)));
                    good = false;
                }
            }
        }
        definitions.insert(name.to_string(), Definition { span: key.span(), parts });
    }
    let Some(nodes) = nodes.filter(|_| good) else { return Groups::new() };
    let groups = definitions.keys().map(|name| (name.clone(), Vec::new())).collect();
    let mut resolver = Resolver { definitions: &definitions, nodes, groups, done: HashMap::new(), report };
    for name in definitions.keys() {
        resolver.resolve(name, &mut Vec::new());
    }
    resolver.groups
}

fn shown(name: &str) -> String {
    if check::NAME.check(name).is_ok() { name.to_owned() } else { quoted(name) }
}

/// Resolves each group after those that it names.
struct Resolver<'a, 'r, 't> {
    definitions: &'a BTreeMap<String, Definition>,
    nodes: &'a [String],
    /// All groups, for messages; those that are not resolved yet or cannot be have no nodes.
    groups: Groups,
    /// Whether a group could be resolved.
    done: HashMap<&'a str, bool>,
    report: &'r mut Report<'t>,
}

impl<'a> Resolver<'a, '_, '_> {
    /// Resolves one group. `path` has the groups that wait for it, to find one that is a part of itself.
    fn resolve(&mut self, name: &'a str, path: &mut Vec<&'a str>) -> bool {
        let definitions = self.definitions;
        let definition = &definitions[name];
        if let Some(at) = path.iter().position(|waiting| *waiting == name) {
            let circle: String = path[at..].iter().map(|name| format!("@{name} → ")).collect();
            let message = format!("groups.{name}: expected a group that is no part of itself, found {circle}@{name}");
            self.report.at(definition.span.clone(), message);
            return false;
        }
        if let Some(done) = self.done.get(name) {
            return *done;
        }
        path.push(name);
        let named: BTreeSet<String> = definition.parts.iter().flat_map(|(_, part)| groups_in(part)).collect();
        let known = named.iter().filter_map(|group| definitions.get_key_value(group));
        // what is wrong with a group is reported there, and not again where it is used
        let usable = known.fold(true, |usable, (group, _)| self.resolve(group, path) && usable);
        path.pop();
        let members = if usable { self.members(name, definition) } else { None };
        self.done.insert(name, members.is_some());
        self.groups.insert(name.to_owned(), members.unwrap_or_default());
        self.done[name]
    }

    /// The nodes of one group; the parts of a list go one after the other, so that `!` takes away from those before it.
    fn members(&mut self, name: &str, definition: &Definition) -> Option<Vec<String>> {
        let mut good = true;
        // each by itself first, for its own place
        for (span, part) in &definition.parts {
            match select(part.trim_start().trim_start_matches('!'), self.nodes, &self.groups) {
                Err(bad) if bad.reason != NONE_LEFT => {
                    let message = format!("groups.{name}: expected {EXPECTED}, found {}; {}", quoted(part), bad.reason);
                    self.report.at(span.clone(), message);
                    good = false;
                }
                _ => {}
            }
        }
        let whole: Vec<&str> = definition.parts.iter().map(|(_, part)| part.as_str()).collect();
        match select(&whole.join(","), self.nodes, &self.groups) {
            Ok(members) => Some(members),
            Err(bad) if good => {
                self.report.at(definition.span.clone(), format!("groups.{name}: {}", bad.reason));
                None
            }
            Err(_) => None,
        }
    }
}
