//! Reasons why Linux cannot start a file as a program.

use crate::text::nodeset::printable;
use crate::text::quote::readable;

/// A fault of a file that keeps it from starting. The operator's files show it before the start, a rank supervisor
/// afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartFault {
    /// It has no permission bit for it.
    NotExecutable,
    /// Its first line ends with a carriage return.
    LineEnds,
    /// It begins with a byte order mark.
    ByteOrderMark,
    /// It is a text without a first line that names an interpreter.
    NoInterpreter,
    /// It is a program for another system.
    OtherSystem,
}

impl StartFault {
    /// Returns what to do about it. `program` is the file as the user named it, `interpreter` the command that its
    /// first line names.
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
                 git from \
                 adding them"
            ),
            StartFault::ByteOrderMark => "save it as UTF-8 without a byte order mark".to_owned(),
            StartFault::NoInterpreter if program.ends_with(".py") => {
                format!("write #!/usr/bin/env python3 as its first line, or start it with -- python3 {file}")
            }
            StartFault::NoInterpreter => format!("write #!/bin/sh as its first line, or start it with -- sh {file}"),
            StartFault::OtherSystem => {
                "build it for Linux, in the image (hvdctl image build) or on a node; or name what runs it: -- java …"
                    .to_owned()
            }
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
