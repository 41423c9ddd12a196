//! `completions`, `man` and `schema`: files about hvdctl itself, for shells, readers and editors.

use super::Outcome;
use crate::cli::{Cli, Completions, Man};
use crate::error::Error;
use crate::inventory;
use anyhow::Context as _;
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use schemars::JsonSchema;
use serde::Serialize;
use std::io;
use std::path::Path;

/// `completions`, `man` and `schema`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct TextDocument {
    /// The output without `--json`.
    pub text: String,
}

/// `man --dir`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DirDocument {
    /// The directory with the manual pages.
    pub dir: String,
}

/// Prints the completions of a shell.
pub fn completions(options: &Completions) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut Cli::command(), "hvdctl", &mut script);
    printed(with_np(&String::from_utf8_lossy(&script), options.shell))
}

/// Adds `-np`, which clap does not know because it allows one letter after a single dash.
fn with_np(script: &str, shell: Shell) -> String {
    let twice = |sign: &str| -> String {
        let both = |line: &str| match line.contains(sign) {
            true => format!("{line}\n{}\n", line.replace("--np", "-np")),
            false => format!("{line}\n"),
        };
        script.lines().map(both).collect()
    };
    match shell {
        Shell::Bash => script.replace(" --np ", " -np --np ").replace(" --np)", " --np|-np)"),
        Shell::Fish => script.replace(" -l np ", " -l np -o np "),
        // with one colon zsh also completes options after the project
        Shell::Zsh => twice("'--np=").replace("\n'*::", "\n'*:"),
        Shell::Elvish => twice("cand --np "),
        Shell::PowerShell => twice("'--np'"),
        _ => script.to_owned(),
    }
}

/// Prints the manual pages of all commands, or writes each to a file.
///
/// # Errors
/// When they cannot be written.
pub fn man(options: &Man) -> Result<Outcome, Error> {
    let Some(dir) = &options.dir else {
        let mut pages = Vec::new();
        let mut all = Cli::command().disable_help_subcommand(true);
        all.build();
        render(&all, &mut pages).context("cannot format the manual page")?;
        return Ok(printed(String::from_utf8_lossy(&pages).into_owned()));
    };
    clap_mangen::generate_to(Cli::command(), dir)
        .map_err(|e| Error::usage(format!("cannot write to {}: {e}", dir.display()), "name a directory that exists"))?;
    Ok(written_to(dir))
}

/// Formats the pages of a command and of its subcommands, in which global options are hidden.
fn render(command: &Command, pages: &mut Vec<u8>) -> io::Result<()> {
    clap_mangen::Man::new(command.clone()).render(pages)?;
    command.get_subcommands().try_for_each(|command| {
        let hide = |arg: clap::Arg| if arg.is_global_set() { arg.hide(true) } else { arg };
        render(&command.clone().mut_args(hide), pages)
    })
}

pub(super) fn written_to(dir: &Path) -> Outcome {
    let text = format!("wrote hvdctl.1 and a page for each command to {}\n", dir.display());
    Outcome::ok(text, DirDocument { dir: dir.display().to_string() })
}

/// Prints the inventory's JSON Schema.
pub fn schema() -> Outcome {
    printed(inventory::schema())
}

pub(super) fn printed(text: String) -> Outcome {
    Outcome::ok(text.clone(), TextDocument { text })
}
