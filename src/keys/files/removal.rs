//! What a node's key directory has of a cluster, for `down --purge`.

use super::lines::{is_our_host_key, without_ours};
use super::{AUTHORIZED_KEYS, Changes, KEY_NAMES, KNOWN_HOSTS, Put, is_ours, text};
use crate::node::facts::Facts;
use crate::paths::HOST_KEY;
use crate::secret::Secret;

/// Returns the changes that remove the cluster's lines and key pairs from a node's directory. All else stays, because another cluster
/// may use the same directory.
pub fn removal(facts: &Facts, cluster: &str) -> Changes {
    let mut changes = Changes::default();
    for name in [AUTHORIZED_KEYS, KNOWN_HOSTS] {
        let existing = text(facts, name);
        let others = without_ours(existing, cluster);
        if others.is_empty() {
            changes.removes.push(name.to_owned());
        } else if others != existing {
            changes.puts.push(Put { name: name.to_owned(), text: Secret::plain(others) });
        }
    }
    let pair = |name: &str| [name.to_owned(), public(name)];
    for name in KEY_NAMES {
        if is_ours(facts, name, cluster) {
            changes.removes.extend(pair(name));
        }
        let next = format!("{name}.next");
        if is_ours(facts, &next, cluster) {
            // a switch that was interrupted has removed the old public half and moved the private one
            changes.removes.extend((!exists(facts, &public(name))).then(|| name.to_owned()));
            changes.removes.extend(pair(&next));
        } else if !exists(facts, &public(&next)) {
            // a rotation was interrupted before it had written the public half
            changes.removes.push(next);
        }
    }
    if is_our_host_key(text(facts, &public(HOST_KEY)), cluster) {
        changes.removes.extend(pair(HOST_KEY));
    }
    changes.removes.retain(|name| exists(facts, name));
    changes
}

fn public(name: &str) -> String {
    format!("{name}.pub")
}

fn exists(facts: &Facts, name: &str) -> bool {
    facts.key_files.contains_key(name)
}
