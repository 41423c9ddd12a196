//! Public keys in OpenSSH's format, `TYPE BASE64 [COMMENT]`.

use ssh_key::{HashAlg, PublicKey};

/// `TYPE BASE64` of a public key's line, without its comment.
pub fn bare(public: &str) -> String {
    public.split_whitespace().take(2).collect::<Vec<_>>().join(" ")
}

/// Parses a public key's line; `None` if it has no key.
pub fn parse(public: &str) -> Option<PublicKey> {
    PublicKey::from_openssh(&bare(public)).ok()
}

/// Returns the fingerprint of a public key as ssh shows it, `SHA256:…`.
pub fn fingerprint(key: &PublicKey) -> String {
    key.fingerprint(HashAlg::Sha256).to_string()
}

/// The first line of a text that is a public key, whole and without spaces around it.
pub fn public_line(text: &str) -> Option<String> {
    text.lines().map(str::trim).find(|line| parse(line).is_some()).map(str::to_owned)
}
