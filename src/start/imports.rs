//! The modules that a project's Python script imports first, sought in the image before the job starts.

use super::in_worker::{place, worker_of_image};
use super::plan::JobPlan;
use crate::cluster::observation::ObservedNode;
use crate::diagnosis::program::{FailedProgram, KnownProject};
use crate::error::Error;
use crate::paths::WORKSPACE;
use crate::runtime::container::ContainerSummary;
use crate::runtime::spec::LABEL_WORKSPACE;
use crate::sync::files::ProjectFiles;
use crate::sync::manifest::Manifest;
use crate::sync::upload::Workspace;
use crate::text::argument::ProgramArgument;
use crate::text::nodeset::printable;
use std::collections::BTreeSet;
use std::time::Duration;

const FIND_IMPORTS: &str = include_str!("../scripts/worker/imports.py");

/// The longest script that is looked at, in bytes.
const MOST: u64 = 256 << 10;

/// The longest time that the answer may take. Without one the job starts: it will say itself what is missing.
const LIMIT: Duration = Duration::from_secs(10);

/// The options of Python that change nothing in what can be imported.
const OPTIONS: [&str; 4] = ["-u", "-O", "-OO", "-B"];

/// A Python script that a job starts.
#[derive(Debug, PartialEq, Eq)]
struct PythonScript {
    /// The program that runs it.
    python: String,
    /// Its path in the project.
    file: String,
}

impl PythonScript {
    /// Returns the script of a command such as `python -u train.py --epochs 5`.
    fn of(command: &[ProgramArgument]) -> Option<PythonScript> {
        let mut words = command.iter().map(ToString::to_string);
        let python = words.next()?;
        let is_found = python.starts_with('/') || !python.contains('/');
        let file = words.find(|word| !OPTIONS.contains(&word.as_str()))?;
        let name = python.rsplit('/').next().unwrap_or_default();
        let file = file.strip_prefix("./").unwrap_or(&file).to_owned();
        (is_found && name.starts_with("python") && file.ends_with(".py")).then_some(PythonScript { python, file })
    }

    /// Returns the names of the modules next to it, which Python finds first.
    fn neighbours<'a>(&self, manifest: &'a Manifest) -> BTreeSet<&'a str> {
        let directory = self.file.rsplit_once('/').map_or(String::new(), |(directory, _)| format!("{directory}/"));
        let names = manifest.0.keys().filter_map(|path| path.strip_prefix(&directory));
        names.filter_map(|name| name.split(['/', '.']).next()).filter(|name| !name.is_empty()).collect()
    }
}

/// Returns the program that seeks the imports of a script. `project`: the project's directory where ranks run.
fn program(script: &PythonScript, files: &ProjectFiles, project: &str) -> Option<String> {
    let (_, text) = files.head(&script.file, MOST)?;
    let directory = script.file.rsplit_once('/').map_or("", |(directory, _)| directory);
    let text = serde_json::to_string(&String::from_utf8(text).ok()?).ok()?;
    let directory = serde_json::to_string(&format!("{project}/{directory}")).ok()?;
    let own = serde_json::to_string(&script.neighbours(&files.manifest)).ok()?;
    Some(format!("{FIND_IMPORTS}\n\ncheck({text}, {directory}, {own})\n"))
}

/// A module that the worker of a node does not find.
pub(super) struct MissingModule<'a> {
    /// The name of the node.
    pub node: &'a str,
    worker: &'a ContainerSummary,
    error: Error,
}

impl MissingModule<'_> {
    /// Checks that an earlier job of the project may have left the module where the worker does not see it: it sees only
    /// the project that is mounted in it. `place`: the project's directory on the node.
    ///
    /// # Errors
    /// [`Error::Check`] with the module, the line and the ways to get it.
    pub fn check(self, place: Option<&Workspace>) -> Result<(), Error> {
        let mounted = self.worker.label(LABEL_WORKSPACE);
        let sees_all = |place: &Workspace| place.is_new || mounted == Some(place.directory.as_str());
        if place.is_some_and(sees_all) { Err(self.error) } else { Ok(()) }
    }
}

/// Seeks in a worker that is up what the scripts of a job, one of each role, import before they do anything else. Returns
/// the first module that is missing; `None` where that cannot be found out, which is left to the job.
pub(super) async fn missing<'a>(plan: &'a JobPlan) -> Option<MissingModule<'a>> {
    let changes = |name: &str| name.starts_with("PYTHON") || ["PATH", "HOME", "LD_LIBRARY_PATH"].contains(&name);
    if plan.hosts.all().flat_map(|host| host.environment.keys()).any(|name| changes(name)) {
        return None;
    }
    let roles = plan.options.roles.iter().enumerate();
    let roles = roles.filter(|(_, role)| !role.project.env.keys().any(|name| changes(name)));
    let commands: Vec<(Option<usize>, &[ProgramArgument])> = match plan.options.roles.is_empty() {
        true => vec![(None, &plan.program.command)],
        false => roles.map(|(number, role)| (Some(number), &role.project.command[..])).collect(),
    };
    for (role, command) in commands {
        let missing = missing_of(plan, role, command).await;
        if missing.is_some() {
            return missing;
        }
    }
    None
}

/// Returns the first module that is missing of those that the script of a command imports. `role`: the role whose command
/// it is.
async fn missing_of<'a>(
    plan: &'a JobPlan,
    role: Option<usize>,
    command: &[ProgramArgument],
) -> Option<MissingModule<'a>> {
    let cluster = &plan.inventory.cluster;
    let (project, script) = (plan.program.project.as_ref()?, PythonScript::of(command)?);
    let with_worker = |observed: &'a ObservedNode| Some((observed, worker_of_image(cluster, &observed.runtime)?));
    // that of the launcher's node has no project mounted
    let hosts = plan.hosts.others.iter().chain([&plan.hosts.launcher]);
    let hosts = hosts.filter(|host| role.is_none() || host.ranks_of(role) > 0);
    let (observed, worker) = hosts.map(|host| &host.observed).find_map(with_worker)?;
    let directory = cluster.project_directory(&plan.program.name);
    let program = program(&script, &project.files, directory.as_deref().unwrap_or(WORKSPACE))?;
    let (argv, operation) = ([script.python.as_str(), "-"], "check the image for the program's modules");
    let engine = &observed.runtime.engine;
    let output = engine.run_in(&worker.id, &argv, program.as_bytes(), operation, LIMIT).await.ok()?.stdout;
    let output = String::from_utf8_lossy(&output);
    let (module, line) = output.trim().strip_prefix("missing ")?.split_once(' ')?;
    let (module, line) = (printable(module), printable(line));
    let of_project = |name: &str| project.files.manifest.directory_of_module(name);
    let failed = FailedProgram {
        command,
        project: KnownProject::Modules(&of_project),
        directory,
        restarts_help: false,
        ports: Vec::new(),
    };
    let message = format!(
        "{} has no module {module}, which {} imports in line {line}",
        place(&observed.runtime.image_name(cluster)),
        script.file
    );
    let error = Error::check(message, failed.hint_on_module(&module));
    Some(MissingModule { node: observed.name(), worker, error })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(command: &str) -> Option<(String, String)> {
        let command: Vec<ProgramArgument> = command.split(' ').map(Into::into).collect();
        PythonScript::of(&command).map(|PythonScript { python, file }| (python, file))
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
