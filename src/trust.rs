//! The users besides the operator and root who can change a file of the operator's machine: OpenSSH's rule for its own
//! files (StrictModes), with the node's rule for groups (`node/close.sh`).

use crate::text::quote::readable;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};

/// The rule for groups.
const GROUPS: &str = concat!(include_str!("scripts/node/close.sh"), "\nis_private \"$1\"\n");

/// The most links on the way to a file, as in Linux.
const MOST_LINKS: usize = 40;

/// Permission bits.
const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// A way in which another user can change a file, or a path component above it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriteAccess {
    /// By owning it.
    Owner,
    /// By owning a link on the way.
    Link,
    /// By its group.
    Group,
    /// By its ACL, whose mask is where a mode has the rights of the group.
    Acl,
    /// By its mode, as every user can.
    Everybody,
}

/// A file that others can change, a directory above it, or a link on the way to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignWriter {
    access: WriteAccess,
    path: PathBuf,
    owner: u32,
    group: u32,
    /// Permission bits.
    mode: u32,
}

impl ForeignWriter {
    /// Returns whether every user can change it.
    pub fn is_everybody(&self) -> bool {
        self.access == WriteAccess::Everybody
    }

    /// Returns who can change it how: "the group users can write to /srv/a (owner ana, mode 664)".
    pub fn describe(&self) -> String {
        let path = readable(&self.path.display().to_string());
        let (owner, group) = (name("/etc/passwd", self.owner), name("/etc/group", self.group));
        let mode = self.mode;
        match self.access {
            WriteAccess::Owner => format!("{path} belongs to {owner} (group {group}, mode {mode:o})"),
            WriteAccess::Link => format!("the link {path} belongs to {owner}"),
            WriteAccess::Group => format!("the group {group} can write to {path} (owner {owner}, mode {mode:o})"),
            WriteAccess::Acl => {
                format!("an ACL lets others write to {path} (owner {owner}, group {group}, mode {mode:o})")
            }
            WriteAccess::Everybody => {
                format!("every user can write to {path} (owner {owner}, group {group}, mode {mode:o})")
            }
        }
    }

    /// Returns what mends it, with the command.
    pub fn command(&self) -> String {
        let path = readable(&self.path.display().to_string());
        let user = rustix::process::geteuid().as_raw();
        match self.access {
            // it may be a stranger's trap
            WriteAccess::Owner => format!("read it, and if it should be yours: sudo chown {user} {path}"),
            WriteAccess::Link => format!("sudo chown -h {user} {path}"),
            WriteAccess::Group | WriteAccess::Everybody => format!("chmod go-w {path}"),
            WriteAccess::Acl => format!("setfacl -b {path}"),
        }
    }
}

/// Returns how others than the user and root can change a file, from the file up to the root of the file system; links
/// are followed. A private group of the user counts as nobody, and a directory with the sticky bit lets nobody exchange
/// another user's file.
///
/// # Errors
/// If the file, or something on the way to it, cannot be looked at.
pub fn foreign_writers(path: &Path) -> io::Result<Vec<ForeignWriter>> {
    let users = TrustedUsers::current();
    let mut groups = BTreeMap::new();
    let mut is_private = |group| *groups.entry(group).or_insert_with(|| is_private_group(group, users.user));
    let steps = steps(path)?;
    let faults = steps.iter().rev().filter_map(|step| {
        let access = step.access(&users, &mut is_private)?;
        let (owner, group, mode) = (step.meta.uid(), step.meta.gid(), step.meta.mode() & 0o7777);
        Some(ForeignWriter { access, path: step.path.clone(), owner, group, mode })
    });
    Ok(faults.collect())
}

/// The users who may own a file.
struct TrustedUsers {
    /// The one that hvdctl runs as.
    user: u32,
    /// The one that has started it with sudo, and could so change any file.
    behind_sudo: Option<u32>,
    /// The number that stands for all users who are not in this user namespace. Root of the machine, to whom the
    /// directories above belong, is one.
    unmapped: Option<u32>,
}

impl TrustedUsers {
    fn current() -> TrustedUsers {
        let number = |text: &str| text.trim().parse().ok();
        let user = rustix::process::geteuid().as_raw();
        let behind_sudo = std::env::var("SUDO_UID").ok().filter(|_| user == 0).and_then(|id| number(&id));
        let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        let is_namespace = map.split_whitespace().nth(1).is_some_and(|first| first != "0");
        let unmapped = fs::read_to_string("/proc/sys/kernel/overflowuid").ok().filter(|_| is_namespace);
        TrustedUsers { user, behind_sudo, unmapped: unmapped.and_then(|id| number(&id)) }
    }

    fn include(&self, owner: u32, is_above: bool) -> bool {
        owner == 0 || owner == self.user || self.behind_sudo == Some(owner) || is_above && self.unmapped == Some(owner)
    }
}

/// The place of a component in its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PathRole {
    Above,
    Link,
    File,
}

/// A file, a directory above it, or a link on the way to it.
#[derive(Debug)]
struct PathComponent {
    role: PathRole,
    path: PathBuf,
    meta: Metadata,
}

impl PathComponent {
    fn access(&self, users: &TrustedUsers, is_private: &mut impl FnMut(u32) -> bool) -> Option<WriteAccess> {
        let (mode, group) = (self.meta.mode(), self.meta.gid());
        if !users.include(self.meta.uid(), self.role != PathRole::File) {
            return Some(if self.role == PathRole::Link { WriteAccess::Link } else { WriteAccess::Owner });
        }
        let is_protected = self.role == PathRole::Above && mode & STICKY != 0;
        if self.role == PathRole::Link || is_protected || mode & (GROUP_WRITES | OTHERS_WRITE) == 0 {
            None
        } else if mode & OTHERS_WRITE != 0 {
            Some(WriteAccess::Everybody)
        } else if has_acl(&self.path) {
            Some(WriteAccess::Acl)
        } else {
            // root's own group: who is in it besides has a system's account
            (group != 0 && !is_private(group)).then_some(WriteAccess::Group)
        }
    }
}

/// Returns all that is on the way to a file from the root of the file system, and the file as the last one.
fn steps(path: &Path) -> io::Result<Vec<PathComponent>> {
    let parts = |path: &Path| path.iter().rev().map(OsStr::to_owned).collect::<Vec<OsString>>();
    let (mut rest, mut at, mut links) = (parts(&std::path::absolute(path)?), PathBuf::from("/"), 0);
    let mut steps = vec![PathComponent { role: PathRole::Above, path: at.clone(), meta: at.symlink_metadata()? }];
    while let Some(part) = rest.pop() {
        match Path::new(&part).components().next() {
            Some(Component::ParentDir) => drop(at.pop()),
            Some(Component::Normal(name)) => {
                let path = at.join(name);
                let meta = path.symlink_metadata()?;
                if meta.is_symlink() {
                    links += 1;
                    if links > MOST_LINKS {
                        return Err(Errno::LOOP.into());
                    }
                    let target = fs::read_link(&path)?;
                    if target.is_absolute() {
                        at = PathBuf::from("/");
                    }
                    rest.extend(parts(&target));
                    steps.push(PathComponent { role: PathRole::Link, path, meta });
                } else {
                    at.clone_from(&path);
                    steps.push(PathComponent { role: PathRole::Above, path, meta });
                }
            }
            _ => {}
        }
    }
    let end = steps.iter().position(|step| step.path == at && step.role != PathRole::Link);
    if let Some(end) = end {
        let mut file = steps.remove(end);
        file.role = if file.meta.is_dir() { PathRole::Above } else { PathRole::File };
        steps.push(file);
    }
    Ok(steps)
}

fn has_acl(path: &Path) -> bool {
    // Linux's name; elsewhere no file has it
    rustix::fs::getxattr(path, "system.posix_acl_access", &mut [0; 0][..]).is_ok()
}

/// Returns whether nobody else is in a group of the user; false where that cannot be found out.
fn is_private_group(group: u32, user: u32) -> bool {
    let mut shell = Command::new("sh");
    shell.args(["-c", GROUPS, "sh"]).arg(group.to_string()).env("HVDCTL_LOGIN", format!("{user}:{group}"));
    shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    shell.status().is_ok_and(|status| status.success())
}

/// Returns the name of a user or group with its number, or the number alone.
fn name(database: &str, id: u32) -> String {
    let text = fs::read(database).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let found = text.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(id)).then_some(name)
    });
    found.map_or_else(|| id.to_string(), |name| format!("{name} ({id})"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};

    /// A directory for a test: others cannot write there, whatever the umask.
    fn directory() -> tempfile::TempDir {
        crate::paths::private_directory().tempdir().unwrap()
    }

    fn write(path: &Path, mode: u32) {
        fs::write(path, "x").unwrap();
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    /// Returns the ways in which others can change a file, each with the name of the path.
    fn found(path: &Path) -> Vec<(WriteAccess, String)> {
        let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        foreign_writers(path).unwrap().iter().map(|writer| (writer.access, name(&writer.path))).collect()
    }

    #[test]
    fn a_file_is_judged_with_the_directories_above_it() {
        let dir = directory();
        let (deep, file) = (dir.path().join("a/b"), dir.path().join("a/b/file"));
        fs::create_dir_all(&deep).unwrap();
        for (mode, of_file, of_directory, expected) in [
            (0o755, 0o644, 0o755, vec![]),
            (0o755, 0o646, 0o755, vec![(WriteAccess::Everybody, "file")]),
            (0o755, 0o600, 0o777, vec![(WriteAccess::Everybody, "b")]),
            // nobody can exchange another user's file there
            (0o1777, 0o600, 0o755, vec![]),
            (0o777, 0o602, 0o1777, vec![(WriteAccess::Everybody, "file"), (WriteAccess::Everybody, "a")]),
        ] {
            write(&file, of_file);
            fs::set_permissions(&deep, Permissions::from_mode(of_directory)).unwrap();
            fs::set_permissions(dir.path().join("a"), Permissions::from_mode(mode)).unwrap();
            let expected: Vec<_> = expected.into_iter().map(|(access, name)| (access, name.to_owned())).collect();
            assert_eq!(found(&file), expected, "{mode:o} {of_directory:o} {of_file:o}");
        }
        assert_eq!(foreign_writers(&dir.path().join("missing")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_link_counts_as_what_it_leads_to_and_as_itself() {
        let dir = directory();
        fs::create_dir_all(dir.path().join("open/d")).unwrap();
        write(&dir.path().join("open/d/file"), 0o600);
        symlink("open/./d/../d/file", dir.path().join("link")).unwrap();
        symlink(dir.path().join("link"), dir.path().join("second")).unwrap();
        assert_eq!(found(&dir.path().join("second")), []);
        fs::set_permissions(dir.path().join("open"), Permissions::from_mode(0o777)).unwrap();
        assert_eq!(found(&dir.path().join("second")), [(WriteAccess::Everybody, "open".to_owned())]);
        symlink("round", dir.path().join("round")).unwrap();
        assert!(foreign_writers(&dir.path().join("round")).is_err());
    }

    #[test]
    fn others_are_neither_the_user_nor_root() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = directory();
        let file = dir.path().join("file");
        write(&file, 0o664);
        assert_eq!(found(&file), [], "root's own group");
        chown(&file, None, Some(4242)).unwrap();
        assert_eq!(found(&file), [(WriteAccess::Group, "file".to_owned())]);
        let writer = &foreign_writers(&file).unwrap()[0];
        let path = file.display();
        assert_eq!(writer.describe(), format!("the group 4242 can write to {path} (owner root (0), mode 664)"));
        assert_eq!(writer.command(), format!("chmod go-w {path}"));
        chown(&file, Some(4242), None).unwrap();
        let writer = &foreign_writers(&file).unwrap()[0];
        assert_eq!(writer.describe(), format!("{path} belongs to 4242 (group 4242, mode 664)"));
        assert_eq!(writer.command(), format!("read it, and if it should be yours: sudo chown 0 {path}"));
        let link = dir.path().join("link");
        write(&file, 0o600);
        chown(&file, Some(0), Some(0)).unwrap();
        symlink("file", &link).unwrap();
        lchown(&link, Some(4242), Some(4242)).unwrap();
        assert_eq!(found(&link), [(WriteAccess::Link, "link".to_owned())]);
    }

    #[test]
    fn the_owner_behind_sudo_and_the_root_outside_of_a_namespace_are_trusted() {
        let users = TrustedUsers { user: 0, behind_sudo: Some(7), unmapped: Some(65534) };
        assert!(users.include(7, false) && users.include(0, false) && users.include(65534, true));
        assert!(!users.include(65534, false) && !users.include(8, true));
    }
}
