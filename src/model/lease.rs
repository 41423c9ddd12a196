//! The lease of a node: which command may change it. Times are by the node's clock.

use crate::text::nodeset;
use crate::text::units::date_time;
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// Time from the last renewal until a lease expires.
pub const LIFETIME: Duration = Duration::from_secs(30);
/// Interval at which a command renews its leases.
pub const RENEWAL_INTERVAL: Duration = Duration::from_secs(2);

/// A node's lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Lease {
    /// Its unique id.
    pub id: String,
    /// The holder, `user@host`.
    pub holder: String,
    /// The process id of hvdctl on that host.
    pub pid: u32,
    /// The command that holds it.
    pub purpose: String,
    /// The time at which it was taken, in seconds since the epoch.
    pub since: u64,
    /// The time of its last renewal.
    pub renewed: u64,
    /// The time at which it was read.
    pub read: u64,
}

impl Lease {
    /// Parses "KEY VALUE" lines; `None` where one is missing.
    pub fn parse(text: &str) -> Option<Lease> {
        let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
        // another user wrote these texts, and a terminal shows them
        let plain = |key| Some(value(key)?.chars().filter(|c| !c.is_control()).collect::<String>());
        Some(Lease {
            id: plain("id")?,
            holder: plain("holder")?,
            pid: value("pid")?.parse().ok()?,
            purpose: plain("purpose")?,
            since: value("since")?.parse().ok()?,
            renewed: value("renewed")?.parse().ok()?,
            read: value("now")?.parse().ok()?,
        })
    }

    /// Returns its age when it was read.
    pub fn age(&self) -> Duration {
        Duration::from_secs(self.read.saturating_sub(self.since))
    }

    /// Returns whether it has expired, by the rule of `lease/common.sh`. A clock that was set back does not extend it.
    pub fn is_expired(&self) -> bool {
        self.read.abs_diff(self.renewed) > LIFETIME.as_secs()
    }

    /// Formats when it was taken.
    pub fn since(&self) -> String {
        let time = date_time(self.since as f64);
        format!("{time} ({} ago)", humantime::format_duration(self.age()))
    }
}

impl fmt::Display for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (process {}) with `{}` since {}", self.holder, self.pid, self.purpose, self.since())
    }
}

/// Groups nodes by the command that holds their lease.
pub fn holders(leases: &[(String, Lease)]) -> Vec<(Vec<String>, &Lease)> {
    let groups = nodeset::alike(leases.iter().map(|(node, lease)| (&lease.id, (node.clone(), lease))));
    groups
        .into_iter()
        .filter_map(|(_, nodes)| {
            let lease = nodes.first()?.1;
            Some((nodes.into_iter().map(|(node, _)| node).collect(), lease))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "id 0a-1\nholder ana@desk\npid 4711\npurpose hvdctl train my project\nsince 1763735527\n\
                        renewed 1763735598\nnow 1763735599\n";

    #[test]
    fn a_lease_is_parsed_and_shown() {
        let lease = Lease::parse(TEXT).unwrap();
        assert_eq!(lease.age(), Duration::from_secs(72));
        assert_eq!(
            lease.to_string(),
            "ana@desk (process 4711) with `hvdctl train my project` since 2025-11-21 14:32:07 UTC (1m 12s ago)"
        );
        for key in ["id", "holder", "pid", "purpose", "since", "renewed", "now"] {
            let without: String =
                TEXT.lines().filter(|l| !l.starts_with(&format!("{key} "))).map(|l| format!("{l}\n")).collect();
            assert_eq!(Lease::parse(&without), None, "without {key}");
        }
        assert_eq!(Lease::parse(&TEXT.replace("4711", "x")), None);
        let loud = Lease::parse(&TEXT.replace("my project", "\u{1b}[2Jx")).unwrap();
        assert_eq!(loud.purpose, "hvdctl train [2Jx");
        // whatever the file contains, it is a lease
        let far = Lease::parse(&TEXT.replace("since 1763735527", &format!("since {}", u64::MAX))).unwrap();
        assert!(far.to_string().ends_with("(0s ago)"), "{far}");
    }

    #[test]
    fn it_expires_by_the_nodes_own_clock() {
        let read = |now: u64| Lease { read: now, ..Lease::parse(TEXT).unwrap() };
        let renewed = read(0).renewed;
        for (now, expired) in [(0, false), (30, false), (31, true), (86400, true)] {
            assert_eq!(read(renewed + now).is_expired(), expired, "{now} s later");
            assert_eq!(read(renewed - now).is_expired(), expired, "the clock was set back by {now} s");
        }
    }
}
