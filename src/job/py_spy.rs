//! py-spy for the nodes whose ranks have none: fetched once to the operator's machine, and sent to a job's directory.

use crate::cluster::member::Member;
use crate::error::{Error, NodeError};
use crate::event::{Events, Step};
use crate::inventory::Cluster;
use crate::paths::{private_directory, state_directory};
use crate::text::digest::hex;
use crate::transport::local;
use crate::transport::node::{RunAs, Script};
use sha2::{Digest as _, Sha256};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;
use tokio::sync::mpsc::channel;
use tokio::time::timeout;

const TOOL: &str = concat!(
    include_str!("../scripts/node/close.sh"),
    include_str!("../scripts/node/permissions.sh"),
    include_str!("../scripts/job/directory.sh"),
    include_str!("../scripts/job/tool.sh")
);

/// The version that is fetched.
const VERSION: &str = "0.4.3";

/// Machines by `uname -m`, the platform of the wheel for each, and the SHA-256 of the program in it.
const WHEELS: [(&str, &str, &str); 2] = [
    ("x86_64", "manylinux1_x86_64", "a41205d4925beafd108e1ace85e66c0a1a7adbfcbebcd4441f07848b608886c0"),
    ("aarch64", "manylinux2014_aarch64", "ad6e22882e8dcaced4f0a76fef10d372645cc7b94c48a289ebe1bedb754774ed"),
];

/// The time that pip may take.
const LIMIT: Duration = Duration::from_secs(120);

const HINT: &str = "install py-spy in the image or environment of the ranks (pip install py-spy), or name the file of its \
                    program: --py-spy FILE";

/// Returns whether a program with this SHA-256 is the one that is fetched for a machine.
pub fn is_known(machine: &str, hash: &str) -> bool {
    WHEELS.iter().any(|(name, _, known)| *name == machine && *known == hash)
}

/// Returns the SHA-256 of a file that the user has named.
///
/// # Errors
/// If it cannot be read.
pub fn hash_of(path: &Path) -> Result<String, Error> {
    Ok(hex(&Sha256::digest(read_given(path)?)))
}

fn read_given(path: &Path) -> Result<Vec<u8>, Error> {
    fs::read(path).map_err(|error| {
        Error::usage(format!("cannot read {}: {error}", path.display()), "--py-spy names a program for the nodes")
    })
}

/// Returns py-spy for a machine: the given file, the one that was fetched earlier, or a new one by pip. `machine`: as
/// `uname -m` names it.
///
/// # Errors
/// If the file cannot be read, there is none for this machine, or pip fails.
pub async fn program(machine: &str, given: Option<&Path>, events: &Events) -> Result<Vec<u8>, Error> {
    if let Some(path) = given {
        return read_given(path);
    }
    let Some((_, platform, hash)) = WHEELS.iter().find(|(name, _, _)| *name == machine) else {
        return Err(Error::check(format!("there is no py-spy that hvdctl knows for {machine:?}"), HINT));
    };
    let kept = state_directory().map(|state| state.join(format!("py-spy-{VERSION}-{machine}")));
    let is_right = |bytes: &Vec<u8>| hex(&Sha256::digest(bytes)) == *hash;
    if let Some(bytes) = kept.as_ref().and_then(|path| fs::read(path).ok()).filter(is_right) {
        return Ok(bytes);
    }
    events.note(format!("fetching py-spy {VERSION} by pip"));
    let failed = |cause: String| Error::check(format!("cannot fetch py-spy {VERSION}: {cause}"), HINT);
    let directory = private_directory().tempdir().map_err(|error| failed(error.to_string()))?;
    let bytes = fetch(platform, directory.path()).await.map_err(failed)?;
    if !is_right(&bytes) {
        return Err(failed("what pip has fetched is not the known program".into()));
    }
    if let Some(path) = kept {
        // without it the next one is fetched again
        let _ = path.parent().map(fs::create_dir_all);
        let _ = fs::write(path, &bytes);
    }
    Ok(bytes)
}

/// Fetches the wheel into a directory, and reads the program in it.
async fn fetch(platform: &str, directory: &Path) -> Result<Vec<u8>, String> {
    let python = local::find("python3", "python3-pip").map_err(|missing| missing.message)?;
    let wanted = format!("py-spy=={VERSION}");
    let download = ["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"];
    let options = ["--only-binary=:all:", "--platform", platform, "--dest", ".", &wanted];
    run(&python, &[&download[..], &options[..]].concat(), directory).await?;
    let wheel = find(directory, "whl").ok_or("pip has fetched no wheel")?;
    run(&python, &["-m", "zipfile", "-e", &wheel.to_string_lossy(), "wheel"], directory).await?;
    let data = find(&directory.join("wheel"), "data").ok_or("the wheel has no program")?;
    fs::read(data.join("scripts/py-spy")).map_err(|error| format!("the wheel has no program: {error}"))
}

/// Returns the entry of a directory with an extension.
fn find(directory: &Path, extension: &str) -> Option<PathBuf> {
    let mut paths = fs::read_dir(directory).ok()?.flatten().map(|entry| entry.path());
    paths.find(|path| path.extension().is_some_and(|found| found == extension))
}

/// Runs a program in a directory.
async fn run(program: &Path, arguments: &[&str], directory: &Path) -> Result<(), String> {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(directory).stdin(Stdio::null()).kill_on_drop(true);
    let output = timeout(LIMIT, command.output()).await.map_err(|_| format!("no end within {} s", LIMIT.as_secs()))?;
    let output = output.map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("no message");
    if output.status.success() { Ok(()) } else { Err(last.to_owned()) }
}

/// Sends it to a node, for a job and all later ones there.
///
/// # Errors
/// If the node cannot store it.
pub async fn send(
    member: &Member,
    cluster: &Cluster,
    id: &str,
    bytes: &[u8],
    events: &Events,
) -> Result<(), NodeError> {
    const SEND: &str = "send py-spy";
    let _step = events.begin(&member.node.name, Step::transfer("sending py-spy".into()));
    let transport = &member.transport;
    // standard input has the program
    let script = Script::new(TOOL).with("jobs_dir", &cluster.jobs_dir).with("cluster", &cluster.name).with("id", id);
    let process = transport.spawn(RunAs::Root, &["sh", "-c", &script.whole()], SEND).await?;
    let (sender, receiver) = channel(1);
    let pieces: Vec<Vec<u8>> = bytes.chunks(256 << 10).map(<[u8]>::to_vec).collect();
    let feed = async {
        for piece in pieces {
            if sender.send(Ok(piece)).await.is_err() {
                break;
            }
        }
        drop(sender);
    };
    let (sent, ()) = tokio::join!(process.feed(receiver, (transport.limit(), transport.limit()), |_| ()), feed);
    let output = sent.map_err(|error| transport.broken(SEND, &error))?;
    transport.succeeded(output, SEND).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_that_is_named_is_used() {
        let (events, _received) = Events::channel();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("spy");
        let error = program("x86_64", Some(&path), &events).await.unwrap_err().to_string();
        assert!(error.contains("No such file or directory") && error.contains("--py-spy"), "{error}");
        fs::write(&path, "program").unwrap();
        assert_eq!(program("riscv64", Some(&path), &events).await.unwrap(), b"program");
        let error = program("riscv64", None, &events).await.unwrap_err().to_string();
        assert!(error.contains("riscv64") && error.contains("pip install py-spy"), "{error}");
    }
}
