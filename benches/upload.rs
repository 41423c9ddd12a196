//! Uploads of a project to the nodes of an inventory, compared with `tar | ssh tar` and `rsync -a` to all of them at once,
//! alternating in one process. Prints medians and ratios. The inventory is `$HVDCTL_INVENTORY`; scripts/bench names the lab's.

use hvdctl::cluster::fleet::Fleet;
use hvdctl::cluster::nodes::{Target, all, for_each_node};
use hvdctl::event::Events;
use hvdctl::inventory::{Inventory, Node};
use hvdctl::sync::NodeProject;
use hvdctl::sync::files::ProjectFiles;
use hvdctl::sync::upload::Project;
use hvdctl::transport::node::Script;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

/// A multiple of three: each of the three is the first, the second and the last as often as the others.
const ROUNDS: usize = 6;
const FILES: usize = 10_000;
/// Their directory on the nodes.
const PLACE: &str = "/opt/horovod/bench";
/// Bytes of all of them.
const BYTES: usize = 200 << 20;

fn main() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(measure());
}

#[expect(clippy::print_stdout, reason = "the figures are what this program is for")]
async fn measure() {
    let file = PathBuf::from(std::env::var_os("HVDCTL_INVENTORY").expect("$HVDCTL_INVENTORY"));
    let mut inventory = Inventory::load(&file).expect("an inventory");
    inventory.cluster.name = "bench".into();
    let in_directory = |directory: &str| {
        let mut inventory = inventory.clone();
        inventory.cluster.projects_dir = format!("{PLACE}/{directory}");
        Target::new(inventory, None).expect("nodes")
    };
    let target = in_directory("");
    let dir = tempfile::tempdir().expect("a temporary directory");
    let project = dir.path().join("p");
    fill(&project);

    let rsync = installed("rsync") && target.nodes().iter().all(|node| ssh(&target, node, "command -v rsync"));
    let (mut first, mut unchanged, mut changed) = (Vec::new(), Vec::new(), Vec::new());
    let (mut tar, mut rsync_first, mut rsync_unchanged) = (Vec::new(), Vec::new(), Vec::new());
    clean(&target).await;
    for round in 0..ROUNDS {
        // nothing is removed in between: ext4 keeps off inodes that were freed in the last minutes, and searches long for others
        // a disk that has just taken some hundred megabytes is slower than one that has rested: they take turns at being the first
        let [with_tar, with_hvdctl, with_rsync] =
            ["tar", "hvdctl", "rsync"].map(|name| in_directory(&format!("{name}{round}")));
        for turn in 0..3 {
            match (round + turn) % 3 {
                0 => {
                    let target = &with_tar;
                    tar.push(timed(target, async || on_all(target, |node| tar_to(target, node, &project))).await);
                }
                1 => first.push(timed(&with_hvdctl, async || hvdctl(&with_hvdctl, &project).await).await),
                _ if rsync => {
                    let target = &with_rsync;
                    let work = async || on_all(target, |node| rsync_to(target, node, &project));
                    rsync_first.push(timed(target, work).await);
                }
                _ => {}
            }
        }
        let target = with_hvdctl;
        unchanged.push(timed(&target, async || hvdctl(&target, &project).await).await);
        if rsync {
            let target = with_rsync;
            rsync_unchanged
                .push(timed(&target, async || on_all(&target, |node| rsync_to(&target, node, &project))).await);
        }
        fs::write(project.join("directory7/7.bin"), round.to_string()).expect("a change");
        changed.push(timed(&target, async || hvdctl(&target, &project).await).await);
    }
    clean(&target).await;
    on_all(&target, |node| assert!(ssh(&target, node, &format!("sudo rmdir {PLACE}"))));

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
}

/// All that `train` does to upload: reads the project, connects, compares, sends, has it proven.
async fn hvdctl(target: &Target, project: &Path) {
    let (events, _receiver) = Events::channel();
    let fleet = Fleet::over_ssh(false, Arc::default(), &events);
    let root = project.to_owned();
    let reading = tokio::task::spawn_blocking(move || ProjectFiles::read(&root));
    let (members, files) = tokio::join!(fleet.all(target, &events), reading);
    let (members, files) = (members.expect("the nodes"), files.expect("a thread").expect("the project"));
    let project = Project { files, origin: "bench".into(), shared: false, mounts: Vec::new() };
    let uploaded = for_each_node(members, async |member| {
        let (cluster, transport) = (target.cluster(), &member.transport);
        let node_project = NodeProject { cluster, transport, name: "p", job: "1" };
        let comparison = node_project.compare(&project, &[], &events).await?;
        node_project.upload(&project, comparison, &events).await
    });
    all(&events, uploaded.await).expect("uploaded");
}

async fn clean(target: &Target) {
    let (events, _receiver) = Events::channel();
    let script = Script::new("rm -rf -- \"$dir\" && mkdir -p \"$dir\"").with("dir", PLACE);
    let members = Fleet::over_ssh(false, Arc::default(), &events).all(target, &events).await.expect("the nodes");
    let cleaned = for_each_node(members, async |member| member.transport.script(&script, "clean").await);
    all(&events, cleaned.await).expect("clean nodes");
}

/// Does it for every node at the same time.
fn on_all(target: &Target, work: impl Fn(&Node) + Sync) {
    let nodes = target.nodes();
    std::thread::scope(|scope| nodes.iter().for_each(|node| drop(scope.spawn(|| work(node)))));
}

/// Returns the options and the destination of an `ssh` to a node.
fn ssh_arguments(target: &Target, node: &Node) -> (Vec<String>, String) {
    let config = target.cluster().ssh_config.as_ref();
    let arguments = config.map(|config| vec!["-F".to_owned(), config.display().to_string()]).unwrap_or_default();
    let user = node.user.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
    (arguments, format!("{user}{}", node.host))
}

fn ssh(target: &Target, node: &Node, command: &str) -> bool {
    let (arguments, host) = ssh_arguments(target, node);
    let status =
        Command::new("ssh").args(arguments).arg(host).arg(command).stdout(Stdio::null()).stdin(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

fn tar_to(target: &Target, node: &Node, project: &Path) {
    let (arguments, host) = ssh_arguments(target, node);
    let mut tar = Command::new("tar").args(["-cf", "-", "-C"]).arg(project).arg(".").stdout(Stdio::piped()).spawn();
    let stream = tar.as_mut().expect("tar").stdout.take().expect("its output");
    let remote = format!("sudo sh -c 'mkdir -p {0}/p && tar -xf - -C {0}/p'", target.cluster().projects_dir);
    let status = Command::new("ssh").args(arguments).arg(host).arg(remote).stdin(stream).status();
    assert!(status.expect("ssh").success());
    assert!(tar.and_then(|mut tar| tar.wait()).expect("tar").success());
}

fn rsync_to(target: &Target, node: &Node, project: &Path) {
    let (arguments, host) = ssh_arguments(target, node);
    let to = format!("{host}:{}/", target.cluster().projects_dir);
    let ssh = format!("ssh {}", arguments.join(" "));
    let status = Command::new("rsync")
        .args(["-a", "--mkpath", "--rsync-path", "sudo rsync", "-e", &ssh])
        .arg(project)
        .arg(to)
        .status();
    assert!(status.expect("rsync").success());
}

fn installed(program: &str) -> bool {
    Command::new(program).arg("--version").stdout(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// Files of different sizes in a hundred directories, with contents that do not compress.
fn fill(project: &Path) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut left = BYTES;
    for i in 0..FILES {
        let directory = project.join(format!("directory{}", i % 100));
        fs::create_dir_all(&directory).expect("a directory");
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
        fs::write(directory.join(format!("{i}.bin")), contents).expect("a file");
    }
}

/// Bytes of memory that are taken and given back before each measurement: some times as many as it writes to two nodes.
const WARM: usize = 8 * BYTES;

/// How long it takes, with nothing left to be written from the round before, and with warm memory: a virtual machine gives free
/// memory back to its host, and who takes it again first pays for that, by chance.
async fn timed(target: &Target, work: impl AsyncFnOnce()) -> f64 {
    on_all(target, |node| assert!(ssh(target, node, "sync")));
    std::hint::black_box(vec![1_u8; WARM]);
    let start = Instant::now();
    work().await;
    start.elapsed().as_secs_f64()
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    (times[(times.len() - 1) / 2] + times[times.len() / 2]) / 2.0
}
