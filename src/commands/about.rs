//! `completions`, `man` and `schema`: hvdctl's own words, for shells, readers and editors.

use super::{Outcome, output};
use crate::cli::{Cli, Completions, Man};
use crate::error::{Error, exit};
use crate::inventory;
use clap::builder::StyledStr;
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::roff::{Roff, bold, roman};
use std::path::Path;

/// Prints what completes hvdctl's words in a shell.
pub fn completions(options: &Completions) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut Cli::command(), "hvdctl", &mut script);
    printed(with_np(&String::from_utf8_lossy(&script), options.shell))
}

/// `-np` is no option to clap, which knows one dash with one letter only, and so none to what it writes for the shells.
/// It may stand behind the project, where zsh would offer none.
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
        // with two colons everything behind the first word would be its own, and no option be offered there
        Shell::Zsh => twice("'--np=").replace("\n'*::", "\n'*:"),
        Shell::Elvish => twice("cand --np "),
        Shell::PowerShell => twice("'--np'"),
        _ => script.to_owned(),
    }
}

/// Prints the manual page, or writes all pages into a directory.
///
/// # Errors
/// When they cannot be written.
pub fn man(options: &Man) -> Result<Outcome, Error> {
    let failed = |e: std::io::Error| Error::Here(format!("cannot write the manual page: {e}"));
    let page = page().map_err(failed)?;
    let Some(dir) = &options.dir else { return Ok(printed(String::from_utf8_lossy(&page).into_owned())) };
    let written = |dir: &Path| {
        clap_mangen::generate_to(Cli::command(), dir)?;
        std::fs::write(dir.join("hvdctl.1"), &page)
    };
    written(dir).map_err(|e| {
        Error::usage(format!("cannot write to {}: {e}", dir.display()), "name a directory that is there")
    })?;
    Ok(written_to(dir))
}

pub(super) fn written_to(dir: &Path) -> Outcome {
    let text = format!("wrote hvdctl.1 and a page for each command to {}\n", dir.display());
    Outcome::new(exit::OK, text, &output::Dir { ok: true, dir: dir.display().to_string() }, Vec::new())
}

/// Prints the inventory's JSON Schema.
pub fn schema() -> Outcome {
    printed(inventory::schema())
}

pub(super) fn printed(text: String) -> Outcome {
    Outcome::new(exit::OK, text.clone(), &output::Text { ok: true, text }, Vec::new())
}

/// One page about everything: what hvdctl itself takes, then each command.
fn page() -> std::io::Result<Vec<u8>> {
    let mut all = Cli::command().disable_help_subcommand(true);
    all.build();
    let man = clap_mangen::Man::new(all.clone());
    let version = all.get_version().unwrap_or_default();
    // without a date, so that the same version has the same page wherever it is built
    let mut page = format!(".TH HVDCTL 1 \"\" \"hvdctl {version}\" \"hvdctl\"\n").into_bytes();
    man.render_name_section(&mut page)?;
    heading("SH", "SYNOPSIS", &mut page)?;
    usage(&all, &mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    heading("SH", "COMMANDS", &mut page)?;
    for command in all.get_subcommands() {
        about(command, &mut page)?;
    }
    heading("SH", "NOTES", &mut page)?;
    paragraphs(all.get_after_help(), &mut page)?;
    Ok(page)
}

/// A command with its options, and those that it consists of.
fn about(command: &Command, page: &mut Vec<u8>) -> std::io::Result<()> {
    if command.has_subcommands() {
        return command.get_subcommands().try_for_each(|command| about(command, page));
    }
    // what every command takes stands above once
    let own = command.clone().mut_args(|arg| {
        let common = arg.is_global_set() || matches!(arg.get_id().as_str(), "help" | "version");
        if common { arg.hide(true) } else { arg }
    });
    heading("SS", command.get_bin_name().unwrap_or_else(|| command.get_name()), page)?;
    usage(command, page)?;
    paragraphs(command.get_about(), page)?;
    let aliases: Vec<&str> = command.get_visible_aliases().collect();
    if !aliases.is_empty() {
        let words = [roman("The same as "), bold(format!("hvdctl {}", aliases.join(", "))), roman(".")];
        Roff::new().control("PP", []).text(words).to_writer(page)?;
    }
    let mut options = Vec::new();
    clap_mangen::Man::new(own).render_options_section(&mut options)?;
    // the section's own heading would end the command's
    let lines = options.split_inclusive(|byte| *byte == b'\n');
    page.extend(lines.filter(|line| !line.starts_with(b".SH")).flatten());
    paragraphs(command.get_after_help(), page)
}

fn heading(level: &str, text: &str, page: &mut Vec<u8>) -> std::io::Result<()> {
    Roff::new().control(level, [text]).to_writer(page)
}

/// How it is called, in clap's own words.
fn usage(command: &Command, page: &mut Vec<u8>) -> std::io::Result<()> {
    let usage = command.clone().render_usage().to_string();
    Roff::new().text([bold(usage.trim_start_matches("Usage: ").trim())]).to_writer(page)
}

fn paragraphs(text: Option<&StyledStr>, page: &mut Vec<u8>) -> std::io::Result<()> {
    let Some(text) = text else { return Ok(()) };
    for line in text.to_string().lines().filter(|line| !line.trim().is_empty()) {
        Roff::new().control("PP", []).text([roman(line)]).to_writer(page)?;
    }
    Ok(())
}
