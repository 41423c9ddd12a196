//! The key of an owner: a file, or what an agent has for it.

use super::keygen::KeygenKey;
use super::signature::{SigningKey, SigningKeyFault, public_half};
use crate::error::Error;
use crate::event::Events;
use crate::inventory::Pool;
use crate::text::public_key;
use crate::text::quote;
use ssh_key::public::KeyData;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// The most bytes of a private key.
const LARGEST_KEY: u64 = 64 << 10;

/// An owner's key.
pub enum Key {
    /// hvdctl signs itself.
    Own(SigningKey),
    /// `ssh-keygen` signs.
    Keygen(KeygenKey),
}

impl Key {
    /// Reads that of the pool's member at this machine.
    ///
    /// # Errors
    /// If there is none that can sign, or other users can read it.
    pub fn read(pool: &Pool) -> Result<Key, Error> {
        let file = match (&pool.key, std::env::home_dir()) {
            (Some(file), _) => file.clone(),
            (None, Some(home)) => home.join(".ssh/id_ed25519"),
            (None, None) => PathBuf::from("id_ed25519"),
        };
        let shown = file.display();
        let make = "make a key for the pool: ssh-keygen -t ed25519 -f ~/.ssh/id_pool, and set key in [pool]";
        if let Some(key) = key_in_agent(&file) {
            return Ok(Key::Keygen(key));
        }
        let (text, mode) =
            key_text(&file).map_err(|why| Error::usage(format!("cannot read your key {shown}: {why}"), make))?;
        // before its mode, which is that of all public halves
        if public_key::parse(&text).is_some() {
            return Err(Error::usage(
                format!("{shown} is the public half of a key, and its name does not end with .pub"),
                "key in [pool] names the private half, or, if that is in your agent, a public half FILE.pub",
            ));
        }
        if mode & 0o077 != 0 {
            return Err(Error::usage(
                format!("other users can read your key {shown} (mode {mode:o}); ssh would not use it either"),
                format!("chmod 600 {}", quote::readable(&file.to_string_lossy())),
            ));
        }
        match SigningKey::parse(&text) {
            Ok(key) => Ok(Key::Own(key)),
            Err(SigningKeyFault::Encrypted(public)) => Ok(Key::Keygen(KeygenKey { file, public: *public })),
            Err(SigningKeyFault::Type) => {
                Err(Error::usage(format!("your key {shown} cannot be read as an Ed25519 or RSA key"), make))
            }
            Err(SigningKeyFault::Format) => Err(Error::usage(
                format!("{shown} is not a private key in OpenSSH's format"),
                "ssh-keygen -p -f FILE writes a key in that format",
            )),
        }
    }

    /// Returns its public half.
    pub fn public(&self) -> &KeyData {
        match self {
            Key::Own(key) => key.public(),
            Key::Keygen(key) => &key.public,
        }
    }

    /// Returns each text with its signature.
    ///
    /// # Errors
    /// If the key cannot sign.
    pub async fn sign(&self, texts: &[String], events: &Events) -> Result<Vec<String>, Error> {
        match self {
            Key::Own(key) => texts
                .iter()
                .map(|text| key.sign(text).ok_or_else(|| Error::Local("your key cannot sign".into())))
                .collect(),
            Key::Keygen(key) => key.sign(texts, events).await.map_err(|error| {
                let file = key.file.display();
                let hint = "add the private key to your agent (ssh-add), or run this in a terminal, where \
                            ssh-keygen asks for the passphrase";
                Error::check(format!("cannot sign with your key {file}: {error:#}"), hint)
            }),
        }
    }
}

/// Returns a key of which only the public half is in a file: this one, or the one next to a private key that is
/// missing.
fn key_in_agent(file: &Path) -> Option<KeygenKey> {
    let is_public = file.extension().is_some_and(|extension| extension == "pub");
    if !is_public && file.exists() {
        return None;
    }
    let mut name = file.as_os_str().to_owned();
    if !is_public {
        name.push(".pub");
    }
    let (file, mut text) = (PathBuf::from(name), String::new());
    File::open(&file).ok()?.take(LARGEST_KEY).read_to_string(&mut text).ok()?;
    Some(KeygenKey { public: public_half(&text)?, file })
}

/// Returns the text of a private key, and who may read it.
fn key_text(file: &Path) -> Result<(Zeroizing<String>, u32), String> {
    let mut open = File::open(file).map_err(|error| error.to_string())?;
    let metadata = open.metadata().map_err(|error| error.to_string())?;
    if !metadata.is_file() {
        return Err("it is not a file".into());
    }
    let mut text = Zeroizing::new(String::with_capacity(LARGEST_KEY as usize));
    (&mut open).take(LARGEST_KEY).read_to_string(&mut text).map_err(|error| error.to_string())?;
    Ok((text, metadata.mode() & 0o777))
}
