//! The part of `bench` that the ranks of a job do.

use crate::inventory::{Controller, LauncherName};
use crate::launch::{self, BACKENDS, COLLECTIVES};
use crate::start::request::JobProgram;
use serde_json::json;
use std::collections::BTreeSet;
use std::time::Duration;

/// The sizes by default, in bytes.
const SIZES: [u64; 10] =
    [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20];

/// The measurement that ranks are asked for.
#[derive(Debug, Clone, Copy)]
pub struct RankRequest<'a> {
    /// The sizes of the arrays in bytes; empty for the default.
    pub sizes: &'a [u64],
    /// The time for everything that may be left out.
    pub budget: Duration,
    /// If set, only every second size and fewer types are measured.
    pub is_quick: bool,
}

impl RankRequest<'_> {
    /// Returns the program of each rank.
    pub fn program(&self, launcher: LauncherName, controller: Controller) -> JobProgram {
        let every = if self.is_quick { 2 } else { 1 };
        let default = SIZES.into_iter().step_by(every);
        let sizes: BTreeSet<u64> =
            if self.sizes.is_empty() { default.collect() } else { self.sizes.iter().copied().collect() };
        let request = json!({
            "sizes": sizes,
            "all": !self.sizes.is_empty(),
            "budget": self.budget.as_secs_f64(),
            "quick": self.is_quick,
        });
        let request = request.to_string();
        let modules = launch::launcher(launcher, controller).verify_with;
        let command = ["python3", "collectives.py", &request].into_iter().chain(modules.iter().copied());
        JobProgram {
            name: "bench".into(),
            command: command.map(Into::into).collect(),
            files: vec![("collectives.py", COLLECTIVES.into()), ("backends.py", BACKENDS.into())],
            ..JobProgram::default()
        }
    }
}
