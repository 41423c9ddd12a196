//! The logins from worker to worker: which pairs are tried, why one failed, and failures in few rows.

use crate::model::mesh::let_in;
use crate::text::failure::{self, Ssh};
use crate::text::nodeset;
use crate::text::units::count;
use regex::Regex;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

/// Up to this many nodes every ordered pair is tried.
const ALL_PAIRS: usize = 32;

/// Returns the nodes that node `from` of `n` logs in to: all others up to 32 nodes. Beyond that those 1, 2, 4, … places
/// after it, so that every node is source and target equally often, and some login crosses any partition of the
/// cluster.
pub fn targets(n: usize, from: usize) -> Vec<usize> {
    if n <= ALL_PAIRS {
        return (0..n).filter(|to| *to != from).collect();
    }
    let steps = std::iter::successors(Some(1), |step| Some(step * 2)).take_while(|step| *step < n);
    steps.map(|step| (from + step) % n).collect()
}

/// One login that was tried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct TriedLogin {
    /// The node it came from.
    pub from: String,
    /// The node it went to.
    pub to: String,
    /// The reason why it failed; null if it worked.
    pub reason: Option<String>,
}

/// A node that could not take part in the logins, because its worker is not running.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct AbsentNode {
    /// The node.
    pub node: String,
    /// The fault of its worker, and how to fix it.
    pub why: String,
}

/// The results of all logins.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Matrix {
    /// Nodes that were left out, each with the reason.
    pub absent: Vec<AbsentNode>,
    /// The logins among the others.
    pub pairs: Vec<TriedLogin>,
}

/// Failures with one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct FailedLogins {
    /// The nodes that they came from.
    pub from: Vec<String>,
    /// The nodes that they went to: every login from one of these nodes to another of those failed.
    pub to: Vec<String>,
    /// The reason.
    pub reason: String,
    /// The number of logins.
    pub pairs: usize,
}

impl Matrix {
    /// Returns true if every node could log in to every other one.
    pub fn is_good(&self) -> bool {
        self.absent.is_empty() && self.pairs.iter().all(|pair| pair.reason.is_none())
    }

    /// Returns the number of nodes that `node` reached, and of those that it tried.
    pub fn reached(&self, node: &str) -> (usize, usize) {
        let tried = || self.pairs.iter().filter(|pair| pair.from == node);
        (tried().filter(|pair| pair.reason.is_none()).count(), tried().count())
    }

    /// Returns the failures in few rows that name exactly the logins that failed.
    pub fn rows(&self) -> Vec<FailedLogins> {
        let mut by_reason: BTreeMap<&str, Vec<&TriedLogin>> = BTreeMap::new();
        for login in &self.pairs {
            login.reason.iter().for_each(|reason| by_reason.entry(reason).or_default().push(login));
        }
        let mut rows = Vec::new();
        for (reason, failed) in by_reason {
            rows.extend(self.blocks(&failed).into_iter().map(|(to, from)| FailedLogins {
                pairs: failed.iter().filter(|login| from.contains(&login.from) && to.contains(&login.to)).count(),
                from,
                to,
                reason: reason.to_owned(),
            }));
        }
        rows
    }

    /// Returns the targets and sources of failed logins: one block if every login from these sources to these targets
    /// failed, else a block for the sources that failed at the same targets.
    fn blocks(&self, failed: &[&TriedLogin]) -> Vec<(Vec<String>, Vec<String>)> {
        let from: BTreeSet<&String> = failed.iter().map(|pair| &pair.from).collect();
        let to: BTreeSet<&String> = failed.iter().map(|pair| &pair.to).collect();
        let tried = self.pairs.iter().filter(|pair| from.contains(&pair.from) && to.contains(&pair.to)).count();
        if tried == failed.len() {
            return vec![(to.into_iter().cloned().collect(), from.into_iter().cloned().collect())];
        }
        let by_source = nodeset::alike(failed.iter().map(|pair| (&pair.from, pair.to.clone())));
        nodeset::alike(by_source.into_iter().map(|(from, to)| (to, from.clone())))
    }

    /// Returns the faults as sentences, the absent nodes first.
    pub fn faults(&self) -> Vec<String> {
        let absent = self.absent.iter().map(|absent| format!("{}: {}", absent.node, absent.why));
        let sentence = |FailedLogins { from, to, reason, pairs }: FailedLogins| {
            format!("{} → {}: {reason} ({})", nodeset::fold(&from), nodeset::fold(&to), count(pairs, "pair"))
        };
        absent.chain(self.rows().into_iter().map(sentence)).collect()
    }

    /// Returns a hint on the first failure. `network`: the interface of the encrypted network, if the logins go through it.
    pub fn hint(&self, port: u16, network: Option<&str>) -> Option<String> {
        self.pairs.iter().find_map(|pair| pair.reason.as_deref()).map(|reason| hint(reason, port, network))
    }
}

/// Returns what to do about a login that failed for this reason. `network`: the interface of the encrypted network, if it
/// went through that.
pub fn hint(reason: &str, port: u16, network: Option<&str>) -> String {
    if matches!(failure::ssh(reason), Ssh::Refused | Ssh::HostKeyUnknown | Ssh::TooManyKeys) {
        "run `hvdctl keys push`, then `hvdctl down` and `hvdctl up` on nodes whose workers still present another host \
         key"
        .to_owned()
    } else {
        let of_nodes = || format!("allow TCP port {port} between the nodes' addresses");
        let firewall = network.map_or_else(of_nodes, let_in);
        format!("{firewall}, and see the log of the worker's container")
    }
}

/// Parses the output of `worker/logins.sh`, for each target with a result: `INDEX EXIT MESSAGES…`, where the messages
/// are the end of what ssh wrote, with a tab for each newline.
pub fn results(output: &str) -> BTreeMap<usize, (i32, String)> {
    let line = |line: &str| {
        let mut parts = line.splitn(3, ' ');
        let (index, code) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some((index, (code, parts.next().unwrap_or_default().replace('\t', "\n"))))
    };
    output.lines().filter_map(line).collect()
}

/// Returns why ssh failed: the last of its messages, without the target, so that equal reasons are equal.
pub fn reason(code: i32, messages: &str, target: SocketAddr, limit: u64) -> String {
    let lines = messages.lines().filter(|line| !failure::is_ssh_notice(line));
    let lines: Vec<String> = lines.map(|line| nameless(line, target)).filter(|line| !line.is_empty()).collect();
    match lines.split_last() {
        // the line before has the reason: not known, or changed
        Some((last, [.., before])) if last.starts_with("Host key verification failed") => {
            let before = before.split(" and you have requested").next().unwrap_or_default();
            format!("{}: {before}", last.trim_end_matches('.'))
        }
        Some((last, _)) => last.clone(),
        None if matches!(code, 124 | 137) => format!("no answer within {limit} s"),
        None => format!("ssh ended with exit code {code}"),
    }
}

/// Removes the target's address and port, and the prepositions before them.
fn nameless(line: &str, target: SocketAddr) -> String {
    let (address, port) = (regex::escape(&target.ip().to_string()), target.port());
    let names = format!(
        r"ssh: connect to host {address} port {port}: |root@{address}: |( (by|with|to|for))? \[?{address}(\]:{port}| port {port})?"
    );
    Regex::new(&names).map_or_else(|_| line.to_owned(), |names| names.replace_all(line, "").trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::files::known_hosts_names;
    use proptest::prelude::*;

    fn pairs(n: usize) -> Vec<(usize, usize)> {
        (0..n).flat_map(|from| targets(n, from).into_iter().map(move |to| (from, to))).collect()
    }

    #[test]
    fn the_sample_covers_every_node_both_ways() {
        assert_eq!(pairs(1), []);
        assert_eq!(pairs(2), [(0, 1), (1, 0)]);
        assert_eq!(pairs(32).len(), 32 * 31);
        assert_eq!(pairs(33).len(), 33 * 6);
        assert_eq!(pairs(64).len(), 64 * 6);
        assert_eq!(pairs(1000).len(), 1000 * 10);
    }

    fn matrix(n: usize, fails: impl Fn(usize, usize) -> Option<&'static str>) -> Matrix {
        let name = |i: usize| format!("node{}", i + 1);
        let pair = |(from, to): (usize, usize)| TriedLogin {
            from: name(from),
            to: name(to),
            reason: fails(from, to).map(str::to_owned),
        };
        Matrix { absent: Vec::new(), pairs: pairs(n).into_iter().map(pair).collect() }
    }

    #[test]
    fn failures_are_folded() {
        let faults = |n, fails: &dyn Fn(usize, usize) -> Option<&'static str>| matrix(n, fails).faults();
        assert!(matrix(4, |_, _| None).is_good());
        assert_eq!(
            faults(4, &|_, to| (to == 3).then_some("Connection refused")),
            ["node[1-3] → node4: Connection refused (3 pairs)"]
        );
        assert_eq!(faults(4, &|from, _| (from == 3).then_some("x")), ["node4 → node[1-3]: x (3 pairs)"]);
        assert_eq!(faults(2, &|_, _| Some("x")), ["node[1-2] → node[1-2]: x (2 pairs)"]);
        assert_eq!(faults(9, &|_, _| Some("x")), ["node[1-9] → node[1-9]: x (72 pairs)"]);
        assert_eq!(faults(64, &|_, _| Some("x")), ["node[1-64] → node[1-64]: x (384 pairs)"]);
        // two halves that do not reach each other
        assert_eq!(
            faults(6, &|from, to| ((from < 3) != (to < 3)).then_some("x")),
            ["node[1-3] → node[4-6]: x (9 pairs)", "node[4-6] → node[1-3]: x (9 pairs)",]
        );
        // one node that is cut off both ways
        assert_eq!(
            faults(5, &|from, to| (from == 4 || to == 4).then_some("x")),
            ["node[1-4] → node5: x (4 pairs)", "node5 → node[1-4]: x (4 pairs)",]
        );
        assert_eq!(
            faults(4, &|from, to| ((from, to) == (0, 1)).then_some("y").or((to == 2).then_some("x"))),
            ["node[1-2,4] → node3: x (3 pairs)", "node1 → node2: y (1 pair)",]
        );
        // beyond 32 nodes too
        assert_eq!(faults(40, &|_, to| (to == 9).then_some("x")), ["node[2,6,8-9,18,34] → node10: x (6 pairs)"]);
        let mut absent = matrix(2, |_, _| None);
        absent.absent.push(AbsentNode { node: "node3".into(), why: "its worker is not running: hvdctl up".into() });
        assert!(!absent.is_good());
        assert_eq!(absent.faults(), ["node3: its worker is not running: hvdctl up"]);
        assert_eq!((absent.reached("node1"), absent.reached("node3")), ((1, 1), (0, 0)));
    }

    #[test]
    fn equal_reasons_are_equal() {
        let why = |code, said: &str, target: &str| reason(code, said, target.parse().unwrap(), 10);
        for target in ["10.0.0.1:12345", "10.0.0.2:12345", "[fd00::1]:12345"] {
            let address: SocketAddr = target.parse().unwrap();
            let a = address.ip();
            let said = |code, said: String| why(code, &said, target);
            let refused = format!("ssh: connect to host {a} port 12345: Connection refused");
            assert_eq!(said(255, refused), "Connection refused");
            let denied = format!("Warning: something\nroot@{a}: Permission denied (publickey).");
            assert_eq!(said(255, denied), "Permission denied (publickey).");
            let unknown = format!(
                "No ED25519 host key is known for [{a}]:12345 and you have requested strict checking.\n\
                 Host key verification failed."
            );
            assert_eq!(said(255, unknown), "Host key verification failed: No ED25519 host key is known");
            let changed = format!(
                "@@@@@\n@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n@@@@@\nOffending key in x:3\n\
                 Host key for [{a}]:12345 has changed and you have requested strict checking.\n\
                 Host key verification failed."
            );
            assert_eq!(said(255, changed), "Host key verification failed: Host key has changed");
            assert_eq!(said(255, format!("Connection closed by {a} port 12345\n")), "Connection closed");
            let banner = format!("Connection timed out during banner exchange\nConnection to {a} port 12345 timed out");
            assert_eq!(said(255, banner), "Connection timed out");
            let reset = format!(
                "kex_exchange_identification: read: Connection reset by peer\nConnection reset by {a} port 12345"
            );
            assert_eq!(said(255, reset), "Connection reset");
        }
        assert_eq!(why(124, " \n", "10.0.0.1:22"), "no answer within 10 s");
        let notice = "** The server may need to be upgraded. See https://openssh.com/pq.html";
        assert_eq!(why(124, notice, "10.0.0.1:22"), "no answer within 10 s");
        assert_eq!(why(3, "", "10.0.0.1:22"), "ssh ended with exit code 3");
    }

    #[test]
    fn the_scripts_lines_are_read() {
        let read = results("0 0 \n2 255 one\ttwo words\t\nnoise\n1 124\n");
        assert_eq!(read[&0], (0, String::new()));
        assert_eq!(read[&2], (255, "one\ntwo words\n".into()));
        assert_eq!((read[&1].0, read.len()), (124, 3));
    }

    #[test]
    fn ipv6_addresses_are_pinned_as_ssh_looks_for_them() {
        let names = known_hosts_names(&["node1", "fe80::1%eth0"], &["fd00::1".parse().unwrap()], 12345);
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert_eq!(names, ["[node1]:12345", "[fe80::1%eth0]:12345", "[fd00::1]:12345"]);
        let names = known_hosts_names(&[], &["fd00::1".parse().unwrap()], 22);
        assert_eq!(names.first().map(String::as_str), Some("fd00::1"));
    }

    proptest! {
        #[test]
        fn everyone_is_source_and_target_of_as_many(n in 33usize..300) {
            let log2 = (usize::BITS - (n - 1).leading_zeros()) as usize;
            let all = pairs(n);
            let distinct: BTreeSet<_> = all.iter().collect();
            prop_assert_eq!(distinct.len(), all.len());
            for node in 0..n {
                prop_assert_eq!(all.iter().filter(|(from, _)| *from == node).count(), log2);
                prop_assert_eq!(all.iter().filter(|(_, to)| *to == node).count(), log2);
                prop_assert!(!all.contains(&(node, node)));
            }
        }

        #[test]
        fn rows_say_exactly_what_failed(n in 2usize..40, kind in prop::collection::vec(0u8..6, 40 * 40)) {
            let reason = |from: usize, to: usize| match kind[from * 40 + to] { 0 => Some("a"), 1 => Some("b"), _ => None };
            let matrix = matrix(n, reason);
            let names: Vec<String> = (1..=n).map(|i| format!("node{i}")).collect();
            let mut reported = BTreeMap::new();
            for row in matrix.rows() {
                prop_assert!(row.from.iter().chain(&row.to).all(|node| names.contains(node)));
                let (from, to) = (&row.from, &row.to);
                let inside: Vec<&TriedLogin> =
                    matrix.pairs.iter().filter(|p| from.contains(&p.from) && to.contains(&p.to)).collect();
                prop_assert_eq!(inside.len(), row.pairs);
                for pair in inside {
                    prop_assert_eq!(pair.reason.as_deref(), Some(row.reason.as_str()));
                    prop_assert!(reported.insert((pair.from.clone(), pair.to.clone()), ()).is_none(), "reported twice");
                }
            }
            prop_assert_eq!(reported.len(), matrix.pairs.iter().filter(|p| p.reason.is_some()).count());
        }

        #[test]
        fn anything_is_read(output in ".{0,80}", said in ".{0,80}") {
            let _ = results(&output);
            prop_assert!(!reason(255, &said, "10.0.0.1:22".parse().unwrap(), 1).is_empty());
        }
    }
}
