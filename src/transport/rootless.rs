//! The means of a login without root for a Podman of its own: subordinate ids, and limits that it cannot raise.

use crate::text::packages::Distribution;
use std::collections::BTreeMap;

/// The names of the limits, each with the line of `/proc/PID/limits` that has it (proc(5)).
const LIMITS: &[(&str, &str)] = &[
    ("core", "Max core file size"),
    ("cpu", "Max cpu time"),
    ("data", "Max data size"),
    ("fsize", "Max file size"),
    ("locks", "Max file locks"),
    ("memlock", "Max locked memory"),
    ("msgqueue", "Max msgqueue size"),
    ("nice", "Max nice priority"),
    ("nofile", "Max open files"),
    ("nproc", "Max processes"),
    ("rss", "Max resident set"),
    ("rtprio", "Max realtime priority"),
    ("rttime", "Max realtime timeout"),
    ("sigpending", "Max pending signals"),
    ("stack", "Max stack size"),
];

/// The state of a login's own Podman, as `access/login.sh` reports it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RootlessPodman {
    /// Hard limits of its service by name; `u64::MAX` is none. Empty if they cannot be read.
    pub limits: BTreeMap<String, u64>,
    /// The parts that its subordinate ids lack: `subuid`, `subgid`, `newuidmap`, `newgidmap`, or `migrate` for a service
    /// that began without them.
    lacking: Vec<String>,
}

impl RootlessPodman {
    /// Takes a line of the script, if it is about this.
    pub(super) fn read(&mut self, key: &str, value: &str) {
        match key {
            "podman-limit" => {
                let (limit, line) = value.split_once(' ').unwrap_or((value, ""));
                let name = LIMITS.iter().find(|(_, known)| *known == line).map(|(name, _)| *name);
                let limit = if limit == "unlimited" { Some(u64::MAX) } else { limit.parse().ok() };
                self.limits.extend(name.zip(limit).map(|(name, limit)| (name.to_owned(), limit)));
            }
            "podman-lacks" => self.lacking.push(value.to_owned()),
            _ => {}
        }
    }

    /// Returns why no image can be unpacked, if that is so, with the next step.
    pub(super) fn fault(&self, user: &str, distribution: &Distribution) -> Option<(String, String)> {
        let lacks = |what: &str| self.lacking.iter().any(|lacking| lacking == what);
        let files: Vec<&str> = [("subuid", "/etc/subuid"), ("subgid", "/etc/subgid")]
            .into_iter()
            .filter(|(file, _)| lacks(file))
            .map(|(_, path)| path)
            .collect();
        let migrate = format!("then, as {user}, podman system migrate");
        if !files.is_empty() {
            let options =
                [("subuid", "--add-subuids"), ("subgid", "--add-subgids")].into_iter().filter(|(file, _)| lacks(file));
            let options: Vec<String> = options.map(|(_, option)| format!("{option} 100000-165535")).collect();
            return Some((
                format!(
                    "{user} has no subordinate ids in {}, without which Podman cannot unpack images for a user",
                    files.join(" and ")
                ),
                format!(
                    "the administrator adds numbers that no other line of these files has, for example sudo usermod {} \
                     {user}; {migrate}",
                    options.join(" ")
                ),
            ));
        }
        if lacks("newuidmap") || lacks("newgidmap") {
            let command = distribution.install(&["uidmap"]);
            let command = command.unwrap_or_else(|| "newuidmap and newgidmap with its package manager".to_owned());
            return Some((
                "newuidmap or newgidmap is missing, without which Podman cannot use the subordinate ids of a user"
                    .to_owned(),
                format!("install them on the node: {command}; {migrate}"),
            ));
        }
        lacks("migrate").then(|| {
            let step = format!(
                "as {user} on the node, which ends the containers of that user: podman system migrate, and systemctl \
                 --user restart podman"
            );
            (format!("the Podman of {user} runs without the subordinate ids that {user} has"), step)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &str) -> RootlessPodman {
        let mut found = RootlessPodman::default();
        lines.lines().filter_map(|line| line.split_once(' ')).for_each(|(key, value)| found.read(key, value));
        found
    }

    #[test]
    fn limits_have_the_names_of_the_inventory() {
        let found = read(
            "podman-limit 65536 Max locked memory\npodman-limit unlimited Max cpu time\npodman-limit x Max open files\n\
             podman-limit 7 Max of something new\n",
        );
        assert_eq!(found.limits, [("memlock".to_owned(), 65536), ("cpu".to_owned(), u64::MAX)].into());
    }

    #[test]
    fn what_is_missing_for_subordinate_ids_comes_with_the_command() {
        let fault = |lines: &str| {
            let fault = read(lines).fault("own", &Distribution::parse("debian "));
            fault.map(|(message, hint)| format!("{message}\n{hint}"))
        };
        assert_eq!(fault(""), None);
        let both = fault("podman-lacks subuid\npodman-lacks subgid\npodman-lacks newuidmap\n").unwrap();
        assert!(both.starts_with("own has no subordinate ids in /etc/subuid and /etc/subgid"), "{both}");
        let command = "sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 own; then, as own, podman system migrate";
        assert!(both.contains(command), "{both}");
        let one = fault("podman-lacks subgid\n").unwrap();
        assert!(one.contains("in /etc/subgid,") && one.contains("usermod --add-subgids 100000-165535 own"), "{one}");
        assert!(fault("podman-lacks newgidmap\n").unwrap().contains("uidmap"));
        assert!(fault("podman-lacks migrate\n").unwrap().contains("podman system migrate"));
    }
}
