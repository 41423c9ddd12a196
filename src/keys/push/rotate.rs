//! `keys rotate`: replaces the key pair. Jobs can be launched at every moment: all nodes accept the new key before the
//! master uses it, and the old one until the master no longer does.

use super::{KeyDistribution, base64};
use crate::cluster::each_node::NodeResults;
use crate::cluster::member::Member;
use crate::error::{Error, NodeError};
use crate::keys::files::private_key_name;
use crate::keys::files::{KEY_NAMES, KeyKind, Keyring, Keys, Pair, PublicKey, bare, describe, is_ours, our_key};
use crate::node::facts::Facts;
use crate::transport::node::Script;

pub(super) const STAGE: &str = concat!(
    include_str!("../../scripts/keys/put_file.sh"),
    include_str!("../../scripts/keys/lock.sh"),
    include_str!("../../scripts/keys/stage.sh")
);
pub(super) const SWITCH: &str = concat!(
    include_str!("../../scripts/keys/put_file.sh"),
    include_str!("../../scripts/keys/lock.sh"),
    include_str!("../../scripts/keys/switch.sh")
);

/// The result of a rotation.
#[derive(Debug)]
pub struct RotationResult {
    /// The pair that the cluster uses now.
    pub pair: Option<PublicKey>,
    /// True if the pair changed. False if an earlier rotation had already put it in place.
    pub switched: bool,
    /// Nodes that accept exactly this key.
    pub done: Vec<String>,
    /// Nodes that do not yet.
    pub failed: Vec<NodeError>,
    /// The remaining work, as a sentence.
    pub left: Option<String>,
}

impl KeyDistribution<'_> {
    /// Rotates, or finishes an interrupted rotation.
    ///
    /// # Errors
    /// Before anything was changed; or when the master failed at the switch, in which case both keys are accepted.
    pub async fn rotate(&self, members: &[Member], wanted: Option<KeyKind>) -> Result<RotationResult, Error> {
        let (cluster, KeyDistribution { session, events, .. }) = (self.cluster(), self);
        let nodes = self.observe(members).await?.all()?;
        let (member, facts) = self.master(&nodes)?;
        let mut ring = Keyring::read(cluster, facts);
        if let Some(owner) = ring.belongs_to_another(&cluster.name) {
            return Err(Error::check(
                format!(
                    "the pair on {} belongs to the cluster {owner}, which uses the same directory",
                    member.node.name
                ),
                "rotate it with that cluster's inventory, or give this cluster a separate ssh_dir",
            ));
        }
        let next = match ring.next {
            Some(next) => {
                events.note(format!("resuming the rotation to {}", name_of(&next.public)));
                next
            }
            None => self.stage(member, facts, &ring, wanted.unwrap_or(self.usual_kind())).await?,
        };
        ring.next = Some(next.clone());

        let replaced = KEY_NAMES.into_iter().find(|name| *name != next.name && is_ours(facts, name, &cluster.name));
        let (transport, master) = (member.transport.clone(), member.node.name.clone());
        // `next` is there, so there are keys
        let keys = Keys::to_push(&ring).expect("keys of a rotation");
        let NodeResults { ok: pushed, failed } = self.distribute(nodes, keys).await?;
        if !failed.is_empty() {
            let left = "the old key is still in use; fix these nodes, then run `hvdctl keys rotate` again".to_owned();
            let done = pushed.into_iter().map(|p| p.node).collect();
            return Ok(RotationResult { pair: ring.described(), switched: false, done, failed, left: Some(left) });
        }
        events.note(format!("{} nodes accept both keys", pushed.len()));
        session.cancellation.check()?;

        let script = Script::new(SWITCH)
            .with("ssh_dir", &cluster.ssh_dir)
            .with("new", next.name)
            .with("public", &next.public)
            .with("old", replaced.unwrap_or_default());
        transport.script(&script, "put the new pair in place").await.map_err(|error| Error::Nodes {
            failed: vec![
                error.hint("all nodes accept both keys, so jobs can be launched; `hvdctl keys rotate` resumes here"),
            ],
            done: pushed.len() - 1,
        })?;
        events.note(format!("{master} launches with the new key: {}", name_of(&next.public)));
        session.progress.record(&master, "launches with the new key");
        // from now on a push authorizes only the new key
        let NodeResults { ok: pushed, failed } = self.push(self.observe(members).await?).await?;
        pushed.iter().for_each(|node| session.progress.done(&node.node));
        if pushed.len() + failed.len() < members.len() {
            session.progress.failed(&failed);
            session.cancellation.check()?;
        }
        let left = (!failed.is_empty())
            .then(|| "these nodes still accept the old key: `hvdctl keys push` removes it".to_owned());
        if failed.is_empty() {
            events.note(format!("none of {} nodes accepts the old key any more", pushed.len()));
        }
        let done = pushed.into_iter().map(|p| p.node).collect();
        Ok(RotationResult { pair: describe(&next.public), switched: !ring.in_place, done, failed, left })
    }

    /// Generates the new pair and stages it next to the current one. Keeps a pair that another hvdctl has staged
    /// meanwhile.
    async fn stage(&self, member: &Member, facts: &Facts, ring: &Keyring, kind: KeyKind) -> Result<Pair, Error> {
        let (node, cluster) = (&member.node.name, self.cluster());
        let Some(current) = &ring.current else {
            return Err(Error::check(format!("{node} has no key pair to rotate"), "hvdctl keys push"));
        };
        let name = private_key_name(kind.key_type);
        let exists = [name.to_owned(), format!("{name}.pub")].iter().any(|file| facts.keys.files.contains_key(file));
        if name != current.name && exists && !is_ours(facts, name, &cluster.name) {
            return Err(Error::check(
                format!(
                    "{node}: {}/{name} does not belong to the cluster, and the new pair would replace it",
                    cluster.ssh_dir
                ),
                "move it away, or rotate to the other --type",
            ));
        }
        let pair = self.generate_pair(node, kind).await?;
        let private = pair.private.as_ref().map(|private| base64(private.expose())).unwrap_or_default();
        let script = Script::new(STAGE)
            .with("ssh_dir", &cluster.ssh_dir)
            .with("name", name)
            .with("private", &private)
            .with("public", &base64(&format!("{}\n", pair.public)));
        let operation = "stage the new pair";
        let output = member.transport.script(&script, operation).await?;
        let answer = String::from_utf8_lossy(&output);
        let (staged, public) = answer.trim().split_once(' ').unwrap_or_default();
        let Some(name) = KEY_NAMES.into_iter().find(|n| *n == staged && our_key(public, &cluster.name).is_some())
        else {
            return Err(NodeError::failed(node, operation, format!("unexpected answer {answer:?}"))
                .hint("another cluster that uses the same directory may be rotating its pair")
                .into());
        };
        self.events.note(format!("{node} has a new pair, not yet in use: {}", name_of(public)));
        self.session.progress.record(node, "has a new pair, not yet in use");
        Ok(Pair { name, public: public.to_owned(), private: None })
    }
}

/// A key as messages name it.
fn name_of(public: &str) -> String {
    describe(public).map_or_else(|| bare(public), |described| described.to_string())
}
