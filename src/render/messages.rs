//! The texts of events, for rows, plain lines and the field `text` of JSON lines.

use super::is_raw;
use crate::event::{Event, Stream};
use crate::model::idle_rank::{IdleRank, descriptions, since, with_nodes};
use crate::model::restart::Restart;
use crate::model::role::{RankOfRole, label};
use crate::model::stack::{self, StackGroup};
use crate::text::units::{span, stamp};
use crate::text::visible::visible;
use console::style;
use std::fmt::Display;
use std::io::{self, IsTerminal};
use std::time::Duration;

/// Colours of the 256 that are readable on dark and light backgrounds.
const COLOURS: [u8; 8] = [33, 166, 64, 127, 37, 160, 136, 98];

/// Returns the line of an event that is a message, with colours for standard error.
pub fn message(event: &Event) -> Option<String> {
    Some(match event {
        Event::Note(message) => message.to_string(),
        Event::Warning(message) => warning(message),
        Event::Restart { time, restart } => {
            let time = time.map_or_else(String::new, |time| format!("{}: ", stamp(time)));
            let text = format!("{time}{restart}");
            if matches!(restart, Restart::Ready { .. }) { text } else { warning(text) }
        }
        Event::Idle { ranks, job, time } => warning(idle(ranks, job.as_deref(), *time)),
        Event::Stacks { groups, job } => warning(stacks(groups, job.as_deref())),
        Event::Resumed { ranks, seconds } => resumed(ranks, *seconds),
        Event::Ready { url } => format!("JupyterLab: {url}"),
        Event::Launcher { line } => format!("{} {line}", style("[launcher]").dim().for_stderr()),
        _ => return None,
    })
}

/// Returns a line of a rank, `[RANK NODE] text` or `[ROLE RANK NODE] text`: byte for byte after the bracket unless it goes to a terminal. Each
/// rank has a colour.
pub fn rank_line(rank: u32, role: Option<&RankOfRole>, node: &str, stream: Stream, line: &[u8]) -> Vec<u8> {
    let bracket = style(format!("[{} {node}]", label(rank, role))).color256(COLOURS[rank as usize % COLOURS.len()]);
    let (bracket, terminal) = match stream {
        Stream::Stdout => (bracket.for_stdout(), io::stdout().is_terminal()),
        Stream::Stderr => (bracket.for_stderr(), io::stderr().is_terminal()),
    };
    let mut whole = format!("{bracket} ").into_bytes();
    if terminal && !is_raw() {
        whole.extend(visible(line));
    } else {
        whole.extend_from_slice(line);
    }
    whole.push(b'\n');
    whole
}

/// The most lines of a stack in a message.
const STACK_LINES: usize = 12;

fn warning(text: impl Display) -> String {
    format!("{} {text}", style("warning:").yellow().bold().for_stderr())
}

/// Formats the warning about ranks that make no progress. `job`: the job's id, as long as it runs; `now` in seconds
/// since the epoch.
pub fn idle(ranks: &[IdleRank], job: Option<&str>, now: f64) -> String {
    let has = if ranks.len() == 1 { "has" } else { "have" };
    let since = since(ranks, now).unwrap_or_default();
    let what = descriptions(ranks);
    let does = match (&what[..], ranks) {
        ([_], [rank, ..]) => format!(" {}", rank.does),
        _ => what.iter().map(|text| format!("\n    {text}")).collect(),
    };
    let hint = job.map_or_else(String::new, |job| {
        format!(
            "\n  hint: if the wait is not intended, hvdctl stop {job} ends the job; a job that is started with \
             --stall-timeout ends automatically"
        )
    });
    format!("{} {has} made no progress {since}:{does}{hint}", with_nodes(ranks))
}

/// Formats where ranks are, or were when the job ended: a sentence, and the stack of the smallest group. `job`: the job's
/// id, as long as it runs.
pub fn stacks(groups: &[StackGroup], job: Option<&str>) -> String {
    let sentence = stack::sentence(groups, None).unwrap_or_default();
    let lines = groups.first().map(|group| stack::lines_of(group.example().frames(), false)).unwrap_or_default();
    let first = groups.first().map(|group| format!("\n    {}:", group.name())).filter(|_| !lines.is_empty());
    let others = groups.first().map(|group| stack::others_of(group.example())).unwrap_or_default();
    let others: String = others.iter().map(|other| format!("\n      and {other}")).collect();
    let mut shown: String = lines.iter().take(STACK_LINES).map(|line| format!("\n      {line}")).collect();
    if lines.len() > STACK_LINES {
        shown += &format!("\n      … {} more", lines.len() - STACK_LINES);
    }
    let hint =
        job.map_or_else(String::new, |job| format!("\n  hint: hvdctl stack {job} shows where all ranks are now"));
    format!(
        "where the ranks {}: {sentence}{}{shown}{others}{hint}",
        if job.is_some() { "are" } else { "were" },
        first.unwrap_or_default()
    )
}

/// Formats the message about ranks that make progress again. `seconds`: the longest time without.
pub fn resumed(ranks: &[IdleRank], seconds: u64) -> String {
    let makes = if ranks.len() == 1 { "makes" } else { "make" };
    format!("{} {makes} progress again, after {} without", with_nodes(ranks), span(Duration::from_secs(seconds)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-21T12:03:04Z.
    const START: f64 = 1_795_262_584.0;

    fn rank(rank: u32, does: &str) -> IdleRank {
        IdleRank { rank, role: None, node: format!("node{}", rank / 2 + 1), since: START, does: does.into() }
    }

    #[test]
    fn one_rank_is_one_line() {
        let ranks = [rank(3, "sleeping in clock_nanosleep")];
        let text = "rank 3 on node2 has made no progress since 12:03 UTC: sleeping in clock_nanosleep";
        assert_eq!(idle(&ranks, None, START + 102.0), text);
        let with_hint = idle(&ranks, Some("j1"), START + 102.0);
        assert!(with_hint.starts_with(&format!("{text}\n  hint: if the wait is not intended, hvdctl stop j1 ends")));
        assert_eq!(resumed(&ranks, 195), "rank 3 on node2 makes progress again, after 3m15s without");
    }

    #[test]
    fn ranks_that_wait_together_are_one_message() {
        let other = |n: u32| rank(n, "waiting in futex for a lock or another thread");
        let ranks: Vec<IdleRank> =
            (0..8).map(|n| if n == 5 { rank(n, "sleeping in clock_nanosleep") } else { other(n) }).collect();
        let expected = "ranks 0-7 on node[1-4] have made no progress since 12:03 UTC:
    rank 5 on node3: sleeping in clock_nanosleep
    ranks 0-4,6-7 on node[1-4]: waiting in futex for a lock or another thread";
        assert_eq!(idle(&ranks, None, START + 1843.0), expected);
        assert_eq!(resumed(&ranks, 1901), "ranks 0-7 on node[1-4] make progress again, after 31m41s without");
    }
}
