//! The image of a project: built on the first of the nodes, and given to the others.

use super::image::give;
use super::origin::SourceChoice;
use super::recipe::{OwnDockerfile, Recipe};
use crate::cluster::each_node::{NodeResults, each_node};
use crate::cluster::member::Member;
use crate::cluster::observation::ObservedNode;
use crate::cluster::site::Site;
use crate::cluster::target::Target;
use crate::error::{Error, NodeError};
use crate::event::{Events, Phase};
use crate::image::build::{Build, ProjectDockerfile};
use crate::image::setup::DIRECTORY;
use crate::launch::env_file::{EnvFiles, environment};
use crate::secret::Secret;
use crate::text::nodeset::{self, printable};
use std::collections::BTreeMap;
use std::time::Duration;

/// The build and delivery of a project's image.
pub struct ProjectBuild<'a> {
    /// The project's name, which the image has in its own.
    pub name: &'a str,
    /// The recipe of the image.
    pub recipe: &'a Recipe,
    /// The longest time that a step of the build may take.
    pub limit: Duration,
    /// If set, the output of the build is shown.
    pub shows_output: bool,
    /// The nodes.
    pub site: Site<'a>,
}

/// An image that all nodes have.
pub struct ProjectImage {
    /// Its name.
    pub image: String,
    /// Set if anything was done.
    pub is_new: bool,
    /// The files with variables that were read for the build.
    pub env_files: EnvFiles,
}

impl ProjectImage {
    fn found(image: String) -> ProjectImage {
        ProjectImage { image, is_new: false, env_files: EnvFiles::new() }
    }
}

impl ProjectBuild<'_> {
    /// Returns the image if all nodes of a target have it. They are not locked.
    ///
    /// # Errors
    /// If a node cannot be asked, the cluster's image is missing on the first one, or the command is cancelled.
    pub async fn find(&self, target: &Target) -> Result<Option<ProjectImage>, Error> {
        let Site { fleet, events, session, .. } = self.site;
        let asked = async {
            let members = fleet.all(target, events).await?;
            let first = &members[0];
            let base = self.recipe.base(&first.runtime().await?, &first.node.name, target.cluster()).await?;
            let Some(base) = base else { return Ok(None) };
            let image = self.recipe.setup.image(&target.cluster().name, self.name, &base);
            Ok(are_same(&contents(&members, &image, events).await?).then_some(image))
        };
        Ok(session.cancellation.run(asked).await?.map(ProjectImage::found))
    }

    /// Gives nodes that are locked the image: builds it on the first one, which launches jobs, if that lacks it, and
    /// pushes it to those that lack it or have another one. Drained nodes are left out.
    ///
    /// # Errors
    /// The cluster's image is missing, a step failed, a node could not get the image, or the command is cancelled.
    pub async fn provide(&self, nodes: Vec<ObservedNode>) -> Result<ProjectImage, Error> {
        let Site { events, session, .. } = self.site;
        let nodes: Vec<ObservedNode> = nodes.into_iter().filter(|node| node.facts.drained.is_none()).collect();
        let Some(first) = nodes.first() else {
            return Err(Error::check("all selected nodes are drained", "hvdctl drain --undo NODE…"));
        };
        let members: Vec<Member> = nodes.iter().map(|node| node.member.clone()).collect();
        let (image, found) = session.cancellation.run(self.compare(first, &members)).await?;
        let mut ensured = ProjectImage::found(image);
        if are_same(&found) {
            return Ok(ensured);
        }
        // only what the node that builds has counts: root of another one decides what the name stands for there
        // there
        if found[0].is_none() {
            events.phase(Phase::BuildingImage { image: ensured.image.clone() });
            if let Some(step) = self.recipe.setup.editable() {
                let gone = format!(
                    "this installs a package that refers to its files in {DIRECTORY}, which are removed after the \
                     build"
                );
                events.warn(format!("setup: {}: {gone}\n  hint: leave out -e", printable(step)));
            }
            let env = environment(&first.member.node, &mut ensured.env_files)?;
            self.build_on(first, &ensured.image, env).await?;
        }
        let is_other = |content: &Option<String>| content.is_some() && *content != found[0];
        let others = members.iter().zip(&found).filter(|(_, content)| is_other(content));
        let others: Vec<&str> = others.map(|(member, _)| member.node.name.as_str()).collect();
        if !others.is_empty() {
            let (others, image, first) = (nodeset::fold(&others), &ensured.image, first.name());
            events.warn(format!("{others}: another image was named {image}; it is replaced by that of {first}"));
        }
        if members.len() > 1 {
            let from = SourceChoice::Node(first.name().to_owned());
            let nodes = NodeResults { ok: members, failed: Vec::new() };
            let given = give(&from, &ensured.image, nodes, self.site).await?;
            if !given.failed.is_empty() {
                return Err(Error::Nodes { failed: given.failed, done: given.ok.len() });
            }
        }
        ensured.is_new = true;
        Ok(ensured)
    }

    /// Returns the name of the image, and the content of what each node has of this name.
    async fn compare(&self, first: &ObservedNode, members: &[Member]) -> Result<(String, Vec<Option<String>>), Error> {
        let cluster = self.site.cluster();
        self.recipe.pull_bases(first, self.site).await?;
        let base = self.recipe.base(&first.runtime.engine, first.name(), cluster).await?;
        let lost =
            || Error::from(NodeError::failed(first.name(), "build the image", "an image that it builds on is gone"));
        let image = self.recipe.setup.image(&cluster.name, self.name, &base.ok_or_else(lost)?);
        let found = contents(members, &image, self.site.events).await?;
        Ok((image, found))
    }

    /// Builds the image on a node, and leaves no container there.
    async fn build_on(&self, observed: &ObservedNode, image: &str, env: BTreeMap<String, Secret>) -> Result<(), Error> {
        let (Recipe { setup, dockerfile, base }, Site { events, session, .. }) = (self.recipe, self.site);
        let files = || dockerfile.as_ref().expect("only a Dockerfile has a context").context.archive();
        let dockerfile = dockerfile.as_ref().map(|OwnDockerfile { name, is_whole, .. }| ProjectDockerfile {
            name,
            context: &files,
            is_whole: *is_whole,
        });
        let (cluster, limit, shows_output) = (self.site.cluster(), self.limit, self.shows_output);
        let base = base.as_deref().unwrap_or(&cluster.image);
        let build = Build { cluster, base, dockerfile, setup, image, env, limit, shows_output };
        let built = session.cancellation.run(async { Ok(build.run(observed, events).await?) }).await;
        if built.is_err() {
            // a build that was cancelled has not removed it
            let _ = observed.runtime.engine.remove(&build.container()).await;
        }
        built
    }
}

/// Returns the content of an image on each node that has it.
async fn contents(members: &[Member], image: &str, events: &Events) -> Result<Vec<Option<String>>, Error> {
    let content =
        async |member: Member| Ok(member.runtime().await?.image(image).await?.and_then(|image| image.content));
    each_node(members.to_vec(), events, content).await.all()
}

fn are_same(contents: &[Option<String>]) -> bool {
    contents.iter().all(|content| content.is_some() && *content == contents[0])
}
