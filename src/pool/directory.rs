//! The directory of a pool on its machine. Any member may write anything there, so that all that is read is bounded.

use super::format::LARGEST_FILE;
use super::verification::{PoolFile, too_large};
use crate::error::{ErrorKind, NodeError};
use crate::transport::node::{Script, Transport};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::collections::BTreeSet;
use std::io::Read;

/// The most files that are read.
pub const MOST_FILES: usize = 1024;

const READ: &str = concat!(include_str!("../scripts/pool/enter.sh"), include_str!("../scripts/pool/read.sh"));
const PUBLISH: &str = concat!(include_str!("../scripts/pool/enter.sh"), include_str!("../scripts/pool/publish.sh"));

/// The exit code of `pool/enter.sh` if there is no such directory.
const NO_DIRECTORY: i32 = 66;

/// The end of an archive (POSIX, "ustar Interchange Format"): two empty blocks.
const ARCHIVE_END: [u8; 1024] = [0; 1024];

/// The directory of a pool, and how its machine is reached.
#[derive(Debug, Clone, Copy)]
pub struct PoolDirectory<'a> {
    /// The machine.
    pub transport: &'a Transport,
    /// The directory.
    pub path: &'a str,
}

/// The files of a pool.
#[derive(Debug, Default, PartialEq)]
pub struct Listing {
    /// The name and the content of each file that was read.
    pub files: Vec<(String, Vec<u8>)>,
    /// The files that were not read.
    pub unread: Vec<PoolFile>,
    /// Set if there are more files than are read.
    pub is_cut: bool,
}

impl PoolDirectory<'_> {
    /// Reads all files, by the login itself.
    ///
    /// # Errors
    /// When the machine does not answer, or the directory is missing or cannot be read.
    pub async fn read(&self) -> Result<Listing, NodeError> {
        let operation = format!("read the pool {}", self.path);
        let script = Script::new(READ)
            .with("path", self.path)
            .with("most", &MOST_FILES.to_string())
            .with("blocks", &(LARGEST_FILE / 512).to_string());
        let answer = self.transport.script_as_login(&script, &operation).await.map_err(explained)?;
        parse(&answer).map_err(|UnreadableListing { message, hint }| {
            hint.into_iter().fold(NodeError::failed(self.transport.node(), &operation, message), NodeError::hint)
        })
    }

    /// Writes files, each with its name and content. By the login itself: so the machine knows whose file it is.
    ///
    /// # Errors
    /// When the machine does not answer, or the directory is missing or may not be written to.
    pub async fn publish(&self, files: &[(String, String)]) -> Result<(), NodeError> {
        let lines: Vec<String> = files.iter().map(|(name, text)| format!("{name} {}", STANDARD.encode(text))).collect();
        let script = Script::new(PUBLISH).with("path", self.path).with("files", &lines.join("\n"));
        let operation = format!("write to the pool {}", self.path);
        self.transport.script_as_login(&script, &operation).await.map(drop).map_err(explained)
    }
}

/// Adds the next step to what concerns the directory.
fn explained(error: NodeError) -> NodeError {
    let hint = if error.kind == (ErrorKind::CommandFailed { status: NO_DIRECTORY }) {
        "create it once: mkdir -m 3770 DIRECTORY, chgrp MEMBERS DIRECTORY; docs/reference/pool.md has the steps"
    } else if error.message.contains("ermission denied") || error.message.contains("not permitted") {
        "all members need permission to read and write the directory and to enter those above it, and each file \
         belongs to its owner. A new group applies to new logins: run hvdctl disconnect; docs/reference/pool.md has \
         the steps"
    } else {
        return error;
    };
    error.hint(hint)
}

/// The reason why an answer of `pool/read.sh` has no listing, with what to do about it.
#[derive(Debug, PartialEq, Eq)]
struct UnreadableListing {
    message: String,
    hint: Option<&'static str>,
}

impl<T: Into<String>> From<T> for UnreadableListing {
    fn from(message: T) -> UnreadableListing {
        UnreadableListing { message: message.into(), hint: None }
    }
}

/// Reads what `pool/read.sh` prints.
fn parse(answer: &[u8]) -> Result<Listing, UnreadableListing> {
    let mut listing = Listing::default();
    let mut odd = 0;
    let mut named = BTreeSet::new();
    let mut rest = answer;
    loop {
        let end = rest.iter().position(|byte| *byte == b'\n').ok_or("the answer is truncated")?;
        let line = String::from_utf8_lossy(&rest[..end]).into_owned();
        rest = &rest[end + 1..];
        let (word, name) = line.split_once(' ').unwrap_or((&line, ""));
        let reason = match word {
            "files" => break,
            "more" => {
                listing.is_cut = true;
                continue;
            }
            "odd" => {
                odd += 1;
                continue;
            }
            "file" => {
                named.insert(name.to_owned());
                continue;
            }
            "link" => "it is a link".to_owned(),
            "special" => "it is not a file".to_owned(),
            "denied" => "you have no permission to read it".to_owned(),
            "large" => too_large(),
            _ => return Err("the answer cannot be read".into()),
        };
        listing.unread.push(PoolFile::unreadable(name, reason));
    }
    if odd > 0 {
        listing.unread.push(PoolFile::unreadable("*.node", format!("{odd} with unexpected characters in the name")));
    }
    if !named.is_empty() {
        listing.files = unpack(rest)?;
        // of an owner only what was looked at before
        listing.files.retain(|(name, _)| named.remove(name));
        let missing = "it was removed meanwhile, or tar cannot read it";
        listing.unread.extend(named.iter().map(|name| PoolFile::unreadable(name, missing)));
    }
    Ok(listing)
}

/// Returns the files of an archive, behind which the status of tar stands, and what tar has reported. If it has failed,
/// the archive may be whole all the same: without a file that was removed meanwhile, or with one that was replaced.
fn unpack(answer: &[u8]) -> Result<Vec<(String, Vec<u8>)>, UnreadableListing> {
    // the archive ends with zeros
    let end = answer.iter().rposition(|byte| *byte == 0).map_or(0, |last| last + 1);
    let (archive, tail) = answer.split_at(end);
    let tail = String::from_utf8_lossy(tail);
    let (status, reported) =
        tail.strip_prefix("tar ").and_then(|tail| tail.split_once('\n')).ok_or("the answer is truncated")?;
    let files = match archive.ends_with(&ARCHIVE_END) {
        true => entries(archive).map_err(|error| format!("the archive cannot be read: {error}"))?,
        false => Vec::new(),
    };
    match (files.is_empty(), status) {
        (false, _) => Ok(files),
        (true, "0") => Err("the archive is truncated".into()),
        (true, status) => Err(UnreadableListing {
            message: format!("tar failed with exit code {status}: {}", reported.trim()),
            hint: Some("check whether tar is installed there; docs/reference/pool.md lists what the machine needs"),
        }),
    }
}

/// Returns the files of an archive.
fn entries(archive: &[u8]) -> std::io::Result<Vec<(String, Vec<u8>)>> {
    let mut files = Vec::new();
    for entry in tar::Archive::new(archive).entries()?.take(MOST_FILES) {
        let mut entry = entry?;
        let name = String::from_utf8_lossy(&entry.path_bytes()).trim_start_matches("./").to_owned();
        let size = entry.size();
        let mut content = Vec::new();
        // one byte more shows that it has grown meanwhile
        entry.by_ref().take(LARGEST_FILE as u64 + 1).read_to_end(&mut content)?;
        if (content.len() as u64) < size.min(LARGEST_FILE as u64 + 1) {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        if entry.header().entry_type().is_file() {
            files.push((name, content));
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::verification::FileState;
    use proptest::prelude::*;

    fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (name, content) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(0o644);
            builder.append_data(&mut header, format!("./{name}"), *content).unwrap();
        }
        builder.into_inner().unwrap()
    }

    #[test]
    fn an_answer_is_read_whole_or_not_at_all() {
        let files = archive(&[("c.node", b"\xff\n"), ("no one named it.node", b"x")]);
        let head = b"link a.node\nodd\nmore\nodd\nlarge b.node\nfile c.node\nfile d.node\nfiles\n";
        let answer = [&head[..], &files, b"tar 0\n\n"].concat();
        let listing = parse(&answer).unwrap();
        assert_eq!(listing.files, [("c.node".to_owned(), b"\xff\n".to_vec())]);
        assert!(listing.is_cut);
        let reasons: Vec<String> =
            listing.unread.iter().map(|file| format!("{}: {}", file.name, file.reason)).collect();
        let odd = "*.node: 2 with unexpected characters in the name";
        let missing = "d.node: it was removed meanwhile, or tar cannot read it";
        assert_eq!(reasons, ["a.node: it is a link", "b.node: it is larger than 16.0 KiB", odd, missing]);
        assert!(listing.unread.iter().all(|file| file.state == FileState::Unreadable));
        assert_eq!(parse(b"files\n"), Ok(Listing::default()));
        let cut = [&head[..], &files[..files.len() - 1100], b"tar 137\nKilled\n"].concat();
        assert_eq!(parse(&cut).unwrap_err().message, "tar failed with exit code 137: Killed");
        for cut in
            [&b""[..], b"link a.node\n", b"what a\nfiles\n", &answer[..answer.len() - 8], b"file a\nfiles\n", &head[..]]
        {
            assert!(parse(cut).is_err(), "{cut:?}");
        }
        // one of them was replaced or removed meanwhile
        assert_eq!(parse(&[&head[..], &files, b"tar 1\ntar: d.node: No such file\n"].concat()), Ok(listing));
        let large = archive(&[("c.node", &[b'x'; LARGEST_FILE + 9])]);
        let large = parse(&[b"file c.node\nfiles\n", &large[..], b"tar 0\n"].concat()).unwrap();
        assert_eq!(large.files[0].1.len(), LARGEST_FILE + 1, "what is too large is kept as such");
    }

    proptest! {
        #[test]
        fn any_answer_is_read(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            let _ = parse(&[b"file a\nfiles\n", &bytes[..], &ARCHIVE_END, b"tar 0\n"].concat());
            let _ = parse(&bytes);
        }
    }
}
