//! Comparison of the files on nodes with the manifest here. Nodes that have the same files are compared once: the
//! manifest of one of them crosses the network, record by record, and they share the result, so that memory does not
//! grow with the number of nodes.

use crate::error::NodeError;
use crate::sync::limit;
use crate::sync::manifest::{Comparer, Difference, Manifest, Selection};
use crate::text::digest::{finish, hasher, hex};
use crate::transport::node::{RunAs, Transport};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use tokio::sync::OnceCell;

/// The argument of `upload/manifest.sh` for what is in place, and for what has arrived in an interrupted push.
pub(crate) const HAS: &str = "has";
pub(crate) const STAGED: &str = "staged";

/// As many bytes as a list or removal of files may take time for; see [`limit`].
pub(crate) const MANY: u64 = 64 << 30;

/// The differences between a manifest and what nodes have.
#[derive(Debug, Default)]
pub(crate) struct Differences {
    /// By the hashes of the nodes' manifests.
    by_hash: Mutex<BTreeMap<String, Arc<OnceCell<Arc<Difference>>>>>,
    all: OnceLock<Arc<Difference>>,
    none: OnceLock<Arc<Difference>>,
}

impl Differences {
    /// Returns the difference from the manifest with this hash, which the node lists by `argv` if no other node has
    /// done so.
    ///
    /// # Errors
    /// If the node cannot list it, or lists another one.
    pub(crate) async fn get(
        &self,
        manifest: &Manifest,
        hash: &str,
        node: (&Transport, &[&str]),
    ) -> Result<Arc<Difference>, NodeError> {
        let cell = {
            let mut all = self.by_hash.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(all.entry(hash.to_owned()).or_default())
        };
        let read = async || Ok(Arc::new(compare(manifest, hash, node).await?.difference()));
        cell.get_or_try_init(read).await.cloned()
    }

    /// Returns the difference from a node that has nothing.
    pub(crate) fn all(&self, manifest: &Manifest) -> Arc<Difference> {
        Arc::clone(self.all.get_or_init(|| Arc::new(Comparer::new(manifest).difference())))
    }

    /// Returns the difference from a node that has the same.
    pub(crate) fn none(&self, manifest: &Manifest) -> Arc<Difference> {
        let none = || Difference { missing: Selection::none(manifest.0.len()), gone: String::new(), removed: 0 };
        Arc::clone(self.none.get_or_init(|| Arc::new(none())))
    }
}

/// Returns the entries that a node has by the manifest with this hash.
///
/// # Errors
/// As [`Differences::get`].
pub(crate) async fn had(manifest: &Manifest, hash: &str, node: (&Transport, &[&str])) -> Result<Selection, NodeError> {
    Ok(compare(manifest, hash, node).await?.had())
}

async fn compare<'a>(
    manifest: &'a Manifest,
    hash: &str,
    (transport, argv): (&Transport, &[&str]),
) -> Result<Comparer<'a>, NodeError> {
    let operation = "list the files of the last push";
    let (mut comparer, mut hasher) = (Comparer::new(manifest), hasher());
    let read = async {
        let process = transport.start(RunAs::Root, argv).await?;
        let taken = process.records(|record| {
            hasher.update(record).update(&[0]);
            comparer.take(record)
        });
        taken.await
    };
    let output = transport.within(read, operation, limit(transport, MANY)).await?;
    transport.succeeded(output, operation)?;
    if hex(&finish(&hasher)) != hash {
        let cause = io::Error::new(io::ErrorKind::InvalidData, "the list changed meanwhile");
        return Err(NodeError::failed(transport.node(), operation, cause).hint("try again"));
    }
    Ok(comparer)
}
