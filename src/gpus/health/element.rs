//! An XML document as a tree, for documents whose elements differ from version to version.

use quick_xml::events::{BytesStart, Event};
use quick_xml::{Reader, XmlVersion};

/// Elements that may lie within each other. Real documents have about eight.
const DEEPEST: usize = 64;
const SURPLUS_END: &str = "it ends an element that it did not begin";

/// An element with its text and its children in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Element {
    pub(super) name: String,
    /// Its attribute `id`; empty without one.
    pub(super) id: String,
    pub(super) text: String,
    pub(super) children: Vec<Element>,
}

impl Element {
    /// Reads a document. What precedes its first element is passed over: programs print warnings there.
    ///
    /// # Errors
    /// If it is not XML, or ends before its first element does.
    pub(super) fn read(document: &str) -> Result<Element, String> {
        let start = document.find('<').ok_or("it has no element")?;
        let mut reader = Reader::from_str(&document[start..]);
        // the first one stands for the document
        let mut open = vec![Element::default()];
        loop {
            let event = reader.read_event().map_err(|error| error.to_string())?;
            let (depth, current) = (open.len(), open.last_mut().ok_or(SURPLUS_END)?);
            match event {
                Event::Start(_) if depth > DEEPEST => return Err("its elements lie too deep".to_owned()),
                Event::Start(tag) => open.push(Element::new(&tag)),
                Event::Empty(tag) => current.children.push(Element::new(&tag)),
                Event::Text(text) => current.text.push_str(&text),
                Event::GeneralRef(reference) => current.text.push(match &*reference {
                    "lt" => '<',
                    "gt" => '>',
                    "amp" => '&',
                    "apos" => '\'',
                    "quot" => '"',
                    _ => '?',
                }),
                Event::End(_) => {
                    let element = open.pop().unwrap_or_default();
                    if depth == 2 {
                        return Ok(element);
                    }
                    open.last_mut().ok_or(SURPLUS_END)?.children.push(element);
                }
                Event::Eof => return Err("it is cut off".to_owned()),
                _ => {}
            }
        }
    }

    fn new(tag: &BytesStart<'_>) -> Element {
        let id = tag.try_get_attribute("id").ok().flatten();
        let id = id.and_then(|id| id.normalized_value(XmlVersion::Implicit1_0).ok()).unwrap_or_default().into_owned();
        Element { name: tag.name().as_ref().to_owned(), id, ..Element::default() }
    }

    /// Returns the first child of this name.
    pub(super) fn child(&self, name: &str) -> Option<&Element> {
        self.children.iter().find(|child| child.name == name)
    }

    /// Returns the text at a path such as `pci/pcie_gen`; empty if there is no such element.
    pub(super) fn text(&self, path: &str) -> &str {
        path.split('/').try_fold(self, |element, name| element.child(name)).map_or("", |element| element.text.trim())
    }

    /// Returns the names and texts of all elements within it that have no children.
    pub(super) fn leaves(&self) -> Vec<(&str, &str)> {
        let mut leaves = Vec::new();
        let mut rest: Vec<&Element> = self.children.iter().rev().collect();
        while let Some(element) = rest.pop() {
            if element.children.is_empty() {
                leaves.push((element.name.as_str(), element.text.trim()));
            }
            rest.extend(element.children.iter().rev());
        }
        leaves
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_a_tree() {
        let root = Element::read(
            "WARNING: something\n<?xml version=\"1.0\" ?>\n<!DOCTYPE a SYSTEM \"a.dtd\">\n<!-- note -->\n\
             <a>\n\t<g id=\"7\"><b>1 &lt; 2 &amp; 3</b><b>again</b><c/></g></a>\ntrailing",
        );
        let root = root.unwrap();
        let group = root.child("g").unwrap();
        assert_eq!((root.name.as_str(), group.id.as_str(), group.text("b")), ("a", "7", "1 < 2 & 3"));
        assert_eq!((root.text("g/b"), root.text("g/x/y")), ("1 < 2 & 3", ""));
        assert_eq!(root.leaves(), [("b", "1 < 2 & 3"), ("b", "again"), ("c", "")]);
    }

    #[test]
    fn what_is_no_whole_document_is_refused() {
        for text in ["", "No devices were found", "<a><b>1</b>", "<a>1", "<a><b></a>", "</a>", "<a", "<?xml?>"] {
            assert!(Element::read(text).is_err(), "{text}");
        }
        let deep = format!("{}{}", "<a>".repeat(100_000), "</a>".repeat(100_000));
        assert_eq!(Element::read(&deep).unwrap_err(), "its elements lie too deep");
    }
}
