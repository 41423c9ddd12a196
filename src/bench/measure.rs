//! `bench`: measures the network between the workers, every pair in both directions, and what each node knows of
//! itself. `schedule` says which pairs are measured at once, the rules of the verdict what is measured again.

mod past;
mod program;
pub mod rank_program;
pub mod schedule;

use crate::bench::measurements::{Direction, Measurements, NodeEvidence};
use crate::bench::verdict::{blame, evidence};
use crate::cluster::each_node::{all, each_node, for_each_node};
use crate::cluster::observation::ObservedNode;
use crate::error::{Error, NodeError};
use crate::event::{Events, Phase, Step};
use crate::inventory::Inventory;
use crate::node::network::{self, Endpoint};
use crate::random;
use crate::runtime::container::running_worker;
pub use past::Past;
use program::{MeasuringProgram, MeasuringRequest};
use std::time::Duration;

/// The time for which each direction of a pair is measured with each number of streams.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// The time in which connections get up to speed, and which does not count.
    warm: Duration,
    /// The time that counts.
    counted: Duration,
}

impl Pace {
    /// Eight nodes are done within 30 s.
    pub const DEFAULT: Pace = Pace { warm: Duration::from_millis(100), counted: Duration::from_millis(400) };
    /// Two nodes are done within 10 s.
    pub const QUICK: Pace = Pace { warm: Duration::from_millis(50), counted: Duration::from_millis(200) };
}

/// A node on which the program has a processor for less than this share of the time is busy, perhaps only for a moment.
const BUSY: f64 = 0.9;

/// A node whose worker can measure.
struct MeasuringWorker<'a> {
    observed: &'a ObservedNode,
    worker: &'a str,
    endpoint: Endpoint,
}

/// Measures the network between these nodes, one round of disjoint pairs after the other, and what looks slow again,
/// also compared with what was measured in the past. A pair that cannot be measured is in the result.
///
/// # Errors
/// A node whose worker is not up or cannot measure; then nothing has been measured.
pub async fn measure(
    inventory: &Inventory,
    nodes: &[ObservedNode],
    pace: Pace,
    past: &Past,
    events: &Events,
) -> Result<Measurements, Error> {
    let places = all(events, nodes.iter().map(|node| place(inventory, node)).collect())?;
    let rounds = schedule::rounds(places.len());
    let cluster = &inventory.cluster;
    let request = MeasuringRequest {
        token: random::token(),
        answer_limit: cluster.connect_timeout,
        step_limit: cluster.command_timeout,
        pace,
        // each round may take its time and be repeated, and a program that is left behind ends after that
        rounds: u32::try_from((rounds.len() + blame::ALONE.0) * (1 + blame::AGAIN) + 1).unwrap_or(u32::MAX),
    };
    events.phase(Phase::StartingMeasurement);
    let started = each_node(places, events, async |place: MeasuringWorker<'_>| {
        MeasuringProgram::start(&request, &place, events).await
    });
    let mut programs = started.await.all()?;

    events.phase(Phase::MeasuringProcessors);
    let shown = each_node(programs.iter_mut().collect(), events, async |program: &mut MeasuringProgram| {
        let _step = events.begin(program.name(), Step::read("measuring its processor"));
        program.evidence().await
    });
    let evidence: Vec<NodeEvidence> = shown.await.all()?;
    let mut measured = Measurements { nodes: evidence, directions: Vec::new(), past: past.bandwidths(nodes) };
    for _ in 0..blame::AGAIN {
        measure_busy(&mut programs, &mut measured.nodes, events).await;
    }
    measure_alone(&mut programs, &mut measured, events).await;
    for (index, round) in rounds.iter().enumerate() {
        events.phase(Phase::MeasuringConnections { round: index + 1, rounds: rounds.len() });
        measured.directions.extend(measure_round(&mut programs, round, &measured.nodes, events).await);
    }
    for _ in 0..blame::AGAIN {
        let suspects = blame::suspects(&measured);
        if suspects.count() == 0 {
            break;
        }
        events.phase(Phase::MeasuringAgain { connections: suspects.count() });
        for round in suspects.rounds() {
            measured.directions.extend(measure_round(&mut programs, &round, &measured.nodes, events).await);
        }
    }
    let ended = for_each_node(programs, async |mut program: MeasuringProgram| {
        let after = program.link().await.ok();
        program.end().await;
        after
    });
    measured.nodes.iter_mut().zip(ended.await).for_each(|(node, after)| node.after = after);
    Ok(measured)
}

/// Measures the nodes of an encrypted network without it, quickly.
///
/// # Errors
/// As [`measure`]. That nodes do not reach each other so is in the result.
pub async fn measure_outside(
    inventory: &Inventory,
    nodes: &[ObservedNode],
    events: &Events,
) -> Result<Measurements, Error> {
    let mut nodes = nodes.to_vec();
    nodes.iter_mut().for_each(|node| node.member.node.interface = None);
    measure(&inventory.outside_network(), &nodes, Pace::QUICK, &Past::forgotten(nodes.len()), events).await
}

/// Measures the processors again of nodes where the program did not have one all the time, and keeps the better result:
/// what disturbs a measurement for a moment says nothing of the node. Where most nodes are busy, none is slower than
/// the others for that.
async fn measure_busy(programs: &mut [MeasuringProgram], nodes: &mut [NodeEvidence], events: &Events) {
    let is_busy = |node: &NodeEvidence| node.compute.is_some_and(|compute| compute.share < BUSY);
    let is_shared = |node: &&NodeEvidence| node.compute.is_some_and(|compute| compute.share < evidence::SHARED);
    if 2 * nodes.iter().filter(is_shared).count() > nodes.len() {
        return;
    }
    let busy = programs.iter_mut().zip(nodes).filter(|(_, node)| is_busy(node));
    for_each_node(busy.collect(), async |(program, node): (&mut MeasuringProgram, &mut NodeEvidence)| {
        let _step = events.begin(&node.name, Step::read("measuring its processor again"));
        let again = program.compute().await.ok();
        node.compute = node.compute.into_iter().chain(again).max_by(|a, b| a.share.total_cmp(&b.share));
    })
    .await;
}

/// Measures the processors that look slow or busy once more, one after the other: nodes may share what they measured at
/// the same time.
async fn measure_alone(programs: &mut [MeasuringProgram], measured: &mut Measurements, events: &Events) {
    let is_suspect = |node: &usize| !evidence::processor(measured, *node).is_empty();
    let suspects: Vec<usize> = (0..programs.len()).filter(is_suspect).take(blame::ALONE.0).collect();
    for node in suspects {
        let name = &measured.nodes[node].name;
        let _step = events.begin(name, Step::read("measuring its processor again"));
        let again = programs[node].compute().await.ok();
        let compute = &mut measured.nodes[node].compute;
        *compute = (*compute).into_iter().chain(again).max_by(|a, b| a.share.total_cmp(&b.share));
    }
}

/// Measures both directions of disjoint pairs at once.
async fn measure_round(
    programs: &mut [MeasuringProgram],
    round: &[(usize, usize)],
    nodes: &[NodeEvidence],
    events: &Events,
) -> Vec<Direction> {
    let others: Vec<_> = programs.iter().map(|program| (program.address(), program.port())).collect();
    let asked = programs.iter_mut().enumerate().filter_map(|(from, program)| {
        let (_, to) = round.iter().find(|(asked, _)| *asked == from)?;
        Some((program, from, *to))
    });
    let measured =
        for_each_node(asked.collect(), async |(program, from, to): (&mut MeasuringProgram, usize, usize)| {
            let step = Step::read("measuring a connection");
            let _steps = [from, to].map(|node| events.begin(&nodes[node].name, step.clone()));
            let mtu = |node: usize| nodes[node].before.as_ref().and_then(|link| link.mtu);
            let mtu = mtu(from).into_iter().chain(mtu(to)).min();
            program.measure((from, to), others[to], mtu).await
        });
    let mut measured = measured.await.concat();
    measured.iter_mut().for_each(|direction| direction.alone = round.len() == 1);
    measured
}

fn place<'a>(inventory: &Inventory, observed: &'a ObservedNode) -> Result<MeasuringWorker<'a>, NodeError> {
    let failed = |why: &str| NodeError::failed(observed.name(), program::OPERATION, why);
    let worker = running_worker(&inventory.cluster, &observed.runtime.containers)
        .ok_or_else(|| failed("its worker is not running").hint("hvdctl up"))?;
    let endpoint = network::place(inventory, &observed.member.node, &observed.facts).map_err(|why| failed(&why))?;
    Ok(MeasuringWorker { observed, worker: &worker.id, endpoint })
}
