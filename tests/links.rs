//! Each link in the documents leads to a file of the repository, and to a heading that is there.

use regex::Regex;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::sync::LazyLock;

/// The text and, with its label, the target of a link or picture.
static LINK: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\[[^\[\]]*\]\(([^()\s]+)\)").unwrap());

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All files below a directory, without those that are made here.
fn files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_symlink() || name.starts_with('.') || name == "target" {
            continue;
        }
        if path.is_dir() { files(&path, found) } else { found.push(path) }
    }
}

fn with_extension(extensions: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    files(root(), &mut found);
    found.retain(|file| {
        let extension = file.extension().map(|extension| extension.to_string_lossy().into_owned());
        extensions.contains(&extension.unwrap_or_default().as_str())
    });
    assert!(found.len() > 10, "{found:?}");
    found
}

fn shown(file: &Path) -> String {
    file.strip_prefix(root()).unwrap_or(file).display().to_string()
}

/// A page without its blocks of code.
fn prose(page: &str) -> Vec<&str> {
    let mut is_code = false;
    let mut lines = Vec::new();
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            lines.push(line);
        }
    }
    lines
}

/// The anchor of a heading, as forges make it and the site of `scripts/docs` does.
fn anchor(heading: &str) -> String {
    let text = LINK.replace_all(heading, |link: &regex::Captures| {
        link[0].split(']').next().unwrap().trim_start_matches('[').to_owned()
    });
    let kept = text.trim().chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

/// The anchors of a page. Of equal ones, only the first can be linked to: sites number the others differently.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = prose(page).into_iter().filter(|line| line.starts_with('#'));
    headings.map(|line| anchor(line.trim_start_matches('#'))).collect()
}

/// The targets of the links on a page.
fn targets(page: &str) -> Vec<String> {
    static CODE: LazyLock<Regex> = LazyLock::new(|| Regex::new("`[^`]*`").unwrap());
    let text = prose(page).join("\n");
    let text = CODE.replace_all(&text, "code");
    let targets = LINK.captures_iter(&text).map(|link| link[1].to_owned());
    targets.filter(|target| !target.contains("://") && !target.starts_with("mailto:")).collect()
}

/// A path without `..`; `None` if it leads out of the repository.
fn normalized(path: &Path) -> Option<PathBuf> {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                normal.pop();
            }
            Component::CurDir => {}
            other => normal.push(other),
        }
    }
    normal.starts_with(root()).then_some(normal)
}

/// Returns the fault of a link of a page.
fn fault(page: &Path, target: &str, anchors: &BTreeMap<PathBuf, BTreeSet<String>>) -> Option<String> {
    let (path, heading) = target.split_once('#').map_or((target, None), |(path, heading)| (path, Some(heading)));
    let file = if path.is_empty() { Some(page.to_owned()) } else { normalized(&page.parent().unwrap().join(path)) };
    let Some(file) = file.filter(|file| file.is_file()) else {
        return Some(format!("{}: {target} is no file of the repository", shown(page)));
    };
    let there = anchors.get(&file);
    let is_there = heading.is_none_or(|heading| there.is_some_and(|there| there.contains(heading)));
    (!is_there).then(|| format!("{}: {target} leads to no heading", shown(page)))
}

#[test]
fn each_link_leads_to_a_file_and_a_heading() {
    let pages: BTreeMap<PathBuf, String> =
        with_extension(&["md"]).into_iter().map(|file| (file.clone(), fs::read_to_string(file).unwrap())).collect();
    let anchors = pages.iter().map(|(file, page)| (file.clone(), anchors(page))).collect();
    let links: Vec<_> =
        pages.iter().flat_map(|(file, page)| targets(page).into_iter().map(move |to| (file, to))).collect();
    assert!(links.len() > 300, "{} links", links.len());
    let faults: Vec<String> = links.iter().filter_map(|(file, target)| fault(file, target, &anchors)).collect();
    assert!(faults.is_empty(), "{} dead links:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn each_document_that_a_source_or_message_names_is_there() {
    let named = Regex::new(r"\bdocs/[\w/-]+\.(?:md|svg)\b").unwrap();
    let mut missing = BTreeSet::new();
    for file in with_extension(&["rs", "py", "toml", "sh", ""]) {
        let Ok(text) = fs::read_to_string(&file) else { continue };
        for name in named.find_iter(&text).filter(|name| !root().join(name.as_str()).is_file()) {
            missing.insert(format!("{}: {}", shown(&file), name.as_str()));
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn a_dead_link_is_found() {
    let page = root().join("docs/reference/jobs.md");
    let anchors = BTreeMap::from([(page.clone(), BTreeSet::from(["train".to_owned()]))]);
    let is_dead = |target: &str| fault(&page, target, &anchors).is_some();
    assert!(!is_dead("#train") && !is_dead("jobs.md#train") && !is_dead("../../README.md"));
    assert!(is_dead("#tain") && is_dead("job.md") && is_dead("../../Cargo.toml#train"));
    assert!(is_dead("../../examples"), "the site has no page of a directory");
    let out = format!("{}etc/passwd", "../".repeat(root().components().count() + 1));
    assert!(is_dead(&out), "it leads out of the repository");
    assert_eq!(
        targets("[a](b.md#c) `[d](e)` [`f`](g)\n```\n[h](i)\n```\n![j](k.svg) https://l"),
        ["b.md#c", "g", "k.svg"]
    );
}

#[test]
fn anchors_are_those_of_forges() {
    for (heading, expected) in [
        ("`[[node]]`", "node"),
        ("1. Describe the machines", "1-describe-the-machines"),
        ("A node's *own* name: `a_b`", "a-nodes-own-name-a_b"),
        ("[Stalls](x.md), and more", "stalls-and-more"),
        ("Start – end", "start--end"),
    ] {
        assert_eq!(anchor(heading), expected);
    }
}
