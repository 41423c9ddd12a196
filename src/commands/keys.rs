//! `hvdctl keys`.

use super::Outcome;
use super::context::{ConnectedNodes, Context, login_table, node_table, with_role};
use crate::cli::{Generate, NewPair, Push, Rotate};
use crate::cluster::each_node::NodeResults;
use crate::cluster::member::Member;
use crate::cluster::observation::{ObservedNode, engine, facts};
use crate::document::{NoDetails, NodeEntry, entries};
use crate::error::{Error, NodeError, Verdict};
use crate::event::Step;
use crate::inventory::{KeyType, Node};
use crate::keys::files::WrongMode;
use crate::keys::files::{KeyFault, KeyKind, KeyReport, NodeKeys, report};
use crate::keys::first_login;
use crate::keys::push::{Distribution, GenerateResult, PushResult, RotationResult, without_master};
use crate::keys::reachability::AbsentNode;
use crate::keys::reachability::FailedLogins;
use crate::keys::reachability::Login;
use crate::keys::reachability::Matrix;
use crate::node::facts::Facts;
use crate::text::table::cell;
use crate::worker::logins;
use schemars::JsonSchema;
use serde::Serialize;

/// What `keys push` did on a node.
#[derive(Debug, Serialize, JsonSchema)]
pub struct KeysPushNode {
    /// Whether anything was written.
    pub changed: bool,
    /// The files that were written.
    pub written: Vec<String>,
    /// The files that were removed.
    pub removed: Vec<String>,
    /// The files and directories with a wrong owner or mode, as they were before.
    pub repaired: Vec<WrongMode>,
}

/// `keys status`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct KeysStatus {
    /// What an unfinished rotation has left to do, or null.
    pub rotation: Option<KeyFault>,
    /// The nodes.
    pub nodes: Vec<NodeEntry<NodeKeys>>,
    /// Logins from worker to worker; null if none was tried.
    pub logins: Option<Logins>,
}

/// `keys rotate`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct KeysRotate {
    /// False if no other key pair was put in place.
    pub switched: bool,
    /// The type of the key pair in use, `rsa` or `ed25519`; null if it is not known.
    #[serde(rename = "type")]
    pub key_type: Option<KeyType>,
    /// Its size.
    pub bits: Option<u32>,
    /// Its fingerprint.
    pub fingerprint: Option<String>,
    /// The nodes.
    pub nodes: Vec<NodeEntry<NoDetails>>,
}

/// Logins from worker to worker.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Logins {
    /// Whether every login worked.
    pub ok: bool,
    /// Nodes whose worker is not running.
    pub absent: Vec<AbsentNode>,
    /// The failures by reason.
    pub failed: Vec<FailedLogins>,
    /// Every login that was tried.
    pub pairs: Vec<Login>,
}

impl From<&Matrix> for Logins {
    fn from(matrix: &Matrix) -> Logins {
        let (absent, failed, pairs) = (matrix.absent.clone(), matrix.rows(), matrix.pairs.clone());
        Logins { ok: matrix.is_good(), absent, failed, pairs }
    }
}

/// `keys push`.
pub async fn push(options: &Push, context: &Context) -> Result<Outcome, Error> {
    let session = &context.session;
    if options.first_login {
        session.cancellation.run(first_login::install(&context.target, &context.fleet, &context.events)).await?;
    }
    let members = context.connect_and_lock().await?;
    let distribution = distribution(context);
    let results = distribution.push(distribution.observe(&members).await?).await?;
    results.ok.iter().for_each(|node| session.progress.done(&node.node));
    session.progress.failed(&results.failed);
    session.cancellation.check()?;
    Ok(pushed(results))
}

fn distribution(context: &Context) -> Distribution<'_> {
    Distribution { inventory: &context.target.inventory, session: &context.session, events: &context.events }
}

pub(super) fn pushed(NodeResults { ok, failed }: NodeResults<PushResult>) -> Outcome {
    let (mut text, mut nodes) = (String::new(), Vec::new());
    for PushResult { node, changes } in &ok {
        let what = if changes.is_empty() { "unchanged".to_owned() } else { changes.to_string() };
        text.push_str(&format!("{node}: {what}\n"));
        let written = changes.puts.iter().map(|put| put.name.clone()).collect();
        let (removed, repaired) = (changes.removes.clone(), changes.repairs.clone());
        let details = KeysPushNode { changed: !changes.is_empty(), written, removed, repaired };
        nodes.push(NodeEntry::new(node, true, details));
    }
    if failed.is_empty() && ok.iter().all(|node| node.changes.is_empty()) {
        text.push_str("nothing to do: the keys on all nodes are correct\n");
    }
    Outcome::of_nodes(text, NodeResults { ok: nodes, failed }, &[])
}

fn kind(pair: &NewPair, usual: KeyType) -> Result<Option<KeyKind>, Error> {
    pair.kind(usual).map_err(|why| Error::usage(why, "leave out --bits, or add --type rsa"))
}

/// `keys generate`.
pub async fn generate(options: &Generate, context: &mut Context) -> Result<Outcome, Error> {
    let wanted = kind(&options.pair, context.target.cluster().key_type)?;
    let master = context.target.inventory.master().name.clone();
    if !context.target.selected.contains(&master) {
        return Err(without_master(&context.target.inventory));
    }
    // the other nodes are not involved, and need not be reachable
    context.target.selected = vec![master];
    let members = context.connect_and_lock().await?;
    let done = distribution(context).generate(&members, wanted).await?;
    context.session.progress.done(&done.node);
    context.session.cancellation.check()?;
    Ok(generated(done))
}

pub(super) fn generated(done: GenerateResult) -> Outcome {
    let text = if done.generated {
        format!("{}: generated a key pair: {}\nto distribute it: hvdctl keys push\n", done.node, done.pair)
    } else {
        format!("nothing to do: {} has a key pair: {}\n", done.node, done.pair)
    };
    Outcome::ok(text, done)
}

/// `keys rotate`.
pub async fn rotate(options: &Rotate, context: &Context) -> Result<Outcome, Error> {
    let Context { target, session, .. } = context;
    let wanted = kind(&options.pair, target.cluster().key_type)?;
    if target.selected.len() < target.inventory.nodes.len() {
        return Err(Error::usage(
            "keys rotate needs all nodes: one that is left out would not accept the new key",
            "leave out --on; --skip-offline skips unreachable nodes",
        ));
    }
    let ConnectedNodes { nodes, offline } = context.connect_or_skip(options.skip_offline).await?;
    let members = nodes.all()?;
    if members.iter().all(|member| !member.node.master) {
        // the master has the pair
        return Err(Error::Unreachable(offline));
    }
    session.lock_all(&members).await?;
    let done = distribution(context).rotate(&members, wanted).await?;
    session.progress.failed(&done.failed);
    session.cancellation.check()?;
    Ok(rotated(done, wanted, &offline))
}

pub(super) fn rotated(done: RotationResult, wanted: Option<KeyKind>, offline: &[NodeError]) -> Outcome {
    let accepts = if done.switched { "accepts the new key only" } else { "accepts the key" };
    let mut text = String::new();
    match &done.left {
        Some(left) => text.push_str(&format!("{left}\n")),
        None => text.extend(done.done.iter().map(|node| format!("{node}: {accepts}\n"))),
    }
    if let Some(pair) = &done.pair {
        text.push_str(&format!("the cluster's pair is {pair}\n"));
    }
    if done.left.is_none() && !done.switched {
        text.push_str("this finished an earlier rotation; to make a new pair, run hvdctl keys rotate again\n");
    }
    if let Some(kind) =
        wanted.filter(|kind| done.left.is_none() && done.pair.as_ref().is_some_and(|pair| !kind.is(pair)))
    {
        text.push_str(&format!("it is not of the requested type; to change it: {}\n", kind.rotation()));
    }
    for error in offline {
        text.push_str(&format!("{} was skipped: run hvdctl keys push when it is reachable\n", error.node));
    }
    let verdict = Verdict::Nodes { done: done.done.len(), failed: &done.failed };
    let nodes = entries(done.done.iter().map(|node| NodeEntry::new(node, true, NoDetails {})), &done.failed);
    let details = KeysRotate {
        switched: done.switched,
        key_type: done.pair.as_ref().map(|pair| pair.key_type),
        bits: done.pair.as_ref().map(|pair| pair.bits),
        fingerprint: done.pair.as_ref().map(|pair| pair.fingerprint.clone()),
        nodes: nodes.into_iter().chain(offline.iter().map(NodeEntry::skipped)).collect(),
    };
    Outcome::new(verdict, text, details)
}

/// `keys status`.
pub async fn status(context: &Context) -> Result<Outcome, Error> {
    let Context { target, events, .. } = context;
    let read = async |member: Member| {
        let _step = events.begin(&member.node.name, Step::read("reading keys"));
        let (facts, runtime) = tokio::join!(facts(target.cluster(), &member), engine(target.cluster(), &member));
        // without an engine the keys can still be checked, but not the logins
        let (facts, runtime) = (facts?, runtime.ok());
        Ok(((member.node.clone(), facts.clone()), runtime.map(|runtime| ObservedNode::new(member, facts, runtime))))
    };
    let NodeResults { ok, failed } = context.connect().await?.then(events, read).await;
    let (observed, workers): (Vec<(Node, Facts)>, Vec<Option<ObservedNode>>) = ok.into_iter().unzip();
    let workers: Vec<ObservedNode> = workers.into_iter().flatten().collect();
    let nodes: Vec<_> = observed.iter().map(|(node, facts)| (node, facts)).collect();
    let report = report(&target.inventory, &nodes);
    let matrix = logins::check(&target.inventory, &workers, events).await?;
    Ok(checked(&report, &matrix, &failed))
}

pub(super) fn checked(report: &KeyReport, matrix: &Matrix, failed: &[NodeError]) -> Outcome {
    let rows = report.rows.iter().map(|row| NodeEntry::reached(&row.node, row.faults.is_empty(), row.clone()));
    let nodes: Vec<_> = rows.chain(failed.iter().map(NodeEntry::unreached)).collect();
    let header = ["NODE", "KEY", "FINGERPRINT", "OWNER/MODES", "AGREED", "PINNED", "REACHES"];
    let mut text = node_table(&header, &nodes, |_, row| cells(row, matrix));
    for KeyFault { text: fault, hint } in report.rows.iter().flat_map(|row| &row.faults).chain(&report.rotation) {
        text.push_str(&format!("{fault}\n  hint: {hint}\n"));
    }
    let warnings = report.rows.iter().flat_map(|row| row.warnings.iter().map(|warning| (&row.node, warning)));
    text.extend(warnings.map(|(node, warning)| format!("warning: {node}: {warning}\n")));
    let all_reached = matrix.pairs.iter().all(|pair| pair.reason.is_none());
    if !all_reached {
        text.push_str(&format!("failed logins:\n{}", login_table(matrix)));
    }
    let is_good = report.is_clean() && all_reached;
    let verdict = Verdict::of_check(is_good, report.rows.len(), failed);
    let logins = (!matrix.pairs.is_empty()).then(|| matrix.into());
    Outcome::new(verdict, text, KeysStatus { rotation: report.rotation.clone(), nodes, logins })
}

fn cells(row: &NodeKeys, matrix: &Matrix) -> Vec<String> {
    let unexpected = (!row.unexpected.is_empty()).then(|| format!("{}!", row.unexpected.join(", ")));
    let keys: Vec<String> = row.key.iter().map(|key| key.kind().to_string()).chain(unexpected).collect();
    let more = if row.further > 0 { format!(" +{}", row.further) } else { String::new() };
    let (reached, tried) = matrix.reached(&row.node);
    let modes: Vec<String> = row.modes.iter().map(ToString::to_string).collect();
    let yes = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
    vec![
        with_role(&row.node, row.master),
        cell((!keys.is_empty()).then(|| keys.join(", "))),
        cell(row.fingerprint.as_ref().map(|fingerprint| format!("{fingerprint}{more}"))),
        if modes.is_empty() { "ok".to_owned() } else { modes.join(", ") },
        row.agreed.map_or("?".to_owned(), yes),
        yes(row.pinned),
        cell((tried > 0).then(|| format!("{reached} of {tried}"))),
    ]
}
