//! Reports of bytes that are transferred, with their rate.

use super::{Event, Events};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

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
