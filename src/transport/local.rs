//! The programs that hvdctl runs on the operator's own machine.

use crate::error::Error;
use crate::text::packages::Distribution;
use std::fs;
use std::path::PathBuf;

/// A program that no directory of `PATH` has.
#[derive(Debug, PartialEq, Eq)]
pub struct Missing {
    /// The message that names it.
    pub message: String,
    /// The command that installs it.
    pub hint: String,
}

impl From<Missing> for Error {
    fn from(Missing { message, hint }: Missing) -> Error {
        Error::Local(format!("{message}\n  hint: {hint}"))
    }
}

/// Returns the path of a program. `package`: the Debian package that has it.
///
/// # Errors
/// [`Missing`], with the name of the package on this machine's distribution.
pub fn find(program: &str, package: &str) -> Result<PathBuf, Missing> {
    which::which(program).map_err(|_| {
        let distribution = ["/etc/os-release", "/usr/lib/os-release"].map(fs::read_to_string);
        let text = distribution.into_iter().find_map(Result::ok).unwrap_or_default();
        missing(program, package, &text)
    })
}

/// `os_release`: the text of os-release(5).
fn missing(program: &str, package: &str, os_release: &str) -> Missing {
    let field = |name: &str| os_release.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    let ids = [field("ID"), field("ID_LIKE")].map(Option::unwrap_or_default).join(" ");
    let install = Distribution::parse(&ids.replace(['"', '\''], "")).install(&[package]);
    Missing {
        message: format!("cannot run {program}: it is not in PATH"),
        hint: install.unwrap_or_else(|| format!("install it (Debian package: {package})")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named_with_its_package() {
        let hint = |os_release: &str| missing("ssh", "openssh-client", os_release).hint;
        assert_eq!(hint("NAME=\"Debian\"\nID=debian\n"), "apt-get install openssh-client");
        assert_eq!(hint("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n"), "dnf install openssh-clients");
        assert_eq!(hint("VERSION_ID=1\nID_LIKE='suse opensuse'\n"), "zypper install openssh-clients");
        assert_eq!(hint(""), "install it (Debian package: openssh-client)");
        assert_eq!(
            find("no-such-program", "none").unwrap_err().message,
            "cannot run no-such-program: it is not in PATH"
        );
        assert!(find("sh", "dash").unwrap().is_absolute());
    }
}
