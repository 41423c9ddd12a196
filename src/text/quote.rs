//! Values for the scripts that run on nodes: the only place that quotes for a shell.
//!
//! Values may be secrets, so each text is allocated at its full size: one that grows leaves its old bytes in memory.

use zeroize::Zeroizing;

/// Returns a line of a script that sets the variable `name` to `value`: `name='value'` and a newline. NUL, which no
/// shell can hold, is left out.
///
/// `name` is the program's own, never a user's: a lower-case letter or `_`, then lower-case letters, digits or `_`.
pub fn assign(name: &str, value: &str) -> Zeroizing<String> {
    debug_assert!(
        name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
            && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'),
        "not a variable's name: {name:?}"
    );
    let quoted = Zeroizing::new(single(value));
    joined(&[name, "=", &quoted, "\n"])
}

/// Returns `name='value'` and a newline for an environment variable of the user's, whose name was checked when it was
/// read.
pub fn exported(name: &str, value: &str) -> Zeroizing<String> {
    debug_assert!(
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'),
        "{name:?}"
    );
    let quoted = Zeroizing::new(single(value));
    joined(&[name, "=", &quoted, "\n"])
}

/// Returns an argument of a command that a person may copy into a shell: in quotes only if it needs them.
pub fn readable(s: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "%+,-./:=@_".contains(c);
    if !s.is_empty() && s.chars().all(plain) { s.to_owned() } else { single(s) }
}

/// Returns an argument for a script that hvdctl makes, always in quotes.
pub fn always(s: &str) -> String {
    single(s)
}

/// Returns these texts as one, which is wiped after use.
pub fn joined(parts: &[&str]) -> Zeroizing<String> {
    let mut whole = Zeroizing::new(String::with_capacity(parts.iter().map(|part| part.len()).sum()));
    parts.iter().for_each(|part| whole.push_str(part));
    whole
}

/// Returns `s` in single quotes, in which only the single quote itself is special.
fn single(s: &str) -> String {
    const QUOTE: &str = r"'\''";
    let mut quoted = String::with_capacity(s.len() + s.matches('\'').count() * (QUOTE.len() - 1) + 2);
    quoted.push('\'');
    for c in s.chars().filter(|c| *c != '\0') {
        if c == '\'' { quoted.push_str(QUOTE) } else { quoted.push(c) }
    }
    quoted.push('\'');
    quoted
}

/// Formats an argument vector as one would type it.
pub fn command(argv: &[impl ToString]) -> String {
    argv.iter().map(|argument| readable(&argument.to_string())).collect::<Vec<_>>().join(" ")
}

/// Runs shellcheck on a script for `sh` as hvdctl made it from values.
///
/// # Panics
/// If it finds anything, and if it is missing.
#[cfg(test)]
#[track_caller]
pub fn shellcheck(script: &str) {
    use std::io::Write as _;
    use std::process::{Command, Stdio};
    let started = Command::new("shellcheck")
        // dollars and backslashes in a quoted value are the value's own
        .args(["--norc", "-e", "SC1003,SC2016", "-s", "sh", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = started.unwrap_or_else(|error| {
        panic!("shellcheck: {error}\nhint: scripts/lint shell installs it; by hand: apt-get install shellcheck")
    });
    child.stdin.take().expect("a pipe").write_all(script.as_bytes()).expect("shellcheck reads its input");
    let output = child.wait_with_output().expect("shellcheck ends");
    let found = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{found}\n{script}");
}

/// Values that break out of incorrect quoting.
#[cfg(test)]
pub const HOSTILE: [&str; 6] = ["it's", "\"; id; \"", "$(id) `id` ${IFS}", "a\nb\\", "-rf *", "größe ~ # &"];

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write as _;
    use std::path::Path;
    use std::process::{Command, Stdio};

    #[test]
    fn assignments() {
        for (name, value, line) in [
            ("dir", "/opt", "dir='/opt'\n"),
            ("_a1", "", "_a1=''\n"),
            ("a", "x'; rm -rf / #", "a='x'\\''; rm -rf / #'\n"),
            ("a", "b\0c", "a='bc'\n"),
        ] {
            assert_eq!(assign(name, value).as_str(), line);
        }
    }

    #[test]
    fn shellcheck_finds_nothing_in_assignments() {
        for value in HOSTILE {
            let line = assign("value", value);
            shellcheck(&format!("{}printf '%s' \"$value\" {}\n", line.as_str(), readable(value)));
        }
    }

    #[test]
    #[should_panic(expected = "SC2086")]
    fn shellcheck_finds_what_is_wrong() {
        shellcheck("echo $1\n");
    }

    #[test]
    fn words_to_copy() {
        assert_eq!(readable("node1"), "node1");
        assert_eq!(readable("[10.0.0.1]:2222"), "'[10.0.0.1]:2222'");
        assert_eq!(readable("it's"), r"'it'\''s'");
        assert_eq!(readable(""), "''");
    }

    /// Runs the script over standard input, as hvdctl does on the nodes, and gives what it printed.
    fn run(shell: &Path, script: &str) -> Vec<u8> {
        let mut child = Command::new(shell)
            .arg("-s")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the shell starts");
        let mut stdin = child.stdin.take().expect("a pipe");
        let script = script.to_owned();
        let writer = std::thread::spawn(move || stdin.write_all(script.as_bytes()));
        let output = child.wait_with_output().expect("the shell ends");
        writer.join().expect("no panic").expect("the shell reads its script");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && errors.is_empty(), "{}: {errors}", shell.display());
        output.stdout
    }

    /// The shells of this machine; `/bin/sh` is on every one.
    fn shells() -> Vec<&'static Path> {
        let known = ["/bin/sh", "/bin/dash", "/bin/bash"];
        known.into_iter().map(Path::new).filter(|shell| shell.exists()).collect()
    }

    /// Any text without NUL, with much of what shells care about.
    fn word() -> impl Strategy<Value = String> {
        prop_oneof![
            any::<String>().prop_map(|s| s.replace('\0', "")),
            r#"[ -~\n\t]{0,20}"#,
            r#"['"\\$`!*?~#&;|<>(){}\[\]= \n\r\t\x01-\x1f\x7f-\xffäß語🎉a-c-]{0,20}"#,
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_real_shell_gives_the_word_back(words in prop::collection::vec(word(), 1..20)) {
            let mut script = String::new();
            let mut expected = Vec::new();
            for word in &words {
                script.push_str(&assign("value", word));
                script.push_str("printf '%s\\0' \"$value\"\n");
                expected.extend_from_slice(word.as_bytes());
                expected.push(0);
            }
            for shell in shells() {
                let printed = run(shell, &script);
                prop_assert_eq!(
                    String::from_utf8_lossy(&printed),
                    String::from_utf8_lossy(&expected),
                    "{}", shell.display()
                );
            }
        }
    }
}
