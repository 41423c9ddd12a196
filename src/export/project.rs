//! The place at which the pods of a job find the project.

use super::is_line_end;
use super::manifest::ConfigMapItem;
use super::names::key;
use crate::error::Error;
use crate::sync::text_files::{NoTexts, TextFile};
use crate::text::quote::readable;
use crate::text::units::human;

/// The most bytes of a project in a ConfigMap, which has at most 1 MiB with all its keys.
pub const LARGEST: u64 = 1_000_000;
/// The most files of such a project: a document names each of them, for every kind of pod.
const MOST_FILES: usize = 1000;

/// With this, `kubectl create` creates an object or gives it new contents.
pub(super) const APPLIED: &str = "--dry-run=client -o yaml | kubectl apply --server-side -f -";

/// The source of a project for pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProjectSource<'a> {
    /// In a PersistentVolumeClaim with this name.
    Claim(&'a str),
    /// In the image.
    Image,
    /// In a ConfigMap of its files, which are texts.
    Texts(&'a [TextFile]),
}

/// Checks that `kubectl create configmap --from-file=KEY=PATH` reads these files: it separates values at commas, and a
/// key from its path at `=`. A volume has no path that begins with two dots.
///
/// # Errors
/// A file with another name, and too many files.
pub fn check_names(files: &[TextFile]) -> Result<(), Error> {
    if files.len() > MOST_FILES {
        let why = format!("the project has {} files, but a document names at most {MOST_FILES}", files.len());
        return Err(Error::usage(why, ELSEWHERE));
    }
    let is_refused = |c: char| "=,\"".contains(c) || is_line_end(c);
    match files.iter().find(|file| file.path.contains(is_refused) || file.path.starts_with("..")) {
        Some(file) => Err(refused(NoTexts::Name(file.path.clone()))),
        None => Ok(()),
    }
}

/// Returns the error of a project that cannot be in a ConfigMap.
pub fn refused(why: NoTexts) -> Error {
    let why = match why {
        NoTexts::Unreadable(error) => return error,
        NoTexts::Large(bytes) => {
            format!("the project has {} or more, but a ConfigMap holds at most {}", human(bytes), human(LARGEST))
        }
        NoTexts::Binary(path) => format!("{} is binary, but a ConfigMap holds text", readable(&path)),
        NoTexts::NoFile(path) => {
            format!("{} is not a regular file, but a ConfigMap holds files", readable(&path))
        }
        NoTexts::Name(path) => format!("kubectl does not read a file named {} into a ConfigMap", readable(&path)),
    };
    Error::usage(why, ELSEWHERE)
}

/// The hint for a project that cannot be exported in this way.
const ELSEWHERE: &str = "use a volume that has the project (--pvc NAME), or an image (--project-in-image --tag IMAGE); \
                         exclude files with lines in .hvdctlignore";

/// Returns the entries of a ConfigMap for these files.
pub(super) fn items(files: &[TextFile]) -> Vec<ConfigMapItem> {
    let mut keys: Vec<String> = Vec::new();
    for file in files {
        keys.push(key(&file.path, &keys));
    }
    let item = |(file, key): (&TextFile, String)| ConfigMapItem {
        key: key.into(),
        path: file.path.as_str().into(),
        mode: file.is_executable.then_some(0o755),
    };
    files.iter().zip(keys).map(item).collect()
}

/// Returns the command that creates the ConfigMap, in the directory of the project.
pub(super) fn creation(name: &str, items: &[ConfigMapItem]) -> String {
    let file = |item: &ConfigMapItem| {
        format!(" {}", readable(&format!("--from-file={}=./{}", item.key.as_str(), item.path.as_str())))
    };
    format!("kubectl create configmap {name}{} {APPLIED}", items.iter().map(file).collect::<String>())
}
