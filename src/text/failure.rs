//! Classifies what other programs print when they fail: one function per program; no other module searches their text.

mod engines;
mod installers;

pub use engines::{Docker, RegistryRefusal, docker, is_from_runtime, is_not_running, needs_buildkit, registry};
pub use installers::{InstallFailure, installer};

/// Returns the first kind of which the text contains a pattern.
fn classify<K: Copy>(text: &str, kinds: &[(K, &[&str])]) -> Option<K> {
    kinds.iter().find(|(_, patterns)| patterns.iter().any(|pattern| text.contains(pattern))).map(|(kind, _)| *kind)
}

/// A reason why `ssh` could not log in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ssh {
    /// The host key is not known, and ssh may not accept it.
    HostKeyUnknown,
    /// sshd gave up before the right one of many keys was offered.
    TooManyKeys,
    /// The agent or the security key did not sign.
    AgentRefused,
    /// Other users can read the private key, so ssh does not use it.
    KeyFileOpen,
    /// Other users can change a file of the configuration, so ssh does not read it.
    ConfigOpen,
    /// The private key is damaged, has another format, or cannot be read.
    KeyFileBroken,
    /// The private key does not exist, and no other one was accepted.
    KeyFileMissing,
    /// sshd lets no one in by a key alone.
    NoKeyAccepted,
    /// ssh and sshd have no algorithm in common.
    OldAlgorithms,
    /// The configuration has an option that this ssh does not know.
    BadOption,
    /// sshd accepted none of the keys that it was offered.
    Refused,
    /// The connection was closed before the login.
    Dropped,
    /// The host name does not resolve.
    NameUnknown,
    /// Anything else.
    Other,
}

/// The texts that identify each kind. A cause precedes its consequences.
const SSH_KINDS: [(Ssh, &[&str]); 11] = [
    (Ssh::HostKeyUnknown, &["Host key verification failed", "host key is known"]),
    (Ssh::TooManyKeys, &["Too many authentication failures"]),
    (Ssh::AgentRefused, &["agent refused operation", "signing failed for", "communication with agent failed"]),
    (Ssh::KeyFileOpen, &["are too open", "bad permissions"]),
    (Ssh::ConfigOpen, &["Bad owner or permissions on"]),
    (Ssh::KeyFileBroken, &["Load key "]),
    (
        Ssh::OldAlgorithms,
        &[
            "no matching host key type",
            "no matching key exchange",
            "no matching cipher",
            "no matching MAC",
            "no mutual signature",
        ],
    ),
    (Ssh::BadOption, &["Bad configuration option", "bad configuration options"]),
    (Ssh::NameUnknown, &["Could not resolve"]),
    (Ssh::Refused, &["Permission denied"]),
    (Ssh::Dropped, &["kex_exchange_identification", "Connection reset by", "Connection closed by"]),
];

/// A key file that does not exist. With another key ssh may log in all the same.
const NO_KEY_FILE: &[&str] = &["not accessible: No such file", "no such identity: "];

/// Classifies the text of OpenSSH's `ssh` (9.2 and later).
pub fn ssh(text: &str) -> Ssh {
    match classify(text, &SSH_KINDS) {
        Some(Ssh::Refused) if is_without_keys(text) => Ssh::NoKeyAccepted,
        Some(Ssh::Refused) if NO_KEY_FILE.iter().any(|pattern| text.contains(pattern)) => Ssh::KeyFileMissing,
        // the jump host's own ssh has the cause
        Some(Ssh::Dropped) if is_from_jump_host(text) => Ssh::Other,
        kind => kind.unwrap_or(Ssh::Other),
    }
}

/// Returns whether the methods that sshd still accepted do not include keys: `Permission denied
/// (password,keyboard-interactive).`
fn is_without_keys(text: &str) -> bool {
    let methods = text.rsplit_once("Permission denied (").and_then(|(_, rest)| rest.split_once(')'));
    methods.is_some_and(|(methods, _)| !methods.split(',').any(|method| method == "publickey"))
}

/// The most lines of ssh's messages that are shown.
const SSH_LINES: usize = 6;

/// Returns what `ssh` says of its failure, with the cause in the first line: without notices, what it tried, and what
/// follows from it.
pub fn ssh_message(text: &str) -> String {
    let follows =
        ["It is required that your", "This private key will be ignored.", "Disconnected from ", "debug1: ", "@"];
    let is_shown = |line: &&str| {
        !line.is_empty() && !is_ssh_notice(line) && !follows.iter().any(|beginning| line.starts_with(beginning))
    };
    let mut lines: Vec<&str> = text.lines().map(str::trim).filter(is_shown).collect();
    let patterns = match ssh(text) {
        Ssh::KeyFileMissing => NO_KEY_FILE,
        Ssh::NoKeyAccepted => &["Permission denied ("],
        kind => SSH_KINDS.iter().find(|(other, _)| *other == kind).map_or(&[][..], |(_, patterns)| patterns),
    };
    if let Some(first) = lines.iter().position(|line| patterns.iter().any(|pattern| line.contains(pattern))) {
        lines[..=first].rotate_right(1);
    }
    lines.truncate(SSH_LINES);
    lines.join("\n")
}

/// Returns the file that other users can read or change, as ssh names it.
pub fn open_file(text: &str) -> Option<&str> {
    let key = || {
        text.split_once("Permissions ")?.1.split_once(" for '")?.1.split_once("' are too open").map(|(file, _)| file)
    };
    key().or_else(|| text.split_once("Bad owner or permissions on ")?.1.lines().next().map(str::trim))
}

/// A reason why `sudo` did not run a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SudoFailure {
    /// It wants a password.
    PasswordRequired,
    /// The password was wrong, or there was none; sudo reports that in several lines.
    PasswordRefused,
    /// The user may not run it.
    NotAllowed,
    /// There is no sudo.
    NotInstalled,
}

/// Classifies a line of `sudo` in the C locale (1.8 and later, and sudo-rs); `None` for anything else, such as a
/// warning about the host name, after which it goes on.
pub fn sudo(line: &str) -> Option<SudoFailure> {
    let refused =
        ["incorrect password attempt", "incorrect authentication attempt", "no password was provided", "try again"];
    let kinds: [(SudoFailure, &[&str]); 4] = [
        (SudoFailure::PasswordRequired, &["a password is required", "authentication is required"]),
        (SudoFailure::PasswordRefused, &refused),
        // the last is that of sudo-rs
        (SudoFailure::NotAllowed, &["is not in the sudoers file", "is not allowed to", "I'm afraid I can't do that"]),
        (SudoFailure::NotInstalled, &["sudo: not found"]),
    ];
    classify(line, &kinds)
}

/// A reason why an `sshd` exited when it was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sshd {
    /// Another program has the port.
    PortInUse,
    /// The node does not have the address.
    AddressMissing,
    /// The image has none.
    Missing,
    /// Anything else.
    Other,
}

/// Classifies the last lines of OpenSSH's `sshd -De`.
pub fn sshd(text: &str) -> Sshd {
    let kinds: [(Sshd, &[&str]); 3] = [
        (Sshd::PortInUse, &["Address already in use"]),
        (Sshd::AddressMissing, &["Cannot assign requested address"]),
        (Sshd::Missing, &["sshd: not found", "sshd: No such file"]),
    ];
    classify(text, &kinds).unwrap_or(Sshd::Other)
}

/// A reason why `nvidia-smi` failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NvidiaSmiFailure {
    /// The driver was updated while the old one is loaded.
    DriverMismatch,
    /// The driver is not loaded.
    NoDriver,
    /// The driver has found no GPU.
    NoDevices,
    /// A GPU does not answer the driver.
    LostGpu,
}

/// Classifies the text of `nvidia-smi`; `None` for anything else.
pub fn nvidia_smi(text: &str) -> Option<NvidiaSmiFailure> {
    let kinds: [(NvidiaSmiFailure, &[&str]); 4] = [
        (NvidiaSmiFailure::DriverMismatch, &["Driver/library version mismatch"]),
        (NvidiaSmiFailure::NoDriver, &["couldn't communicate with the NVIDIA driver", "Driver Not Loaded"]),
        (NvidiaSmiFailure::NoDevices, &["No devices were found", "No devices found"]),
        (NvidiaSmiFailure::LostGpu, &["Unable to determine the device handle", "GPU is lost"]),
    ];
    classify(text, &kinds)
}

/// A reason why a program could not read or write a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileFailure {
    /// Something of another type has the place.
    Occupied,
    /// The disk or the quota is full.
    NoSpace,
    /// The file has vanished.
    Vanished,
}

/// Classifies the text of GNU tar and coreutils in the C locale, and of Rust's errors of files; `None` for anything
/// else.
pub fn files(text: &str) -> Option<FileFailure> {
    let kinds: [(FileFailure, &[&str]); 3] = [
        (FileFailure::Occupied, &["cannot overwrite", "cannot create hard link"]),
        (FileFailure::NoSpace, &["No space left", "Disk quota exceeded", ": Wrote only "]),
        (FileFailure::Vanished, &["No such file"]),
    ];
    classify(text, &kinds)
}

/// Returns whether the text of `ssh` only says that a connection through a jump host was closed; the jump host's own
/// ssh has the cause.
pub fn is_from_jump_host(text: &str) -> bool {
    text.contains("UNKNOWN port")
}

/// Returns whether `ssh` says that no connection to sshd was opened.
pub fn is_unanswered(text: &str) -> bool {
    let patterns = ["timed out", "Connection refused", "No route to host"];
    text.contains("connect to host") && patterns.iter().any(|pattern| text.contains(pattern))
}

/// Returns whether a line of `ssh` reports no failure. OpenSSH 10.1 warns of key exchanges in three lines that begin
/// with `**`, and all versions of options that have no effect any more.
pub fn is_ssh_notice(line: &str) -> bool {
    line.starts_with("Warning: Permanently added")
        || line.starts_with("** ")
        || line.contains(": Unsupported option \"")
}

/// Returns whether an error of this machine, as Rust words it, says that a process, or all of them, may open no more
/// files. The C libraries have different texts for the same number.
pub fn is_out_of_files(text: &str) -> bool {
    text.contains("(os error 24)") || text.contains("(os error 23)")
}

/// Returns whether a line of the standard error of a program that sudo has started is sudo's own.
pub fn is_from_sudo(line: &str) -> bool {
    line.starts_with("sudo: ") || line.starts_with("sudo-rs: ")
}

/// Returns whether a line is bash's warning about a locale that the machine lacks.
pub fn is_locale_warning(line: &str) -> bool {
    line.contains("warning: setlocale")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ssh_is_classified() {
        let said = [
            ("ana@gpu1: Permission denied (publickey,password).", Ssh::Refused),
            (
                "Received disconnect from 10.0.0.2 port 22:2: Too many authentication failures\nDisconnected from \
                 10.0.0.2",
                Ssh::TooManyKeys,
            ),
            (
                "Received disconnect from 127.0.0.1 port 2299:2: Too many authentication failures\nDisconnected from \
                 127.0.0.1 port 2299",
                Ssh::TooManyKeys,
            ),
            (AGENT, Ssh::AgentRefused),
            (
                "sign_and_send_pubkey: signing failed for ED25519-SK \"/k\": device not found\nana@h: Permission \
                 denied (publickey).",
                Ssh::AgentRefused,
            ),
            (OPEN_KEY, Ssh::KeyFileOpen),
            ("Bad owner or permissions on /home/ana/.ssh/config", Ssh::ConfigOpen),
            ("Load key \"crlf\": error in libcrypto\nroot@h: Permission denied (publickey).", Ssh::KeyFileBroken),
            ("Load key \"ppk\": invalid format\nroot@h: Permission denied (publickey).", Ssh::KeyFileBroken),
            ("Load key \"/root/k\": Permission denied\nroot@h: Permission denied (publickey).", Ssh::KeyFileBroken),
            (NO_FILE, Ssh::KeyFileMissing),
            (
                "no such identity: /home/ana/.ssh/k: No such file or directory\nana@h: Permission denied (publickey).",
                Ssh::KeyFileMissing,
            ),
            (
                "Warning: Identity file k not accessible: No such file or directory.\nconnect to host h port 22: \
                 Connection refused",
                Ssh::Other,
            ),
            ("ana@gpu1: Permission denied (keyboard-interactive).", Ssh::NoKeyAccepted),
            ("Permission denied (password,keyboard-interactive,hostbased).", Ssh::NoKeyAccepted),
            ("ana@gpu1: Permission denied (gssapi-with-mic,publickey).", Ssh::Refused),
            (
                "Unable to negotiate with 10.0.0.2 port 22: no matching host key type found. Their offer: \
                 ssh-rsa,ssh-dss",
                Ssh::OldAlgorithms,
            ),
            (
                "Unable to negotiate with 10.0.0.2 port 22: no matching key exchange method found. Their offer: \
                 diffie-hellman-group1-sha1",
                Ssh::OldAlgorithms,
            ),
            (
                "sign_and_send_pubkey: no mutual signature supported\nana@h: Permission denied (publickey).",
                Ssh::OldAlgorithms,
            ),
            (
                "/c2: line 1: Bad configuration option: usekeychain\n/c2: terminating, 1 bad configuration options",
                Ssh::BadOption,
            ),
            (
                "kex_exchange_identification: read: Connection reset by peer\nConnection reset by 10.0.0.2 port 22",
                Ssh::Dropped,
            ),
            ("Connection closed by 10.0.0.2 port 22", Ssh::Dropped),
            (
                "kex_exchange_identification: Connection closed by remote host\nConnection closed by UNKNOWN port 65535",
                Ssh::Other,
            ),
            (
                "No ED25519 host key is known for gpu1 and you have requested strict checking.\nHost key verification \
                 failed.",
                Ssh::HostKeyUnknown,
            ),
            ("ssh: Could not resolve hostname gpu9: Name or service not known", Ssh::NameUnknown),
            ("ssh: connect to host 10.0.0.2 port 22: Connection refused", Ssh::Other),
            ("kex_exchange_identification: Connection closed by remote host", Ssh::Dropped),
            ("", Ssh::Other),
        ];
        for (text, kind) in said {
            assert_eq!(ssh(text), kind, "{text}");
        }
    }

    /// Output of OpenSSH 9.2 if an agent did not confirm.
    const AGENT: &str = "sign_and_send_pubkey: signing failed for ED25519 \"root@vm\" from agent: agent refused \
        operation\n\
                         root@h: Permission denied (publickey,keyboard-interactive).";
    /// A key file of mode 644.
    const OPEN_KEY: &str = "@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@\n\
                            @         WARNING: UNPROTECTED PRIVATE KEY FILE!          @\n\
                            @@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@\n\
                            Permissions 0644 for 'my key' are too open.\n\
                            It is required that your private key files are NOT accessible by others.\n\
                            This private key will be ignored.\nLoad key \"my key\": bad permissions\n\
                            root@h: Permission denied (publickey).";
    /// `-i` with a file that does not exist.
    const NO_FILE: &str = "Warning: Identity file nokey not accessible: No such file or directory.\n\
                           root@h: Permission denied (publickey).";
    /// OpenSSH 10.1 and an sshd without a key exchange that is safe from quantum computers.
    const QUANTUM: &str = "** WARNING: connection is not using a post-quantum key exchange algorithm.\n\
                           ** This session may be vulnerable to \"store now, decrypt later\" attacks.\n\
                           ** The server may need to be upgraded. See https://openssh.com/pq.html";

    #[test]
    fn the_cause_comes_first_in_what_ssh_said() {
        let denied = "root@h: Permission denied (publickey).";
        for (text, message) in [
            (AGENT, AGENT),
            (
                OPEN_KEY,
                &format!("Permissions 0644 for 'my key' are too open.\nLoad key \"my key\": bad permissions\n{denied}"),
            ),
            (NO_FILE, NO_FILE),
            (
                "Received disconnect from 127.0.0.1 port 2299:2: Too many authentication failures\r\nDisconnected from \
                 127.0.0.1 port 2299",
                "Received disconnect from 127.0.0.1 port 2299:2: Too many authentication failures",
            ),
            (&format!("{QUANTUM}\n{denied}"), denied),
            (
                &format!(
                    "/etc/ssh/ssh_config line 5: Unsupported option \"rsaauthentication\"\ndebug1: Offering public \
                     key: k\n\
                     Warning: Permanently added 'h' (ED25519) to the list of known hosts.\nWelcome.\nLoad key \"k\": \
                     invalid format\n{denied}"
                ),
                &format!("Load key \"k\": invalid format\nWelcome.\n{denied}"),
            ),
            ("Warning: remote port forwarding failed", "Warning: remote port forwarding failed"),
            ("", ""),
            ("1\n2\n3\n4\n5\n6\n7\nPermission denied (password).", "Permission denied (password).\n1\n2\n3\n4\n5"),
        ] {
            assert_eq!(ssh_message(text), message, "{text}");
            assert_eq!(ssh(&ssh_message(text)), ssh(text), "{text}");
        }
        assert_eq!(open_file(OPEN_KEY), Some("my key"));
        assert_eq!(open_file("Bad owner or permissions on /home/ana/.ssh/config\r\nx"), Some("/home/ana/.ssh/config"));
        assert_eq!(open_file(NO_FILE), None);
    }

    #[test]
    fn sudo_is_classified() {
        let said = [
            ("sudo: a password is required", Some(SudoFailure::PasswordRequired)),
            ("sudo: interactive authentication is required", Some(SudoFailure::PasswordRequired)),
            ("sudo-rs: interactive authentication is required", Some(SudoFailure::PasswordRequired)),
            ("Sorry, try again.", Some(SudoFailure::PasswordRefused)),
            ("sudo: no password was provided", Some(SudoFailure::PasswordRefused)),
            ("sudo: 1 incorrect password attempt", Some(SudoFailure::PasswordRefused)),
            ("ana is not in the sudoers file.  This incident will be reported.", Some(SudoFailure::NotAllowed)),
            (
                "Sorry, user ana is not allowed to execute '/usr/bin/sh -s' as root on gpu1.",
                Some(SudoFailure::NotAllowed),
            ),
            ("sudo: I'm sorry ana. I'm afraid I can't do that", Some(SudoFailure::NotAllowed)),
            ("sh: 1: sudo: not found", Some(SudoFailure::NotInstalled)),
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
            ("sh: 15: exec: /usr/sbin/sshd: not found", Sshd::Missing),
            ("/bin/sh: line 15: /usr/sbin/sshd: No such file or directory", Sshd::Missing),
        ];
        for (text, kind) in said {
            assert_eq!(sshd(text), kind, "{text}");
        }
    }

    #[test]
    fn errors_of_files_are_classified() {
        let said = [
            ("cp: cannot overwrite directory './data' with non-directory", Some(FileFailure::Occupied)),
            ("cp: cannot create hard link './a/b' to 't/a/b': Not a directory", Some(FileFailure::Occupied)),
            ("tar: t/big.bin: Wrote only 4608 of 10240 bytes: No space left on device", Some(FileFailure::NoSpace)),
            ("cp: error writing './x': Disk quota exceeded", Some(FileFailure::NoSpace)),
            ("b2sum: ./gone: No such file or directory", Some(FileFailure::Vanished)),
            ("/home/ana/p/gone: No such file or directory (os error 2)", Some(FileFailure::Vanished)),
            ("b2sum: ./secret: Permission denied", None),
        ];
        for (text, kind) in said {
            assert_eq!(files(text), kind, "{text}");
        }
    }

    #[test]
    fn lines_that_say_nothing_of_the_cause_are_known() {
        assert!(is_from_jump_host("kex_exchange_identification: Connection closed by UNKNOWN port 65535"));
        assert!(!is_from_jump_host("Connection closed by 10.0.0.2 port 22"));
        assert!(is_ssh_notice("Warning: Permanently added 'gpu1' (ED25519) to the list of known hosts."));
        assert!(QUANTUM.lines().all(is_ssh_notice));
        assert!(!is_ssh_notice("Warning: Identity file k not accessible: No such file or directory."));
        assert!(!is_ssh_notice("Warning: remote port forwarding failed"));
        assert!(is_out_of_files("cannot run ssh: Too many open files (os error 24)"));
        assert!(is_out_of_files("No file descriptors available (os error 24)"));
        assert!(!is_out_of_files("sh: 1: cannot open x: Too many open files"), "a node's");
        assert!(is_from_runtime(
            "OCI runtime exec failed: exec failed: unable to start container process: current working directory is \
             outside of container"
        ));
        assert!(!is_from_runtime("sh: 1: x: not found"));
        assert!(is_not_running(
            "can only kill running containers. 9974badefbfc is in state exited: container state improper"
        ));
        assert!(!is_not_running("no container with name or ID \"t\" found: no such container"));
        assert!(is_locale_warning("bash: warning: setlocale: LC_ALL: cannot change locale (xx_XX)"));
    }
}
