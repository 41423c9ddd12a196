use super::*;
use serde_json::json;
use std::io::Cursor;

/// The entry to write at a name in an archive.
enum Put<'a> {
    File(&'a [u8]),
    Symlink(&'a str),
    HardLink(&'a str),
}

fn tar(entries: &[(&str, Put<'_>)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, put) in entries {
        let mut header = tar::Header::new_gnu();
        // `set_path` refuses `..`, which an archive may nevertheless have
        header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
        let (kind, link, bytes): (_, _, &[u8]) = match put {
            Put::File(bytes) => (tar::EntryType::Regular, "", bytes),
            Put::Symlink(to) => (tar::EntryType::Symlink, *to, b""),
            Put::HardLink(to) => (tar::EntryType::Link, *to, b""),
        };
        header.set_entry_type(kind);
        header.as_gnu_mut().unwrap().linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_size(bytes.len() as u64);
        header.set_cksum();
        builder.append(&header, bytes).unwrap();
    }
    builder.into_inner().unwrap()
}

fn hash(bytes: &[u8]) -> String {
    sha256(bytes)["sha256:".len()..].to_owned()
}

/// The configuration of an image with these layers, none of them compressed.
fn config(layers: &[&[u8]]) -> Vec<u8> {
    let diff_ids: Vec<String> = layers.iter().map(|layer| sha256(layer)).collect();
    let config = json!({
        "architecture": "amd64", "os": "linux", "config": { "Env": ["B=2", "A=1"] },
        "rootfs": { "type": "layers", "diff_ids": diff_ids },
    });
    config.to_string().into_bytes()
}

fn saved(config: &str, tags: &[&str], layers: &[&str]) -> Vec<u8> {
    json!([{ "Config": config, "RepoTags": tags, "Layers": layers }]).to_string().into_bytes()
}

fn open(bytes: Vec<u8>) -> Result<Archive<Cursor<Vec<u8>>>, ArchiveFault> {
    Archive::open(Cursor::new(bytes))
}

/// The image of an archive and the digests of its layers, or why there is none.
fn read(bytes: Vec<u8>) -> Result<(SavedImage, Vec<String>), String> {
    let read = |bytes| {
        let mut archive = open(bytes)?;
        let image = archive.image("app:1", "linux/amd64")?;
        let digests: Result<Vec<_>, ArchiveFault> =
            image.layers.iter().map(|layer| archive.digest(layer, |_| true)).collect();
        Ok::<_, ArchiveFault>((image, digests?))
    };
    read(bytes).map_err(|fault: ArchiveFault| fault.to_string())
}

const BASE: &[u8] = b"the lowest layer";
const TOP: &[u8] = b"the layer above";

/// The classic layout, in which a layer that occurs twice is a link.
fn classic() -> Vec<u8> {
    let config = config(&[BASE, TOP, BASE]);
    let name = format!("{}.json", hash(&config));
    let manifest = saved(&name, &["app:1"], &["one/layer.tar", "two/layer.tar", "three/layer.tar"]);
    tar(&[
        ("one/layer.tar", Put::File(BASE)),
        ("two/layer.tar", Put::File(TOP)),
        ("three/layer.tar", Put::Symlink("../one/layer.tar")),
        (&name, Put::File(&config)),
        ("manifest.json", Put::File(&manifest)),
    ])
}

#[test]
fn the_classic_layout_is_read_in_place() {
    let bytes = classic();
    let (image, digests) = read(bytes.clone()).unwrap();
    assert_eq!(digests, [sha256(BASE), sha256(TOP), sha256(BASE)]);
    assert_eq!(image.layers[0].extent, image.layers[2].extent, "the link is followed");
    let ArchiveExtent { offset, length } = image.layers[1].extent;
    assert_eq!(&bytes[offset as usize..(offset + length) as usize], TOP);
    assert_eq!((image.platform.as_str(), image.diff_ids.len()), ("linux/amd64", 3));
    assert_eq!(image.content, image_content(&image.diff_ids, vec!["A=1".into(), "B=2".into()]));
}

#[test]
fn an_oci_layout_may_have_compressed_layers() {
    let gzip = [&[0x1f, 0x8b, 8][..], b"compressed"].concat();
    let config = config(&[BASE, TOP]);
    let blob = |bytes: &[u8]| format!("blobs/sha256/{}", hash(bytes));
    let (name, base, top) = (blob(&config), blob(BASE), blob(&gzip));
    let manifest = json!({
        "schemaVersion": 2, "config": { "digest": sha256(&config) },
        "layers": [{ "digest": sha256(BASE) }, { "digest": sha256(&gzip) }],
    });
    let manifest = manifest.to_string().into_bytes();
    let platform = |architecture: &str| json!({ "os": "linux", "architecture": architecture });
    let other = format!("sha256:{}", "0".repeat(64));
    let nested = json!({ "manifests": [
        { "digest": other, "platform": platform("arm64") },
        { "digest": sha256(&manifest), "platform": platform("amd64") },
        { "digest": other, "platform": { "os": "unknown", "architecture": "unknown" } },
    ] });
    let nested = nested.to_string().into_bytes();
    let index = json!({ "manifests": [{ "digest": sha256(&nested) }] }).to_string().into_bytes();
    let (manifest_blob, nested_blob) = (blob(&manifest), blob(&nested));
    let blobs =
        [(base.as_str(), Put::File(BASE)), (top.as_str(), Put::File(&gzip)), (name.as_str(), Put::File(&config))];
    let docker = saved(&name, &["app:1"], &[&base, &top]);
    let oci = [
        (manifest_blob.as_str(), Put::File(&manifest)),
        (nested_blob.as_str(), Put::File(&nested)),
        ("index.json", Put::File(&index)),
    ];
    let [with_docker, without] = [true, false].map(|has_docker| {
        let mut entries: Vec<(&str, Put<'_>)> = Vec::new();
        for (name, put) in blobs.iter().chain(&oci) {
            let Put::File(bytes) = put else { unreachable!() };
            entries.push((name, Put::File(bytes)));
        }
        if has_docker {
            entries.push(("manifest.json", Put::File(&docker)));
        }
        read(tar(&entries)).unwrap()
    });
    assert_eq!(with_docker, without, "both name the same image");
    let (image, digests) = without;
    assert_eq!(digests, [sha256(BASE), sha256(&gzip)]);
    assert_eq!([image.layers[0].compression, image.layers[1].compression], [Compression::None, Compression::Gzip]);
}

#[test]
fn one_of_several_images_is_chosen_by_its_name() {
    let (first, second) = (config(&[BASE]), config(&[TOP]));
    let entry =
        |config: &str, tag: &str, layer: &str| json!({ "Config": config, "RepoTags": [tag], "Layers": [layer] });
    let manifest = |tag: &str| json!([entry("a.json", "other:1", "a.tar"), entry("b.json", tag, "b.tar")]).to_string();
    let archive = |tag: &str| {
        let manifest = manifest(tag);
        read(tar(&[
            ("a.json", Put::File(&first)),
            ("b.json", Put::File(&second)),
            ("a.tar", Put::File(BASE)),
            ("b.tar", Put::File(TOP)),
            ("manifest.json", Put::File(manifest.as_bytes())),
        ]))
    };
    assert_eq!(archive("docker.io/library/app:1").unwrap().1, [sha256(TOP)]);
    assert_eq!(archive("app:2").unwrap_err(), "it has several images, but none with this name: other:1, app:2");
}

#[test]
fn a_truncated_archive_is_refused_wherever_it_ends() {
    let bytes = classic();
    assert!(read(bytes.clone()).is_ok());
    // behind the last entry there are only zeros
    let complete = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    for length in (0..complete).step_by(97) {
        assert!(read(bytes[..length].to_vec()).is_err(), "{length} of {} bytes", bytes.len());
    }
    let in_a_layer = read(bytes[..520].to_vec()).unwrap_err();
    assert_eq!(in_a_layer, "it is truncated: it ends within one/layer.tar");
    assert!(read(b"no archive at all".repeat(100)).unwrap_err().starts_with("it is not an image archive"));
}

#[test]
fn damage_is_found_before_anything_is_sent() {
    let config = config(&[BASE]);
    let manifest = saved("c.json", &[], &["a.tar"]);
    let archive = |layer: &[u8], config: &[u8], manifest: &[u8]| {
        read(tar(&[("a.tar", Put::File(layer)), ("c.json", Put::File(config)), ("manifest.json", Put::File(manifest))]))
    };
    assert!(archive(BASE, &config, &manifest).is_ok());
    let damaged = archive(TOP, &config, &manifest).unwrap_err();
    assert_eq!(damaged, format!("its a.tar is damaged: the digest is {} instead of {}", sha256(TOP), sha256(BASE)));
    let wrong = format!("{}.json", "0".repeat(64));
    let named = saved(&wrong, &[], &["a.tar"]);
    let renamed =
        tar(&[("a.tar", Put::File(BASE)), (&wrong, Put::File(&config)), ("manifest.json", Put::File(&named))]);
    assert!(read(renamed).unwrap_err().contains(".json is damaged"), "the configuration has another digest");
    let fewer = saved("c.json", &[], &[]);
    assert!(archive(BASE, &config, &fewer).unwrap_err().contains("names 1 layers, but the archive has 0"));
    let lacking = saved("c.json", &[], &["b.tar"]);
    assert_eq!(archive(BASE, &config, &lacking).unwrap_err(), "it has no b.tar");
    assert!(archive(BASE, b"{}", &manifest).unwrap_err().starts_with("its configuration cannot be read"));
}

#[test]
fn names_and_links_lead_to_no_file_outside_of_the_archive() {
    let config = config(&[BASE]);
    let with = |layer: &str, put: Put<'_>| {
        let manifest = saved("c.json", &[], &[layer]);
        let entries = [(layer, put), ("c.json", Put::File(&config)), ("manifest.json", Put::File(&manifest))];
        read(tar(&entries)).map(|(_, digests)| digests)
    };
    assert!(with("a/../a.tar", Put::File(BASE)).is_ok(), "a name within the archive");
    assert_eq!(with("../a.tar", Put::File(BASE)), Err("it has no ../a.tar".into()));
    assert_eq!(with("/etc/passwd", Put::File(BASE)), Err("it has no /etc/passwd".into()));
    for to in ["/etc/passwd", "../../etc/passwd", "a.tar"] {
        assert_eq!(with("a.tar", Put::Symlink(to)), Err("it has no a.tar".into()), "a link to {to}");
        assert_eq!(with("a.tar", Put::HardLink(to)), Err("it has no a.tar".into()), "a hard link to {to}");
    }
}

#[test]
fn reading_stops_when_it_is_no_longer_needed() {
    let mut archive = open(classic()).unwrap();
    let image = archive.image("app:1", "").unwrap();
    assert!(archive.digest(&image.layers[0], |_| false).is_err());
}

proptest::proptest! {
    /// Every archive that is not refused is as the configuration describes: an engine gets only bytes that have its
    /// digests.
    #[test]
    fn a_damaged_archive_is_refused_or_harmless(at in 0..classic().len(), byte: u8) {
        let mut bytes = classic();
        bytes[at] = byte;
        if let Ok((image, digests)) = read(bytes) {
            proptest::prop_assert_eq!(image.layers.len(), image.diff_ids.len());
            for ((layer, digest), diff_id) in image.layers.iter().zip(&digests).zip(&image.diff_ids) {
                proptest::prop_assert!(layer.compression != Compression::None || digest == diff_id);
            }
        }
    }
}

#[test]
fn the_files_of_a_container_are_no_image() {
    let bytes =
        tar(&[(".dockerenv", Put::File(b"")), ("etc/passwd", Put::File(b"root")), ("bin", Put::Symlink("usr/bin"))]);
    assert_eq!(read(bytes).unwrap_err(), "it has the files of a container (docker export), not an image");
}

/// A configuration for an architecture, its manifest, and the names of their blobs.
fn built(architecture: &str, layer: &[u8]) -> [(String, Vec<u8>); 2] {
    let blob = |bytes: Vec<u8>| (format!("blobs/sha256/{}", hash(&bytes)), bytes);
    let config = json!({ "architecture": architecture, "os": "linux", "rootfs": { "diff_ids": [sha256(layer)] } });
    let config = config.to_string().into_bytes();
    let manifest = json!({ "config": { "digest": sha256(&config) }, "layers": [{ "digest": sha256(layer) }] });
    [blob(config), blob(manifest.to_string().into_bytes())]
}

#[test]
fn the_platform_is_chosen_from_what_the_archive_has() {
    let layer = format!("blobs/sha256/{}", hash(BASE));
    let [amd, arm] = ["amd64", "arm64"].map(|architecture| built(architecture, BASE));
    let described = |manifest: &[u8], architecture: &str, name: &str| {
        json!({
            "digest": sha256(manifest), "platform": { "os": "linux", "architecture": architecture },
            "annotations": { "org.opencontainers.image.ref.name": name },
        })
    };
    let index = json!({ "manifests": [
        described(&amd[1].1, "amd64", "1"), described(&arm[1].1, "arm64", "1"), described(b"absent", "s390x", "1"),
        { "digest": sha256(b"proof"), "platform": { "os": "unknown", "architecture": "unknown" } },
    ] });
    let index = index.to_string().into_bytes();
    let list = |blobs: &[&[(String, Vec<u8>); 2]]| -> Vec<u8> {
        let entry =
            |blobs: &&[(String, Vec<u8>); 2]| json!({ "Config": blobs[0].0, "RepoTags": ["app:1"], "Layers": [layer] });
        json!(blobs.iter().map(entry).collect::<Vec<_>>()).to_string().into_bytes()
    };
    let image = |blobs: &[&[(String, Vec<u8>); 2]], documents: &[(&str, &[u8])], platform: &str| {
        let mut entries: Vec<(&str, Put<'_>)> = vec![(&layer, Put::File(BASE))];
        entries
            .extend(blobs.iter().flat_map(|blobs| blobs.iter()).map(|(name, bytes)| (name.as_str(), Put::File(bytes))));
        entries.extend(documents.iter().map(|(name, bytes)| (*name, Put::File(bytes))));
        let read = open(tar(&entries)).and_then(|mut archive| archive.image("app:1", platform));
        read.map(|image| image.platform).map_err(|fault| fault.to_string())
    };
    let both = [&amd, &arm];
    for platform in ["linux/amd64", "linux/arm64"] {
        let expected = Ok(platform.to_owned());
        assert_eq!(image(&both, &[("index.json", &index)], platform), expected);
        // a list with the first platform alone, and one with both under one name
        let first = list(&[&amd]);
        assert_eq!(image(&both, &[("index.json", &index), ("manifest.json", &first)], platform), expected);
        assert_eq!(image(&both, &[("manifest.json", &list(&both))], platform), expected);
    }
    let refused =
        |wanted: &str, found: &str| Err(format!("the image is for {found}, but the node's platform is {wanted}"));
    assert_eq!(image(&[&amd], &[("index.json", &index)], "linux/arm64"), refused("linux/arm64", "linux/amd64"));
    assert_eq!(
        image(&both, &[("index.json", &index)], "linux/s390x"),
        refused("linux/s390x", "linux/amd64, linux/arm64")
    );
    assert_eq!(
        image(&[&amd], &[("manifest.json", &list(&[&amd]))], "linux/arm64"),
        refused("linux/arm64", "linux/amd64")
    );
    // an engine exports what it has
    assert_eq!(image(&[&arm], &[("index.json", &index)], ""), Ok("linux/arm64".into()));
}

#[test]
fn an_only_image_of_another_name_is_named() {
    let named = |asked: &str| open(classic()).unwrap().image(asked, "linux/amd64").unwrap().other_name;
    assert_eq!(named("docker.io/library/app:1"), None);
    assert_eq!(named("other:2").as_deref(), Some("app:1"));
}
