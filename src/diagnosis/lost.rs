//! Results of a job that are lost: output that had no room on a disk, and files outside the mounts of its containers,
//! where they go with these (`src/scripts/programs/outside.py`).

use crate::event::Message;
use crate::model::job_result::{LostOutput, OutsideFile, OutsideFiles};
use crate::text::nodeset::{fold, printable};
use crate::text::units::{count, human};
use std::cmp::Reverse;

/// The most nodes that a message names, and the most characters of a path.
const NODES: usize = 4;
const CHARACTERS: usize = 200;

/// How files of PyTorch's flight recorder are named in a container (`flight_recorder.py`).
const TRACE: &str = "/nccl_trace_rank_";

/// Describes how much output of a job was lost and on which nodes, if any was.
pub fn lost_output(lost: &[LostOutput]) -> Option<String> {
    let lines = lost.iter().fold(0u64, |sum, lost| sum.saturating_add(lost.lines));
    let mut nodes: Vec<String> = lost.iter().map(|lost| lost.node.clone()).collect();
    nodes.sort();
    nodes.dedup();
    let (lost, were) = (count(lines as usize, "line"), if lines == 1 { "was" } else { "were" });
    (lines > 0).then(|| format!("{lost} of output {were} lost: the disk of {} was full", fold(&nodes)))
}

/// Returns the warning about files of a job outside the mounts of its containers, if there are any.
pub fn outside_warning(id: &str, found: &[OutsideFiles]) -> Option<Message> {
    outside(found).map(|text| Message::from(text).hint(hint(id, found)))
}

/// Returns what to do about such files of a job.
fn hint(id: &str, found: &[OutsideFiles]) -> String {
    let lead =
        "let the program write to /workspace (hvdctl train), then --fetch; or to one of the `mounts` in the inventory";
    let is_trace = |file: &OutsideFile| file.path.contains(TRACE);
    let reader = match found.iter().flat_map(|node| &node.largest).any(is_trace) {
        true => "; PyTorch's `torchfrtrace -p nccl_trace_rank_ DIRECTORY` compares the nccl_trace_rank_N of all ranks",
        false => "",
    };
    match found.iter().any(|node| node.files > 0) {
        true => format!("{lead}; while the containers exist, hvdctl fetch {id} --from-container fetches these{reader}"),
        false => lead.to_owned(),
    }
}

/// Describes these files and their nodes, those with the most bytes first, or where there may be some; `None` if there
/// are none.
fn outside(found: &[OutsideFiles]) -> Option<String> {
    let mut nodes: Vec<&OutsideFiles> = found.iter().filter(|node| node.files > 0).collect();
    nodes.sort_by_key(|node| Reverse(node.bytes));
    let mut parts: Vec<String> = nodes.iter().take(NODES).map(|node| of_node(node)).collect();
    if nodes.len() > NODES {
        parts.push(format!("more on {}", count(nodes.len() - NODES, "other node")));
    }
    let what = "the job wrote files outside the mounts of its containers, which are lost with them";
    let unseen: Vec<&OutsideFiles> = found.iter().filter(|node| node.files == 0 && !node.whole).collect();
    let named: Vec<String> = unseen.iter().take(NODES).map(|node| printable(&node.node)).collect();
    let named = fold(&named.iter().map(String::as_str).collect::<Vec<_>>());
    let named = match unseen.len().saturating_sub(NODES) {
        0 => named,
        more => format!("{named} and {}", count(more, "other node")),
    };
    match (parts.is_empty(), unseen.is_empty()) {
        (true, true) => None,
        (true, false) => Some(format!(
            "not everything outside the mounts of the job's containers was examined on {named}: what the job wrote \
             there is lost with these"
        )),
        (false, is_complete) => {
            let more = if is_complete { String::new() } else { format!("; not everything was examined on {named}") };
            Some(format!("{what}: {}{more}", parts.join("; ")))
        }
    }
}

/// Describes how much there is in a few words, for a table.
pub fn outside_in_short(found: &[OutsideFiles]) -> Option<String> {
    let bytes = found.iter().fold(0u64, |sum, node| sum.saturating_add(node.bytes));
    (bytes > 0).then(|| format!("{} outside the mounts", human(bytes)))
}

fn of_node(OutsideFiles { node, files, bytes, largest, whole }: &OutsideFiles) -> String {
    let largest = largest.first().map(|file| {
        let path: String = file.path.chars().take(CHARACTERS).collect();
        format!("{} ({})", printable(&path), human(file.bytes))
    });
    let (node, least) = (printable(node), if *whole { "" } else { "at least " });
    match largest {
        Some(file) if *files == 1 => format!("{least}{file} on {node}"),
        largest => {
            let largest = largest.map(|file| format!(", the largest {file}")).unwrap_or_default();
            format!("{least}{} with {} on {node}{largest}", count(*files as usize, "file"), human(*bytes))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(node: &str, files: u64, bytes: u64, path: &str) -> OutsideFiles {
        let largest = vec![OutsideFile { path: path.into(), bytes: bytes / files.max(1) }];
        OutsideFiles { node: node.into(), files, bytes, largest, whole: true }
    }

    #[test]
    fn files_are_described_by_node() {
        let text = |found: &[OutsideFiles]| outside(found).unwrap_or_default();
        let (one, three) = (on("node1", 1, 50_000_000, "/root/ckpt/last.pt"), on("node2", 3, 150_000_000, "/root/x"));
        assert_eq!(
            text(&[one.clone(), three.clone()]),
            "the job wrote files outside the mounts of its containers, which are lost with them: 3 files with 143.1 \
             MiB on node2, the largest /root/x (47.7 MiB); /root/ckpt/last.pt (47.7 MiB) on node1"
        );
        assert_eq!(outside_in_short(&[one.clone(), three]).unwrap(), "190.7 MiB outside the mounts");
        assert!(text(&[OutsideFiles { whole: false, ..one.clone() }]).contains(": at least /root/ckpt/last.pt (47.7"));
        assert!(text(&[OutsideFiles { largest: Vec::new(), ..one }]).ends_with(": 1 file with 47.7 MiB on node1"));
        let many: Vec<_> = (0..6).map(|i| on(&format!("n{i}"), 1, 1 + i, "/x")).collect();
        assert!(text(&many).ends_with("; /x (3 B) on n2; more on 2 other nodes"), "{}", text(&many));
        assert_eq!((outside(&[]), outside(&[on("a", 0, 0, "/x")]), outside_in_short(&[])), (None, None, None));
    }

    #[test]
    fn the_reader_of_a_flight_recorder_is_named() {
        let warned = |path: &str| hint("j1", &[on("node1", 1, 90, path)]);
        assert!(warned("/tmp/nccl_trace_rank_0").contains("torchfrtrace -p nccl_trace_rank_ "));
        assert!(!warned("/root/last.pt").contains("torchfrtrace"));
    }

    #[test]
    fn a_node_that_was_not_examined_is_named() {
        let cut_off = |node: &str| OutsideFiles { node: node.into(), ..OutsideFiles::default() };
        let text = outside(&[cut_off("node1"), cut_off("node2")]).unwrap();
        assert!(
            text.starts_with("not everything outside the mounts") && text.contains(" on node[1-2]: what"),
            "{text}"
        );
        let text = outside(&[on("node1", 1, 5, "/x"), cut_off("node2")]).unwrap();
        assert!(text.ends_with("/x (5 B) on node1; not everything was examined on node2"), "{text}");
    }

    #[test]
    fn what_a_job_calls_its_files_does_not_disturb_a_terminal() {
        let forged = on("a", 1, u64::MAX, &format!("/\x1b[2J{}", "x".repeat(10_000)));
        let text = outside(&[forged.clone(), forged]).unwrap();
        assert!(text.len() < 1000 && !text.contains('\x1b'), "{text}");
    }
}
