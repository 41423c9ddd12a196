//! Reading files of the operator's machine: none without end, no device instead of a file, and no secret that others
//! can read.

use base64::Engine as _;
use rustix::fs::{Mode, OFlags, StatVfsMountFlags};
use std::fmt;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use zeroize::Zeroizing;

/// The reason why a file of secrets is not used.
#[derive(Debug)]
pub enum ReadFault {
    /// It cannot be read.
    Unreadable(io::Error),
    /// It belongs to this user, who is neither the one that reads it nor root.
    OfAnother(u32),
    /// Its group or others can read or change it: its mode.
    Open(u32),
}

impl fmt::Display for ReadFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadFault::Unreadable(error) => error.fmt(f),
            ReadFault::OfAnother(user) => write!(f, "it belongs to another user (uid {user})"),
            ReadFault::Open(mode) => write!(f, "other users can read it (mode {mode:o})"),
        }
    }
}

impl ReadFault {
    /// Returns the next step for a file of this quoted name; `None` where the error says enough.
    pub fn hint(&self, file: &str) -> Option<String> {
        match self {
            ReadFault::Unreadable(_) => None,
            ReadFault::OfAnother(_) => Some(format!("make a copy of your own: install -m 600 {file} COPY")),
            // a Windows drive in WSL, and others without modes of their own, keep the mode that they have
            ReadFault::Open(_) => Some(format!(
                "chmod 600 {file}; where that changes nothing (a Windows drive in WSL), copy it to your home directory \
                 first, or give a pipe: <(cat {file})"
            )),
        }
    }
}

/// Reads at most `most` bytes of what the operator has named: a file, or a pipe.
///
/// # Errors
/// If it cannot be read, or has more.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    take(&File::open(path)?, most, &mut bytes)?;
    Ok(bytes)
}

/// Reads a regular file of at most `most` bytes. Nothing else is opened: a pipe would wait for ever, and a device may
/// do anything.
///
/// # Errors
/// If it cannot be read, is something else, or has more.
pub fn read_regular(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let check = |meta: &Metadata| match meta.is_file() {
        false => Err(io::Error::other("it is not a file")),
        true if meta.len() > most => Err(too_large(most)),
        true => Ok(()),
    };
    check(&fs::metadata(path)?)?;
    // another one may have taken its place since
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    check(&file.metadata()?)?;
    let mut bytes = Vec::new();
    take(&file, most, &mut bytes)?;
    Ok(bytes)
}

/// Reads a file of secrets of at most `most` bytes. As with a private key of ssh, nobody else may be able to read it. A
/// pipe, such as `<(…)` in a shell, has no other readers.
///
/// # Errors
/// The reason why it is not used.
pub fn read_secret(path: &Path, most: u64) -> Result<Zeroizing<Vec<u8>>, ReadFault> {
    let file = File::open(path).map_err(ReadFault::Unreadable)?;
    let meta = file.metadata().map_err(ReadFault::Unreadable)?;
    if meta.is_file() {
        let read_only =
            rustix::fs::fstatvfs(&file).is_ok_and(|system| system.f_flag.contains(StatVfsMountFlags::RDONLY));
        check_secret(meta.uid(), meta.mode() & 0o7777, read_only, rustix::process::geteuid().as_raw())?;
    }
    // one that grew would leave copies behind
    let mut bytes = Zeroizing::new(Vec::with_capacity(meta.len().min(most) as usize + 64));
    take(&file, most, &mut bytes).map_err(ReadFault::Unreadable)?;
    Ok(bytes)
}

/// Checks owner and mode of a file of secrets that the user `reader` reads. What root has mounted read-only, as Docker
/// and Kubernetes do with secrets, has the mode that root wants, and nobody can change it there.
fn check_secret(owner: u32, mode: u32, read_only: bool, reader: u32) -> Result<(), ReadFault> {
    match (owner, mode & 0o077) {
        (0, _) if read_only => Ok(()),
        (owner, _) if owner != reader && owner != 0 => Err(ReadFault::OfAnother(owner)),
        (_, 0) => Ok(()),
        _ => Err(ReadFault::Open(mode)),
    }
}

/// Appends what a file has, at most `most` bytes.
fn take(file: &File, most: u64, bytes: &mut Vec<u8>) -> io::Result<()> {
    file.take(most + 1).read_to_end(bytes)?;
    if bytes.len() as u64 > most { Err(too_large(most)) } else { Ok(()) }
}

fn too_large(most: u64) -> io::Error {
    io::Error::other(format!("it is larger than {} KiB", most >> 10))
}

/// A file for a node: mode, name of less than 100 bytes, and text.
pub type PackedFile<'a> = (u32, &'a str, &'a str);

/// Packs files into a tar archive in base64.
pub fn archive(files: &[PackedFile<'_>]) -> Zeroizing<String> {
    Zeroizing::new(base64::engine::general_purpose::STANDARD.encode(&*pack(files)))
}

/// Packs files into a tar archive. They may be secrets: it is allocated at its full size, because one that grows leaves its
/// old bytes in memory.
pub fn pack(files: &[PackedFile<'_>]) -> Zeroizing<Vec<u8>> {
    const BLOCK: usize = 512;
    let size: usize = files.iter().map(|(_, _, text)| BLOCK + text.len().next_multiple_of(BLOCK)).sum();
    let mut whole = Zeroizing::new(Vec::with_capacity(size + 2 * BLOCK));
    let archive: &mut Vec<u8> = &mut whole;
    for (mode, name, text) in files {
        let mut header = tar::Header::new_gnu();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(tar::EntryType::Regular);
        header.set_mode(*mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(text.len() as u64);
        header.set_cksum();
        archive.extend_from_slice(header.as_bytes());
        archive.extend_from_slice(text.as_bytes());
        archive.resize(archive.len().next_multiple_of(BLOCK), 0);
    }
    archive.resize(archive.len() + 2 * BLOCK, 0);
    whole
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::io::Write as _;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn nothing_is_read_without_end() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("file"), [b'x'; 2048]).unwrap();
        assert_eq!(read(&at("file"), 2048).unwrap().len(), 2048);
        assert_eq!(read_regular(&at("file"), 2048).unwrap().len(), 2048);
        for error in [read(&at("file"), 2047), read_regular(&at("file"), 2047), read(Path::new("/dev/zero"), 2047)] {
            assert_eq!(error.unwrap_err().to_string(), "it is larger than 1 KiB");
        }
        assert!(std::process::Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
        std::os::unix::fs::symlink("/dev/zero", at("link")).unwrap();
        for other in ["pipe", "link", "."] {
            assert_eq!(read_regular(&at(other), 1).unwrap_err().to_string(), "it is not a file", "{other}");
        }
        assert_eq!(read_regular(&at("missing"), 1).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_file_of_secrets_is_of_its_reader_or_root_and_of_nobody_else() {
        let shown = |owner, mode, read_only, reader| {
            check_secret(owner, mode, read_only, reader).map_err(|fault| fault.to_string())
        };
        for (owner, mode, read_only, reader) in [
            (7, 0o600, false, 7),
            (7, 0o400, false, 7),
            (0, 0o600, false, 0),
            // of Docker and Kubernetes
            (0, 0o444, true, 7),
            (0, 0o644, true, 0),
            (0, 0o440, true, 7),
        ] {
            assert_eq!(shown(owner, mode, read_only, reader), Ok(()), "{owner} {mode:o}");
        }
        for mode in [0o640, 0o604, 0o620, 0o777, 0o644] {
            for (owner, read_only, reader) in [(7, false, 7), (0, false, 7), (7, true, 7)] {
                let expected = Err(format!("other users can read it (mode {mode:o})"));
                assert_eq!(shown(owner, mode, read_only, reader), expected, "{owner}");
            }
        }
        for (read_only, reader) in [(false, 7), (true, 7), (false, 0)] {
            assert_eq!(shown(8, 0o600, read_only, reader), Err("it belongs to another user (uid 8)".to_owned()));
        }
    }

    #[test]
    fn a_secret_is_read_from_a_private_file_or_a_pipe() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("my secret");
        fs::write(&file, "A=1").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        let fault = read_secret(&file, 9).unwrap_err();
        assert!(fault.hint("'my secret'").unwrap().starts_with("chmod 600 'my secret'; "), "{fault:?}");
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        assert_eq!(read_secret(&file, 9).unwrap().as_slice(), b"A=1");
        assert!(matches!(read_secret(&file, 2), Err(ReadFault::Unreadable(_))));
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(b"B=2").unwrap();
        drop(writer);
        let pipe = format!("/proc/self/fd/{}", reader.as_raw_fd());
        assert_eq!(read_secret(Path::new(&pipe), 9).unwrap().as_slice(), b"B=2");
    }
}
