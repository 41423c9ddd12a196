//! The verification of a pool's files: a valid file was published by a member, and not too long ago.

use super::format::{LARGEST_FILE, PoolNode};
use super::signature;
use super::signers::{AllowedSigners, Refusal};
use crate::text::nodeset::printable;
use crate::text::public_key::fingerprint;
use crate::text::units::{age, human, stamp};
use schemars::JsonSchema;
use serde::Serialize;
use ssh_key::PublicKey;
use ssh_key::public::KeyData;
use std::fmt;

/// The difference between clocks that is tolerated, in seconds: a file that is ahead by less is not from the future.
const CLOCK_TOLERANCE: u64 = 300;

/// The state of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FileState {
    /// A member has published it, and it is not too old.
    Valid,
    /// A member has published it, too long ago or by a wrong clock.
    Stale,
    /// It is a member's file in the place of another one.
    Misplaced,
    /// It has no signature.
    Unsigned,
    /// It is signed with a key that is no member's, or not any more.
    Untrusted,
    /// It is not what its owner has signed.
    Forged,
    /// It cannot be read, or not as a node.
    Unreadable,
}

impl fmt::Display for FileState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            FileState::Valid => "valid",
            FileState::Stale => "stale",
            FileState::Misplaced => "misplaced",
            FileState::Unsigned => "unsigned",
            FileState::Untrusted => "untrusted",
            FileState::Forged => "forged",
            FileState::Unreadable => "unreadable",
        })
    }
}

/// A file of a pool.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolFile {
    /// Its name, safe for a terminal.
    pub name: String,
    /// Its state.
    pub state: FileState,
    /// The reason why it is not valid; empty if it is.
    pub reason: String,
    /// The node that its owner has signed; `None` if nothing in it can be believed.
    pub node: Option<PoolNode>,
    /// The key with which the owner has signed it.
    pub key: Option<KeyData>,
}

/// Whom to believe, and when.
#[derive(Debug, Clone, Copy)]
pub struct Verifier<'a> {
    /// The members.
    pub signers: &'a AllowedSigners,
    /// Seconds since the epoch.
    pub now: u64,
}

impl PoolFile {
    /// A file that was not read.
    pub fn unreadable(name: &str, reason: impl Into<String>) -> PoolFile {
        PoolFile { name: printable(name), state: FileState::Unreadable, reason: reason.into(), node: None, key: None }
    }

    /// Judges a file by its name and its content.
    pub fn judge(name: &str, content: &[u8], verifier: Verifier<'_>) -> PoolFile {
        let (node, key) = match signed_node(content, verifier) {
            Err((state, reason)) => return PoolFile { state, ..PoolFile::unreadable(name, reason) },
            Ok(signed) => signed,
        };
        let (state, reason) = match freshness(name, &node, verifier.now) {
            Ok(()) => (FileState::Valid, String::new()),
            Err(stale) => stale,
        };
        PoolFile { name: printable(name), state, reason, node: Some(node), key: Some(key) }
    }

    /// Returns the node of a valid file, and the key that has signed it.
    pub fn valid_node(&self) -> Option<(&PoolNode, &KeyData)> {
        self.node.as_ref().zip(self.key.as_ref()).filter(|_| self.state == FileState::Valid)
    }
}

/// Returns the node that a member has signed, and with which key.
fn signed_node(content: &[u8], verifier: Verifier<'_>) -> Result<(PoolNode, KeyData), (FileState, String)> {
    let fail = |state, reason: &str| Err((state, reason.to_owned()));
    if content.len() > LARGEST_FILE {
        return fail(FileState::Unreadable, &too_large());
    }
    let Ok(content) = std::str::from_utf8(content) else {
        return fail(FileState::Unreadable, "it is not text");
    };
    let Some((text, armor)) = signature::split(content) else {
        return fail(FileState::Unsigned, "it has no signature");
    };
    let Some(signature) = signature::parse(armor) else {
        return fail(FileState::Forged, "its signature cannot be read");
    };
    let key = signature.public_key();
    // an unknown key is not worked with: one can be made that takes minutes
    if !verifier.signers.has(key) {
        let shown = fingerprint(&PublicKey::from(key.clone()));
        return fail(FileState::Untrusted, &format!("it is signed with {shown}, which is no member's key"));
    }
    if !signature::is_of(&signature, text) {
        return fail(FileState::Forged, "it is not what was signed");
    }
    let node = PoolNode::parse(text).map_err(|reason| (FileState::Unreadable, reason))?;
    match verifier.signers.check(&node.owner, key, verifier.now) {
        Ok(()) => Ok((node, key.clone())),
        Err(Refusal::Invalid(reason)) => fail(FileState::Untrusted, &format!("of {}: {reason}", node.owner)),
        Err(Refusal::OfAnother(of)) => fail(
            FileState::Forged,
            &format!("it names {} and is signed with the key of {}", node.owner, printable(&of)),
        ),
        Err(Refusal::Unknown) => fail(FileState::Untrusted, "it is signed with no member's key"),
    }
}

/// Checks the place and the time of a signed node.
fn freshness(name: &str, node: &PoolNode, now: u64) -> Result<(), (FileState, String)> {
    if name != node.file_name() {
        let reason = format!("it is {}'s {} under another file's name", node.owner, node.node);
        return Err((FileState::Misplaced, reason));
    }
    let stale = |reason: String| Err((FileState::Stale, reason));
    if node.published > now + CLOCK_TOLERANCE {
        return stale(format!("it is from the future ({}); a clock is wrong", stamp(node.published as f64)));
    }
    match now.checked_sub(node.expires) {
        Some(over) => stale(format!("it expired {} ago", age(over))),
        None => Ok(()),
    }
}

/// Returns why a file of more bytes is not read.
pub fn too_large() -> String {
    format!("it is larger than {}", human(LARGEST_FILE as u64))
}

#[cfg(test)]
mod tests {
    use super::super::format::tests::node;
    use super::super::signature::SigningKey;
    use super::*;
    use proptest::prelude::*;
    use ssh_key::{Algorithm, LineEnding, PrivateKey};
    use std::sync::LazyLock;

    const NOW: u64 = 1_000_600;

    fn new_key() -> PrivateKey {
        let mut rng = ssh_key::rand_core::UnwrapErr(ssh_key::getrandom::SysRng);
        PrivateKey::random(&mut rng, Algorithm::Ed25519).unwrap()
    }

    /// A new key, and its line of allowed signers.
    fn key(owner: &str) -> (SigningKey, String) {
        let key = new_key();
        let line = format!("{owner} {}\n", key.public_key().to_openssh().unwrap());
        (SigningKey::parse(&key.to_openssh(LineEnding::LF).unwrap()).unwrap(), line)
    }

    static ANA: LazyLock<(SigningKey, String)> = LazyLock::new(|| key("ana@example.com"));
    static BOB: LazyLock<(SigningKey, String)> = LazyLock::new(|| key("bob"));

    fn signed(node: &PoolNode, by: &SigningKey) -> String {
        by.sign(&(serde_json::to_string_pretty(node).unwrap() + "\n")).unwrap()
    }

    /// Judges ana's file with both as members.
    fn judge(content: &str) -> PoolFile {
        let signers = AllowedSigners::parse(&[ANA.1.as_str(), &BOB.1].concat());
        PoolFile::judge(&node().file_name(), content.as_bytes(), Verifier { signers: &signers, now: NOW })
    }

    #[test]
    fn only_what_its_owner_has_signed_lately_is_valid() {
        let good = signed(&node(), &ANA.0);
        let file = judge(&good);
        assert_eq!(
            (file.state, file.valid_node()),
            (FileState::Valid, Some((&node(), ANA.0.public()))),
            "{}",
            file.reason
        );
        let check = |content: &str, state: FileState, reason: &str| {
            let file = judge(content);
            assert_eq!((file.state, file.reason.as_str()), (state, reason));
            assert_eq!(file.valid_node(), None);
        };
        let not_signed = "it is not what was signed";
        check(&good.replace("\"A\"", "\"B\""), FileState::Forged, not_signed);
        check(&good.replace("{\n", "{\r\n"), FileState::Forged, not_signed);
        check(&format!(" {good}"), FileState::Forged, not_signed);
        let (text, armor) = good.split_once("-----BEGIN").unwrap();
        check(text, FileState::Unsigned, "it has no signature");
        check(&format!("{text}-----BEGIN SSH SIGNATURE-----\n"), FileState::Forged, "its signature cannot be read");
        check(&format!("-----BEGIN{armor}"), FileState::Forged, not_signed);
        // of two signatures the first counts, and then it is not one
        check(&format!("{good}{good}"), FileState::Forged, "its signature cannot be read");
        let reason = "it names ana@example.com and is signed with the key of bob";
        check(&signed(&node(), &BOB.0), FileState::Forged, reason);
        let stranger = key("eve").0;
        let file = judge(&signed(&node(), &stranger));
        assert_eq!(file.state, FileState::Untrusted);
        assert!(file.reason.starts_with("it is signed with SHA256:") && file.reason.ends_with("no member's key"));
        check(&ANA.0.sign("{}\n").unwrap(), FileState::Unreadable, "line 1, column 2 is not valid in a node's JSON");
        check(&" ".repeat(LARGEST_FILE + 1), FileState::Unreadable, "it is larger than 16.0 KiB");

        let at = |published, expires| signed(&PoolNode { published, expires, ..node() }, &ANA.0);
        check(&at(1, NOW), FileState::Stale, "it expired 0 min ago");
        check(&at(NOW - 9000, NOW - 7200), FileState::Stale, "it expired 2 h ago");
        check(
            &at(NOW + 301, NOW + 400),
            FileState::Stale,
            "it is from the future (1970-01-12T14:01:41Z); a clock is wrong",
        );
        assert_eq!(judge(&at(NOW + 300, NOW + 400)).state, FileState::Valid);
        let other = signed(&PoolNode { node: "node2".into(), ..node() }, &ANA.0);
        check(&other, FileState::Misplaced, "it is ana@example.com's node2 under another file's name");
        // bob's own file in ana's place
        let bobs = signed(&PoolNode { owner: "bob".into(), ..node() }, &BOB.0);
        check(&bobs, FileState::Misplaced, "it is bob's node1 under another file's name");
    }

    #[test]
    fn a_signature_for_another_purpose_is_none() {
        let key = new_key();
        let text = node().text().unwrap();
        let armor = key.sign("git", ssh_key::HashAlg::Sha512, text.as_bytes()).unwrap().to_pem(LineEnding::LF).unwrap();
        let line = format!("ana@example.com {}\n", key.public_key().to_openssh().unwrap());
        let signers = AllowedSigners::parse(&line);
        let judged = |now| {
            let content = format!("{text}{armor}");
            PoolFile::judge(&node().file_name(), content.as_bytes(), Verifier { signers: &signers, now })
        };
        assert_eq!(judged(NOW).state, FileState::Forged);
    }

    #[test]
    fn a_key_that_is_revoked_or_over_signs_nothing() {
        let content = signed(&node(), &ANA.0);
        let judged = |members: &str| {
            let signers = AllowedSigners::parse(members);
            PoolFile::judge(&node().file_name(), content.as_bytes(), Verifier { signers: &signers, now: NOW })
        };
        assert_eq!(judged(&BOB.1).state, FileState::Untrusted);
        let over = ANA.1.replacen(' ', " valid-before=\"19700112Z\" ", 1);
        let file = judged(&over);
        assert_eq!(file.state, FileState::Untrusted);
        assert_eq!(file.reason, "of ana@example.com: the key is no longer valid (valid-before)");
        assert_eq!(judged(&over.replace("0112", "0113")).state, FileState::Valid);
    }

    proptest! {
        #[test]
        fn no_changed_byte_stays_valid(at in any::<prop::sample::Index>(), to in any::<u8>()) {
            let good = signed(&node(), &ANA.0);
            let mut bytes = good.clone().into_bytes();
            let at = at.index(bytes.len());
            bytes[at] = to;
            let signers = AllowedSigners::parse(&ANA.1);
            let file = PoolFile::judge(&node().file_name(), &bytes, Verifier { signers: &signers, now: NOW });
            // white space around the signature is no part of it
            let is_same = file.valid_node().is_none_or(|(found, _)| *found == node());
            prop_assert!(is_same && (bytes[at] == good.as_bytes()[at] || at >= good.find("-----BEGIN").unwrap() || file.state != FileState::Valid));
            prop_assert!(!file.reason.chars().any(char::is_control));
        }
    }
}
