//! The owner of a node: root of the node has the owner's public key in a file, so that an owner can publish only its
//! own nodes.

use crate::error::NodeError;
use crate::inventory::HOST_KEY;
use crate::text::public_key;
use crate::transport::node::{Script, Transport};
use ssh_key::PublicKey;
use ssh_key::public::KeyData;

/// The file on the nodes.
const FILE: &str = "/etc/hvdctl/pool-owner.pub";

const CLAIM: &str = include_str!("../scripts/pool/claim.sh");
const OWNER: &str = include_str!("../scripts/pool/owner.sh");

/// Types of host keys, the best first: a node is known by one key, because ssh accepts any of several, also one that is
/// another machine's.
const TYPES: [&str; 5] =
    ["ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "ssh-rsa"];

/// Lets root write the owner's key on a node. Returns the node's host key.
///
/// # Errors
/// When it cannot be written, or the node has no host key that others can check.
pub async fn claim(transport: &Transport, owner: &KeyData) -> Result<String, NodeError> {
    let operation = "write its owner's key";
    let key = PublicKey::from(owner.clone()).to_openssh().unwrap_or_default();
    let script = Script::new(CLAIM).with("file", FILE).with("key", &key);
    let printed = transport.script(&script, operation).await?;
    host_key(&String::from_utf8_lossy(&printed)).ok_or_else(|| {
        NodeError::failed(transport.node(), "find its ssh host key", "sshd has none of type Ed25519, ECDSA or RSA")
            .hint("see `sshd -T | grep hostkey` there; the public halves are in FILE.pub")
    })
}

/// Returns the host key by which a machine is known, of those that it has.
fn host_key(printed: &str) -> Option<String> {
    let keys: Vec<String> = printed.lines().filter_map(|line| HOST_KEY.read(line).ok()).collect();
    TYPES.iter().find_map(|name| keys.iter().find(|key| key.split(' ').next() == Some(name)).cloned())
}

/// Checks, by the login itself, that a node is its owner's.
///
/// # Errors
/// When root has not written this key there.
pub async fn prove(transport: &Transport, owner: &KeyData) -> Result<(), NodeError> {
    let operation = "prove its owner";
    let printed = transport.script_as_login(&Script::new(OWNER).with("file", FILE), operation).await?;
    is_of(&String::from_utf8_lossy(&printed), owner).map_err(|why| NodeError::failed(transport.node(), operation, why))
}

/// Checks that a file's text is a key.
fn is_of(text: &str, owner: &KeyData) -> Result<(), String> {
    match public_key::parse(text) {
        Some(key) if key.key_data() == owner => Ok(()),
        Some(key) => Err(format!("{FILE} there has the key of another owner, {}", public_key::fingerprint(&key))),
        None => Err(format!("{FILE} there is not a public key")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ED25519: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJTyqYIOkkDxRjQoVAIwUpYHmzqDdzJYdHhGZ7cgBuzr";
    const OTHER: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAII9YCFBVboat3khSdQcT1p/Y+c39H8Ilxc/NvrUucUUh";
    const ECDSA: &str = "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBA==";

    #[test]
    fn a_machine_is_known_by_one_plain_key() {
        assert_eq!(host_key(&format!("{ECDSA}\n{ED25519}\n{OTHER}\n")).as_deref(), Some(ED25519));
        assert_eq!(
            host_key(&format!("ssh-dss AAAA\nsk-x y\n{ED25519} x\n* {ED25519}\n{ECDSA}\n")).as_deref(),
            Some(ECDSA)
        );
        for none in ["", "ssh-ed25519", "ssh-rsa AAAA\n", &ED25519.replace("ssh-ed25519", "ssh-rsa")] {
            assert_eq!(host_key(none), None, "{none}");
        }
    }

    #[test]
    fn a_node_is_of_the_key_that_has_signed_and_of_no_other() {
        let data = |key: &str| public_key::parse(key).unwrap().key_data().clone();
        assert_eq!(is_of(&format!("{ED25519} ana\n"), &data(ED25519)), Ok(()));
        assert!(is_of(ED25519, &data(OTHER)).unwrap_err().contains("has the key of another owner, SHA256:"));
        assert!(is_of("", &data(OTHER)).unwrap_err().ends_with("is not a public key"));
    }
}
