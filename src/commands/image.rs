//! `hvdctl image`.

pub mod build;
pub mod prune;
pub mod pull;
pub mod push;
pub mod status;

use crate::cluster::target::Target;
use crate::error::Error;
use crate::inventory::IMAGE;
use crate::text::nodeset;

/// Returns the image that was named, or that of the cluster.
///
/// # Errors
/// If no image can have this name.
fn image_name<'a>(named: Option<&'a str>, target: &'a Target) -> Result<&'a str, Error> {
    let Some(image) = named else { return Ok(&target.cluster().image) };
    IMAGE.read(image).map_err(|why| {
        let message = format!("{} is no name of an image: {why}", nodeset::printable(image));
        Error::usage(message, "name it as docker images does")
    })?;
    Ok(image)
}
