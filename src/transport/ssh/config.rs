//! The configuration that ssh is given: the user's own first, then what holds where that says nothing.

use crate::error::Error;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// ssh's own ciphers in another order (ssh_config(5)): where processors have AES, GCM ships projects at twice the speed of
/// ChaCha20. Like all that stands last, it holds where no configuration says otherwise.
const CIPHERS: &str = "Ciphers aes128-gcm@openssh.com,aes256-gcm@openssh.com,chacha20-poly1305@openssh.com,aes128-ctr,\
                       aes192-ctr,aes256-ctr\n";

/// Key exchanges that take little of this machine's time; the first is safe from quantum computers as well.
const QUICK_EXCHANGES: [&str; 2] = ["mlkem768x25519-sha256", "curve25519-sha256"];

/// The generated configuration. ssh takes the first value that it finds, so what stands first is ours, and what stands
/// last holds where the user's files say nothing.
pub(super) fn configuration(named: Option<&Path>, known_hosts: &Path, strict: bool) -> Result<String, Error> {
    let quoted = |path: &Path, what: &str| -> Result<String, Error> {
        let path = std::path::absolute(path).map_err(|e| Error::Here(format!("{}: {e}", path.display())))?;
        let text = path.to_str().filter(|p| !p.contains(['"', '\n', '$']));
        text.map(|text| format!("\"{text}\"")).ok_or_else(|| {
            Error::usage(format!("ssh cannot {what} {}", path.display()), "rename it without quotes or $")
        })
    };
    let home = std::env::home_dir();
    let in_home = |name: &str| home.as_ref().map(|home| home.join(name));
    // jump hosts have an ssh of their own, which would ask on the terminal
    let mut text = String::from("BatchMode yes\nLogLevel INFO\n");
    if strict {
        text.push_str("StrictHostKeyChecking yes\n");
    }
    for path in [named.map(Path::to_owned), in_home(".ssh/config")].into_iter().flatten() {
        text.push_str(&format!("Include {}\n", quoted(&path, "include")?));
    }
    // names in clear are what makes a first contact tellable; Debian's own configuration has them hashed
    text.push_str("Host *\nHashKnownHosts no\nInclude /etc/ssh/ssh_config\nHost *\nStrictHostKeyChecking accept-new\n");
    text.push_str("UserKnownHostsFile");
    let users = [in_home(".ssh/known_hosts"), in_home(".ssh/known_hosts2")];
    for path in [Some(known_hosts.to_owned())].into_iter().chain(users).flatten() {
        // ssh expands %-tokens in this option
        text.push_str(&format!(" {}", quoted(&path, "use")?.replace('%', "%%")));
    }
    text.push('\n');
    text.push_str(CIPHERS);
    Ok(text)
}

/// Writes the configuration, and beside it one for each key exchange of [`QUICK_EXCHANGES`], by its name.
pub(super) fn write_all(config: &Path, text: &str) -> std::io::Result<()> {
    // ssh includes no file that others than its owner may write, as a umask of 002 would have it
    let write = |file: &Path, text: &str| {
        fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)?.write_all(text.as_bytes())
    };
    write(config, text)?;
    QUICK_EXCHANGES.iter().try_for_each(|exchange| {
        // behind all else, so that it holds where no configuration says otherwise
        let text = format!("Include {}\nHost *\nKexAlgorithms ^{exchange}\n", config.display());
        write(&config.with_file_name(exchange), &text)
    })
}

/// What an ssh is to begin with that would begin with sntrup761, as OpenSSH 9.0 to 9.9 do: that costs this machine 0.15 s of a
/// processor for each node. `order` is its `KexAlgorithms` as `ssh -G` says it.
pub(super) fn quick_exchange(order: &str) -> Option<&'static str> {
    let names: Vec<&str> = order.split(',').collect();
    let slow = names.first().is_some_and(|name| name.starts_with("sntrup761"));
    QUICK_EXCHANGES.into_iter().find(|quick| slow && names.contains(quick))
}

/// hvdctl's own known-hosts file, `$XDG_STATE_HOME/hvdctl/known_hosts`; it is made where it is missing.
pub(super) fn own_known_hosts() -> Result<PathBuf, Error> {
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let state = state.or_else(|| std::env::home_dir().map(|home| home.join(".local/state")));
    let Some(dir) = state.map(|state| state.join("hvdctl")) else {
        return Err(Error::usage("there is no place for known host keys", "set $HOME or $XDG_STATE_HOME"));
    };
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir);
    made.map_err(|e| Error::Here(format!("cannot make {}: {e}", dir.display())))?;
    let file = dir.join("known_hosts");
    let opened = fs::OpenOptions::new().append(true).create(true).mode(0o600).open(&file);
    opened.map_err(|e| Error::Here(format!("cannot open {}: {e}", file.display())))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn ssh_includes_what_is_written_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("config");
        write_all(&config, "Host a\nKexAlgorithms ecdh-sha2-nistp256\nHost *\nUser ana\n").unwrap();
        for (host, first) in [("a", "ecdh-sha2-nistp256"), ("b", QUICK_EXCHANGES[1])] {
            let file = dir.path().join(QUICK_EXCHANGES[1]);
            let output = std::process::Command::new("ssh").arg("-GF").arg(file).arg(host).output().unwrap();
            let said = String::from_utf8(output.stdout).unwrap();
            assert!(said.contains(&format!("\nkexalgorithms {first}")), "{said}");
        }
        // with others' right to write it ssh ends with `Bad owner or permissions`
        assert_eq!(fs::metadata(&config).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_slow_key_exchange_does_not_come_first() {
        let (slow, older) = ("sntrup761x25519-sha512@openssh.com", "curve25519-sha256,ecdh-sha2-nistp256");
        assert_eq!(quick_exchange(older), None);
        assert_eq!(quick_exchange(&format!("{slow},{older}")), Some("curve25519-sha256"));
        assert_eq!(quick_exchange(&format!("{slow},mlkem768x25519-sha256,{older}")), Some("mlkem768x25519-sha256"));
        assert_eq!(quick_exchange(&format!("mlkem768x25519-sha256,{slow},{older}")), None);
        assert_eq!(quick_exchange(slow), None, "where the user wants no other");
    }

    #[test]
    fn the_configuration_lets_the_users_own_hold() {
        let text =
            configuration(Some(Path::new("/lab/ssh_config")), Path::new("/state/100%/known_hosts"), false).unwrap();
        let place = |words: &str| text.find(words).unwrap_or_else(|| panic!("no {words} in {text}"));
        assert!(place("Include \"/lab/ssh_config\"") < place("StrictHostKeyChecking accept-new"));
        assert!(place("Include /etc/ssh/ssh_config") < place("UserKnownHostsFile \"/state/100%%/known_hosts\""));
        assert!(place("Include /etc/ssh/ssh_config") < place("Ciphers aes128-gcm@openssh.com,"));
        let strict = configuration(None, Path::new("/k"), true).unwrap();
        assert!(strict.find("StrictHostKeyChecking yes").unwrap() < strict.find("Include").unwrap());
        assert!(configuration(Some(Path::new("/a\"b")), Path::new("/k"), false).is_err());
    }
}
