//! The binary: arguments in, exit code out.

use hvdctl::{cli, commands};
use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(if cli::is_relay() { commands::relay() } else { commands::execute(cli::parse()) })
}
