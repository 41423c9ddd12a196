//! The messages about a job that failed.

use super::faults::without_root_cause;
use super::outcome::JobOutcome;
use super::program::FailedProgram;
use crate::error::Error;
use crate::event::Message;
use crate::launch::{self, Launcher};
use crate::text::nodeset;

impl JobOutcome {
    /// Returns the warning about nodes on which processes may be left.
    pub fn silence(&self) -> Option<Message> {
        let nodes = nodeset::fold(&self.silent);
        let message = format!("no answer from {nodes} at the end of the job: ranks may still be running there");
        (!self.silent.is_empty()).then(|| Message::from(message).hint("hvdctl doctor --fix"))
    }

    /// Returns why the job failed and what to do next, as a warning about its root cause.
    ///
    /// # Errors
    /// If no rank caused that: then the program is not at fault, and the command fails.
    pub fn failure(&self, launcher: &Launcher, program: &FailedProgram<'_>) -> Result<Message, Error> {
        let Some(cause) = &self.root_cause else { return Err(without_root_cause(self, program.restarts_help)) };
        let role = self.placement.recorded_role(cause.rank);
        let launcher = role.map_or(launcher, |role| launch::launcher(role.launcher, role.controller));
        let of_role = role.map(|role| FailedProgram { command: &role.command, ..program.clone() });
        let program = of_role.as_ref().unwrap_or(program);
        let text = format!("{cause}; job {} failed{}", self.id, self.tail_of_rank());
        let on_start = || self.broken.as_ref().and_then(|failure| program.hint_on_start(failure));
        let on_output = || program.hint_on_output(&self.last_lines, launcher);
        let hint = cause.hint(launcher).or_else(on_start).or_else(on_output);
        let message = Message::from(text);
        Ok(match hint {
            Some(hint) => message.hint(hint),
            None => message,
        })
    }
}
