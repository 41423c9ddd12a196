//! `hvdctl image`.

pub mod build;
pub mod prune;
pub mod pull;
pub mod push;
pub mod status;

use super::{Context, Outcome};
use crate::cli::Image;
use crate::cluster::target::Target;
use crate::error::Error;
use crate::inventory::IMAGE;
use crate::text::nodeset;

/// `image`.
pub async fn run(command: &Image, context: &Context) -> Result<Outcome, Error> {
    if !context.target.cluster().can().images {
        let hint = "what ranks need is installed on the nodes; hvdctl env create makes one virtualenv on all of them";
        return Err(Error::check("the cluster has `runtime = \"process\"`, without containers and images", hint));
    }
    match command {
        Image::Status(options) => status::run(options, context).await,
        Image::Push(options) => push::run(options, context).await,
        Image::Pull(options) => pull::run(options, context).await,
        Image::Build(options) => build::run(options, context).await,
        Image::Prune(options) => prune::run(options, context).await,
    }
}

/// Returns the image that was named, or that of the cluster.
///
/// # Errors
/// If no image can have this name.
fn image_name<'a>(named: Option<&'a str>, target: &'a Target) -> Result<&'a str, Error> {
    let Some(image) = named else { return Ok(&target.cluster().image) };
    IMAGE.read(image).map_err(|why| {
        let message = format!("{} is not a valid image name: {why}", nodeset::printable(image));
        Error::usage(message, "use a name that docker images shows")
    })?;
    Ok(image)
}
