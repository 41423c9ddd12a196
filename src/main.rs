//! The binary: arguments in, exit code out.

use hvdctl::{cli, commands};
use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(commands::execute(cli::parse()))
}
