//! The source of an image: an archive on this machine, which is read in place, or an engine, whose archive is spooled.

use super::manifest::{BlobDescription, manifest};
use super::registry::{Contents, Stored};
use crate::error::Error;
use crate::event::Events;
use crate::image::archive::{Archive, ArchiveExtent, ArchiveFault, SavedImage, SavedLayer};
use crate::image::file::{ImageFile, free_space, spool_directory};
use crate::image::names::sha256;
use crate::runtime::{ContainerEngine, Image};
use crate::text::units::human;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The most bytes by which an archive is larger than its layers: names, padding and documents.
const OVERHEAD: u64 = 64 << 20;

/// An image that can be pushed.
pub struct Source {
    /// The image.
    pub image: SavedImage,
    /// The digest and the bytes of each layer as engines get it, the lowest first.
    pub layers: Vec<BlobDescription>,
    /// Its archive; `None` if that is on a node.
    file: Option<Arc<File>>,
}

/// The description of an image, as reported by a relay that has it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ImageDescription {
    image: SavedImage,
    layers: Vec<BlobDescription>,
}

/// Ends the work on another thread when it is dropped.
struct StopGuard(Arc<AtomicBool>);

impl Drop for StopGuard {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Source {
    /// Reads an archive, and verifies its layers as far as it names their digests. `platform`: that of the nodes; empty
    /// if it is not known.
    ///
    /// # Errors
    /// If it is no archive of the image, has it for other platforms only, or is damaged.
    pub async fn from_file(archive: &ImageFile, image: &str, platform: &str) -> Result<Source, ArchiveFault> {
        read(archive.file.try_clone()?, image.to_owned(), platform.to_owned()).await
    }

    /// Spools the image of an engine to a file without a name, whose space is free again when hvdctl ends, however it
    /// ends.
    ///
    /// # Errors
    /// [`Error::Local`] if this machine has too little space, and as [`ContainerEngine::export`].
    pub async fn from_engine(
        engine: &ContainerEngine,
        name: &str,
        image: &Image,
        from: &str,
        events: &Events,
    ) -> Result<Source, Error> {
        let directory = spool_directory();
        let here =
            |error: io::Error| Error::Local(format!("cannot spool the image to {}: {error}", directory.display()));
        let free = free_space(&directory).map_err(here)?;
        let needed = image.size.saturating_add(OVERHEAD);
        if free < needed {
            return Err(Error::Local(format!(
                "cannot spool the image to {0}: it needs {1}, and {2} are free\n  hint: set TMPDIR to a directory with \
                 more space",
                directory.display(),
                human(needed),
                human(free)
            )));
        }
        let file = tempfile::tempfile_in(&directory).map_err(here)?;
        let mut sink = tokio::fs::File::from_std(file);
        engine.export(name, image.size, &mut sink, events).await?;
        let source = read(sink.into_std().await, name.to_owned(), String::new()).await;
        source.map_err(|fault| {
            Error::Local(format!(
                "cannot read the image of {from}: {fault}\n  hint: an engine with containerd's store may keep an image \
                 only unpacked; name another source with --from"
            ))
        })
    }

    /// Reads the archive that a node's engine has written to a file of the relay there.
    ///
    /// # Errors
    /// As [`Source::from_file`].
    pub async fn from_spool(file: File, image: &str) -> Result<Source, Error> {
        let read = read(file, image.to_owned(), String::new()).await;
        read.map_err(|fault| Error::Local(format!("cannot read the image of the engine: {fault}")))
    }

    /// An image that a relay has.
    pub fn from_relay(ImageDescription { image, layers }: ImageDescription) -> Source {
        Source { image, layers, file: None }
    }

    /// Returns what [`Source::from_relay`] takes.
    pub fn description(&self) -> ImageDescription {
        ImageDescription { image: self.image.clone(), layers: self.layers.clone() }
    }

    /// Returns whether its layers are on this machine.
    pub fn is_here(&self) -> bool {
        self.file.is_some()
    }

    /// Returns what a registry serves of it: without layers if they are not here.
    pub fn contents(&self) -> Contents {
        let config = BlobDescription { digest: sha256(&self.image.config), length: self.image.config.len() as u64 };
        let saved = || self.layers.iter().zip(&self.image.layers);
        let described: Vec<_> = saved().map(|(described, layer)| (described.clone(), layer.compression)).collect();
        let manifest = manifest(&config, &described).into();
        let mut blobs: HashMap<String, Stored> = HashMap::new();
        if let Some(file) = &self.file {
            let stored = |extent: ArchiveExtent| Stored::File(Arc::clone(file), extent);
            blobs.extend(saved().map(|(described, layer)| (described.digest.clone(), stored(layer.extent))));
        }
        blobs.insert(config.digest, Stored::Memory(self.image.config.clone().into()));
        Contents { manifest, blobs }
    }

    /// Returns the bytes of the layers of which an engine has none of these, by their digests without compression.
    pub fn missing_bytes(&self, known: impl Fn(&str) -> bool) -> u64 {
        let layers = self.layers.iter().zip(&self.image.diff_ids).filter(|(_, diff_id)| !known(diff_id));
        // a relay may have described them
        layers.fold(0, |sum: u64, (layer, _)| sum.saturating_add(layer.length))
    }
}

/// Reads an archive on another thread.
async fn read(file: File, image: String, platform: String) -> Result<Source, ArchiveFault> {
    let stopped = Arc::new(AtomicBool::new(false));
    let _stop = StopGuard(Arc::clone(&stopped));
    let work = tokio::task::spawn_blocking(move || {
        let mut archive = Archive::open(&file)?;
        let image = archive.image(&image, &platform)?;
        let describe = |layer: &SavedLayer| {
            let digest = archive.digest(layer, |_| !stopped.load(Ordering::Relaxed))?;
            Ok::<_, ArchiveFault>(BlobDescription { digest, length: layer.extent.length })
        };
        let layers = image.layers.iter().map(describe).collect::<Result<_, _>>()?;
        Ok::<_, ArchiveFault>(Source { image, layers, file: Some(Arc::new(file)) })
    });
    work.await.unwrap_or_else(|error| Err(io::Error::other(error).into()))
}

/// Returns what to do about a file.
pub fn hint(fault: &ArchiveFault) -> String {
    match fault {
        ArchiveFault::Export => {
            "`docker save IMAGE >FILE` writes an image; `docker import FILE NAME` makes one of these files".to_owned()
        }
        ArchiveFault::Platform { wanted, .. } => format!(
            "`docker pull --platform {wanted} IMAGE && docker save IMAGE >FILE`, or `docker buildx build --platform \
             {wanted} --output type=oci,dest=FILE .`, writes one for it; or leave the node out with --on"
        ),
        ArchiveFault::Several(_) => "name one of them: hvdctl image push NAME --from FILE".to_owned(),
        ArchiveFault::Truncated(_) | ArchiveFault::Damaged { .. } => {
            "copy the file again, or write it once more with docker save".to_owned()
        }
        ArchiveFault::Tar(_) | ArchiveFault::Missing(_) | ArchiveFault::Malformed { .. } => {
            "name a file of docker save or podman save, or an OCI layout".to_owned()
        }
    }
}
