//! Type, size and fingerprint of a public key.

use super::lines::bare;
use crate::inventory::KeyType;
use schemars::JsonSchema;
use serde::Serialize;
use ssh_key::public::KeyData;
use ssh_key::{HashAlg, PublicKey};
use std::fmt;

/// A public key, as `ssh-keygen -l` lists it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "KeyPair")]
pub struct Described {
    /// RSA or Ed25519.
    #[serde(rename = "type")]
    pub key_type: KeyType,
    /// Its size.
    pub bits: u32,
    /// `SHA256:…`
    pub fingerprint: String,
}

impl fmt::Display for Described {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.key_type {
            KeyType::Rsa => write!(f, "RSA {} ({} bits)", self.fingerprint, self.bits),
            KeyType::Ed25519 => write!(f, "Ed25519 {}", self.fingerprint),
        }
    }
}

impl Described {
    /// Returns `RSA 4096` or `Ed25519`, which has one size only.
    pub fn short(&self) -> String {
        match self.key_type {
            KeyType::Rsa => format!("RSA {}", self.bits),
            KeyType::Ed25519 => "Ed25519".to_owned(),
        }
    }
}

/// Reads `TYPE BASE64 …`. Returns `None` for anything but an RSA or Ed25519 key.
pub fn describe(public: &str) -> Option<Described> {
    let key = PublicKey::from_openssh(&bare(public)).ok()?;
    let (key_type, bits) = match key.key_data() {
        KeyData::Ed25519(_) => (KeyType::Ed25519, 256),
        KeyData::Rsa(rsa) => {
            // `key_size` counts whole bytes
            let modulus = rsa.n().as_positive_bytes()?;
            (KeyType::Rsa, u32::try_from(modulus.len() * 8).ok()? - modulus.first()?.leading_zeros())
        }
        _ => return None,
    };
    Some(Described { key_type, bits, fingerprint: key.fingerprint(HashAlg::Sha256).to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_key_is_not_described() {
        for text in
            ["", "ssh-rsa", "ssh-rsa AAAA", "ssh-rsa AAAAB3NzaC1yc2E= x", "ssh-dss AAAAB3NzaC1kc3M=", "ssh-rsa !"]
        {
            assert_eq!(describe(text), None, "{text}");
        }
    }
}
