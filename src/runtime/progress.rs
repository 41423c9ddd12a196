//! The progress of transfers: how far the pull of an image is, and reports of bytes with their rate.

use crate::event::{Event, Events};
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// The bytes of one layer of an image.
#[derive(Debug, Clone, Copy, Default)]
struct Layer {
    total: u64,
    pulled: u64,
    unpacked: u64,
}

/// How far a pull is, from the engine's messages about layers.
#[derive(Debug, Clone, Default)]
pub struct PullProgress {
    layers: HashMap<String, Layer>,
}

impl PullProgress {
    /// Takes one of the engine's messages: the layer, what happens to it, and how many bytes of how many.
    pub fn update(&mut self, layer: &str, status: &str, current: Option<u64>, total: Option<u64>) {
        if !matches!(status, "Downloading" | "Download complete" | "Extracting" | "Pull complete") {
            return;
        }
        let layer = self.layers.entry(layer.to_owned()).or_default();
        layer.total = total.unwrap_or_default().max(layer.total);
        layer.pulled = layer.total;
        match status {
            "Downloading" => layer.pulled = current.unwrap_or_default().min(layer.total),
            "Extracting" => layer.unpacked = current.unwrap_or_default().min(layer.total),
            "Pull complete" => layer.unpacked = layer.total,
            _ => {}
        }
    }

    /// Returns what the engine is doing with the image, how many bytes of it are done, and how many there are. That grows while the
    /// engine finds further layers.
    pub fn state(&self) -> (&'static str, u64, u64) {
        let sum = |bytes: fn(&Layer) -> u64| self.layers.values().map(bytes).sum::<u64>();
        let (pulled, total) = (sum(|layer| layer.pulled), sum(|layer| layer.total));
        if pulled < total { ("pulling", pulled, total) } else { ("unpacking", sum(|layer| layer.unpacked), total) }
    }
}

/// Reports how many bytes of something have been transferred to or from a node.
#[derive(Debug)]
pub struct TransferProgress {
    node: String,
    events: Events,
    start: Instant,
    reported: Duration,
    samples: VecDeque<(Duration, u64)>,
}

impl TransferProgress {
    /// The time between two reports.
    const INTERVAL: Duration = Duration::from_millis(200);
    /// The time over which the rate is computed.
    const WINDOW: Duration = Duration::from_secs(5);

    /// Starts a transfer.
    pub fn new(node: &str, events: &Events) -> TransferProgress {
        let (start, reported, samples) = (Instant::now(), Duration::ZERO, VecDeque::new());
        TransferProgress { node: node.to_owned(), events: events.clone(), start, reported, samples }
    }

    /// Reports `done` of `total` bytes, unless the last report was just now. `what` is for instance `uploading`.
    pub fn report(&mut self, what: &str, done: u64, total: u64) {
        let now = self.start.elapsed();
        if total > 0 && now >= self.reported + Self::INTERVAL {
            self.reported = now;
            let (node, what, done, rate) = (self.node.clone(), what.to_owned(), done.min(total), self.rate(now, done));
            self.events.send(Event::Transfer { node, what, done, total, rate });
        }
    }

    /// Returns the bytes per second over the last [`Self::WINDOW`]; 0 as long as there is none.
    fn rate(&mut self, now: Duration, done: u64) -> u64 {
        self.samples.push_back((now, done));
        while self.samples.get(1).is_some_and(|(then, _)| *then + Self::WINDOW <= now) {
            self.samples.pop_front();
        }
        let (then, before) = self.samples.front().copied().unwrap_or_default();
        (done.saturating_sub(before) as f64 / (now - then).as_secs_f64()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_add_up() {
        let mut progress = PullProgress::default();
        progress.update("latest", "Pulling from horovod/horovod", None, None);
        progress.update("a", "Already exists", None, None);
        progress.update("b", "Downloading", Some(10), Some(100));
        progress.update("c", "Downloading", Some(50), Some(50));
        assert_eq!(progress.state(), ("pulling", 60, 150));
        progress.update("c", "Download complete", None, None);
        progress.update("b", "Download complete", None, None);
        assert_eq!(progress.state(), ("unpacking", 0, 150));
        progress.update("c", "Extracting", Some(20), Some(50));
        progress.update("b", "Pull complete", None, None);
        assert_eq!(progress.state(), ("unpacking", 120, 150));
    }

    #[test]
    fn a_rate_is_that_of_the_last_seconds() {
        let mut progress = TransferProgress::new("node1", &Events::channel().0);
        let mut rate = |seconds, bytes| progress.rate(Duration::from_secs(seconds), bytes);
        assert_eq!(rate(0, 0), 0);
        assert_eq!(rate(1, 100), 100);
        for second in 2..20 {
            rate(second, 100);
        }
        assert_eq!(rate(20, 100), 0, "nothing was transferred for long");
    }
}
