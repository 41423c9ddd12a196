//! Names of images: how they are compared, those that an image has while it is pushed, and digests.

use crate::text::digest::hex;
use sha2::{Digest as _, Sha256};

/// The first part of the name under which an engine pulls from hvdctl.
const TEMPORARY: &str = "hvdctl-push";

/// The first part of the name of an image in which a relay runs.
const RELAY: &str = "hvdctl-relay";

/// Returns the digest of bytes, as images name it.
pub fn sha256(bytes: &[u8]) -> String {
    sha256_name(&Sha256::digest(bytes))
}

/// Formats a SHA-256 hash as images name it.
pub fn sha256_name(hash: &[u8]) -> String {
    format!("sha256:{}", hex(hash))
}

/// Returns the name by which Docker shows an image, with its tag.
pub fn familiar(name: &str) -> String {
    let name = name.strip_prefix("docker.io/").or_else(|| name.strip_prefix("index.docker.io/")).unwrap_or(name);
    let name = name.strip_prefix("library/").unwrap_or(name);
    let last = name.rsplit('/').next().unwrap_or(name);
    if last.contains([':', '@']) { name.to_owned() } else { format!("{name}:latest") }
}

/// Returns the repository and the tag of an image, or `None` if it is named by an id or a digest, which no engine gives
/// to a pushed image.
pub fn repository_and_tag(image: &str) -> Option<(&str, &str)> {
    if image.starts_with("sha256:") || image.contains('@') || image.is_empty() {
        return None;
    }
    let last = image.rfind('/').map_or(0, |slash| slash + 1);
    match image[last..].split_once(':') {
        Some((_, tag)) => Some((&image[..image.len() - tag.len() - 1], tag)),
        None => Some((image, "latest")),
    }
}

/// Returns the repository in which a node finds a pushed image. `token`: what others on the node do not know.
pub fn temporary_repository(cluster: &str, token: &str) -> String {
    // the name of a cluster may have letters that a repository may not have
    format!("{TEMPORARY}/{}/{token}", &sha256(cluster.as_bytes())[7..15])
}

/// Returns the repository of the images in which a cluster's relays run.
pub fn relay_repository(cluster: &str) -> String {
    temporary_repository(cluster, "").trim_end_matches('/').replace(TEMPORARY, RELAY)
}

/// Returns whether an image is one of a cluster's relays, by its name.
pub fn is_relay(name: &str, cluster: &str) -> bool {
    name.strip_prefix(&relay_repository(cluster)).is_some_and(|tag| tag.starts_with(':'))
}

/// Returns whether an image has this name only while it is pushed to a node of this cluster.
pub fn is_temporary(name: &str, cluster: &str) -> bool {
    let of_cluster = temporary_repository(cluster, "");
    name.strip_prefix("127.0.0.1:")
        .and_then(|rest| rest.split_once('/'))
        .is_some_and(|(port, rest)| port.bytes().all(|byte| byte.is_ascii_digit()) && rest.starts_with(&of_cluster))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_one_image_are_the_same() {
        for name in ["app", "app:latest", "library/app", "docker.io/library/app:latest"] {
            assert_eq!(familiar(name), "app:latest", "{name}");
        }
        assert_eq!(familiar("docker.io/ana/app:1"), "ana/app:1");
        assert_eq!(familiar("localhost:5000/app"), "localhost:5000/app:latest");
    }

    #[test]
    fn a_name_is_split_at_its_tag() {
        assert_eq!(repository_and_tag("app"), Some(("app", "latest")));
        assert_eq!(repository_and_tag("ana/app:1.0"), Some(("ana/app", "1.0")));
        assert_eq!(repository_and_tag("localhost:5000/app"), Some(("localhost:5000/app", "latest")));
        assert_eq!(repository_and_tag("localhost:5000/app:2"), Some(("localhost:5000/app", "2")));
        for without in ["", "sha256:0123", "app@sha256:0123"] {
            assert_eq!(repository_and_tag(without), None, "{without}");
        }
    }

    #[test]
    fn only_names_of_a_push_are_temporary() {
        let name = |cluster| format!("127.0.0.1:4000/{}@sha256:00", temporary_repository(cluster, "abc"));
        assert!(is_temporary(&name("Lab_1"), "Lab_1"));
        assert!(!is_temporary(&name("other"), "Lab_1"));
        for other in ["app:1", "127.0.0.1:5000/app:1", "127.0.0.1/hvdctl-push/x", "hvdctl-push/app"] {
            assert!(!is_temporary(other, "Lab_1"), "{other}");
        }
        let relay = format!("{}:0123", relay_repository("Lab_1"));
        assert!(is_relay(&relay, "Lab_1") && !is_relay(&relay, "other") && !is_temporary(&relay, "Lab_1"), "{relay}");
        let repository = temporary_repository("Lab_1", "0123abc");
        assert!(repository.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'/')), "{repository}");
    }
}
