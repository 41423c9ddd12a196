//! The program that measures, in the worker of one node.

use super::{MeasuringWorker, Pace};
use crate::bench::measurements::{Compute, Direction, Link, NodeEvidence};
use crate::error::NodeError;
use crate::event::{Events, Step};
use crate::transport::node::Dialogue;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

const PROGRAM: &str = include_str!("../../scripts/bench/network.py");

/// The operation that fails if a node cannot take part.
pub(super) const OPERATION: &str = "measure the network";

/// The numbers of streams with which each direction is measured, one after the other.
const STREAMS: [u32; 2] = [1, 4];
/// The datagrams that show loss, in each direction.
const PROBES: u32 = 1000;
/// The time of a pair's measurement that is not spent on transfers: round trips, probes and agreements.
const OVERHEAD: Duration = Duration::from_secs(2);
/// The sizes of packets that are sent besides the largest one.
const SIZES: [u32; 5] = [9000, 1500, 1400, 1280, 576];
/// The most bytes of the answers to a request, which are kept in memory. Those of a pair have a few KiB.
const MOST_ANSWERED: usize = 1 << 20;
/// The time that a program may take to exit after its standard input is closed.
const END_LIMIT: Duration = Duration::from_secs(5);

/// The settings that all programs of a measurement share.
pub(super) struct MeasuringRequest {
    /// The first bytes of the connections between them.
    pub(super) token: String,
    /// The time for which one program waits for another.
    pub(super) answer_limit: Duration,
    /// The time for which hvdctl waits for a program, in addition to that of a measurement.
    pub(super) step_limit: Duration,
    /// The time for which a direction is measured.
    pub(super) pace: Pace,
    /// The most rounds.
    pub(super) rounds: u32,
}

impl MeasuringRequest {
    /// Returns the time that the measurement of a pair may take. It normally takes less than half of it.
    fn pair_limit(&self) -> Duration {
        2 * (2 * STREAMS.len() as u32 * (self.pace.warm + self.pace.counted) + OVERHEAD) + self.step_limit
    }
}

/// The program on one node. It ends when this is dropped.
pub(super) struct MeasuringProgram {
    name: String,
    address: IpAddr,
    port: u16,
    dialogue: Dialogue,
    step_limit: Duration,
    pair_limit: Duration,
    pace: Pace,
    /// The reason why it no longer answers.
    broken: Option<String>,
}

impl MeasuringProgram {
    /// Starts it in the worker, where it then listens.
    pub(super) async fn start(
        request: &MeasuringRequest,
        place: &MeasuringWorker<'_>,
        events: &Events,
    ) -> Result<MeasuringProgram, NodeError> {
        let MeasuringWorker { observed, worker, endpoint } = place;
        let name = observed.name().to_owned();
        let _step = events.begin(&name, Step::read("starting the measurement"));
        let runtime = observed.member.runtime().await?;
        let process = runtime.exec(worker, &["python3", "-I", "-c", PROGRAM], OPERATION).await?;
        let (step_limit, pair_limit) = (request.step_limit, request.pair_limit());
        let first = json!({
            "token": request.token,
            "address": endpoint.address,
            "interface": endpoint.interface,
            "limit": (request.rounds * pair_limit).as_secs(),
            "answer_limit": request.answer_limit.as_secs(),
        });
        let (dialogue, pace) = (Dialogue::new(process), request.pace);
        let address = endpoint.address;
        let mut program =
            MeasuringProgram { name, address, port: 0, dialogue, step_limit, pair_limit, pace, broken: None };
        let answers = program.ask(&first, step_limit, |answer| answer.get("done").is_none()).await;
        let failed = |why: &str| NodeError::failed(observed.name(), OPERATION, why);
        let hint = "the worker's image needs python3 (3.6 or later) in its PATH; `hvdctl doctor` examines the node";
        let answers = answers.map_err(|why| failed(&why).hint(hint))?;
        let answer = answers.first().unwrap_or(&Value::Null);
        program.port = answer["listening"].as_u64().and_then(|port| u16::try_from(port).ok()).ok_or_else(|| {
            failed(answer["error"].as_str().unwrap_or("the program in the worker reported no port"))
                .hint("hvdctl doctor")
        })?;
        Ok(program)
    }

    /// The name of its node.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the address on which it listens.
    pub(super) fn address(&self) -> IpAddr {
        self.address
    }

    /// The port at which it listens.
    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Reads the node's interface.
    pub(super) async fn link(&mut self) -> Result<Link, String> {
        self.single("link").await
    }

    /// Measures the node's processor.
    pub(super) async fn compute(&mut self) -> Result<Compute, String> {
        self.single("compute").await
    }

    /// Reads the node's interface and measures its processor.
    pub(super) async fn evidence(&mut self) -> Result<NodeEvidence, NodeError> {
        let name = self.name.clone();
        let measured = async { Ok((self.link().await?, self.compute().await?)) }.await;
        let (before, compute) =
            measured.map_err(|why: String| NodeError::failed(&name, OPERATION, why).hint("hvdctl doctor"))?;
        Ok(NodeEvidence { name, before: Some(before), after: None, compute: Some(compute) })
    }

    /// Measures both directions of a pair: this node and another, which listens there. `mtu`: the smaller one of their
    /// interfaces.
    pub(super) async fn measure(
        &mut self,
        (from, to): (usize, usize),
        (address, port): (IpAddr, u16),
        mtu: Option<u32>,
    ) -> Vec<Direction> {
        let most = mtu.unwrap_or(SIZES[1]);
        let sizes: BTreeSet<u32> = SIZES.into_iter().filter(|size| *size < most).chain([most]).collect();
        let request = json!({
            "do": "measure",
            "from": from,
            "to": to,
            "address": address,
            "port": port,
            "warm": self.pace.warm.as_secs_f64(),
            "seconds": self.pace.counted.as_secs_f64(),
            "streams": STREAMS,
            "probes": PROBES,
            "sizes": sizes,
        });
        let answers = self.request(&request, self.pair_limit).await;
        match answers {
            Ok(answers) => results((from, to), answers, "the program printed no result"),
            Err(why) => results((from, to), Vec::new(), &why),
        }
    }

    /// Ends the program.
    pub(super) async fn end(self) {
        self.dialogue.end(END_LIMIT).await;
    }

    async fn single<T: DeserializeOwned>(&mut self, what: &str) -> Result<T, String> {
        let answers = self.request(&json!({ "do": what }), self.step_limit).await?;
        parse(answers.into_iter().next().unwrap_or_default())
    }

    /// Asks for something, and returns what the program answers before it is done.
    async fn request(&mut self, request: &Value, limit: Duration) -> Result<Vec<Value>, String> {
        let mut answers = self.ask(request, limit, |answer| answer.get("done").is_some()).await?;
        answers.pop();
        Ok(answers)
    }

    /// Returns the program's answers, up to one that is the last. A program that did not answer is not asked again: its
    /// next line might be the answer to an earlier request.
    async fn ask(
        &mut self,
        request: &Value,
        limit: Duration,
        is_last: impl Fn(&Value) -> bool,
    ) -> Result<Vec<Value>, String> {
        if let Some(why) = &self.broken {
            return Err(why.clone());
        }
        let mut answers: Vec<Value> = Vec::new();
        // other lines come from the image's Python as it starts
        let mut bytes = 0;
        let take = |line: &str| {
            let Ok(answer) = serde_json::from_str::<Value>(line) else { return false };
            if !answer.is_object() {
                return false;
            }
            bytes += line.len();
            let is_end = is_last(&answer) || bytes > MOST_ANSWERED;
            answers.push(answer);
            is_end
        };
        let mut asked = self.dialogue.ask(&request.to_string(), limit, take).await;
        if asked.is_ok() && bytes > MOST_ANSWERED {
            asked = Err("the program's answer does not end".to_owned());
        }
        if let Err(why) = &asked {
            self.broken = Some(why.clone());
        }
        asked.map(|()| answers)
    }
}

/// Returns the results of both directions of a pair, and of no others: their numbers are those of nodes. `missing`: why
/// one has none.
fn results((from, to): (usize, usize), answers: Vec<Value>, missing: &str) -> Vec<Direction> {
    let answered: Vec<Direction> = answers.into_iter().filter_map(|answer| parse(answer).ok()).collect();
    let result = |(from, to)| {
        let failed = || Direction { from, to, error: Some(missing.to_owned()), ..Direction::default() };
        answered.iter().rfind(|direction| (direction.from, direction.to) == (from, to)).cloned().unwrap_or_else(failed)
    };
    vec![result((from, to)), result((to, from))]
}

fn parse<T: DeserializeOwned>(answer: Value) -> Result<T, String> {
    let text = answer.to_string();
    serde_json::from_value(answer).map_err(|error| format!("unknown answer {text}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_may_take_twice_its_time() {
        let request = MeasuringRequest {
            token: String::new(),
            answer_limit: Duration::from_secs(10),
            step_limit: Duration::from_secs(60),
            pace: Pace::DEFAULT,
            rounds: 7,
        };
        assert_eq!(request.pair_limit(), Duration::from_secs(68));
    }

    #[test]
    fn only_results_that_were_asked_for_are_taken() {
        let direction = |from: u64, to: u64| json!({ "from": from, "to": to, "transfers": [] });
        let answers = vec![direction(7, 1), direction(1, 0), direction(u64::MAX, 0), json!({ "from": -1, "to": 1 })];
        let found = results((0, 1), answers, "none");
        let found: Vec<_> = found.into_iter().map(|of| (of.from, of.to, of.error)).collect();
        assert_eq!(found, [(0, 1, Some("none".to_owned())), (1, 0, None)]);
    }

    #[test]
    fn an_answer_that_is_not_understood_is_in_the_error() {
        let error = parse::<Link>(json!({ "mtu": "large" })).unwrap_err();
        assert!(error.starts_with("unknown answer {\"mtu\":\"large\"}: "), "{error}");
    }
}
