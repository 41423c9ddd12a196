//! The program of the ranks of `verify`, and their reports.

use crate::bench::verdict::answers::RankLine;
use crate::checks::verify::RankReport;
use crate::inventory::{Controller, LauncherName};
use crate::launch::{self, BACKENDS, COLLECTIVES, PLACE, VERIFY};
use crate::start::request::JobProgram;
use serde::Deserialize;

/// The scope of a verification.
#[derive(Debug, Clone, Copy, Default)]
pub struct VerifyScope {
    /// Set if every collective operation is checked in every type, and the GPUs with DCGM.
    pub full: bool,
    /// The bus bandwidth that allreduce must reach, in bytes a second.
    pub minimum: Option<u64>,
}

impl VerifyScope {
    /// Returns whether the ranks run collective operations besides one allreduce.
    pub fn has_collectives(self) -> bool {
        self.full || self.minimum.is_some()
    }

    /// Returns the program of each rank.
    pub fn program(self, launcher: LauncherName, controller: Controller) -> JobProgram {
        let backends = launch::launcher(launcher, controller).verify_with;
        let options = [self.full.then_some("--full"), self.minimum.map(|_| "--busbw")].into_iter().flatten();
        let command = ["python3", "verify.py"].into_iter().chain(options).chain(backends.iter().copied());
        let mut files =
            vec![("verify.py", VERIFY.into()), ("backends.py", BACKENDS.into()), ("place.py", PLACE.into())];
        files.extend(self.has_collectives().then_some(("collectives.py", COLLECTIVES.into())));
        JobProgram { name: "verify".into(), command: command.map(Into::into).collect(), files, ..JobProgram::default() }
    }
}

/// A line of a rank.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum VerifyLine {
    /// Its identity and place.
    Report(Box<RankReport>),
    /// Of a collective operation.
    Collective(RankLine),
}
