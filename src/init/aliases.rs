//! The names that an ssh configuration gives to machines.

/// A line of a configuration that matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    /// A name of a `Host` line that stands for one machine: no pattern, not taken away.
    Alias(String),
    /// A file of an `Include` line, as it is written there; it may have wildcards.
    Include(String),
}

/// Reads a configuration's `Host` and `Include` lines, in their order.
pub fn lines(text: &str) -> Vec<Line> {
    let mut lines = Vec::new();
    for line in text.lines() {
        let (keyword, arguments) = keyword(line);
        let arguments = words(arguments).into_iter().filter(|word| !word.is_empty());
        match keyword.to_ascii_lowercase().as_str() {
            "host" => lines.extend(arguments.filter(|name| is_plain(name)).map(Line::Alias)),
            "include" => lines.extend(arguments.map(Line::Include)),
            _ => {}
        }
    }
    lines
}

fn is_plain(name: &str) -> bool {
    !name.starts_with('!') && !name.contains(['*', '?'])
}

/// `Host a b`, `Host=a b` and `Host = a b` are the same.
fn keyword(line: &str) -> (&str, &str) {
    let line = line.trim();
    let (keyword, rest) = line.split_at(line.find(|c: char| c.is_whitespace() || c == '=').unwrap_or(line.len()));
    let rest = rest.trim_start();
    (keyword, rest.strip_prefix('=').unwrap_or(rest))
}

/// Words as ssh splits them: quotes hold spaces, a `#` at a word's beginning ends the line.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() && !rest.starts_with('#') {
        let mut word = String::new();
        let mut quote = None;
        let mut end = rest.len();
        for (i, c) in rest.char_indices() {
            match (quote, c) {
                (None, '"' | '\'') => quote = Some(c),
                (Some(open), _) if open == c => quote = None,
                (None, _) if c.is_whitespace() => {
                    end = i;
                    break;
                }
                _ => word.push(c),
            }
        }
        words.push(word);
        rest = rest[end..].trim_start();
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn hosts_and_includes_in_their_order() {
        let text = "# Host no\nHost *\n  User ana\nHost gpu1 gpu1.example.org !gpu9 gpu? # head\n  HostName 10.0.0.1\n\
                    include ~/.ssh/config.d/*  \"with space\"\nHOST=gpu2\nHost = \"gpu3\"\nHostName gpu4\nMatch host gpu5\n\tHost\tgpu6";
        let alias = |name: &str| Line::Alias(name.to_owned());
        let include = |name: &str| Line::Include(name.to_owned());
        assert_eq!(
            lines(text),
            [
                alias("gpu1"),
                alias("gpu1.example.org"),
                include("~/.ssh/config.d/*"),
                include("with space"),
                alias("gpu2"),
                alias("gpu3"),
                alias("gpu6"),
            ]
        );
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in any::<String>(), line in "(Host|Include)[ =\"'#*!a-z]{0,30}") {
            let _ = (lines(&text), lines(&line));
        }
    }
}
