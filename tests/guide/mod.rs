//! Guides (`docs/guide/*.md`) as programs: what their readers type, and what the page says that it prints.
//!
//! - A `console` block has commands on lines that begin with `$ ` (`> ` continues one), each followed by what it prints.
//! - A `sh` block is a script, each command of which has to succeed.
//! - A block of another language whose first line is a comment with a path (`# myproject/hvdctl.toml`) is that file.
//! - `<!-- exit code 1 -->` above a block: the exit code of its last command, otherwise 0; `0 or 1` allows both.
//! - `<!-- not executed: REASON -->` above a block: it is not.
//!
//! All blocks of a guide run in one shell, in their order. Output is compared in shape: see [`differences`].

use regex::Regex;
use std::sync::LazyLock;

/// A part of a guide that is executed, or that says why it is not.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// A command, the lines that it prints and the exit codes that it may have.
    Command { line: usize, text: String, output: Vec<String>, codes: Vec<i32> },
    /// A script, of which only the success counts.
    Script { line: usize, text: String },
    /// A file that the reader writes.
    File { line: usize, path: String, text: String },
    /// A block that is not executed, with its first line and the reason.
    Skipped { line: usize, first: String, reason: String },
}

/// The output of a step, and its exit code; `None` if it did not end.
#[derive(Debug, PartialEq, Eq)]
pub struct Outcome {
    pub output: String,
    pub code: Option<i32>,
}

/// Reads the steps of a guide.
///
/// # Errors
///
/// The block that is not valid, with its line.
pub fn steps(markdown: &str) -> Result<Vec<Step>, String> {
    let mut steps = Vec::new();
    let (mut codes, mut reason) = (None, None);
    let mut lines = markdown.lines().enumerate().map(|(at, line)| (at + 1, line));
    while let Some((at, line)) = lines.next() {
        let line = line.trim();
        if let Some(number) = comment(line, "exit code ") {
            let found: Result<Vec<i32>, _> = number.split(" or ").map(str::parse).collect();
            codes = Some(found.map_err(|_| format!("line {at}: {number:?} is no exit code"))?);
        } else if let Some(text) = comment(line, "not executed: ") {
            reason = Some(text.to_owned());
        } else if let Some(language) = line.strip_prefix("```") {
            let mut text = Vec::new();
            loop {
                match lines.next() {
                    Some((_, line)) if line.trim() == "```" => break,
                    Some((_, line)) => text.push(line),
                    None => return Err(format!("line {at}: a block without an end")),
                }
            }
            let block = Block { line: at, language, text: &text, codes: codes.take(), reason: reason.take() };
            block.read(&mut steps)?;
        } else if !line.is_empty() && (codes.is_some() || reason.is_some()) {
            return Err(format!("line {at}: the comment above belongs to no block"));
        }
    }
    Ok(steps)
}

/// The rest of a comment that begins with this text.
fn comment<'a>(line: &'a str, begin: &str) -> Option<&'a str> {
    line.strip_prefix("<!-- ")?.strip_suffix(" -->")?.strip_prefix(begin)
}

struct Block<'a> {
    line: usize,
    language: &'a str,
    text: &'a [&'a str],
    codes: Option<Vec<i32>>,
    reason: Option<String>,
}

impl Block<'_> {
    fn read(self, steps: &mut Vec<Step>) -> Result<(), String> {
        let line = self.line;
        let first = || self.text.first().copied().unwrap_or_default().to_owned();
        let file = self.text.first().and_then(|first| first.strip_prefix("# ")).filter(|path| is_path(path));
        let is_executed = ["sh", "console"].contains(&self.language) || file.is_some();
        if !is_executed || self.codes.is_some() && self.language != "console" {
            let useless = self.codes.is_some() || self.reason.is_some();
            return if useless { Err(format!("line {line}: the comment above belongs to no command")) } else { Ok(()) };
        }
        if let Some(reason) = self.reason {
            steps.push(Step::Skipped { line, first: first(), reason });
            return Ok(());
        }
        match (self.language, file) {
            ("console", _) => return self.commands(steps),
            ("sh", _) => steps.push(Step::Script { line, text: self.text.join("\n") }),
            (_, Some(path)) => {
                steps.push(Step::File { line, path: path.to_owned(), text: self.text[1..].join("\n") + "\n" });
            }
            _ => {}
        }
        Ok(())
    }

    fn commands(&self, steps: &mut Vec<Step>) -> Result<(), String> {
        let before = steps.len();
        for (at, line) in self.text.iter().enumerate() {
            let line_number = self.line + 1 + at;
            match (line.strip_prefix("$ "), line.strip_prefix("> "), steps[before..].last_mut()) {
                (Some(command), _, _) => steps.push(Step::Command {
                    line: line_number,
                    text: command.to_owned(),
                    output: Vec::new(),
                    codes: vec![0],
                }),
                (_, Some(more), Some(Step::Command { text, output, .. })) if output.is_empty() => {
                    *text += "\n";
                    *text += more;
                }
                (_, _, Some(Step::Command { output, .. })) => output.push((*line).to_owned()),
                _ => return Err(format!("line {line_number}: output without a command")),
            }
        }
        match (steps[before..].last_mut(), &self.codes) {
            (Some(Step::Command { codes, .. }), Some(wanted)) => codes.clone_from(wanted),
            (Some(_), _) => {}
            (None, _) => return Err(format!("line {}: a block without a command", self.line)),
        }
        Ok(())
    }
}

/// Returns true if a comment is the path of a file, and nothing else.
fn is_path(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    text.chars().all(plain) && (text.contains('.') || text.ends_with("Dockerfile")) && !text.starts_with(['/', '.'])
}

/// Separates what the steps print; no program writes it.
const MARK: &str = "\u{1e}hvdctl-guide";

/// A script for bash that runs the steps. It ends at the first one with another exit code than its own.
pub fn script(steps: &[Step]) -> String {
    let mut script = "exec 2>&1\n".to_owned();
    for step in steps {
        let (text, codes) = match step {
            Step::Command { text, codes, .. } => (text.clone(), &codes[..]),
            // the shell ends at the first command that fails, so that its end is missing
            Step::Script { text, .. } => (format!("set -e\n{text}\nset +e"), &[0][..]),
            Step::File { path, text, .. } => {
                (format!("mkdir -p {}\nprintf %s {} >{}", quote(&parent(path)), quote(text), quote(path)), &[0][..])
            }
            Step::Skipped { .. } => continue,
        };
        script += &format!("printf '%s\\n' {}\n", quote(&format!("{MARK} begin")));
        // programs must not read the rest of this script
        script += &format!("eval {} </dev/null\n", quote(&text));
        script += &format!("code=$?; printf '\\n%s %s\\n' {} \"$code\"\n", quote(&format!("{MARK} end")));
        let codes: Vec<String> = codes.iter().map(i32::to_string).collect();
        script += &format!("case $code in {}) ;; *) exit 1 ;; esac\n", codes.join("|"));
    }
    script
}

fn parent(path: &str) -> String {
    path.rsplit_once('/').map_or(".", |(parent, _)| parent).to_owned()
}

/// A text as a word of a POSIX shell.
fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Returns the outcome of each step of a script that was run, as far as it came.
pub fn outcomes(output: &str) -> Vec<Outcome> {
    let (begin, end) = (format!("{MARK} begin\n"), format!("{MARK} end "));
    let parts = output.split(&begin).skip(1);
    parts
        .map(|part| match part.split_once(&end) {
            Some((output, end)) => {
                Outcome { output: output.to_owned(), code: end.lines().next().and_then(|code| code.parse().ok()) }
            }
            None => Outcome { output: part.to_owned(), code: None },
        })
        .collect()
}

/// In what a run of a guide differs from the guide; empty if it is as the page says.
pub fn differences(steps: &[Step], outcomes: &[Outcome]) -> Vec<String> {
    let mut found = Vec::new();
    let mut outcomes = outcomes.iter();
    for step in steps {
        let (line, text, wanted, expected) = match step {
            Step::Skipped { .. } => continue,
            Step::Command { line, text, output, codes } => (line, text.as_str(), &codes[..], Some(output)),
            Step::Script { line, text } => (line, text.as_str(), &[0][..], None),
            Step::File { line, path, .. } => (line, path.as_str(), &[0][..], None),
        };
        let Some(outcome) = outcomes.next() else {
            found.push(format!("line {line}: `{text}` was not reached"));
            return found;
        };
        if !outcome.code.is_some_and(|code| wanted.contains(&code)) {
            let code = outcome.code.map_or("none".to_owned(), |code| code.to_string());
            let output = outcome.output.trim_end();
            found.push(format!("line {line}: `{text}`: exit code {code}, not {wanted:?}\n{output}"));
            return found;
        }
        if let Some(fault) = expected.and_then(|expected| compare(expected, &outcome.output)) {
            found.push(format!("line {line}: `{text}`: {fault}\n--- it prints\n{}", outcome.output.trim_end()));
        }
    }
    found
}

/// Compares lines of a guide with an output, in shape: each stands for all that differ from it only in numbers, times,
/// sizes, versions, ids and the width of columns. `…` stands for any text, as a line of its own for any lines. The lines
/// of each rank (`[0 node1] …`) are compared in their order, and all others, since ranks write at the same time. What
/// hvdctl writes otherwise than on a terminal is taken as it is there: no time before a message (`12:03:04Z warning: …`),
/// and no line for each step of a node (`12:03:04Z node1: …`).
///
/// Returns what is missing, or too much.
pub fn compare(expected: &[String], output: &str) -> Option<String> {
    let expected: Vec<String> = expected.iter().filter(|line| !line.trim().is_empty()).cloned().collect();
    let output: Vec<&str> = output
        .lines()
        .filter(|line| !line.trim().is_empty() && !PROGRESS.is_match(line))
        .map(|line| TIME.find(line).map_or(line, |time| &line[time.end()..]))
        .collect();
    let mut streams: Vec<Option<&str>> = vec![None];
    for line in expected.iter().map(String::as_str).chain(output.iter().copied()) {
        let rank = rank_of(line);
        if !streams.contains(&rank) {
            streams.push(rank);
        }
    }
    let is_shortened = expected.iter().any(|line| line.trim() == "…");
    for stream in streams {
        let wanted: Vec<String> = expected
            .iter()
            .filter(|line| line.trim() == "…" || rank_of(line) == stream)
            .map(|line| shape(line))
            .collect();
        let printed: Vec<String> =
            output.iter().filter(|line| rank_of(line) == stream).map(|line| shape(line)).collect();
        // a rank of which the page shows nothing
        let is_left_out = is_shortened && wanted.iter().all(|line| line == "…");
        if !is_left_out && !lines_match(&wanted, &printed) {
            return Some(first_difference(&wanted, &printed));
        }
    }
    None
}

static PROGRESS: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^\d\d:\d\d:\d\dZ node[\[\],0-9-]+: ").unwrap());
static TIME: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^\d\d:\d\d:\d\dZ ").unwrap());
static RANK: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^\[\d+ [^\]\s]+\]").unwrap());

/// The rank and node before a line of a rank.
fn rank_of(line: &str) -> Option<&str> {
    RANK.find(line.trim_start()).map(|found| found.as_str())
}

/// A line without what differs from one run to the next.
fn shape(line: &str) -> String {
    static RULES: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
        [
            (r"\b\d{8}-\d{6}-[a-z0-9]{4}\b", "ID"),
            (r"SHA256:[A-Za-z0-9+/=]{20,}", "FINGERPRINT"),
            (r"\b[a-z_][a-z0-9_-]*@[A-Za-z0-9.-]+\b", "OPERATOR"),
            (r"\b[0-9a-f]{8,}\b", "#"),
            (r"\b\d+\s?(d|h|min|m|s)( \d+\s?(h|min|m|s))+\b", "#"),
            // what begins with a digit, and does not end a sentence: an address, a version, a time, a size
            (r"(^|[\s(\[{<=:,/~+`'-])\d[^\s)\]}>,;/`']*", "$1#"),
            (r"#(\s?(d|h|min|s|ms|µs|B|KiB|MiB|GiB|TiB|[kMG]B|[KMG]?bytes?|[KMG]b/#?s|[kMGT]?B/#?s|[MG]?FLOP/s|M/s|%))+\b", "#"),
            (r"# %", "#"),
            (r"#( #)? ago\b", "# ago"),
            (r"\s+", " "),
        ]
        .map(|(pattern, by)| (Regex::new(pattern).unwrap(), by))
        .into()
    });
    let mut text = line.trim().to_owned();
    for (pattern, by) in RULES.iter() {
        text = pattern.replace_all(&text, *by).into_owned();
    }
    text
}

/// Returns true if lines match, where a line `…` stands for any number of them.
fn lines_match(expected: &[String], printed: &[String]) -> bool {
    match expected.split_first() {
        None => printed.is_empty(),
        Some((first, rest)) if first == "…" => (0..=printed.len()).any(|skip| lines_match(rest, &printed[skip..])),
        Some((first, rest)) => {
            printed.split_first().is_some_and(|(line, left)| line_matches(first, line) && lines_match(rest, left))
        }
    }
}

/// Returns true if a line matches, where `…` stands for any text.
fn line_matches(expected: &str, line: &str) -> bool {
    let mut pieces = expected.split('…');
    let Some(mut rest) = line.strip_prefix(pieces.next().unwrap_or_default()) else { return false };
    let mut pieces: Vec<&str> = pieces.collect();
    let Some(last) = pieces.pop() else { return rest.is_empty() };
    for piece in pieces {
        match rest.split_once(piece) {
            Some((_, after)) => rest = after,
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// The first line that a page expects in vain, or the first one that it does not expect.
fn first_difference(wanted: &[String], printed: &[String]) -> String {
    let mut at = 0;
    let mut may_skip = false;
    for line in wanted {
        if line == "…" {
            may_skip = true;
            continue;
        }
        let found = printed[at..].iter().position(|other| line_matches(line, other));
        match found {
            Some(skipped) if skipped == 0 || may_skip => at += skipped + 1,
            Some(_) => return format!("{:?} is not on the page", printed[at]),
            None => return format!("no {line:?}"),
        }
        may_skip = false;
    }
    printed
        .get(at)
        .map_or_else(|| "the lines are in another order".into(), |line| format!("{line:?} is not on the page"))
}
