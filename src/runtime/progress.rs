//! The progress of the pull of an image.

use std::collections::HashMap;

/// The bytes of one layer of an image.
#[derive(Debug, Clone, Copy, Default)]
struct Layer {
    total: u64,
    pulled: u64,
    unpacked: u64,
}

/// The progress of a pull, from the engine's messages about layers.
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

    /// Returns what the engine is doing with the image, how many bytes of it are done, and how many there are. That
    /// grows while the engine finds further layers.
    pub fn state(&self) -> (&'static str, u64, u64) {
        let sum = |bytes: fn(&Layer) -> u64| self.layers.values().map(bytes).fold(0, u64::saturating_add);
        let (pulled, total) = (sum(|layer| layer.pulled), sum(|layer| layer.total));
        if pulled < total { ("pulling", pulled, total) } else { ("unpacking", sum(|layer| layer.unpacked), total) }
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
}
