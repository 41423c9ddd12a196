//! The manifest of an image, by which engines find its configuration and its layers.

use crate::image::archive::Compression;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// The media type of a manifest.
pub const MEDIA_TYPE: &str = "application/vnd.docker.distribution.manifest.v2+json";

/// The description of a blob in a manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlobDescription {
    /// Its digest.
    pub digest: String,
    /// Its bytes.
    pub length: u64,
}

/// Returns the manifest of an image. Layers that are not compressed stay so: engines take both, and what `docker save`
/// writes needs no work then.
pub fn manifest(config: &BlobDescription, layers: &[(BlobDescription, Compression)]) -> Vec<u8> {
    let describe =
        |kind: &str, of: &BlobDescription| json!({ "mediaType": kind, "size": of.length, "digest": of.digest });
    let layers: Vec<_> = layers.iter().map(|(layer, compression)| describe(layer_type(*compression), layer)).collect();
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MEDIA_TYPE,
        "config": describe("application/vnd.docker.container.image.v1+json", config),
        "layers": layers,
    });
    manifest.to_string().into_bytes()
}

fn layer_type(compression: Compression) -> &'static str {
    match compression {
        Compression::None => "application/vnd.docker.image.rootfs.diff.tar",
        Compression::Gzip => "application/vnd.docker.image.rootfs.diff.tar.gzip",
        Compression::Zstd => "application/vnd.docker.image.rootfs.diff.tar.zstd",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn each_layer_has_the_type_of_its_compression() {
        let of = |digest: &str, length| BlobDescription { digest: digest.into(), length };
        let layers = [
            (of("sha256:1", 10), Compression::None),
            (of("sha256:2", 20), Compression::Gzip),
            (of("sha256:3", 30), Compression::Zstd),
        ];
        let made: Value = serde_json::from_slice(&manifest(&of("sha256:0", 5), &layers)).unwrap();
        assert_eq!(made["mediaType"], MEDIA_TYPE);
        assert_eq!((&made["config"]["digest"], &made["config"]["size"]), (&json!("sha256:0"), &json!(5)));
        let listed = made["layers"].as_array().unwrap();
        let ends: Vec<_> =
            listed.iter().map(|l| l["mediaType"].as_str().unwrap().rsplit('.').next().unwrap()).collect();
        assert_eq!(ends, ["tar", "gzip", "zstd"]);
        assert_eq!((&listed[2]["digest"], &listed[2]["size"]), (&json!("sha256:3"), &json!(30)));
    }
}
