//! `hvdctl env create`.

use crate::cli::EnvCreate;
use crate::cluster::each_node::NodeResults;
use crate::cluster::member::Member;
use crate::commands::Outcome;
use crate::commands::shared::context::{ConnectedNodes, Context, node_rows};
use crate::document::{NodeEntry, entries};
use crate::environment::make::{EnvRequest, GivenEnv};
use crate::environment::plan::{EnvStep, check_pythons, differences, differing_pythons};
use crate::environment::probe::{EnvProbe, Packages};
use crate::environment::source::PackageSource;
use crate::environment::wheels::WheelSet;
use crate::environment::{EnvPlace, check_name};
use crate::error::{Error, NodeError, Verdict};
use crate::event::Step;
use crate::text::units::{count, human};
use schemars::JsonSchema;
use serde::Serialize;

/// `env create`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct EnvCreateDocument {
    /// The directory of the virtualenv on each node.
    pub directory: String,
    /// The line for `activate` in the inventory that makes ranks use it.
    pub activate: String,
    /// The packages in which nodes differ, one text each.
    pub differences: Vec<String>,
    /// The nodes.
    pub nodes: Vec<NodeEntry<EnvCreateNode>>,
}

/// The virtualenv of a node.
#[derive(Debug, Serialize, JsonSchema)]
pub struct EnvCreateNode {
    /// True if it was made; false if the node already had it.
    pub changed: bool,
    /// The version of its Python.
    pub python: String,
    /// The program that installed the packages: `uv 0.9.1`.
    pub tool: String,
    /// The hash of the file, the options and the wheels, which is the same on all nodes.
    pub hash: String,
    /// The number of its packages, without pip and setuptools.
    pub packages: usize,
    /// Its size in bytes.
    pub size: u64,
    /// The bytes of the wheels that were sent.
    pub sent: u64,
}

/// `env create`.
pub async fn run(options: &EnvCreate, context: &Context) -> Result<Outcome, Error> {
    let Context { target, events, session, .. } = context;
    let (place, name) = (&EnvPlace::of(target.cluster())?, &options.name);
    check_name(name)?;
    let reading = async {
        let wheels = match &options.wheels {
            Some(directory) => WheelSet::read(directory).await?,
            None => WheelSet::default(),
        };
        Ok((PackageSource::read(options.file.as_deref(), options.wheels.is_some()).await?, wheels))
    };
    let (source, wheels) = session.cancellation.run(reading).await?;
    let python = options.python.as_deref().unwrap_or_default();
    let hash = source.hash(python, wheels.files.iter().map(|wheel| wheel.key.as_str()));
    let limit = Some(options.timeout).filter(|limit| !limit.is_zero());
    let request = EnvRequest { place, name, python, source: &source, wheels: &wheels, hash: &hash, limit };
    let ConnectedNodes { nodes, offline } = context.connect_or_skip(options.skip_offline).await?;
    let nodes = context.lock_each(nodes).await?;
    let (nodes, python) = decide(&request, nodes, context).await?;
    let give = async |(member, step, probe): (Member, EnvStep, EnvProbe)| {
        let Member { node, transport, .. } = &member;
        if step == EnvStep::Make {
            session.progress.record(&node.name, format!("started to create the virtualenv {name}"));
        }
        // where there is none, uv would install its latest one
        let request = match (&probe.python, &python) {
            (None, Some(python)) => EnvRequest { python, ..request },
            _ => request,
        };
        let given = request.give((step, probe), (node, transport), &session.cancellation, events).await?;
        if let Some(given) = &given {
            if given.is_new {
                session.progress.record(&node.name, format!("created the virtualenv {name}"));
            }
            session.progress.done(&node.name);
        }
        Ok((node.name.clone(), given))
    };
    session.cancellation.check()?;
    let NodeResults { ok, failed } = nodes.then(events, give).await;
    session.progress.failed(&failed);
    session.cancellation.check()?;
    let given = ok.into_iter().filter_map(|(node, given)| Some((node, given?))).collect();
    let is_activated = target.nodes().iter().all(|node| place.is_activated(name, node));
    let given = NodeResults { ok: given, failed };
    Ok(outcome((place, name), &given, &offline, is_activated))
}

/// Finds out what is done on each node, and which version of Python the nodes have that have one.
async fn decide(
    request: &EnvRequest<'_>,
    nodes: NodeResults<Member>,
    context: &Context,
) -> Result<(NodeResults<(Member, EnvStep, EnvProbe)>, Option<String>), Error> {
    let Context { events, session, .. } = context;
    let probe = async |member: Member| {
        let Member { node, transport, .. } = &member;
        let looking = request.probe(node, transport);
        let probe = events.step(&node.name, Step::read("looking for Python and uv"), looking).await?;
        let step = request.decide(&node.name, &probe)?;
        Ok((member, step, probe))
    };
    let nodes = session.cancellation.run(async { Ok(nodes.then(events, probe).await) }).await?;
    let version = |(member, step, probe): &(Member, EnvStep, EnvProbe)| {
        let version = match step {
            EnvStep::Keep => probe.runs.clone(),
            EnvStep::Make => probe.python.as_ref().map(|(version, _)| version.clone()),
        };
        Some((member.node.name.clone(), version?))
    };
    let versions: Vec<(String, String)> = nodes.ok.iter().filter_map(version).collect();
    let versions: Vec<(&str, &str)> =
        versions.iter().map(|(node, version)| (node.as_str(), version.as_str())).collect();
    let python = check_pythons(&versions)?.map(str::to_owned);
    Ok((nodes, python))
}

pub(crate) fn outcome(
    (place, name): (&EnvPlace, &str),
    given: &NodeResults<(String, GivenEnv)>,
    offline: &[NodeError],
    is_activated: bool,
) -> Outcome {
    let NodeResults { ok, failed } = given;
    let packages: Vec<(&str, &Packages)> = ok.iter().map(|(node, given)| (node.as_str(), &given.packages)).collect();
    let pythons: Vec<(&str, &str)> =
        ok.iter().map(|(node, given)| (node.as_str(), given.made.python.as_str())).collect();
    let python = differing_pythons(&pythons).map(|versions| format!("Python: {versions}"));
    let differences: Vec<String> = python.iter().cloned().chain(differences(&packages)).collect();
    let nodes: Vec<NodeEntry<EnvCreateNode>> = ok.iter().map(|(node, given)| entry(node, given)).collect();
    let mut text = node_rows(&nodes, |node| {
        let EnvCreateNode { changed, python, tool, packages, size, .. } = node;
        let done = if *changed { "made" } else { "unchanged" };
        format!("{done}: Python {python}, {}, {} ({tool})", count(*packages, "package"), human(*size))
    });
    differences.iter().for_each(|row| text += &format!("differs: {row}\n"));
    if python.is_some() {
        text += "hint: name a version for all nodes, e.g. --python 3.12\n";
    } else if !differences.is_empty() {
        text +=
            "hint: pin the versions, e.g. with uv pip compile FILE -o pylock.toml, and run env create pylock.toml\n";
    }
    let activate = place.activation(name);
    if !ok.is_empty() && !is_activated {
        text += &format!("add to [defaults] in the inventory: activate = [\"{activate}\"]\n");
    }
    let verdict = Verdict::of_check(differences.is_empty(), ok.len(), failed);
    let nodes = entries(nodes, failed).into_iter().chain(offline.iter().map(NodeEntry::skipped)).collect();
    Outcome::new(verdict, text, EnvCreateDocument { directory: place.directory(name), activate, differences, nodes })
}

fn entry(node: &str, given: &GivenEnv) -> NodeEntry<EnvCreateNode> {
    let GivenEnv { is_new: changed, made, packages, sent } = given;
    let details = EnvCreateNode {
        changed: *changed,
        python: made.python.clone(),
        tool: made.tool.clone(),
        hash: made.hash.clone(),
        packages: packages.len(),
        size: made.size,
        sent: *sent,
    };
    NodeEntry::new(node, true, details)
}
