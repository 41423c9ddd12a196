//! Makes key pairs in memory.

use crate::error::Error;
use crate::inventory::KeyType;
use crate::keys::files::{KeyPair, Kind};
use crate::secret::Secret;
use ssh_key::private::{KeypairData, RsaKeypair};
use ssh_key::{Algorithm, LineEnding, PrivateKey};
use std::sync::mpsc;
use std::thread;

/// Bits of an RSA key where nothing else is asked for; what the tutorial uses.
pub const RSA_BITS: u32 = 4096;

/// Makes a pair with this comment, in OpenSSH's formats. RSA takes about a second of CPU: call it where that blocks
/// nobody.
///
/// # Errors
/// When the operating system has no random numbers, or the crate fails.
pub fn generate(kind: Kind, comment: &str) -> Result<KeyPair, Error> {
    let failed = |e: ssh_key::Error| Error::Here(format!("cannot make a key pair: {e}"));
    let mut rng = ssh_key::rand_core::UnwrapErr(ssh_key::getrandom::SysRng);
    let mut key = match kind.key_type {
        KeyType::Rsa => {
            let pair = rsa(kind.bits.unwrap_or(RSA_BITS) as usize).map_err(failed)?;
            PrivateKey::new(KeypairData::from(pair), comment).map_err(failed)?
        }
        KeyType::Ed25519 => PrivateKey::random(&mut rng, Algorithm::Ed25519).map_err(failed)?,
    };
    key.set_comment(comment);
    Ok(KeyPair {
        private: Secret::new(key.to_openssh(LineEnding::LF).map_err(failed)?),
        public: key.public_key().to_openssh().map_err(failed)?,
    })
}

/// How long the search for two primes takes is chance, so several cores search for pairs of their own and the first one found is
/// taken.
fn rsa(bits: usize) -> Result<RsaKeypair, ssh_key::Error> {
    let (sender, receiver) = mpsc::channel();
    for _ in 0..thread::available_parallelism().map_or(1, |cores| cores.get().min(4)) {
        let sender = sender.clone();
        thread::spawn(move || {
            let mut rng = ssh_key::rand_core::UnwrapErr(ssh_key::getrandom::SysRng);
            // the others come too late, and are wiped when they are dropped
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
            let pair = generate(Kind { key_type, bits }, "hvdctl:lab").unwrap();
            let dir = tempfile::tempdir().unwrap();
            let file = dir.path().join("key");
            std::fs::write(&file, pair.private.expose()).unwrap();
            std::process::Command::new("chmod").arg("600").arg(&file).status().unwrap();
            let public = std::process::Command::new("ssh-keygen").arg("-y").arg("-f").arg(&file).output().unwrap();
            assert_eq!(bare(&String::from_utf8(public.stdout).unwrap()), bare(&pair.public));
            let listed = std::process::Command::new("ssh-keygen").arg("-l").arg("-f").arg(&file).output().unwrap();
            let listed = String::from_utf8(listed.stdout).unwrap();
            let described = describe(&pair.public).unwrap();
            assert!(Kind { key_type, bits }.is(&described), "{described:?}");
            let words = format!("{} {} hvdctl:lab ", described.bits, described.fingerprint);
            assert!(listed.starts_with(&words), "{listed}is not {words}");
        }
    }
}
