//! Work on many nodes at once, and its results.

use crate::error::{Error, ErrorKind, NodeError};
use crate::event::Events;
use crate::transport::ssh::most_held;
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::{self, StreamExt};
use std::future::Future;
use tracing::{Instrument, debug_span};

/// The number of nodes that are worked on at the same time: enough for hundreds of nodes, without a fork storm here.
const MAX_CONCURRENT_NODES: usize = 64;

/// The number of files that hvdctl has open, except for those of its nodes.
const OWN_FILES: u64 = 64;

/// The number of files that are open while a node is worked on: eight programs with three streams each would be more,
/// but few nodes have them.
const FILES_PER_NODE: u64 = 20;

/// Returns how many of `nodes` nodes are worked on at the same time, where so many files may be open: each connected
/// node has one open, up to [`most_held`].
fn concurrent_nodes(nodes: usize, open_files: Option<u64>) -> usize {
    let Some(open_files) = open_files else { return MAX_CONCURRENT_NODES };
    let held = most_held(open_files).min(nodes as u64);
    let left = open_files.saturating_sub(OWN_FILES + held) / FILES_PER_NODE;
    usize::try_from(left).unwrap_or(usize::MAX).clamp(1, MAX_CONCURRENT_NODES)
}

/// Returns how many files this process may have open.
pub(super) fn open_files() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current
}

/// Runs `work` on all nodes, at most as many as open files allow at a time. Returns the results in the order of the
/// nodes. A slow node delays no other.
pub async fn for_each_node<I, T, F>(items: Vec<I>, work: impl Fn(I) -> F) -> Vec<T>
where
    F: Future<Output = T>,
{
    let mut results: Vec<Option<T>> = items.iter().map(|_| None).collect();
    let works = items.into_iter().zip(&mut results).map(|(item, result)| {
        let work = work(item);
        Box::pin(async move { *result = Some(work.await) }) as LocalBoxFuture<'_, ()>
    });
    run_all(Box::new(works)).await;
    results.into_iter().flatten().collect()
}

/// Runs the works of all nodes. They are behind pointers so that the compiler makes this once, and not for each kind
/// of work; each is made when its turn comes.
async fn run_all(works: Box<dyn ExactSizeIterator<Item = LocalBoxFuture<'_, ()>> + '_>) {
    let span = debug_span!("for_each_node", nodes = works.len());
    let limit = concurrent_nodes(works.len(), open_files());
    // `buffered` would start no further node behind a slow one
    stream::iter(works).map(|work| work.instrument(span.clone())).buffer_unordered(limit).collect().await
}

/// The nodes on which all steps so far have succeeded, and the failures of the others.
#[derive(Debug)]
pub struct NodeResults<T> {
    /// The results of the last step.
    pub ok: Vec<T>,
    /// The failures.
    pub failed: Vec<NodeError>,
}

impl<T> FromIterator<Result<T, NodeError>> for NodeResults<T> {
    /// Splits results. It reports no failure.
    fn from_iter<I: IntoIterator<Item = Result<T, NodeError>>>(results: I) -> NodeResults<T> {
        let (mut ok, mut failed) = (Vec::new(), Vec::new());
        for result in results {
            match result {
                Ok(value) => ok.push(value),
                Err(error) => failed.push(error),
            }
        }
        NodeResults { ok, failed }
    }
}

/// Performs a step on all nodes at once, and reports each failure when it happens: what runs on a node returns its
/// failure and does not report it.
pub async fn each_node<I, T, F>(items: Vec<I>, events: &Events, step: impl Fn(I) -> F) -> NodeResults<T>
where
    F: Future<Output = Result<T, NodeError>>,
{
    let reported = |item| step(item).map(|result| events.report(result));
    for_each_node(items, reported).await.into_iter().collect()
}

impl<T> NodeResults<T> {
    /// Performs the next step on the nodes that are left, all at once.
    pub async fn then<U, F>(self, events: &Events, step: impl Fn(T) -> F) -> NodeResults<U>
    where
        F: Future<Output = Result<U, NodeError>>,
    {
        let NodeResults { ok, failed } = each_node(self.ok, events, step).await;
        NodeResults { ok, failed: [self.failed, failed].concat() }
    }

    /// Leaves out the nodes that failed in a step for all of them, and reports that. `name`: the node's name.
    #[must_use]
    pub fn without(self, events: &Events, failed: Vec<NodeError>, name: impl Fn(&T) -> &str) -> NodeResults<T> {
        failed.iter().for_each(|error| events.failed(error));
        self.leave_out(failed, name)
    }

    /// Leaves out nodes whose failures have been reported.
    #[must_use]
    pub fn leave_out(self, failed: Vec<NodeError>, name: impl Fn(&T) -> &str) -> NodeResults<T> {
        let is_left = |node: &T| failed.iter().all(|error| error.node != name(node));
        NodeResults { ok: self.ok.into_iter().filter(is_left).collect(), failed: [self.failed, failed].concat() }
    }

    /// Returns all results, or all failures as one error.
    ///
    /// # Errors
    /// [`Error::Nodes`] if one failed.
    pub fn all(self) -> Result<Vec<T>, Error> {
        if self.failed.is_empty() { Ok(self.ok) } else { Err(Error::Nodes { failed: self.failed, done: 0 }) }
    }
}

/// Returns all results, or all failures as one error, and reports these: for work that did not report them when they
/// happened.
///
/// # Errors
/// [`Error::Nodes`] if one failed.
pub fn all<T>(events: &Events, results: Vec<Result<T, NodeError>>) -> Result<Vec<T>, Error> {
    results.into_iter().map(|result| events.report(result)).collect::<NodeResults<T>>().all()
}

/// Reports that nodes have to wait for each other because few files may be open.
pub(super) fn note_few_files(nodes: usize, open_files: Option<u64>, events: &Events) {
    let limit = concurrent_nodes(nodes, open_files);
    if let Some(files) = open_files.filter(|_| limit < nodes.min(MAX_CONCURRENT_NODES)) {
        events.note(format!(
            "working on {limit} of {nodes} nodes at a time, because hvdctl may open only {files} files (`ulimit -Hn`)"
        ));
    }
}

/// Returns the error of a command that changes nothing, because nodes cannot be reached or give no root.
pub fn unreached(failed: Vec<NodeError>) -> Error {
    if failed.iter().any(|e| e.kind == ErrorKind::Unreachable) {
        Error::Unreachable(failed)
    } else {
        Error::Nodes { failed, done: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::Notify;

    #[test]
    fn few_open_files_are_for_fewer_nodes_at_a_time() {
        let limits = [(None, 64), (Some(65_536), 64), (Some(1024), 41), (Some(256), 6), (Some(20), 1)];
        for (open_files, nodes) in limits {
            assert_eq!(concurrent_nodes(128, open_files), nodes, "{open_files:?}");
        }
        // a thousand connections leave room for the work
        assert_eq!(concurrent_nodes(1024, Some(1024)), 35);
        let noted = |nodes, open_files| {
            let (events, receiver) = Events::channel();
            note_few_files(nodes, Some(open_files), &events);
            receiver.receive(std::time::Duration::ZERO).is_ok()
        };
        assert_eq!([noted(128, 256), noted(128, 4096), noted(2, 256), noted(4, 128)], [true, false, false, true]);
    }

    #[tokio::test]
    async fn one_that_hangs_holds_up_none_of_many() {
        // the first ends only when the last has: with a queue behind it that would never be
        let last = Notify::new();
        let count = 3 * MAX_CONCURRENT_NODES;
        let work = for_each_node((0..count).collect(), async |i| {
            match i {
                0 => last.notified().await,
                i if i == count - 1 => last.notify_one(),
                _ => {}
            }
            i
        });
        let results = tokio::time::timeout(std::time::Duration::from_secs(60), work).await.expect("it hangs");
        assert_eq!(results, (0..count).collect::<Vec<_>>());
    }
}
