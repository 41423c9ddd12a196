//! `hvdctl image status`.

use super::image_name;
use crate::cli::ImageStatus;
use crate::cluster::each_node::NodeResults;
use crate::cluster::member::Member;
use crate::commands::Outcome;
use crate::commands::shared::context::Context;
use crate::document::{NodeEntry, Nodes};
use crate::error::{Error, NodeError, Verdict};
use crate::event::Step;
use crate::image::status::{NodeImage, are_equal, common, missing_layers};
use crate::runtime::Image;
use crate::text::nodeset::{self, with_count};
use crate::text::result::ResultText;
use crate::text::table::{Table, detail, key, text};
use crate::text::units::{self, human};
use schemars::JsonSchema;
use serde::Serialize;
use std::time::SystemTime;

/// The image of a node. `ok` is false if it is missing, or is not the one that most nodes have.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ImageStatusNode {
    /// The image's name.
    pub image: String,
    /// Its id on the node, or null if the node does not have it.
    pub id: Option<String>,
    /// The hash of its layers and environment, which is the same on all nodes that have the same image; else null.
    pub content: Option<String>,
    /// Its size in bytes as the engine counts it, or null.
    pub size: Option<u64>,
    /// Its platform, e.g. `linux/amd64`, or null.
    pub platform: Option<String>,
    /// When it was built, or null if that is unknown.
    pub created: Option<String>,
    /// The number of layers that the node lacks of the image that most nodes have.
    pub lacking_layers: usize,
}

/// `image status`.
pub async fn run(options: &ImageStatus, context: &Context) -> Result<Outcome, Error> {
    let Context { target, events, .. } = context;
    let image = image_name(options.name.as_deref(), target)?;
    let observe = async |member: Member| {
        let _step = events.begin(&member.node.name, Step::OBSERVING);
        let own = member.runtime().await?.image(image).await?;
        Ok((member.node.name, own))
    };
    let NodeResults { ok, failed } = context.connect().await?.then(events, observe).await;
    Ok(outcome(image, &ok, &failed, SystemTime::now()))
}

pub(crate) fn outcome(
    image: &str,
    nodes: &[(String, Option<Image>)],
    failed: &[NodeError],
    now: SystemTime,
) -> Outcome {
    let all: Vec<NodeImage<'_>> = nodes.iter().map(|(node, own)| (node.as_str(), own.as_ref())).collect();
    let common = common(&all);
    let lacks = |own: Option<&Image>| common.map(|common| missing_layers(own, common));
    let row = |own: Option<&Image>| {
        let text = |text: &dyn Fn(&Image) -> String| own.map_or_else(|| "–".to_owned(), text);
        vec![
            own.map_or_else(|| "missing".to_owned(), |own| short(&own.id)),
            text(&|own| own.content.clone().unwrap_or_default()),
            text(&|own| human(own.size)),
            text(&|own| own.platform.clone()),
            text(&|own| own.created.as_deref().and_then(|created| age(created, now)).unwrap_or_else(|| "–".into())),
            match (lacks(own), common) {
                (Some(count @ 1..), Some(common)) => format!("{count} of {} layers", common.layers.len()),
                _ => "–".to_owned(),
            },
        ]
    };
    let alike = nodeset::alike(all.iter().map(|(node, own)| (row(*own), *node)));
    let rows = alike.into_iter().map(|(cells, nodes)| [vec![with_count(&nodes)], cells].concat());
    let unread = failed.iter().map(|error| {
        vec![error.node.clone(), if error.is_unreachable() { "unreachable" } else { "failed" }.to_owned()]
    });
    let columns =
        [text("NODES"), key("IMAGE"), key("CONTENT"), key("SIZE"), detail(1, "PLATFORM"), key("AGE"), text("LACKS")];
    let mut text = ResultText::from(format!("{image}\n"));
    text.push(Table::new(columns, rows.chain(unread)));
    let is_good = are_equal(&all);
    if !is_good {
        text.push_str("hint: hvdctl image push gives all nodes the same image\n");
    }
    let entry = |(node, own): &(String, Option<Image>)| {
        let (lacking_layers, own) = (lacks(own.as_ref()).unwrap_or(0), own.as_ref());
        let details = ImageStatusNode {
            image: image.to_owned(),
            id: own.map(|own| own.id.clone()),
            content: own.and_then(|own| own.content.clone()),
            size: own.map(|own| own.size),
            platform: own.map(|own| own.platform.clone()),
            created: own.and_then(|own| own.created.clone()),
            lacking_layers,
        };
        let is_same =
            own.is_some() && own.and_then(|own| own.content.as_ref()) == common.and_then(|c| c.content.as_ref());
        NodeEntry::new(node, is_same, details)
    };
    let entries = nodes.iter().map(entry).chain(failed.iter().map(NodeEntry::failed)).collect();
    Outcome::new(Verdict::of_check(is_good, nodes.len(), failed), text, Nodes { nodes: entries })
}

fn short(id: &str) -> String {
    id.trim_start_matches("sha256:").chars().take(12).collect()
}

/// Formats how long ago an image was built, in its largest unit.
fn age(created: &str, now: SystemTime) -> Option<String> {
    Some(units::age(now.duration_since(humantime::parse_rfc3339(created).ok()?).ok()?.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn ages_have_one_unit() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let of = |seconds: u64| age("1970-01-02T00:00:00.123456789Z", at(86_401 + seconds));
        let ages = [0, 3599, 3600, 172_799, 172_801].map(|seconds| of(seconds).unwrap());
        assert_eq!(ages, ["0 min", "59 min", "1 h", "47 h", "2 d"]);
        assert_eq!(age("never", at(0)), None);
        assert_eq!(age("1970-01-02T00:00:00Z", at(0)), None, "it was built in the future");
    }
}
