//! The binary: arguments in, exit code out.

use clap::Parser;
use hvdctl::cli::{Cli, rewrite};
use hvdctl::commands;
use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(commands::execute(Cli::parse_from(rewrite(std::env::args_os()))))
}
