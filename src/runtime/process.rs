//! Processes of the login as the runtime: what a container is elsewhere is here a main process in a session of its own,
//! with all that it starts. Labels, environment and output lie in a directory on the node (`scripts/process/common.sh`).
//! Nothing needs root or an engine.

use super::container::{ContainerState, ContainerSummary};
use super::spec::ContainerSpec;
use crate::error::NodeError;
use crate::random;
use crate::text::quote;
use crate::transport::node::{Output, Process, RunAs, Script, Transport};
use std::sync::Arc;
use std::time::Duration;

/// A script of processes, of its parts: it refuses a directory that other users can change, before it reads or runs
/// anything there.
macro_rules! process_script {
    ($($part:literal),+) => {
        concat!(
            include_str!("../scripts/node/close.sh"),
            include_str!("../scripts/node/permissions.sh"),
            include_str!("../scripts/node/marked.sh"),
            include_str!("../scripts/process/common.sh"),
            $(include_str!(concat!("../scripts/", $part))),+
        )
    };
}
pub(super) use process_script;

const LIST: &str = process_script!("process/list.sh");
const CHECK: &str = process_script!("process/active.sh", "process/check.sh");
const CREATE: &str = process_script!("process/create.sh");
const START: &str = process_script!("process/start.sh");
const END: &str = process_script!("process/end.sh");
const TERMINATE: &str = process_script!("process/terminate.sh");
const WAIT: &str = process_script!("process/wait.sh");
const OUTPUT: &str = process_script!("process/output.sh");
const MAIN: &str = concat!(include_str!("../scripts/process/active.sh"), include_str!("../scripts/process/main.sh"));
const ACTIVATE: &str = include_str!("../scripts/process/activate.sh");
const FIND_PYTHON: &str = include_str!("../scripts/process/find_python.sh");
const BEGIN: &str =
    concat!(include_str!("../scripts/process/find_python.sh"), include_str!("../scripts/process/begin.sh"));
const ENTER: &str = include_str!("../scripts/process/enter.sh");
const TERMINAL: &str = include_str!("../scripts/process/terminal.py");

/// The processes of the login on one node. Clones share its connections.
#[derive(Clone)]
pub struct LoginProcesses {
    transport: Arc<Transport>,
    /// The directory of what runs; see [`crate::inventory::Cluster::run_dir`].
    run_dir: String,
}

impl LoginProcesses {
    /// Returns the processes whose files are in this directory.
    pub(super) fn new(transport: &Arc<Transport>, run_dir: &str) -> LoginProcesses {
        LoginProcesses { transport: Arc::clone(transport), run_dir: run_dir.to_owned() }
    }

    pub(super) fn node(&self) -> &str {
        self.transport.node()
    }

    pub(super) fn script(&self, source: &'static str) -> Script {
        Script::new(source).with("run_dir", &self.run_dir)
    }

    pub(super) async fn run(&self, script: &Script, operation: &str) -> Result<String, NodeError> {
        let output = self.transport.script_as_login(script, operation).await?;
        Ok(String::from_utf8_lossy(&output).into_owned())
    }

    /// Returns the time limit of a script.
    pub(super) fn limit(&self) -> Duration {
        self.transport.limit()
    }

    pub(super) async fn list(&self) -> Result<Vec<ContainerSummary>, NodeError> {
        let listed = self.run(&self.script(LIST), "list the processes of hvdctl").await?;
        Ok(listed.lines().filter_map(summary).collect())
    }

    /// Checks whether ranks can run in the environment of a process.
    pub(super) async fn check(&self, spec: &ContainerSpec) -> Result<(), NodeError> {
        let script =
            self.script(CHECK).with("activate", &activate(&spec.spec.activate)).with("find_python", FIND_PYTHON);
        let checked = self.run(&script, "set up the environment of ranks").await;
        checked
            .map(drop)
            .map_err(|error| error.hint("a login shell, `bash -l`, runs the lines of `activate` on the node"))
    }

    pub(super) async fn create(&self, spec: &ContainerSpec) -> Result<String, NodeError> {
        let id = format!("{}@{}", spec.name, random::id());
        let labels = serde_json::to_string(&spec.labels()).expect("labels are strings");
        let script = self
            .script(CREATE)
            .with("new_id", &id)
            .with("labels", &labels)
            .with("workspace", spec.workspace.as_deref().unwrap_or_default())
            .with("environment", &environment(&spec.env))
            .with("activate", &activate(&spec.spec.activate))
            .with("command", &command(&spec.argv()))
            .with("main", MAIN)
            .with("begin", BEGIN);
        self.run(&script, &format!("start {}", spec.name)).await?;
        Ok(id)
    }

    pub(super) async fn create_and_start(&self, spec: &ContainerSpec) -> Result<String, NodeError> {
        let id = self.create(spec).await?;
        let started = self.start(&id).await;
        if started.is_err() {
            let _ = self.end(&id, true).await;
        }
        started.map(|()| id)
    }

    pub(super) async fn start(&self, which: &str) -> Result<(), NodeError> {
        let script = self.script(START).with("which", which);
        self.run(&script, &format!("start {}", name_of(which))).await.map(drop)
    }

    pub(super) async fn end(&self, which: &str, remove: bool) -> Result<(), NodeError> {
        let script = self.script(END).with("which", which).with("remove", if remove { "1" } else { "" });
        let operation = format!("{} {}", if remove { "remove" } else { "stop" }, name_of(which));
        self.run(&script, &operation).await.map(drop)
    }

    pub(super) async fn terminate(&self, which: &str) -> Result<(), NodeError> {
        self.run(&self.script(TERMINATE).with("which", which), "stop the job").await.map(drop)
    }

    pub(super) async fn is_running(&self, which: &str) -> Result<bool, NodeError> {
        let is_it = |one: &ContainerSummary| one.name == which || one.id == which;
        Ok(self.list().await?.iter().any(|one| is_it(one) && one.state == ContainerState::Running))
    }

    pub(super) async fn last_lines(&self, which: &str, lines: u32) -> Result<String, NodeError> {
        let script = self.script(OUTPUT).with("which", which).with("lines", &lines.to_string());
        self.run(&script, &format!("read the output of {}", name_of(which))).await
    }

    /// Waits for the end of a main process. Its exit code is not known.
    pub(super) async fn wait(&self, which: &str) -> Result<(), NodeError> {
        self.wait_with(&self.script(WAIT).with("which", which)).await
    }

    /// Waits until a script has printed that a job has ended.
    pub(super) async fn wait_with(&self, script: &Script) -> Result<(), NodeError> {
        let operation = "wait for the end of the job";
        let process = self.transport.follow(script, operation).await?;
        let output = process.finish(b"").await.map_err(|error| self.transport.broken(operation, &error))?;
        let ended = self.transport.succeeded(output, operation)?;
        match ended.stdout.ends_with(b"ended\n") {
            true => Ok(()),
            false => Err(NodeError::failed(self.node(), operation, "the connection was lost")),
        }
    }

    fn entered<'a>(&self, directory: &'a str, which: &'a str, argv: &[&'a str]) -> Vec<&'a str> {
        [&["sh", "-c", ENTER, "sh", directory, which], argv].concat()
    }

    fn directory(&self, which: &str) -> String {
        format!("{}/{}", self.run_dir, name_of(which))
    }

    pub(super) async fn exec(&self, which: &str, argv: &[&str], operation: &str) -> Result<Process, NodeError> {
        let directory = self.directory(which);
        self.transport.spawn(RunAs::Login, &self.entered(&directory, which, argv), operation).await
    }

    pub(super) async fn run_in(
        &self,
        which: &str,
        argv: &[&str],
        input: &[u8],
        operation: &str,
        limit: Duration,
    ) -> Result<Output, NodeError> {
        let directory = self.directory(which);
        self.transport.run(RunAs::Login, &self.entered(&directory, which, argv), input, operation, limit).await
    }

    /// Starts a process that was created and stays connected to it by pipes, whose end it notices.
    pub(super) async fn start_attached(&self, which: &str, operation: &str) -> Result<Process, NodeError> {
        let directory = self.directory(which);
        let main = format!("{directory}/main");
        self.transport.spawn(RunAs::Login, &["sh", &main, &directory], operation).await
    }

    /// Starts a program on a terminal; `scripts/process/terminal.py` has the frames of its standard input.
    pub(super) async fn exec_on_pty(&self, which: &str, argv: &[&str], env: &[String]) -> Result<Process, NodeError> {
        let env: Vec<&str> = env.iter().map(String::as_str).collect();
        let argv = [&["env"], &env[..], &["python3", "-I", "-c", TERMINAL], argv].concat();
        self.exec(which, &argv, "open a shell").await
    }

    /// Returns the error of what processes have not.
    pub(super) fn without_engine(&self, operation: &str) -> NodeError {
        NodeError::failed(
            self.node(),
            operation,
            "the cluster has `runtime = \"process\"`, without containers and images",
        )
    }
}

/// Returns the name in an id, `NAME@SALT`.
pub(super) fn name_of(which: &str) -> &str {
    which.split('@').next().unwrap_or(which)
}

/// Reads a line of `process/list.sh`.
fn summary(line: &str) -> Option<ContainerSummary> {
    let mut parts = line.splitn(4, ' ');
    summary_of([parts.next()?, parts.next()?, parts.next()?, parts.next()?])
}

/// Returns what has this id, time of creation, state and labels.
pub(super) fn summary_of([id, created, state, labels]: [&str; 4]) -> Option<ContainerSummary> {
    let labels = serde_json::from_str(labels).ok()?;
    Some(ContainerSummary {
        name: name_of(id).to_owned(),
        id: id.to_owned(),
        image: String::new(),
        image_id: String::new(),
        state: ContainerState::parse(state),
        labels,
        created: created.parse().ok(),
        queue: None,
    })
}

/// Returns lines of sh that export variables, given as `NAME=VALUE`.
fn environment(variables: &[String]) -> String {
    let line = |variable: &String| {
        let (name, value) = variable.split_once('=').unwrap_or((variable, ""));
        format!("export {}", *quote::exported(name, value))
    };
    variables.iter().map(line).collect()
}

/// The mark of the line that reports a failed line of `activate` (`process/activate.sh`).
const ACTIVATE_FAILED: &str = "hvdctl: activate: ";

/// Returns whether a line of `activate` failed, by what a container has printed last.
pub fn has_activate_failed(output: &str) -> bool {
    output.lines().any(|line| line.starts_with(ACTIVATE_FAILED))
}

/// Returns the lines of bash that run those of the inventory, each of which must succeed, and then `begin`.
fn activate(lines: &[String]) -> String {
    let line = |line: &String| {
        let quoted = quote::always(line);
        match is_module(line) {
            // with `set -C`, a plain `>` does not write over a file
            true => format!(
                "hvdctl_listen; hvdctl_code=0; eval {quoted} 2>|\"$HVDCTL_PLACE/messages\" || hvdctl_code=$?\n\
                 hvdctl_module \"$hvdctl_code\" {quoted}\n"
            ),
            false => format!("eval {quoted} || hvdctl_fail {quoted} \"exit code $?\"\n"),
        }
    };
    let lines: String = lines.iter().map(line).collect();
    format!("{ACTIVATE}{lines}exec sh \"$HVDCTL_PLACE/begin\"\n")
}

/// Returns whether a line fails if it prints an error of `module`. A line that handles its failure itself does not.
fn is_module(line: &str) -> bool {
    matches!(line.split_whitespace().next(), Some("module" | "ml")) && !line.contains("||")
}

/// Returns a line of sh that makes an argument vector its own.
fn command(argv: &[String]) -> String {
    argv.iter().fold("set --".to_owned(), |line, argument| format!("{line} {}", quote::always(argument)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn what_a_node_lists_is_read() {
        let line = r#"hworker@a1 1700000000 running {"hvdctl.cluster":"lab","hvdctl.name":"hworker","x":"a b"}"#;
        let one = summary(line).unwrap();
        assert_eq!((one.name.as_str(), one.id.as_str(), one.state), ("hworker", "hworker@a1", ContainerState::Running));
        assert_eq!((one.label("x"), one.created), (Some("a b"), Some(1_700_000_000)));
        assert!(one.belongs_to("lab"));
        for broken in ["", "a", "a 1 running", "a 1 running {", "a 1 running []"] {
            assert_eq!(summary(broken), None, "{broken}");
        }
        assert_eq!(summary("a 1 odd {}").unwrap().state, ContainerState::Unknown);
    }

    #[test]
    fn lines_that_fail_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let run = |lines: &[&str]| {
            let lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
            std::fs::write(directory.path().join("activate"), activate(&lines)).unwrap();
            std::fs::write(directory.path().join("begin"), "echo \"$X\"").unwrap();
            let output = Command::new("bash")
                .arg(directory.path().join("activate"))
                .env("HVDCTL_PLACE", directory.path())
                .output();
            let output = output.unwrap();
            let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap().trim().to_owned();
            (output.status.code(), text(output.stdout), text(output.stderr))
        };
        assert_eq!(run(&["export X='it'\\''s 1'", "true; cd /"]), (Some(0), "it's 1".into(), String::new()));
        let (code, out, err) = run(&["export X=1", "sh -c 'exit 3'", "echo never"]);
        assert_eq!((code, out.as_str()), (Some(78), ""));
        assert_eq!(err, "hvdctl: activate: sh -c 'exit 3': exit code 3");
        assert!(has_activate_failed(&format!("a module\n{err}\n")) && !has_activate_failed(&format!("echo {err}")));
    }

    #[test]
    fn a_module_command_that_prints_an_error_fails() {
        let directory = tempfile::tempdir().unwrap();
        let module = "module() { printf '%s\\n' \"$@\" >&2; export LOADED=$1; }; ml() { module \"$@\"; }; set -Ceu";
        let run = |line: &str| {
            let lines = [module, line, "export AFTER=1"].map(str::to_owned);
            std::fs::write(directory.path().join("activate"), activate(&lines)).unwrap();
            std::fs::write(directory.path().join("begin"), "echo \"$LOADED\"").unwrap();
            let mut bash = Command::new("bash");
            let output = bash.arg(directory.path().join("activate")).env("HVDCTL_PLACE", directory.path()).output();
            let output = output.unwrap();
            assert!(!directory.path().join("messages").exists());
            let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
            (output.status.code(), text(output.stdout), text(output.stderr))
        };
        for error in [
            "ModuleCmd_Load.c(213):ERROR:105: Unable to locate a modulefile for 'x'",
            "+(0):ERROR:0: Unable to locate a modulefile for 'x'",
            "  ERROR: Unable to locate a modulefile for 'x'",
            "Lmod has detected the following error: unknown module",
        ] {
            let line = format!("ml Loading {}", quote::always(error));
            let (code, out, err) = run(&line);
            assert_eq!((code, out.as_str()), (Some(78), ""), "{error}");
            let why = "exit code 0, but it printed an error";
            assert_eq!(err, format!("Loading\n{error}\nhvdctl: activate: {line}: {why}\n"));
            assert!(has_activate_failed(&err));
            // the user's own choice, and the text of another command
            for fine in [format!("{line} || true"), format!("true; {line}")] {
                assert_eq!(run(&fine), (Some(0), "Loading\n".into(), format!("Loading\n{error}\n")), "{fine}");
            }
        }
        for fine in ["Note: ERROR: is what failed jobs print", "WARNING: deprecated", "Lmod Warning: x", "errors: 0"] {
            let said = run(&format!("  module Loading {}", quote::always(fine)));
            assert_eq!(said, (Some(0), "Loading\n".into(), format!("Loading\n{fine}\n")));
        }
        let (code, _, err) = run("module Loading; false");
        assert_eq!((code, err.as_str()), (Some(78), "Loading\nhvdctl: activate: module Loading; false: exit code 1\n"));
    }

    #[test]
    fn what_a_module_command_has_printed_is_shown_however_it_ends() {
        let directory = tempfile::tempdir().unwrap();
        let module = "module() { echo Loading >&2; eval \"$1\"; }; set -Cu";
        for shell in ["bash", "sh"] {
            for (ends, code) in [("exit 3", Some(3)), ("kill -TERM $$; sleep 9", None), ("echo $NOT_SET", Some(0))] {
                let lines = [module.to_owned(), format!("module {}", quote::always(ends))];
                std::fs::write(directory.path().join("activate"), activate(&lines)).unwrap();
                std::fs::write(directory.path().join("begin"), "echo never").unwrap();
                let mut run = Command::new(shell);
                let output = run.arg(directory.path().join("activate")).env("HVDCTL_PLACE", directory.path()).output();
                let output = output.unwrap();
                let err = String::from_utf8(output.stderr).unwrap();
                // dash runs no trap at a signal
                if code.is_some() || shell == "bash" {
                    assert!(
                        err.starts_with("Loading\n") && !directory.path().join("messages").exists(),
                        "{ends}: {err}"
                    );
                }
                match code {
                    Some(0) => assert!(err.contains("NOT_SET") && !output.status.success(), "{err}"),
                    code => assert_eq!(output.status.code(), code, "{ends}: {err}"),
                }
                assert!(output.stdout.is_empty());
            }
        }
    }

    #[test]
    fn the_command_is_what_it_was() {
        let argv = ["sh", "-c", "echo \"$1\"; # it's\n", "", "$HOME `x`"].map(str::to_owned).to_vec();
        let script = format!("{}\nprintf '%s\\0' \"$@\"", command(&argv));
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        let read: Vec<&[u8]> = output.stdout.split(|byte| *byte == 0).collect();
        assert_eq!(read[..read.len() - 1], argv.iter().map(String::as_bytes).collect::<Vec<_>>());
    }
}
