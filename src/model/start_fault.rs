//! Reasons why Linux cannot start a file as a program.

use crate::text::nodeset::printable;
use crate::text::quote::readable;
use schemars::JsonSchema;
use serde::Deserialize;
use std::fmt;

/// The fault of a program's file. The operator's files show the first of these before the start; a rank supervisor
/// finds all of them afterwards (`src/scripts/programs/supervisor/starting.py`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StartFault {
    /// It has no permission bit for it.
    NotExecutable,
    /// Its first line ends with a carriage return.
    LineEnds,
    /// It begins with a byte order mark.
    ByteOrderMark,
    /// It is a text without a first line that names an interpreter.
    NoInterpreter,
    /// The permission bit is missing too.
    NoInterpreterEither,
    /// It is a program for another system.
    OtherSystem,
    /// It is a program for another processor.
    OtherProcessor,
    /// It is an actually portable executable.
    Portable,
    /// The interpreter that its first line names is not there.
    InterpreterMissing,
    /// The loader that it names is not there.
    LoaderMissing,
    /// It is in the directory of the ranks, but not in PATH.
    NotInPath,
    /// `python` is missing, and `python3` is there.
    OnlyPython3,
    /// A fault that only a later build knows.
    #[serde(other)]
    Unknown,
}

/// Why a rank supervisor could not start a program, as its frame of the log has it. Only here it becomes a text.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum StartFailure {
    /// As a rank supervisor records it.
    Found {
        /// The program.
        program: String,
        /// The message of the system.
        error: String,
        /// The fault behind it, if it was found.
        fault: Option<StartFault>,
        /// The subject of the fault: the first line, the interpreter, the system or the directory.
        about: Option<String>,
    },
    /// A text, as earlier builds recorded it.
    Text(String),
}

/// How many bytes of each text of a failure are kept, so that memory stays bounded.
const LONGEST: usize = 2000;

impl StartFailure {
    /// Reads the text of a frame.
    pub fn read(text: &str) -> StartFailure {
        let mut failure = serde_json::from_str(text).unwrap_or_else(|_| StartFailure::Text(text.to_owned()));
        let cut = |text: &mut String| {
            let end = (0..=LONGEST.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
            text.truncate(end.unwrap_or_default());
        };
        match &mut failure {
            StartFailure::Found { program, error, about, .. } => {
                [program, error].into_iter().chain(about).for_each(cut);
            }
            StartFailure::Text(text) => cut(text),
        }
        failure
    }
}

impl fmt::Display for StartFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (program, error, fault, about) = match self {
            StartFailure::Found { program, error, fault, about } => (program, error, fault, about),
            StartFailure::Text(text) => return f.write_str(text),
        };
        let about = about.as_deref().unwrap_or_default();
        write!(f, "cannot start {}: {error}", program.replace('\n', " "))?;
        match fault {
            None | Some(StartFault::Unknown) => Ok(()),
            Some(StartFault::NotExecutable) if about.is_empty() => f.write_str(": it is not executable"),
            Some(StartFault::NotExecutable) => write!(f, ": it is not executable ({about})"),
            Some(StartFault::LineEnds) => write!(f, ": its first line names {about}\\r (Windows line ends)"),
            Some(StartFault::ByteOrderMark) => f.write_str(": it begins with a byte order mark"),
            Some(StartFault::NoInterpreter) => f.write_str(": it has no first line #!, which names its interpreter"),
            Some(StartFault::NoInterpreterEither) => {
                f.write_str(": it is not executable, and has no first line #!, which names its interpreter")
            }
            Some(StartFault::OtherSystem) => write!(f, ": it is a program for {about}"),
            Some(StartFault::OtherProcessor) => f.write_str(": it is for another processor"),
            Some(StartFault::Portable) => f.write_str(": it is a portable executable, which a shell starts"),
            Some(StartFault::InterpreterMissing) => {
                write!(f, ": the image has no {about}, which its first line names")
            }
            Some(StartFault::LoaderMissing) => {
                f.write_str(": the image lacks the loader of this program, which was built for another system")
            }
            Some(StartFault::NotInPath) => write!(f, ": ./{program} is in {about}"),
            Some(StartFault::OnlyPython3) => f.write_str(": the image has python3"),
        }
    }
}

impl StartFault {
    /// Returns what to do about it, which may be nothing. `program` is the file as the user named it, `interpreter`
    /// the command that its first line names.
    pub fn hint(self, program: &str, interpreter: Option<&str>) -> String {
        let file = readable(program);
        match self {
            StartFault::NotExecutable => match interpreter {
                Some(interpreter) => {
                    format!("chmod +x {file}, or start it with its interpreter: -- {} {file}", printable(interpreter))
                }
                None => format!("chmod +x {file}"),
            },
            StartFault::LineEnds => format!(
                "sed -i 's/\\r$//' {file} removes them (so does dos2unix); `*.sh text eol=lf` in .gitattributes keeps \
                 git from adding them"
            ),
            StartFault::ByteOrderMark => "save it as UTF-8 without a byte order mark".to_owned(),
            StartFault::NoInterpreter | StartFault::NoInterpreterEither if program.ends_with(".py") => {
                format!("write #!/usr/bin/env python3 as its first line, or start it with -- python3 {file}")
            }
            StartFault::NoInterpreter | StartFault::NoInterpreterEither => format!("write #!/bin/sh as its first line, or start it with -- sh {file}"),
            StartFault::OtherSystem => {
                "build it for Linux, in the image (hvdctl image build) or on a node; or name what runs it: -- java …"
                    .to_owned()
            }
            StartFault::OtherProcessor => {
                "build the program in the image (hvdctl image build) or on a node".to_owned()
            }
            StartFault::Portable => "start it with sh before its name: -- sh PROGRAM".to_owned(),
            StartFault::InterpreterMissing => {
                "name an interpreter that the image has, e.g. #!/bin/sh, or install it there (`setup` in hvdctl.toml)"
                    .to_owned()
            }
            StartFault::LoaderMissing => {
                "build the program in the image (hvdctl image build), or use an image of the system that it was built on"
                    .to_owned()
            }
            StartFault::NotInPath => format!("write ./{file}: Linux looks for a name without / in PATH only"),
            StartFault::OnlyPython3 => "the image has python3 and no python: -- python3 …".to_owned(),
            StartFault::Unknown => String::new(),
        }
    }
}

/// Returns the command that a first line `#!…` names, without the `env` that finds it by PATH.
pub fn interpreter(line: &str) -> Option<String> {
    let mut words = line.strip_prefix("#!")?.split_whitespace().peekable();
    let is_env = words.peek()?.rsplit('/').next() == Some("env");
    if is_env {
        words.next();
        words.next_if(|word| *word == "-S" || *word == "--");
    }
    let words: Vec<&str> = words.collect();
    let is_plain = words.first().is_some_and(|word| !word.starts_with('-') && !word.contains('='));
    is_plain.then(|| words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_earlier_and_later_builds_are_shown() {
        for (text, shown) in [
            ("cannot start x: no such file", "cannot start x: no such file"),
            (r#"{"program": "a\nb", "error": "odd"}"#, "cannot start a b: odd"),
            (r#"{"program": "x", "error": "odd", "fault": "of_tomorrow", "about": "y"}"#, "cannot start x: odd"),
        ] {
            assert_eq!(StartFailure::read(text).to_string(), shown);
        }
        assert_eq!(StartFailure::read(&"é".repeat(LONGEST)).to_string().chars().count(), LONGEST / 2);
    }

    #[test]
    fn the_interpreter_is_what_the_first_line_names() {
        for (line, expected) in [
            ("#!/bin/sh", Some("/bin/sh")),
            ("#! /bin/bash -e\r", Some("/bin/bash -e")),
            ("#!/usr/bin/env python3", Some("python3")),
            ("#!/usr/bin/env -S bash -e", Some("bash -e")),
            ("#!/usr/bin/env A=1 sh", None),
            ("#!", None),
            ("echo", None),
        ] {
            assert_eq!(interpreter(line).as_deref(), expected, "{line}");
        }
    }
}
