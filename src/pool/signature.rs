//! Signatures in OpenSSH's format (PROTOCOL.sshsig), as `ssh-keygen -Y sign` makes and `ssh-keygen -Y verify` checks
//! them. A pool's file is the signed text with the signature behind it.

use crate::text::public_key;
use ssh_key::public::KeyData;
use ssh_key::{HashAlg, LineEnding, PrivateKey, SshSig};

/// The namespace of the signatures, so that a signature for another purpose is not accepted as one of these
/// (ssh-keygen(1), `-n`).
pub const NAMESPACE: &str = "hvdctl-pool";

/// The first line of a signature.
const BEGIN: &str = "-----BEGIN SSH SIGNATURE-----";

/// The first line of a private key in OpenSSH's format.
const BEGIN_KEY: &str = "-----BEGIN OPENSSH PRIVATE KEY-----";

/// An owner's private key.
pub struct SigningKey(PrivateKey);

/// A reason why hvdctl cannot sign with a private key itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SigningKeyFault {
    /// It needs a passphrase. This is its public half.
    Encrypted(Box<KeyData>),
    /// It is of a type that hvdctl does not sign with.
    Type,
    /// It is no private key in OpenSSH's format.
    Format,
}

impl SigningKey {
    /// Reads a private key in OpenSSH's format.
    ///
    /// # Errors
    /// The reason why it cannot sign.
    pub fn parse(text: &str) -> Result<SigningKey, SigningKeyFault> {
        let text = text.trim_start();
        // the crate also refuses what it was built without
        let fault = if text.starts_with(BEGIN_KEY) { SigningKeyFault::Type } else { SigningKeyFault::Format };
        let key = PrivateKey::from_openssh(text).map_err(|_| fault)?;
        match key.public_key().key_data() {
            public if !is_supported(public) => Err(SigningKeyFault::Type),
            public if key.is_encrypted() => Err(SigningKeyFault::Encrypted(Box::new(public.clone()))),
            _ => Ok(SigningKey(key)),
        }
    }

    /// Returns its public half.
    pub fn public(&self) -> &KeyData {
        self.0.public_key().key_data()
    }

    /// Returns a text, which ends with a newline, with its signature, as a pool's file has them; `None` if the key is
    /// broken.
    pub fn sign(&self, text: &str) -> Option<String> {
        let signature = self.0.sign(NAMESPACE, HashAlg::Sha512, text.as_bytes()).ok()?;
        Some(text.to_owned() + &signature.to_pem(LineEnding::LF).ok()?)
    }
}

/// Reads the public half of a key that can sign, `TYPE BASE64 [COMMENT]`; `None` if it is none.
pub fn public_half(text: &str) -> Option<KeyData> {
    let key = public_key::parse(text)?.key_data().clone();
    is_supported(&key).then_some(key)
}

/// Returns whether hvdctl verifies what such a key has signed.
fn is_supported(key: &KeyData) -> bool {
    matches!(key, KeyData::Ed25519(_) | KeyData::Rsa(_))
}

/// Splits a file into its text and its signature; `None` if it has no signature.
pub fn split(file: &str) -> Option<(&str, &str)> {
    let at = if file.starts_with(BEGIN) { 0 } else { file.find(&format!("\n{BEGIN}"))? + 1 };
    Some(file.split_at(at))
}

/// Reads a signature; `None` if it is none.
pub fn parse(text: &str) -> Option<SshSig> {
    SshSig::from_pem(text.trim_end()).ok()
}

/// Returns whether a text is the one that was signed for a pool, with the key that the signature names.
pub fn is_of(signature: &SshSig, text: &str) -> bool {
    let key = ssh_key::PublicKey::from(signature.public_key().clone());
    key.verify(NAMESPACE, text.as_bytes(), signature).is_ok()
}
