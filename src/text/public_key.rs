//! Public keys in OpenSSH's format, `TYPE BASE64 [COMMENT]`.

use ssh_key::{HashAlg, PublicKey};

/// The fingerprint (`SHA256:…`, as ssh shows it) of a public key, `TYPE BASE64 [COMMENT]`; `None` if it is none.
pub fn fingerprint(public: &str) -> Option<String> {
    Some(PublicKey::from_openssh(public).ok()?.fingerprint(HashAlg::Sha256).to_string())
}

/// The first line of a text that is a public key, whole and without spaces around it.
pub fn public_line(text: &str) -> Option<String> {
    text.lines().map(str::trim).find(|line| fingerprint(line).is_some()).map(str::to_owned)
}
