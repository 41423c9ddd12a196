//! Words for a POSIX shell: the one place that quotes.

/// Characters of a word that no POSIX shell treats specially.
fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_./:=@%+,-".contains(c)
}

/// Words that a shell takes for its own where a command may stand (POSIX's and bash's that [`is_plain`] lets pass).
const RESERVED: &[&str] = &[
    "case", "coproc", "do", "done", "elif", "else", "esac", "fi", "for", "function", "if", "in", "select", "then",
    "time", "until", "while",
];

/// Whether `NAME=value` in front of a command would set a variable instead of being a word.
fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        let name = name.strip_suffix('+').unwrap_or(name);
        name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    })
}

/// One shell word that stands for exactly `s`, wherever a word may stand: as a command's name or as an argument.
///
/// Plain words stay as they are (`--lr=0.1`, `/opt/a.py`); all others are put in single quotes, also the empty word,
/// the shell's own words (`if`) and what would be an assignment in front of a command (`A=1`).
///
/// `None` if `s` contains NUL, which no argument of any program can hold.
///
/// ```
/// use hvdctl::core::quote::quote;
/// assert_eq!(quote("train.py").as_deref(), Some("train.py"));
/// assert_eq!(quote("it's").as_deref(), Some(r"'it'\''s'"));
/// assert_eq!(quote(""), Some("''".to_owned()));
/// assert_eq!(quote("a\0b"), None);
/// ```
pub fn quote(s: &str) -> Option<String> {
    let plain = !s.is_empty() && s.chars().all(is_plain) && !RESERVED.contains(&s) && !is_assignment(s);
    if plain { Some(s.to_owned()) } else { single(s) }
}

/// A line of a script that sets the variable `name` to exactly `value`: `name='value'` and a newline.
///
/// `name` is the program's own, never a user's: a lower-case letter or `_`, then lower-case letters, digits or `_`.
/// `None` if `value` contains NUL.
pub fn assign(name: &str, value: &str) -> Option<String> {
    debug_assert!(
        name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
            && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'),
        "not a variable's name: {name:?}"
    );
    Some(format!("{name}={}\n", single(value)?))
}

/// `s` in single quotes, in which only the single quote itself is special.
fn single(s: &str) -> Option<String> {
    (!s.contains('\0')).then(|| format!("'{}'", s.replace('\'', r"'\''")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write as _;
    use std::path::Path;
    use std::process::{Command, Stdio};

    #[test]
    fn words() {
        for (word, quoted) in [
            ("", "''"),
            ("train.py", "train.py"),
            ("-np", "-np"),
            ("--lr=0.1", "--lr=0.1"),
            ("a/b=c", "a/b=c"),
            ("host:2,host:2", "host:2,host:2"),
            ("user@host", "user@host"),
            ("100%", "100%"),
            ("A=1", "'A=1'"),
            ("a+=1", "'a+=1'"),
            ("=x", "=x"),
            ("if", "'if'"),
            ("time", "'time'"),
            ("times", "times"),
            ("a b", "'a b'"),
            ("~", "'~'"),
            ("*", "'*'"),
            ("{a,b}", "'{a,b}'"),
            ("#", "'#'"),
            ("!", "'!'"),
            ("$HOME", "'$HOME'"),
            ("`id`", "'`id`'"),
            ("a\\", "'a\\'"),
            ("\n", "'\n'"),
            ("'", r"''\'''"),
            ("it's", r"'it'\''s'"),
            ("größe", "'größe'"),
        ] {
            assert_eq!(quote(word).as_deref(), Some(quoted), "{word:?}");
        }
        assert_eq!(quote("a\0b"), None);
        assert_eq!(quote("\0"), None);
    }

    #[test]
    fn assignments() {
        assert_eq!(assign("dir", "/opt").as_deref(), Some("dir='/opt'\n"));
        assert_eq!(assign("_a1", "").as_deref(), Some("_a1=''\n"));
        assert_eq!(assign("a", "x'; rm -rf / #").as_deref(), Some("a='x'\\''; rm -rf / #'\n"));
        assert_eq!(assign("a", "\0"), None);
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
                script.push_str(&assign("value", word).expect("no NUL"));
                let quoted = quote(word).expect("no NUL");
                // Once as an argument, once through a variable; NUL ends each.
                script.push_str(&format!("printf '%s\\0' {quoted}\nprintf '%s\\0' \"$value\"\n"));
                for _ in 0..2 {
                    expected.extend_from_slice(word.as_bytes());
                    expected.push(0);
                }
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

    #[test]
    fn in_front_of_a_command_it_is_a_word_too() {
        for word in ["if", "fi", "case", "function", "A=1", "a+=1"] {
            let script = format!("{} 2>/dev/null || printf %s $?\n", quote(word).expect("no NUL"));
            for shell in shells() {
                let printed = run(shell, &script);
                assert_eq!(printed, b"127", "{word} in {}: a program that does not exist", shell.display());
            }
        }
    }
}
