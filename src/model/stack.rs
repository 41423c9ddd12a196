//! Where the ranks of a job are: the stacks of their processes, as `stacks.py` reads them on the nodes.

use super::role::{RankOfRole, names};
use crate::text::nodeset;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The most bytes of the text of a rank's stacks that are read.
const MOST: usize = 128 << 10;

/// Parts of the paths of libraries, in contrast to the user's project; the last ones are those of glibc's source text.
const LIBRARIES: [&str; 8] =
    ["/site-packages/", "/dist-packages/", "/lib/python", "<frozen", "/lib64/python", "/sysdeps/", "./nptl/", "./csu/"];

/// Parts of the names of functions in which ranks wait for one another: those of PyTorch, Horovod, MPI, NCCL, Gloo, JAX
/// and TensorFlow.
const COLLECTIVES: [&str; 15] = [
    "all_reduce",
    "allreduce",
    "all_gather",
    "allgather",
    "reduce_scatter",
    "reducescatter",
    "all_to_all",
    "alltoall",
    "broadcast",
    "barrier",
    "synchronize",
    "init_process_group",
    "rendezvous",
    "sync_global_devices",
    "bcast",
];

/// Functions in which ranks find one another, with a part of the paths of their files: their names alone say too little.
const STARTS: [(&str, &str); 4] =
    [("init", "/horovod/"), ("initialize", "/jax/"), ("initialize", "/jaxlib/"), ("init_distributed", "/deepspeed/")];

/// The number of the innermost frames among which a collective operation is looked for: that of a data loader's caller
/// is not what the rank waits in.
const INNERMOST: usize = 12;

/// The most frames of a shortened stack.
const SHOWN_FRAMES: usize = 40;

/// A rank without progress for fewer seconds may just have begun to wait.
const IDLE: u64 = 5;

/// A part of the description of a process that waits for another one (`waiting.py`).
const FOR_CHILD: &str = "for a child process";

/// The words of stacks.py for a process that a core executes.
const RUNNING: &str = "running";

/// A part of the description of a process that tries to connect to an address (`waiting.py`).
const CONNECTS: &str = "for a connection to";

/// A frame of a stack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StackFrame {
    /// The function.
    #[serde(deserialize_with = "one_line")]
    pub name: String,
    /// The path of its file; empty in the kernel.
    #[serde(deserialize_with = "one_line")]
    pub file: String,
    /// The line; 0 if it is not known.
    pub line: u32,
    /// Its variables; only with `--locals`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub locals: Vec<StackVariable>,
}

/// A variable of a frame.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StackVariable {
    /// Its name.
    #[serde(deserialize_with = "one_line")]
    pub name: String,
    /// Its value, shortened.
    #[serde(deserialize_with = "one_line")]
    pub value: String,
}

/// A thread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StackThread {
    /// Its name.
    #[serde(deserialize_with = "one_line")]
    pub name: String,
    /// True if it computes.
    pub active: bool,
    /// Its activity by what the kernel shows, if that is all that is known.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "maybe_line")]
    pub does: Option<String>,
    /// The frames, the innermost first.
    pub frames: Vec<StackFrame>,
}

/// A process of a rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StackProcess {
    /// Its number, in the container if it is in one.
    pub pid: u32,
    /// Its command line, shortened.
    #[serde(deserialize_with = "one_line")]
    pub command: String,
    /// Its activity by what the kernel shows, such as `sleeping in clock_nanosleep`; null if it could not be read.
    #[serde(default, deserialize_with = "maybe_line")]
    pub does: Option<String>,
    /// Its threads, the first one in front.
    #[serde(default)]
    pub threads: Vec<StackThread>,
    /// The reason why its stacks could not be read; null if they could.
    #[serde(default, deserialize_with = "maybe_line")]
    pub failure: Option<String>,
    /// The path at which PyTorch's flight recorder writes its last operations, for which it was asked, without the number
    /// of the rank at its end; empty if that is not known. Left out if the process has no pipe for that.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "maybe_line")]
    pub dump: Option<String>,
}

/// A rank's processes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RankStack {
    /// The global rank.
    pub rank: u32,
    /// Its role, in a job with roles.
    #[serde(flatten, skip_deserializing)]
    pub role: Option<RankOfRole>,
    /// Its node.
    #[serde(default, deserialize_with = "one_line")]
    pub node: String,
    /// The seconds without progress until then, as far as the rank's supervisor watches that.
    pub quiet: u64,
    /// True if the rank was read because its end had been requested.
    #[serde(default)]
    pub ending: bool,
    /// The ranks for which it waits, as Horovod's stall check in it says.
    #[serde(default)]
    pub waits_for: Vec<AwaitedRank>,
    /// The process that the rank's supervisor has started, and those that descend from it.
    pub processes: Vec<StackProcess>,
    /// The number of processes that were not read, because there are too many.
    pub left_out: u32,
    /// The reason why the rank could not be read; null if it could.
    #[serde(default, deserialize_with = "maybe_line")]
    pub failure: Option<String>,
}

/// A rank for which others wait.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AwaitedRank {
    /// The global rank.
    pub rank: u32,
    /// Its role, in a job with roles.
    #[serde(flatten, skip_deserializing)]
    pub role: Option<RankOfRole>,
    /// The names of the tensors.
    #[serde(deserialize_with = "one_line")]
    pub tensors: String,
}

/// Ranks that are at the same place.
#[derive(Debug, Clone, PartialEq)]
pub struct StackGroup {
    /// The ranks, in order; at least one.
    pub ranks: Vec<RankStack>,
}

/// A text without control characters, which would disturb a terminal: ranks can write anything there.
fn clean(text: String) -> String {
    if text.chars().any(char::is_control) { text.chars().filter(|c| !c.is_control()).collect() } else { text }
}

fn one_line<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    String::deserialize(deserializer).map(clean)
}

fn maybe_line<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Option::<String>::deserialize(deserializer).map(|text| text.map(clean))
}

impl StackFrame {
    /// Returns whether it is the user's own code, by its path.
    pub fn is_own(&self) -> bool {
        !self.file.is_empty() && self.line > 0 && !LIBRARIES.iter().any(|part| self.file.contains(part))
    }

    /// Formats where it is: the path below the library's or project's directory, and the line.
    pub fn place(&self) -> String {
        let below = |part: &str| self.file.split_once(part).map(|(_, path)| path);
        let path = below("/site-packages/").or_else(|| below("/dist-packages/")).unwrap_or_else(|| {
            let start = self.file.rfind('/').map_or(0, |end| self.file[..end].rfind('/').map_or(0, |start| start + 1));
            // a file of the project is known by its name
            if self.is_own() { self.file.rsplit('/').next().unwrap_or_default() } else { &self.file[start..] }
        });
        if self.line > 0 { format!("{path}:{}", self.line) } else { path.to_owned() }
    }

    fn is_collective(&self) -> bool {
        let name = self.name.to_lowercase();
        let is_start = |(start, path): &(&str, &str)| name == *start && self.file.contains(path);
        COLLECTIVES.iter().any(|collective| name.contains(collective)) || STARTS.iter().any(is_start)
    }
}

impl RankStack {
    /// Reads the text of a node; `None` if it is not one. `node`: the node that it came from.
    pub fn read(node: &str, text: &str) -> Option<RankStack> {
        let found: RankStack = (text.len() <= MOST).then(|| serde_json::from_str(text).ok())??;
        Some(RankStack { node: node.to_owned(), ..found })
    }

    /// Returns what shows where the rank is: of each process the first thread.
    #[must_use]
    pub fn shortened(&self) -> RankStack {
        let mut short = self.clone();
        for process in &mut short.processes {
            process.threads.truncate(1);
            process.threads.iter_mut().for_each(|thread| thread.frames.truncate(SHOWN_FRAMES));
        }
        short
    }

    /// Returns the name of its role, in a job with roles.
    fn role(&self) -> Option<&str> {
        self.role.as_ref().map(|role| &*role.role)
    }

    /// Returns the process that shows where the rank is: the first one whose stacks could be read and that does not
    /// only wait for another process, as far as there is one.
    pub fn main(&self) -> Option<&StackProcess> {
        let waits_for_child =
            |process: &&StackProcess| process.does.as_deref().is_some_and(|does| does.contains(FOR_CHILD));
        let readable = || self.processes.iter().filter(|process| process.failure.is_none());
        // a program that only starts the training waits for it
        let training = readable().find(|process| !waits_for_child(process)).or(readable().next());
        training.or_else(|| self.processes.iter().find(|process| !waits_for_child(process))).or(self.processes.first())
    }

    /// Returns the frames of its first thread, the innermost first.
    pub fn frames(&self) -> &[StackFrame] {
        self.main().and_then(|process| process.threads.first()).map_or(&[], |thread| &thread.frames)
    }

    /// Returns the frames of its program; none if only those of the kernel are known.
    fn code(&self) -> &[StackFrame] {
        let frames = self.frames();
        if frames.iter().all(|frame| frame.file.is_empty()) { &[] } else { frames }
    }

    /// Returns the call in which it is, as the user's code shows it, and whether that is a collective operation.
    fn call(&self) -> Option<(String, bool)> {
        let frames = self.code();
        let collective = frames.iter().take(INNERMOST).position(StackFrame::is_collective);
        let own = frames.iter().position(StackFrame::is_own);
        // of the library's own functions, the one that has the operation's name
        let called = |at: usize| frames[..at].iter().rev().take(INNERMOST).find(|frame| frame.is_collective());
        let (name, place) = match own {
            // the project's own function for a collective operation, which waits in a library, or further inside
            Some(at) if collective.is_some_and(|collective| collective >= at) => {
                let at = collective.unwrap_or(at);
                let caller = frames[at + 1..].iter().find(|frame| frame.is_own()).unwrap_or(&frames[at]);
                (&frames[at].name, caller.place())
            }
            Some(0) => (&frames[0].name, frames[0].place()),
            Some(at) => (&called(at).unwrap_or(&frames[at - 1]).name, frames[at].place()),
            // a program without debugging information
            None => called(frames.len()).or(frames.first()).map(|frame| (&frame.name, frame.place()))?,
        };
        Some((format!("{name} ({place})"), collective.is_some()))
    }

    /// Describes what its process does: `sleeping in clock_nanosleep since 14 s`.
    fn activity(&self) -> Option<String> {
        let does = self.main()?.does.as_deref()?;
        // a rank without progress runs for a moment when it is read
        let has_time = self.quiet >= IDLE && does != RUNNING;
        Some(if has_time { format!("{does} since {} s", self.quiet) } else { does.to_owned() })
    }

    /// Returns what ranks at the same place have in common.
    fn place(&self) -> (Vec<(&str, &str, u32)>, Option<&str>) {
        let frames: Vec<_> = self.code().iter().map(|frame| (&*frame.name, &*frame.file, frame.line)).collect();
        let does =
            if frames.is_empty() { self.failure.as_deref().or_else(|| self.main()?.does.as_deref()) } else { None };
        (frames, does)
    }
}

impl StackGroup {
    /// Formats its ranks with their nodes: `ranks 0-2 on node[1-2]`.
    pub fn name(&self) -> String {
        let nodes: BTreeSet<&str> = self.ranks.iter().map(|rank| &*rank.node).collect();
        let ranks = self.ranks.iter().map(|rank| (rank.rank, rank.role.as_ref()));
        format!("{} on {}", names(ranks), nodeset::fold(&Vec::from_iter(nodes)))
    }

    /// Returns the name of their role, in a job with roles.
    fn role(&self) -> Option<&str> {
        self.ranks[0].role()
    }

    /// Returns the numbers of its ranks.
    pub fn numbers(&self) -> impl Iterator<Item = u32> {
        self.ranks.iter().map(|rank| rank.rank)
    }

    /// Returns the rank that stands for all of them: the one that has made no progress for the longest time.
    pub fn example(&self) -> &RankStack {
        self.ranks.iter().max_by_key(|rank| (rank.quiet, u32::MAX - rank.rank)).unwrap_or(&self.ranks[0])
    }

    /// Returns the ranks for which its ranks wait, as their library says.
    fn waits_for(&self) -> &[AwaitedRank] {
        self.ranks.iter().map(|rank| &*rank.waits_for).find(|waits_for| !waits_for.is_empty()).unwrap_or_default()
    }

    /// Returns whether its ranks wait for others in a collective operation.
    fn waits(&self) -> bool {
        !self.waits_for().is_empty() || self.example().call().is_some_and(|(_, is_collective)| is_collective)
    }

    /// Describes where its ranks are: `load (data.py:31), sleeping in clock_nanosleep since 14 s`.
    pub fn describe(&self) -> String {
        let example = self.example();
        if let Some(first) = self.waits_for().first() {
            let place = example.call().map_or_else(String::new, |(call, _)| format!("in {call} "));
            let ranks = names(self.waits_for().iter().map(|one| (one.rank, one.role.as_ref())));
            return format!("{place}for {ranks} (Horovod: {})", first.tensors);
        }
        let words: Vec<String> = match example.call() {
            Some((call, true)) => {
                let connects = |does: &String| does.contains(CONNECTS);
                [Some(call), example.activity().filter(connects)].into_iter().flatten().collect()
            }
            Some((call, false)) => [Some(call), example.activity()].into_iter().flatten().collect(),
            None => vec![example.activity().or(example.failure.clone()).unwrap_or_else(|| "unknown".into())],
        };
        words.join(", ")
    }

    /// Describes where its ranks are, as a part of a sentence.
    fn clause(&self, subject: &str) -> String {
        let is_one = self.ranks.len() == 1;
        if self.example().processes.is_empty() {
            return format!("{subject} could not be read: {}", self.describe());
        }
        let verb = match (self.waits(), self.example().code().is_empty()) {
            (true, _) if !self.waits_for().is_empty() => {
                if is_one {
                    "waits"
                } else {
                    "wait"
                }
            }
            (true, _) => {
                if is_one {
                    "waits in"
                } else {
                    "wait in"
                }
            }
            (false, false) => {
                if is_one {
                    "is in"
                } else {
                    "are in"
                }
            }
            (false, true) => {
                if is_one {
                    "is"
                } else {
                    "are"
                }
            }
        };
        format!("{subject} {verb} {}", self.describe())
    }
}

/// Returns groups of ranks of one role that are at the same place, the smallest first: most ranks wait, and the few that
/// are elsewhere are what they wait for. The roles in which ranks wait for one another come first: others serve them.
pub fn groups(ranks: impl IntoIterator<Item = RankStack>) -> Vec<StackGroup> {
    let mut ranks = Vec::from_iter(ranks);
    ranks.sort_by_key(|rank| rank.rank);
    let mut found: Vec<StackGroup> = Vec::new();
    for rank in ranks {
        let is_same = |other: &RankStack| other.role() == rank.role() && other.place() == rank.place();
        match found.iter_mut().find(|group| is_same(&group.ranks[0])) {
            Some(group) => group.ranks.push(rank),
            None => found.push(StackGroup { ranks: vec![rank] }),
        }
    }
    let waiting: BTreeSet<Option<String>> =
        found.iter().filter(|group| group.waits()).map(|group| group.role().map(str::to_owned)).collect();
    let serves = |group: &StackGroup| !waiting.contains(&group.role().map(str::to_owned));
    // of as many ranks, those that wait for others last
    found.sort_by_key(|group| (serves(group), group.ranks.len(), group.waits(), group.ranks[0].rank));
    found
}

/// The most groups that a sentence names.
const NAMED: usize = 3;

/// Summarizes groups in one sentence: how many ranks wait where, and where the others are; in a job with roles of each
/// role on its own. `None` without ranks. `ranks`: how many the job has, if that is known.
pub fn sentence(groups: &[StackGroup], ranks: Option<u32>) -> Option<String> {
    let mut roles: Vec<(&str, Vec<&StackGroup>)> = Vec::new();
    for group in groups {
        let Some(role) = group.role() else { return sentence_of(&groups.iter().collect::<Vec<_>>(), None, ranks) };
        match roles.iter_mut().find(|(other, _)| *other == role) {
            Some((_, of_role)) => of_role.push(group),
            None => roles.push((role, vec![group])),
        }
    }
    let texts = roles.iter().filter_map(|(role, groups)| sentence_of(groups, Some(role), None));
    Some(texts.collect::<Vec<_>>().join("; ")).filter(|text| !text.is_empty())
}

/// Summarizes the groups of one role; `None` is that of a job without roles.
fn sentence_of(groups: &[&StackGroup], role: Option<&str>, ranks: Option<u32>) -> Option<String> {
    let of = role.map_or_else(String::new, |role| format!(" of {role}"));
    let all: usize = groups.iter().map(|group| group.ranks.len()).sum();
    let is_whole = ranks.is_some_and(|ranks| all == ranks as usize);
    let (largest, others) = groups.split_last()?;
    if others.is_empty() {
        let subject = match all {
            1 => largest.name(),
            _ if is_whole => format!("all {all} ranks"),
            _ => largest.name(),
        };
        return Some(largest.clause(&subject));
    }
    let subject = match largest.ranks.len() {
        1 => largest.name(),
        count => match ranks {
            Some(ranks) => format!("{count} of {ranks} ranks"),
            None => format!("{count} ranks{of}"),
        },
    };
    let named = others.iter().take(NAMED).map(|group| group.clause(&group.name()));
    let mut clauses: Vec<String> = std::iter::once(largest.clause(&subject)).chain(named).collect();
    let rest: usize = others.iter().skip(NAMED).map(|group| group.ranks.len()).sum();
    if rest > 0 {
        clauses.push(format!("{rest} more ranks{of} are elsewhere"));
    }
    Some(clauses.join("; "))
}

/// Returns the lines that show a stack: the user's own frames, and of each row of library frames the first and the last
/// one. `all`: all frames.
pub fn lines_of(frames: &[StackFrame], all: bool) -> Vec<String> {
    let mut lines = Vec::new();
    for row in frames.chunk_by(|a, b| a.is_own() == b.is_own()) {
        let shown = |frame: &StackFrame| {
            let place = frame.place();
            let mut text = if place.is_empty() { frame.name.clone() } else { format!("{} ({place})", frame.name) };
            frame.locals.iter().for_each(|one| text += &format!("\n    {} = {}", one.name, one.value));
            text
        };
        if all || row[0].is_own() || row.len() <= 3 {
            lines.extend(row.iter().map(shown));
            continue;
        }
        lines.extend([shown(&row[0]), format!("… {} more", row.len() - 2), shown(&row[row.len() - 1])]);
    }
    lines
}

/// Summarizes the processes of a rank other than the main one by what their first threads do.
pub fn others_of(rank: &RankStack) -> Vec<String> {
    let main = rank.main().map(|process| process.pid);
    let mut alike: BTreeMap<String, usize> = BTreeMap::new();
    for process in rank.processes.iter().filter(|process| Some(process.pid) != main) {
        let frames = process.threads.first().map_or(&[][..], |thread| &thread.frames);
        let frame = frames.iter().find(|frame| frame.is_own()).or(frames.first());
        let at = frame.map(|frame| format!("{} ({})", frame.name, frame.place()));
        let words = [at, process.does.clone()].into_iter().flatten().collect::<Vec<_>>().join(", ");
        let command = process.command.split(' ').next().unwrap_or_default().rsplit('/').next().unwrap_or_default();
        *alike.entry(format!("{command}: {words}")).or_default() += 1;
    }
    let mut texts: Vec<String> =
        alike.into_iter().map(|(text, count)| if count == 1 { text } else { format!("{count} × {text}") }).collect();
    if rank.left_out > 0 {
        texts.push(format!("{} more processes", rank.left_out));
    }
    texts
}

#[cfg(test)]
mod tests;
