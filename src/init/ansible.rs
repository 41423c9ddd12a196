//! Ansible's inventories in INI form: hosts with their connection, groups, groups of groups, and variables of groups.

use super::machines::{Host, Machine, MachineFault, Machines};
use crate::inventory::{self, canonical_host, is_ipv6};
use crate::text::nodeset::{self, MOST_NAMES, expand_with};
use regex::Regex;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::num::NonZeroU16;
use std::sync::LazyLock;

/// The most groups of an inventory.
const MOST_GROUPS: usize = 256;

/// Variables with the line of each.
type Variables = BTreeMap<String, (usize, String)>;

/// A group of hosts, with the line that names it first.
#[derive(Default)]
struct AnsibleGroup {
    line: usize,
    hosts: BTreeSet<usize>,
    /// The groups in it, with the line.
    children: BTreeMap<String, usize>,
    variables: Variables,
}

/// A host, with the line that names it first.
struct AnsibleHost {
    name: String,
    line: usize,
    port: Option<u16>,
    variables: Variables,
}

/// An inventory as it is written.
#[derive(Default)]
struct Written {
    hosts: Vec<AnsibleHost>,
    by_name: HashMap<String, usize>,
    groups: BTreeMap<String, AnsibleGroup>,
}

/// The meaning of the lines below a heading.
enum AnsibleSection {
    Hosts(String),
    Children(String),
    Variables(String),
}

/// Reads an inventory. `user` is that of hosts for which it names none.
///
/// # Errors
/// The first line that cannot be read.
pub fn parse(text: &str, user: Option<&str>) -> Result<Machines, MachineFault> {
    let mut written = Written::default();
    let mut section = AnsibleSection::Hosts("ungrouped".into());
    for (number, line) in text.lines().enumerate() {
        let (number, line) = (number + 1, line.trim());
        if !line.is_empty() && !line.starts_with(['#', ';']) {
            written.line(number, line, &mut section).map_err(|why| MachineFault { line: number, why })?;
        }
    }
    written.resolve(user)
}

impl Written {
    fn line(&mut self, number: usize, line: &str, section: &mut AnsibleSection) -> Result<(), String> {
        static HEADING: LazyLock<Regex> =
            LazyLock::new(|| Regex::new(r"^\[([^:\]\s]+)(?::(\w+))?\]\s*(?:#.*)?$").expect("a valid pattern"));
        if let Some(heading) = HEADING.captures(line) {
            let name = heading[1].to_owned();
            *section = match heading.get(2).map(|kind| kind.as_str()) {
                None => AnsibleSection::Hosts(name.clone()),
                Some("children") => AnsibleSection::Children(name.clone()),
                Some("vars") => AnsibleSection::Variables(name.clone()),
                Some(_) => return Err(format!("expected [GROUP], [GROUP:children] or [GROUP:vars], found {line}")),
            };
            // variables alone make no group
            if !matches!(section, AnsibleSection::Variables(_)) {
                self.groups.entry(name).or_insert_with(|| AnsibleGroup { line: number, ..AnsibleGroup::default() });
            }
            return Ok(());
        }
        match section {
            AnsibleSection::Hosts(group) => self.host(number, line, group),
            AnsibleSection::Children(group) => {
                let child = words(line)?.into_iter().next().unwrap_or_default();
                self.groups.entry(group.clone()).or_default().children.insert(child, number);
                Ok(())
            }
            AnsibleSection::Variables(group) => {
                let (name, value) = line.split_once('=').ok_or("expected NAME=VALUE")?;
                let value = words(value.trim()).map_or(value.trim().to_owned(), |words| words.join(" "));
                let group = self
                    .groups
                    .entry(group.clone())
                    .or_insert_with(|| AnsibleGroup { line: number, ..AnsibleGroup::default() });
                group.variables.insert(name.trim().to_owned(), (number, value));
                Ok(())
            }
        }
    }

    /// Adds what a line with a host, or a range of them, says.
    fn host(&mut self, number: usize, line: &str, group: &str) -> Result<(), String> {
        let words = words(line)?;
        let Some((pattern, rest)) = words.split_first() else { return Ok(()) };
        let assigned = |word: &String| {
            let (name, value) =
                word.split_once('=').ok_or(format!("expected NAME=VALUE after the host, found {word:?}"))?;
            Ok((name.to_owned(), (number, value.to_owned())))
        };
        let variables: Variables = rest.iter().map(assigned).collect::<Result<_, String>>()?;
        let (place, port) = split_port(pattern)?;
        let bare = place.strip_prefix('[').and_then(|place| place.strip_suffix(']')).unwrap_or(place);
        let names = if is_ipv6(bare) { vec![bare.to_owned()] } else { expand_with(place, values)? };
        for name in names {
            let name = inventory::NODE_NAME.read(&name).map_err(|why| format!("{name}: {why}"))?;
            let index = *self.by_name.entry(name.clone()).or_insert(self.hosts.len());
            if index == self.hosts.len() {
                self.hosts.push(AnsibleHost { name, line: number, port: None, variables: Variables::new() });
            }
            if self.hosts.len() > MOST_NAMES {
                return Err(format!("more than {MOST_NAMES} machines"));
            }
            self.hosts[index].port = port.or(self.hosts[index].port);
            self.hosts[index].variables.extend(variables.clone());
            self.groups.entry(group.to_owned()).or_default().hosts.insert(index);
        }
        Ok(())
    }

    /// The depth of each group below `all`: what the deeper one sets counts.
    fn depths(&self) -> Result<HashMap<&str, usize>, MachineFault> {
        let mut depths: HashMap<&str, usize> = self.groups.keys().map(|name| (name.as_str(), 1)).collect();
        depths.insert("all", 0);
        // at most as deep as there are groups, unless one contains itself
        for round in 0..=self.groups.len() {
            let mut is_settled = true;
            for (name, group) in &self.groups {
                for (child, &line) in &group.children {
                    let below = depths[name.as_str()] + 1;
                    let fault = |why| MachineFault { line, why };
                    let depth = depths.get_mut(child.as_str());
                    let depth = depth.ok_or_else(|| fault(format!("there is no group [{child}]")))?;
                    if below > *depth && round == self.groups.len() {
                        return Err(fault(format!("the group [{child}] contains itself")));
                    }
                    is_settled &= below <= *depth;
                    *depth = below.max(*depth);
                }
            }
            if is_settled {
                break;
            }
        }
        Ok(depths)
    }

    /// The hosts of a group and of the groups in it, given that none contains itself.
    fn members(&self, name: &str) -> BTreeSet<usize> {
        let (mut members, mut open, mut seen) = (BTreeSet::new(), vec![name], BTreeSet::new());
        while let Some(name) = open.pop() {
            let Some(group) = self.groups.get(name).filter(|_| seen.insert(name)) else { continue };
            members.extend(&group.hosts);
            open.extend(group.children.keys().map(String::as_str));
        }
        members
    }

    fn resolve(self, user: Option<&str>) -> Result<Machines, MachineFault> {
        let depths = self.depths()?;
        let mut members: BTreeMap<&str, BTreeSet<usize>> =
            self.groups.keys().map(|name| (name.as_str(), self.members(name))).collect();
        members.insert("all", (0..self.hosts.len()).collect());
        let mut order: Vec<&str> = members.keys().copied().collect();
        order.sort_by_key(|name| (depths[name], *name));
        let mut machines = Machines::default();
        let mut known = HashMap::new();
        // the machine of each host
        let mut places: Vec<Option<usize>> = Vec::new();
        for (index, host) in self.hosts.iter().enumerate() {
            let mut variables = Variables::new();
            for name in order.iter().filter(|name| members[**name].contains(&index)) {
                variables.extend(self.groups.get(*name).into_iter().flat_map(|group| group.variables.clone()));
            }
            variables.extend(host.variables.clone());
            let place = machine(host, &variables, user)?.map(|machine| {
                let Host { host: address, user, port } = &machine.host;
                let next = machines.machines.len();
                let place = *known.entry((canonical_host(address), user.clone(), *port)).or_insert(next);
                match place == next {
                    true => machines.machines.push(machine),
                    false => machines.notes.push(format!("{} is left out: it is {} again", host.name, machine.host)),
                }
                place
            });
            if place.is_none() {
                machines.notes.push(format!("{} is left out: ansible_connection=local", host.name));
            }
            if variables.keys().any(|name| name.starts_with("ansible_ssh_") && name.ends_with("_args")) {
                machines
                    .notes
                    .push(format!("{}: ssh's arguments are not taken over; set `jump` for a jump host", host.name));
            }
            places.push(place);
        }
        for (name, group) in self.groups.iter().filter(|(name, _)| !["all", "ungrouped"].contains(&name.as_str())) {
            let fault = |why| MachineFault { line: group.line, why };
            inventory::NAME.read(name).map_err(|why| fault(format!("[{name}]: {why}")))?;
            let nodes: BTreeSet<usize> = members[name.as_str()].iter().filter_map(|index| places[*index]).collect();
            if !nodes.is_empty() {
                machines.groups.insert(name.clone(), nodes.into_iter().collect());
            }
            if machines.groups.len() > MOST_GROUPS {
                return Err(fault(format!("expected at most {MOST_GROUPS} groups")));
            }
        }
        Ok(machines)
    }
}

/// The machine of a host with these variables; none of a host that is Ansible's own machine.
fn machine(host: &AnsibleHost, variables: &Variables, user: Option<&str>) -> Result<Option<Machine>, MachineFault> {
    // the later names are those of older versions
    let value = |names: [&'static str; 2]| {
        let found = names.iter().find_map(|name| Some((*name, variables.get(*name)?)));
        let Some((name, (line, value))) = found else { return Ok(None) };
        match value.contains("{{") {
            true => Err(MachineFault { line: *line, why: format!("{name}: templates are not read, found {value:?}") }),
            false => Ok(Some((name, *line, value.as_str()))),
        }
    };
    if value(["ansible_connection"; 2])?.is_some_and(|(_, _, connection)| connection == "local") {
        return Ok(None);
    }
    let address = value(["ansible_host", "ansible_ssh_host"])?.unwrap_or(("", host.line, &host.name));
    let port = match value(["ansible_port", "ansible_ssh_port"])? {
        None => host.port,
        Some((name, line, port)) => {
            let port = read_port(port).map_err(|why| MachineFault { line, why: format!("{name}: {why}") })?;
            Some(port)
        }
    };
    let own = value(["ansible_user", "ansible_ssh_user"])?;
    let (line, user) = own.map_or((host.line, user), |(_, line, user)| (line, Some(user)));
    let user = user.map(|user| inventory::USER.read(user)).transpose();
    let user = user.map_err(|why| MachineFault { line, why: format!("{}: {why}", host.name) })?;
    let identity = match value(["ansible_ssh_private_key_file", "ansible_private_key_file"])? {
        None => None,
        Some((name, line, file)) => {
            let fault = |why| MachineFault { line, why: format!("{name}: {why}") };
            Some(inventory::FILE.read(file).map_err(fault)?)
        }
    };
    let address = inventory::HOST
        .read(address.2)
        .map_err(|why| MachineFault { line: address.1, why: format!("{}: {why}", address.2) })?;
    let host_of = Host { host: address, user, port };
    Ok(Some(Machine { name: Some(host.name.clone()), identity, ..host_of.into() }))
}

fn read_port(text: &str) -> Result<u16, String> {
    let port = text.parse::<NonZeroU16>();
    port.map(NonZeroU16::get).map_err(|_| format!("expected a port from 1 to 65535, found {text:?}"))
}

/// The port of `HOST:PORT`, if there is one behind the last bracket.
fn split_port(pattern: &str) -> Result<(&str, Option<u16>), String> {
    let tail = pattern.rfind(']').map_or(0, |end| end + 1);
    match pattern[tail..].rfind(':').map(|colon| tail + colon) {
        Some(colon) if !is_ipv6(pattern) => Ok((&pattern[..colon], Some(read_port(&pattern[colon + 1..])?))),
        _ => Ok((pattern, None)),
    }
}

/// The values of a range: `01:04`, `a:d`, both with a step after another colon.
fn values(range: &str, most: usize) -> Result<Vec<String>, String> {
    let parts: Vec<&str> = range.split(':').collect();
    let (low, high, step) = match parts[..] {
        [low, high] => (low, high, "1"),
        [low, high, step] => (low, high, step),
        _ => return Err(format!("expected a range such as [01:04] or [a:d], found [{range}]")),
    };
    let letter = |text: &str| text.parse::<char>().ok().filter(char::is_ascii_alphabetic);
    let values = match letter(low).zip(letter(high)) {
        Some((low, high)) => {
            let step = step.parse().ok().filter(|step| *step > 0).ok_or(format!("[{range}] has no valid step"))?;
            (low..=high).step_by(step).map(String::from).collect()
        }
        None => nodeset::expand(&format!("[{}-{high}/{step}]", if low.is_empty() { "0" } else { low }))?,
    };
    match values.len() {
        0 => Err(format!("the range [{range}] is empty")),
        all if all > most => Err(format!("with the range [{range}] there are more than {MOST_NAMES} names")),
        _ => Ok(values),
    }
}

/// Splits a line as a shell does: quotes, backslashes, and a comment from a word on that begins with #.
fn words(line: &str) -> Result<Vec<String>, String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None | Some('"'), '\\') => word.get_or_insert_default().extend(chars.next()),
            (None, '#') if word.is_none() => break,
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    if quote.is_some() { Err("a quote is not closed".into()) } else { Ok(words) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Machines as `name: [user@]host[:port] identity`, then groups as `@group: names`, then notes; or the line and
    /// message of a fault.
    fn read(text: &str) -> Vec<String> {
        let machines = match parse(text, Some("ana")) {
            Ok(machines) => machines,
            Err(MachineFault { line, why }) => return vec![format!("{line}: {why}")],
        };
        let name = |index: &usize| machines.machines[*index].name.clone().unwrap();
        let machine = |m: &Machine| {
            let identity = m.identity.as_ref().map_or(String::new(), |file| format!(" {file}"));
            format!("{}: {}{identity}", m.name.as_deref().unwrap(), m.host)
        };
        let mut read: Vec<String> = machines.machines.iter().map(machine).collect();
        let group = |(group, nodes): (&String, &Vec<usize>)| {
            format!("@{group}: {}", nodes.iter().map(name).collect::<Vec<_>>().join(" "))
        };
        read.extend(machines.groups.iter().map(group));
        read.extend(machines.notes.clone());
        read
    }

    #[test]
    fn an_inventory_with_groups_of_groups() {
        let text = r#"
head.example.org
; a comment
[gpu]
gpu[01:03].example.org ansible_host="10.0.0.9"  # replaced below
gpu01.example.org ansible_host=10.0.0.1 ansible_user=eve ansible_port=2222
gpu02.example.org ansible_host=10.0.0.2
gpu03.example.org:22 ansible_host='10.0.0.3'

[old]
m[a:c:2] extra="a b"
[racks:children]
gpu
old
[racks:vars]
ansible_user = rack
ansible_ssh_private_key_file="~/.ssh/rack key"
[old:vars]
ansible_ssh_user=unused
ansible_user=old
[all:vars]
ansible_python_interpreter={{ x }}
ansible_port=2200
[empty]
"#;
        assert_eq!(
            read(text),
            [
                "head.example.org: ana@head.example.org:2200",
                "gpu01.example.org: eve@10.0.0.1:2222 ~/.ssh/rack key",
                "gpu02.example.org: rack@10.0.0.2:2200 ~/.ssh/rack key",
                "gpu03.example.org: rack@10.0.0.3:2200 ~/.ssh/rack key",
                "ma: old@ma:2200 ~/.ssh/rack key",
                "mc: old@mc:2200 ~/.ssh/rack key",
                "@gpu: gpu01.example.org gpu02.example.org gpu03.example.org",
                "@old: ma mc",
                "@racks: gpu01.example.org gpu02.example.org gpu03.example.org ma mc",
            ]
        );
    }

    #[test]
    fn what_is_left_out_is_named() {
        let text = "localhost ansible_connection=local\na ansible_host=h\nb ansible_host=H\n\
                    c ansible_ssh_common_args='-J gate'\n[g]\nlocalhost\nb";
        assert_eq!(
            read(text),
            [
                "a: ana@h",
                "c: ana@c",
                "@g: a",
                "localhost is left out: ansible_connection=local",
                "b is left out: it is ana@H again",
                "c: ssh's arguments are not taken over; set `jump` for a jump host",
            ]
        );
    }

    #[test]
    fn hosts_in_their_spellings() {
        for (line, expected) in [
            ("n[1:10:4]", "n1: ana@n1|n5: ana@n5|n9: ana@n9"),
            ("n[08:10]:22", "n08: ana@n08:22|n09: ana@n09:22|n10: ana@n10:22"),
            ("r[1:2]n[1:2]", "r1n1: ana@r1n1|r1n2: ana@r1n2|r2n1: ana@r2n1|r2n2: ana@r2n2"),
            ("fd00::1", "fd00::1: ana@fd00::1"),
            ("[fd00::1]:22", "fd00::1: ana@[fd00::1]:22"),
            ("n[:1]", "n0: ana@n0|n1: ana@n1"),
        ] {
            assert_eq!(read(line).join("|"), expected, "{line}");
        }
    }

    #[test]
    fn faults_name_the_line() {
        for (text, expected) in [
            ("a\nb c", "2: expected NAME=VALUE after the host, found \"c\""),
            ("a 'b", "1: a quote is not closed"),
            ("n[1:", "1: expected a port from 1 to 65535, found \"\""),
            ("n[1-4]", "1: expected a range such as [01:04] or [a:d], found [1-4]"),
            ("n[4:1]", "1: the range 4-1/1 is empty"),
            ("n[d:a]", "1: the range [d:a] is empty"),
            ("n[a:d:0]", "1: [a:d:0] has no valid step"),
            ("n[1:99999]", "1: with the range 1-99999/1 there are more than 10000 names"),
            ("n[1:200][1:200]", "1: with the range [1:200] there are more than 10000 names"),
            ("[g:hosts]", "1: expected [GROUP], [GROUP:children] or [GROUP:vars], found [g:hosts]"),
            ("a\n[g:children]\nh", "3: there is no group [h]"),
            ("[g:children]\nh\n[h:children]\ng", "2: the group [h] contains itself"),
            ("[g:vars]\nx", "2: expected NAME=VALUE"),
            ("a ansible_port=x", "1: ansible_port: expected a port from 1 to 65535, found \"x\""),
            ("a\n[all:vars]\nansible_host={{ ip }}", "3: ansible_host: templates are not read, found \"{{ ip }}\""),
            ("a;b", "1: a;b: expected 1 to 253 letters, digits, `_`, `.`, `:`, `%` or `-`, the first not `-` or `.`"),
            (
                "a ansible_host=-oProxyCommand=x",
                "1: -oProxyCommand=x: expected a host as for ssh: an alias, a name or an address",
            ),
            ("[a+b]\nn", "1: [a+b]: expected 1 to 63 letters, digits, `_`, `.` or `-`, the first a letter or digit"),
        ] {
            assert_eq!(read(text), [expected], "{text}");
        }
    }

    proptest! {
        #[test]
        fn anything_is_read_or_refused(text in "((a|b|n\\[1:3\\]|\\[[a-c]\\]|\\[[a-c]:(children|vars)\\]|x=1|ansible_port=2|'|[ :\\[\\]#])(\n| )?){0,12}") {
            let _ = parse(&text, None);
        }
    }
}
