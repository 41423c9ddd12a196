//! The pages of `docs/reference` have the commands as clap defines them, which is what `--help` prints.

mod described;

use clap::builder::PossibleValue;
use clap::{Arg, ArgAction, Command, CommandFactory};
use hvdctl::cli::Cli;
use regex::Regex;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// The text that begins a generated block, before its name.
const BEGIN: &str = "<!-- generated: ";

/// The line that ends a generated block.
const END: &str = "<!-- end -->";

/// The block with the options of every command.
const GLOBAL: &str = "options of every command";

/// The block with a list of all commands.
const COMMANDS: &str = "commands";

/// The blocks that are not of one command.
const OTHER_BLOCKS: [&str; 7] =
    [GLOBAL, COMMANDS, "nodes of each command", "commands under Slurm", "signals", "locks", "exit codes"];

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference")
}

/// The pages by name, without those that are generated otherwise.
fn pages() -> BTreeMap<String, String> {
    let files = fs::read_dir(directory()).unwrap().map(|entry| entry.unwrap().path());
    let pages = files.filter(|file| file.extension().is_some_and(|extension| extension == "md"));
    pages
        .map(|file| (file.file_name().unwrap().to_str().unwrap().to_owned(), fs::read_to_string(&file).unwrap()))
        .collect()
}

/// The visible commands that can be called as they are, by name, as in `keys push`.
fn commands() -> BTreeMap<String, Command> {
    fn collect(command: &Command, before: &str, found: &mut BTreeMap<String, Command>) {
        for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set() && inner.get_name() != "help") {
            let name = format!("{before}{}", inner.get_name());
            collect(inner, &format!("{name} "), found);
            if !inner.is_subcommand_required_set() {
                found.insert(name, inner.clone());
            }
        }
    }
    let mut all = Cli::command();
    all.build();
    let mut found = BTreeMap::new();
    collect(&all, "", &mut found);
    found
}

/// A page with its blocks as `render` makes them of their names. `None` from it is a fault.
fn rendered(page: &str, render: &mut dyn FnMut(&str, &str) -> Result<String, String>) -> Result<String, String> {
    let (mut text, mut heading, mut lines) = (String::new(), "", page.lines());
    while let Some(line) = lines.next() {
        text.push_str(&format!("{line}\n"));
        if line.starts_with('#') {
            heading = line.trim_start_matches('#').trim();
        }
        if let Some(name) = line.strip_prefix(BEGIN).and_then(|rest| rest.strip_suffix(" -->")) {
            lines.find(|line| *line == END).ok_or_else(|| format!("{name} has no {END}"))?;
            text.push_str(&format!("\n{}\n{END}\n", render(name, heading)?));
        }
    }
    Ok(text)
}

#[test]
fn each_command_is_in_one_page_as_clap_defines_it() {
    let (commands, pages) = (commands(), pages());
    let mut places: BTreeMap<String, String> = BTreeMap::new();
    // first only the places, of which the list of all commands is made
    for (page, text) in &pages {
        let mut note = |name: &str, heading: &str| {
            match (commands.contains_key(name), heading == name) {
                (true, false) => return Err(format!("{name} is below the heading {heading:?}")),
                (false, _) if !OTHER_BLOCKS.contains(&name) => return Err(format!("{name} is no command")),
                _ => {}
            }
            match places.insert(name.to_owned(), page.clone()) {
                Some(other) => Err(format!("{name} is also in {other}")),
                None => Ok(String::new()),
            }
        };
        rendered(text, &mut note).unwrap_or_else(|fault| panic!("docs/reference/{page}: {fault}"));
    }
    for name in commands.keys().map(String::as_str).chain(OTHER_BLOCKS) {
        let block = format!("{BEGIN}{name} -->\n{END}");
        assert!(places.contains_key(name), "no page of docs/reference has the block\n\n{block}");
    }
    let mut outdated = Vec::new();
    for (page, old) in &pages {
        let mut render = |name: &str, _: &str| {
            Ok(match name {
                GLOBAL => table(Cli::command().get_arguments().filter(|argument| argument.is_global_set())),
                COMMANDS => list(&commands, &places),
                name => described::block(name).unwrap_or_else(|| block(&commands[name])),
            })
        };
        let new = rendered(old, &mut render).unwrap();
        if *old != new {
            outdated.push(page);
            if std::env::var_os("UPDATE_DOCS").is_some() {
                fs::write(directory().join(page), new).unwrap();
            }
        }
    }
    let is_updated = outdated.is_empty() || std::env::var_os("UPDATE_DOCS").is_some();
    assert!(is_updated, "out of date: {outdated:?}; UPDATE_DOCS=1 cargo test --test reference");
}

/// A list of all commands in the order of `--help`, with a link to each.
fn list(commands: &BTreeMap<String, Command>, places: &BTreeMap<String, String>) -> String {
    let mut text = String::from("| command | |\n|---|---|\n");
    let mut row = |name: &str| {
        if let Some(command) = commands.get(name) {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            let (page, anchor) = (&places[name], name.replace(' ', "-"));
            text.push_str(&format!("| [`{name}`]({page}#{anchor}) | {} |\n", prose(&about)));
        }
    };
    for command in Cli::command().get_subcommands() {
        row(command.get_name());
        command.get_subcommands().for_each(|inner| row(&format!("{} {}", command.get_name(), inner.get_name())));
    }
    text
}

/// Usage, arguments, options and exit codes of a command.
fn block(command: &Command) -> String {
    let usage = command.clone().render_usage().to_string();
    let usage: Vec<&str> = usage.lines().map(|line| line.trim_start_matches("Usage:").trim()).collect();
    let mut text = format!("```text\n{}\n```\n", usage.join("\n"));
    let aliases: Vec<String> = command.get_visible_aliases().map(|alias| format!("`{alias}`")).collect();
    if !aliases.is_empty() {
        text.push_str(&format!("\nAlias: {}.\n", aliases.join(", ")));
    }
    let is_own = |argument: &&Arg| {
        let id = argument.get_id();
        !argument.is_global_set() && !argument.is_hide_set() && id != "help" && id != "version"
    };
    let (positional, options): (Vec<&Arg>, Vec<&Arg>) =
        command.get_arguments().filter(is_own).partition(|argument| argument.is_positional());
    if !positional.is_empty() || !options.is_empty() {
        text.push_str(&format!("\n{}", table(positional.into_iter().chain(options))));
    }
    let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    if let Some(codes) = after.split("\n\n").find(|paragraph| paragraph.starts_with("Exit codes:")) {
        text.push_str(&format!("\n{}\n", prose(codes)));
    }
    text
}

fn table<'a>(arguments: impl Iterator<Item = &'a Arg>) -> String {
    let rows = arguments.map(|argument| format!("| {} | {} |\n", name(argument), meaning(argument)));
    format!("| option | meaning |\n|---|---|\n{}", rows.collect::<String>())
}

/// An argument as it is typed: `-o`, `--output FILE`.
fn name(argument: &Arg) -> String {
    let values = argument.get_value_names().unwrap_or_default().join(" ");
    if argument.is_positional() {
        let more = if matches!(argument.get_action(), ArgAction::Append) { "…" } else { "" };
        let dashes = if argument.is_last_set() { "-- " } else { "" };
        return code(&format!("{dashes}{values}{more}"));
    }
    let value = match (argument.get_action().takes_values(), argument.get_num_args()) {
        (false, _) => String::new(),
        (true, Some(number)) if number.min_values() == 0 => format!(" [{values}]"),
        _ => format!(" {values}"),
    };
    let short = argument.get_short().map(|short| format!("-{short}"));
    let long = argument.get_long().map(|long| format!("--{long}"));
    let spellings: Vec<String> = short.into_iter().chain(long).collect();
    let (last, others) = spellings.split_last().unwrap();
    let others: String = others.iter().map(|spelling| format!("{}, ", code(spelling))).collect();
    others + &code(&format!("{last}{value}"))
}

/// Returns the meaning of an argument, with its values and its default.
fn meaning(argument: &Arg) -> String {
    static DEFAULT: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\s*\[default( with [^:]+)?: (.+?)\]$").unwrap());
    static VARIABLE: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\s*\[env: (.+?)\]$").unwrap());
    let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
    let help = DEFAULT.replace(&help, ". Default$1: $2").into_owned();
    let mut text = prose(&VARIABLE.replace(&help, ". Environment variable: $1"));
    let takes_values = argument.get_action().takes_values();
    let values: Vec<PossibleValue> = match takes_values {
        true => argument.get_possible_values().into_iter().filter(|value| !value.is_hide_set()).collect(),
        false => Vec::new(),
    };
    if values.iter().any(|value| value.get_help().is_some()) {
        let row = |value: &PossibleValue| {
            let help = value.get_help().map(ToString::to_string).unwrap_or_default();
            format!("<br>{}: {}", code(value.get_name()), prose(&help))
        };
        text.push_str(&values.iter().map(row).collect::<String>());
        text.push_str("<br>");
    } else if !values.is_empty() {
        let names: Vec<String> = values.iter().map(|value| code(value.get_name())).collect();
        text.push_str(&format!(". One of {}. ", names.join(", ")));
    } else {
        text.push_str(". ");
    }
    if let Some(variable) = argument.get_env() {
        text.push_str(&format!("Environment variable: {}. ", code(&variable.to_string_lossy())));
    }
    if takes_values && !argument.get_default_values().is_empty() {
        let defaults: Vec<_> = argument.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
        text.push_str(&format!("Default: {}", code(&defaults.join(","))));
    }
    let text = text.trim_end().trim_end_matches("<br>").trim_end_matches('.').to_owned();
    text.replace("\n", " ")
}

/// Text in a code span in a table.
fn code(text: &str) -> String {
    format!("`{}`", text.replace('|', "\\|"))
}

/// A help text as Markdown in a table: what is typed, and paths and fields, in code spans.
fn prose(text: &str) -> String {
    static TYPED: LazyLock<Regex> = LazyLock::new(|| {
        let typed = [
            r"`[^`]*`",                                           // already a span
            r"--?[a-z][a-z-]*(?:=[^\s;,]+| [A-Z]+(?::[A-Z]+)?)?", // options
            r"\$[A-Z_]+[\w/.]*",                                  // variables
            r"[~.]?/[\w./-]*[\w/]",                               // paths
            r"\b(?:cluster|slurm)\.\w+",                          // fields
            r"\b[\w./-]+\.(?:toml|txt|py|lock|json|conf)\b",      // files
            r"\S*\[\S*\]\S*",                                     // ranges, and what may be left out
            r"\bHVDCTL_\w+(?:=\w+)?",
        ];
        Regex::new(&format!(r"(^|[\s(,])({})", typed.join("|"))).unwrap()
    });
    let one_line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let spans = TYPED.replace_all(&one_line, |found: &regex::Captures| {
        let typed = found[2].trim_matches('`');
        let typed = typed.trim_end_matches([',', ';', ':', '.']);
        let rest = &found[2].trim_matches('`')[typed.len()..];
        format!("{}`{typed}`{rest}", &found[1])
    });
    static PAGE: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"docs/reference/([\w-]+\.md)").unwrap());
    PAGE.replace_all(&spans, "[$1]($1)").replace('|', "\\|")
}
