//! The main path on nodes of other distributions and with other settings, two at a time while the pool is up.

use super::machines::{Machines, checkout, lab};
use crate::process::{run, s};
use crate::variants::Steps;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// A kind of nodes.
struct Variant {
    name: &'static str,
    /// The machine options of `scripts/lab up`.
    options: &'static [&'static str],
    /// /etc/docker/daemon.json, unless empty.
    daemon_json: &'static str,
    /// If set, the inventory has the addresses of eth1.
    second_is_cluster: bool,
    /// If set, images are pushed between the nodes instead of running trainings.
    pushes_images: bool,
}

const fn variant(name: &'static str, options: &'static [&'static str]) -> Variant {
    Variant { name, options, daemon_json: "", second_is_cluster: false, pushes_images: false }
}

const USERNS: &str = r#"{ "userns-remap": "default" }"#;
const CONTAINERD: &str = r#"{ "features": { "containerd-snapshotter": true } }"#;

/// The limit that containers of Docker 29 have by default.
const FEW_FILES: &str = r#"{ "default-ulimits": { "nofile": { "Name": "nofile", "Soft": 1024, "Hard": 524288 } } }"#;

const VARIANTS: [Variant; 15] = [
    variant("no names", &["--names", "none"]),
    variant("own name on a second network", &["--second", "network", "--names", "other"]),
    variant("own name on a second address", &["--second", "address", "--names", "other"]),
    Variant { second_is_cluster: true, ..variant("cluster on the second network", &["--second", "network"]) },
    variant("bullseye", &["--distro", "bullseye"]),
    variant("trixie", &["--distro", "trixie"]),
    variant("forky", &["--distro", "forky"]),
    variant("forky and bullseye", &["--distro", "forky,bullseye"]),
    variant("trixie with uutils", &["--distro", "trixie", "--uutils"]),
    variant("forky with uutils", &["--distro", "forky", "--uutils"]),
    Variant { daemon_json: USERNS, ..variant("trixie with userns-remap", &["--distro", "trixie"]) },
    Variant { daemon_json: CONTAINERD, ..variant("trixie with containerd's store", &["--distro", "trixie"]) },
    Variant { daemon_json: CONTAINERD, ..variant("forky with containerd's store", &["--distro", "forky"]) },
    Variant { daemon_json: FEW_FILES, ..variant("few open files", &[]) },
    // the engine of bookworm does not know containerd's store
    Variant {
        daemon_json: CONTAINERD,
        pushes_images: true,
        ..variant("two image stores", &["--distro", "trixie,bookworm"])
    },
];

/// The addresses of eth1 in place of the found ones.
fn with_second_addresses(inventory: &str) -> String {
    let found: Vec<&str> = inventory.lines().filter(|line| !line.starts_with("address = ")).collect();
    let mut inventory = found.join("\n");
    for node in ["node1", "node2"] {
        let show = "ip -4 -o addr show dev eth1 | sed 's/.*inet \\([^/]*\\).*/\\1/'";
        let address = lab(&["sh", node, "sh", "-c", show]).ok();
        let host = format!("host = \"{node}\"");
        assert!(inventory.contains(&host), "{inventory}");
        inventory = inventory.replacen(&host, &format!("address = \"{}\"\n{host}", address.trim()), 1);
    }
    inventory
}

/// Starts the nodes and runs all steps; returns those that failed.
fn tried(variant: &Variant, dir: &Path) -> Vec<String> {
    let daemon_json = dir.join("daemon.json");
    std::fs::write(&daemon_json, variant.daemon_json).unwrap();
    let mut options = [&["up"][..], variant.options].concat();
    if !variant.daemon_json.is_empty() {
        options.extend(["--daemon-json", daemon_json.to_str().unwrap()]);
    }
    let started = Instant::now();
    let up = lab(&options);
    let mut steps = Steps::new(variant.name, dir, &checkout().join(".lab/ssh_config"));
    if up.code != 0 {
        steps.report("scripts/lab up", &format!("FAILED: {}", up.err), started);
        return steps.failed;
    }
    steps.report("scripts/lab up", "ok", started);
    let edit = |inventory: String| match variant.second_is_cluster {
        true => with_second_addresses(&inventory),
        false => inventory,
    };
    if variant.pushes_images {
        steps.run_all(edit, &[]);
        push_images(&mut steps);
    } else {
        steps.run_all(edit, &[0, 1, 2, 3, 4]);
    }
    steps.failed
}

/// Pushes images in both directions, without relays and with them, and again with another last layer.
fn push_images(steps: &mut Steps) {
    const PUSHED: &str = "hvdctl-lab/pushed:1";
    for (from, to) in [("node1", "node2"), ("node2", "node1")] {
        for mib in [1, 60] {
            for layer in ["a lower layer", "the last layer"] {
                let build = format!(
                    "mkdir -p /root/pushed && cd /root/pushed
                     {{ [ '{layer}' = 'the last layer' ] && [ -e base ]; }} || head -c {mib}M /dev/urandom >base
                     head -c {mib}M /dev/urandom >top
                     printf 'FROM scratch\nCOPY base /base\nCOPY top /top\n' >Dockerfile
                     DOCKER_BUILDKIT=0 docker build -q -t {PUSHED} ."
                );
                lab(&["sh", from, "sh", "-ec", &build]).ok();
                let name = format!("image push of {mib} MiB from {from}, {layer}");
                steps.step(&name, &["image", "push", PUSHED, "--from", from], &format!("{to}: pushed"));
                let hash = |node| {
                    let copy = format!(
                        "id=$(docker create {PUSHED} none); docker cp $id:/top - | tar xO | sha256sum; docker rm $id >&2"
                    );
                    lab(&["sh", node, "sh", "-ec", &copy]).out
                };
                let hashes = [hash(from), hash(to)];
                if hashes[0] != hashes[1] || hashes[0].is_empty() {
                    steps.report(&name, "FAILED: the nodes have different images", Instant::now());
                }
            }
        }
    }
    // it fails if they differ
    steps.step("image status", &["image", "status", PUSHED], PUSHED);
}

#[test]
fn the_main_path_on_each_variant_of_nodes() {
    let only = std::env::var("HVDCTL_TEST_VARIANT").unwrap_or_default();
    let chosen: Vec<&Variant> = VARIANTS.iter().filter(|variant| variant.name.contains(&only)).collect();
    assert!(!chosen.is_empty(), "there is no variant {only:?}");
    let _machines = Machines::reserve();
    let mut failed = Vec::new();
    for variant in chosen {
        failed.extend(tried(variant, tempfile::tempdir().unwrap().path()));
    }
    assert!(failed.is_empty(), "{} steps failed:\n{}", failed.len(), failed.join("\n"));
}

/// Makes an OCI layout, whose layers zstd has compressed, of what `docker save` wrote: `python3 -c WITH_ZSTD IN OUT`.
const WITH_ZSTD: &str = r#"
import hashlib, io, json, subprocess, sys, tarfile
saved, out = tarfile.open(sys.argv[1]), tarfile.open(sys.argv[2], "w")
def add(name, data):
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    out.addfile(entry, io.BytesIO(data))
def blob(kind, data):
    digest = hashlib.sha256(data).hexdigest()
    add("blobs/sha256/" + digest, data)
    return {"mediaType": "application/vnd.oci.image." + kind, "digest": "sha256:" + digest, "size": len(data)}
image = json.load(saved.extractfile("manifest.json"))[0]
zstd = lambda data: subprocess.run(["zstd", "-q", "-c"], input=data, stdout=subprocess.PIPE, check=True).stdout
layers = [blob("layer.v1.tar+zstd", zstd(saved.extractfile(layer).read())) for layer in image["Layers"]]
config = blob("config.v1+json", saved.extractfile(image["Config"]).read())
manifest = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": config, "layers": layers}
manifest = blob("manifest.v1+json", json.dumps(manifest).encode())
add("oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
add("index.json", json.dumps({"schemaVersion": 2, "manifests": [manifest]}).encode())
out.close()
"#;

#[test]
fn layers_that_zstd_has_compressed_go_to_the_engines_that_read_them() {
    const PUSHED: &str = "hvdctl-lab/pushed:1";
    // Docker 20.10 and 26.1
    let _machines = Machines::up(&["--distro", "bullseye,trixie"]);
    let dir = tempfile::tempdir().unwrap();
    let [saved, archive] = ["saved.tar", "zstd.tar"].map(|name| dir.path().join(name));
    let build = format!(
        "mkdir -p /root/pushed && cd /root/pushed && head -c 1M /dev/urandom >top &&
         printf 'FROM scratch\nCOPY top /top\n' >Dockerfile && docker build -q -t {PUSHED} . >&2 && docker save \
         {PUSHED} | base64;
         docker rmi {PUSHED} >&2"
    );
    let text = dir.path().join("saved.base64");
    std::fs::write(&text, lab(&["sh", "node2", "sh", "-ec", &build]).ok()).unwrap();
    let decoded = Command::new("base64").arg("-d").arg(&text).output().unwrap().stdout;
    std::fs::write(&saved, decoded).unwrap();
    let made = Command::new("python3").args(["-c", WITH_ZSTD]).args([&saved, &archive]).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let mut push = Command::new(env!("CARGO_BIN_EXE_hvdctl"));
    push.arg("-i").arg(checkout().join(".lab/inventory.toml")).args(["image", "push", PUSHED, "--from"]).arg(&archive);
    let done = run(push, s(240)).code(3).says(&["node2: pushed"]);
    done.complains(&["node1", "has layers compressed with zstd, which Docker 20.10", "skopeo copy"]);
    let there = lab(&["sh", "node2", "docker", "images", "-q", PUSHED]).ok();
    assert!(!there.trim().is_empty(), "node2 has the image");
}
