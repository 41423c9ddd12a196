//! The recipe of a project's image: its Dockerfile, or else the cluster's image or that of a role, and its setup.

use super::pull::login;
use crate::cluster::observation::ObservedNode;
use crate::cluster::site::Site;
use crate::error::{Error, NodeError};
use crate::files::{PackedFile, pack};
use crate::image::dockerfile::Dockerfile;
use crate::image::setup::Setup;
use crate::inventory::Cluster;
use crate::runtime::Runtime;
use crate::sync::files::ProjectFiles;
use crate::sync::project::ImageParts;
use crate::sync::setup_files;
use crate::text::digest::hex;
use crate::worker::image;
use anyhow::Context as _;
use sha2::{Digest, Sha256};
use std::io;
use std::path::Path;
use tokio::sync::mpsc::{Receiver, channel};

/// The recipe of a project's image. The default only adds the parts that every image gets.
#[derive(Default)]
pub struct Recipe {
    /// The steps that add to an image.
    pub(super) setup: Setup,
    /// The Dockerfile that is built first and replaces the cluster's image.
    pub(super) dockerfile: Option<OwnDockerfile>,
    /// The image that replaces the cluster's where there is no Dockerfile.
    pub(super) base: Option<String>,
}

/// A Dockerfile of a project, or of hvdctl.
pub(super) struct OwnDockerfile {
    /// Its path in the context.
    pub(super) name: String,
    /// The images that it builds on.
    bases: Vec<String>,
    /// The files that it may read.
    pub(super) context: BuildContext,
    /// If set, its image stays as it is: no worker will run it.
    pub(super) is_whole: bool,
}

/// The files that a Dockerfile may read.
pub(super) enum BuildContext {
    /// Those of a project.
    Project(ProjectFiles),
    /// Those of hvdctl, as a tar archive.
    Own(Vec<u8>),
}

impl BuildContext {
    /// Returns a hash of the files.
    fn hash(&self) -> String {
        match self {
            BuildContext::Project(files) => files.hash.clone(),
            BuildContext::Own(archive) => hex(&Sha256::digest(archive)),
        }
    }

    /// Sends them as a tar archive.
    pub(super) fn archive(&self) -> Receiver<io::Result<Vec<u8>>> {
        match self {
            BuildContext::Project(files) => files.archive(),
            BuildContext::Own(archive) => {
                let (sender, receiver) = channel(1);
                sender.try_send(Ok(archive.clone())).expect("the channel is empty");
                receiver
            }
        }
    }
}

impl Recipe {
    /// Returns that which adds to the cluster's image what a step installs.
    pub fn of_step(step: &str) -> Recipe {
        Recipe { setup: Setup::of_step(step), ..Recipe::default() }
    }

    /// Returns that of an image of hvdctl's own, which a Dockerfile makes of the cluster's image. `files`: the Dockerfile, by
    /// this name, and what it reads.
    pub fn of_dockerfile(name: &str, cluster_image: &str, files: &[PackedFile<'_>]) -> Recipe {
        let dockerfile = OwnDockerfile {
            name: name.to_owned(),
            bases: vec![cluster_image.to_owned()],
            context: BuildContext::Own(pack(files).to_vec()),
            is_whole: true,
        };
        Recipe { dockerfile: Some(dockerfile), ..Recipe::default() }
    }

    /// Reads that of a project.
    ///
    /// # Errors
    /// If a file that it needs cannot be read or is wrong.
    pub async fn read(root: &Path, parts: ImageParts) -> Result<Recipe, Error> {
        let ImageParts { base, build, setup, setup_files: named } = parts;
        let path = root.to_owned();
        let reading = tokio::task::spawn_blocking(move || {
            let files = setup_files::select(&path, &named)?;
            Setup::read(&path, &setup.unwrap_or_default(), &files)
        });
        let setup = reading.await.context("cannot read the project")??;
        let dockerfile = match build {
            Some(name) => Some(OwnDockerfile::read(root, name).await?),
            None => None,
        };
        Ok(Recipe { setup, dockerfile, base })
    }

    /// Returns the content of what the setup is added to: of the cluster's image, of that of a role, or of all that
    /// makes the Dockerfile's. `None` if the node lacks one that can be pulled.
    ///
    /// # Errors
    /// If the node lacks the cluster's image.
    pub(super) async fn base(
        &self,
        engine: &Runtime,
        node: &str,
        cluster: &Cluster,
    ) -> Result<Option<String>, NodeError> {
        let content =
            async |image: &str| Ok::<_, NodeError>(engine.image(image).await?.and_then(|image| image.content));
        let Some(OwnDockerfile { name, bases, context, .. }) = &self.dockerfile else {
            if let Some(base) = &self.base {
                return content(base).await;
            }
            let missing = || {
                NodeError::failed(node, "build on the cluster's image", "it is not on this node")
                    .hint("hvdctl up, or hvdctl image push")
            };
            return content(&cluster.image).await?.ok_or_else(missing).map(Some);
        };
        let mut parts = vec![name.clone(), context.hash()];
        for base in bases {
            match content(base).await? {
                Some(content) => parts.extend([base.clone(), content]),
                None => return Ok(None),
            }
        }
        Ok(Some(parts.join("\n")))
    }

    /// Pulls what the image builds on and the node lacks, because the name of the image depends on it.
    pub(super) async fn pull_bases(&self, observed: &ObservedNode, site: Site<'_>) -> Result<(), Error> {
        let engine = &observed.runtime.engine;
        for base in self.dockerfile.iter().flat_map(|dockerfile| &dockerfile.bases).chain(&self.base) {
            if engine.image(base).await?.is_none() {
                let node = &observed.member.node;
                let login = login(base, std::iter::once(node), site).await?;
                let login = login.for_node(node.owner.as_deref());
                let pulling = image::pull(base, &login, &observed.member, site.events);
                let pulled = site.events.step(observed.name(), image::step(base), pulling).await;
                site.events.report(pulled)?;
            }
        }
        Ok(())
    }
}

impl OwnDockerfile {
    async fn read(root: &Path, name: String) -> Result<OwnDockerfile, Error> {
        let (path, name) = (root.to_owned(), name.trim_start_matches("./").to_owned());
        let read = tokio::task::spawn_blocking(move || {
            let files = ProjectFiles::read(&path)?;
            let Dockerfile { bases, sources } = Dockerfile::parse(&files.dockerfile(&name)?);
            let context = BuildContext::Project(files.build_context(&name, sources.as_deref())?);
            Ok(OwnDockerfile { name, bases, context, is_whole: false })
        });
        read.await.context("cannot read the project")?
    }
}
