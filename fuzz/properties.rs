//! Properties of every text from outside: files, the command line, and reports of nodes.
//!
//! Each property takes bytes and panics if it does not hold. The fuzz targets search for such bytes; `tests/corpus.rs`
//! replays the inputs that they have kept. The rule for lines of other owners is reimplemented here, after OpenSSH, and
//! not taken from the code under test.

use hvdctl::cluster::target::Target;
use hvdctl::gpus::health::MachineHealth;
use hvdctl::gpus::health::report::NodeHealth;
use hvdctl::inventory::{Inventory, Node, env_lines as read_env, names};
use hvdctl::keys::files::{self, Desired, Keys, Pair};
use hvdctl::node::facts::Facts;
use hvdctl::pool::format::PoolNode;
use hvdctl::pool::signers::AllowedSigners;
use hvdctl::pool::verification::{FileState, PoolFile, Verifier};
use hvdctl::record::frames::Parser;
use hvdctl::text::{nodeset, quote};
use hvdctl::transport::access::Login;
use hvdctl::transport::host_key;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;

/// A property of any bytes; it panics if it does not hold.
pub type Property = fn(&[u8]);

/// Every property under the name of its target and of its directory of kept inputs.
pub const TARGETS: [(&str, Property); 13] = [
    ("access", access),
    ("authorized_keys", authorized_keys),
    ("env_lines", env_lines),
    ("facts", facts),
    ("frames", frames),
    ("health", health),
    ("hostkey", hostkey),
    ("inventory", inventory),
    ("inventory_values", inventory_values),
    ("known_hosts", known_hosts),
    ("on", on),
    ("pool", pool),
    ("quote", quote),
];

/// The cluster of all properties.
const CLUSTER: &str = "lab";
/// The comment of its lines.
const TAG: &str = "hvdctl:lab";

/// A file's text. It is an inventory with one master and unique names, or it is refused with a message that is
/// safe on any terminal.
pub fn inventory(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    judged(&text);
}

/// The text of an env file. What is read is the same from a file with each value in single quotes, or a fault names a
/// line and is safe on any terminal.
pub fn env_lines(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match read_env(&text) {
        Ok(variables) => {
            let quoted = |value: &str| value.replace('\\', "\\\\").replace('\'', "\\'");
            let line =
                |(name, value): (&String, &hvdctl::secret::Secret)| format!("{name}='{}'\n", quoted(value.expose()));
            let again: String = variables.iter().map(line).collect();
            // quotes and escapes may make it longer than a file may be, and a line end of Windows in it becomes one of
            // Linux
            if again.len() <= 64 << 10 && !again.contains("\r\n") {
                assert_eq!(read_env(&again), Ok(variables), "{again:?}");
            }
        }
        Err(faults) => {
            let lines = text.split('\n').count();
            for fault in faults {
                let line = fault.strip_prefix("line ").and_then(|rest| rest.split(':').next()?.parse().ok());
                assert!(line.is_some_and(|line| (1..=lines).contains(&line)) || text.len() > 64 << 10, "{fault}");
                assert!(fault.len() < 2000 && !fault.contains(char::is_control), "{fault:?}");
            }
        }
    }
}

/// One value in one field: the first line is the field, the rest the value. An accepted value is kept as it was
/// written, and contains nothing that a program would read as an option.
pub fn inventory_values(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (field, value) = text.split_once('\n').unwrap_or((&text, ""));
    let line = |known: &[&str], name: &str, otherwise: &str| match known.contains(&name) {
        true if Some(name) == field.split('.').nth(1) => format!("{name} = {}\n", toml::Value::String(value.into())),
        _ => otherwise.to_owned(),
    };
    let (table, name) = field.split_once('.').unwrap_or_default();
    let document = match table {
        "cluster" => {
            let start = if name == "name" { "" } else { "name = 'lab'\n" };
            format!("[cluster]\n{start}{}[[node]]\nhost = 'a'\n", line(&names("cluster"), name, ""))
        }
        "node" => {
            let start = if name == "host" { "" } else { "host = 'a'\n" };
            format!("[cluster]\nname = 'lab'\n[[node]]\n{start}{}", line(&names("node"), name, ""))
        }
        _ => return,
    };
    let Some(inventory) = judged(&document) else { return };
    let json = serde_json::to_value(&inventory).expect("an inventory is JSON");
    let there = if table == "cluster" { &json["cluster"][name] } else { &json["nodes"][0][name] };
    // of a range the first is there
    let range = matches!(name, "host" | "name") && value.contains('[');
    let path = matches!(name, "identity" | "ssh_config" | "env_file");
    if !path
        && !matches!(name, "shm_size" | "address")
        && !range
        && let Some(there) = there.as_str()
    {
        let known = names(if table == "cluster" { "cluster" } else { "node" });
        assert!(!known.contains(&name) || there == value, "{field}: {value:?} was read as {there:?}");
    }
    if let Some(there) = there.as_str() {
        // a path starts from the inventory's directory, which has no name here, and is only ever an option's value
        assert!((path || !there.starts_with('-')) && !there.contains(char::is_control), "{field}: {there:?}");
        let spaces = path || name.ends_with("_dir");
        assert!(spaces || !there.contains(char::is_whitespace), "{field}: {there:?}");
    }
}

/// Returns a consistent inventory, or `None` if the text was refused properly.
fn judged(text: &str) -> Option<Inventory> {
    match Inventory::parse(text, Path::new("inventory.toml")) {
        Ok(inventory) => {
            let names: BTreeSet<&str> = inventory.nodes.iter().map(|node| &node.name[..]).collect();
            assert!(!names.is_empty() && names.len() == inventory.nodes.len(), "names: {names:?}");
            assert_eq!(inventory.nodes.iter().filter(|node| node.master).count(), 1, "masters");
            let all: Vec<String> = inventory.nodes.iter().map(|node| node.name.clone()).collect();
            assert_eq!(
                nodeset::select(&nodeset::fold(&all), &all, &nodeset::Groups::new()),
                Ok(all),
                "its nodes can be named"
            );
            Some(inventory)
        }
        Err(faults) => {
            assert!(!faults.faults.is_empty());
            let shown = faults.to_string();
            assert!(!shown.contains(|c: char| c.is_control() && c != '\n'), "{shown:?}");
            let lines = text.split('\n').count();
            assert!(
                faults.faults.iter().all(|fault| (1..=lines).contains(&fault.line) && fault.column >= 1),
                "{shown}"
            );
            None
        }
    }
}

/// The document of `nvidia-smi`, alone and in the report of a node, and the rest of that report. A document that is
/// refused has a reason, and one that is read says the same in a report. What it says is short, and safe on any
/// terminal.
pub fn health(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let read = MachineHealth::read(&text);
    if let Err(reason) = &read {
        assert!(!reason.is_empty());
    }
    let report: String = text.split_terminator('\n').map(|line| format!("xml {line}\n")).collect();
    let reported = NodeHealth::parse(&format!("{report}xml exit 0\n"));
    assert_eq!(read.is_ok(), reported.machine().is_some(), "{reported:?}");
    let reported = NodeHealth::parse(&text);
    let texts = reported.xids.iter().flat_map(|xid| [&xid.bus, &xid.text]).chain(&reported.unlisted);
    let of_gpus = read
        .iter()
        .flat_map(|machine| &machine.gpus)
        .flat_map(|gpu| gpu.processes.iter().map(|process| &process.program).chain(&gpu.failures));
    for text in texts.chain(of_gpus) {
        assert!(text.chars().count() <= 400 && !text.contains(char::is_control), "{text:?}");
    }
}

/// `authorized_keys`. The first line has `from=`'s addresses and maybe the word `keep`, the second the keys to let in,
/// separated by `;`, the rest is the file as it was.
pub fn authorized_keys(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (head, keys, there) = three(&text);
    let keep = head.split(' ').any(|word| word == "keep");
    let from: BTreeSet<IpAddr> = head.split(' ').filter_map(|word| word.parse().ok()).collect();
    let keys: Vec<(String, &str)> = keys.split(';').filter_map(|key| Some((plain_key(key)?, key))).collect();
    let wanted: BTreeSet<&String> = keys.iter().map(|(key, _)| key).collect();
    let texts: Vec<String> = keys.iter().map(|(_, text)| (*text).to_owned()).collect();

    let merged = files::merge_authorized(there, &texts, keep, CLUSTER, &from);
    assert_eq!(files::merge_authorized(&merged, &texts, keep, CLUSTER, &from), merged, "a second time changes it");
    assert_eq!(others(&merged), others(there), "others' lines");
    let ours = ours(&merged);
    let once: BTreeSet<&String> = ours.iter().collect();
    assert_eq!(once.len(), ours.len(), "a key twice: {merged:?}");
    assert!(wanted.iter().all(|key| once.contains(key)), "a key is missing: {merged:?}");
    assert!(keep || ours.iter().all(|key| wanted.contains(key)), "a key too many: {merged:?}");
    assert_eq!(files::authorized(&merged, CLUSTER), ours);
}

/// `known_hosts`. The first line has the members' names, the second the lines of ours to be written, each `NAME BASE64
/// ADDRESS HOSTNAME`, separated by `;`, the rest is the file as it was. The host name is reported by the node and may
/// be anything.
pub fn known_hosts(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (members, wanted, there) = three(&text);
    let own_name = |name: &str| files::known_hosts_names(&[name], &[], 12345);
    let members: BTreeSet<String> = node_names(members).iter().flat_map(|name| own_name(name)).collect();
    let wanted: Vec<String> = wanted
        .split(';')
        .filter_map(|entry| {
            let mut words = entry.splitn(4, ' ');
            let name = words.next().filter(|name| is_node_name(name))?;
            let key = plain_key(&format!("ssh-ed25519 {}", words.next()?))?;
            let addresses: Vec<IpAddr> = words.next().and_then(|word| word.parse().ok()).into_iter().collect();
            let names = files::known_hosts_names(&[name, words.next().unwrap_or_default()], &addresses, 12345);
            assert!(names.first() == own_name(name).first() && names.len() <= 3, "{names:?}");
            let line = files::known_hosts_line(CLUSTER, &names, &key);
            assert_eq!(ours(&line), [key], "{line:?}");
            names_are_plain(&line);
            Some(line)
        })
        .collect();

    let merged = files::merge_known_hosts(there, &wanted, &members, CLUSTER);
    assert_eq!(files::merge_known_hosts(&merged, &wanted, &members, CLUSTER), merged, "a second time changes it");
    assert_eq!(others(&merged), others(there), "others' lines");
    let about = |line: &str| names_of(line).find(|name| members.contains(name));
    let ours: Vec<&str> = merged.split_terminator('\n').filter(|line| our_key(line).is_some()).collect();
    let once: BTreeSet<String> = ours.iter().map(|line| about(line).expect("a line about nobody")).collect();
    assert_eq!(once.len(), ours.len(), "a member twice: {merged:?}");
    for member in &members {
        let first = wanted.iter().find(|line| about(line).as_ref() == Some(member));
        assert!(first.is_none_or(|line| ours.contains(&&line[..])), "{member} is missing: {merged:?}");
    }
    assert_eq!(files::pinned_names(&merged, CLUSTER).count(), self::ours(&merged).len());
}

/// Texts about host keys: the input as a known-hosts file and as ssh's message, and its lines as the parts of such a
/// message, which are parsed again.
pub fn hostkey(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for line in text.lines() {
        if let Some(seen) = host_key::contact(line) {
            assert!(seen.key.contains(" SHA256:") && !seen.name.is_empty(), "{seen:?}");
            assert!(!["#", "@", "|1|"].iter().any(|start| seen.name.starts_with(start)), "{seen:?}");
        }
    }
    assert!(files::pinned_names(&text, CLUSTER).all(|names| !names.is_empty()));
    if let Some(changed) = host_key::changed(&text) {
        assert!(text.contains(&changed.file) && text.contains(&changed.name), "{changed:?}");
    }

    let mut lines = text.lines().chain(std::iter::repeat(""));
    let mut next = || lines.next().unwrap_or_default();
    let (name, kind, fingerprint, file) = (next(), next(), next(), next());
    let first = host_key::first_file(file, name);
    assert!(first.is_none_or(|first| file.starts_with(&first)));
    let word = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_graphic());
    if [name, kind, fingerprint].iter().all(|part| word(part)) && file.starts_with('/') {
        let number = data.len();
        let message = format!(
            "WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!\r\n\
             The fingerprint for the {kind} key sent by the remote host is\nSHA256:{fingerprint}.\r\n\
             Offending {kind} key in {file}:{number}\r\nHost key for {name} has changed and you have requested strict checking.\r\n"
        );
        let changed = host_key::changed(&message).expect("a message");
        assert!(changed.name == name && changed.key.starts_with(&format!("{kind} SHA256:")), "{changed:?}");
        assert_eq!((&changed.file[..], changed.line), (file, number));
    }
}

/// `--on`: the first line has the nodes' names, the second the expression.
pub fn on(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (words, expression) = text.split_once('\n').unwrap_or((&text, ""));
    let any: Vec<String> = words.split(' ').map(str::to_owned).collect();
    let _ = nodeset::fold(&any);
    let all = node_names(words);
    let mut inventory = Inventory::local("node1", "image");
    inventory.nodes = all.iter().map(|name| Node { name: name.clone(), ..Node::default() }).collect();
    match Target::new(inventory, Some(expression)) {
        Ok(Target { selected: chosen, .. }) => {
            let mut rest = all.iter();
            assert!(chosen.iter().all(|name| rest.any(|other| other == name)), "{chosen:?} of {all:?}");
            assert_eq!(nodeset::select(&nodeset::fold(&chosen), &all, &nodeset::Groups::new()), Ok(chosen), "folded");
        }
        Err(error) => {
            let message = error.to_string().replacen("\n  hint: ", " ", 1);
            assert!(message.starts_with("--on ") && !message.contains(char::is_control), "{message:?}");
        }
    }
    if !all.is_empty() {
        assert_eq!(nodeset::select(&nodeset::fold(&all), &all, &nodeset::Groups::new()).as_ref(), Ok(&all), "folded");
    }
}

/// A value is the same after a shell has read it, except for NUL.
pub fn quote(data: &[u8]) {
    let value = String::from_utf8_lossy(data);
    let (line, readable) = (quote::assign("value", &value), quote::readable(&value));
    let value = value.replace('\0', "");
    let quoted = line.strip_prefix("value=").and_then(|rest| rest.strip_suffix('\n')).expect("an assignment");
    assert_eq!(shell_word(quoted).as_ref(), Some(&value), "{}", *line);
    assert_eq!(shell_word(&readable).as_ref(), Some(&value), "{readable}");
}

/// A node's facts. The files that they yield for the cluster contain only its key under plain names, and yielding them
/// twice changes nothing.
pub fn facts(data: &[u8]) {
    let mut facts = Facts::parse(&String::from_utf8_lossy(data));
    assert!(facts.keys.files.values().all(|file| file.text.is_empty() || file.text.ends_with('\n')));
    let mut inventory = Inventory::local("node1", "image");
    inventory.cluster.name = CLUSTER.into();
    inventory.nodes.push(Node { name: "node2".into(), host: "node2".into(), ..Node::default() });
    let keys = Keys::only(Pair { name: "id_ed25519", public: "ssh-ed25519 AAAAC3Nz hvdctl:lab".into(), private: None });
    let seen = facts.clone();
    let host_key = Pair { name: "ssh_host_ed25519_key", public: "ssh-ed25519 HOST x".into(), private: None };
    let new = files::public_host_key(&seen).is_none().then(|| ("node1".to_owned(), host_key));
    let desired = Desired::new(&inventory, &[(&inventory.nodes[0], &seen)], keys, new.into_iter().collect());
    let (known, let_in) = (desired.known_hosts(&facts), desired.authorized_keys(&facts));
    let there = facts.keys.files.get(files::KNOWN_HOSTS).map(|file| &file.text[..]).unwrap_or_default();
    known.lines().filter(|line| our_key(line).is_some() && !there.contains(line)).for_each(names_are_plain);
    assert_eq!(ours(&let_in), ["ssh-ed25519 AAAAC3Nz"]);
    for (name, text) in [(files::KNOWN_HOSTS, &known), (files::AUTHORIZED_KEYS, &let_in)] {
        let there = facts.keys.files.get(name).map(|file| file.text.clone()).unwrap_or_default();
        assert_eq!(others(text), others(&there), "others' lines");
        facts.keys.files.entry(name.to_owned()).or_default().text = text.clone();
    }
    assert_eq!((desired.known_hosts(&facts), desired.authorized_keys(&facts)), (known, let_in));
    let _ = desired.changes(&inventory.nodes[1], &facts);
    let _ = files::report(&inventory, &[(&inventory.nodes[0], &facts)]);
}

/// What a node reports about its login: there is always a method, or a message why not.
pub fn access(data: &[u8]) {
    let login = Login::parse(&String::from_utf8_lossy(data));
    for has_password in [false, true] {
        match login.root_method(has_password) {
            Ok(root) => assert!(!format!("{:?}", login.engine(root)).contains('\n')),
            Err(message) => assert!(!message.contains('\n')),
        }
    }
}

/// A log: the first byte is the size of the pieces in which the rest comes. However it is cut, the frames are the same.
pub fn frames(data: &[u8]) {
    let Some((size, log)) = data.split_first() else { return };
    let whole = Parser::default().push(log);
    let mut parser = Parser::default();
    let pieces: Vec<_> = log.chunks(usize::from(*size).max(1)).flat_map(|piece| parser.push(piece)).collect();
    assert_eq!(format!("{whole:?}"), format!("{pieces:?}"));
    assert!(whole.len() <= log.iter().filter(|byte| **byte == b'\n').count());
}

/// The first line, the second, and the rest.
fn three(text: &str) -> (&str, &str, &str) {
    let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
    let (second, rest) = rest.split_once('\n').unwrap_or((rest, ""));
    (first, second, rest)
}

/// Whether this may be the name of a node in an inventory.
fn is_node_name(name: &str) -> bool {
    let good = |c: char| c.is_alphanumeric() || "_.:%-".contains(c);
    (1..=253).contains(&name.chars().count()) && !name.starts_with(['-', '.']) && name.chars().all(good)
}

/// The parts of a line that may be nodes' names, each once and no more than a small cluster has.
fn node_names(line: &str) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for name in line.split(' ').filter(|name| is_node_name(name)).take(64) {
        if !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    }
    names
}

/// Only a space and a tab separate words for OpenSSH.
const BLANK: [char; 2] = [' ', '\t'];

/// Key and comment of `TYPE BASE64 [COMMENT]`.
fn key_and_comment(text: &str) -> Option<(String, &str)> {
    let text = text.trim_start_matches(BLANK);
    let (kind, rest) = text.split_once(BLANK)?;
    let rest = rest.trim_start_matches(BLANK);
    let (key, comment) = rest.split_once(BLANK).unwrap_or((rest, ""));
    let known = ["ssh-", "ecdsa-", "sk-"].iter().any(|start| kind.starts_with(start));
    let comment = comment.trim_start_matches(BLANK).trim_end_matches([' ', '\t', '\r']);
    // anything else in them is no algorithm's name and no base64, and authorizes no key
    let words = !key.is_empty() && [kind, key].iter().all(|word| word.chars().all(|c| c.is_ascii_graphic()));
    (known && words).then(|| (format!("{kind} {key}"), comment))
}

/// The rest of a line after its first field, in which blanks may be in quotes (auth2-pubkeyfile.c).
fn behind_field(line: &str) -> Option<&str> {
    let mut quoted = false;
    let mut chars = line.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' if chars.peek().is_some_and(|(_, next)| *next == '"') => drop(chars.next()),
            '"' => quoted = !quoted,
            ' ' | '\t' if !quoted => return Some(&line[at..]),
            _ => {}
        }
    }
    None
}

/// The key of a line that carries our tag as OpenSSH would read it: `[OPTIONS or NAMES] TYPE BASE64 TAG`.
fn our_key(line: &str) -> Option<String> {
    let line = line.trim_start_matches(BLANK);
    if line.starts_with(['#', '@']) {
        return None;
    }
    let readings = [key_and_comment(line), behind_field(line).and_then(key_and_comment)];
    readings.into_iter().flatten().find(|(_, comment)| *comment == TAG).map(|(key, _)| key)
}

/// A public key without its comment, if it is one that may be pushed.
fn plain_key(text: &str) -> Option<String> {
    let (key, _) = key_and_comment(text)?;
    let base64 = |c: char| c.is_ascii_alphanumeric() || "+/=".contains(c);
    let (kind, data) = key.split_once(' ')?;
    (data.chars().all(base64) && kind.chars().all(|c| c.is_ascii_alphanumeric() || "@.-".contains(c))).then_some(key)
}

/// The keys of our lines.
fn ours(text: &str) -> Vec<String> {
    text.split_terminator('\n').filter_map(our_key).collect()
}

/// The lines of others, in order.
fn others(text: &str) -> Vec<&str> {
    text.split_terminator('\n').filter(|line| our_key(line).is_none()).collect()
}

/// The names of a line of `known_hosts`.
fn names_of(line: &str) -> impl Iterator<Item = String> {
    line.trim_start_matches(BLANK).split(BLANK).next().unwrap_or_default().split(',').map(str::to_owned)
}

/// A pin holds for names, and not for patterns or for what is no name at all.
fn names_are_plain(line: &str) {
    for name in names_of(line) {
        let inner = name.strip_prefix('[').and_then(|rest| rest.strip_suffix("]:12345")).unwrap_or_default();
        let good = |c: char| c.is_alphanumeric() || "_.:%-".contains(c);
        assert!(!inner.is_empty() && inner.chars().all(good), "{line:?}");
    }
}

/// The value of a word of single quotes, backslashes and characters without special meaning in a POSIX shell (XCU 2.2);
/// `None` if the shell might expand anything in it.
fn shell_word(word: &str) -> Option<String> {
    let mut value = String::new();
    let mut chars = word.chars();
    while let Some(c) = chars.next() {
        match c {
            '\'' => loop {
                match chars.next()? {
                    '\'' => break,
                    inside => value.push(inside),
                }
            },
            '\\' => value.push(chars.next().filter(|next| *next != '\n')?),
            c if c.is_ascii_alphanumeric() || "%+,-./:=@_".contains(c) => value.push(c),
            _ => return None,
        }
    }
    (!word.is_empty()).then_some(value)
}

/// The member of [`pool`], whose key has signed one of the kept inputs.
const MEMBERS: &str =
    "ana@example.com ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFoRmFPI+uxzCSWLG53JiR9ZRlB0c9aX+qeeKm5t6FHJ";

/// A file of a pool, and also a file of allowed signers. What is believed of a file is what its text says, with values
/// that are safe anywhere; what is shown of it is safe on a terminal.
pub fn pool(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let signers = AllowedSigners::parse(MEMBERS);
    assert!(signers.faults.is_empty());
    for name in ["a.node", "\u{1b}[2J.node"] {
        let file = PoolFile::judge(name, data, Verifier { signers: &signers, now: 1_000_600 });
        let is_plain = |text: &str| !text.contains(|c: char| c.is_control());
        assert!(is_plain(&file.name) && is_plain(&file.reason), "{file:?}");
        assert_ne!(file.state, FileState::Valid, "no file has this name");
        assert_eq!(file.node.is_some(), matches!(file.state, FileState::Stale | FileState::Misplaced), "{file:?}");
    }
    let signed = text.split("-----BEGIN SSH SIGNATURE-----").next().unwrap_or_default();
    if let Ok(node) = PoolNode::parse(signed) {
        assert_eq!(PoolNode::parse(&node.text().expect("it was accepted")), Ok(node.clone()));
        let name = node.file_name();
        assert!(
            name.len() < 255 && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"@._+-".contains(&byte)),
            "{name}"
        );
    }
    let signers = AllowedSigners::parse(&text);
    assert!(signers.faults.iter().all(|(line, why)| *line >= 1 && why.is_ascii()));
}
