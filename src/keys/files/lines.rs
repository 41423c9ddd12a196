//! The lines of `authorized_keys` and `known_hosts`: which are ours, and how ours are written without touching others'.
//!
//! A line is ours when it ends with a key and our tag as its comment. Other lines, including a comment that mentions
//! the tag, stay byte for byte and in their order.

use crate::text::public_key::bare;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// The comment by which a cluster's lines are known.
pub fn tag(cluster: &str) -> String {
    format!("hvdctl:{cluster}")
}

/// Characters that separate fields for OpenSSH; other white space belongs to a field.
const BLANK: [char; 2] = [' ', '\t'];

/// The key of a line that is this cluster's, as `TYPE BASE64`; `None` for a line of others.
pub fn our_key(line: &str, cluster: &str) -> Option<String> {
    let words: Vec<&str> =
        line.trim_end_matches([' ', '\t', '\r']).split(BLANK).filter(|word| !word.is_empty()).collect();
    let [front @ .., kind, key, comment] = &words[..] else { return None };
    let key_like = [kind, key].iter().all(|word| word.bytes().all(|b| b.is_ascii_graphic()))
        && ["ssh-", "ecdsa-", "sk-"].iter().any(|start| kind.starts_with(start));
    // comments, and the markers of known_hosts, which hvdctl never writes
    let is_comment = words[0].starts_with(['#', '@']);
    // with more than one field before it, the text is part of another key's comment
    (*comment == tag(cluster) && key_like && !is_comment && at_most_a_field(front)).then(|| format!("{kind} {key}"))
}

/// Returns true if these words are nothing or one field as sshd(8) has it: options, in which blanks are in double
/// quotes, or names.
fn at_most_a_field(words: &[&str]) -> bool {
    let text = words.join(" ").replace("\\\"", "");
    let pieces: Vec<&str> = text.split('"').collect();
    // every second piece is quoted, and the last one is not
    pieces.len() % 2 == 1 && pieces.iter().step_by(2).all(|piece| !piece.contains(' '))
}

/// The comment of the host key that hvdctl generates for a node's worker.
pub fn host_key_comment(node: &str, cluster: &str) -> String {
    format!("{node} {}", tag(cluster))
}

/// Returns whether a public host key has the comment that hvdctl writes for this cluster, whatever the node was called
/// then.
pub fn is_our_host_key(public: &str, cluster: &str) -> bool {
    let words: Vec<&str> = public.split_whitespace().collect();
    let [kind, key, _node, comment] = words[..] else { return false };
    our_key(&[kind, key, comment].join(" "), cluster).is_some()
}

/// The cluster that a public key's line is tagged for.
pub fn owner(public: &str) -> Option<&str> {
    public.split_whitespace().next_back()?.strip_prefix("hvdctl:")
}

/// The line that authorizes a key. `restrict` (OpenSSH 7.2, sshd(8)) disables forwarding, ptys and rc files: a launcher
/// needs none of them. With `from` the key is accepted from these addresses only.
fn authorized_line(cluster: &str, key: &str, from: &BTreeSet<IpAddr>) -> String {
    let addresses: Vec<String> = from.iter().map(ToString::to_string).collect();
    let from = if from.is_empty() { String::new() } else { format!(",from=\"{}\"", addresses.join(",")) };
    format!("restrict{from} {} {}", bare(key), tag(cluster))
}

/// `authorized_keys` with a line of ours for each of these keys and no other; `keep_further`: further keys of ours
/// stay, too.
pub fn merge_authorized(
    existing: &str,
    keys: &[String],
    keep_further: bool,
    cluster: &str,
    from: &BTreeSet<IpAddr>,
) -> String {
    let mut all: BTreeSet<String> = keys.iter().map(|key| bare(key)).collect();
    if keep_further {
        all.extend(authorized(existing, cluster));
    }
    with_ours(existing, cluster, &all.iter().map(|key| authorized_line(cluster, key, from)).collect())
}

/// Returns a text in which our lines are exactly these. If they are, in whatever order, it stays as it is; else they
/// are written behind the lines of others.
fn with_ours(existing: &str, cluster: &str, ours: &BTreeSet<String>) -> String {
    let (there, others): (Vec<&str>, Vec<&str>) = lines_of(existing).partition(|line| our_key(line, cluster).is_some());
    if there.len() == ours.len() && ours.iter().all(|line| there.contains(&line.as_str())) {
        return existing.to_owned();
    }
    others.into_iter().chain(ours.iter().map(String::as_str)).flat_map(|line| [line, "\n"]).collect()
}

/// Returns `authorized_keys` or `known_hosts` without the lines of this cluster.
pub fn without_ours(existing: &str, cluster: &str) -> String {
    with_ours(existing, cluster, &BTreeSet::new())
}

/// The keys of this cluster in a text of `authorized_keys`, as `TYPE BASE64`.
pub fn authorized(text: &str, cluster: &str) -> Vec<String> {
    lines_of(text).filter_map(|line| our_key(line, cluster)).collect()
}

/// A line of `known_hosts` for a worker.
pub fn known_hosts_line(cluster: &str, names: &[String], host_key: &str) -> String {
    format!("{} {} {}", names.join(","), bare(host_key), tag(cluster))
}

/// The names of a worker in `known_hosts` form (`[10.0.0.1]:12345`; plain for port 22, sshd(8)), each once. The first
/// is the node's own, which identifies the line. A machine chooses its own host name: what is not a name, like a
/// pattern that would match every host, is left out.
pub fn known_hosts_names(names: &[&str], addresses: &[IpAddr], port: u16) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    let texts = names.iter().map(|name| (*name).to_owned()).chain(addresses.iter().map(ToString::to_string));
    let plain = |name: &String| !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || "_.:%-".contains(c));
    for name in texts.filter(plain) {
        let name = if port == 22 { name } else { format!("[{name}]:{port}") };
        if !all.contains(&name) {
            all.push(name);
        }
    }
    all
}

/// The names of each line of this cluster in a text of `known_hosts`.
pub fn pinned_names<'t>(text: &'t str, cluster: &str) -> impl Iterator<Item = Vec<&'t str>> {
    lines_of(text).filter_map(|line| names_in(line, cluster))
}

fn names_in<'t>(line: &'t str, cluster: &str) -> Option<Vec<&'t str>> {
    our_key(line, cluster)?;
    Some(line.trim_start_matches(BLANK).split(BLANK).next()?.split(',').collect())
}

/// `10.0.0.1` or `[10.0.0.1]:12345` as an address; `None` for a host name.
pub fn address_of(name: &str) -> Option<IpAddr> {
    let bare = name.strip_prefix('[').and_then(|rest| rest.split_once("]:")).map_or(name, |(host, _)| host);
    bare.parse().ok()
}

/// `known_hosts` with these lines of ours, one for each member. Ours about members that `wanted` does not name stay;
/// ours about nodes that have left the inventory go. `members`: the nodes' own names in `known_hosts` form; a line is
/// about the first member that it names.
pub fn merge_known_hosts(existing: &str, wanted: &[String], members: &BTreeSet<String>, cluster: &str) -> String {
    let mut ours: BTreeMap<&str, &str> = BTreeMap::new();
    for line in wanted.iter().map(String::as_str).chain(lines_of(existing)) {
        let member = names_in(line, cluster).and_then(|names| names.iter().find_map(|name| members.get(*name)));
        if let Some(member) = member {
            ours.entry(member).or_insert(line.trim_end());
        }
    }
    with_ours(existing, cluster, &ours.into_values().map(str::to_owned).collect())
}

/// Lines without their newlines; a carriage return belongs to the line.
fn lines_of(text: &str) -> impl Iterator<Item = &str> {
    text.split_terminator('\n')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn from(addresses: &[&str]) -> BTreeSet<IpAddr> {
        addresses.iter().map(|a| a.parse().unwrap()).collect()
    }

    #[test]
    fn only_a_key_with_our_tag_behind_it_is_ours() {
        let key = |line| our_key(line, "lab");
        assert_eq!(key("restrict,from=\"10.0.0.1\" ssh-rsa AAAA hvdctl:lab").as_deref(), Some("ssh-rsa AAAA"));
        assert_eq!(key("[a]:1 ssh-ed25519 BBBB hvdctl:lab\r").as_deref(), Some("ssh-ed25519 BBBB"));
        // an option was added to the line: it is still ours, and is removed with the key
        let edited = r#"from="a",command="say \"a b\" c" ssh-rsa AAAA hvdctl:lab"#;
        assert_eq!(key(edited).as_deref(), Some("ssh-rsa AAAA"));
        for foreign in [
            "# ssh-rsa AAAA hvdctl:lab",
            "# ask ana about hvdctl:lab",
            "@revoked * ssh-rsa AAAA hvdctl:lab",
            "ssh-rsa AAAA ana hvdctl:lab",
            "ssh-rsa AAAA hvdctl:lab2",
            "ssh-rsa AAAA hvdctl:lab and more",
            "ssh-rsa FRIEND copy of ssh-rsa AAAA hvdctl:lab",
            "ssh-rsa FRIEND\u{a0}hvdctl:lab",
            "ssh-rsa AA\rAA hvdctl:lab",
            "hvdctl:lab",
            "",
        ] {
            assert_eq!(key(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn keys_are_written_behind_others_lines_and_gone_ones_go() {
        let there = "# mine\nssh-rsa OLD hvdctl:lab\nssh-ed25519 FRIEND ana\r\nssh-rsa NEW hvdctl:lab";
        let addresses = from(&["10.0.0.2", "10.0.0.1", "fd00::1"]);
        let new = ["ssh-rsa NEW hvdctl:lab".to_owned()];
        assert_eq!(
            merge_authorized(there, &new, false, "lab", &addresses),
            "# mine\nssh-ed25519 FRIEND ana\r\nrestrict,from=\"10.0.0.1,10.0.0.2,fd00::1\" ssh-rsa NEW hvdctl:lab\n"
        );
        let both =
            "# mine\nssh-ed25519 FRIEND ana\r\nrestrict ssh-rsa NEW hvdctl:lab\nrestrict ssh-rsa OLD hvdctl:lab\n";
        assert_eq!(merge_authorized(there, &new, true, "lab", &BTreeSet::new()), both);
        // right lines may stand in any place
        let elsewhere =
            "restrict ssh-rsa OLD hvdctl:lab\n# mine\nrestrict ssh-rsa NEW hvdctl:lab\nssh-ed25519 FRIEND ana";
        assert_eq!(merge_authorized(elsewhere, &new, true, "lab", &BTreeSet::new()), elsewhere);
        let twice = ["restrict ssh-rsa OLD hvdctl:lab\n"; 2].concat();
        let once = "restrict ssh-rsa NEW hvdctl:lab\nrestrict ssh-rsa OLD hvdctl:lab\n";
        assert_eq!(merge_authorized(&twice, &new, true, "lab", &BTreeSet::new()), once);
    }

    #[test]
    fn pins_of_members_that_are_not_at_hand_stay() {
        let members: BTreeSet<String> = ["[a]:1", "[b]:1"].map(str::to_owned).into();
        let there = "[gone]:1 ssh-rsa X hvdctl:lab\n[b]:1,[10.0.0.9]:1 ssh-rsa B hvdctl:lab\ngit ssh-rsa G\n\
                     [a]:1,[10.0.0.9]:1 ssh-rsa OLD hvdctl:lab\n[b]:1 ssh-rsa B2 hvdctl:lab\n";
        let wanted = ["[a]:1,[10.0.0.9]:1 ssh-rsa A hvdctl:lab".to_owned()];
        let merged = merge_known_hosts(there, &wanted, &members, "lab");
        assert_eq!(
            merged, "git ssh-rsa G\n[a]:1,[10.0.0.9]:1 ssh-rsa A hvdctl:lab\n[b]:1,[10.0.0.9]:1 ssh-rsa B hvdctl:lab\n",
            "two nodes behind one address have a line each"
        );
        let pins: Vec<_> = pinned_names(&merged, "lab").collect();
        assert_eq!(pins[0].iter().filter_map(|name| address_of(name)).collect::<BTreeSet<_>>(), from(&["10.0.0.9"]));
        assert_eq!(pins.len(), 2);
    }

    #[test]
    fn names_become_addresses_and_back() {
        let addresses = ["10.0.0.1", "fd00::1"].map(|a| a.parse().unwrap());
        let names = known_hosts_names(&["node1", "10.0.0.1", "node1", ""], &addresses, 12345);
        assert_eq!(names, ["[node1]:12345", "[10.0.0.1]:12345", "[fd00::1]:12345"]);
        assert_eq!(names.iter().filter_map(|name| address_of(name)).collect::<Vec<_>>(), addresses);
        assert_eq!(known_hosts_names(&["node1"], &addresses, 22), ["node1", "10.0.0.1", "fd00::1"]);
        assert_eq!(address_of("fd00::1"), "fd00::1".parse().ok());
        for hostile in ["*", "a,b", "x]:1,*,[y", "a ssh-rsa EVIL", "!a", "a?"] {
            assert_eq!(known_hosts_names(&["node1", hostile], &[], 12345), ["[node1]:12345"], "{hostile}");
        }
    }

    /// Lines as they may lie in such a file, ours, others', and what looks like either.
    fn text() -> impl Strategy<Value = String> {
        let line = prop_oneof![
            "[ -~]{0,30}",
            Just(String::new()),
            "(|restrict |restrict,from=\"10.0.0.[0-9]\" |no-pty )ssh-(rsa|ed25519) [AB]{1,2} \
             (hvdctl:lab|hvdctl:lab2|ana|)",
            "\\[?[a-c](\\]:1)?(,\\[10.0.0.[0-9]\\]:1)? ssh-(rsa|ed25519) [AB]{1,2} hvdctl:lab",
            "[#@] ?[a-z]{0,5} ssh-rsa A hvdctl:lab",
        ];
        let end = prop_oneof![Just("\n"), Just("\r\n"), Just("\n\n")];
        (prop::collection::vec((line, end), 0..12), any::<bool>()).prop_map(|(lines, cut)| {
            let text: String = lines.iter().map(|(line, end)| format!("{line}{end}")).collect();
            if cut { text.trim_end_matches('\n').to_owned() } else { text }
        })
    }

    fn foreign(text: &str) -> Vec<&str> {
        text.split_terminator('\n').filter(|line| our_key(line, "lab").is_none()).collect()
    }

    proptest! {
        #[test]
        fn authorized_keys_of_others_never_change(
            text in text(),
            keys in prop::collection::vec("ssh-(rsa|ed25519) [AB]{1,2}( hvdctl:lab)?", 0..3),
            keep in any::<bool>(),
            last in prop::collection::btree_set(0u8..9, 0..3),
        ) {
            let from: BTreeSet<IpAddr> = last.iter().map(|n| IpAddr::from([10, 0, 0, *n])).collect();
            let merged = merge_authorized(&text, &keys, keep, "lab", &from);
            prop_assert_eq!(foreign(&merged), foreign(&text));
            prop_assert_eq!(&merge_authorized(&merged, &keys, keep, "lab", &from), &merged);
            let after = authorized(&merged, "lab");
            prop_assert_eq!(after.iter().collect::<BTreeSet<_>>().len(), after.len(), "a key twice");
            let wanted: BTreeSet<String> = keys.iter().map(|k| bare(k)).collect();
            prop_assert!(wanted.iter().all(|key| after.contains(key)));
            let before = authorized(&text, "lab");
            prop_assert!(after.iter().all(|key| wanted.contains(key) || keep && before.contains(key)));
            prop_assert!(!keep || before.iter().all(|key| after.contains(key)));
            let without = without_ours(&text, "lab");
            prop_assert_eq!(foreign(&without), foreign(&text));
            prop_assert_eq!(authorized(&without, "lab"), [""; 0]);
        }

        #[test]
        fn known_hosts_of_others_never_change(
            text in text(),
            about in prop::collection::btree_map("[a-c]", "ssh-ed25519 [AB]", 0..3),
        ) {
            let members: BTreeSet<String> = ["[a]:1", "[b]:1"].map(str::to_owned).into();
            let wanted: Vec<String> = about
                .iter()
                .map(|(name, key)| known_hosts_line("lab", &known_hosts_names(&[name], &["10.0.0.1".parse().unwrap()], 1), key))
                .collect();
            let merged = merge_known_hosts(&text, &wanted, &members, "lab");
            prop_assert_eq!(foreign(&merged), foreign(&text));
            prop_assert_eq!(&merge_known_hosts(&merged, &wanted, &members, "lab"), &merged);
            let member = |names: Vec<&str>| names.iter().find_map(|name| members.get(*name));
            let after: Vec<&String> = pinned_names(&merged, "lab").filter_map(member).collect();
            prop_assert_eq!(after.len(), pinned_names(&merged, "lab").count(), "a line without a name");
            prop_assert_eq!(after.iter().collect::<BTreeSet<_>>().len(), after.len(), "a member twice");
            for line in wanted.iter().filter(|line| !line.starts_with("[c]")) {
                prop_assert!(merged.lines().any(|l| l == line));
            }
        }

        #[test]
        fn no_text_is_too_strange(text in any::<String>()) {
            let merged = merge_authorized(&text, &["ssh-rsa A".to_owned()], false, "lab", &BTreeSet::new());
            prop_assert_eq!(foreign(&merged), foreign(&text));
            let members = BTreeSet::from(["a".to_owned()]);
            let known = merge_known_hosts(&text, &[], &members, "lab");
            prop_assert_eq!(foreign(&known), foreign(&text));
            prop_assert!(pinned_names(&text, "lab").all(|names| !names.is_empty()));
        }
    }
}
