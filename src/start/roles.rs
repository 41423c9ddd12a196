//! The roles of a job as they were asked for: those of the project, with what the command line says of them.

use crate::error::Error;
use crate::inventory::{Cluster, Pull};
use crate::launch::job_size::JobSize;
use crate::launch::placement::RankCount;
use crate::launch::role_placement::RoleShape;
use crate::launch::{self, Launcher};
use crate::model::launcher::{Controller, LauncherName};
use crate::model::role::{Ends, RecordedRole};
use crate::model::role_size::RoleSize;
use crate::secret::Secret;
use crate::sync::project::ProjectRole;
use crate::text::argument::ProgramArgument;
use std::collections::BTreeMap;

/// A role of a job.
#[derive(Debug, Clone)]
pub struct JobRole {
    /// The role as the project describes it.
    pub project: ProjectRole,
    /// The number of its ranks.
    pub size: RoleSize,
    /// The launcher, which starts its ranks.
    pub launcher: LauncherName,
    /// Horovod's controller, for `horovodrun`.
    pub controller: Controller,
    /// The names of the nodes that it may have; `None`: all that are selected.
    pub nodes: Option<Vec<String>>,
    /// Its image, if that is not the cluster's.
    pub image: Option<RoleImage>,
}

/// The image of a role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleImage {
    /// Its name.
    pub name: String,
    /// When the role's nodes get it, and from where.
    pub pull: Pull,
}

impl JobRole {
    /// Returns a role of a project with its own image, if it names one, and without options of the command line.
    pub fn new(project: ProjectRole, size: RoleSize, launcher: LauncherName, cluster: &Cluster) -> JobRole {
        let image = project.environment.image.clone().map(|name| RoleImage { name, pull: cluster.pull });
        JobRole { project, size, launcher, controller: cluster.controller, nodes: None, image }
    }

    /// Returns the launcher.
    pub fn launcher(&self) -> &'static Launcher {
        launch::launcher(self.launcher, self.controller)
    }

    /// Returns the number of GPUs (or of slots, where there are none) of each rank.
    pub fn gpus(&self) -> u32 {
        self.project.gpus.unwrap_or(1)
    }

    /// Returns it as it is placed.
    pub fn shape(&self) -> RoleShape<'_> {
        let ProjectRole { name, beside, .. } = &self.project;
        RoleShape { name, size: self.size, gpus: self.gpus(), beside: *beside, nodes: self.nodes.as_deref() }
    }

    /// Returns the variables that its project and the operator (`given`) set for its ranks.
    pub fn variables(&self, given: &BTreeMap<String, Secret>) -> BTreeMap<String, Secret> {
        let own = self.project.env.iter().map(|(name, value)| (name.clone(), Secret::plain(value.as_str())));
        own.chain(given.iter().map(|(name, value)| (name.clone(), value.clone()))).collect()
    }

    /// Returns it as a job's record has it.
    pub(super) fn recorded(&self) -> RecordedRole {
        RecordedRole {
            name: self.project.name.clone(),
            launcher: self.launcher,
            controller: self.launcher.has_controller().then_some(self.controller),
            command: self.project.command.clone(),
            gpus: self.gpus(),
            ends: self.project.ends,
        }
    }

    /// Returns true if the job ends with it.
    pub(super) fn ends_the_job(&self) -> bool {
        self.project.ends == Ends::Job
    }
}

/// The options of the command line about the roles of a project.
#[derive(Debug, Clone, Default)]
pub struct RoleOptions<'a> {
    /// `-np`.
    pub size: Option<&'a JobSize>,
    /// `--role`: the only role of the job.
    pub only: Option<&'a str>,
    /// `-- COMMAND…`.
    pub command: Vec<ProgramArgument>,
    /// The roles that `--on` names.
    pub on: Vec<&'a str>,
}

/// Returns the roles of a job, each with its size.
///
/// # Errors
/// An unknown role; one without a size; a size or a command that may be that of several roles; an elastic job.
pub fn choose(roles: Vec<ProjectRole>, options: RoleOptions<'_>) -> Result<Vec<(ProjectRole, RoleSize)>, Error> {
    let names: Vec<String> = roles.iter().map(|role| role.name.clone()).collect();
    let known = || match names.is_empty() {
        true => "its hvdctl.toml has no [[role]]".to_owned(),
        false => format!("the roles of the project are {}", names.join(", ")),
    };
    let unknown = |name: &str| Error::usage(format!("the project has no role {name}"), known());
    if let Some(other) = options.on.iter().find(|name| !names.iter().any(|known| known == *name)) {
        return Err(unknown(other));
    }
    let mut roles = roles;
    if let Some(JobSize::Roles(sizes)) = options.size {
        for (name, ranks) in sizes {
            let role = roles.iter_mut().find(|role| role.name == *name).ok_or_else(|| unknown(name))?;
            role.size = Some(RoleSize::Ranks(*ranks));
        }
    }
    if let Some(only) = options.only {
        let role = roles.into_iter().find(|role| role.name == only).ok_or_else(|| unknown(only))?;
        roles = vec![ProjectRole { needs: Vec::new(), beside: None, ends: Ends::Job, ..role }];
    }
    let several = format!("for one role only: --role {}", names.join(" or --role "));
    match (options.size, roles.as_mut_slice()) {
        (Some(JobSize::Ranks(RankCount { min: Some(_), .. })), _) => {
            return Err(Error::usage("a job with roles cannot be elastic", "use -np NAME=N,… without MIN:MAX"));
        }
        (Some(JobSize::Ranks(RankCount { max, .. })), [role]) => role.size = Some(RoleSize::Ranks(*max)),
        (Some(JobSize::Ranks(RankCount { max, .. })), _) => {
            let sizes: Vec<String> = names.iter().map(|name| format!("{name}=N")).collect();
            let why = format!("-np {max} does not say of which role: {}", known());
            return Err(Error::usage(why, format!("-np {}; {several}", sizes.join(","))));
        }
        _ => {}
    }
    match roles.as_mut_slice() {
        _ if options.command.is_empty() => {}
        [role] => role.command = options.command,
        _ => return Err(Error::usage(format!("the command after -- has no role: {}", known()), several)),
    }
    let sized = |role: ProjectRole| {
        let size = role.size.ok_or_else(|| {
            let hint = format!("-np {}=N, or `ranks`, `nodes` or `ranks_per_node` in hvdctl.toml", role.name);
            Error::usage(format!("the role {} has no number of ranks", role.name), hint)
        })?;
        Ok((role, size))
    };
    roles.into_iter().map(sized).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::project::ProjectFile;

    const FILE: &str = "[[role]]\nname = 'trainer'\ncommand = ['a']\nranks = 4\n\
                        [[role]]\nname = 'generator'\ncommand = ['b']\nbeside = 'trainer'\nneeds = ['trainer']\n";

    fn chosen(size: Option<&str>, only: Option<&str>, command: &[&str]) -> Result<String, String> {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("hvdctl.toml"), FILE).unwrap();
        let roles = ProjectFile::read(directory.path()).unwrap().roles;
        let size: Option<JobSize> = size.map(|size| size.parse().unwrap());
        let command = command.iter().map(|part| (*part).into()).collect();
        let options = RoleOptions { size: size.as_ref(), only, command, on: Vec::new() };
        let roles = choose(roles, options).map_err(|e| e.to_string())?;
        let shown = roles.into_iter().map(|(ProjectRole { name, command, beside, needs, ends, .. }, size)| {
            format!("{name} {} {size:?} {beside:?} {needs:?} {ends:?}", command[0])
        });
        Ok(shown.collect::<Vec<_>>().join("; "))
    }

    #[test]
    fn the_command_line_replaces_sizes_and_may_leave_one_role() {
        let with = "With { role: 0 }";
        assert_eq!(
            chosen(Some("generator=2,trainer=8"), None, &[]),
            Ok(format!("trainer a Ranks(8) None [] Job; generator b Ranks(2) Some(0) [0] {with}"))
        );
        assert_eq!(chosen(None, Some("trainer"), &[]), Ok("trainer a Ranks(4) None [] Job".to_owned()));
        let alone = Ok("generator x Ranks(3) None [] Job".to_owned());
        assert_eq!(chosen(Some("3"), Some("generator"), &["x"]), alone);
        assert_eq!(chosen(Some("generator=3"), Some("generator"), &["x"]), alone);
        for (size, only, command, words) in [
            (None, None, &[][..], "the role generator has no number of ranks\n  hint: -np generator=N"),
            (Some("4"), None, &[], "-np 4 does not say of which role: the roles of the project are trainer, generator"),
            (Some("2:4"), None, &[], "a job with roles cannot be elastic"),
            (Some("x=4"), None, &[], "no role x\n  hint: the roles of the project are trainer, generator"),
            (None, Some("x"), &[], "no role x\n  hint: the roles of the project are trainer, generator"),
            (Some("generator=1"), None, &["x"], "the command after -- has no role"),
        ] {
            let error = chosen(size, only, command).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        for options in [
            RoleOptions { only: Some("x"), ..RoleOptions::default() },
            RoleOptions { on: vec!["x"], ..RoleOptions::default() },
        ] {
            let none = choose(Vec::new(), options).unwrap_err().to_string();
            assert!(none.contains("has no role x") && none.contains("its hvdctl.toml has no [[role]]"), "{none}");
        }
    }
}
