//! `hvdctl grade`.

use crate::cli;
use crate::cluster::each_node::NodeResults;
use crate::cluster::member::Member;
use crate::cluster::observation::facts;
use crate::commands::Outcome;
use crate::commands::check::pool::pool_of;
use crate::commands::shared::context::Context;
use crate::commands::shared::recording;
use crate::document::{NodeEntry, entries};
use crate::error::{Error, NodeError, Verdict};
use crate::event::Events;
use crate::grade::assessment::{Area, Assessment, Evidence, assess};
use crate::grade::evidence::NodeEvents;
use crate::grade::evidence::jobs::unrecorded;
use crate::grade::storage as ledger;
use crate::inventory::Node;
use crate::job::manage;
use crate::model::grade::{Grade, NodeGrade, NodeKind};
use crate::node::facts::Facts;
use crate::pool::publish::{Publication, Publisher, Submission};
use crate::text::nodeset;
use crate::text::result::ResultText;
use crate::text::table::{Column, Table, cell, key, note};
use crate::text::units::count;
use schemars::JsonSchema;
use serde::Serialize;

/// `grade`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct GradeDocument {
    /// The nodes.
    pub nodes: Vec<NodeEntry<GradedNode>>,
    /// The reason why `--publish` did not write a file for each graded node; null if it did, and without `--publish`.
    pub publish_error: Option<String>,
}

/// A node with its grade.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct GradedNode {
    /// The kind of the node, which is compared with the others of its kind.
    pub kind: NodeKind,
    /// The grade; `new` if nothing is recorded for the node.
    pub grade: Grade,
    /// The score behind the grade, from 0 to 1; null if it is new.
    pub score: Option<f64>,
    /// The reasons why the score is not 1, the heaviest first.
    pub reasons: Vec<String>,
    /// The scores of which it is the weighted mean.
    pub areas: Areas,
    /// The number of recorded checks, benchmarks and jobs on which the grade is based.
    pub evidence: u32,
    /// Its measured speed relative to the fastest node that was graded with it, from 0 to 1; null if it was never
    /// measured.
    pub speed: Option<f64>,
    /// The recorded jobs that had ranks on it.
    pub jobs: usize,
    /// The number of them that were lost because of it.
    pub lost: usize,
    /// The hours for which jobs had its GPUs, times their number.
    pub gpu_hours: f64,
    /// The number of its restarts.
    pub restarts: usize,
    /// The number of changes of its driver.
    pub driver_changes: usize,
    /// The name of its file in the pool; null without `--publish`.
    pub published_as: Option<String>,
}

/// The score of each area from 0 to 1; null if nothing is known of it.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Areas {
    /// The checks of `verify`, `doctor` and `bench`.
    pub health: Option<f64>,
    /// The jobs that were not lost because of it.
    pub reliability: Option<f64>,
    /// The bandwidths at which it sends and receives.
    pub network: Option<f64>,
    /// The speed of its devices.
    pub compute: Option<f64>,
    /// The rarity of its restarts.
    pub uptime: Option<f64>,
}

/// `grade`.
pub async fn run(options: &cli::Grade, context: &Context) -> Result<Outcome, Error> {
    let Context { target, events, session, .. } = context;
    // what is missing for it is found before any node is contacted
    let publisher = match options.publish {
        true => Some(Publisher::new(pool_of(context)?, target.cluster(), events)?),
        false => None,
    };
    let reading = async {
        let members = context.connect().await?;
        let read = async |member: Member| {
            let cluster = target.cluster();
            let (facts, ledger) = tokio::join!(facts(cluster, &member), ledger::read(cluster, &member, events));
            let facts = facts?;
            Ok((ledger::evidence(&member, &facts, ledger?, events), (member.node, facts)))
        };
        Ok(members.then(events, read).await)
    };
    let NodeResults { ok, failed } = session.cancellation.run(reading).await?;
    let (mut nodes, observed): (Vec<Evidence>, Vec<(Node, Facts)>) = ok.into_iter().unzip();
    let found = session.cancellation.run(unrecorded_jobs(context, &nodes)).await?;
    for node in &mut nodes {
        node.ledger.add_now(found.get(&node.node).into_iter().flatten());
    }
    recording::record(context, found).await;
    let assessed = assess(&nodes);
    let publication = match &publisher {
        Some(publisher) => publisher.publish(&submissions(&assessed, &observed), context.site()).await.map(Some),
        None => Ok(None),
    };
    Ok(outcome(assessed, &failed, publication))
}

/// Returns each graded node with what was observed of it.
fn submissions<'a>(assessed: &'a [Assessment], observed: &'a [(Node, Facts)]) -> Vec<Submission<'a>> {
    let of = |grade: &'a NodeGrade| {
        let (node, facts) = observed.iter().find(|(node, _)| node.name == grade.node)?;
        Some(Submission { node, facts, grade })
    };
    assessed.iter().filter_map(|assessed| of(&assessed.grade)).collect()
}

/// Returns the jobs that have ended and are not recorded on these nodes: no one watched them, or the node did not
/// answer at their end.
async fn unrecorded_jobs(context: &Context, nodes: &[Evidence]) -> Result<NodeEvents, Error> {
    let Context { target, fleet, .. } = context;
    let names = nodes.iter().map(|node| node.node.clone());
    // a node whose jobs cannot be listed has a grade all the same
    let (quiet, _) = Events::channel();
    let target = target.only(names);
    let list = manage::list(&target, fleet, &quiet).await?;
    Ok(unrecorded(nodes, &list.jobs))
}

/// `publication`: what `--publish` has written, or why it has not; the grades are shown all the same.
pub(in crate::commands) fn outcome(
    assessed: Vec<Assessment>,
    failed: &[NodeError],
    publication: Result<Option<Publication>, Error>,
) -> Outcome {
    let (publication, published) = match publication.map(Option::unwrap_or_default) {
        Ok(publication) => {
            let published = match nodeset::fold(&publication.unpublished) {
                none if none.is_empty() => Ok(()),
                nodes => Err(Error::check(format!("{nodes} not published"), "see the warnings above")),
            };
            (publication, published)
        }
        Err(error) => (Publication::default(), Err(error)),
    };
    let mut text = tables(&assessed, failed);
    text.push_str(&publication.text);
    let verdict = Verdict::Nodes { done: assessed.len(), failed };
    let file = |node: &str| publication.files.get(node).cloned();
    let entry = |assessed: Assessment| {
        let file = file(&assessed.grade.node);
        entry(assessed, file)
    };
    let nodes = entries(assessed.into_iter().map(entry), failed);
    let publish_error = published.as_ref().err().map(ToString::to_string);
    Outcome::new(verdict, text, GradeDocument { nodes, publish_error }).with_failure(published)
}

fn entry(assessed: Assessment, published_as: Option<String>) -> NodeEntry<GradedNode> {
    let Assessment { grade, areas, jobs, lost, gpu_hours, restarts, driver_changes } = assessed;
    let NodeGrade { node, kind, grade, score, reasons, evidence, speed } = grade;
    let area = |area| areas.get(&area).copied();
    let areas = Areas {
        health: area(Area::Health),
        reliability: area(Area::Reliability),
        network: area(Area::Network),
        compute: area(Area::Compute),
        uptime: area(Area::Uptime),
    };
    let details = GradedNode {
        kind,
        grade,
        score,
        reasons,
        areas,
        evidence,
        speed,
        jobs,
        lost,
        gpu_hours,
        restarts,
        driver_changes,
        published_as,
    };
    NodeEntry::new(&node, true, details)
}

/// Formats a table for each kind, that of the best node first, and then the nodes that failed.
fn tables(assessed: &[Assessment], failed: &[NodeError]) -> ResultText {
    let mut kinds: Vec<&NodeKind> = Vec::new();
    for assessed in assessed {
        if !kinds.contains(&&assessed.grade.kind) {
            kinds.push(&assessed.grade.kind);
        }
    }
    let mut text = ResultText::default();
    for kind in kinds {
        let of_kind: Vec<&NodeGrade> =
            assessed.iter().map(|assessed| &assessed.grade).filter(|g| g.kind == *kind).collect();
        let separator = if text.is_empty() { "" } else { "\n" };
        text.push_str(&format!("{separator}{}: {kind}\n", count(of_kind.len(), "node")));
        text.push(Table::new(COLUMNS, of_kind.into_iter().map(row)));
    }
    if !failed.is_empty() {
        let state = |error: &NodeError| if error.is_unreachable() { "unreachable" } else { "failed" };
        text.push_str(if text.is_empty() { "" } else { "\n" });
        let rows = failed.iter().map(|error| vec![error.node.clone(), state(error).to_owned()]);
        text.push(Table::new([key("NODE"), key("STATE")], rows));
    }
    text
}

const COLUMNS: [Column; 5] = [key("GRADE"), key("NODE"), key("SCORE"), key("EVIDENCE"), note("REASONS")];

fn row(grade: &NodeGrade) -> Vec<String> {
    let NodeGrade { node, grade, score, reasons, evidence, .. } = grade;
    let score = cell(score.map(|score| format!("{score:.2}")));
    vec![grade.to_string(), node.clone(), score, evidence.to_string(), reasons.join("; ")]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grade::ledger::{Entry, Ledger, LedgerEvent};

    #[test]
    fn reasons_fit_the_terminal() {
        console::set_colors_enabled(false);
        let failed = "nvidia-smi: nvidia-smi -q failed: no answer within 20 s";
        let entry = |time, event| Entry { time, event };
        let ledger = Ledger {
            entries: vec![
                entry(1.0, LedgerEvent::System { boot: "b0".into(), driver: String::new(), booted: 0.0 }),
                entry(1.0, LedgerEvent::check("doctor", vec![failed.into()], Vec::new())),
            ],
            now: 2.0,
            ..Ledger::default()
        };
        let nodes = [Evidence { node: "node1".into(), ledger, ..Evidence::default() }];
        let shown = |columns| tables(&assess(&nodes), &[]).fitted(columns);
        let whole = "F      node1  0.25   1         health: the latest doctor failed: ".to_owned() + failed + "\n";
        assert!(shown(None).ends_with(&whole) && shown(Some(200)).ends_with(&whole));
        insta::assert_snapshot!(shown(Some(60)));
        insta::assert_snapshot!(shown(Some(40)));
    }
}
