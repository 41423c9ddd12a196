//! The use of colours in output, as decided by the command line, the environment and the kind of stream.

use crate::cli::Color;
use std::io::{self, IsTerminal};

/// Decides it for standard output and standard error.
pub fn set(when: Color) {
    let set = |name: &str| std::env::var(name).ok();
    console::set_colors_enabled(wanted(when, set, io::stdout().is_terminal()));
    console::set_colors_enabled_stderr(wanted(when, set, io::stderr().is_terminal()));
}

/// Decides it for one stream: `--color` wins over `NO_COLOR`, that over `CLICOLOR_FORCE`, and that over the terminal.
fn wanted(when: Color, set: impl Fn(&str) -> Option<String>, terminal: bool) -> bool {
    let set = |name: &str| set(name).filter(|value| !value.is_empty());
    match when {
        Color::Always => true,
        Color::Never => false,
        Color::Auto if set("NO_COLOR").is_some() => false,
        Color::Auto if set("CLICOLOR_FORCE").is_some_and(|value| value != "0") => true,
        Color::Auto => {
            terminal
                && set("CLICOLOR").is_none_or(|value| value != "0")
                && set("TERM").is_some_and(|value| value != "dumb")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_decides() {
        let auto = |environment: &[(&str, &str)], terminal| {
            let value = |name: &str| environment.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
            assert!(wanted(Color::Always, value, terminal) && !wanted(Color::Never, value, terminal));
            wanted(Color::Auto, value, terminal)
        };
        let term = ("TERM", "xterm-256color");
        assert!(auto(&[term], true) && !auto(&[term], false));
        assert!(!auto(&[], true) && !auto(&[("TERM", "dumb")], true));
        assert!(!auto(&[term, ("NO_COLOR", "1")], true) && auto(&[term, ("NO_COLOR", "")], true));
        assert!(!auto(&[term, ("CLICOLOR", "0")], true) && auto(&[term, ("CLICOLOR", "1")], true));
        assert!(auto(&[("CLICOLOR_FORCE", "1")], false) && !auto(&[term, ("CLICOLOR_FORCE", "0")], false));
        assert!(auto(&[("CLICOLOR_FORCE", "1"), ("TERM", "dumb")], true));
        assert!(!auto(&[term, ("NO_COLOR", "1"), ("CLICOLOR_FORCE", "1")], true));
    }
}
