//! Where the ranks of a running job are: their stacks, which the ranks' supervisors read on all nodes at once.

use super::cleanup::JobNodes;
use super::manage::JobList;
use super::node_log::own_directory;
use super::py_spy;
use crate::cluster::each_node::{NodeResults, each_node};
use crate::cluster::member::Member;
use crate::error::{Error, NodeError};
use crate::event::{Events, Message, Step};
use crate::model::role::{RankOfRole, names};
use crate::model::stack::{self, RankStack, StackGroup, StackProcess};
use crate::random;
use crate::record::list::Job;
use crate::record::roles;
use crate::transport::node::Script;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

const ASK: &str = concat!(include_str!("../scripts/job/directory.sh"), include_str!("../scripts/job/stack.sh"));

/// The failure of `stacks.py` where a rank has no py-spy.
const NO_PY_SPY: &str = "there is no py-spy";
/// The beginning of its failure where py-spy is no program of the node.
const NO_START: &str = "cannot start py-spy";

/// Tenths of a second that a node's ranks may take. `stacks.py` takes at most 4 s.
const PATIENCE: u32 = 60;

/// `PATIENCE` with frames of other languages: `debugger.py` has 10 s for all processes of a rank, and 2 s to end.
const PATIENCE_NATIVE: u32 = 190;

/// The options of a reading.
#[derive(Debug, Clone, Default)]
pub struct StackRequest {
    /// The ranks; all if there are none.
    pub ranks: BTreeSet<u32>,
    /// Set if variables are read, too.
    pub locals: bool,
    /// Set if frames of other languages than Python are read, for which each process is stopped meanwhile.
    pub native: bool,
    /// The file of py-spy's program.
    pub py_spy: Option<PathBuf>,
}

/// The stacks of a job's ranks.
#[derive(Debug)]
pub struct StackReport {
    /// The id of the job.
    pub job: String,
    /// The ranks that were read, in order.
    pub ranks: Vec<RankStack>,
    /// The nodes, and ranks, from which there is no answer.
    pub failed: Vec<NodeError>,
}

impl StackReport {
    /// Returns the ranks in groups, as [`stack::groups`].
    pub fn groups(&self) -> Vec<StackGroup> {
        stack::groups(self.ranks.iter().cloned())
    }

    /// Formats the stacks of all groups, where PyTorch's flight recorder writes, and where the ranks are in one sentence.
    /// `ranks_of_job`: how many the job has; `all`: all threads and frames are shown.
    pub fn text(&self, ranks_of_job: u32, all: bool) -> String {
        let groups = self.groups();
        let mut text: String = groups.iter().map(|group| show(group, all) + "\n").collect();
        dumps(&self.ranks).iter().for_each(|line| text += &format!("{line}\n\n"));
        let sentence = stack::sentence(&groups, Some(ranks_of_job));
        text + &sentence.unwrap_or_else(|| "no rank was read".into()) + "\n"
    }
}

/// Formats a group as lines: its ranks and what they do, the stack of one of them, and their other processes.
fn show(group: &StackGroup, all: bool) -> String {
    let example = group.example();
    let does = example.main().and_then(|process| process.does.as_deref());
    let quiet = (example.quiet > 0).then(|| format!("no progress for {} s", example.quiet));
    let words: Vec<String> = [does.map(str::to_owned), quiet, example.failure.clone()].into_iter().flatten().collect();
    let mut text = format!("{}: {}\n", group.name(), words.join(", "));
    let processes: Vec<&StackProcess> = match all {
        true => example.processes.iter().collect(),
        false => example.main().into_iter().collect(),
    };
    for process in processes {
        if all {
            text += &format!("  {} {}\n", process.pid, process.command);
        }
        if let Some(failure) = &process.failure {
            text += &format!("  ({failure})\n");
        }
        let shown = if all { process.threads.len() } else { 1 };
        for thread in process.threads.iter().take(shown) {
            if all {
                text += &format!("  {}{}\n", thread.name, if thread.active { " (active)" } else { "" });
            }
            let lines = stack::lines_of(&thread.frames, all);
            lines.iter().for_each(|line| text += &format!("    {}\n", line.replace('\n', "\n    ")));
            if let Some(does) = thread.does.as_ref().filter(|_| thread.frames.is_empty()) {
                text += &format!("    {does}\n");
            }
        }
    }
    if !all {
        stack::others_of(example).iter().for_each(|other| text += &format!("  and {other}\n"));
    }
    text
}

/// Formats where PyTorch's flight recorder writes the last operations of the ranks that were asked for them: a line for
/// each directory and name.
fn dumps(ranks: &[RankStack]) -> Vec<String> {
    let mut asked: BTreeMap<&str, Vec<(u32, Option<&RankOfRole>)>> = BTreeMap::new();
    for rank in ranks {
        for dump in rank.processes.iter().filter_map(|process| process.dump.as_deref()) {
            asked.entry(dump).or_default().push((rank.rank, rank.role.as_ref()));
        }
    }
    let line = |(path, ranks): (&str, Vec<(u32, Option<&RankOfRole>)>)| {
        let place = match path.rsplit('/').next() {
            Some(name) if !name.is_empty() => format!(
                "to {path}N within seconds; PyTorch's `torchfrtrace -p {name} DIRECTORY` compares the files of all ranks"
            ),
            _ => "to the place that it has by default, since TORCH_FR_DUMP_TEMP_FILE is not set".to_owned(),
        };
        format!("PyTorch's flight recorder was asked for the last operations of {}: it writes {place}", names(ranks))
    };
    asked.into_iter().map(line).collect()
}

/// The answer of a node.
#[derive(Debug, Default, PartialEq)]
struct NodeAnswer {
    machine: String,
    /// The SHA-256 of the program that hvdctl has sent.
    py_spy: Option<String>,
    is_old: bool,
    /// Set if an answer of a rank cannot be read.
    is_garbled: bool,
    ranks: Vec<RankStack>,
    silent: BTreeSet<u32>,
}

impl NodeAnswer {
    /// Parses what `job/stack.sh` prints.
    fn parse(node: &str, text: &str) -> NodeAnswer {
        let mut answer = NodeAnswer::default();
        for line in text.lines() {
            match line.split_once(' ').unwrap_or((line, "")) {
                ("machine", name) => answer.machine = name.to_owned(),
                ("py-spy", hash) => answer.py_spy = Some(hash.to_owned()),
                ("old", _) => answer.is_old = true,
                ("stack", text) => match RankStack::read(node, text) {
                    Some(rank) => answer.ranks.push(rank),
                    None => answer.is_garbled = true,
                },
                ("silent", rank) => answer.silent.extend(rank.parse::<u32>().ok()),
                _ => {}
            }
        }
        answer
    }

    /// Returns whether another py-spy than the node's would show more of these ranks. `given`: the SHA-256 of the one
    /// that the user has named.
    fn lacks_py_spy(&self, ranks: &BTreeSet<u32>, given: Option<&str>) -> bool {
        if given.is_some() {
            return self.py_spy.as_deref() != given;
        }
        let fails = |failure: &str| failure == NO_PY_SPY || failure.starts_with(NO_START);
        let is_without = |rank: &RankStack| {
            is_wanted(rank.rank, ranks) && rank.processes.iter().any(|p| p.failure.as_deref().is_some_and(fails))
        };
        let is_known = self.py_spy.as_deref().is_some_and(|hash| py_spy::is_known(&self.machine, hash));
        !is_known && self.ranks.iter().any(is_without)
    }
}

fn is_wanted(rank: u32, ranks: &BTreeSet<u32>) -> bool {
    ranks.is_empty() || ranks.contains(&rank)
}

/// Reads where the ranks of a job are. Sends py-spy to nodes whose ranks have none.
///
/// # Errors
/// If the job does not run, or the node of the launcher does not answer.
pub async fn stacks(
    list: &JobList<'_>,
    job: &Job,
    request: &StackRequest,
    events: &Events,
) -> Result<StackReport, Error> {
    let nodes = list.nodes_of(job)?;
    let given = request.py_spy.as_deref().map(py_spy::hash_of).transpose()?;
    let members: Vec<Member> = nodes.members().cloned().collect();
    let asked =
        |members: Vec<Member>| each_node(members, events, async |member| ask(&nodes, member, request, events).await);
    let NodeResults { ok, mut failed } = asked(members).await;
    let (without, with): (Vec<_>, Vec<_>) =
        ok.into_iter().partition(|(_, answer)| answer.lacks_py_spy(&request.ranks, given.as_deref()));
    let mut answers: Vec<NodeAnswer> = with.into_iter().map(|(_, answer)| answer).collect();
    let (members, known): (Vec<Member>, Vec<NodeAnswer>) = without.into_iter().unzip();
    match send_py_spy(&nodes, &members, &known, request, events).await {
        Ok(()) => {
            let NodeResults { ok, failed: others } = asked(members).await;
            answers.extend(ok.into_iter().map(|(_, answer)| answer));
            failed.extend(others);
        }
        Err(error) => {
            events.warn(Message::from(error.to_string()));
            answers.extend(known);
        }
    }
    for node in list.failed.iter().filter(|error| job.nodes.contains(&error.node)) {
        failed.push(node.clone());
    }
    let mut ranks = Vec::new();
    for answer in answers {
        let wanted = answer.ranks.into_iter().filter(|rank| is_wanted(rank.rank, &request.ranks));
        ranks.extend(wanted.map(|rank| roles::named(rank, &job.placement)));
    }
    ranks.sort_by_key(|rank| rank.rank);
    Ok(StackReport { job: job.id.clone(), ranks, failed })
}

/// Sends py-spy to nodes whose ranks have none. `answers`: theirs, in the same order.
async fn send_py_spy(
    nodes: &JobNodes<'_>,
    members: &[Member],
    answers: &[NodeAnswer],
    request: &StackRequest,
    events: &Events,
) -> Result<(), Error> {
    let mut programs: BTreeMap<&str, Vec<u8>> = BTreeMap::new();
    for machine in answers.iter().map(|answer| &*answer.machine) {
        if !programs.contains_key(machine) {
            programs.insert(machine, py_spy::program(machine, request.py_spy.as_deref(), events).await?);
        }
    }
    // where they share a directory, one is enough
    let most = if nodes.shares_directory { 1 } else { members.len() };
    let pairs: Vec<_> = members.iter().zip(answers).take(most).collect();
    let sent = each_node(pairs, events, async |(member, answer): (&Member, &NodeAnswer)| {
        let none = Vec::new();
        let bytes = programs.get(&*answer.machine).unwrap_or(&none);
        py_spy::send(member, nodes.cluster, nodes.id, bytes, events).await
    });
    sent.await.all().map(drop)
}

/// Asks a node. Ranks that do not answer are answers themselves.
async fn ask(
    nodes: &JobNodes<'_>,
    member: Member,
    request: &StackRequest,
    events: &Events,
) -> Result<(Member, NodeAnswer), NodeError> {
    const OPERATION: &str = "read the stacks";
    let node = member.node.name.clone();
    let _step = events.begin(&node, Step::read("reading stacks"));
    let number = random::id();
    let (locals, native) = (request.locals, request.native);
    let patience = if native { PATIENCE_NATIVE } else { PATIENCE };
    let wanted = serde_json::json!({ "number": number, "locals": locals, "native": native, "failed": false });
    let script = Script::new(ASK)
        .with("jobs_dir", &nodes.cluster.jobs_dir)
        .with("id", &own_directory(nodes, &member))
        .with("request", &wanted.to_string())
        .with("number", &number)
        .with("limit", &patience.to_string());
    let output = member.transport.script(&script, OPERATION).await?;
    let mut answer = NodeAnswer::parse(&node, &String::from_utf8_lossy(&output));
    if answer.is_garbled {
        events.warn(NodeError::failed(&node, OPERATION, "the answer of a rank is not in the expected form"));
    }
    if answer.is_old {
        let cause = "the job was started by an earlier hvdctl, whose ranks do not answer";
        return Err(NodeError::failed(&node, OPERATION, cause));
    }
    for rank in std::mem::take(&mut answer.silent) {
        let failure = Some(format!("its supervisor did not answer within {} s", patience / 10));
        answer.ranks.push(RankStack {
            rank,
            role: None,
            node: node.clone(),
            quiet: 0,
            ending: false,
            waits_for: Vec::new(),
            processes: Vec::new(),
            left_out: 0,
            failure,
        });
    }
    Ok((member, answer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_dumps_is_one_line_for_all_ranks() {
        let rank = |rank: u32, dump: &str| {
            let text = format!(
                "{{\"rank\": {rank}, \"quiet\": 0, \"left_out\": 0, \"processes\": [{{\"pid\": 1, \"command\": \"p\", {dump}}}]}}"
            );
            RankStack::read("node1", &text).unwrap()
        };
        let dump = "\"dump\": \"/w/nccl_trace_j1_rank_\"";
        let lines = dumps(&[rank(0, dump), rank(11, dump), rank(1, dump)]);
        assert_eq!(
            lines,
            ["PyTorch's flight recorder was asked for the last operations of ranks 0-1,11: it writes to \
              /w/nccl_trace_j1_rank_N within seconds; PyTorch's `torchfrtrace -p nccl_trace_j1_rank_ DIRECTORY` compares \
              the files of all ranks"]
        );
        let lines = dumps(&[rank(0, "\"dump\": \"\""), rank(1, "\"failure\": null")]);
        assert!(lines.len() == 1 && lines[0].contains("of rank 0: it writes to the place that it has"), "{lines:?}");
    }

    #[test]
    fn the_answer_of_a_node_is_parsed() {
        let text = "machine x86_64\nstack {\"rank\": 3, \"quiet\": 0, \"processes\": [], \"left_out\": 0}\nstack {\nsilent 4\n\
                    silent x\n";
        let answer = NodeAnswer::parse("node2", text);
        assert_eq!((&*answer.machine, answer.py_spy, answer.is_old, answer.is_garbled), ("x86_64", None, false, true));
        assert_eq!((answer.ranks.len(), answer.ranks[0].rank, &*answer.ranks[0].node), (1, 3, "node2"));
        assert_eq!(Vec::from_iter(answer.silent), [4]);
        assert!(NodeAnswer::parse("node2", "old\n").is_old);
    }

    #[test]
    fn py_spy_is_sent_only_where_wanted_ranks_lack_it() {
        let rank = |rank: u32, failure: &str| {
            let text = format!(
                "stack {{\"rank\": {rank}, \"quiet\": 0, \"left_out\": 0, \"processes\": [{{\"pid\": 1, \"command\": \"a\", \
                 \"failure\": \"{failure}\"}}]}}\n"
            );
            text
        };
        let text = rank(0, NO_PY_SPY) + &rank(1, "Permission denied");
        let answer = NodeAnswer::parse("a", &text);
        let (all, first, second) = (BTreeSet::new(), BTreeSet::from([0]), BTreeSet::from([1]));
        assert!(answer.lacks_py_spy(&all, None) && answer.lacks_py_spy(&first, None));
        assert!(!answer.lacks_py_spy(&second, None));
        // one that does not run is replaced, the known one is not
        let with = |hash: &str, failure: &str| {
            let answer = NodeAnswer::parse("a", &format!("machine x86_64\npy-spy {hash}\n{}", rank(0, failure)));
            answer.lacks_py_spy(&all, None)
        };
        let known = "a41205d4925beafd108e1ace85e66c0a1a7adbfcbebcd4441f07848b608886c0";
        let no_program = "cannot start py-spy: Exec format error";
        assert!(with("00", no_program) && !with(known, no_program) && !with("00", "Permission denied"));
        let kept = NodeAnswer::parse("a", "machine x86_64\npy-spy 00\n");
        assert!(kept.lacks_py_spy(&all, Some("11")) && !kept.lacks_py_spy(&all, Some("00")));
    }
}
