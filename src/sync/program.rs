//! Faults that keep a program of the project from starting, as far as its file shows them before the start.

use crate::error::Error;
use crate::model::start_fault::{StartFault, interpreter};
use crate::paths::WORKSPACE;
use crate::text::argument::ProgramArgument;
use crate::text::nodeset::printable;

/// Number of bytes of a file that are examined.
pub const HEAD: u64 = 64 << 10;

/// Programs that read a script as commands.
const SHELLS: [&str; 5] = ["sh", "bash", "dash", "ksh", "zsh"];

/// The first bytes of programs for Windows and macOS, and of texts with a byte order mark (UTF-8, UTF-16).
const WINDOWS: &[u8] = b"MZ";
const MACOS: [&[u8]; 4] = [b"\xfe\xed\xfa\xce", b"\xfe\xed\xfa\xcf", b"\xce\xfa\xed\xfe", b"\xcf\xfa\xed\xfe"];
/// A class of Java's, or a program for several processors of macOS.
const JAVA_OR_MACOS: &[u8] = b"\xca\xfe\xba\xbe";
const MARKS: [&[u8]; 3] = [b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff"];

/// Checks that Linux can start the program of a command if that is a file of the project, and returns a note on a
/// script that a shell would misread, or a program that Linux starts on some nodes only. `file` returns the permission
/// bits and the first [`HEAD`] bytes of a file of the project.
///
/// # Errors
/// If the program cannot start, with what to do about its file.
pub fn check(
    command: &[ProgramArgument],
    file: impl Fn(&str) -> Option<(u32, Vec<u8>)>,
) -> Result<Option<String>, Error> {
    let mut words = command.iter().map(|word| match word {
        ProgramArgument::Text(text) => text.as_str(),
        ProgramArgument::Bytes(_) => "",
    });
    let program = words.next().unwrap_or_default();
    if SHELLS.contains(&base_name(program)) {
        // the file that the shell reads, unless an option has the commands
        let script = words.next().filter(|word| !word.starts_with('-'));
        let script = script.filter(|script| {
            let found = in_project(script).and_then(&file);
            found.is_some_and(|(_, text)| text.windows(2).any(|pair| pair == b"\r\n"))
        });
        return Ok(script.map(|script| {
            format!(
                "{} has Windows line ends: the shell takes each carriage return as a part of the command\n  hint: {}",
                printable(script),
                StartFault::LineEnds.hint(script, None)
            )
        }));
    }
    // without a slash it is one of the image, found by PATH
    let found = Some(program).filter(|program| program.contains('/')).and_then(in_project).and_then(file);
    let Some((mode, text)) = found else { return Ok(None) };
    let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let interpreter = interpreter(&String::from_utf8_lossy(line));
    let name = printable(program);
    match fault(mode, &text) {
        Some((fault, what)) => {
            Err(Error::usage(what.replace("FILE", &name), fault.hint(program, interpreter.as_deref())))
        }
        None => Ok(foreign(&text).map(|system| {
            format!(
                "{name} begins as a program for {system} does: not every Linux can start it\n  hint: {}",
                StartFault::OtherSystem.hint(program, None)
            )
        })),
    }
}

/// Returns the system for which a file may be, although there are programs for Linux that begin in the same way
/// (actually portable executables), and nodes that start programs of other systems (`binfmt_misc`).
fn foreign(text: &[u8]) -> Option<&'static str> {
    if text.starts_with(WINDOWS) {
        return Some("Windows");
    }
    text.starts_with(JAVA_OR_MACOS).then_some("Java or macOS")
}

/// Returns the path of a file in the project, relative to it.
fn in_project(word: &str) -> Option<&str> {
    match word.strip_prefix(WORKSPACE).and_then(|rest| rest.strip_prefix('/')) {
        Some(inside) => Some(inside),
        None if word.starts_with('/') => None,
        None => Some(word),
    }
}

/// Returns what keeps a file from starting; the sentence has `FILE` for its name.
fn fault(mode: u32, text: &[u8]) -> Option<(StartFault, String)> {
    let begins = |with: &[&[u8]]| with.iter().any(|start| text.starts_with(start));
    let is_binary = begins(&[b"\x7fELF"]) || foreign(text).is_some();
    if begins(&MARKS) {
        let what = "FILE begins with a byte order mark, so that Linux does not recognize its first line";
        return Some((StartFault::ByteOrderMark, what.to_owned()));
    }
    if begins(&MACOS) {
        return Some((StartFault::OtherSystem, "FILE is a program for macOS".to_owned()));
    }
    let line = text.strip_prefix(b"#!");
    let is_executable = mode & 0o111 != 0;
    if line.is_none() && !is_binary {
        let also = if is_executable { String::new() } else { format!(" is not executable (mode {mode:o}), and") };
        let what = format!("FILE{also} has no first line that names its interpreter");
        return Some((StartFault::NoInterpreter, what));
    }
    if !is_executable {
        return Some((StartFault::NotExecutable, format!("FILE is not executable (mode {mode:o})")));
    }
    let line = line?;
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line.strip_suffix(b"\r")?).into_owned();
    let words: Vec<&str> = line.split([' ', '\t']).filter(|word| !word.is_empty()).collect();
    // these pass over it behind an option
    if words.len() > 1 && (base_name(words[0]) == "perl" || words[1].starts_with("-S")) {
        return None;
    }
    let wanted = format!("{}\r", words.last()?);
    let would = match words.len() {
        1 => "look for a program called",
        _ => "pass on",
    };
    let what = format!(
        "the first line of FILE ends with a carriage return (Windows line ends): Linux would {would} {:?}",
        wanted.chars().take(200).collect::<String>()
    );
    Some((StartFault::LineEnds, what))
}

fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(command: &[&str], mode: u32, text: &[u8]) -> Result<Option<String>, Error> {
        let command: Vec<ProgramArgument> = command.iter().map(|word| (*word).into()).collect();
        // as `ProjectFiles::head` resolves names
        check(&command, |name| (name.trim_start_matches("./") == "run.sh").then(|| (mode, text.to_owned())))
    }

    #[test]
    fn files_that_linux_cannot_start_are_refused() {
        const ENDS: &str = "ends with a carriage return (Windows line ends): Linux would look for a program called";
        for (mode, text, what, hint) in [
            (
                0o644,
                &b"#!/bin/sh\n"[..],
                "./run.sh is not executable (mode 644)",
                "chmod +x ./run.sh, or start it with its interpreter: -- /bin/sh ./run.sh",
            ),
            (0o644, b"#!/usr/bin/env python3\n", "(mode 644)", "its interpreter: -- python3 ./run.sh"),
            (0o644, b"\x7fELF\x02", "./run.sh is not executable (mode 644)", "hint: chmod +x ./run.sh"),
            (
                0o644,
                b"echo\n",
                "is not executable (mode 644), and has no first line that",
                "start it with -- sh ./run.sh",
            ),
            (0o755, b"#!/bin/bash\r\necho\r\n", ENDS, "sed -i 's/\\r$//' ./run.sh"),
            (0o755, b"#!/bin/bash\r\n", "\"/bin/bash\\r\"", "dos2unix"),
            (0o755, b"#!/usr/bin/env python3\r\n", "would pass on \"python3\\r\"", ".gitattributes"),
            (0o755, b"#!/bin/bash -e\r\n", "would pass on \"-e\\r\"", ".gitattributes"),
            (0o755, b"\xef\xbb\xbf#!/bin/sh\n", "begins with a byte order mark", "save it as UTF-8"),
            (0o755, b"\xff\xfe#\0!\0", "begins with a byte order mark", "save it as UTF-8"),
            (0o755, b"echo hi\n", "has no first line that names its interpreter", "-- sh ./run.sh"),
            (0o755, b"# comment\n#!/bin/sh\n", "has no first line", "write #!/bin/sh"),
            (0o755, b"!/usr/bin/env python\n", "has no first line", "write #!/bin/sh"),
            (0o755, b"", "has no first line", "write #!/bin/sh"),
            (0o755, b"\xcf\xfa\xed\xfe", "./run.sh is a program for macOS", "build it for Linux"),
        ] {
            let error = checked(&["./run.sh", "--lr", "1"], mode, text).unwrap_err();
            let shown = error.to_string();
            assert!(shown.contains(what) && shown.contains(hint) && error.exit_code(true) == 2, "{shown}");
        }
    }

    #[test]
    fn files_that_start_pass_and_so_does_what_is_not_of_the_project() {
        for text in [
            &b"#!/bin/sh\necho\r\n"[..],
            b"#! /usr/bin/env python3\n",
            b"#!/usr/bin/perl -w\r\n",
            b"#!/usr/bin/env -S bash -e\r\n",
            b"\x7fELF\x02",
        ] {
            assert_eq!(checked(&["./run.sh"], 0o755, text).unwrap(), None, "{}", text.escape_ascii());
        }
        for command in [&["run.sh"][..], &["/opt/run.sh"], &["./other.sh"], &["python", "run.sh"], &[]] {
            assert_eq!(checked(command, 0o644, b"\r\n").unwrap(), None, "{command:?}");
        }
        assert!(checked(&["/workspace/run.sh"], 0o644, b"").is_err());
    }

    #[test]
    fn programs_that_only_some_nodes_start_are_noted() {
        for (text, system) in
            [(&b"MZqFpD='\n"[..], "for Windows does"), (b"\xca\xfe\xba\xbe\0", "for Java or macOS does")]
        {
            let note = checked(&["./run.sh"], 0o755, text).unwrap().unwrap_or_default();
            assert!(note.contains(system) && note.contains("hint: build it for Linux"), "{note}");
            assert!(checked(&["./run.sh"], 0o644, text).unwrap_err().to_string().ends_with("chmod +x ./run.sh"));
        }
    }

    #[test]
    fn a_script_with_windows_line_ends_is_noted_if_a_shell_reads_it() {
        for (command, noted) in [
            (&["bash", "run.sh", "x"][..], true),
            (&["/bin/sh", "./run.sh"], true),
            (&["bash", "-c", "run.sh"], false),
            (&["bash", "other.sh"], false),
            (&["python", "run.sh"], false),
        ] {
            let note = checked(command, 0o644, b"set -e\r\n").unwrap();
            assert_eq!(note.is_some_and(|note| note.contains("run.sh has Windows line ends")), noted, "{command:?}");
        }
        assert_eq!(checked(&["sh", "run.sh"], 0o644, b"echo\n").unwrap(), None);
    }
}
