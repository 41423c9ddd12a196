//! The directory of a pool on its machine. Any member may write anything there, so that all that is read is bounded.

use super::format::LARGEST_FILE;
use super::verification::{PoolFile, too_large};
use crate::error::NodeError;
use crate::transport::node::{Script, Transport};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::io::Read;

/// The most files that are read.
pub const MOST_FILES: usize = 1024;

const READ: &str = include_str!("../scripts/pool/read.sh");
const PUBLISH: &str = include_str!("../scripts/pool/publish.sh");

/// The directory of a pool, and how its machine is reached.
#[derive(Debug, Clone, Copy)]
pub struct PoolDirectory<'a> {
    /// The machine.
    pub transport: &'a Transport,
    /// The directory.
    pub path: &'a str,
}

/// What is in a pool.
#[derive(Debug, Default, PartialEq)]
pub struct Listing {
    /// The name and the content of each file that was read.
    pub files: Vec<(String, Vec<u8>)>,
    /// The files that were not read.
    pub unread: Vec<PoolFile>,
    /// Whether there are more files than are read.
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
        let broken = |why: String| NodeError::failed(self.transport.node(), &operation, why);
        parse(&answer).map_err(broken)
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
    let hint = if error.message.contains("there is no directory") {
        "create it once: mkdir -m 3770 DIRECTORY, chgrp MEMBERS DIRECTORY; docs/pool.md has the steps"
    } else if error.message.contains("ermission denied") || error.message.contains("not permitted") {
        "all members need write permission to the directory, and each file is its owner's; see docs/pool.md"
    } else {
        return error;
    };
    error.hint(hint)
}

/// Reads what `pool/read.sh` prints.
fn parse(answer: &[u8]) -> Result<Listing, String> {
    let mut listing = Listing::default();
    let mut odd = 0;
    let mut rest = answer;
    loop {
        let end = rest.iter().position(|byte| *byte == b'\n').ok_or("the answer is cut")?;
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
            "link" => "it is a link".to_owned(),
            "special" => "it is no file".to_owned(),
            "denied" => "you have no permission to read it".to_owned(),
            "large" => too_large(),
            _ => return Err("the answer cannot be read".into()),
        };
        listing.unread.push(PoolFile::unreadable(name, reason));
    }
    if odd > 0 {
        listing
            .unread
            .push(PoolFile::unreadable("*.node", format!("{odd} with other characters than hvdctl's in the name")));
    }
    if !rest.is_empty() {
        listing.files = unpack(rest).map_err(|error| format!("the archive cannot be read: {error}"))?;
    }
    Ok(listing)
}

/// Returns the files of an archive.
fn unpack(archive: &[u8]) -> std::io::Result<Vec<(String, Vec<u8>)>> {
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
        let answer =
            [b"link a.node\nodd\nmore\nodd\nlarge b.node\nfiles\n", &archive(&[("c.node", b"\xff\n")])[..]].concat();
        let listing = parse(&answer).unwrap();
        assert_eq!(listing.files, [("c.node".to_owned(), b"\xff\n".to_vec())]);
        assert!(listing.is_cut);
        let reasons: Vec<String> =
            listing.unread.iter().map(|file| format!("{}: {}", file.name, file.reason)).collect();
        let odd = "*.node: 2 with other characters than hvdctl's in the name";
        assert_eq!(reasons, ["a.node: it is a link", "b.node: it is larger than 16.0 KiB", odd]);
        assert!(listing.unread.iter().all(|file| file.state == FileState::Unreadable));
        assert_eq!(parse(b"files\n"), Ok(Listing::default()));
        for cut in [&b""[..], b"link a.node\n", b"file a\nfiles\n", &answer[..answer.len() - 1100], b"files\nx"] {
            assert!(parse(cut).is_err(), "{cut:?}");
        }
        let large = parse(&[b"files\n", &archive(&[("c.node", &[b'x'; LARGEST_FILE + 9])])[..]].concat()).unwrap();
        assert_eq!(large.files[0].1.len(), LARGEST_FILE + 1, "what is too large is kept as such");
    }

    proptest! {
        #[test]
        fn any_answer_is_read(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            let _ = parse(&[b"files\n", &bytes[..]].concat());
            let _ = parse(&bytes);
        }
    }
}
