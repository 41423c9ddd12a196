//! The grades of nodes, from what their ledgers record. docs/reference/grade.md explains the rule to users.

use crate::gpus::health::Reading;
use crate::grade::ledger::{Entry, Figure, Ledger, LedgerEvent};
use crate::inventory;
use crate::model::grade::{Grade, NodeGrade, NodeKind};
use crate::node::facts::Facts;
use crate::node::gpus::Gpu;
use crate::node::network;
use crate::text::units::count;
use crate::text::visible::one_line;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Seconds of a day.
const DAY: f64 = 86_400.0;

/// The age, in seconds, by which an entry counts half.
const HALF_LIFE: f64 = 30.0 * DAY;

/// The age, in seconds, from which an entry does not count.
const FORGOTTEN: f64 = 180.0 * DAY;

/// The margin by which a node can be better than its worst area: five good areas do not make up for one that makes it
/// useless.
const ABOVE_WORST: f64 = 0.3;

/// The score of a check that has a warning and no failure.
const WARNED: f64 = 0.8;

/// Figures that are lower than this share of the best count as lower. Two measurements of one node differ by less.
const AS_FAST: f64 = 0.9;

/// The newest figures, of which the median counts.
const FIGURES: usize = 9;

/// The cost of each restart after the first one, and the score that any number of restarts leaves: a restart is not
/// always a fault.
const RESTART: f64 = 0.1;
const RESTARTED: f64 = 0.4;

/// The lowest scores of the grades.
const LETTERS: [(f64, Grade); 4] = [(0.95, Grade::A), (0.85, Grade::B), (0.7, Grade::C), (0.5, Grade::D)];

/// The most characters of a reason.
const REASON: usize = 100;

/// The evidence about a node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Evidence {
    /// Its name.
    pub node: String,
    /// Its kind.
    pub kind: NodeKind,
    /// Its ledger.
    pub ledger: Ledger,
}

/// An area in which a node is good or bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Area {
    /// The checks of `verify`, `doctor` and `bench`.
    Health,
    /// The jobs that were not lost because of it.
    Reliability,
    /// The bandwidths at which it sends and receives.
    Network,
    /// The speed of its devices.
    Compute,
    /// The rarity of its restarts.
    Uptime,
}

impl Area {
    /// Returns what the area counts among those that are known. All together are 1.
    pub fn weight(self) -> f64 {
        match self {
            Area::Health => 0.3,
            Area::Reliability => 0.25,
            Area::Network | Area::Compute => 0.175,
            Area::Uptime => 0.1,
        }
    }
}

impl fmt::Display for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Area::Health => "health",
            Area::Reliability => "reliability",
            Area::Network => "network",
            Area::Compute => "compute",
            Area::Uptime => "uptime",
        })
    }
}

/// A node's grade, and what it follows from.
#[derive(Debug, Clone, PartialEq)]
pub struct Assessment {
    /// The grade.
    pub grade: NodeGrade,
    /// The score of each area that something is known of, from 0 to 1.
    pub areas: BTreeMap<Area, f64>,
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
}

/// Returns what kind of node it is, by the GPUs that jobs can get there. `driver`: the version of its NVIDIA driver;
/// empty without one.
pub fn kind(node: &inventory::Node, facts: &Facts, driver: &str) -> NodeKind {
    let gpus = chosen(node, facts);
    let names: BTreeSet<&str> = gpus.iter().map(|gpu| gpu.name.as_str()).collect();
    let gpu = (!names.is_empty()).then(|| names.into_iter().collect::<Vec<_>>().join(" + "));
    NodeKind {
        gpu_memory_mib: gpus.iter().filter_map(|gpu| gpu.memory_mib.known()).min().copied(),
        driver: driver.split('.').next().and_then(|first| first.parse().ok()).filter(|_| gpu.is_some()),
        gpu,
        gpus: gpus.len() as u32,
        cores: facts.cores,
    }
}

/// Returns why a node's kind is not known for certain: `nvidia-smi` fails, or does not say how much memory a GPU has.
pub fn unknown_kind(node: &inventory::Node, facts: &Facts) -> Option<String> {
    let failure = network::gpu_failure(node, facts).map(|message| format!("nvidia-smi failed: {message}"));
    let unread = || {
        chosen(node, facts).into_iter().find_map(|gpu| match &gpu.memory_mib {
            Reading::Failed(text) => Some(format!("cannot read the memory of GPU {}: {text}", gpu.index)),
            Reading::Known(_) | Reading::Absent => None,
        })
    };
    failure.or_else(unread)
}

/// Returns the GPUs that jobs can get on a node, those of which they get MIG devices included.
fn chosen<'a>(node: &inventory::Node, facts: &'a Facts) -> Vec<&'a Gpu> {
    let mut gpus: Vec<&Gpu> = network::chosen_gpus(node, facts).iter().map(|device| device.gpu).collect();
    gpus.dedup_by_key(|gpu| gpu.index);
    gpus
}

/// Grades nodes, the best first. They are compared with those of their kind among these. It depends on nothing but the
/// ledgers and the nodes' own clocks, so that every operator gets the same grades.
pub fn assess(nodes: &[Evidence]) -> Vec<Assessment> {
    let nodes: Vec<AssessedNode<'_>> = nodes.iter().map(AssessedNode::new).collect();
    let mut assessed: Vec<Assessment> = nodes.iter().map(|node| node.assess(&nodes)).collect();
    // a node of which nothing is known comes after those that are known to be usable
    let group = |grade: Grade| match grade {
        Grade::A | Grade::B | Grade::C => 0,
        Grade::New => 1,
        Grade::D | Grade::F => 2,
    };
    assessed.sort_by(|a, b| {
        let (a, b) = (&a.grade, &b.grade);
        let scores = b.score.unwrap_or_default().total_cmp(&a.score.unwrap_or_default());
        let key = group(a.grade).cmp(&group(b.grade)).then(scores);
        key.then(b.evidence.cmp(&a.evidence)).then(a.node.cmp(&b.node))
    });
    assessed
}

/// Returns the speed of each of these nodes relative to the fastest of them whose speed was measured in the same way,
/// from 0 to 1. `None` for one that was never measured.
pub fn speeds(nodes: &[Evidence]) -> Vec<Option<f64>> {
    let nodes: Vec<AssessedNode<'_>> = nodes.iter().map(AssessedNode::new).collect();
    nodes.iter().map(|node| node.speed(&nodes)).collect()
}

/// The score of an area, and why it is not 1.
struct Score {
    value: f64,
    reason: String,
}

/// A node with those of its entries that count.
struct AssessedNode<'a> {
    evidence: &'a Evidence,
    entries: Vec<&'a Entry>,
    /// The figures that it is compared by.
    figures: BTreeMap<Figure, f64>,
}

impl<'a> AssessedNode<'a> {
    fn new(evidence: &'a Evidence) -> AssessedNode<'a> {
        let counts = |entry: &&Entry| evidence.ledger.age(entry) < FORGOTTEN;
        let entries: Vec<&Entry> = evidence.ledger.entries.iter().filter(counts).collect();
        let mut figures: BTreeMap<Figure, Vec<f64>> = BTreeMap::new();
        for entry in &entries {
            if let LedgerEvent::Bench { figures: measured } = &entry.event {
                // anything may be in a file
                let measured = measured.iter().filter(|(_, value)| value.is_finite() && **value > 0.0);
                measured.for_each(|(figure, value)| figures.entry(*figure).or_default().push(*value));
            }
        }
        let figures = figures.into_iter().map(|(figure, values)| (figure, representative(&values))).collect();
        AssessedNode { evidence, entries, figures }
    }

    /// Returns what an entry counts by its age.
    fn weight(&self, entry: &Entry) -> f64 {
        0.5_f64.powf(self.evidence.ledger.age(entry) / HALF_LIFE)
    }

    /// Returns the mean of these values, by the ages of their entries.
    fn mean(&self, values: &[(&Entry, f64)]) -> f64 {
        let weights: f64 = values.iter().map(|(entry, _)| self.weight(entry)).sum();
        values.iter().map(|(entry, value)| self.weight(entry) * value).sum::<f64>() / weights
    }

    fn assess(&self, all: &[AssessedNode<'_>]) -> Assessment {
        let Evidence { node, kind, ledger } = self.evidence;
        let is_system = |entry: &&&Entry| matches!(entry.event, LedgerEvent::System { .. });
        let evidence = self.entries.len() - self.entries.iter().filter(is_system).count();
        let peers: Vec<&AssessedNode<'_>> = all.iter().filter(|other| other.evidence.kind == *kind).collect();
        let scores = [
            (Area::Health, self.health()),
            (Area::Reliability, self.reliability()),
            (Area::Network, self.compare(&peers, &[Figure::Send, Figure::Receive])),
            (Area::Compute, self.compare(&peers, &[self.device()])),
            (Area::Uptime, self.uptime()),
        ];
        let scores = scores.into_iter().filter_map(|(area, score)| Some((area, score?))).filter(|_| evidence > 0);
        let mut scores: Vec<(Area, Score)> = scores.collect();
        let areas: BTreeMap<Area, f64> = scores.iter().map(|(area, score)| (*area, score.value)).collect();
        let total = (evidence > 0).then(|| total(&areas));
        scores.sort_by(|(a, x), (b, y)| (b.weight() * (1.0 - y.value)).total_cmp(&(a.weight() * (1.0 - x.value))));
        let reason = |(area, score): (Area, Score)| {
            (score.value < 1.0).then(|| one_line(&format!("{area}: {}", score.reason), REASON))
        };
        let letter =
            |score: f64| LETTERS.iter().find(|(least, _)| score >= *least).map_or(Grade::F, |(_, grade)| *grade);
        let lost = |entry: &&&Entry| matches!(&entry.event, LedgerEvent::Job { lost: Some(_), .. });
        Assessment {
            grade: NodeGrade {
                node: node.clone(),
                kind: kind.clone(),
                grade: total.map_or(Grade::New, letter),
                score: total.map(rounded),
                reasons: scores.into_iter().filter_map(reason).collect(),
                evidence: evidence as u32,
                speed: self.speed(all).map(rounded),
            },
            areas: areas.into_iter().map(|(area, score)| (area, rounded(score))).collect(),
            jobs: self.entries.iter().filter(|entry| matches!(entry.event, LedgerEvent::Job { .. })).count(),
            lost: self.entries.iter().filter(lost).count(),
            gpu_hours: rounded(ledger.gpu_hours(kind.gpus)),
            restarts: ledger.restarts().len(),
            driver_changes: ledger.driver_changes(),
        }
    }

    /// Half of it are the latest results, of which the worst counts, and half of it all results.
    fn health(&self) -> Option<Score> {
        let mut results: Vec<(&Entry, f64)> = Vec::new();
        let mut latest: BTreeMap<&str, (f64, String)> = BTreeMap::new();
        for entry in &self.entries {
            let LedgerEvent::Check { by, failed, warned } = &entry.event else { continue };
            let (score, found) = match (failed.first(), warned.first()) {
                (Some(text), _) => (0.0, format!("the latest {by} failed: {text}")),
                (None, Some(text)) => (WARNED, format!("the latest {by} warned: {text}")),
                (None, None) => (1.0, String::new()),
            };
            results.push((entry, score));
            latest.insert(by, (score, found));
        }
        let (worst, found) = latest.into_values().min_by(|a, b| a.0.total_cmp(&b.0))?;
        let number = |of: f64| results.iter().filter(|(_, score)| *score == of).count();
        let checks = count(results.len(), "check");
        let reason = match (worst < 1.0, number(0.0)) {
            (true, _) => found,
            (false, 0) => format!("{} of {checks} had warnings", number(WARNED)),
            (false, failed) => format!("{failed} of {checks} failed"),
        };
        Some(Score { value: (worst + self.mean(&results)) / 2.0, reason })
    }

    /// The share of jobs that were not lost because of the node, as if one more had gone well: a single one does not
    /// say everything.
    fn reliability(&self) -> Option<Score> {
        let (mut all, mut good, mut jobs, mut lost) = (1.0, 1.0, 0, Vec::new());
        for entry in &self.entries {
            let LedgerEvent::Job { lost: why, .. } = &entry.event else { continue };
            let weight = self.weight(entry);
            (all, jobs) = (all + weight, jobs + 1);
            match why {
                Some(why) => lost.push(why),
                None => good += weight,
            }
        }
        let reason = lost.last().map(|why| format!("lost {} of {}: {why}", lost.len(), count(jobs, "job")));
        (jobs > 0).then(|| Score { value: good / all, reason: reason.unwrap_or_default() })
    }

    /// One restart in the time by which entries count half is free.
    fn uptime(&self) -> Option<Score> {
        let ledger = &self.evidence.ledger;
        let is_system = |entry: &&Entry| matches!(entry.event, LedgerEvent::System { .. });
        let since = self.entries.iter().find(|entry| is_system(entry))?;
        let ages: Vec<f64> =
            ledger.restarts().iter().map(|time| (ledger.now - time).max(0.0)).filter(|age| *age < FORGOTTEN).collect();
        let restarts: f64 = ages.iter().map(|age| 0.5_f64.powf(age / HALF_LIFE)).sum();
        let value = (1.0 - RESTART * (restarts - 1.0).max(0.0)).max(RESTARTED);
        let days = (ledger.age(since) / DAY).ceil().max(1.0) as usize;
        Some(Score { value, reason: format!("{} in {}", count(ages.len(), "restart"), count(days, "day")) })
    }

    /// The lowest of these figures as a share of the best one of the kind. A node that is alone has nothing to be
    /// compared with.
    fn compare(&self, peers: &[&AssessedNode<'_>], figures: &[Figure]) -> Option<Score> {
        let share = |figure: &Figure| {
            let own = self.figures.get(figure)?;
            let of_peers: Vec<f64> = peers.iter().filter_map(|peer| peer.figures.get(figure).copied()).collect();
            (of_peers.len() > 1).then(|| (*figure, own / of_peers.into_iter().fold(*own, f64::max)))
        };
        let (figure, share) = figures.iter().filter_map(share).min_by(|(_, a), (_, b)| a.total_cmp(b))?;
        let percent = match (share * 100.0).floor() {
            0.0 => "less than 1 %".to_owned(),
            percent => format!("{percent:.0} %"),
        };
        let what = match figure {
            Figure::Send => "sends",
            Figure::Receive => "receives",
            Figure::Product | Figure::Processor => "computes",
        };
        let reason = format!("{what} {percent} of the fastest of its kind");
        Some(Score { value: if share >= AS_FAST { 1.0 } else { share }, reason })
    }

    /// Returns by what the node's speed is compared: a processor says nothing of GPUs.
    fn device(&self) -> Figure {
        match self.evidence.kind.gpu {
            None if !self.figures.contains_key(&Figure::Product) => Figure::Processor,
            _ => Figure::Product,
        }
    }

    /// Returns its speed relative to the fastest node whose speed was measured in the same way.
    fn speed(&self, all: &[AssessedNode<'_>]) -> Option<f64> {
        let figure = self.device();
        let own = self.figures.get(&figure)?;
        Some(own / all.iter().filter_map(|node| node.figures.get(&figure).copied()).fold(*own, f64::max))
    }
}

/// Returns the mean of the areas by their weights, but not much more than the worst of them.
fn total(areas: &BTreeMap<Area, f64>) -> f64 {
    let weights: f64 = areas.keys().map(|area| area.weight()).sum();
    let mean = areas.iter().map(|(area, score)| area.weight() * score).sum::<f64>() / weights;
    mean.min(areas.values().copied().fold(1.0, f64::min) + ABOVE_WORST)
}

/// Returns the median of the newest values or the last one, whichever is lower: one good measurement does not make up
/// for bad ones, and a node that has become slow is slow.
fn representative(values: &[f64]) -> f64 {
    let last = values.last().copied().unwrap_or_default();
    let mut newest = values[values.len().saturating_sub(FIGURES)..].to_vec();
    newest.sort_by(f64::total_cmp);
    newest.get(newest.len() / 2).copied().unwrap_or_default().min(last)
}

/// Rounds to three decimals, which are the same on every machine.
fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests;
