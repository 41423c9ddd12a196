//! The programs that `train` starts: the command of a project, or its roles.

use crate::cli::{self, LauncherChoice};
use crate::cluster::target::Target;
use crate::error::Error;
use crate::inventory::Cluster;
use crate::launch::job_size::JobSize;
use crate::launch::placement::{MapBy, RankCount};
use crate::model::launcher::LauncherName;
use crate::model::role_size::RoleSize;
use crate::start::environments::check_runtime;
use crate::start::request::check_ranks;
use crate::start::roles::{JobRole, RoleOptions, choose};
use crate::sync::project::{self, ProjectCommand, ProjectFile, ProjectRole};
use crate::text::argument::ProgramArgument;
use std::path::Path;

/// The program of a job, or its programs.
pub(super) struct JobCommand {
    /// The program and its arguments; those of the first role.
    pub argv: Vec<ProgramArgument>,
    /// Set if neither the user nor `hvdctl.toml` has named it.
    pub is_default: bool,
    /// The launcher of its ranks.
    pub launcher: LauncherName,
    /// The roles, if the project has any.
    pub roles: Vec<JobRole>,
}

/// Returns the number of ranks, unless each role has its own.
pub(super) fn ranks(options: &cli::Train) -> Option<RankCount> {
    options.np.as_ref().and_then(JobSize::ranks)
}

/// Checks that something says how many ranks there are, and that all nodes have slots for these. Ranks of roles may take
/// none.
///
/// # Errors
/// Neither the options nor roles say it; there are too few slots; `hvdctl.toml` cannot be read.
pub(super) fn check_size(options: &cli::Train, target: &Target) -> Result<(), Error> {
    // a project that cannot be found is an error after this one
    let root = project::find(&options.project).ok();
    let file = root.map(|root| ProjectFile::read(&root)).transpose()?;
    if file.is_some_and(|file| !file.roles.is_empty()) {
        return Ok(());
    }
    if options.np.is_none() && options.running.best.is_none() {
        return Err(Error::usage(
            "the number of ranks is missing: train needs -np N, or --best N for all slots of the N best nodes",
            format!("hvdctl train {} -np 2", options.project.display()),
        ));
    }
    // too many ranks for all nodes are too many for some
    check_ranks(target, ranks(options), options.running.gpus_per_node)
}

/// Returns what the ranks of a job run.
///
/// # Errors
/// No command, or more than one; roles that are not as the options say; what roles do not support.
pub(super) fn command(root: &Path, options: &cli::Train, target: &Target) -> Result<JobCommand, Error> {
    let (file, given, cluster) = (ProjectFile::read(root)?, options.command.clone(), target.cluster());
    let (choice, of_project) = (&options.running.launching.choice, file.launcher);
    let names_roles =
        options.role.is_some() || matches!(options.np, Some(JobSize::Roles(_))) || !target.of_roles.is_empty();
    if file.roles.is_empty() && !names_roles {
        let ProjectCommand { argv, is_default, launcher } = project::command(root, file, given)?;
        let launcher = choice.launcher(launcher, cluster)?;
        return Ok(JobCommand { argv, is_default, launcher, roles: Vec::new() });
    }
    let on = target.of_roles.keys().map(String::as_str).collect();
    let asked = RoleOptions { size: options.np.as_ref(), only: options.role.as_deref(), command: given, on };
    let chosen = choose(file.roles, asked)?;
    check_options(&options.running)?;
    let mut roles = with_launchers(chosen, choice, of_project, cluster)?;
    roles.iter_mut().for_each(|role| role.nodes = target.of_roles.get(&role.project.name).cloned());
    check_runtime(&roles, cluster)?;
    let argv = roles[0].project.command.clone();
    Ok(JobCommand { argv, is_default: false, launcher: roles[0].launcher, roles })
}

/// Returns roles with their launchers. `of_project`: that of the project's file.
///
/// # Errors
/// A launcher that the cluster or the options do not go with.
pub(in crate::commands::start) fn with_launchers(
    chosen: Vec<(ProjectRole, RoleSize)>,
    choice: &LauncherChoice,
    of_project: Option<LauncherName>,
    cluster: &Cluster,
) -> Result<Vec<JobRole>, Error> {
    let own: Vec<Option<LauncherName>> = chosen.iter().map(|(role, _)| role.launcher).collect();
    let launchers = choice.launchers(&own, of_project, cluster)?;
    let controller = choice.controller(cluster.controller);
    let role = |((project, size), launcher): ((ProjectRole, _), _)| JobRole {
        controller,
        ..JobRole::new(project, size, launcher, cluster)
    };
    Ok(chosen.into_iter().zip(launchers).map(role).collect())
}

/// Refuses the options that a job with roles does not have.
fn check_options(running: &cli::Running) -> Result<(), Error> {
    let sizes = "use `nodes`, `ranks_per_node` and `gpus` of each role in hvdctl.toml";
    let refused = [
        (running.gpus_per_node.is_some(), "--gpus-per-node", sizes),
        (running.map_by != MapBy::default(), "--map-by", sizes),
        (running.elastic.is_some(), "--elastic", "leave it out: a job with roles has a fixed number of ranks"),
        (running.reset_limit.is_some(), "--reset-limit", "leave it out: a job with roles has a fixed number of ranks"),
    ];
    match refused.into_iter().find(|(is_given, ..)| *is_given) {
        None => Ok(()),
        Some((_, option, hint)) => Err(Error::usage(format!("a job with roles does not take {option}"), hint)),
    }
}
