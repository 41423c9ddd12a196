//! Uploads of a project to the nodes of an inventory, compared with `tar | ssh tar` and `rsync -a` to all of them at
//! once, alternating in one process. Prints medians and ratios. The inventory is `$HVDCTL_INVENTORY`; scripts/bench
//! names the lab's.

use anyhow::{Context, Result, ensure};
use hvdctl::cluster::each_node::{all, for_each_node};
use hvdctl::cluster::fleet::Fleet;
use hvdctl::cluster::target::Target;
use hvdctl::event::Events;
use hvdctl::inventory::{Inventory, Node};
use hvdctl::sync::NodeProject;
use hvdctl::sync::files::ProjectFiles;
use hvdctl::sync::upload::Project;
use hvdctl::transport::node::Script;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Instant;

/// A multiple of three: each of the three is the first, the second and the last as often as the others.
const ROUNDS: usize = 6;
const FILES: usize = 10_000;
/// Their directory on the nodes.
const PLACE: &str = "/opt/horovod/bench";
/// Bytes of all of them.
const BYTES: usize = 200 << 20;

fn main() -> Result<()> {
    tokio::runtime::Runtime::new()?.block_on(measure())
}

#[expect(clippy::print_stdout, reason = "the figures are what this program is for")]
async fn measure() -> Result<()> {
    let file = PathBuf::from(std::env::var_os("HVDCTL_INVENTORY").context("$HVDCTL_INVENTORY is not set")?);
    let mut inventory = Inventory::load(&file)?;
    inventory.cluster.name = "bench".into();
    let in_directory = |directory: &str| {
        let mut inventory = inventory.clone();
        inventory.cluster.projects_dir = format!("{PLACE}/{directory}");
        Target::new(inventory, None)
    };
    let target = in_directory("")?;
    let dir = tempfile::tempdir()?;
    let project = dir.path().join("p");
    fill(&project)?;

    let rsync = which::which("rsync").is_ok()
        && target.nodes().iter().all(|node| succeed(ssh(&target, node, "command -v rsync"), "ssh").is_ok());
    let (mut first, mut unchanged, mut changed) = (Vec::new(), Vec::new(), Vec::new());
    let (mut tar, mut rsync_first, mut rsync_unchanged) = (Vec::new(), Vec::new(), Vec::new());
    clean(&target).await?;
    for round in 0..ROUNDS {
        // nothing is removed in between: ext4 keeps off inodes that were freed in the last minutes, and searches long
        // for others
        // a disk that has just taken some hundred megabytes is slower than one that has rested: they take turns at
        // being the first
        let [with_tar, with_hvdctl, with_rsync] =
            ["tar", "hvdctl", "rsync"].map(|name| in_directory(&format!("{name}{round}")));
        let (with_tar, with_hvdctl, with_rsync) = (with_tar?, with_hvdctl?, with_rsync?);
        for turn in 0..3 {
            match (round + turn) % 3 {
                0 => {
                    let target = &with_tar;
                    tar.push(timed(target, async || on_all(target, |node| tar_to(target, node, &project))).await?);
                }
                1 => first.push(timed(&with_hvdctl, async || hvdctl(&with_hvdctl, &project).await).await?),
                _ if rsync => {
                    let target = &with_rsync;
                    let work = async || on_all(target, |node| rsync_to(target, node, &project));
                    rsync_first.push(timed(target, work).await?);
                }
                _ => {}
            }
        }
        let target = with_hvdctl;
        unchanged.push(timed(&target, async || hvdctl(&target, &project).await).await?);
        if rsync {
            let target = with_rsync;
            let work = async || on_all(&target, |node| rsync_to(&target, node, &project));
            rsync_unchanged.push(timed(&target, work).await?);
        }
        fs::write(project.join("directory7/7.bin"), round.to_string())?;
        changed.push(timed(&target, async || hvdctl(&target, &project).await).await?);
    }
    clean(&target).await?;
    on_all(&target, |node| succeed(ssh(&target, node, &format!("sudo rmdir {PLACE}")), "rmdir"))?;

    let nodes = target.nodes().len();
    println!("{FILES} files, {} MiB, to {nodes} nodes, connecting included; medians of {ROUNDS}:", BYTES >> 20);
    let row = |what: &str, ours: f64, name: &str, theirs: f64| {
        println!("{what:<18} hvdctl {ours:6.2} s   {name:<9} {theirs:6.2} s   ratio {:.2}", ours / theirs);
    };
    let (first, unchanged) = (median(first), median(unchanged));
    row("the first time", first, "tar | ssh", median(tar));
    if rsync {
        row("the first time", first, "rsync -a", median(rsync_first));
        row("unchanged", unchanged, "rsync -a", median(rsync_unchanged));
    } else {
        println!("rsync is not installed here and on every node: left out (apt-get install rsync)");
        println!("{:<18} hvdctl {unchanged:6.2} s", "unchanged");
    }
    println!("{:<18} hvdctl {:6.2} s", "one file changed", median(changed));
    Ok(())
}

/// All that `train` does to upload: reads the project, connects, compares, sends, has it proven.
async fn hvdctl(target: &Target, project: &Path) -> Result<()> {
    let (events, _receiver) = Events::channel();
    let fleet = Fleet::over_ssh(false, Arc::default(), &events);
    let root = project.to_owned();
    let reading = tokio::task::spawn_blocking(move || ProjectFiles::read(&root));
    let (members, files) = tokio::join!(fleet.all(target, &events), reading);
    let (members, files) = (members?, files??);
    let project = Project { files, origin: "bench".into(), shared: false, mounts: Vec::new() };
    let uploaded = for_each_node(members, async |member| {
        let (cluster, transport) = (target.cluster(), &member.transport);
        let node_project = NodeProject { cluster, transport, name: "p", job: "1" };
        let comparison = node_project.compare(&project, &[], &events).await?;
        node_project.upload(&project, comparison, &events).await
    });
    all(&events, uploaded.await)?;
    Ok(())
}

async fn clean(target: &Target) -> Result<()> {
    let (events, _receiver) = Events::channel();
    let script = Script::new("# Variables: dir.\nrm -rf -- \"$dir\" && mkdir -p \"$dir\"").with("dir", PLACE);
    let members = Fleet::over_ssh(false, Arc::default(), &events).all(target, &events).await?;
    let cleaned = for_each_node(members, async |member| member.transport.script(&script, "clean").await);
    all(&events, cleaned.await)?;
    Ok(())
}

/// Does it for every node at the same time.
fn on_all(target: &Target, work: impl Fn(&Node) -> Result<()> + Sync) -> Result<()> {
    let (nodes, work) = (target.nodes(), &work);
    std::thread::scope(|scope| {
        let running: Vec<_> = nodes.iter().map(|node| scope.spawn(move || work(node))).collect();
        running.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })
}

/// Checks how a program ended.
fn succeed(done: std::io::Result<ExitStatus>, program: &str) -> Result<()> {
    let status = done.with_context(|| format!("cannot run {program}"))?;
    ensure!(status.success(), "{program}: {status}");
    Ok(())
}

/// Returns the options and the destination of an `ssh` to a node.
fn ssh_arguments(target: &Target, node: &Node) -> (Vec<String>, String) {
    let config = target.cluster().ssh_config.as_ref();
    let arguments = config.map(|config| vec!["-F".to_owned(), config.display().to_string()]).unwrap_or_default();
    let user = node.user.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
    (arguments, format!("{user}{}", node.host))
}

fn ssh(target: &Target, node: &Node, command: &str) -> std::io::Result<ExitStatus> {
    let (arguments, host) = ssh_arguments(target, node);
    Command::new("ssh").args(arguments).arg(host).arg(command).stdout(Stdio::null()).stdin(Stdio::null()).status()
}

fn tar_to(target: &Target, node: &Node, project: &Path) -> Result<()> {
    let (arguments, host) = ssh_arguments(target, node);
    let mut tar = Command::new("tar").args(["-cf", "-", "-C"]).arg(project).arg(".").stdout(Stdio::piped()).spawn()?;
    let stream = tar.stdout.take().context("tar has no output")?;
    let remote = format!("sudo sh -c 'mkdir -p {0}/p && tar -xf - -C {0}/p'", target.cluster().projects_dir);
    let status = Command::new("ssh").args(arguments).arg(host).arg(remote).stdin(stream).status();
    succeed(status, "ssh")?;
    succeed(tar.wait(), "tar")
}

fn rsync_to(target: &Target, node: &Node, project: &Path) -> Result<()> {
    let (arguments, host) = ssh_arguments(target, node);
    let to = format!("{host}:{}/", target.cluster().projects_dir);
    let ssh = format!("ssh {}", arguments.join(" "));
    let status = Command::new("rsync")
        .args(["-a", "--mkpath", "--rsync-path", "sudo rsync", "-e", &ssh])
        .arg(project)
        .arg(to)
        .status();
    succeed(status, "rsync")
}

/// Files of different sizes in a hundred directories, with contents that do not compress.
fn fill(project: &Path) -> Result<()> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut left = BYTES;
    for i in 0..FILES {
        let directory = project.join(format!("directory{}", i % 100));
        fs::create_dir_all(&directory)?;
        let size = if i + 1 == FILES { left } else { (i * 37 % 200) * BYTES / FILES / 100 };
        left -= size.min(left);
        let mut contents = Vec::with_capacity(size + 8);
        while contents.len() < size {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            contents.extend_from_slice(&state.to_le_bytes());
        }
        contents.truncate(size);
        fs::write(directory.join(format!("{i}.bin")), contents)?;
    }
    Ok(())
}

/// Bytes of memory that are taken and given back before each measurement: some times as many as it writes to two nodes.
const WARM: usize = 8 * BYTES;

/// Measures the seconds that work takes, with nothing left to be written from the round before, and with warm memory: a
/// virtual machine returns free memory to its host, and the first to claim it again pays for that, by chance.
async fn timed(target: &Target, work: impl AsyncFnOnce() -> Result<()>) -> Result<f64> {
    on_all(target, |node| succeed(ssh(target, node, "sync"), "sync"))?;
    std::hint::black_box(vec![1_u8; WARM]);
    let start = Instant::now();
    work().await?;
    Ok(start.elapsed().as_secs_f64())
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    (times[(times.len() - 1) / 2] + times[times.len() / 2]) / 2.0
}
