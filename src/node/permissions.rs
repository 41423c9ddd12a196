//! Permissions of the directories in which root works.

use super::lines::parts;
use crate::inventory::Cluster;
use crate::text::quote;
use std::fmt;

/// The reason why no one else may be able to change such a directory.
pub const WHY: &str = "root works there: anyone who can replace a directory on the path can read what root writes \
                       there, and choose what runs as root";

/// A way in which someone other than root and the login that hvdctl uses can change a directory or the path to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Exposure {
    /// By owning it.
    Owner,
    /// By owning a link on the way.
    Link,
    /// By its group.
    Group,
    /// By its mode, as every user can.
    Others,
    /// By creating what is missing in it.
    Create,
}

/// A directory or a link that others can change, with the cluster's directories to which it leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExposedPath {
    exposure: Exposure,
    /// Permission bits in octal.
    mode: String,
    user: String,
    group: String,
    path: String,
    /// The directories: `ssh`, `jobs`, `projects` or `data`.
    leads_to: Vec<String>,
}

impl ExposedPath {
    /// Adds one that `node/permissions.sh` has printed: `WHAT FAULT MODE USER GROUP PATH`.
    pub(super) fn add(all: &mut Vec<ExposedPath>, value: &str) {
        let Some([what, exposure, mode, user, group, path]) = parts(value).map(|words| words.map(str::to_owned)) else {
            return;
        };
        let exposure = match exposure.as_str() {
            "owner" => Exposure::Owner,
            "link" => Exposure::Link,
            "group" => Exposure::Group,
            "create" => Exposure::Create,
            _ => Exposure::Others,
        };
        match all.iter_mut().find(|known| known.exposure == exposure && known.path == path) {
            Some(known) if known.leads_to.contains(&what) => {}
            Some(known) => known.leads_to.push(what),
            None => all.push(ExposedPath { exposure, mode, user, group, path, leads_to: vec![what] }),
        }
    }

    /// Returns whether it leads to one of these directories of the cluster.
    pub fn leads_to(&self, directories: &[&str]) -> bool {
        self.leads_to.iter().any(|what| directories.contains(&what.as_str()))
    }

    /// Returns whether it is there only because something is missing that others can create.
    pub fn is_creation(&self) -> bool {
        self.exposure == Exposure::Create
    }

    /// Returns what to do about it.
    pub fn hint(&self, cluster: &Cluster) -> String {
        if !cluster.can().root {
            return "set cluster.state_dir (under Slurm, slurm.state_dir) to a directory that only you can change"
                .into();
        }
        let path = quote::readable(&self.path);
        let command = match self.exposure {
            Exposure::Owner => format!("sudo chown root:root {path} && sudo chmod go-w {path}"),
            Exposure::Link => format!("sudo chown -h root:root {path}"),
            Exposure::Group | Exposure::Others => format!("sudo chmod go-w {path}"),
            Exposure::Create => {
                let directory = |what: &String| match what.as_str() {
                    "ssh" => quote::readable(&cluster.ssh_dir),
                    "jobs" => quote::readable(&cluster.jobs_dir),
                    "projects" => quote::readable(&cluster.projects_dir),
                    _ => quote::readable(&cluster.data_dir),
                };
                let directories: Vec<String> = self.leads_to.iter().map(directory).collect();
                format!("sudo mkdir -p {}", directories.join(" "))
            }
        };
        let owner = if self.exposure == Exposure::Owner && self.user != "nobody" {
            format!(", unless {} is meant to keep it", self.user)
        } else {
            String::new()
        };
        format!("set {} to a directory that only root can change, or `{command}` on the node{owner}", self.settings())
    }

    fn settings(&self) -> String {
        self.leads_to.iter().map(|what| format!("cluster.{what}_dir")).collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Display for ExposedPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ExposedPath { exposure, mode, user, group, path, .. } = self;
        write!(f, "other users can change {}: ", self.settings())?;
        match exposure {
            Exposure::Owner => write!(f, "{path} belongs to {user} (mode {mode})"),
            Exposure::Link => write!(f, "the link {path} belongs to {user}"),
            Exposure::Group => write!(f, "the group {group} can write to {path} (owner {user}, mode {mode})"),
            Exposure::Others => write!(f, "every user can write to {path} (owner {user}, mode {mode})"),
            Exposure::Create => {
                write!(f, "it is missing, and others can create it in {path} (owner {user}, mode {mode})")
            }
        }
    }
}

/// A directory in which hvdctl, as root or as what a rootless engine calls root, can write nothing, for directories of
/// the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClosedDirectory {
    /// The directory.
    path: String,
    /// The directories of the cluster: `ssh`, `jobs`, `projects` or `data`.
    leads_to: Vec<String>,
}

impl ClosedDirectory {
    /// Returns whether it is, or is to have, one of these directories of the cluster.
    pub fn leads_to(&self, directories: &[&str]) -> bool {
        self.leads_to.iter().any(|what| directories.contains(&what.as_str()))
    }

    fn fields(&self) -> String {
        self.leads_to.iter().map(|what| format!("cluster.{what}_dir")).collect::<Vec<_>>().join(", ")
    }

    /// Returns what to do about it, where the login has this home directory.
    pub fn hint(&self, cluster: &Cluster, home: Option<&str>) -> String {
        let Some(home) = home.filter(|_| cluster.can().root) else {
            return "set another directory in the inventory, or let root write there".to_owned();
        };
        let line = |what: &String| format!("{what}_dir = {:?}", format!("{home}/hvdctl/{what}"));
        let lines: Vec<String> = self.leads_to.iter().map(line).collect();
        format!("without root, they must be directories of the login user. Set in [cluster]: {}", lines.join(", "))
    }
}

impl fmt::Display for ClosedDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot write to {}, which is needed for {}", self.path, self.fields())
    }
}

/// The permissions of a node's directories.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Permissions {
    /// The paths that others can change.
    pub exposed: Vec<ExposedPath>,
    /// The directories that hvdctl cannot change.
    pub closed: Vec<ClosedDirectory>,
    /// The home directory of the login, where only a rootless engine calls it root.
    pub home: Option<String>,
    /// The missing directories that containers mount or projects need.
    pub missing: Vec<String>,
    /// Devices (`device`) and directories (`directory`) of the inventory that containers of a rootless engine cannot open.
    pub denied: Vec<(String, String)>,
    /// The cluster's directories that others may enter and should not.
    pub unclosed: Vec<String>,
}

impl Permissions {
    /// Takes a line of the script, if it is about this.
    pub(super) fn read(&mut self, key: &str, value: &str) {
        match key {
            "exposed" => ExposedPath::add(&mut self.exposed, value),
            "unwritable" => self.add_closed(value),
            "home" => self.home = Some(value.to_owned()).filter(|home| home.starts_with('/')),
            "denied" => {
                self.denied.extend(value.split_once(' ').map(|(what, path)| (what.to_owned(), path.to_owned())))
            }
            "missing" => self.missing.push(value.to_owned()),
            "unclosed" => self.unclosed.push(value.to_owned()),
            _ => {}
        }
    }

    /// Adds a directory that `node/facts.sh` has printed: `WHAT PATH`.
    fn add_closed(&mut self, value: &str) {
        let Some([what, path]) = parts(value).map(|words| words.map(str::to_owned)) else { return };
        match self.closed.iter_mut().find(|known| known.path == path) {
            Some(known) => known.leads_to.push(what),
            None => self.closed.push(ClosedDirectory { path, leads_to: vec![what] }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::Inventory;

    #[test]
    fn what_cannot_be_written_comes_with_directories_of_the_login() {
        let cluster = Inventory::local("here", "some/image:1").cluster;
        let mut permissions = Permissions::default();
        for line in ["ssh /opt", "jobs /opt", "data /scratch", "junk"] {
            permissions.read("unwritable", line);
        }
        permissions.read("home", "/home/ana");
        let [opt, scratch] = &permissions.closed[..] else { panic!("{permissions:?}") };
        assert_eq!(opt.to_string(), "cannot write to /opt, which is needed for cluster.ssh_dir, cluster.jobs_dir");
        assert!(opt.leads_to(&["jobs"]) && !opt.leads_to(&["data"]) && scratch.leads_to(&["data"]));
        let hint = opt.hint(&cluster, permissions.home.as_deref());
        let lines = ": ssh_dir = \"/home/ana/hvdctl/ssh\", jobs_dir = \"/home/ana/hvdctl/jobs\"";
        assert!(hint.ends_with(lines), "{hint}");
        assert!(opt.hint(&cluster, None).starts_with("set another directory"));
    }

    #[test]
    fn what_others_can_change_comes_with_the_command_that_closes_it() {
        let mut cluster = Inventory::local("here", "some/image:1").cluster;
        cluster.data_dir = "/scratch/it's/data".into();
        let mut permissions = Permissions::default();
        for line in [
            "jobs owner 755 mallory users /scratch/h v",
            "data owner 755 mallory users /scratch/h v",
            "data owner 755 mallory users /scratch/h v",
            "ssh link 777 mallory users /opt/link",
            "jobs group 775 root users /srv",
            "jobs others 777 root root /srv/x",
            "data create 1777 root root /scratch",
            "junk",
        ] {
            permissions.read("exposed", line);
        }
        let texts: Vec<String> = permissions
            .exposed
            .iter()
            .map(|exposed| format!("{exposed}\n{}", exposed.hint(&cluster)))
            .map(|text| {
                let (message, hint) = text.split_once('\n').unwrap();
                format!("{message}\n{}", hint.split_once(" only root can change, or ").unwrap().1)
            })
            .collect();
        assert_eq!(
            texts,
            [
                "other users can change cluster.jobs_dir, cluster.data_dir: /scratch/h v belongs to mallory (mode \
                 755)\n`sudo chown root:root '/scratch/h v' && sudo chmod go-w '/scratch/h v'` on the node, unless \
                 mallory is meant to keep it",
                "other users can change cluster.ssh_dir: the link /opt/link belongs to mallory\n\
                 `sudo chown -h root:root /opt/link` on the node",
                "other users can change cluster.jobs_dir: the group users can write to /srv (owner root, mode 775)\n\
                 `sudo chmod go-w /srv` on the node",
                "other users can change cluster.jobs_dir: every user can write to /srv/x (owner root, mode 777)\n\
                 `sudo chmod go-w /srv/x` on the node",
                "other users can change cluster.data_dir: it is missing, and others can create it in /scratch (owner \
                 root, mode 1777)\n\
                 `sudo mkdir -p '/scratch/it'\\''s/data'` on the node",
            ]
        );
    }
}
