//! The wheels of a directory here, which nodes get that download nothing.

use super::EnvPlace;
use crate::error::{Error, ErrorKind, NodeError};
use crate::event::transfer::TransferProgress;
use crate::event::{Events, Step};
use crate::text::digest::hex;
use crate::text::failure::{self, FileFailure};
use crate::text::units::{count, human};
use crate::transport::node::{RunAs, Script, Transport};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::spawn_blocking;

const RECEIVE: &str = concat!(
    include_str!("../scripts/node/close.sh"),
    include_str!("../scripts/node/permissions.sh"),
    include_str!("../scripts/env/common.sh"),
    include_str!("../scripts/env/wheels.sh")
);

const SEND: &str = "send the wheels";

/// Bytes that are read or sent at once.
const PIECE: usize = 256 << 10;
const PIECES_AHEAD: usize = 4;

/// A wheel here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WheelFile {
    /// Its path on nodes: `SHA-256/FILE`.
    pub key: String,
    /// Its size in bytes.
    pub size: u64,
    path: PathBuf,
}

/// The wheels of a directory, by their keys.
#[derive(Debug, Clone, Default)]
pub struct WheelSet {
    /// The wheels.
    pub files: Arc<Vec<WheelFile>>,
}

impl WheelSet {
    /// Reads a directory.
    ///
    /// # Errors
    /// If it has no wheels, or one cannot be read.
    pub async fn read(directory: &Path) -> Result<WheelSet, Error> {
        let (shown, directory) = (directory.display().to_string(), directory.to_owned());
        let read = spawn_blocking(move || read_directory(&directory)).await.map_err(|e| Error::Local(e.to_string()))?;
        let hint = "name a directory of wheels, e.g. of python3 -m pip download -d wheels -r requirements.txt";
        let files = read.map_err(|error| Error::usage(format!("cannot read the wheels of {shown}: {error}"), hint))?;
        if files.is_empty() {
            return Err(Error::usage(format!("{shown} has no wheels (*.whl)"), hint));
        }
        Ok(WheelSet { files: Arc::new(files) })
    }

    /// Returns the lines of `wheels` in `env/install.sh`.
    pub fn lines(&self) -> String {
        self.files.iter().map(|wheel| wheel.key.replacen('/', " ", 1) + "\n").collect()
    }

    /// Sends a node those that it lacks. Returns their bytes.
    ///
    /// # Errors
    /// If the node cannot store them, or one arrives with other contents.
    pub async fn send(
        &self,
        place: &EnvPlace,
        name: &str,
        had: &BTreeSet<String>,
        transport: &Transport,
        events: &Events,
    ) -> Result<u64, NodeError> {
        let missing: Vec<WheelFile> = self.files.iter().filter(|wheel| !had.contains(&wheel.key)).cloned().collect();
        if missing.is_empty() {
            return Ok(0);
        }
        let total = missing.iter().map(|wheel| wheel.size).sum();
        let text = format!("sending {}, {}", count(missing.len(), "wheel"), human(total));
        let _step = events.begin(transport.node(), Step::transfer(text));
        // standard input has the wheels
        let script = Script::new(RECEIVE).with("state_dir", &place.state_dir).with("name", name).whole();
        let process = transport.spawn(RunAs::Login, &["sh", "-c", &script], SEND).await?;
        let mut progress = TransferProgress::new(transport.node(), events);
        let limits = (transport.limit(), transport.limit());
        let sent = process.feed(stream(missing), limits, |done| progress.report("sending", done, total)).await;
        let output = sent.map_err(|error| transport.broken(SEND, &error))?;
        match transport.succeeded(output, SEND) {
            Ok(_) => Ok(total),
            Err(error) if failure::files(&error.message) == Some(FileFailure::NoSpace) => {
                let hint = format!("free space in {}, or set cluster.state_dir to another disk", place.state_dir);
                Err(error.kind(ErrorKind::NoSpace).hint(hint))
            }
            Err(error) => Err(error),
        }
    }
}

/// Returns whether a name can be a line's last word in a script.
fn is_wheel(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.+!".contains(c);
    name.ends_with(".whl") && !name.starts_with(['-', '.']) && name.chars().all(is_plain)
}

fn read_directory(directory: &Path) -> io::Result<Vec<WheelFile>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !is_wheel(&name) || !path.is_file() {
            continue;
        }
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{name}: {error}"));
        let (hash, size) = hash(&path).map_err(named)?;
        files.push(WheelFile { key: format!("{hash}/{name}"), size, path });
    }
    files.sort_by(|a, b| a.key.cmp(&b.key));
    Ok(files)
}

fn hash(path: &Path) -> io::Result<(String, u64)> {
    let (mut file, mut hasher, mut size) = (File::open(path)?, Sha256::new(), 0);
    let mut piece = vec![0; PIECE];
    loop {
        let count = file.read(&mut piece)?;
        if count == 0 {
            return Ok((hex(&hasher.finalize()), size));
        }
        hasher.update(&piece[..count]);
        size += count as u64;
    }
}

/// Sends wheels as a tar stream, read on a thread of its own. It ends with an error if one cannot be read any more.
fn stream(wheels: Vec<WheelFile>) -> Receiver<io::Result<Vec<u8>>> {
    let (sender, receiver) = channel(PIECES_AHEAD);
    thread::spawn(move || {
        let errors = sender.clone();
        let pack = || {
            let mut tar = tar::Builder::new(io::BufWriter::with_capacity(PIECE, WheelPieces(sender)));
            for wheel in wheels {
                let mut header = tar::Header::new_gnu();
                header.set_mode(0o600);
                header.set_size(wheel.size);
                tar.append_data(&mut header, &wheel.key, File::open(&wheel.path)?.take(wheel.size))?;
            }
            tar.into_inner()?.flush()
        };
        if let Err(error) = pack() {
            let _ = errors.blocking_send(Err(error));
        }
    });
    receiver
}

/// Sends what is written.
struct WheelPieces(Sender<io::Result<Vec<u8>>>);

impl Write for WheelPieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
        self.0.blocking_send(Ok(bytes.to_vec())).map_err(gone)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[tokio::test]
    async fn the_wheels_of_a_directory_are_sent_by_their_hashes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        for name in ["a-1-py3-none-any.whl", "b-1-py3-none-any.whl", "c.tar.gz", "odd name.whl", ".hidden.whl"] {
            fs::write(path.join(name), name).unwrap();
        }
        let set = WheelSet::read(path).await.unwrap();
        let hash = |name: &str| hex(&Sha256::digest(name));
        let mut keys = ["a-1-py3-none-any.whl", "b-1-py3-none-any.whl"].map(|name| format!("{}/{name}", hash(name)));
        keys.sort();
        assert_eq!(set.files.iter().map(|wheel| wheel.key.clone()).collect::<Vec<_>>(), keys);
        assert_eq!(set.lines(), keys.map(|key| key.replace('/', " ") + "\n").concat());
        let mut pieces = stream(set.files.to_vec());
        let mut bytes = Vec::new();
        while let Some(piece) = pieces.recv().await {
            bytes.extend(piece.unwrap());
        }
        let mut archive = tar::Archive::new(bytes.as_slice());
        let found = archive.entries().unwrap().map(|entry| {
            let mut entry = entry.unwrap();
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            format!("{}/{text}", entry.path().unwrap().display().to_string().split('/').next().unwrap())
        });
        assert_eq!(found.collect::<Vec<_>>(), set.files.iter().map(|wheel| wheel.key.clone()).collect::<Vec<_>>());

        fs::create_dir(path.join("empty")).unwrap();
        for (directory, words) in [("empty", "has no wheels (*.whl)"), ("no", "No such file or directory")] {
            let error = WheelSet::read(&path.join(directory)).await.unwrap_err().to_string();
            assert!(error.contains(words) && error.contains("pip download"), "{error}");
        }
    }
}
