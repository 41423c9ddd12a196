//! The commands that install packages, for hints: each distribution has its own, and its own names.

/// A program that installs packages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manager {
    Apt,
    Dnf,
    Zypper,
    Apk,
    Pacman,
}

use Manager::{Apk, Apt, Dnf, Pacman, Zypper};

/// The package managers, each with its command and the ids of os-release(5) that have it.
const MANAGERS: [(Manager, &str, &[&str]); 5] = [
    (Apt, "apt-get install", &["debian", "ubuntu"]),
    (Dnf, "dnf install", &["fedora", "rhel", "centos", "amzn"]),
    (Zypper, "zypper install", &["suse", "opensuse", "sles"]),
    (Apk, "apk add", &["alpine"]),
    (Pacman, "pacman -S", &["arch"]),
];

/// The names of packages that are not those of Debian.
const NAMES: [(&str, Manager, &str); 14] = [
    ("iproute2", Dnf, "iproute"),
    ("libc-bin", Dnf, "glibc-common"),
    ("libc-bin", Zypper, "glibc"),
    ("libc-bin", Apk, "musl-utils"),
    ("libc-bin", Pacman, "glibc"),
    ("mawk", Dnf, "gawk"),
    ("mawk", Zypper, "gawk"),
    ("mawk", Apk, "gawk"),
    ("mawk", Pacman, "gawk"),
    ("docker-cli", Zypper, "docker"),
    ("docker-cli", Pacman, "docker"),
    ("openssh-client", Dnf, "openssh-clients"),
    ("openssh-client", Zypper, "openssh-clients"),
    ("openssh-client", Pacman, "openssh"),
];

/// The distribution of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Distribution {
    /// Its id, and those of the distributions that it is like.
    ids: Vec<String>,
}

impl Distribution {
    /// Parses `ID` and `ID_LIKE` of os-release, separated by spaces.
    pub fn parse(ids: &str) -> Distribution {
        Distribution { ids: ids.split_whitespace().map(str::to_lowercase).collect() }
    }

    /// Returns the command that installs packages, which have the names of Debian's; `uutils` stands for GNU's
    /// coreutils where uutils' are. `None` for an unknown distribution.
    pub fn install(&self, packages: &[&str]) -> Option<String> {
        let is_of =
            |id: &String, known: &[&str]| known.iter().any(|known| id == known || id.starts_with(&format!("{known}-")));
        let of = |id| MANAGERS.iter().find(|(_, _, known)| is_of(id, known));
        let (manager, command, _) = self.ids.iter().find_map(of)?;
        let gnu = if self.ids.iter().any(|id| id == "ubuntu") { "coreutils-from-gnu" } else { "coreutils" };
        let differs = |package| NAMES.iter().find(|(debian, of, _)| *debian == package && of == manager);
        let name = |package| match package {
            // Ubuntu has both, in packages that exclude each other
            "uutils" => gnu,
            package => differs(package).map_or(package, |(_, _, name)| *name),
        };
        let names: Vec<&str> = packages.iter().copied().map(name).collect();
        Some(format!("{command} {}", names.join(" ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_distribution_has_its_own_command_and_names() {
        let install = |ids, packages: &[&str]| Distribution::parse(ids).install(packages).unwrap_or_default();
        let tools = ["iproute2", "libc-bin", "mawk", "util-linux"];
        let cases = [
            ("debian ", "apt-get install iproute2 libc-bin mawk util-linux"),
            ("ubuntu debian", "apt-get install iproute2 libc-bin mawk util-linux"),
            ("linuxmint ubuntu debian", "apt-get install iproute2 libc-bin mawk util-linux"),
            ("fedora ", "dnf install iproute glibc-common gawk util-linux"),
            ("rocky rhel centos fedora", "dnf install iproute glibc-common gawk util-linux"),
            ("ol fedora", "dnf install iproute glibc-common gawk util-linux"),
            ("opensuse-leap suse opensuse", "zypper install iproute2 glibc gawk util-linux"),
            ("opensuse-tumbleweed", "zypper install iproute2 glibc gawk util-linux"),
            ("sles ", "zypper install iproute2 glibc gawk util-linux"),
            ("alpine ", "apk add iproute2 musl-utils gawk util-linux"),
            ("manjaro arch", "pacman -S iproute2 glibc gawk util-linux"),
        ];
        for (ids, command) in cases {
            assert_eq!(install(ids, &tools), command, "{ids}");
        }
        // Ubuntu 25.10 and later have uutils' coreutils; Debian has them in addition to GNU's
        assert_eq!(install("ubuntu debian", &["uutils"]), "apt-get install coreutils-from-gnu");
        assert_eq!(install("debian ", &["uutils"]), "apt-get install coreutils");
        assert_eq!(install("opensuse-leap suse", &["docker-cli"]), "zypper install docker");
        for unknown in ["", "nixos ", "debianish "] {
            assert_eq!(Distribution::parse(unknown).install(&tools), None, "{unknown}");
        }
    }
}
