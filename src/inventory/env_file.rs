//! The text of an env file, in the dialect that Compose and python-dotenv agree on.

use super::check::VARIABLE;
use super::fault::without_mark;
use crate::secret::Secret;
use std::collections::BTreeMap;
use zeroize::Zeroizing;

/// The largest env file, in bytes; a larger one is the wrong file.
const LARGEST: usize = 64 << 10;

/// Blanks within a line.
const BLANKS: [char; 2] = [' ', '\t'];

/// Reads the text of an env file: `NAME=VALUE` lines, with `export` before them or without; empty lines and those that
/// begin with `#` are ignored. A value in quotes may span lines; behind another one, a `#` after a blank begins a
/// comment. The last value of a name counts.
///
/// # Errors
/// The faults, a sentence with its line each; never a value, which may be secret.
pub fn env_lines(text: &str) -> Result<BTreeMap<String, Secret>, Vec<String>> {
    let mut rest = without_mark(text);
    if rest.len() > LARGEST {
        return Err(vec![format!("expected at most {} KiB, found {} KiB", LARGEST >> 10, rest.len() >> 10)]);
    }
    let (mut variables, mut faults, mut line) = (BTreeMap::new(), Vec::new(), 1);
    while !rest.is_empty() {
        let (read, next) = definition(rest);
        match read {
            Ok(defined) => variables.extend(defined),
            Err(why) => faults.push(format!("line {line}: {why}")),
        }
        line += rest[..rest.len() - next.len()].matches('\n').count();
        rest = next;
    }
    if faults.is_empty() { Ok(variables) } else { Err(faults) }
}

/// A variable and its value, if there is one.
type Definition = Option<(String, Secret)>;

/// Reads the definition that a text begins with, if its first line has one. Returns also what follows it.
fn definition(text: &str) -> (Result<Definition, String>, &str) {
    let (line, after) = text.split_once('\n').unwrap_or((text, ""));
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return (Ok(None), after);
    }
    let exported = line.strip_prefix("export").filter(|rest| rest.starts_with(BLANKS));
    let Some((name, _)) = exported.unwrap_or(line).split_once('=') else {
        return (Err("expected NAME=VALUE".to_owned()), after);
    };
    let name = match VARIABLE.read(name.trim()) {
        Ok(name) => name,
        Err(why) => return (Err(why), after),
    };
    // the first one of the line, and so of the text
    let value = text.split_once('=').map_or("", |(_, value)| value);
    let is_commented = value.starts_with(BLANKS);
    let value = value.trim_start_matches(BLANKS);
    let (read, after) = match value.chars().next() {
        Some(quote @ ('"' | '\'')) => match quoted(&value[1..], quote) {
            Some((read, behind)) => {
                let (line, after) = behind.split_once('\n').unwrap_or((behind, ""));
                let line = line.trim();
                let is_comment = line.is_empty() || line.starts_with('#');
                (if is_comment { read } else { Err("text follows the closing quote of NAME") }, after)
            }
            None => (Err("the value of NAME has no closing quote"), after),
        },
        _ => (plain(value, is_commented), after),
    };
    let read = read.and_then(|value| match value.contains('\0') {
        true => Err("the value of NAME contains a NUL"),
        false => Ok(value),
    });
    let named = |why: &str| why.replace("NAME", &name);
    (read.map_err(named).map(|value| Some((name.clone(), Secret::new(value)))), after)
}

/// The message about a value in which other programs would replace a variable.
const EXPANDS: &str = "hvdctl does not expand ${…} in NAME: put the value in single quotes if it is meant literally";

/// The message about a value that is one for Compose, and a comment for python-dotenv: `A= #ff0000`.
const UNCLEAR: &str = "a # follows NAME= and a blank: put the value in quotes, or the comment on a line of its own";

/// Reads a value without quotes, up to the end of its line. `is_commented`: whether a `#` at its beginning may begin a
/// comment.
fn plain(text: &str, is_commented: bool) -> Result<Zeroizing<String>, &'static str> {
    let line = text.split('\n').next().unwrap_or_default();
    let is_unclear = |text: &str| !text.is_empty() && !text.starts_with(['#', ' ', '\t', '\r']);
    if is_commented && line.strip_prefix('#').is_some_and(is_unclear) {
        return Err(UNCLEAR);
    }
    let comment = match is_commented && line.starts_with('#') {
        true => Some(0),
        false => line.match_indices('#').map(|(at, _)| at).find(|at| line[..*at].ends_with(BLANKS)),
    };
    let value = line[..comment.unwrap_or(line.len())].trim();
    if value.contains("${") { Err(EXPANDS) } else { Ok(Zeroizing::new(value.to_owned())) }
}

/// Reads a value behind its opening quote. Returns also what follows its closing quote; `None` without one.
fn quoted(text: &str, quote: char) -> Option<(Result<Zeroizing<String>, &'static str>, &str)> {
    let mut is_escaped = false;
    let end = text.find(|c| {
        let is_end = c == quote && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        is_end
    })?;
    let (mut value, mut rest) = (Zeroizing::new(String::with_capacity(end)), text[..end].chars());
    while let Some(c) = rest.next() {
        let next = rest.clone().next();
        match (c, next.and_then(|next| escaped(next, quote))) {
            ('\\', Some(meant)) => {
                value.push(meant);
                rest.next();
            }
            ('$', _) if quote == '"' && next == Some('{') => return Some((Err(EXPANDS), &text[end + 1..])),
            ('\r', _) if next == Some('\n') => {}
            _ => value.push(c),
        }
    }
    Some((Ok(value), &text[end + 1..]))
}

/// Returns what a character stands for behind a backslash within these quotes; `None` if the backslash stays.
fn escaped(c: char, quote: char) -> Option<char> {
    match (c, quote) {
        ('\\', _) => Some('\\'),
        (c, quote) if c == quote => Some(c),
        ('n', '"') => Some('\n'),
        ('r', '"') => Some('\r'),
        ('t', '"') => Some('\t'),
        ('$', '"') => Some('$'),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Result<Vec<String>, Vec<String>> {
        env_lines(text).map(|all| all.into_iter().map(|(name, value)| format!("{name}={}", value.expose())).collect())
    }

    #[test]
    fn values_are_read_as_by_compose_and_python_dotenv() {
        for (line, value) in [
            ("A=1", "1"),
            ("A=1\r\n", "1"),
            ("A=", ""),
            ("  A = x y  ", "x y"),
            ("export A=1", "1"),
            ("export\tA = 1", "1"),
            ("A=a=\"b\"", "a=\"b\""),
            ("A=a b # comment", "a b"),
            ("A=a\t#comment", "a"),
            ("A=a#b", "a#b"),
            ("A=#b", "#b"),
            ("A= # comment", ""),
            ("A= #", ""),
            ("A= ## comment", ""),
            ("A=\"hf_abc\"", "hf_abc"),
            ("A='x y' # comment", "x y"),
            ("A='x'#comment", "x"),
            ("A=\" x \"", " x "),
            ("A=\"\"", ""),
            ("A='it\\'s \\\\ \\n $x ${x}'", "it's \\ \\n $x ${x}"),
            ("A=\"a\\tb\\n\\\"\\\\\"", "a\tb\n\"\\"),
            ("A=\"\\$x \\q $x \\${x}\"", "$x \\q $x ${x}"),
            ("A=$x$", "$x$"),
            ("A=pa$$word", "pa$$word"),
            (
                "A=\"-----BEGIN KEY-----\r\nx#y = \r\n-----END KEY-----\"",
                "-----BEGIN KEY-----\nx#y = \n-----END KEY-----",
            ),
            ("\u{feff}A=1", "1"),
            ("A='1'\nA='2'\n", "2"),
            ("# A=0\n\n \t\nA=1\n#", "1"),
        ] {
            assert_eq!(read(line), Ok(vec![format!("A={value}")]), "{line}");
        }
        assert_eq!(read(""), Ok(vec![]));
        assert_eq!(
            read("B='x\ny'\nexport C=\"z\"\nexportD=1"),
            Ok(["B=x\ny", "C=z", "exportD=1"].map(str::to_owned).into())
        );
    }

    #[test]
    fn faults_name_their_line_and_never_a_value() {
        let text = "secret\n1A=secret\nexport secret\nHOROVOD_RANK=secret\nA=sec\0ret\nB=\"secret\n \" \
            secret\nC='secret' secret\nD=${SECRET}\n\
                    E=\"a secret ${secret\"\nH= #secret\nF='secret\nG=1";
        let faults = read(text).unwrap_err();
        let expected = [
            "line 1: expected NAME=VALUE",
            "line 2: ",
            "line 3: expected NAME=VALUE",
            "line 4: ",
            "line 5: the value of A contains a NUL",
            "line 6: text follows the closing quote of B",
            "line 8: text follows the closing quote of C",
            "line 9: hvdctl does not expand ${…} in D: put the value in single quotes",
            "line 10: hvdctl does not expand ${…} in E",
            "line 11: a # follows H= and a blank: put the value in quotes",
            "line 12: the value of F has no closing quote",
        ];
        assert_eq!(faults.len(), expected.len(), "{faults:?}");
        for (fault, expected) in faults.iter().zip(expected) {
            assert!(fault.starts_with(expected) && !fault.to_lowercase().contains("secret"), "{fault}");
        }
        assert!(faults[3].contains("sets it for every rank"), "{faults:?}");
        assert!(read(&"A=1\n".repeat(20_000)).unwrap_err()[0].contains("64 KiB"));
    }

    proptest! {
        #[test]
        fn any_value_can_be_quoted(value in "[^\0\r]{0,40}") {
            let single = value.replace('\\', "\\\\").replace('\'', "\\'");
            prop_assert_eq!(read(&format!("A='{single}' # c")), Ok(vec![format!("A={value}")]));
            let double = value.replace('\\', "\\\\").replace('"', "\\\"").replace('$', "\\$");
            prop_assert_eq!(read(&format!("A=\"{double}\"")), Ok(vec![format!("A={value}")]));
        }
    }
}
