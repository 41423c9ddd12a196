//! Classifies what other programs print when they fail: one function per program; no other module searches their text.

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

/// A reason why the Docker Engine, or a program that reaches it, failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Docker {
    /// The engine cannot give GPUs to containers.
    NoGpuRuntime,
    /// The image asks for a newer driver than the node has.
    CudaTooNew,
    /// NVIDIA's container tools cannot use the driver.
    DriverFailed,
    /// The engine's disk is full.
    NoSpace,
    /// The image is not on the node.
    ImageMissing,
    /// There is no `docker`.
    NotInstalled,
    /// The engine is not running.
    NotRunning,
    /// sudo did not run `docker`.
    SudoRefused,
    /// The engine runs without root, and may not raise a limit so far.
    LimitTooHigh,
    /// The engine runs without root, and its login has no or too few subordinate ids.
    NoSubordinateIds,
    /// The login may not use the engine.
    NotAllowed,
}

/// Classifies the text of the Docker Engine (20.10 and later), of Podman (4.3 and later) and of their commands; `None`
/// for anything else.
pub fn docker(text: &str) -> Option<Docker> {
    let no_runtime = [
        "could not select device driver",
        "failed to discover GPU vendor",
        "unresolvable CDI devices",
        "runtime name: nvidia",
        "runtime specified nvidia",
        "nvidia-container-runtime-hook",
    ];
    let driver = ["nvidia-container-cli: initialization error", "nvml error", "failed to initialize NVML"];
    let ids =
        ["insufficient UIDs or GIDs", "no subuid ranges found", "no subgid ranges found", "newuidmap", "newgidmap"];
    let kinds: [(Docker, &[&str]); 10] = [
        (Docker::NoGpuRuntime, &no_runtime),
        (Docker::NoSubordinateIds, &ids),
        (Docker::CudaTooNew, &["unsatisfied condition: ", "nvidia-container-cli: requirement error"]),
        (Docker::DriverFailed, &driver),
        (Docker::NoSpace, &["no space left on device"]),
        (Docker::ImageMissing, &["No such image", "Unable to find image", "image not known"]),
        (Docker::NotInstalled, &["command not found", "docker: not found"]),
        (
            Docker::NotRunning,
            &[
                "Cannot connect to the Docker daemon",
                "connection refused",
                "docker.sock: connect: no such file",
                "podman.sock: connect: no such file",
            ],
        ),
        (Docker::LimitTooHigh, &["setrlimit", "error setting rlimit"]),
        (Docker::NotAllowed, &["permission denied"]),
    ];
    let is_refusal = |line: &str| {
        line.contains("sudoers") || line.starts_with("Sorry, user ") || is_from_sudo(line) && sudo(line).is_some()
    };
    classify(text, &kinds).or_else(|| text.lines().any(is_refusal).then_some(Docker::SudoRefused))
}

/// Returns whether Podman refuses a signal because the container has no processes.
pub fn is_not_running(text: &str) -> bool {
    text.contains("can only kill running containers")
}

/// Returns whether the engine's own builder refuses a Dockerfile because it needs BuildKit, which is no part of the
/// engine's interface.
pub fn needs_buildkit(text: &str) -> bool {
    text.contains("requires BuildKit")
}

/// A reason why a registry did not provide an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegistryRefusal {
    /// It has given too many to this address or login.
    RateLimited,
    /// It has the image for other platforms only.
    NoPlatform,
    /// It has the image in a format that engines do not read any more.
    OldFormat,
    /// It speaks HTTP, and the engine HTTPS.
    PlainHttp,
    /// The engine does not trust its certificate.
    Untrusted,
    /// The login is missing or may not have the image. Registries refuse an unknown image in the same way.
    Refused,
    /// It does not have the image.
    NoImage,
    /// The engine does not reach it.
    Unreachable,
}

/// Classifies the text of an engine that pulls (Docker 20.10 and later with both image stores, Podman); `None` for
/// anything else.
pub fn registry(text: &str) -> Option<RegistryRefusal> {
    let refused = [
        "access denied",
        "unauthorized",
        "denied: ",
        "no basic auth credentials",
        "403 forbidden",
        "authorization failed",
        "payment required",
    ];
    let unreachable = [
        "no such host",
        "i/o timeout",
        "connection refused",
        "connection reset",
        "network is unreachable",
        "no route to host",
        "tls handshake timeout",
        "proxyconnect",
        "deadline exceeded",
        "client.timeout",
        "request canceled while waiting for connection",
    ];
    let kinds: [(RegistryRefusal, &[&str]); 8] = [
        (RegistryRefusal::RateLimited, &["toomanyrequests", "too many requests", "rate limit"]),
        (
            RegistryRefusal::NoPlatform,
            &[
                "no matching manifest for",
                "no match for platform",
                "does not match the specified platform",
                "no image found in manifest list",
            ],
        ),
        (RegistryRefusal::OldFormat, &["manifest.v1+prettyjws", "docker image format v1", "schema 1"]),
        (RegistryRefusal::PlainHttp, &["server gave http response to https client"]),
        (RegistryRefusal::Untrusted, &["x509:", "failed to verify certificate"]),
        (RegistryRefusal::Refused, &refused),
        (RegistryRefusal::NoImage, &["manifest unknown", "name unknown", ": not found"]),
        (RegistryRefusal::Unreachable, &unreachable),
    ];
    // the first is about a file of the engine
    let text = text.to_ascii_lowercase().replace("permission denied", "");
    // a layer that the engine has lost is no missing tag
    let text = if text.contains("content digest") { text.replace(": not found", "") } else { text };
    classify(&text, &kinds)
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

/// A reason why pip or uv installed no packages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstallFailure {
    /// A disk or the quota is full.
    NoSpace,
    /// The certificate of the package index is not trusted.
    Untrusted,
    /// uv cannot download the version of Python.
    NoPython,
    /// The package index is not reached.
    NoNetwork,
    /// This pip cannot read the file.
    OldPip,
    /// A downloaded file does not have the hash that the requirements file states.
    WrongHash,
    /// A package is not for this version of Python.
    WrongPython,
    /// A package has no wheel for this Python or platform.
    NoWheel,
    /// A package is not there, or not in such a version, or versions exclude each other.
    NoMatch,
    /// A package had to be built, and that failed.
    NotBuilt,
}

/// Classifies the text of pip (20 and later) and uv (0.5 and later); `None` for anything else.
pub fn installer(text: &str) -> Option<InstallFailure> {
    let network = [
        "Temporary failure in name resolution",
        "Name or service not known",
        "Failed to establish a new connection",
        "NewConnectionError",
        "ConnectTimeoutError",
        "Network is unreachable",
        "No route to host",
        "Connection refused",
        "Connection reset by peer",
        "ProxyError",
        "Read timed out",
        "dns error",
        "tcp connect error",
        "client error (Connect)",
        "error sending request for url",
        "Failed to fetch: `",
        "operation timed out",
    ];
    let python = [
        "requires a different Python",
        "does not satisfy the Python version requirement",
        "which is incompatible with the",
        "does not satisfy Python",
        "that require a different python version",
        "depends on Python>",
    ];
    let no_wheel = [
        "is not a supported wheel on this platform",
        "no wheels with a matching",
        "has no usable wheels",
        "for the current platform",
        "no wheels are usable",
    ];
    let kinds: [(InstallFailure, &[&str]); 10] = [
        (
            InstallFailure::NoSpace,
            &["No space left on device", "Disk quota exceeded", "(os error 28)", "(os error 122)"],
        ),
        (InstallFailure::Untrusted, &["CERTIFICATE_VERIFY_FAILED", "invalid peer certificate", "UnknownIssuer"]),
        (InstallFailure::NoPython, &["python-build-standalone", "No interpreter found for"]),
        (InstallFailure::NoNetwork, &network),
        (InstallFailure::OldPip, &["cannot read pylock.toml", "from line 1 of pylock.toml"]),
        (InstallFailure::WrongHash, &["DO NOT MATCH THE HASHES", "Hash mismatch", "--require-hashes mode"]),
        (InstallFailure::WrongPython, &python),
        (InstallFailure::NoWheel, &no_wheel),
        (
            InstallFailure::NotBuilt,
            &["Failed building wheel", "Failed to build", "error: command '", "metadata-generation-failed"],
        ),
        (
            InstallFailure::NoMatch,
            &["No matching distribution found", "No solution found when resolving", "was not found in the"],
        ),
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

/// Returns true if a line says that the container runtime could not start a program in a container (runc and crun).
pub fn is_from_runtime(line: &str) -> bool {
    line.contains("OCI runtime exec failed")
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
    fn docker_is_classified() {
        let said = [
            ("could not select device driver \"\" with capabilities: [[gpu]]", Some(Docker::NoGpuRuntime)),
            (
                "failed to create task for container: failed to create shim task: OCI runtime create failed: could not \
                 apply required \
                 modification to OCI specification: error modifying OCI spec: failed to inject CDI devices: \
                 unresolvable CDI devices \
                 nvidia.com/gpu=all: unknown",
                Some(Docker::NoGpuRuntime),
            ),
            ("failed to discover GPU vendor from CDI: no known GPU vendor found", Some(Docker::NoGpuRuntime)),
            ("unknown or invalid runtime name: nvidia", Some(Docker::NoGpuRuntime)),
            ("Unknown runtime specified nvidia", Some(Docker::NoGpuRuntime)),
            (
                "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.4, please update your driver \
                 to a newer version, \
                 or use an earlier cuda container: unknown",
                Some(Docker::CudaTooNew),
            ),
            (
                "nvidia-container-cli: initialization error: load library failed: libnvidia-ml.so.1: cannot open \
                 shared object file: no such \
                 file or directory: unknown",
                Some(Docker::DriverFailed),
            ),
            (
                "nvidia-container-cli: initialization error: nvml error: driver not loaded: unknown",
                Some(Docker::DriverFailed),
            ),
            (
                "nvidia-container-cli: initialization error: nvml error: driver/library version mismatch",
                Some(Docker::DriverFailed),
            ),
            ("nvidia-container-cli: device error: 7: unknown device: unknown", None),
            ("write /var/lib/docker/tmp/x: no space left on device", Some(Docker::NoSpace)),
            ("No such image: a/b:1", Some(Docker::ImageMissing)),
            ("Unable to find image 'a/b:1' locally", Some(Docker::ImageMissing)),
            ("sh: 1: docker: not found", Some(Docker::NotInstalled)),
            ("docker: command not found", Some(Docker::NotInstalled)),
            ("Cannot connect to the Docker daemon at unix:///var/run/docker.sock.", Some(Docker::NotRunning)),
            ("dial unix /var/run/docker.sock: connect: no such file or directory", Some(Docker::NotRunning)),
            ("ana is not in the sudoers file.", Some(Docker::SudoRefused)),
            (
                "sudo: unable to resolve host gpu1: Name or service not known\nsudo: a password is required",
                Some(Docker::SudoRefused),
            ),
            ("sudo: unable to resolve host gpu1: Name or service not known", None),
            ("dial unix /var/run/docker.sock: connect: permission denied", Some(Docker::NotAllowed)),
            ("driver failed programming external connectivity", None),
        ];
        for (text, kind) in said {
            assert_eq!(docker(text), kind, "{text}");
        }
    }

    #[test]
    fn what_registries_answer_is_classified() {
        for text in [
            "pull access denied for a/b, repository does not exist or may require 'docker login': denied: requested \
             access to the \
             resource is denied",
            "Head \"https://r.example/v2/a/manifests/1\": no basic auth credentials",
            "unauthorized: authentication required",
            "failed to resolve reference \"r/a:1\": pull access denied, repository does not exist or may require \
             authorization: \
             server message: insufficient_scope: authorization failed",
            "failed to authorize: failed to fetch oauth token: unexpected status from GET request to https://r/token: \
             401 Unauthorized",
            "Error response from daemon: denied: your authorization token has expired",
            "initializing source docker://r/a:1: reading manifest 1 in r/a: Unauthorized: access to the requested \
             resource is not authorized",
        ] {
            assert_eq!(registry(text), Some(RegistryRefusal::Refused), "{text}");
        }
        for (text, kind) in [
            (
                "toomanyrequests: You have reached your unauthenticated pull rate limit. \
                 https://www.docker.com/increase-rate-limit",
                Some(RegistryRefusal::RateLimited),
            ),
            ("received unexpected HTTP status: 429 Too Many Requests", Some(RegistryRefusal::RateLimited)),
            ("no matching manifest for linux/arm64/v8 in the manifest list entries", Some(RegistryRefusal::NoPlatform)),
            ("no match for platform in manifest: not found", Some(RegistryRefusal::NoPlatform)),
            (
                "choosing an image from manifest list docker://r/a:1: no image found in manifest list for architecture arm64",
                Some(RegistryRefusal::NoPlatform),
            ),
            (
                "media type \"application/vnd.docker.distribution.manifest.v1+prettyjws\" is no longer supported since \
                 containerd v2.1",
                Some(RegistryRefusal::OldFormat),
            ),
            (
                "[DEPRECATION NOTICE] Docker Image Format v1 and Docker Image manifest version 2, schema 1 support is \
                 disabled",
                Some(RegistryRefusal::OldFormat),
            ),
            (
                "Get \"https://10.0.0.9:5000/v2/\": http: server gave HTTP response to HTTPS client",
                Some(RegistryRefusal::PlainHttp),
            ),
            (
                "Get \"https://r.example/v2/\": tls: failed to verify certificate: x509: certificate signed by unknown \
                 authority",
                Some(RegistryRefusal::Untrusted),
            ),
            ("manifest for a/b:2 not found: manifest unknown: manifest unknown", Some(RegistryRefusal::NoImage)),
            (
                "failed to resolve reference \"docker.io/a/b:2\": docker.io/a/b:2: not found",
                Some(RegistryRefusal::NoImage),
            ),
            (
                "Get \"https://registry-1.docker.io/v2/\": dial tcp: lookup registry-1.docker.io: no such host",
                Some(RegistryRefusal::Unreachable),
            ),
            (
                "Get \"https://r.example/v2/\": net/http: request canceled while waiting for connection \
                 (Client.Timeout exceeded while \
                 awaiting headers)",
                Some(RegistryRefusal::Unreachable),
            ),
            (
                "proxyconnect tcp: dial tcp 10.0.0.1:3128: connect: connection refused",
                Some(RegistryRefusal::Unreachable),
            ),
            ("write /var/lib/docker/tmp/x: no space left on device", None),
            ("open /var/lib/docker/tmp/x: permission denied: x", None),
        ] {
            assert_eq!(registry(text), kind, "{text}");
        }
    }

    #[test]
    fn what_pip_and_uv_print_is_classified() {
        let said = [
            (
                "error: Failed to fetch: https://index.example/simple/idna/\n  cause: error sending request for url \
                 (https://index.example/simple/idna/)\n  cause: client error (Connect)\n  cause: invalid peer certificate: \
                 UnknownIssuer",
                Some(InstallFailure::Untrusted),
            ),
            (
                "cause: Failed to download `https://github.com/astral-sh/python-build-standalone/releases/download/\
                 20261110/cpython-3.12.16.tar.gz`\n  cause: client error (Connect)\n  cause: dns error",
                Some(InstallFailure::NoPython),
            ),
            (
                "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError('<pip._vendor.urllib3\
                 .connection.HTTPSConnection object at 0x7f>: Failed to establish a new connection: [Errno -2] Name or \
                 service not known')': /simple/six/\nERROR: Could not find a version that satisfies the requirement six \
                 (from versions: none)\nERROR: No matching distribution found for six",
                Some(InstallFailure::NoNetwork),
            ),
            (
                "error: No solution found when resolving dependencies\n  cause: Because nosuchpkg-xyz-1 was not found \
                 in the package registry and you require nosuchpkg-xyz-1, we can conclude that your requirements are \
                 unsatisfiable.",
                Some(InstallFailure::NoMatch),
            ),
            (
                "ERROR: Could not find a version that satisfies the requirement nosuchpkg-xyz-1 (from versions: none)\n\
                 ERROR: No matching distribution found for nosuchpkg-xyz-1",
                Some(InstallFailure::NoMatch),
            ),
            (
                "ERROR: Cannot select requirements from pylock file 'pylock.toml': python_full_version '3.11.7' in \
                 provided environment does not satisfy the Python version requirement '>=3.13'",
                Some(InstallFailure::WrongPython),
            ),
            (
                "error: The requested interpreter resolved to Python 3.11.7, which is incompatible with the \
                 `pylock.toml`'s Python requirement: `>=3.13`",
                Some(InstallFailure::WrongPython),
            ),
            ("pip 23.2.1 cannot read pylock.toml; pip 26.1 and uv can", Some(InstallFailure::OldPip)),
            (
                "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
                Some(InstallFailure::NoSpace),
            ),
            (
                "error: Failed to write to the cache\n  Caused by: Disk quota exceeded (os error 122)",
                Some(InstallFailure::NoSpace),
            ),
            (
                "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.",
                Some(InstallFailure::WrongHash),
            ),
            (
                "ERROR: a-1-cp312-cp312-linux_x86_64.whl is not a supported wheel on this platform.",
                Some(InstallFailure::NoWheel),
            ),
            (
                "error: command 'gcc' failed: No such file or directory\nERROR: Failed building wheel for a",
                Some(InstallFailure::NotBuilt),
            ),
            ("Successfully installed six-1.17.0", None),
        ];
        for (text, kind) in said {
            assert_eq!(installer(text), kind, "{text}");
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
