//! The only module that reads a project's files: what belongs to it (`ignore`), with which contents, and as a tar
//! stream.

use crate::error::Error;
use ignore::WalkBuilder;
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tokio::sync::mpsc;

/// One thing in a project.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum Entry {
    /// A regular file.
    File {
        /// SHA-256 in hex.
        hash: String,
        /// Permission bits.
        mode: u32,
        /// Bytes.
        size: u64,
    },
    /// A symbolic link and where it points; it is shipped as a link.
    Link {
        /// Its text.
        target: PathBuf,
    },
    /// A folder.
    Folder {
        /// Permission bits.
        mode: u32,
    },
}

/// A project as it is on the operator's machine.
#[derive(Debug, Clone)]
pub struct Tree {
    /// Its folder.
    pub root: PathBuf,
    /// Everything in it by relative path; no path is empty or starts with `/`.
    pub entries: BTreeMap<String, Entry>,
}

impl Tree {
    /// Reads a project. `.git` never belongs to it; `.gitignore` and `.hvdctlignore` hold.
    ///
    /// # Errors
    /// When a file cannot be read, or a name is not UTF-8.
    pub fn read(root: &Path) -> Result<Tree, Error> {
        let mut entries = BTreeMap::new();
        // `hvdctl train . >out.log`: a file that grows while it is shipped, and no part of the program
        let own_output: Vec<(u64, u64)> = ["/proc/self/fd/1", "/proc/self/fd/2"]
            .iter()
            .filter_map(|fd| fs::metadata(fd).ok())
            .map(|meta| (meta.dev(), meta.ino()))
            .collect();
        let walk = WalkBuilder::new(root)
            .hidden(false)
            .ignore(false)
            .parents(false)
            .git_global(false)
            .git_exclude(false)
            .require_git(false)
            .add_custom_ignore_filename(".hvdctlignore")
            .filter_entry(|entry| entry.file_name() != ".git")
            .build();
        for found in walk {
            let found = found.map_err(|e| Error::Here(format!("could not read the project: {e}")))?;
            let path = found.path();
            let Ok(relative) = path.strip_prefix(root) else { continue };
            let Some(name) = relative.to_str() else {
                return Err(Error::usage(
                    format!("the project has a file whose name is not UTF-8: {}", relative.display()),
                    "rename it, or name it in .hvdctlignore",
                ));
            };
            if name.is_empty() {
                continue;
            }
            let unreadable = |e: io::Error| Error::Here(format!("could not read {}: {e}", path.display()));
            let meta = fs::symlink_metadata(path).map_err(unreadable)?;
            if own_output.contains(&(meta.dev(), meta.ino())) {
                continue;
            }
            let mode = meta.permissions().mode() & 0o7777;
            let entry = if meta.is_symlink() {
                let target = fs::read_link(path).map_err(unreadable)?;
                if target.to_str().is_none() {
                    return Err(Error::usage(
                        format!("the project has a link whose target is not UTF-8: {}", relative.display()),
                        "point it elsewhere, or name it in .hvdctlignore",
                    ));
                }
                Entry::Link { target }
            } else if meta.is_dir() {
                Entry::Folder { mode }
            } else if meta.is_file() {
                let (hash, size) = hash(path).map_err(unreadable)?;
                Entry::File { hash, mode, size }
            } else {
                continue; // sockets, pipes and devices are no part of a program
            };
            entries.insert(name.to_owned(), entry);
        }
        Ok(Tree { root: root.to_owned(), entries })
    }

    /// Names of all entries, each ended by NUL, as `xargs -0` reads them.
    pub fn names(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for name in self.entries.keys() {
            bytes.extend_from_slice(name.as_bytes());
            bytes.push(0);
        }
        bytes
    }

    /// Which entries a node lacks or has otherwise, given what it said of them ([`parse_state`]).
    pub fn missing(&self, there: &BTreeMap<String, State>) -> Vec<String> {
        let same = |name: &String, entry: &Entry| {
            let Some(state) = there.get(name) else { return false };
            match entry {
                Entry::File { hash, mode, .. } => state.is_file() && state.bits() == *mode && state.hash == *hash,
                Entry::Folder { mode } => state.is_folder() && state.bits() == *mode,
                Entry::Link { target } => state.is_link() && Path::new(&state.target) == target,
            }
        };
        self.entries.iter().filter(|(n, e)| !same(n, e)).map(|(n, _)| n.clone()).collect()
    }

    /// Whether the node has everything as it is here.
    pub fn is_on(&self, there: &BTreeMap<String, State>) -> bool {
        self.missing(there).is_empty()
    }

    /// Bytes of these entries' files.
    pub fn size(&self, names: &[String]) -> u64 {
        names
            .iter()
            .map(|n| match self.entries.get(n) {
                Some(Entry::File { size, .. }) => *size,
                _ => 0,
            })
            .sum()
    }

    /// Bytes of all files.
    pub fn size_of_all(&self) -> u64 {
        self.entries.values().map(|e| if let Entry::File { size, .. } = e { *size } else { 0 }).sum()
    }

    /// These entries as a tar stream, in pieces; it is made on a thread of its own, at the speed of the receiver.
    pub fn tar(&self, names: Vec<String>) -> mpsc::Receiver<io::Result<Vec<u8>>> {
        let (sender, receiver) = mpsc::channel(16);
        let tree = self.clone();
        std::thread::spawn(move || {
            let mut out = io::BufWriter::with_capacity(256 * 1024, Pieces(sender.clone()));
            let written = tree.write_tar(&names, &mut out).and_then(|()| out.flush());
            if let Err(e) = written {
                let _ = sender.blocking_send(Err(e));
            }
        });
        receiver
    }

    fn write_tar(&self, names: &[String], out: &mut dyn Write) -> io::Result<()> {
        let mut tar = tar::Builder::new(out);
        tar.follow_symlinks(false);
        for name in names {
            let path = self.root.join(name);
            let with_path = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
            let mut header = tar::Header::new_gnu();
            header.set_uid(0);
            header.set_gid(0);
            match &self.entries[name] {
                Entry::File { mode, .. } => {
                    let file = File::open(&path).map_err(with_path)?;
                    let meta = file.metadata().map_err(with_path)?;
                    header.set_mode(*mode);
                    header.set_size(meta.len());
                    header.set_mtime(seconds(&meta));
                    // a file that shrinks meanwhile breaks the stream, one that grows is cut: neither is taken for whole
                    tar.append_data(&mut header, name, file.take(meta.len())).map_err(with_path)?;
                }
                Entry::Folder { mode } => {
                    header.set_entry_type(tar::EntryType::Directory);
                    header.set_mode(*mode);
                    header.set_size(0);
                    tar.append_data(&mut header, name, io::empty()).map_err(with_path)?;
                }
                Entry::Link { target } => {
                    header.set_entry_type(tar::EntryType::Symlink);
                    header.set_mode(0o777);
                    header.set_size(0);
                    tar.append_link(&mut header, name, target).map_err(with_path)?;
                }
            }
        }
        tar.finish()
    }
}

fn seconds(meta: &fs::Metadata) -> u64 {
    let modified = meta.modified().ok().and_then(|t| t.duration_since(std::time::UNIX_EPOCH).ok());
    modified.map(|d| d.as_secs()).unwrap_or_default()
}

fn hash(path: &Path) -> io::Result<(String, u64)> {
    let mut file = File::open(path)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 128 * 1024];
    let mut size = 0;
    loop {
        let n = file.read(&mut buffer)?;
        if n == 0 {
            let hex = hasher.finalize().iter().map(|b| format!("{b:02x}")).collect();
            return Ok((hex, size));
        }
        hasher.update(&buffer[..n]);
        size += n as u64;
    }
}

/// Sends what is written as pieces.
struct Pieces(mpsc::Sender<io::Result<Vec<u8>>>);

impl Write for Pieces {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.0.blocking_send(Ok(data.to_vec())).map_err(|_| io::ErrorKind::BrokenPipe)?;
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What a node said of one path.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct State {
    raw_mode: u32,
    hash: String,
    target: String,
}

impl State {
    const TYPE: u32 = 0o170_000; // stat(2)

    fn bits(&self) -> u32 {
        self.raw_mode & 0o7777
    }
    fn is_file(&self) -> bool {
        self.raw_mode & Self::TYPE == 0o100_000
    }
    fn is_folder(&self) -> bool {
        self.raw_mode & Self::TYPE == 0o040_000
    }
    fn is_link(&self) -> bool {
        self.raw_mode & Self::TYPE == 0o120_000
    }
}

/// The program that says what a node has, run by `xargs -0` over the names: records ended by NUL, `m HEXMODE NAME` from
/// stat, `HASH *NAME` from sha256sum, and for a link `t NAME` with its target as the next record.
pub const STATE: &str = r#"stat --printf='m %f %n\0' -- "$@" 2>/dev/null
for f; do [ -h "$f" ] || [ ! -f "$f" ] || printf '%s\0' "$f"; done | xargs -0 -r sha256sum -bz -- 2>/dev/null
for f; do [ ! -h "$f" ] || { printf 't %s\0' "$f" && readlink -z -- "$f"; }; done
:"#;

/// Reads what [`STATE`] printed.
pub fn parse_state(bytes: &[u8]) -> BTreeMap<String, State> {
    let mut states: BTreeMap<String, State> = BTreeMap::new();
    let mut records = bytes.split(|b| *b == 0).map(String::from_utf8_lossy);
    while let Some(record) = records.next() {
        if let Some(name) = record.strip_prefix("t ") {
            let target = records.next().unwrap_or_default().into_owned();
            states.entry(name.to_owned()).or_default().target = target;
        } else if let Some((mode, name)) = record.strip_prefix("m ").and_then(|r| r.split_once(' ')) {
            states.entry(name.to_owned()).or_default().raw_mode = u32::from_str_radix(mode, 16).unwrap_or_default();
        } else if let Some((hash, name)) = record.split_once(" *") {
            states.entry(name.to_owned()).or_default().hash = hash.to_owned();
        }
    }
    states
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    /// What `STATE` says of a tree in a folder of this machine.
    fn state(tree: &Tree, at: &Path) -> BTreeMap<String, State> {
        let mut child = Command::new("xargs")
            .args(["-0", "-r", "sh", "-c", STATE, "sh"])
            .current_dir(at)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(&tree.names()).unwrap();
        parse_state(&child.wait_with_output().unwrap().stdout)
    }

    #[test]
    fn odd_names_arrive_unchanged_and_a_change_is_seen() {
        let from = tempfile::tempdir().unwrap();
        let to = tempfile::tempdir().unwrap();
        let names = ["a b.py", "-rf", "$(touch x)", "new\nline", "q'uo\"te", "deep/er/ünï.txt", "back\\slash", "*"];
        fs::create_dir_all(from.path().join("deep/er")).unwrap();
        for name in names {
            fs::write(from.path().join(name), name).unwrap();
        }
        fs::set_permissions(from.path().join("-rf"), fs::Permissions::from_mode(0o755)).unwrap();
        std::os::unix::fs::symlink("a b.py", from.path().join("link")).unwrap();
        fs::create_dir(from.path().join(".git")).unwrap();
        fs::write(from.path().join(".hvdctlignore"), "skipped\n").unwrap();
        fs::write(from.path().join("skipped"), "").unwrap();

        let tree = Tree::read(from.path()).unwrap();
        assert!(!tree.entries.keys().any(|n| n.contains(".git") || n == "skipped"));
        assert!(tree.entries.contains_key(".hvdctlignore"));
        let all = tree.missing(&BTreeMap::new());
        assert_eq!(all.len(), tree.entries.len());

        let mut child = Command::new("tar").args(["-x", "-C"]).arg(to.path()).stdin(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let mut pieces = tree.tar(all);
        while let Some(piece) = pieces.blocking_recv() {
            stdin.write_all(&piece.unwrap()).unwrap();
        }
        drop(stdin);
        assert!(child.wait().unwrap().success());
        for name in names {
            assert_eq!(fs::read_to_string(to.path().join(name)).unwrap(), name);
        }
        assert!(!to.path().join("x").exists());
        let there = state(&tree, to.path());
        assert!(tree.is_on(&there), "{:?}", tree.missing(&there));

        fs::write(to.path().join("new\nline"), "other").unwrap();
        fs::set_permissions(to.path().join("*"), fs::Permissions::from_mode(0o600)).unwrap();
        fs::remove_file(to.path().join("a b.py")).unwrap();
        fs::remove_file(to.path().join("link")).unwrap();
        std::os::unix::fs::symlink("elsewhere", to.path().join("link")).unwrap();
        let there = state(&tree, to.path());
        assert!(!tree.is_on(&there));
        let missing = tree.missing(&there);
        assert_eq!(missing, ["*", "a b.py", "link", "new\nline"]);
    }
}
