//! Public keys in OpenSSH's format, `TYPE BASE64 [COMMENT]`.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use sha2::{Digest, Sha256};
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

/// Returns the type and the bytes of a key, whatever its type: `None` if the bytes do not begin with the type, as they
/// must (RFC 4253, 6.6).
fn typed(public: &str) -> Option<(&str, Vec<u8>)> {
    let (name, base64) = public.split_once(' ')?;
    let bytes = STANDARD.decode(base64).ok()?;
    let length = u32::from_be_bytes(*bytes.first_chunk()?) as usize;
    (bytes.get(4..4 + length)? == name.as_bytes()).then_some((name, bytes))
}

/// Returns whether `TYPE BASE64` is a key of this type, as far as its first bytes say so.
pub fn is_of_its_type(public: &str) -> bool {
    typed(public).is_some()
}

/// Returns the type and the fingerprint of `TYPE BASE64`, whatever the type: `ssh-ed25519 SHA256:…`.
pub fn shown(public: &str) -> String {
    let print = |bytes: &[u8]| STANDARD_NO_PAD.encode(Sha256::digest(bytes));
    typed(public).map_or_else(String::new, |(name, bytes)| format!("{name} SHA256:{}", print(&bytes)))
}

/// The first line of a text that is a public key, whole and without spaces around it.
pub fn public_line(text: &str) -> Option<String> {
    text.lines().map(str::trim).find(|line| parse(line).is_some()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_any_type_is_recognized_and_has_its_fingerprint() {
        let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJTyqYIOkkDxRjQoVAIwUpYHmzqDdzJYdHhGZ7cgBuzr";
        assert_eq!(shown(key), format!("ssh-ed25519 {}", fingerprint(&parse(key).unwrap())));
        for other in
            [key.replace("ssh-ed25519", "ssh-rsa"), key.replace("AAAAC3", "AAAA"), "ssh-rsa".into(), "a /w==".into()]
        {
            assert!(!is_of_its_type(&other), "{other}");
        }
    }
}
