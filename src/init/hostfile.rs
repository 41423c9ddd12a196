//! Hostfiles: of Open MPI and DeepSpeed (`host slots=4`), MPICH and Intel MPI (`host:4`), pdsh and batch systems (hosts
//! alone).

use super::machines::{Machine, MachineFault, Machines, named, parts};
use crate::inventory::canonical_host;
use crate::text::nodeset::{self, MOST_NAMES};
use std::collections::HashMap;

/// The most slots of a node in an inventory.
const MOST_SLOTS: u32 = 1024;

/// Reads a hostfile. `user` is that of hosts without one. A host on several lines has the slots of all of them, at
/// least one for each, as Open MPI counts them.
///
/// # Errors
/// The first line that cannot be read.
pub fn parse(text: &str, user: Option<&str>) -> Result<Machines, MachineFault> {
    let mut machines: Vec<Machine> = Vec::new();
    let mut known: HashMap<(String, Option<String>), usize> = HashMap::new();
    for (number, text) in text.lines().enumerate() {
        let fault = |why: String| MachineFault { line: number + 1, why };
        for Machine { host, slots, .. } in line(text, user).map_err(fault)? {
            let key = (canonical_host(&host.host), host.user.clone());
            let Some(&index) = known.get(&key) else {
                known.insert(key, machines.len());
                machines.push(Machine { slots, ..host.into() });
                continue;
            };
            let sum = machines[index].slots.unwrap_or(1) + slots.unwrap_or(1);
            if sum > MOST_SLOTS {
                return Err(fault(format!("{host} has more than {MOST_SLOTS} slots, including the lines before")));
            }
            machines[index].slots = Some(sum);
        }
        if machines.len() > MOST_NAMES {
            return Err(fault(format!("more than {MOST_NAMES} machines")));
        }
    }
    Ok(Machines { machines, ..Machines::default() })
}

/// Reads the hosts of one line, each with its slots.
fn line(text: &str, user: Option<&str>) -> Result<Vec<Machine>, String> {
    if text.starts_with("#include") {
        return Err("other files are not included; name one file with all hosts".into());
    }
    let text = text.split('#').next().unwrap_or_default();
    // Open MPI also takes `slots = 4`
    let text = text.split('=').map(str::trim).collect::<Vec<_>>().join("=");
    let mut words = text.split_whitespace();
    let Some(hosts) = words.next() else { return Ok(Vec::new()) };
    let (mut slots, mut most, mut own_user) = (None, None, None);
    for word in words {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        match key.to_ascii_lowercase().replace('-', "_").as_str() {
            "slots" | "count" | "cpu" | "cpus" => slots = Some(read_slots(value)?),
            "max_slots" | "maxslots" | "slots_max" => most = Some(read_slots(value)?),
            "user" | "username" | "user_name" => own_user = Some(value),
            _ => return Err(format!("expected slots=N, max_slots=N or user=NAME after the host, found {word:?}")),
        }
    }
    let mut machines = Vec::new();
    for word in nodeset::split(hosts) {
        let (user, place, count) = parts(word, own_user.or(user));
        let own_slots = count.map(read_slots).transpose()?.or(slots).or(most);
        let hosts = named(place, user, None).map_err(|why| format!("{word}: {why}"))?;
        machines.extend(hosts.into_iter().map(|host| Machine { slots: own_slots, ..host.into() }));
    }
    Ok(machines)
}

fn read_slots(text: &str) -> Result<u32, String> {
    let slots = text.parse().ok().filter(|slots| (1..=MOST_SLOTS).contains(slots));
    slots.ok_or_else(|| format!("expected 1 to {MOST_SLOTS} slots, found {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The machines of a hostfile, each as `[user@]host=slots`; or the line and the message of its fault.
    fn read(text: &str) -> String {
        match parse(text, Some("ana")) {
            Ok(Machines { machines, .. }) => {
                let slots = |slots: Option<u32>| slots.map_or("-".to_owned(), |slots| slots.to_string());
                machines.iter().map(|m| format!("{}={}", m.host, slots(m.slots))).collect::<Vec<_>>().join(" ")
            }
            Err(MachineFault { line, why }) => format!("{line}: {why}"),
        }
    }

    #[test]
    fn hostfiles_of_several_tools() {
        for (text, expected) in [
            (
                "# Open MPI\nnode1 slots=4 max_slots=8\n\n node2  slots = 2 # two\nnode3",
                "ana@node1=4 ana@node2=2 ana@node3=-",
            ),
            ("worker-1 slots=8\nworker-2 slots=8\n", "ana@worker-1=8 ana@worker-2=8"),
            ("node1:4\r\nnode2:4\r\n", "ana@node1=4 ana@node2=4"),
            ("n1 max-slots=3\neve@n2\nn3 user=joe slots=2", "ana@n1=3 eve@n2=- joe@n3=2"),
            (
                "gpu[01-03/2]:2\nr[1-2]n[1-2],head",
                "ana@gpu01=2 ana@gpu03=2 ana@r1n1=- ana@r1n2=- ana@r2n1=- ana@r2n2=- ana@head=-",
            ),
            ("n1\nn1\nn2\nN1", "ana@n1=3 ana@n2=-"),
            ("n1 slots=4\nn1:2", "ana@n1=6"),
            ("fd00::1 slots=4\n[fd00::2]:4", "ana@fd00::1=4 ana@fd00::2=4"),
            ("", ""),
            ("n1\nn2 slots=x", "2: expected 1 to 1024 slots, found \"x\""),
            ("n1:2222", "1: expected 1 to 1024 slots, found \"2222\""),
            ("n1 slots=0", "1: expected 1 to 1024 slots, found \"0\""),
            ("n1 slots=1000\nn1 slots=1000", "2: ana@n1 has more than 1024 slots, including the lines before"),
            ("\n\nn1 n2", "3: expected slots=N, max_slots=N or user=NAME after the host, found \"n2\""),
            ("-oProxyCommand=x", "1: -oProxyCommand=x: expected a host as for ssh: an alias, a name or an address"),
            ("n[1-", "1: n[1-: a bracket is not closed"),
            ("n[1-9999]\nm[1-9999]", "2: more than 10000 machines"),
            ("#include other", "1: other files are not included; name one file with all hosts"),
        ] {
            assert_eq!(read(text), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn anything_is_read_or_refused(text in "(([a-c1\\[\\]:@#=, -]|slots|\n){0,12}|.{0,20})") {
            let _ = parse(&text, None);
        }
    }
}
