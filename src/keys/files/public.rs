//! The kinds of keys: type, size and fingerprint of a public key, and the kind of a new pair.

use crate::inventory::KeyType;
use crate::text::public_key;
use schemars::JsonSchema;
use serde::Serialize;
use ssh_key::public::KeyData;
use std::fmt;

/// A public key, as `ssh-keygen -l` lists it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PublicKey {
    /// RSA or Ed25519.
    #[serde(rename = "type")]
    pub key_type: KeyType,
    /// Its size.
    pub bits: u32,
    /// `SHA256:…`
    pub fingerprint: String,
}

impl PublicKey {
    /// Returns the type and size.
    pub fn kind(&self) -> KeyKind {
        KeyKind { key_type: self.key_type, bits: Some(self.bits) }
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.key_type {
            KeyType::Rsa => write!(f, "RSA {} ({} bits)", self.fingerprint, self.bits),
            KeyType::Ed25519 => write!(f, "Ed25519 {}", self.fingerprint),
        }
    }
}

/// The kind of a new pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyKind {
    /// RSA or Ed25519.
    pub key_type: KeyType,
    /// The size of an RSA key, if it is not the default.
    pub bits: Option<u32>,
}

impl fmt::Display for KeyKind {
    /// `RSA 4096`, or `Ed25519`, which has one size only.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.key_type {
            KeyType::Rsa => write!(f, "RSA {}", self.bits()),
            KeyType::Ed25519 => f.write_str("Ed25519"),
        }
    }
}

impl KeyKind {
    /// Returns the size of an RSA key; by default that of Horovod's documentation.
    pub fn bits(&self) -> u32 {
        self.bits.unwrap_or(4096)
    }

    /// Returns the command that replaces the pair by one of this kind.
    pub fn rotation(&self) -> String {
        let key_type = if self.key_type == KeyType::Rsa { "rsa" } else { "ed25519" };
        let bits = self.bits.map(|bits| format!(" --bits {bits}")).unwrap_or_default();
        format!("hvdctl keys rotate --type {key_type}{bits}")
    }

    /// Returns whether a pair is of this kind; without `bits` any size is right.
    pub fn is(&self, pair: &PublicKey) -> bool {
        pair.key_type == self.key_type && self.bits.is_none_or(|bits| bits == pair.bits)
    }
}

/// Reads `TYPE BASE64 …`. Returns `None` for anything but an RSA or Ed25519 key.
pub fn describe(public: &str) -> Option<PublicKey> {
    let key = public_key::parse(public)?;
    let (key_type, bits) = match key.key_data() {
        KeyData::Ed25519(_) => (KeyType::Ed25519, 256),
        KeyData::Rsa(rsa) => {
            // `key_size` counts whole bytes
            let modulus = rsa.n().as_positive_bytes()?;
            (KeyType::Rsa, u32::try_from(modulus.len() * 8).ok()? - modulus.first()?.leading_zeros())
        }
        _ => return None,
    };
    Some(PublicKey { key_type, bits, fingerprint: public_key::fingerprint(&key) })
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
