//! Classifies what other programs print when they fail: one function per program; no other module searches their text.

/// Returns the first kind of which the text contains a pattern.
fn classify<K: Copy>(text: &str, kinds: &[(K, &[&str])]) -> Option<K> {
    kinds.iter().find(|(_, patterns)| patterns.iter().any(|pattern| text.contains(pattern))).map(|(kind, _)| *kind)
}

/// Why `ssh` could not log in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ssh {
    /// The host key is not known, and ssh may not accept it.
    HostKeyUnknown,
    /// sshd accepted none of the keys that it was offered.
    Refused,
    /// The host name does not resolve.
    NameUnknown,
    /// Anything else.
    Other,
}

/// Classifies the text of OpenSSH's `ssh` (9.2 and later).
pub fn ssh(text: &str) -> Ssh {
    let kinds: [(Ssh, &[&str]); 3] = [
        (Ssh::HostKeyUnknown, &["Host key verification failed", "host key is known"]),
        (Ssh::Refused, &["Permission denied", "Too many authentication failures"]),
        (Ssh::NameUnknown, &["Could not resolve"]),
    ];
    classify(text, &kinds).unwrap_or(Ssh::Other)
}

/// Why `sudo` did not run a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sudo {
    /// It wants a password.
    PasswordRequired,
    /// The password was wrong, or there was none; sudo reports that in several lines.
    PasswordRefused,
    /// The user may not run it.
    NotAllowed,
    /// There is no sudo.
    NotInstalled,
}

/// Classifies a line of `sudo` in the C locale (1.8 and later, and sudo-rs); `None` for anything else, such as a warning about the
/// host name, after which it goes on.
pub fn sudo(line: &str) -> Option<Sudo> {
    let refused =
        ["incorrect password attempt", "incorrect authentication attempt", "no password was provided", "try again"];
    let kinds: [(Sudo, &[&str]); 4] = [
        (Sudo::PasswordRequired, &["a password is required", "authentication is required"]),
        (Sudo::PasswordRefused, &refused),
        (Sudo::NotAllowed, &["is not in the sudoers file", "is not allowed to"]),
        (Sudo::NotInstalled, &["sudo: not found"]),
    ];
    classify(line, &kinds)
}

/// Why an `sshd` exited when it was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sshd {
    /// Another program has the port.
    PortInUse,
    /// The node does not have the address.
    AddressMissing,
    /// Anything else.
    Other,
}

/// Classifies the last lines of OpenSSH's `sshd -De`.
pub fn sshd(text: &str) -> Sshd {
    let kinds: [(Sshd, &[&str]); 2] =
        [(Sshd::PortInUse, &["Address already in use"]), (Sshd::AddressMissing, &["Cannot assign requested address"])];
    classify(text, &kinds).unwrap_or(Sshd::Other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ssh_is_classified() {
        let said = [
            ("ana@gpu1: Permission denied (publickey,password).", Ssh::Refused),
            (
                "Received disconnect from 10.0.0.2 port 22:2: Too many authentication failures\nDisconnected from 10.0.0.2",
                Ssh::Refused,
            ),
            (
                "No ED25519 host key is known for gpu1 and you have requested strict checking.\nHost key verification failed.",
                Ssh::HostKeyUnknown,
            ),
            ("ssh: Could not resolve hostname gpu9: Name or service not known", Ssh::NameUnknown),
            ("ssh: connect to host 10.0.0.2 port 22: Connection refused", Ssh::Other),
            ("kex_exchange_identification: Connection closed by remote host", Ssh::Other),
            ("", Ssh::Other),
        ];
        for (text, kind) in said {
            assert_eq!(ssh(text), kind, "{text}");
        }
    }

    #[test]
    fn sudo_is_classified() {
        let said = [
            ("sudo: a password is required", Some(Sudo::PasswordRequired)),
            ("sudo: interactive authentication is required", Some(Sudo::PasswordRequired)),
            ("sudo-rs: interactive authentication is required", Some(Sudo::PasswordRequired)),
            ("Sorry, try again.", Some(Sudo::PasswordRefused)),
            ("sudo: no password was provided", Some(Sudo::PasswordRefused)),
            ("sudo: 1 incorrect password attempt", Some(Sudo::PasswordRefused)),
            ("ana is not in the sudoers file.  This incident will be reported.", Some(Sudo::NotAllowed)),
            ("Sorry, user ana is not allowed to execute '/usr/bin/sh -s' as root on gpu1.", Some(Sudo::NotAllowed)),
            ("sh: 1: sudo: not found", Some(Sudo::NotInstalled)),
            ("sudo: unable to resolve host gpu1: Name or service not known", None),
        ];
        for (text, kind) in said {
            assert_eq!(sudo(text), kind, "{text}");
        }
    }

    #[test]
    fn sshd_is_classified() {
        let said = [
            ("error: Bind to port 12345 on 10.0.0.1 failed: Address already in use.", Sshd::PortInUse),
            ("error: Bind to port 12345 on 10.0.0.1 failed: Cannot assign requested address.", Sshd::AddressMissing),
            ("sshd: no hostkeys available -- exiting.", Sshd::Other),
        ];
        for (text, kind) in said {
            assert_eq!(sshd(text), kind, "{text}");
        }
    }
}
