//! Hints on programs that ask something at a terminal: ranks have no input.

use regex::Regex;
use std::sync::LazyLock;

/// The answer to questions in general.
const OPTION: &str = "ranks have no input: pass what it asks for by an option or a variable of the program or its \
                      library";
/// The way to pass a key.
const KEY: &str = "pass it by --env-file, or by -e with the name alone, which takes the value from your environment: \
                   arguments are shown to others";

/// Texts of programs that ask or that miss the answer, each with the hint.
const QUESTIONS: &[(&[&str], QuestionAnswer)] = &[
    // `breakpoint()`, pdb
    (
        &["bdb.BdbQuit"],
        QuestionAnswer::Text(
            "a debugger waits for input, and ranks have none: remove breakpoint(), or set -e PYTHONBREAKPOINT=0",
        ),
    ),
    // transformers, datasets, vLLM
    (
        &["trust_remote_code=True"],
        QuestionAnswer::Text(
            "ranks have no input, so the question is not asked: read the code, then pass trust_remote_code=True in the \
             program, or the option that it has for this (--trust-remote-code)",
        ),
    ),
    // wandb
    (
        &["api_key not configured", "No API key configured. Use `wandb login`", "wandb: Enter your choice"],
        QuestionAnswer::Key("WANDB_API_KEY", "; WANDB_MODE=offline needs none"),
    ),
    // huggingface_hub, also where a model is gated
    (
        &[
            "huggingface-cli login",
            "hf auth login",
            "Cannot access gated repo",
            "be authenticated to access it. Please log in",
            "LocalTokenNotFoundError",
        ],
        QuestionAnswer::Key("HF_TOKEN", ""),
    ),
    (&["Could not find kaggle.json"], QuestionAnswer::Key("KAGGLE_KEY and KAGGLE_USERNAME", "")),
    (
        &["NeptuneMissingApiTokenException", "The API token was not provided"],
        QuestionAnswer::Key("NEPTUNE_API_TOKEN", ""),
    ),
    (&["Comet.ml requires an API key", "Comet requires an API key"], QuestionAnswer::Key("COMET_API_KEY", "")),
    (
        &["ClearML configuration could not be found"],
        QuestionAnswer::Key("CLEARML_API_ACCESS_KEY and CLEARML_API_SECRET_KEY", ""),
    ),
    // git and pip over https
    (
        &["could not read Username for", "could not read Password for", "terminal prompts disabled"],
        QuestionAnswer::Text(
            "git asks for a login, and ranks have no input: bring the repository with the project, or install it in the \
             image (`setup` in hvdctl.toml)",
        ),
    ),
    // input(), getpass, click, inquirer, prompt_toolkit, apt
    (
        &[
            "EOFError: EOF when reading a line",
            "GetPassWarning",
            "termios.error: (25, ",
            "Input is not a terminal (fd=0)",
            "the input device is not a TTY",
            "[Y/n] Abort.",
        ],
        QuestionAnswer::Text(OPTION),
    ),
];

/// The hint where a program asks.
enum QuestionAnswer {
    /// This.
    Text(&'static str),
    /// Set the variable of this name to a secret; with what else helps.
    Key(&'static str, &'static str),
}

/// The end of a question that is answered with yes or no: `Overwrite? [y/N]:`.
static YES_OR_NO: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?i)[\[(]\[?y(?:es)?\]?/\[?n(?:o)?\]?[\])]\s*[?:]*\s*$").expect("a valid pattern"));

/// Returns a hint on a line of a program that asks something.
pub(super) fn question(line: &str) -> Option<String> {
    let found = QUESTIONS.iter().find(|(texts, _)| texts.iter().any(|text| line.contains(text)));
    match found.map(|(_, answer)| answer) {
        Some(QuestionAnswer::Text(text)) => Some((*text).to_owned()),
        Some(QuestionAnswer::Key(name, besides)) => {
            Some(format!("ranks have no input, and not your logins: set {name} for them, and {KEY}{besides}"))
        }
        None if YES_OR_NO.is_match(line) || ["Aborted!", "Aborted."].contains(&line.trim()) => Some(OPTION.to_owned()),
        None => None,
    }
}

/// Returns whether this is the end of a traceback of getpass, which says no more: `EOFError`, as multiprocessing says
/// as well.
pub(super) fn is_getpass(line: &str, lines: &[String]) -> bool {
    line.trim() == "EOFError" && lines.iter().any(|line| line.contains("getpass"))
}

/// Returns the hint on a question of getpass.
pub(super) fn secret() -> String {
    format!("ranks have no input: set a variable that the program reads instead, and {KEY}")
}
