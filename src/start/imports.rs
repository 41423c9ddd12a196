//! The modules that a project's Python script imports first, sought in the image before the job starts.

use super::in_worker::{place, worker_of_image};
use super::plan::JobPlan;
use crate::error::Error;
use crate::launch::hints::{FailedProgram, KnownProject};
use crate::sync::files::ProjectFiles;
use crate::sync::manifest::Manifest;
use crate::text::argument::ProgramArgument;
use crate::text::nodeset::printable;
use std::collections::BTreeSet;
use std::time::Duration;

const FIND_IMPORTS: &str = include_str!("../scripts/worker/imports.py");

/// The longest script that is looked at, in bytes.
const MOST: u64 = 256 << 10;

/// The longest time that the answer may take. Without one the job starts: it will say itself what is missing.
const LIMIT: Duration = Duration::from_secs(20);

/// The options of Python that change nothing in what can be imported.
const OPTIONS: [&str; 4] = ["-u", "-O", "-OO", "-B"];

/// A script that a job starts with Python.
#[derive(Debug, PartialEq, Eq)]
struct Script {
    /// The program that runs it.
    python: String,
    /// Its path in the project.
    file: String,
}

impl Script {
    /// Returns the script of a command such as `python -u train.py --epochs 5`.
    fn of(command: &[ProgramArgument]) -> Option<Script> {
        let mut words = command.iter().map(ToString::to_string);
        let python = words.next()?;
        let is_found = python.starts_with('/') || !python.contains('/');
        let file = words.find(|word| !OPTIONS.contains(&word.as_str()))?;
        let name = python.rsplit('/').next().unwrap_or_default();
        let file = file.strip_prefix("./").unwrap_or(&file).to_owned();
        (is_found && name.starts_with("python") && file.ends_with(".py")).then_some(Script { python, file })
    }

    /// Returns the names of the modules next to it, which Python finds first.
    fn neighbours<'a>(&self, manifest: &'a Manifest) -> BTreeSet<&'a str> {
        let directory = self.file.rsplit_once('/').map_or(String::new(), |(directory, _)| format!("{directory}/"));
        let names = manifest.0.keys().filter_map(|path| path.strip_prefix(&directory));
        names.filter_map(|name| name.split(['/', '.']).next()).filter(|name| !name.is_empty()).collect()
    }
}

/// Returns the program that seeks the imports of a script.
fn program(script: &Script, files: &ProjectFiles) -> Option<String> {
    let (_, text) = files.head(&script.file, MOST)?;
    let text = serde_json::to_string(&String::from_utf8(text).ok()?).ok()?;
    let own = serde_json::to_string(&script.neighbours(&files.manifest)).ok()?;
    Some(format!("{FIND_IMPORTS}\n\ncheck({text}, {own})\n"))
}

/// Checks in a worker that is up that the image has what the script of a job imports before it does anything else.
/// Modules of which that cannot be found out are left to the job.
///
/// # Errors
/// [`Error::Check`] with the first module that is missing.
pub(super) async fn check(plan: &JobPlan) -> Result<(), Error> {
    let cluster = &plan.inventory.cluster;
    let Some(project) = &plan.program.project else { return Ok(()) };
    let Some(script) = Script::of(&plan.program.command) else { return Ok(()) };
    let changes = |name: &str| name.starts_with("PYTHON") || ["PATH", "HOME", "LD_LIBRARY_PATH"].contains(&name);
    if plan.hosts.all().flat_map(|host| host.environment.keys()).any(|name| changes(name)) {
        return Ok(());
    }
    let mut runtimes = plan.hosts.observed().map(|observed| &observed.runtime);
    let Some((runtime, worker)) = runtimes.find_map(|runtime| Some((runtime, worker_of_image(cluster, runtime)?)))
    else {
        return Ok(());
    };
    let Some(program) = program(&script, &project.files) else { return Ok(()) };
    let (argv, operation) = ([script.python.as_str(), "-"], "check the image for the program's modules");
    let found = runtime.engine.run_in(&worker.id, &argv, program.as_bytes(), operation, LIMIT).await;
    let output = found.map(|output| output.stdout).unwrap_or_default();
    let output = String::from_utf8_lossy(&output);
    let Some((module, line)) = output.trim().strip_prefix("missing ").and_then(|rest| rest.split_once(' ')) else {
        return Ok(());
    };
    let (module, line) = (printable(module), printable(line));
    let of_project = |name: &str| project.files.manifest.directory_of_module(name);
    let failed = FailedProgram {
        command: &plan.program.command,
        project: KnownProject::Modules(&of_project),
        directory: cluster.project_directory(&plan.program.name),
    };
    let message = format!("{} has no module {module}, which {} imports in line {line}", place(cluster), script.file);
    Err(Error::check(message, failed.hint_on_module(&module)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(command: &str) -> Option<(String, String)> {
        let command: Vec<ProgramArgument> = command.split(' ').map(Into::into).collect();
        Script::of(&command).map(|Script { python, file }| (python, file))
    }

    #[test]
    fn a_script_is_what_python_is_given() {
        let of = |python: &str, file: &str| Some((python.to_owned(), file.to_owned()));
        assert_eq!(script("python train.py --epochs 5"), of("python", "train.py"));
        assert_eq!(script("python3 -u -OO ./a/b.py"), of("python3", "a/b.py"));
        assert_eq!(script("/opt/venv/bin/python3.11 train.py"), of("/opt/venv/bin/python3.11", "train.py"));
        for other in ["python -m pkg.train", "python -I train.py", "venv/bin/python train.py", "./train.py", "sh a.py"]
        {
            assert_eq!(script(other), None, "{other}");
        }
    }
}
