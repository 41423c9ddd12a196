//! The documents of `keys`.

use super::{Made, full, login, names, refused};
use crate::cluster::each_node::NodeResults;
use crate::commands::set_up::keys;
use crate::inventory::KeyType;
use crate::keys::files::{Changes, KeyFault, KeyReport, NodeKeys, PublicKey, Put, WrongMode};
use crate::keys::push::{GenerateResult, PushResult, RotationResult};
use crate::keys::reachability::Matrix;
use crate::secret::Secret;

fn pair() -> PublicKey {
    let fingerprint = "SHA256:uNiVztksCsDhcc0u9e8BrTqzaHzmDtOJqZYW1WnWYzE".to_owned();
    PublicKey { key_type: KeyType::Ed25519, bits: 256, fingerprint }
}

pub(super) fn keys_made(all: &mut Made) {
    let generated = GenerateResult { node: "node1".into(), pair: pair(), generated: true };
    all.add("keys-generate", keys::generated(generated));

    let put = |name: &str| Put { name: name.into(), text: Secret::new(String::new().into()) };
    let changes = Changes {
        puts: vec![put("authorized_keys"), put("known_hosts")],
        removes: names(&["id_rsa"]),
        repairs: vec![WrongMode { file: None, mode: "755".into(), owner: "0:0".into() }],
    };
    let pushed = vec![
        PushResult { node: "node1".into(), changes: Changes::default() },
        PushResult { node: "node2".into(), changes },
    ];
    let pushed = NodeResults { ok: pushed, failed: vec![full("node3")] };
    all.add("keys-push", keys::pushed(pushed));

    let rotated = |pair, switched, left: Option<&str>, failed| RotationResult {
        pair,
        switched,
        done: if switched { names(&["node1", "node2"]) } else { Vec::new() },
        failed,
        left: left.map(str::to_owned),
    };
    let outcome = keys::rotate::outcome(rotated(Some(pair()), true, None, Vec::new()), None, &[refused("node3")]);
    all.add("keys-rotate", outcome);
    let outcome = keys::rotate::outcome(rotated(None, false, Some("x"), vec![full("node1")]), None, &[]);
    all.add("keys-rotate/unfinished", outcome);

    let row = |node: &str, master: bool| NodeKeys {
        node: node.into(),
        master,
        key: master.then(pair),
        unexpected: Vec::new(),
        fingerprint: Some(pair().fingerprint),
        further: 0,
        modes: Vec::new(),
        agreed: Some(true),
        pinned: true,
        faults: Vec::new(),
        warnings: Vec::new(),
    };
    let good = KeyReport { rows: vec![row("node1", true), row("node2", false)], rotation: None };
    let logins = vec![login("node1", "node2", None), login("node2", "node1", None)];
    let matrix = Matrix { absent: Vec::new(), pairs: logins };
    all.add("keys-status", keys::status::outcome(&good, &matrix, &[]));

    let fault = |text: &str| KeyFault { text: text.into(), hint: "hvdctl keys push" };
    let wrong_mode = WrongMode { file: Some("authorized_keys".into()), mode: "644".into(), owner: "0:0".into() };
    let wrong = NodeKeys {
        unexpected: names(&["id_rsa"]),
        fingerprint: None,
        further: 1,
        modes: vec![wrong_mode],

        agreed: None,
        pinned: false,
        faults: vec![fault("node2: authorized_keys does not let the master's key in")],
        warnings: names(&["id_rsa is kept: it is the key of the cluster blue"]),
        ..row("node2", false)
    };
    let bad = KeyReport { rows: vec![wrong], rotation: Some(fault("a rotation is unfinished")) };
    all.add("keys-status/wrong", keys::status::outcome(&bad, &Matrix::default(), &[refused("node3")]));
}
