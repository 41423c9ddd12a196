//! `hvdctl exec`.

use crate::cli;
use crate::cluster::each_node::NodeResults;
use crate::cluster::exec::{CommandOutput, ExecPlace, KEPT, RemoteProgram, exec};
use crate::commands::{Context, Outcome};
use crate::document::{NodeEntry, entries};
use crate::error::{Error, NodeError, Verdict};
use crate::text::nodeset;
use crate::text::quote;
use crate::text::units::human;
use schemars::JsonSchema;
use serde::Serialize;

/// `exec`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ExecDocument {
    /// The exit code of hvdctl.
    pub code: u8,
    /// The nodes.
    pub nodes: Vec<NodeEntry<CommandOutput>>,
}

/// `exec`.
pub async fn run(options: &cli::Exec, context: &Context) -> Result<Outcome, Error> {
    let place = match (options.container, options.root) {
        (true, _) => ExecPlace::Worker,
        (_, true) => ExecPlace::Root,
        _ => ExecPlace::Node,
    };
    let limit = Some(options.timeout).filter(|limit| !limit.is_zero());
    let Context { target, fleet, events, .. } = context;
    let program = RemoteProgram { command: &options.command, place, limit };
    let nodes = fleet.connect(target, program.run_as(), events).await?.into_iter().collect();
    let outputs = exec(target.cluster(), nodes, &program, events).await;
    Ok(outcome(&quote::command(&options.command), outputs))
}

/// `command`: as one would type it.
pub(in crate::commands) fn outcome(command: &str, outputs: NodeResults<CommandOutput>) -> Outcome {
    let NodeResults { ok: outputs, failed } = outputs;
    let verdicts = outputs.iter().map(|output| Verdict::Program(output.code.into()));
    let verdicts = verdicts.chain(failed.iter().map(|_| Verdict::Incomplete));
    let verdict = verdicts.max_by_key(|verdict| verdict.exit_code()).unwrap_or(Verdict::Done);
    let text = nodeset::rows(outputs.iter().map(|output| (output.node.clone(), text(output))));
    // nodes that failed alike share an error
    let ended = outputs.iter().filter(|output| output.code != 0);
    let ended = nodeset::alike(ended.map(|output| ((output.timed_out, output.code), output.node.clone())));
    let errors = ended.into_iter().map(|((timed_out, code), nodes)| {
        let error = |why: &str| NodeError::failed(&nodeset::fold(&nodes), &format!("run {command}"), why);
        match timed_out {
            true => error("the command was stopped at the time limit").hint("raise the limit with --timeout"),
            false => error(&format!("exit code {code}")),
        }
    });
    let errors = failed.iter().cloned().chain(errors).map(|error| error.to_string()).collect();
    let entry = |output: CommandOutput| NodeEntry::new(&output.node.clone(), output.code == 0, output);
    let nodes = entries(outputs.into_iter().map(entry), &failed);
    Outcome { errors, ..Outcome::new(verdict, text, ExecDocument { code: verdict.exit_code(), nodes }) }
}

/// A node's standard output, followed by its standard error.
fn text(output: &CommandOutput) -> String {
    let mut text = String::new();
    for part in [&output.stdout, &output.stderr] {
        text.push_str(part);
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
    }
    if output.left_out > 0 {
        let (limit, more) = (human(KEPT), human(output.left_out));
        text.push_str(&format!("[{more} beyond the first {limit} omitted]\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(node: &str, code: i32, stdout: &str) -> CommandOutput {
        let (stdout, node) = (stdout.to_owned(), node.to_owned());
        CommandOutput { node, code, timed_out: false, left_out: 0, stdout, stderr: String::new() }
    }

    #[test]
    fn equal_output_is_folded_and_the_largest_code_counts() {
        let cut = CommandOutput { left_out: 2048, stderr: "oops".into(), ..output("n4", 0, "") };
        let ok =
            vec![output("n1", 0, "a\nb\n"), output("n2", 3, "c"), output("n3", 0, "a\nb\n"), cut, output("n5", 3, "")];
        let outcome = outcome("x", NodeResults { ok, failed: Vec::new() });
        assert_eq!(outcome.code, 3);
        assert_eq!(
            outcome.text.to_string(),
            "n[1,3] (2):\n  a\n  b\nn2: c\nn4:\n  oops\n  [2.0 KiB beyond the first 1.0 MiB omitted]\n"
        );
        let errors = outcome.errors;
        assert_eq!(errors, ["n[2,5]: cannot run x: exit code 3"]);
    }

    #[test]
    fn a_node_that_failed_is_no_success_of_the_others() {
        let with_failed =
            |output| NodeResults { ok: vec![output], failed: vec![NodeError::unreachable("n2", "log in", "no")] };
        assert_eq!(outcome("x", with_failed(output("n1", 0, ""))).code, 125);
        assert_eq!(outcome("x", with_failed(output("n1", 137, ""))).code, 137);
    }
}
