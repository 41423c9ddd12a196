//! Generates key pairs in memory.

use crate::error::Error;
use crate::inventory::KeyType;
use crate::keys::files::{KeyKind, Pair};
use crate::secret::Secret;
use anyhow::Context as _;
use ssh_key::private::{KeypairData, RsaKeypair};
use ssh_key::{Algorithm, LineEnding, PrivateKey};
use std::sync::mpsc;
use std::thread;

/// Generates a pair with this file name and comment, in OpenSSH's formats. RSA takes about a second of CPU: run it on a
/// thread that may block.
///
/// # Errors
/// When the operating system has no random numbers, or the crate fails.
pub fn generate(name: &'static str, kind: KeyKind, comment: &str) -> Result<Pair, Error> {
    let generate = || {
        let mut rng = ssh_key::rand_core::UnwrapErr(ssh_key::getrandom::SysRng);
        let mut key = match kind.key_type {
            KeyType::Rsa => PrivateKey::new(KeypairData::from(rsa(kind.bits() as usize)?), comment)?,
            KeyType::Ed25519 => PrivateKey::random(&mut rng, Algorithm::Ed25519)?,
        };
        key.set_comment(comment);
        anyhow::Ok((Secret::new(key.to_openssh(LineEnding::LF)?), key.public_key().to_openssh()?))
    };
    let (private, public) = generate().context("cannot generate a key pair")?;
    Ok(Pair { name, public, private: Some(private) })
}

/// The time to find two primes varies widely, so several cores search independently and the first pair found is used.
fn rsa(bits: usize) -> Result<RsaKeypair, ssh_key::Error> {
    let (sender, receiver) = mpsc::channel();
    for _ in 0..thread::available_parallelism().map_or(1, |cores| cores.get().min(4)) {
        let sender = sender.clone();
        thread::spawn(move || {
            let mut rng = ssh_key::rand_core::UnwrapErr(ssh_key::getrandom::SysRng);
            // the later ones are wiped when they are dropped
            let _ = sender.send(RsaKeypair::random(&mut rng, bits));
        });
    }
    drop(sender);
    receiver.recv().unwrap_or(Err(ssh_key::Error::Crypto))
}

/// The public half of a private key in OpenSSH's format, `TYPE BASE64 COMMENT`.
#[cfg(test)]
pub fn public_of(private: &str) -> String {
    PrivateKey::from_openssh(private).and_then(|key| key.public_key().to_openssh()).expect("a private key")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::files::{bare, describe};

    #[test]
    fn ssh_keygen_reads_our_keys_and_describes_them_as_we_do() {
        let kinds =
            [(KeyType::Rsa, None), (KeyType::Rsa, Some(2048)), (KeyType::Rsa, Some(2056)), (KeyType::Ed25519, None)];
        for (key_type, bits) in kinds {
            let pair = generate("key", KeyKind { key_type, bits }, "hvdctl:lab").unwrap();
            let dir = tempfile::tempdir().unwrap();
            let file = dir.path().join("key");
            std::fs::write(&file, pair.private.as_ref().unwrap().expose()).unwrap();
            std::process::Command::new("chmod").arg("600").arg(&file).status().unwrap();
            let public = std::process::Command::new("ssh-keygen").arg("-y").arg("-f").arg(&file).output().unwrap();
            assert_eq!(bare(&String::from_utf8(public.stdout).unwrap()), bare(&pair.public));
            let listed = std::process::Command::new("ssh-keygen").arg("-l").arg("-f").arg(&file).output().unwrap();
            let listed = String::from_utf8(listed.stdout).unwrap();
            let described = describe(&pair.public).unwrap();
            assert!(KeyKind { key_type, bits }.is(&described), "{described:?}");
            let words = format!("{} {} hvdctl:lab ", described.bits, described.fingerprint);
            assert!(listed.starts_with(&words), "{listed}is not {words}");
        }
    }
}
