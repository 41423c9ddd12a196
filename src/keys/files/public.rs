//! What a public key says of itself: its kind, its size, its fingerprint.

use crate::inventory::KeyType;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use schemars::JsonSchema;
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::fmt;

/// A public key, as `ssh-keygen -l` would list it.
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
        write!(f, "{} {}", kind(self.key_type), self.fingerprint).and_then(|()| match self.key_type {
            KeyType::Rsa => write!(f, " ({} bits)", self.bits),
            KeyType::Ed25519 => Ok(()),
        })
    }
}

impl Described {
    /// `RSA 4096` or `Ed25519`: the latter has one size only.
    pub fn short(&self) -> String {
        match self.key_type {
            KeyType::Rsa => format!("RSA {}", self.bits),
            KeyType::Ed25519 => "Ed25519".to_owned(),
        }
    }
}

/// The type's name as people write it.
pub fn kind(key_type: KeyType) -> &'static str {
    match key_type {
        KeyType::Rsa => "RSA",
        KeyType::Ed25519 => "Ed25519",
    }
}

/// Reads `TYPE BASE64 …`; `None` for what is no RSA or Ed25519 key.
pub fn describe(public: &str) -> Option<Described> {
    let mut words = public.split_whitespace();
    let (name, blob) = (words.next()?, STANDARD.decode(words.next()?).ok()?);
    // RFC 4253, 6.6: strings, each behind its length; the name once more, then e and n, or the one of Ed25519
    let (inside, rest) = string(&blob)?;
    if inside != name.as_bytes() {
        return None;
    }
    let (key_type, bits) = match name {
        "ssh-ed25519" => (KeyType::Ed25519, 256),
        "ssh-rsa" => {
            let (_exponent, rest) = string(rest)?;
            let (modulus, _) = string(rest)?;
            let start = modulus.iter().position(|byte| *byte != 0)?;
            let bytes = u32::try_from(modulus.len() - start).ok()?;
            (KeyType::Rsa, bytes.checked_mul(8)? - modulus[start].leading_zeros())
        }
        _ => return None,
    };
    let fingerprint = format!("SHA256:{}", STANDARD_NO_PAD.encode(Sha256::digest(&blob)));
    Some(Described { key_type, bits, fingerprint })
}

fn string(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_at_checked(4)?;
    rest.split_at_checked(u32::from_be_bytes(length.try_into().ok()?) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_no_key_is_not_described() {
        for text in
            ["", "ssh-rsa", "ssh-rsa AAAA", "ssh-rsa AAAAB3NzaC1yc2E= x", "ssh-dss AAAAB3NzaC1kc3M=", "ssh-rsa !"]
        {
            assert_eq!(describe(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_blob_is_too_strange(bytes in prop::collection::vec(any::<u8>(), 0..60), rsa in any::<bool>()) {
            let name: &[u8] = if rsa { b"ssh-rsa" } else { b"ssh-ed25519" };
            let mut blob = (name.len() as u32).to_be_bytes().to_vec();
            blob.extend_from_slice(name);
            blob.extend(bytes);
            let described = describe(&format!("{} {}", String::from_utf8_lossy(name), STANDARD.encode(blob)));
            prop_assert!(described.is_none_or(|d| d.bits <= 8 * 60));
        }
    }
}
