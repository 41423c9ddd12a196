//! Reads the archive of an image in place: both layouts of `docker save` (with `manifest.json`), and OCI layouts
//! (`index.json`). Nothing is unpacked: a path or link in the archive leads to another entry of it, or nowhere.

use super::names::{familiar, repository_and_tag, sha256};
use crate::runtime::image_content;
use crate::text::digest::hex;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{self, Read, Seek, SeekFrom};

/// The most bytes of a JSON document in an archive.
const MAX_JSON: u64 = 16 << 20;
/// The most links that are followed from one name, and indexes from one to the next.
const MAX_DEPTH: usize = 8;
/// Bytes that are read at once.
const CHUNK: usize = 1 << 20;

/// Files that the archive of a container has.
const EXPORTED: [&str; 3] = [".dockerenv", "etc/passwd", "bin/sh"];

/// A reason why an archive is not one of an image.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveFault {
    /// The file cannot be read, or is no tar archive.
    #[error("it is not an image archive, or it is damaged: {0}")]
    Tar(#[from] io::Error),
    /// The file ends too early.
    #[error("it is truncated: it ends within {0}")]
    Truncated(String),
    /// It was written by `docker export`.
    #[error("it has the files of a container (docker export), not an image")]
    Export,
    /// It lacks what it names.
    #[error("it has no {0}")]
    Missing(String),
    /// A document in it has another form.
    #[error("its {name} cannot be read: {cause}")]
    Malformed {
        /// The document.
        name: String,
        /// The error.
        cause: String,
    },
    /// Bytes are not those that their digest names.
    #[error("its {name} is damaged: the digest is {found} instead of {expected}")]
    Damaged {
        /// The entry.
        name: String,
        /// The digest that it should have.
        expected: String,
        /// The digest that it has.
        found: String,
    },
    /// It has the image for other platforms.
    #[error("the image is for {found}, but the node's platform is {wanted}")]
    Platform {
        /// The platform that is needed.
        wanted: String,
        /// The platforms that it has.
        found: String,
    },
    /// It has more than one image.
    #[error("it has several images, but none with this name: {0}")]
    Several(String),
}

/// A part of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArchiveExtent {
    /// The offset of its first byte.
    pub offset: u64,
    /// Its length in bytes.
    pub length: u64,
}

/// The compression of a layer, by its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Compression {
    /// A tar archive as it is.
    None,
    /// gzip.
    Gzip,
    /// Zstandard.
    Zstd,
}

/// A layer in an archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedLayer {
    /// Its name there.
    pub name: String,
    /// Its place in the file.
    pub extent: ArchiveExtent,
    /// Its compression.
    pub compression: Compression,
    /// The digest that it must have; `None` if nothing in the archive names it.
    pub digest: Option<String>,
}

/// An image in an archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedImage {
    /// Its configuration, whose digest is the image's id.
    pub config: Vec<u8>,
    /// Its layers, the lowest first.
    pub layers: Vec<SavedLayer>,
    /// The digests of the layers without compression.
    pub diff_ids: Vec<String>,
    /// The hash of layers and environment, as of [`Image::content`](crate::runtime::Image::content).
    pub content: String,
    /// Its platform, e.g. `linux/amd64`.
    pub platform: String,
    /// Its name in the archive, if that is another one than that by which it was asked for.
    #[serde(skip)]
    pub other_name: Option<String>,
}

/// An image that was chosen in an archive.
struct Chosen {
    config: Vec<u8>,
    layers: Vec<SavedLayer>,
    other_name: Option<String>,
}

/// The entry at a name in an archive.
#[derive(Debug)]
enum ArchiveEntry {
    File(ArchiveExtent),
    /// A link, and the name to which it leads; `None` if that is outside.
    Link(Option<String>),
}

/// The entries of an archive.
pub struct Archive<R> {
    file: R,
    entries: HashMap<String, ArchiveEntry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

#[derive(Deserialize)]
struct Descriptor {
    digest: String,
    #[serde(default)]
    platform: Option<Platform>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Platform {
    architecture: String,
    os: String,
}

/// An index has `manifests`, a manifest has the rest.
#[derive(Deserialize)]
struct ImageManifest {
    #[serde(default)]
    manifests: Vec<Descriptor>,
    config: Option<Descriptor>,
    #[serde(default)]
    layers: Vec<Descriptor>,
}

/// The configuration of an image.
#[derive(Deserialize)]
struct ImageConfig {
    #[serde(flatten)]
    platform: Platform,
    #[serde(default)]
    config: Option<ImageEnvironment>,
    rootfs: RootFs,
}

/// The environment of an image's containers.
#[derive(Deserialize)]
struct ImageEnvironment {
    #[serde(rename = "Env", default)]
    env: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct RootFs {
    #[serde(default)]
    diff_ids: Vec<String>,
}

impl Platform {
    fn text(&self) -> String {
        format!("{}/{}", self.os, self.architecture)
    }
}

impl<R: Read + Seek> Archive<R> {
    /// Finds the entries of an archive.
    ///
    /// # Errors
    /// If it is no tar archive, or a truncated one.
    pub fn open(mut file: R) -> Result<Archive<R>, ArchiveFault> {
        let length = file.seek(SeekFrom::End(0))?;
        file.rewind()?;
        let mut entries = HashMap::new();
        for entry in tar::Archive::new(&mut file).entries_with_seek()? {
            let entry = entry?;
            let Some(name) = normalized("", &entry.path_bytes()) else { continue };
            let kind = entry.header().entry_type();
            let extent = ArchiveExtent { offset: entry.raw_file_position(), length: entry.size() };
            let link = entry.link_name_bytes().unwrap_or_default().into_owned();
            let found = if kind.is_file() || kind.is_contiguous() {
                // behind the end of the file there are no further entries, and no error
                if extent.offset.checked_add(extent.length).is_none_or(|end| end > length) {
                    return Err(ArchiveFault::Truncated(name));
                }
                ArchiveEntry::File(extent)
            } else if kind.is_symlink() {
                ArchiveEntry::Link(normalized(name.rsplit_once('/').map_or("", |(directory, _)| directory), &link))
            } else if kind.is_hard_link() {
                ArchiveEntry::Link(normalized("", &link))
            } else {
                continue;
            };
            entries.insert(name, found);
        }
        Ok(Archive { file, entries })
    }

    /// Returns the image of this name, or the only one, for this platform; empty: any, if the archive has it for one
    /// alone.
    ///
    /// # Errors
    /// If it cannot be chosen, is for another platform, or is incomplete.
    pub fn image(&mut self, image: &str, platform: &str) -> Result<SavedImage, ArchiveFault> {
        let wanted = platform;
        let has_index = self.entries.contains_key("index.json");
        let Chosen { config, layers, other_name } = if self.entries.contains_key("manifest.json") {
            let saved = self.saved(image, wanted)?;
            // some programs write only the first platform there, and all of them to the index
            let indexed =
                (has_index && !is_for(&saved.config, wanted)?).then(|| self.in_layout(image, wanted).ok()).flatten();
            indexed.filter(|indexed| is_for(&indexed.config, wanted).unwrap_or(false)).unwrap_or(saved)
        } else if has_index {
            self.in_layout(image, platform)?
        } else if EXPORTED.iter().any(|name| self.entries.contains_key(*name)) {
            return Err(ArchiveFault::Export);
        } else {
            return Err(ArchiveFault::Missing(
                "manifest.json or index.json, as archives of docker save have; it may be truncated".into(),
            ));
        };
        let ImageConfig { platform, config: environment, rootfs } = parse("configuration", &config)?;
        if !wanted.is_empty() && platform.text() != wanted {
            return Err(ArchiveFault::Platform { wanted: wanted.to_owned(), found: platform.text() });
        }
        let diff_ids = rootfs.diff_ids;
        if diff_ids.len() != layers.len() || !diff_ids.iter().all(|digest| is_digest(digest)) {
            let cause = format!("it names {} layers, but the archive has {}", diff_ids.len(), layers.len());
            return Err(ArchiveFault::Malformed { name: "configuration".into(), cause });
        }
        let env = environment.and_then(|environment| environment.env).unwrap_or_default();
        let with_digest = |(mut layer, diff_id): (SavedLayer, &String)| {
            if layer.compression == Compression::None {
                layer.digest = Some(diff_id.clone());
            }
            layer
        };
        let layers = layers.into_iter().zip(&diff_ids).map(with_digest).collect();
        let content = image_content(&diff_ids, env);
        Ok(SavedImage { config, layers, content, diff_ids, platform: platform.text(), other_name })
    }

    /// Reads `manifest.json`.
    fn saved(&mut self, image: &str, platform: &str) -> Result<Chosen, ArchiveFault> {
        let all: Vec<Saved> = parse("manifest.json", &self.document("manifest.json")?)?;
        let has_name = |saved: &&Saved| saved.repo_tags.iter().flatten().any(|tag| familiar(tag) == familiar(image));
        let tags = || all.iter().filter_map(|saved| saved.repo_tags.as_ref()).flatten();
        let mut left: Vec<&Saved> =
            if all.len() == 1 { all.iter().collect() } else { all.iter().filter(has_name).collect() };
        if left.len() > 1 {
            // one name for several platforms
            let fits = left.iter().map(|saved| is_for(&self.document(&saved.config)?, platform));
            let fits = fits.collect::<Result<Vec<bool>, ArchiveFault>>()?;
            let position = fits.iter().position(|fits| *fits).unwrap_or_default();
            left = vec![left[position]];
        }
        let Some(Saved { config: name, layers, .. }) = left.pop() else {
            let tags: Vec<&str> = tags().map(String::as_str).collect();
            return Err(if tags.is_empty() {
                ArchiveFault::Missing("image".into())
            } else {
                ArchiveFault::Several(tags.join(", "))
            });
        };
        let config = self.document(name)?;
        if let Some(expected) = blob_digest(name.strip_suffix(".json").unwrap_or(name)) {
            check(name, &expected, &sha256(&config))?;
        }
        let layers: Result<_, ArchiveFault> = layers.iter().map(|name| self.layer(name.clone())).collect();
        let other_name = tags().next().filter(|_| !all.iter().any(|saved| has_name(&saved))).cloned();
        Ok(Chosen { config, layers: layers?, other_name })
    }

    /// Reads `index.json`.
    fn in_layout(&mut self, image: &str, platform: &str) -> Result<Chosen, ArchiveFault> {
        let (mut manifest, mut depth): (ImageManifest, _) = (parse("index.json", &self.document("index.json")?)?, 0);
        while manifest.config.is_none() {
            let has_blob = |one: &Descriptor| blob_path(&one.digest).is_ok_and(|path| self.find(&path).is_ok());
            let chosen = choose(manifest.manifests, image, platform, &has_blob)?;
            depth += 1;
            if depth > MAX_DEPTH {
                return Err(ArchiveFault::Missing("manifest".into()));
            }
            manifest = parse("manifest", &self.blob(&chosen)?)?;
        }
        let config = match &manifest.config {
            Some(config) => self.blob(config)?,
            None => return Err(ArchiveFault::Missing("configuration".into())),
        };
        let layers: Result<_, ArchiveFault> =
            manifest.layers.iter().map(|layer| self.layer(blob_path(&layer.digest)?)).collect();
        Ok(Chosen { config, layers: layers?, other_name: None })
    }

    /// Returns a small blob of an OCI layout, verified.
    fn blob(&mut self, descriptor: &Descriptor) -> Result<Vec<u8>, ArchiveFault> {
        let path = blob_path(&descriptor.digest)?;
        let bytes = self.document(&path)?;
        check(&path, &descriptor.digest, &sha256(&bytes))?;
        Ok(bytes)
    }

    fn layer(&mut self, name: String) -> Result<SavedLayer, ArchiveFault> {
        let extent = self.find(&name)?;
        let mut magic = Vec::new();
        self.file.seek(SeekFrom::Start(extent.offset))?;
        (&mut self.file).take(extent.length.min(4)).read_to_end(&mut magic)?;
        let compression = match magic[..] {
            [0x1f, 0x8b, ..] => Compression::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd] => Compression::Zstd,
            _ => Compression::None,
        };
        let digest = blob_digest(&name);
        Ok(SavedLayer { name, extent, compression, digest })
    }

    /// Returns where an entry is, behind all links.
    fn find(&self, name: &str) -> Result<ArchiveExtent, ArchiveFault> {
        let missing = || ArchiveFault::Missing(name.to_owned());
        let mut at = normalized("", name.as_bytes()).ok_or_else(missing)?;
        for _ in 0..MAX_DEPTH {
            match self.entries.get(&at) {
                Some(ArchiveEntry::File(extent)) => return Ok(*extent),
                Some(ArchiveEntry::Link(Some(target))) => at.clone_from(target),
                Some(ArchiveEntry::Link(None)) | None => return Err(missing()),
            }
        }
        Err(missing())
    }

    fn document(&mut self, name: &str) -> Result<Vec<u8>, ArchiveFault> {
        let ArchiveExtent { offset, length } = self.find(name)?;
        if length > MAX_JSON {
            return Err(ArchiveFault::Malformed { name: name.to_owned(), cause: format!("it has {length} bytes") });
        }
        let mut bytes = Vec::new();
        self.file.seek(SeekFrom::Start(offset))?;
        (&mut self.file).take(length).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Returns the digest of a layer, which is the one that the archive names, if it names one. `read` is called with
    /// the number of bytes of each part, and returns whether to go on.
    ///
    /// # Errors
    /// If the layer is damaged or cannot be read, and when `read` says so.
    pub fn digest(&mut self, layer: &SavedLayer, mut read: impl FnMut(u64) -> bool) -> Result<String, ArchiveFault> {
        let ArchiveExtent { offset, length } = layer.extent;
        self.file.seek(SeekFrom::Start(offset))?;
        let (mut hasher, mut buffer, mut left) = (Sha256::new(), vec![0; CHUNK], length);
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
            let count = self.file.read(&mut buffer[..most])?;
            if count == 0 {
                return Err(ArchiveFault::Truncated(layer.name.clone()));
            }
            hasher.update(&buffer[..count]);
            left -= count as u64;
            if !read(count as u64) {
                return Err(io::Error::from(io::ErrorKind::Interrupted).into());
            }
        }
        let found = format!("sha256:{}", hex(&hasher.finalize()));
        if let Some(expected) = &layer.digest {
            check(&layer.name, expected, &found)?;
        }
        Ok(found)
    }
}

/// Returns whether a configuration is that of an image for this platform; empty: any.
fn is_for(config: &[u8], platform: &str) -> Result<bool, ArchiveFault> {
    Ok(platform.is_empty() || parse::<Platform>("configuration", config)?.text() == platform)
}

/// Chooses a manifest of an index: the only one, or the one of this name, or the one for this platform. An index may
/// name platforms that the archive does not have.
fn choose(
    all: Vec<Descriptor>,
    image: &str,
    platform: &str,
    has_blob: &dyn Fn(&Descriptor) -> bool,
) -> Result<Descriptor, ArchiveFault> {
    const NAMES: [&str; 2] = ["io.containerd.image.name", "org.opencontainers.image.ref.name"];
    // proofs of origin have no platform
    let is_image = |other: &Descriptor| other.platform.as_ref().is_none_or(|platform| platform.os != "unknown");
    let mut left: Vec<Descriptor> = all.into_iter().filter(is_image).collect();
    let names =
        |one: &Descriptor| NAMES.iter().filter_map(|key| one.annotations.get(*key)).cloned().collect::<Vec<_>>();
    // buildx writes the tag alone
    let tag = repository_and_tag(image).map(|(_, tag)| tag);
    let has_name = |one: &Descriptor| {
        names(one).iter().any(|name| familiar(name) == familiar(image) || Some(name.as_str()) == tag)
    };
    let has_platform = |one: &Descriptor| one.platform.as_ref().is_some_and(|own| own.text() == platform);
    for fits in [&has_name as &dyn Fn(&Descriptor) -> bool, has_blob, &has_platform] {
        if left.len() > 1 && left.iter().any(fits) {
            left.retain(fits);
        }
    }
    let platforms: Option<BTreeSet<String>> =
        left.iter().map(|one| one.platform.as_ref().map(Platform::text)).collect();
    if let Some(found) =
        platforms.filter(|found| !platform.is_empty() && !found.is_empty() && !found.contains(platform))
    {
        let found = found.into_iter().collect::<Vec<_>>().join(", ");
        return Err(ArchiveFault::Platform { wanted: platform.to_owned(), found });
    }
    if left.len() > 1 {
        let text = |one: &Descriptor| {
            let platform = one.platform.as_ref().map(Platform::text);
            names(one).into_iter().chain(platform).next().unwrap_or_else(|| one.digest.clone())
        };
        return Err(ArchiveFault::Several(left.iter().map(text).collect::<Vec<_>>().join(", ")));
    }
    left.pop().ok_or_else(|| ArchiveFault::Missing("image".into()))
}

fn parse<T: DeserializeOwned>(name: &str, bytes: &[u8]) -> Result<T, ArchiveFault> {
    serde_json::from_slice(bytes)
        .map_err(|error| ArchiveFault::Malformed { name: name.to_owned(), cause: error.to_string() })
}

fn check(name: &str, expected: &str, found: &str) -> Result<(), ArchiveFault> {
    if expected == found {
        return Ok(());
    }
    Err(ArchiveFault::Damaged { name: name.to_owned(), expected: expected.to_owned(), found: found.to_owned() })
}

/// Returns whether this is a SHA-256 digest.
fn is_digest(text: &str) -> bool {
    text.strip_prefix("sha256:").is_some_and(is_hash)
}

fn is_hash(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Returns the digest of an entry whose name says it: `blobs/sha256/HASH`, or HASH alone.
fn blob_digest(name: &str) -> Option<String> {
    let hash = name.strip_prefix("blobs/sha256/").unwrap_or(name);
    is_hash(hash).then(|| format!("sha256:{hash}"))
}

fn blob_path(digest: &str) -> Result<String, ArchiveFault> {
    match digest.strip_prefix("sha256:").filter(|hash| is_hash(hash)) {
        Some(hash) => Ok(format!("blobs/sha256/{hash}")),
        None => Err(ArchiveFault::Malformed {
            name: "manifest".into(),
            cause: format!("{digest:?} is not a SHA-256 digest"),
        }),
    }
}

/// Returns a name relative to the archive's root, or `None` if it leads out of the archive.
fn normalized(directory: &str, path: &[u8]) -> Option<String> {
    let path = std::str::from_utf8(path).ok().filter(|path| !path.starts_with('/'))?;
    let mut parts: Vec<&str> = directory.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    (!parts.is_empty()).then(|| parts.join("/"))
}

#[cfg(test)]
mod tests;
