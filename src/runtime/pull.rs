//! Getting an image from its registry: when, under which name, and how far it is.

use crate::inventory::Pull;
use std::collections::HashMap;
use std::time::Duration;

/// Whether the image is to be got, given whether the node has it.
pub fn is_wanted(policy: Pull, is_there: bool) -> bool {
    match policy {
        Pull::Always => true,
        Pull::Missing => !is_there,
        Pull::Never => false,
    }
}

/// An image's name as the engine's pull wants it: without a tag it would get all of them. `None` for the id of an image,
/// which no registry knows.
pub fn reference(image: &str) -> Option<String> {
    if image.starts_with("sha256:") {
        return None;
    }
    let last = image.rsplit('/').next().unwrap_or(image);
    match last.contains([':', '@']) {
        true => Some(image.to_owned()),
        false => Some(format!("{image}:latest")),
    }
}

/// One layer's share.
#[derive(Debug, Clone, Copy, Default)]
struct Layer {
    done: u64,
    total: u64,
    unpacked: u64,
    is_loaded: bool,
}

/// How far a pull is, from what the engine says of each layer.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    layers: HashMap<String, Layer>,
}

impl Progress {
    /// Takes one of the engine's messages: the layer, what happens to it, and how many bytes of how many.
    pub fn see(&mut self, layer: &str, status: &str, current: Option<u64>, total: Option<u64>) {
        let known = matches!(status, "Downloading" | "Extracting" | "Download complete" | "Pull complete");
        if !known {
            return;
        }
        let layer = self.layers.entry(layer.to_owned()).or_default();
        if let Some(total) = total.filter(|total| *total > 0) {
            layer.total = total;
        }
        match status {
            "Downloading" => layer.done = current.unwrap_or(layer.done),
            "Extracting" => {
                layer.is_loaded = true;
                layer.unpacked = current.unwrap_or(layer.unpacked);
            }
            "Pull complete" => {
                layer.is_loaded = true;
                layer.unpacked = layer.total;
            }
            _ => layer.is_loaded = true,
        }
        if layer.is_loaded {
            layer.done = layer.total;
        }
    }

    /// Bytes that have come, and all that are known of. The latter grows while the engine finds further layers.
    pub fn loaded(&self) -> (u64, u64) {
        self.layers
            .values()
            .fold((0, 0), |(done, total), layer| (done + layer.done.min(layer.total), total + layer.total))
    }

    /// The same of what is unpacked, once everything has come.
    pub fn unpacked(&self) -> Option<(u64, u64)> {
        let all = !self.layers.is_empty() && self.layers.values().all(|layer| layer.is_loaded);
        all.then(|| {
            let unpacked = self.layers.values().map(|layer| layer.unpacked.min(layer.total)).sum();
            (unpacked, self.loaded().1)
        })
    }
}

/// Bytes per second over the last seconds.
#[derive(Debug, Clone, Default)]
pub struct Rate {
    seen: std::collections::VecDeque<(Duration, u64)>,
}

impl Rate {
    /// So long is the time that counts.
    const WINDOW: Duration = Duration::from_secs(5);

    /// Takes how many bytes there are after `time`, and gives the rate; 0 until there is one.
    pub fn see(&mut self, time: Duration, bytes: u64) -> u64 {
        self.seen.push_back((time, bytes));
        while self.seen.len() > 2 && self.seen.get(1).is_some_and(|(then, _)| *then + Rate::WINDOW <= time) {
            self.seen.pop_front();
        }
        match self.seen.front() {
            Some((then, before)) if time > *then => {
                (bytes.saturating_sub(*before) as f64 / (time - *then).as_secs_f64()) as u64
            }
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies() {
        let wanted = [Pull::Missing, Pull::Always, Pull::Never].map(|p| (is_wanted(p, false), is_wanted(p, true)));
        assert_eq!(wanted, [(true, false), (true, true), (false, false)]);
    }

    #[test]
    fn one_tag_is_got_and_not_all() {
        for (image, expected) in [
            ("horovod/horovod", Some("horovod/horovod:latest")),
            ("horovod/horovod:0.28", Some("horovod/horovod:0.28")),
            ("localhost:5000/x", Some("localhost:5000/x:latest")),
            ("localhost:5000/x:1", Some("localhost:5000/x:1")),
            ("x@sha256:00", Some("x@sha256:00")),
            ("sha256:00", None),
        ] {
            assert_eq!(reference(image).as_deref(), expected, "{image}");
        }
    }

    #[test]
    fn layers_add_up() {
        let mut progress = Progress::default();
        progress.see("latest", "Pulling from horovod/horovod", None, None);
        progress.see("a", "Already exists", None, None);
        progress.see("b", "Downloading", Some(10), Some(100));
        progress.see("c", "Downloading", Some(50), Some(50));
        assert_eq!((progress.loaded(), progress.unpacked()), ((60, 150), None));
        progress.see("c", "Download complete", None, None);
        progress.see("b", "Download complete", None, None);
        assert_eq!((progress.loaded(), progress.unpacked()), ((150, 150), Some((0, 150))));
        progress.see("c", "Extracting", Some(20), Some(50));
        progress.see("b", "Pull complete", None, None);
        assert_eq!(progress.unpacked(), Some((120, 150)));
    }

    #[test]
    fn a_rate_is_that_of_the_last_seconds() {
        let mut rate = Rate::default();
        assert_eq!(rate.see(Duration::ZERO, 0), 0);
        assert_eq!(rate.see(Duration::from_secs(1), 100), 100);
        for second in 2..20 {
            rate.see(Duration::from_secs(second), 100);
        }
        assert_eq!(rate.see(Duration::from_secs(20), 100), 0, "nothing has come for long");
    }
}
