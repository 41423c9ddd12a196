//! The measurements of a benchmark's ranks, and the wrong results and slow ranks among them.

use super::collectives::{Collectives, Exchange, WrongResult};
use super::recorded::{of_ranks, of_speeds};
use super::verdict::answers::Answers;
use super::verdict::speeds::Straggler;
use crate::grade::evidence::{NodeEvents, joined};
use crate::model::collective::{Collective, Dtype, Estimate, ModelEstimate, format_size};
use crate::text::units::count;
use std::collections::BTreeMap;
use std::time::Duration;

/// The results of a benchmark's ranks.
#[derive(Debug, Clone, Default)]
pub struct RankResults {
    /// Their answers.
    pub answers: Answers,
    /// The nodes of the job, in rank order.
    pub nodes: Vec<String>,
    /// The reason why the job failed or a rank did not finish.
    pub failure: Option<String>,
    /// The estimated cost of a training step of the model of `--params`.
    pub estimate: Option<ModelEstimate>,
    /// The ranks whose devices are slow.
    pub stragglers: Vec<Straggler>,
    /// Set if jobs of other clusters ran on its nodes.
    pub is_disturbed: bool,
}

/// A model that is to be trained.
#[derive(Debug, Clone, Copy)]
pub struct TrainedModel {
    /// The number of its parameters.
    pub params: u64,
    /// The type of their gradients.
    pub dtype: Dtype,
    /// The time for which one node computes in a step, if it is known.
    pub step: Option<Duration>,
}

impl TrainedModel {
    /// Returns what a step costs, from the allreduce with arrays that are nearest to the gradients in size, and in
    /// their type if that was measured.
    pub fn estimate(&self, measured: &Collectives, nodes: usize) -> Option<ModelEstimate> {
        let TrainedModel { params, dtype, step } = *self;
        let bytes = params.saturating_mul(dtype.bytes());
        // how many times as large or small, in eighths: arrays of different types are not exactly of one size
        let distance = |exchange: &&Exchange| {
            let ratio = (exchange.bytes as f64 / bytes as f64).log2().abs();
            ((ratio * 8.0).round() as u64, exchange.dtype != dtype)
        };
        let allreduces = measured.exchanges.iter().filter(|exchange| exchange.collective == Collective::AllReduce);
        let nearest = allreduces.min_by_key(distance)?;
        let estimate = Estimate::new(nodes, measured.ranks as usize, bytes, nearest.bus_bandwidth, step)?;
        Some(ModelEstimate { params, dtype, estimate })
    }
}

impl RankResults {
    /// Returns everything that is wrong, as sentences, with the node that each is about.
    pub fn findings(&self) -> Vec<(Option<String>, String)> {
        let slow = self.slow().map(|straggler| (Some(straggler.node.clone()), straggler.text.clone()));
        self.errors().into_iter().chain(slow).collect()
    }

    /// Returns what is wrong, and not only slow.
    pub fn errors(&self) -> Vec<(Option<String>, String)> {
        let failure = self.failure.iter().map(|cause| (None, format!("the collectives were not measured: {cause}")));
        failure.chain(self.wrong_results()).collect()
    }

    /// Returns the ranks that are slow, the slowest first.
    pub fn slow(&self) -> impl Iterator<Item = &Straggler> {
        self.stragglers.iter().filter(|straggler| straggler.is_finding())
    }

    /// Returns how many ranks or nodes look slow and are not judged.
    pub fn unclear(&self) -> usize {
        self.stragglers.iter().filter(|straggler| straggler.is_unclear()).count()
    }

    fn wrong_results(&self) -> Vec<(Option<String>, String)> {
        let mut of_ranks: BTreeMap<u32, Vec<&WrongResult>> = BTreeMap::new();
        for wrong in &self.answers.collectives.wrong {
            of_ranks.entry(wrong.rank).or_default().push(wrong);
        }
        let sentence = |(rank, wrong): (u32, Vec<&WrongResult>)| {
            let WrongResult { node, collective, dtype, bytes, .. } = wrong[0];
            let more = match wrong.len() - 1 {
                0 => String::new(),
                more => format!(", and {more} more"),
            };
            let size = format_size(*bytes);
            (Some(node.clone()), format!("rank {rank} on {node} is wrong: {collective} of {dtype}, {size}{more}"))
        };
        of_ranks.into_iter().map(sentence).collect()
    }

    /// Returns what is to be recorded of the nodes: nothing but speeds if the collectives were not measured to their
    /// end, and no speeds that other jobs have disturbed.
    pub fn evidence(&self) -> NodeEvents {
        let (found, speeds) = match self.is_disturbed {
            true => (self.wrong_results(), NodeEvents::new()),
            false => (self.findings(), of_speeds(&self.answers.collectives.speeds)),
        };
        if self.failure.is_some() { speeds } else { joined(of_ranks(&self.nodes, &found), speeds) }
    }

    /// Returns what is said if nothing is wrong.
    pub fn good(&self) -> String {
        let right = format!("all results of {} are correct", count(self.answers.collectives.ranks as usize, "rank"));
        match self.unclear() {
            0 => right,
            unclear => format!("{right}, but the speed of {} is not judged", count(unclear, "rank")),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::bench::collectives::RankSpeed;

    /// Returns the results of `n` ranks, of which those in `wrong` have wrong results.
    pub fn ranks(n: u32, wrong: &[u32]) -> RankResults {
        let exchange = |collective: Collective, dtype, bytes: u64| {
            let time = Duration::from_secs_f64(60e-6 + collective.ring_bytes(bytes, n as usize) / 1.1e9);
            let bandwidth = collective.bandwidth(bytes, time, n as usize).unwrap();
            Exchange {
                collective,
                dtype,
                bytes,
                time_us: time.as_secs_f64() * 1e6,
                algorithm_bandwidth: bandwidth.algorithm,
                bus_bandwidth: bandwidth.bus,
                ring_share: Some(bandwidth.bus / 1.175),
            }
        };
        let node = |rank: u32| format!("node{}", rank + 1);
        let operations = [Collective::AllReduce, Collective::ReduceScatter];
        let series = operations.into_iter().flat_map(|of| [Dtype::Float32, Dtype::Float16].map(|dtype| (of, dtype)));
        let sizes = [1 << 10, 1 << 20, 256 << 20];
        let exchanges = series.flat_map(|(of, dtype)| sizes.map(|bytes| exchange(of, dtype, bytes))).collect();
        let speed = |rank| RankSpeed {
            rank,
            node: node(rank),
            device: "cpu".into(),
            flops: 21.4e9,
            copy_bytes_per_s: 9.6e9,
            share: Some(0.98),
            alone: false,
        };
        let wrong_result = |rank: &u32| WrongResult {
            rank: *rank,
            node: node(*rank),
            collective: Collective::AllReduce,
            dtype: Dtype::Float16,
            bytes: 1024,
            text: "1 wrong element: expected 7 at 5, found 6".into(),
        };
        let wrong: Vec<WrongResult> = wrong.iter().map(wrong_result).collect();
        let library = "Horovod 0.28.1, torch 1.13.0".to_owned();
        let collectives = Collectives { ranks: n, library, exchanges, speeds: (0..n).map(speed).collect(), wrong };
        let answers = Answers { collectives, ..Answers::default() };
        RankResults { answers, nodes: (0..n).map(node).collect(), ..RankResults::default() }
    }

    /// A rank that is slow.
    pub fn slow(node: &str, text: String, share: f64) -> Straggler {
        Straggler { node: node.to_owned(), text, share, is_judged: true, is_doubtful: false }
    }

    #[test]
    fn other_jobs_explain_slow_ranks_and_no_wrong_results() {
        let mut ranks = ranks(2, &[1]);
        let text = "rank 0 is slow".to_owned();
        ranks.stragglers = vec![slow("node1", text, 0.61)];
        ranks.answers.collectives.speeds.iter_mut().for_each(|speed| speed.device = "cuda:0".into());
        let recorded = |ranks: &RankResults| format!("{:?}", ranks.evidence());
        let both =
            ["rank 0 is slow", "rank 1 on node2 is wrong", "Product"].map(|text| recorded(&ranks).contains(text));
        assert_eq!(both, [true; 3], "{}", recorded(&ranks));
        ranks.is_disturbed = true;
        let wrong =
            ["rank 0 is slow", "rank 1 on node2 is wrong", "Product"].map(|text| recorded(&ranks).contains(text));
        assert_eq!(wrong, [false, true, false], "{}", recorded(&ranks));
    }

    #[test]
    fn the_estimate_is_from_the_nearest_size() {
        let mut measured = ranks(2, &[]).answers.collectives;
        for exchange in measured.exchanges.iter_mut().filter(|one| one.collective == Collective::AllReduce) {
            let speed = |dtype| f64::from(u8::from(exchange.dtype == dtype));
            exchange.bus_bandwidth = match exchange.bytes {
                1_048_576 => 0.5 * speed(Dtype::Float16) + 0.25 * speed(Dtype::Float32),
                _ => 0.1,
            };
        }
        let of = |params, dtype| TrainedModel { params, dtype, step: None }.estimate(&measured, 2).unwrap().to_string();
        // 1 MB in all types
        let half = of(500_000, Dtype::Float16);
        assert_eq!(half, "500000 parameters in float16: 2 ms a step on the wire");
        let full = of(250_000, Dtype::Float32);
        assert_eq!(full, "250000 parameters in float32: 4 ms a step on the wire");
        // a type that was not measured has the speed of others
        let other = of(500_000, Dtype::Bfloat16);
        assert_eq!(other, "500000 parameters in bfloat16: 4 ms a step on the wire");
        measured.exchanges.clear();
        let model = TrainedModel { params: 500_000, dtype: Dtype::Float32, step: None };
        assert_eq!(model.estimate(&measured, 2), None);
    }
}
