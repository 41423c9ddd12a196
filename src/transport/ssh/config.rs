//! The configuration for ssh: the user's own, followed by defaults.

use super::client::Client;
use crate::error::Error;
use crate::paths;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// ssh's own ciphers in another order (ssh_config(5)): where processors have AES, GCM transfers projects at twice the
/// speed of ChaCha20. Like every default, it follows the user's configuration, which overrides it.
const CIPHERS: &str = "Ciphers aes128-gcm@openssh.com,aes256-gcm@openssh.com,chacha20-poly1305@openssh.com,aes128-ctr,\
                       aes192-ctr,aes256-ctr\n";

/// Key exchanges that take little time on this machine; the first is safe from quantum computers as well.
const QUICK_EXCHANGES: [&str; 2] = ["mlkem768x25519-sha256", "curve25519-sha256"];

/// The key exchange that OpenSSH 9.0 to 9.9 prefer. It takes 0.15 s of a processor for each node.
const SLOW_EXCHANGE: &str = "sntrup761x25519-sha512@openssh.com";

/// Returns the generated configuration. ssh takes the first value that it finds, so what comes first overrides the
/// user's files, and what comes last are defaults.
pub(super) fn configuration(
    named: Option<&Path>,
    known_hosts: &Path,
    strict: bool,
    client: &Client,
) -> Result<String, Error> {
    with_system(Path::new("/etc/ssh/ssh_config"), named, known_hosts, strict, client)
}

/// Returns the configuration where this file is that of the system.
fn with_system(
    system: &Path,
    named: Option<&Path>,
    known_hosts: &Path,
    strict: bool,
    client: &Client,
) -> Result<String, Error> {
    let quoted = |path: &Path, what: &str| -> Result<String, Error> {
        let path = std::path::absolute(path).map_err(|e| Error::Local(format!("{}: {e}", path.display())))?;
        let text = path.to_str().filter(|p| !p.contains(['"', '\n', '$']));
        text.map(|text| format!("\"{text}\"")).ok_or_else(|| {
            Error::usage(format!("ssh cannot {what} {}", path.display()), "rename it without quotes or $")
        })
    };
    let in_home = |name: &str| client.home.as_ref().map(|home| home.join(name));
    // jump hosts have an ssh of their own, which would ask on the terminal
    let mut text = String::from("BatchMode yes\nLogLevel INFO\n");
    text.push_str(&client.not_interactive());
    if strict {
        text.push_str("StrictHostKeyChecking yes\n");
    }
    for path in [named.map(Path::to_owned), client.config()].into_iter().flatten() {
        text.push_str(&format!("Include {}\n", quoted(&path, "include")?));
    }
    // a first contact is reported by its name, which Debian's own configuration would hash. An ssh of another origin
    // (conda, nix, Homebrew) may not know options of this system's
    text.push_str(&format!("Host *\nHashKnownHosts no\nIgnoreUnknown *\nInclude {}\n", system.display()));
    text.push_str("Host *\nStrictHostKeyChecking accept-new\nUserKnownHostsFile");
    let users = [in_home(".ssh/known_hosts"), in_home(".ssh/known_hosts2")];
    for path in [Some(known_hosts.to_owned())].into_iter().chain(users).flatten() {
        // ssh expands %-tokens in this option
        text.push_str(&format!(" {}", quoted(&path, "use")?.replace('%', "%%")));
    }
    // clears those before it: no variable of this machine goes to a node
    text.push_str("\nSendEnv -*\n");
    text.push_str(CIPHERS);
    let knows = |exchange: &str| client.exchanges.lines().any(|line| line == exchange);
    if let Some(quick) = QUICK_EXCHANGES.into_iter().find(|quick| knows(quick) && knows(SLOW_EXCHANGE)) {
        text.push_str(&format!("KexAlgorithms ^{quick}\n"));
    }
    Ok(text)
}

/// Returns hvdctl's own known-hosts file, `$XDG_STATE_HOME/hvdctl/known_hosts`, which is created if it is missing.
pub(super) fn own_known_hosts() -> Result<PathBuf, Error> {
    let Some(dir) = paths::state_directory() else {
        return Err(Error::usage("there is no place for known host keys", "set $HOME or $XDG_STATE_HOME"));
    };
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir);
    let hint = "hvdctl keeps host keys there: make it writable, or set $XDG_STATE_HOME to a directory of your own";
    made.map_err(|e| Error::Local(format!("cannot make {}: {e}\n  hint: {hint}", dir.display())))?;
    let file = dir.join("known_hosts");
    let opened = fs::OpenOptions::new().append(true).create(true).mode(0o600).open(&file);
    opened.map_err(|e| Error::Local(format!("cannot open {}: {e}", file.display())))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_key_exchange_does_not_come_first() {
        let exchange = |known: &[&str]| {
            let client = Client { exchanges: known.join("\n"), ..Client::default() };
            let text = configuration(None, Path::new("/k"), false, &client).unwrap();
            text.lines().find_map(|line| line.strip_prefix("KexAlgorithms ")).map(str::to_owned)
        };
        let [quantum, older] = QUICK_EXCHANGES;
        assert_eq!(exchange(&[older]), None, "of an ssh that may not know ^");
        assert_eq!(exchange(&[older, SLOW_EXCHANGE]), Some(format!("^{older}")));
        assert_eq!(exchange(&[older, SLOW_EXCHANGE, quantum]), Some(format!("^{quantum}")));
    }

    #[test]
    fn ssh_takes_the_users_key_exchange_before_ours() {
        let dir = tempfile::tempdir().unwrap();
        let [named, config] = ["named", "config"].map(|name| dir.path().join(name));
        fs::write(&named, "Host a\nKexAlgorithms ecdh-sha2-nistp256\n").unwrap();
        let exchanges = [QUICK_EXCHANGES[1], SLOW_EXCHANGE].join("\n");
        let client = Client { exchanges, ..Client::default() };
        fs::write(&config, configuration(Some(&named), Path::new("/k"), false, &client).unwrap()).unwrap();
        for (host, first) in [("a", "ecdh-sha2-nistp256"), ("b", QUICK_EXCHANGES[1])] {
            let output = std::process::Command::new("ssh").arg("-GF").arg(&config).arg(host).output().unwrap();
            let stdout = String::from_utf8(output.stdout).unwrap();
            assert!(stdout.contains(&format!("\nkexalgorithms {first}")), "{stdout}");
        }
    }

    #[test]
    fn the_configuration_lets_the_users_own_hold() {
        let client = Client { home: Some("/home/ana".into()), ..Client::default() };
        let configuration =
            |named, known, strict| configuration(Some(Path::new(named)), Path::new(known), strict, &client);
        let text = configuration("/lab/ssh_config", "/state/100%/known_hosts", false).unwrap();
        let place = |words: &str| text.find(words).unwrap_or_else(|| panic!("no {words} in {text}"));
        assert!(place("Include \"/lab/ssh_config\"") < place("StrictHostKeyChecking accept-new"));
        assert!(place("Include /etc/ssh/ssh_config") < place("UserKnownHostsFile \"/state/100%%/known_hosts\""));
        assert!(place("Include /etc/ssh/ssh_config") < place("Ciphers aes128-gcm@openssh.com,"));
        assert!(place("Include \"/lab/ssh_config\"") < place("Include \"/home/ana/.ssh/config\""));
        assert!(text.contains(" \"/home/ana/.ssh/known_hosts\" "), "{text}");
        let strict = configuration("/c", "/k", true).unwrap();
        assert!(strict.find("StrictHostKeyChecking yes").unwrap() < strict.find("Include").unwrap());
        assert!(configuration("/a\"b", "/k", false).is_err());
    }

    #[test]
    fn an_ssh_may_not_know_the_options_of_the_system() {
        let dir = tempfile::tempdir().unwrap();
        let [system, named, config] = ["system", "named", "config"].map(|name| dir.path().join(name));
        let client = Client::default();
        let printed = |users: &str| {
            fs::write(&system, "Host a\n  GSSAPINonsense yes\n  User ana\n").unwrap();
            fs::write(&named, users).unwrap();
            let text = with_system(&system, Some(&named), Path::new("/k"), false, &client).unwrap();
            fs::write(&config, text).unwrap();
            let output = std::process::Command::new("ssh").arg("-GF").arg(&config).arg("a").output().unwrap();
            (output.status.success(), String::from_utf8(output.stdout).unwrap())
        };
        let (succeeds, printed_system) = printed("");
        assert!(succeeds && printed_system.contains("user ana\n"), "{printed_system}");
        assert!(!printed("Host a\n  UserNonsense yes\n").0, "a mistake in the user's own is reported");
    }

    #[tokio::test]
    async fn options_of_interactive_use_have_no_effect() {
        let dir = tempfile::tempdir().unwrap();
        let [named, config] = ["named", "config"].map(|name| dir.path().join(name));
        let theirs = "IgnoreUnknown UseKeychain\nUseKeychain yes\nLocalForward 16006 \
            localhost:6006\nExitOnForwardFailure yes\n\
                      RemoteForward 16007 localhost:22\nDynamicForward 16008\nRemoteCommand tmux\nRequestTTY force\n\
                      PermitLocalCommand yes\nLocalCommand true\nForwardAgent yes\nForwardX11 yes\nVisualHostKey yes\n\
                      SessionType none\nStdinNull yes\nSendEnv AWS_*\nGSSAPIDelegateCredentials \
                      yes\nForkAfterAuthentication yes\nLogLevel QUIET\nUser ana\n";
        fs::write(&named, theirs).unwrap();
        let client = Client::find().await.unwrap();
        fs::write(&config, configuration(Some(&named), Path::new("/k"), false, &client).unwrap()).unwrap();
        let output = std::process::Command::new("ssh").arg("-GF").arg(&config).arg("a").output().unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        for line in [
            "user ana",
            "clearallforwardings yes",
            "requesttty false",
            "permitlocalcommand no",
            "forwardagent no",
            "forwardx11 no",
            "visualhostkey no",
            "sessiontype default",
            "stdinnull no",
            "forkafterauthentication no",
            "loglevel INFO",
        ] {
            assert!(printed.lines().any(|printed| printed == line), "no {line} in {printed}");
        }
        for option in ["remotecommand ", "sendenv ", "gssapidelegatecredentials yes"] {
            assert!(!printed.contains(option), "{printed}");
        }
    }
}
