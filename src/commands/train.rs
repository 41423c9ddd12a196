//! `hvdctl train` and `hvdctl run`.

use super::{Context, Outcome, observe_all, unless_signalled};
use crate::cli;
use crate::core::job::State;
use crate::core::project;
use crate::edge::tree::Tree;
use crate::error::{Error, exit};
use crate::event::Event;
use crate::ops::run::{Cwd, Options, Program, Ran, check_ranks, run as run_program, tail};
use crate::ops::ship::Project;
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};

/// `train`.
pub async fn train(options: cli::Train, context: Context) -> Result<Outcome, Error> {
    check_ranks(&context.target, Some(options.np))?;
    let root = folder(&options.project)?;
    let command = command(&root, &options.command)?;
    let (tree, root) = unless_signalled(&context.cancel, async {
        tokio::task::spawn_blocking(move || Tree::read(&root).map(|tree| (tree, root)))
            .await
            .map_err(|e| Error::Here(format!("could not read the project: {e}")))?
    })
    .await?;
    let name = root.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let shared = options.name_on_nodes.is_some();
    let program = Program {
        name: project::folder_name(&options.name_on_nodes.unwrap_or(name)),
        command,
        cwd: Cwd::Workspace,
        project: Some(Project { origin: origin(&root), tree, shared }),
        files: Vec::new(),
    };
    go(program, options.np, &options.launching, context).await
}

/// `run`.
pub async fn run(options: cli::Run, context: Context) -> Result<Outcome, Error> {
    check_ranks(&context.target, Some(options.np))?;
    let name = Path::new(&options.command[0]).file_name().map(|n| n.to_string_lossy().into_owned());
    let program = Program {
        name: project::folder_name(&name.unwrap_or_default()),
        command: options.command,
        cwd: Cwd::Root,
        project: None,
        files: Vec::new(),
    };
    go(program, options.np, &options.launching, context).await
}

async fn go(program: Program, np: u32, launching: &cli::Launching, context: Context) -> Result<Outcome, Error> {
    let nodes = observe_all(&context).await?;
    let Context { target, events, cancel, verbose, .. } = context;
    let cluster = target.cluster();
    let how = Options {
        ranks: Some(np),
        controller: launching.controller(cluster.controller),
        show_output: true,
        show_launcher: verbose > 1,
        limit: None,
    };
    let ran = run_program(&target, nodes, &program, &how, &events, cancel, |_, _| {}).await?;
    if ran.state != State::Succeeded {
        failed(&ran, &events)?;
    }
    // an exit code that a process can have; anything else is the engine's business
    let code = u8::try_from(ran.code).unwrap_or(exit::AROUND);
    let code = if ran.state == State::Succeeded { exit::OK } else { code };
    let document = json!({ "event": "end", "ok": code == exit::OK, "code": code, "run": ran });
    Ok(Outcome { code, text: String::new(), document, failed: Vec::new() })
}

/// Says who failed; where no rank did, the launcher itself has failed, and that is not the program's doing.
fn failed(ran: &Ran, events: &crate::event::Events) -> Result<(), Error> {
    match &ran.first_failure {
        Some(e) => {
            let how = match e.code {
                code @ (126 | 127) => format!("ended with exit code {code} (could not be started)"),
                code @ 129.. => format!("was killed by signal {}", code - 128),
                code => format!("ended with exit code {code}"),
            };
            events.send(Event::Warning(format!("rank {} on {} {how}; the run {} has failed", e.rank, e.node, ran.id)));
            Ok(())
        }
        None => {
            let what =
                if ran.all_started { "the launcher ended before its ranks" } else { "not every rank could be started" };
            Err(Error::check(
                format!("{what} (horovodrun: exit code {}){}", ran.code, tail(&ran.launcher)),
                "hvdctl verify shows whether the cluster itself works",
            ))
        }
    }
}

/// Where a project comes from, `HOST:FOLDER`.
fn origin(root: &Path) -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}:{}", host.trim(), root.display())
}

fn folder(path: &Path) -> Result<PathBuf, Error> {
    let shown = path.display();
    let hint = "name the project's folder, e.g. hvdctl train ./myproject -np 2";
    let root = fs::canonicalize(path).map_err(|e| Error::usage(format!("the project {shown}: {e}"), hint))?;
    if !root.is_dir() {
        return Err(Error::usage(format!("the project {shown} is not a folder"), hint));
    }
    if root.file_name().is_none() {
        return Err(Error::usage(format!("{shown} is the whole file system"), hint));
    }
    Ok(root)
}

fn command(root: &Path, given: &[String]) -> Result<Vec<String>, Error> {
    let own = root.join("hvdctl.toml");
    let file = match fs::read_to_string(&own) {
        Ok(text) => Some(text),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
        Err(e) => return Err(Error::usage(format!("{}: {e}", own.display()), "mend or remove it")),
    };
    let has = |name: &str| root.join(name).is_file();
    project::command(given, file.as_deref(), has("train.py"), has("main.py")).map_err(|e| {
        Error::usage(
            format!("the project {} has no clear entry: {e}", root.display()),
            "say it: hvdctl train PROJECT -np N -- python your_script.py",
        )
    })
}
