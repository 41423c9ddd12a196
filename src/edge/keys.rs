//! The only module that knows the `ssh-key` crate: makes key pairs in memory.

use crate::core::inventory::KeyType;
use crate::core::trust::{KeyPair, Secret};
use crate::error::Error;
use ssh_key::private::{KeypairData, RsaKeypair};
use ssh_key::{Algorithm, LineEnding, PrivateKey};

/// Bits of an RSA key; what `ssh-keygen` and the tutorial use.
pub const RSA_BITS: usize = 4096;

/// Makes a pair with this comment, in OpenSSH's formats. RSA takes about a second of CPU: call it where that blocks
/// nobody.
///
/// # Errors
/// When the operating system has no random numbers, or the crate fails.
pub fn generate(key_type: KeyType, comment: &str) -> Result<KeyPair, Error> {
    let failed = |e: ssh_key::Error| Error::Here(format!("could not make a key pair: {e}"));
    let mut rng = ssh_key::rand_core::UnwrapErr(ssh_key::getrandom::SysRng);
    let mut key = match key_type {
        KeyType::Rsa => {
            let pair = RsaKeypair::random(&mut rng, RSA_BITS).map_err(failed)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ssh_keygen_reads_what_we_make() {
        for key_type in [KeyType::Rsa, KeyType::Ed25519] {
            let pair = generate(key_type, "hvdctl:lab").unwrap();
            let dir = tempfile::tempdir().unwrap();
            let file = dir.path().join("key");
            std::fs::write(&file, pair.private.expose()).unwrap();
            std::process::Command::new("chmod").arg("600").arg(&file).status().unwrap();
            let public = std::process::Command::new("ssh-keygen").arg("-y").arg("-f").arg(&file).output().unwrap();
            assert_eq!(String::from_utf8(public.stdout).unwrap().trim(), pair.public);
            let listed = std::process::Command::new("ssh-keygen").arg("-l").arg("-f").arg(&file).output().unwrap();
            let listed = String::from_utf8(listed.stdout).unwrap();
            let bits = if key_type == KeyType::Rsa { "4096 " } else { "256 " };
            assert!(listed.starts_with(bits) && listed.contains("hvdctl:lab"), "{listed}");
        }
    }
}
