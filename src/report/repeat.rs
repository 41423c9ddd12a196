//! The command that starts a job again, as far as its record has it.

use crate::model::launcher::{Controller, LauncherName};
use crate::record::Record;
use crate::text::quote;

/// Returns the name of a controller, as an option has it.
pub(super) fn controller(controller: Controller) -> &'static str {
    match controller {
        Controller::Gloo => "gloo",
        Controller::Mpi => "mpi",
    }
}

/// Returns the command; `None`: the program is hvdctl's own, in the job's directory. Variables are not in it, as their
/// values are not recorded.
pub(super) fn command(record: &Record) -> Option<String> {
    let of_job = format!("/{}/", record.id);
    if record.command.iter().any(|argument| argument.to_string().contains(&of_job)) {
        return None;
    }
    let placement = &record.placement;
    let mut words = vec!["hvdctl".to_owned()];
    match &record.project {
        Some(project) => words.extend(["train".to_owned(), format!("./{project}")]),
        None => words.push("run".to_owned()),
    }
    let ranks = match (record.min_ranks, record.max_ranks) {
        (Some(min), max) => format!("{min}:{}", max.unwrap_or(placement.ranks())),
        (None, _) => placement.ranks().to_string(),
    };
    words.extend(["-np".to_owned(), ranks]);
    if record.launcher != LauncherName::Horovodrun {
        words.extend(["--launcher".to_owned(), record.launcher.to_string()]);
    }
    words.extend(record.controller.map(|controller| format!("--{}", self::controller(controller))));
    if record.restarts > 0 {
        words.extend(["--restarts".to_owned(), record.restarts.to_string()]);
    }
    if record.stall > 0 {
        words.extend(["--stall-timeout".to_owned(), format!("{}s", record.stall)]);
    }
    words.extend(record.bind.map(|bind| format!("--bind={bind}")));
    let shared = placement.shares.iter().filter(|share| share.shared).map(|share| share.ranks).max();
    words.extend(shared.into_iter().flat_map(|slots| ["--gpus-per-node".to_owned(), slots.to_string()]));
    if record.log_progress {
        words.push("--log-progress".to_owned());
    }
    let command = quote::command(&words);
    Some(match record.default_command {
        true => command,
        false => format!("{command} -- {}", quote::command(&record.command)),
    })
}
