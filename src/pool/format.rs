//! The publication of a node by its owner: the text that is signed, and the name of its file.

use crate::inventory::{
    ENDPOINT, GPU, Gpus, HOST, HOST_KEY, LONGEST_LIFETIME, LONGEST_LIST, NAME, NODE_NAME, OWNER, Rule,
};
use crate::model::grade::{Grade, NodeKind};
use crate::node::facts::MOST_CORES;
use crate::text::digest;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// The version of the format.
pub const FORMAT: u32 = 1;
/// The end of the names of a pool's files.
pub const SUFFIX: &str = ".node";
/// The most bytes of a file, with its signature.
pub const LARGEST_FILE: usize = 16 << 10;

/// The most characters of a name that a file's name has.
const LONGEST_PART: usize = 50;
/// The most characters of a GPU's name.
const LONGEST_GPU: usize = 100;
/// The most ranks and GPUs of a node, as in an inventory.
pub const MOST_SLOTS: u32 = 1024;

/// A node as its owner publishes it. Other members see this and nothing else about it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PoolNode {
    /// The version of the format.
    pub format: u32,
    /// The owner, by the name in the file of allowed signers.
    pub owner: String,
    /// The owner's name for its cluster.
    pub cluster: String,
    /// The owner's name for the node.
    pub node: String,
    /// The host that ssh connects to.
    pub host: String,
    /// The port of its sshd.
    pub port: u16,
    /// The public host key of that sshd, the only one that `pool pick` accepts. Older versions published nodes without
    /// it; these are not picked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_key: Option<String>,
    /// Its address on the network between the nodes of its cluster, if the owner's inventory has one.
    pub address: Option<IpAddr>,
    /// The host at which other nodes reach it by UDP, if the owner's inventory names one (`endpoint`). Without a port: each
    /// group has one of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Its kind.
    pub kind: NodeKind,
    /// Its grade.
    pub grade: Grade,
    /// The score behind the grade, from 0 to 1; null if it is new.
    pub score: Option<f64>,
    /// The number of recorded checks, benchmarks and jobs on which the grade is based.
    pub evidence: u32,
    /// Most ranks of one job.
    pub slots: u32,
    /// The GPUs that its owner offers, as in an inventory: a number (the first ones), or a list of indices and UUIDs.
    /// Without it: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<Gpus>,
    /// When it was published, in seconds since the epoch.
    pub published: u64,
    /// When it becomes stale, in seconds since the epoch.
    pub expires: u64,
}

impl PoolNode {
    /// Reads the text of a file. Every value that it returns is safe in a terminal, a file's name and an inventory.
    ///
    /// # Errors
    /// The reason why it is no node.
    pub fn parse(text: &str) -> Result<PoolNode, String> {
        #[derive(Deserialize)]
        struct NodeFileVersion {
            format: u32,
        }
        let not_json = |error: serde_json::Error| {
            // what it quotes is the file's
            format!("line {}, column {} is not valid in a node's JSON", error.line(), error.column())
        };
        let NodeFileVersion { format } = serde_json::from_str(text).map_err(not_json)?;
        if format != FORMAT {
            return Err(format!("it has format {format}, but this hvdctl reads format {FORMAT}"));
        }
        let node: PoolNode = serde_json::from_str(text).map_err(not_json)?;
        node.check()?;
        Ok(node)
    }

    /// Checks each value.
    fn check(&self) -> Result<(), String> {
        let PoolNode { owner, cluster, node, host, kind, .. } = self;
        let texts: [(&str, &Rule, &str); 4] =
            [("owner", &OWNER, owner), ("cluster", &NAME, cluster), ("node", &NODE_NAME, node), ("host", &HOST, host)];
        for (field, rule, value) in texts {
            // what was found is the file's
            rule.read(value).map_err(|_| format!("`{field}` is not a valid name"))?;
        }
        let is_plain = |name: &String| name.len() <= LONGEST_GPU && name.chars().all(|c| matches!(c, ' '..='~'));
        let is_score = |score: f64| (0.0..=1.0).contains(&score);
        let lifetime = self.expires.checked_sub(self.published);
        for (field, is_good) in [
            ("host", is_for_others(host)),
            ("port", self.port > 0),
            ("host_key", self.host_key.as_ref().is_none_or(|key| HOST_KEY.read(key).is_ok())),
            ("kind", kind.gpu.as_ref().is_none_or(is_plain) && kind.gpus <= MOST_SLOTS && kind.cores <= MOST_CORES),
            ("score", self.score.is_none_or(is_score)),
            ("address", self.address.is_none_or(|address| is_for_others(&address.to_string()))),
            ("endpoint", self.endpoint.as_ref().is_none_or(|endpoint| is_place(endpoint))),
            ("slots", (1..=MOST_SLOTS).contains(&self.slots)),
            ("gpus", self.gpus.as_ref().is_none_or(is_choice)),
            ("expires", lifetime.is_some_and(|lifetime| lifetime <= LONGEST_LIFETIME.as_secs())),
        ] {
            if !is_good {
                return Err(format!("`{field}` is out of range"));
            }
        }
        Ok(())
    }

    /// Returns the text that is signed.
    ///
    /// # Errors
    /// The field that no reader would accept.
    pub fn text(&self) -> Result<String, String> {
        self.check()?;
        let text = serde_json::to_string_pretty(self).expect("a node serializes");
        Ok(text + "\n")
    }

    /// Returns the name of its file. It is that of no other owner's node: it ends with a hash of the three names.
    pub fn file_name(&self) -> String {
        let names = [&self.owner, &self.cluster, &self.node];
        let hash = digest::in_hex(names.map(String::as_str).join("\n").as_bytes());
        let plain = |name: &&String| -> String {
            let plain = |c: char| if c.is_ascii_alphanumeric() || "@.+-".contains(c) { c } else { '-' };
            name.chars().take(LONGEST_PART).map(plain).collect()
        };
        format!("{}_{:.16}{SUFFIX}", names.iter().map(plain).collect::<Vec<_>>().join("_"), hash)
    }
}

/// Returns whether a text is the `endpoint` of an inventory without a port, at which every member finds the same machine.
pub fn is_place(endpoint: &str) -> bool {
    let in_brackets = endpoint.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let is_host = in_brackets.is_some() || !endpoint.contains([':', '[']);
    is_host && ENDPOINT.read(endpoint).is_ok() && is_for_others(in_brackets.unwrap_or(endpoint))
}

/// Returns whether GPUs are some of a node's, as an inventory may have them.
fn is_choice(gpus: &Gpus) -> bool {
    match gpus {
        Gpus::Auto | Gpus::All => false,
        Gpus::Count(count) => *count <= MOST_SLOTS,
        Gpus::List(list) => (1..=LONGEST_LIST).contains(&list.len()) && list.iter().all(|gpu| GPU.read(gpu).is_ok()),
    }
}

/// Returns whether a host can be the same machine for every member: an address that is not one of each machine itself,
/// or a full name. A short one may be an alias in the SSH configuration of a member. What ends with a number is no name
/// but an address in an unusual form, which may be 127.0.0.1 (<https://url.spec.whatwg.org/#ends-in-a-number-checker>).
pub fn is_for_others(host: &str) -> bool {
    match host.split('%').next().unwrap_or(host).parse::<IpAddr>() {
        Ok(address) => {
            let address = address.to_canonical();
            let is_link_local = match address {
                IpAddr::V4(v4) => v4.is_link_local(),
                IpAddr::V6(v6) => v6.is_unicast_link_local(),
            };
            !(address.is_loopback() || address.is_unspecified() || address.is_multicast() || is_link_local)
        }
        Err(_) => {
            let name = host.trim_end_matches('.').to_lowercase();
            let is_number = |label: &str| label.starts_with("0x") || label.bytes().all(|c| c.is_ascii_digit());
            name.rsplit_once('.').is_some_and(|(_, last)| !is_number(last)) && !name.contains("localhost")
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A node of ana, published at 1,000,000 for a day.
    pub fn node() -> PoolNode {
        let kind = NodeKind {
            gpu: Some("NVIDIA H200".into()),
            gpus: 8,
            gpu_memory_mib: Some(143_771),
            driver: Some(580),
            cores: 192,
        };
        PoolNode {
            format: FORMAT,
            owner: "ana@example.com".into(),
            cluster: "lab".into(),
            node: "node1".into(),
            host: "10.0.0.1".into(),
            port: 22,
            host_key: Some("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJTyqYIOkkDxRjQoVAIwUpYHmzqDdzJYdHhGZ7cgBuzr".into()),
            address: None,
            endpoint: None,
            kind,
            grade: Grade::A,
            score: Some(0.98),
            evidence: 12,
            slots: 8,
            gpus: None,
            published: 1_000_000,
            expires: 1_086_400,
        }
    }

    #[test]
    fn a_text_is_the_node_and_has_a_file_of_its_own() {
        let text = node().text().unwrap();
        assert_eq!(PoolNode::parse(&text), Ok(node()));
        let name = node().file_name();
        assert!(name.starts_with("ana@example.com_lab_node1_") && name.ends_with(".node"), "{name}");
        // what only looks alike has another name
        let twin = PoolNode { owner: "ana@example.com_lab".into(), cluster: "node1".into(), ..node() };
        let odd = PoolNode { node: "größe:1%".into(), ..node() };
        let names = [name, twin.file_name(), odd.file_name()];
        assert_eq!(names.iter().collect::<std::collections::BTreeSet<_>>().len(), 3, "{names:?}");
        assert!(names.iter().all(|name| name.bytes().all(|c| c.is_ascii_alphanumeric() || b"@._+-".contains(&c))));
    }

    #[test]
    fn a_node_has_any_number_of_slots_that_an_inventory_may_give_it() {
        for slots in [1, 64, MOST_SLOTS] {
            let mut few_gpus = PoolNode { slots, ..node() };
            few_gpus.kind.gpus = 1;
            assert_eq!(PoolNode::parse(&few_gpus.text().unwrap()), Ok(few_gpus));
        }
    }

    #[test]
    fn what_would_do_harm_is_refused() {
        let refused = |change: &dyn Fn(&mut PoolNode)| {
            let mut changed = node();
            change(&mut changed);
            let text = serde_json::to_string(&changed).unwrap();
            assert!(changed.text().is_err(), "{text}");
            PoolNode::parse(&text).expect_err(&text)
        };
        assert_eq!(refused(&|n| n.host = "-oProxyCommand=id".into()), "`host` is not a valid name");
        assert_eq!(refused(&|n| n.node = "a\u{1b}[2J".into()), "`node` is not a valid name");
        assert_eq!(refused(&|n| n.cluster = "../x".into()), "`cluster` is not a valid name");
        assert_eq!(refused(&|n| n.owner = "*".into()), "`owner` is not a valid name");
        assert_eq!(refused(&|n| n.kind.gpu = Some("H\u{202e}".into())), "`kind` is out of range");
        assert_eq!(refused(&|n| n.port = 0), "`port` is out of range");
        let long = format!("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5{}", "A".repeat(4000));
        let known = node().host_key.unwrap();
        let marked = format!("@cert-authority * {known}");
        let of_two_lines = format!("{known}\n* {known}");
        for key in [
            "",
            "ssh-ed25519 AAAA",
            "sk-ssh-ed25519@openssh.com AAAA",
            &long,
            &marked,
            &of_two_lines,
            &format!("{known} x"),
        ] {
            assert_eq!(refused(&|n| n.host_key = Some(key.into())), "`host_key` is out of range", "{key}");
        }
        for endpoint in
            ["gate", "home.example.org:51820", "127.0.0.1", "[::1]", "[fd00::1", "-o.example.org", "a b.org", ""]
        {
            assert_eq!(refused(&|n| n.endpoint = Some(endpoint.into())), "`endpoint` is out of range", "{endpoint}");
        }
        assert_eq!(refused(&|n| n.score = Some(1.5)), "`score` is out of range");
        assert_eq!(refused(&|n| n.slots = 0), "`slots` is out of range");
        assert_eq!(refused(&|n| n.slots = MOST_SLOTS + 1), "`slots` is out of range");
        assert_eq!(refused(&|n| n.expires = n.published - 1), "`expires` is out of range");
        assert_eq!(refused(&|n| n.expires = u64::MAX), "`expires` is out of range");
        assert_eq!(refused(&|n| n.gpus = Some(Gpus::List(vec!["0\"]".into()]))), "`gpus` is out of range");
        assert_eq!(refused(&|n| n.gpus = Some(Gpus::List(Vec::new()))), "`gpus` is out of range");
        assert_eq!(refused(&|n| n.gpus = Some(Gpus::All)), "`gpus` is out of range");
        let own = ["localhost", "127.0.0.1", "::1", "0.0.0.0", "fe80::1%eth0", "gate", "a.localhost", "localhost."];
        let in_other_forms = [
            "::ffff:127.0.0.1",
            "::ffff:7f00:1",
            "127.1",
            "0x7f.0.0.1",
            "0xac.28.103.11",
            "10.0.0.0x1",
            "10.0.0.1.",
            "a.017",
        ];
        for host in own.into_iter().chain(in_other_forms) {
            assert_eq!(refused(&|n| n.host = host.into()), "`host` is out of range", "{host}");
        }
        for host in
            ["10.0.0.1", "fd7a::1", "::ffff:10.0.0.1", "100.64.0.1", "node1.example.com", "1.example.com.", "n.ts.net"]
        {
            assert!(is_for_others(host), "{host}");
        }
        assert_eq!(PoolNode::parse("{}"), Err("line 1, column 2 is not valid in a node's JSON".into()));
        let newer = r#"{"format": 2, "everything": "else"}"#;
        assert_eq!(PoolNode::parse(newer), Err("it has format 2, but this hvdctl reads format 1".into()));
        // what a later version adds is left out
        let more = node().text().unwrap().replacen('{', "{\n\"new\": [1],", 1);
        assert_eq!(PoolNode::parse(&more), Ok(node()));
    }

    #[test]
    fn what_its_owner_offers_of_it_is_published() {
        for gpus in [Gpus::Count(0), Gpus::Count(2), Gpus::List(vec!["0".into(), "GPU-8a5b".into()])] {
            let some = PoolNode { gpus: Some(gpus), ..node() };
            assert_eq!(PoolNode::parse(&some.text().unwrap()), Ok(some));
        }
        for endpoint in ["home.example.org", "203.0.113.5", "[fd00::1]"] {
            let some = PoolNode { endpoint: Some(endpoint.into()), ..node() };
            assert_eq!(PoolNode::parse(&some.text().unwrap()), Ok(some));
        }
        // as all versions have written it
        let text = node().text().unwrap();
        assert!(!text.contains("\"gpus\": null") && !text.contains("endpoint"));
        // and as those have that knew no host keys
        let old = PoolNode { host_key: None, ..node() };
        let text = old.text().unwrap();
        assert!(!text.contains("host_key"));
        assert_eq!(PoolNode::parse(&text), Ok(old));
    }

    proptest! {
        #[test]
        fn whatever_stands_in_a_file_is_a_safe_node_or_refused_in_plain_words(text in "\\PC*|[{\"a-z:,0-9\\[\\]]{0,80}") {
            if let Err(why) = PoolNode::parse(&text) {
                prop_assert!(why.is_ascii() && why.len() < 200, "{why}");
            }
        }
    }
}
