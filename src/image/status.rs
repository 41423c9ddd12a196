//! Compares the image of the nodes: which has it, which has another one, and what is missing where.

use crate::runtime::Image;
use std::collections::BTreeMap;

/// A node and its image.
pub type NodeImage<'a> = (&'a str, Option<&'a Image>);

/// Returns the image that most nodes have; if others are as frequent, that of the first node, which is the master if it
/// is selected.
pub fn common<'a>(nodes: &[NodeImage<'a>]) -> Option<&'a Image> {
    let images = || nodes.iter().filter_map(|(_, image)| *image);
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for content in images().filter_map(|image| image.content.as_deref()) {
        *counts.entry(content).or_default() += 1;
    }
    let count = |image: &Image| counts.get(image.content.as_deref()?).copied();
    // of equals `max_by_key` takes the last
    images().rev().max_by_key(|image| count(image))
}

/// Returns how many layers of an image a node lacks that has this one or none. An engine reuses the layers of another
/// image only from the lowest on.
pub fn missing_layers(own: Option<&Image>, image: &Image) -> usize {
    let own = own.map_or(&[][..], |own| &own.layers);
    let common = own.iter().zip(&image.layers).take_while(|(own, other)| own == other).count();
    image.layers.len() - common
}

/// Returns whether all nodes have the same image.
pub fn are_equal(nodes: &[NodeImage<'_>]) -> bool {
    let Some((_, Some(first))) = nodes.first() else { return nodes.is_empty() };
    nodes.iter().all(|(_, image)| image.is_some_and(|image| image.content == first.content))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(content: &str, layers: &[&str]) -> Image {
        let layers = layers.iter().map(|layer| (*layer).to_owned()).collect();
        Image { content: Some(content.into()), layers, ..Image::default() }
    }

    #[test]
    fn most_nodes_have_the_common_image_and_the_first_decides_a_tie() {
        let (old, new) = (image("old", &["a", "b"]), image("new", &["a", "c"]));
        let of = |nodes: &[NodeImage<'_>]| common(nodes).and_then(|image| image.content.clone());
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[("n1", None)]), None);
        assert_eq!(of(&[("n1", None), ("n2", Some(&old))]).as_deref(), Some("old"));
        assert_eq!(of(&[("n1", Some(&old)), ("n2", Some(&new))]).as_deref(), Some("old"));
        assert_eq!(of(&[("n1", Some(&old)), ("n2", Some(&new)), ("n3", Some(&new))]).as_deref(), Some("new"));
    }

    #[test]
    fn layers_above_the_first_difference_are_missing() {
        let new = image("new", &["a", "b", "c"]);
        assert_eq!(missing_layers(None, &new), 3);
        assert_eq!(missing_layers(Some(&image("old", &["a", "b", "x"])), &new), 1);
        assert_eq!(missing_layers(Some(&image("old", &["x", "b", "c"])), &new), 3);
        assert_eq!(missing_layers(Some(&new), &new), 0);
    }

    #[test]
    fn a_node_without_the_image_differs() {
        let (old, new) = (image("old", &["a"]), image("new", &["b"]));
        assert!(are_equal(&[]) && are_equal(&[("n1", Some(&old)), ("n2", Some(&old))]));
        assert!(!are_equal(&[("n1", None)]));
        assert!(!are_equal(&[("n1", Some(&old)), ("n2", None)]));
        assert!(!are_equal(&[("n1", None), ("n2", Some(&old))]));
        assert!(!are_equal(&[("n1", Some(&old)), ("n2", Some(&new))]));
    }
}
