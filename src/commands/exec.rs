//! `hvdctl exec`.

use super::output::{self, ExecNode, NodeEntry};
use super::{Context, Outcome, unless_signalled};
use crate::cli;
use crate::cluster::exec::{CommandOutput, KEPT, Place, exec};
use crate::error::{Error, NodeError, exit};
use crate::text::nodeset;
use crate::text::quote;
use crate::text::units::human;

/// `exec`.
pub async fn run(options: &cli::Exec, context: Context) -> Result<Outcome, Error> {
    let Context { target, events, cancel, .. } = context;
    let place = match (options.container, options.root) {
        (true, _) => Place::Worker,
        (_, true) => Place::Root,
        _ => Place::Node,
    };
    let limit = Some(options.timeout).filter(|limit| !limit.is_zero());
    let (told, failed) = unless_signalled(&cancel, exec(&target, &options.command, place, limit, &events)).await?;
    let words: Vec<String> = options.command.iter().map(|word| quote::readable(word)).collect();
    Ok(outcome(&words.join(" "), &told, failed))
}

/// What all nodes have said. `command`: as one would type it.
pub(super) fn outcome(command: &str, told: &[CommandOutput], failed: Vec<NodeError>) -> Outcome {
    let code = told.iter().map(|told| u8::try_from(told.code).unwrap_or(exit::INTERNAL)).max().unwrap_or(exit::OK);
    let code = if failed.is_empty() { code } else { code.max(exit::INTERNAL) };
    let text = nodeset::rows(told.iter().map(|told| (told.node.clone(), said(told))));
    let text_of = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let entry = |told: &CommandOutput| {
        let (stdout, stderr) = (text_of(&told.stdout), text_of(&told.stderr));
        let details = ExecNode { code: told.code, late: told.timed_out, left_out: told.left_out, stdout, stderr };
        NodeEntry::new(&told.node, told.code == 0, details)
    };
    let nodes = told.iter().map(entry).chain(failed.iter().map(NodeEntry::failed)).collect();
    let document = output::Exec { ok: code == exit::OK, code, nodes };
    let ended = told.iter().filter(|told| told.code != 0).map(|told| {
        let words =
            if told.timed_out { "it took too long, and was ended".into() } else { format!("exit code {}", told.code) };
        (words, told.node.clone())
    });
    let mut errors = failed;
    // many nodes that fail alike are one line
    errors.extend(nodeset::alike(ended).into_iter().map(|(words, nodes)| {
        let error = NodeError::failed(&nodeset::fold(&nodes), &format!("run {command}"), &words);
        if words.starts_with("exit") { error } else { error.hint("--timeout gives it more") }
    }));
    Outcome::new(code, text, &document, errors)
}

/// What a node wrote: standard output, and behind it standard error.
fn said(told: &CommandOutput) -> String {
    let mut text = String::new();
    for part in [&told.stdout, &told.stderr] {
        text.push_str(&String::from_utf8_lossy(part));
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
    }
    if told.left_out > 0 {
        let (kept, more) = (human(KEPT), human(told.left_out));
        text.push_str(&format!("[{more} more than {kept} were left out]\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(node: &str, code: i32, stdout: &str) -> CommandOutput {
        let (stdout, node) = (stdout.as_bytes().to_vec(), node.to_owned());
        CommandOutput { node, code, stdout, stderr: Vec::new(), left_out: 0, timed_out: false }
    }

    #[test]
    fn equal_output_is_folded_and_the_largest_code_counts() {
        let cut = CommandOutput { left_out: 2048, stderr: b"oops".to_vec(), ..told("n4", 0, "") };
        let all = [told("n1", 0, "a\nb\n"), told("n2", 3, "c"), told("n3", 0, "a\nb\n"), cut, told("n5", 3, "")];
        let outcome = outcome("x", &all, Vec::new());
        assert_eq!(outcome.code, 3);
        assert_eq!(
            outcome.text,
            "n[1,3] (2):\n  a\n  b\nn2: c\nn4:\n  oops\n  [2.0 KiB more than 1.0 MiB were left out]\n"
        );
        let errors: Vec<String> = outcome.failed.iter().map(ToString::to_string).collect();
        assert_eq!(errors, ["n[2,5]: cannot run x: exit code 3"]);
    }

    #[test]
    fn a_node_that_failed_is_no_success_of_the_others() {
        let failed = || vec![NodeError::unreachable("n2", "log in", "no")];
        assert_eq!(outcome("x", &[told("n1", 0, "")], failed()).code, 125);
        assert_eq!(outcome("x", &[told("n1", 137, "")], failed()).code, 137);
    }
}
