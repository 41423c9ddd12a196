//! Files of this machine that images are taken from. An archive is read in place. What is compressed, a directory and a
//! pipe are spooled first, to a file without a name. Programs that every system has unpack, which keeps their formats
//! out of hvdctl.

use crate::error::Error;
use crate::event::Events;
use crate::text::nodeset::printable;
use crate::text::units::human;
use crate::transport::local;
use std::fs::File;
use std::io::{self, Seek as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;

/// The name of standard input.
pub const STDIN: &str = "-";
/// The bytes that stay free where images are spooled: an archive may unpack to any size.
const RESERVE: u64 = 64 << 20;
/// Bytes between two looks at the free space.
const CHECKED: usize = 64 << 20;
/// Bytes that are copied at once.
const PIECE: usize = 1 << 20;
/// Bytes that show the format.
const HEAD: usize = 512;
/// The most bytes that are kept of what a program complains.
const MESSAGES: u64 = 64 << 10;
/// The hint on the files that can be named.
const EXPECTED: &str = "name a file of docker save, a directory with an OCI layout, or - for standard input";

/// An archive of an image on this machine, in place or spooled.
#[derive(Debug)]
pub struct ImageFile {
    /// The archive.
    pub file: File,
    /// Its name for messages.
    pub shown: String,
}

/// A program that unpacks. All take `-dc`.
#[derive(Debug, PartialEq, Eq)]
struct Packer {
    name: &'static str,
    /// The Debian package that has it.
    package: &'static str,
    magic: &'static [u8],
}

const PACKERS: [Packer; 5] = [
    Packer { name: "gzip", package: "gzip", magic: &[0x1f, 0x8b] },
    Packer { name: "bzip2", package: "bzip2", magic: b"BZh" },
    Packer { name: "xz", package: "xz-utils", magic: b"\xfd7zXZ\0" },
    Packer { name: "zstd", package: "zstd", magic: &[0x28, 0xb5, 0x2f, 0xfd] },
    Packer { name: "lz4", package: "lz4", magic: &[0x04, 0x22, 0x4d, 0x18] },
];

/// The format of a file, by its first bytes.
#[derive(Debug, PartialEq, Eq)]
enum Format {
    /// A tar archive, or nothing that is known.
    Tar,
    /// Compressed.
    Packed(&'static Packer),
    /// No image of Docker: what it is, and what to do.
    Foreign(&'static str, &'static str),
}

/// Returns the format of a file with these first bytes.
fn format(head: &[u8]) -> Format {
    const APPTAINER: Format = Format::Foreign(
        "it is an image of Apptainer or enroot, which Docker does not run",
        "`docker save IMAGE >FILE` writes an archive of an image of Docker",
    );
    let has = |offset: usize, magic: &[u8]| head.get(offset..).is_some_and(|rest| rest.starts_with(magic));
    let text = String::from_utf8_lossy(head).trim_start().to_ascii_lowercase();
    match head {
        [] => Format::Foreign("it is empty", "check whether docker save failed, and save the image again"),
        _ if has(257, b"ustar") => Format::Tar,
        _ if has(0, b"PK\x03\x04") => {
            Format::Foreign("it is a zip archive", "unzip it, and name the file of docker save in it")
        }
        _ if has(0, b"hsqs") || has(32, b"SIF_MAGIC") => APPTAINER,
        _ if has(0, b"version https://git-lfs") => {
            Format::Foreign("it is a Git LFS pointer instead of the file", "`git lfs pull` fetches the file")
        }
        _ if text.starts_with("<!doctype html") || text.starts_with("<html") => {
            Format::Foreign("it is a web page, not an image", "the download may need a login, or another address")
        }
        _ => PACKERS.iter().find(|packer| has(0, packer.magic)).map_or(Format::Tar, Format::Packed),
    }
}

impl ImageFile {
    /// Opens the archive of an image: a file, also a compressed one, a directory with an OCI layout or what docker save
    /// packs, a pipe, or standard input ([`STDIN`]).
    ///
    /// # Errors
    /// [`Error::Usage`] if it is something else, [`Error::Local`] if it cannot be unpacked or spooled.
    pub async fn open(from: &Path, events: &Events) -> Result<ImageFile, Error> {
        let (opened, shown) = if from == Path::new(STDIN) {
            (io::stdin().as_fd().try_clone_to_owned().map(File::from), "standard input".to_owned())
        } else {
            // the open of a pipe waits for its writer
            let opened = match tokio::fs::File::open(from).await {
                Ok(file) => Ok(file.into_std().await),
                Err(error) => Err(error),
            };
            (opened, printable(&from.display().to_string()))
        };
        let unreadable = |error: io::Error| Error::usage(format!("cannot read {shown}: {error}"), EXPECTED);
        let file = opened.map_err(unreadable)?;
        let kind = file.metadata().map_err(unreadable)?.file_type();
        let mut file = if kind.is_dir() {
            return packed_layout(from, shown, events).await;
        } else if kind.is_file() {
            file
        } else if kind.is_fifo() || kind.is_socket() {
            events.note(format!("spooling {shown} to {}", spool_directory().display()));
            spool(tokio::fs::File::from_std(file), &shown, RESERVE).await?
        } else {
            return Err(Error::usage(format!("{shown} is not a file, directory or pipe"), EXPECTED));
        };
        let mut head = [0; HEAD];
        let count = file.read_at(&mut head, 0).map_err(unreadable)?;
        let packer = match format(&head[..count]) {
            Format::Tar => return Ok(ImageFile { file, shown }),
            Format::Foreign(what, hint) => return Err(Error::usage(format!("cannot read {shown}: {what}"), hint)),
            Format::Packed(packer) => packer,
        };
        let program = local::find(packer.name, packer.package).map_err(|missing| {
            let (message, hint) = (missing.message, missing.hint);
            let elsewhere = format!("or unpack it elsewhere: {} -d FILE", packer.name);
            Error::Local(format!("cannot unpack {shown}: {message}\n  hint: {hint}; {elsewhere}"))
        })?;
        events.note(format!("unpacking {shown} with {} to {}", packer.name, spool_directory().display()));
        // standard input may have been read before
        file.rewind().map_err(unreadable)?;
        let damaged = "it may be cut off or damaged: copy it again";
        let file = output(Command::new(program).arg("-dc").stdin(file), "unpack", &shown, damaged).await?;
        Ok(ImageFile { file, shown })
    }
}

/// Packs a directory with the files of an archive.
async fn packed_layout(directory: &Path, shown: String, events: &Events) -> Result<ImageFile, Error> {
    // a `manifest.json` of something else is no list
    let is_list = |file: PathBuf| {
        let mut head = [0; HEAD];
        let read = File::open(file).and_then(|file| file.read_at(&mut head, 0)).unwrap_or_default();
        head[..read].trim_ascii_start().starts_with(b"[")
    };
    let has_layout = directory.join("index.json").is_file() && directory.join("blobs").is_dir();
    let has_list = is_list(directory.join("manifest.json"));
    if !has_layout && !has_list {
        // skopeo's `dir:`
        let hint = match directory.join("version").is_file() {
            true => "`skopeo copy dir:DIR oci-archive:FILE` makes an archive of it",
            false => EXPECTED,
        };
        return Err(Error::usage(format!("cannot read {shown}: it has no index.json of an OCI layout"), hint));
    }
    let absolute = std::path::absolute(directory)
        .map_err(|error| Error::usage(format!("cannot read {shown}: {error}"), EXPECTED))?;
    let program = local::find("tar", "tar")?;
    events.note(format!("packing {shown} to {}", spool_directory().display()));
    // in a layout, all blobs are verified by their digests: build systems link them to their caches
    let (options, names): (_, &[&str]) = if has_list { ("-cf", &["."]) } else { ("-chf", &["index.json", "blobs"]) };
    let mut tar = Command::new(program);
    tar.args([options, "-", "-C"]).arg(absolute).args(names).stdin(Stdio::null());
    let file = output(&mut tar, "pack", &shown, "check whether its files can be read").await?;
    Ok(ImageFile { file, shown })
}

/// Spools what a program prints. `hint`: what to do if it fails.
async fn output(command: &mut Command, verb: &str, shown: &str, hint: &str) -> Result<File, Error> {
    let failed = |why: &str, hint: &str| Error::Local(format!("cannot {verb} {shown}: {why}{hint}"));
    let here = |error: io::Error| failed(&error.to_string(), "");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true).spawn().map_err(here)?;
    let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(failed("it has no output", ""));
    };
    let (mut messages, mut stderr) = (Vec::new(), stderr.take(MESSAGES));
    let complaints = async {
        stderr.read_to_end(&mut messages).await.map_err(here)?;
        // it would wait for a reader of the rest
        tokio::io::copy(stderr.get_mut(), &mut tokio::io::sink()).await.map_err(here)
    };
    let (file, _) = tokio::try_join!(spool(stdout, shown, RESERVE), complaints)?;
    let status = child.wait().await.map_err(here)?;
    if !status.success() {
        let messages = String::from_utf8_lossy(&messages);
        let last = messages.lines().rev().map(str::trim).find(|line| !line.is_empty());
        let why = last.map_or_else(|| status.to_string(), printable);
        return Err(failed(&why, &format!("\n  hint: {hint}")));
    }
    Ok(file)
}

/// Copies everything to a file without a name, whose space is free again when hvdctl ends, however it ends.
async fn spool(mut from: impl AsyncRead + Unpin, shown: &str, reserve: u64) -> Result<File, Error> {
    let directory = spool_directory();
    let full = |why: String| {
        let place = directory.display();
        Error::Local(format!(
            "cannot spool {shown} to {place}: {why}\n  hint: set TMPDIR to a directory with more space"
        ))
    };
    let here = |error: io::Error| full(error.to_string());
    let mut file = tokio::fs::File::from_std(tempfile::tempfile_in(&directory).map_err(here)?);
    let (mut piece, mut unchecked) = (vec![0; PIECE], CHECKED);
    loop {
        if unchecked >= CHECKED {
            unchecked = 0;
            if free_space(&directory).map_err(here)? < reserve {
                return Err(full(format!("less than {} would be left", human(reserve))));
            }
        }
        let read = from.read(&mut piece).await;
        let count = read.map_err(|error| Error::Local(format!("cannot read {shown}: {error}")))?;
        if count == 0 {
            break;
        }
        file.write_all(&piece[..count]).await.map_err(here)?;
        unchecked += count;
    }
    file.flush().await.map_err(here)?;
    Ok(file.into_std().await)
}

/// Returns where images are spooled: `$TMPDIR`, else the directory for large temporary files.
pub fn spool_directory() -> PathBuf {
    let named = std::env::var_os("TMPDIR").filter(|directory| !directory.is_empty()).map(PathBuf::from);
    let usual = || Some(PathBuf::from("/var/tmp")).filter(|directory| directory.is_dir());
    named.or_else(usual).unwrap_or_else(std::env::temp_dir)
}

/// Returns the free bytes of the file system of a directory.
///
/// # Errors
/// If the system does not say.
pub fn free_space(directory: &Path) -> io::Result<u64> {
    let file_system = rustix::fs::statvfs(directory)?;
    Ok(file_system.f_bavail.saturating_mul(file_system.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Read as _;
    use std::process;

    /// A tar archive that is larger than what a pipe holds.
    fn archive() -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        let bytes: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        builder.append_data(&mut header, "manifest.json", &bytes[..]).unwrap();
        builder.into_inner().unwrap()
    }

    async fn open(path: &Path) -> Result<Vec<u8>, String> {
        let mut opened = ImageFile::open(path, &Events::channel().0).await.map_err(|error| error.to_string())?;
        let mut bytes = Vec::new();
        opened.file.rewind().unwrap();
        opened.file.read_to_end(&mut bytes).unwrap();
        Ok(bytes)
    }

    #[test]
    fn the_first_bytes_tell_the_format() {
        let packed = |head: &[u8]| match format(head) {
            Format::Packed(packer) => packer.name,
            other => panic!("{head:?}: {other:?}"),
        };
        assert_eq!(packed(&[0x1f, 0x8b, 8]), "gzip");
        assert_eq!(packed(b"BZh91AY"), "bzip2");
        assert_eq!(packed(&[0xfd, b'7', b'z', b'X', b'Z', 0, 0]), "xz");
        assert_eq!(packed(&[0x28, 0xb5, 0x2f, 0xfd]), "zstd");
        assert_eq!(packed(&[4, 0x22, 0x4d, 0x18]), "lz4");
        let mut named = archive();
        named[..3].copy_from_slice(b"BZh");
        for tar in [&archive()[..], &named[..], b"anything", &[0x1f]] {
            assert_eq!(format(&tar[..tar.len().min(HEAD)]), Format::Tar);
        }
        let sif = [b"#!/usr/bin/env run-singularity\n\0".as_slice(), b"SIF_MAGIC\0"].concat();
        for (head, words) in [
            (&b""[..], "empty"),
            (b"PK\x03\x04..", "zip"),
            (b"hsqs....", "Apptainer"),
            (&sif, "Apptainer"),
            (b"version https://git-lfs.github.com/spec/v1\noid", "git lfs pull"),
            (b"\n<!DOCTYPE html><html>", "login"),
            (b"<HTML>", "login"),
        ] {
            let Format::Foreign(what, hint) = format(head) else { panic!("{head:?}") };
            assert!(format!("{what}; {hint}").contains(words), "{what}; {hint}");
        }
    }

    #[tokio::test]
    async fn archives_are_unpacked_by_the_programs_of_their_formats() {
        let (dir, bytes) = (tempfile::tempdir().unwrap(), archive());
        let plain = dir.path().join("app.tar");
        fs::write(&plain, &bytes).unwrap();
        assert_eq!(open(&plain).await.unwrap(), bytes);
        for packer in PACKERS {
            if packer.name != "gzip" && which::which(packer.name).is_err() {
                let _ = io::Write::write_all(&mut io::stderr(), format!("not tried: {}\n", packer.name).as_bytes());
                continue;
            }
            let packed =
                process::Command::new(packer.name).arg("-c").stdin(File::open(&plain).unwrap()).output().unwrap();
            assert!(packed.status.success(), "{packed:?}");
            let path = dir.path().join(packer.name);
            fs::write(&path, &packed.stdout).unwrap();
            assert!(open(&path).await.unwrap() == bytes, "{}", packer.name);
            fs::write(&path, &packed.stdout[..packed.stdout.len() / 2]).unwrap();
            let error = open(&path).await.unwrap_err();
            let begins = format!("cannot unpack {}: ", path.display());
            assert!(error.starts_with(&begins) && error.contains("hint: it may be cut off"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_directory_with_an_oci_layout_is_packed() {
        let dir = tempfile::tempdir().unwrap();
        let layout = dir.path().join("-lay out");
        fs::create_dir_all(layout.join("blobs/sha256")).unwrap();
        let error = open(&layout).await.unwrap_err();
        assert!(error.contains("no index.json of an OCI layout") && error.contains("docker save"), "{error}");
        fs::write(layout.join("version"), "Directory Transport Version: 1.1\n").unwrap();
        assert!(open(&layout).await.unwrap_err().contains("skopeo copy dir:DIR"));
        for (name, text) in [("index.json", "{}"), ("manifest.json", "{\"name\": \"a web page\"}")] {
            fs::write(dir.path().join(name), text).unwrap();
        }
        assert!(open(dir.path()).await.unwrap_err().contains("no index.json of an OCI layout"), "a project");
        fs::write(layout.join("index.json"), "{}").unwrap();
        fs::write(dir.path().join("cached"), "blob").unwrap();
        std::os::unix::fs::symlink(dir.path().join("cached"), layout.join("blobs/sha256/x")).unwrap();
        let bytes = open(&layout).await.unwrap();
        let mut archive = tar::Archive::new(&bytes[..]);
        let read = |entry: io::Result<tar::Entry<'_, &[u8]>>| {
            let mut entry = entry.unwrap();
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            (entry.path().unwrap().display().to_string(), text)
        };
        let entries: Vec<(String, String)> = archive.entries().unwrap().map(read).collect();
        for (name, text) in [("index.json", "{}"), ("blobs/sha256/x", "blob")] {
            assert!(entries.contains(&(name.to_owned(), text.to_owned())), "{entries:?}");
        }
    }

    #[tokio::test]
    async fn a_pipe_is_spooled() {
        let (dir, bytes) = (tempfile::tempdir().unwrap(), archive());
        let pipe = dir.path().join("pipe");
        assert!(process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let mut gzip = process::Command::new("gzip").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (mut to, mut packed) = (gzip.stdin.take().unwrap(), gzip.stdout.take().unwrap());
        let (path, sent) = (pipe.clone(), bytes.clone());
        let writer = std::thread::spawn(move || io::Write::write_all(&mut to, &sent).unwrap());
        let reader = std::thread::spawn(move || {
            io::copy(&mut packed, &mut fs::OpenOptions::new().write(true).open(path).unwrap()).unwrap();
        });
        assert!(open(&pipe).await.unwrap() == bytes);
        [writer, reader].into_iter().for_each(|thread| thread.join().unwrap());
        gzip.wait().unwrap();
    }

    #[tokio::test]
    async fn what_is_no_image_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("app.zip");
        fs::write(&path, b"PK\x03\x04").unwrap();
        let error = open(&path).await.unwrap_err();
        assert!(
            error.ends_with("app.zip: it is a zip archive\n  hint: unzip it, and name the file of docker save in it"),
            "{error}"
        );
        assert!(open(Path::new("/dev/null")).await.unwrap_err().contains("/dev/null is not a file, directory or pipe"));
        assert!(open(&dir.path().join("none")).await.unwrap_err().contains("No such file"));
    }

    #[tokio::test]
    async fn a_program_that_complains_much_is_not_waited_for() {
        let mut shell = Command::new("sh");
        shell.args([
            "-c",
            "i=0; while [ $i -lt 5000 ]; do echo 'tar: a file has changed as we read it' >&2; i=$((i + \
            1)); done; echo x",
        ]);
        let mut file = output(shell.stdin(Stdio::null()), "pack", "app", "").await.unwrap();
        let mut text = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "x\n");
    }

    #[tokio::test]
    async fn a_disk_is_not_filled() {
        let error = spool(&b"bytes"[..], "app.tar", u64::MAX).await.unwrap_err().to_string();
        assert!(error.contains("would be left\n  hint: set TMPDIR"), "{error}");
    }
}
