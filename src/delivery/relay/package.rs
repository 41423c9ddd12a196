//! The image of a relay: this program's executable, and the libraries that it loads.

use crate::image::names::sha256;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The executable in the image.
pub const PROGRAM: &str = "/hvdctl";
/// The only argument of a relay. It is no command: neither help nor completions name it.
pub const ARGUMENT: &str = "internal-relay";
/// The directory in which a relay spools what it receives.
pub const SPOOL: &str = "/spool";

/// The maximum size of a compressed executable, in percent of its bytes.
const COMPRESSED: u64 = 40;

/// The executable of this process.
const OWN: &str = "/proc/self/exe";

/// Returns the platform of this executable, as engines name it; `None` if no engine runs it.
pub fn platform() -> Option<String> {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        _ => return None,
    };
    cfg!(target_os = "linux").then(|| format!("linux/{architecture}"))
}

/// Returns about how many bytes of a relay are sent to a node.
///
/// # Errors
/// If the executable cannot be read.
pub fn size() -> io::Result<u64> {
    Ok(std::fs::metadata(OWN)?.len() * COMPRESSED / 100)
}

/// A relay's image.
pub struct Package {
    /// The libraries in it.
    pub libraries: Vec<PathBuf>,
    /// The archive of its root file system, compressed.
    pub archive: Vec<u8>,
    /// The digest of the archive without compression.
    pub digest: String,
}

impl Package {
    /// Makes the image of this executable.
    ///
    /// # Errors
    /// If the executable or a library of it cannot be read.
    pub fn make() -> io::Result<Package> {
        let libraries = libraries(&std::env::current_exe()?)?;
        let plain = root(&libraries)?;
        let digest = sha256(&plain);
        Ok(Package { libraries, archive: compressed(&plain)?, digest })
    }
}

/// Returns the root file system of a relay's image as an archive: the same bytes on this machine and in a relay.
///
/// # Errors
/// If a file cannot be read.
pub fn root(libraries: &[PathBuf]) -> io::Result<Vec<u8>> {
    let mut tar = tar::Builder::new(Vec::new());
    let mut append = |path: &Path, name: &Path| {
        let mut file = File::open(path)?;
        let mut header = tar::Header::new_gnu();
        header.set_size(file.metadata()?.len());
        header.set_mode(0o755);
        header.set_mtime(0);
        tar.append_data(&mut header, name.strip_prefix("/").unwrap_or(name), &mut file)
    };
    append(Path::new(OWN), Path::new(PROGRAM))?;
    for library in libraries {
        append(library, library)?;
    }
    let mut spool = tar::Header::new_gnu();
    spool.set_entry_type(tar::EntryType::Directory);
    spool.set_mode(0o700);
    spool.set_size(0);
    spool.set_mtime(0);
    tar.append_data(&mut spool, format!("{}/", SPOOL.trim_start_matches('/')), io::empty())?;
    tar.into_inner()
}

/// Returns the files that the dynamic linker loads for an executable; none for a static one.
fn libraries(executable: &Path) -> io::Result<Vec<PathBuf>> {
    let mut ldd = Command::new("ldd");
    let listed = match ldd.arg(executable).env("LC_ALL", "C").stdin(Stdio::null()).output() {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !names_linker(executable)? => return Ok(Vec::new()),
        listed => listed?,
    };
    let (printed, errors) = (String::from_utf8_lossy(&listed.stdout), String::from_utf8_lossy(&listed.stderr));
    if is_static(&printed, &errors) {
        return Ok(Vec::new());
    }
    if !listed.status.success() {
        return Err(io::Error::other(format!("ldd: {}", errors.trim())));
    }
    loaded(&printed).map_err(io::Error::other)
}

/// Returns whether an executable names the linker that loads its libraries. That is in its first bytes.
fn names_linker(executable: &Path) -> io::Result<bool> {
    let mut first = Vec::new();
    File::open(executable)?.take(4096).read_to_end(&mut first)?;
    Ok(first.windows(4).any(|part| part == b"/ld-"))
}

fn is_static(printed: &str, errors: &str) -> bool {
    ["statically linked", "not a dynamic executable", "Not a valid dynamic program"]
        .iter()
        .any(|text| printed.contains(text) || errors.contains(text))
}

/// Reads what ldd prints: `NAME => PATH (ADDRESS)`, and `PATH (ADDRESS)` for the linker. What the kernel provides has
/// no path.
fn loaded(printed: &str) -> Result<Vec<PathBuf>, String> {
    let mut paths = Vec::new();
    for line in printed.lines().map(str::trim) {
        let (name, path) = line.split_once(" => ").unwrap_or((line, line));
        if path.starts_with("not found") {
            return Err(format!("ldd cannot find {name}"));
        }
        let path = path.split(" (").next().unwrap_or_default();
        if path.starts_with('/') {
            paths.push(path.into());
        }
    }
    Ok(paths)
}

fn compressed(plain: &[u8]) -> io::Result<Vec<u8>> {
    // a higher level takes longer than it saves
    let mut gzip = GzEncoder::new(Vec::new(), Compression::new(3));
    io::Write::write_all(&mut gzip, plain)?;
    gzip.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_libraries_of_an_executable_are_found() {
        let printed = "\tlinux-vdso.so.1 (0x00007ffc7a5c4000)\n\
            \tlibgcc_s.so.1 => /lib/x86_64-linux-gnu/libgcc_s.so.1 (0x00007f3a)\n\
            \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f3b)\n\t/lib64/ld-linux-x86-64.so.2 (0x00007f3c)\n";
        let expected =
            ["/lib/x86_64-linux-gnu/libgcc_s.so.1", "/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(loaded(printed).unwrap(), expected.map(PathBuf::from));
        assert_eq!(loaded("\tlibx.so => not found\n").unwrap_err(), "ldd cannot find libx.so");
        assert!(is_static("\tstatically linked\n", "") && is_static("", "\tnot a dynamic executable\n"));
        assert!(!is_static(printed, ""));
        assert!(names_linker(Path::new("/bin/sh")).unwrap() && !names_linker(Path::new("/etc/passwd")).unwrap());
    }
}
