//! The messages of pip and uv.

use super::classify;

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

#[cfg(test)]
mod tests {
    use super::*;

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
}
