//! Arguments of `keys`.

use super::Waiting;
use crate::inventory::KeyType;
use crate::keys::files::KeyKind;
use clap::{Args, Subcommand};

/// The subcommands of `keys`.
#[derive(Debug, Subcommand)]
pub enum Keys {
    /// Generate the key pair on the master, if it has none
    Generate(Generate),
    /// Generate the key pair if needed, and distribute the keys to every node
    Push(KeysPush),
    /// Check every node's keys, and which worker can log in to which
    Status,
    /// Replace the key pair on every node, or finish an interrupted rotation
    Rotate(Rotate),
}

/// Options of `keys push`.
#[derive(Debug, Args)]
pub struct KeysPush {
    /// Where a node accepts only a password, let ssh ask for it and install your public key first
    #[arg(long)]
    pub first_login: bool,
    /// Wait for locks
    #[command(flatten)]
    pub waiting: Waiting,
}

/// The kind of a new key pair.
#[derive(Debug, Args)]
pub struct NewPair {
    /// Key type [default: cluster.key_type]
    #[arg(long = "type", value_name = "TYPE")]
    pub key_type: Option<KeyType>,
    /// Size of an RSA key: 2048 to 8192, a multiple of 8 [default: 4096]
    #[arg(long, value_name = "N", value_parser = bits)]
    pub bits: Option<u32>,
}

impl NewPair {
    /// Returns the kind that was asked for, or `None`. `usual`: the inventory's type.
    ///
    /// # Errors
    /// When a size is given for a type that has only one.
    pub fn kind(&self, usual: KeyType) -> Result<Option<KeyKind>, String> {
        let key_type = self.key_type.unwrap_or(usual);
        match self.bits {
            Some(_) if key_type == KeyType::Ed25519 => {
                Err("--bits is only for RSA: Ed25519 keys have one size".to_owned())
            }
            None if self.key_type.is_none() => Ok(None),
            bits => Ok(Some(KeyKind { key_type, bits })),
        }
    }
}

fn bits(text: &str) -> Result<u32, String> {
    let bits = text.parse().ok().filter(|bits| (2048..=8192).contains(bits) && bits % 8 == 0);
    bits.ok_or_else(|| "an RSA key has 2048 to 8192 bits, a multiple of 8".to_owned())
}

/// Options of `keys generate`.
#[derive(Debug, Args)]
pub struct Generate {
    /// The kind of the pair
    #[command(flatten)]
    pub pair: NewPair,
    /// Wait for locks
    #[command(flatten)]
    pub waiting: Waiting,
}

/// Options of `keys rotate`.
#[derive(Debug, Args)]
pub struct Rotate {
    /// The kind of the new pair
    #[command(flatten)]
    pub pair: NewPair,
    /// Skip unreachable nodes; `keys push` gives them the new key later
    #[arg(long)]
    pub skip_offline: bool,
    /// Wait for locks
    #[command(flatten)]
    pub waiting: Waiting,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split(' '))
    }

    #[test]
    fn only_rsa_has_sizes() {
        let kind = |line: &str, usual| {
            let Command::Keys(Keys::Generate(pair)) = parse(&format!("hvdctl keys generate{line}")).unwrap().command
            else {
                panic!("{line}")
            };
            pair.pair.kind(usual)
        };
        let rsa = |bits| Ok(Some(KeyKind { key_type: KeyType::Rsa, bits }));
        assert_eq!(kind("", KeyType::Rsa), Ok(None));
        assert_eq!(kind(" --bits 2056", KeyType::Rsa), rsa(Some(2056)));
        assert_eq!(kind(" --type rsa", KeyType::Ed25519), rsa(None));
        assert!(kind(" --bits 4096", KeyType::Ed25519).is_err());
        assert!(kind(" --type ed25519 --bits 2048", KeyType::Rsa).is_err_and(|e| e.contains("one size")));
        for bits in ["2047", "2049", "8200", "0", "-8", "x", "99999999999"] {
            assert!(parse(&format!("hvdctl keys rotate --bits {bits}")).is_err(), "{bits}");
        }
    }
}
