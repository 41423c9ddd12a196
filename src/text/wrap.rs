//! Texts wrapped to a width.

use console::{measure_text_width, strip_ansi_codes};

/// Characters behind which a long word is split rather than elsewhere.
const BREAKS: [char; 6] = [',', '-', '/', '.', ':', '_'];

/// Splits a text into lines of at most `width` columns, between words if possible. A text that fits keeps its colours.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    if measure_text_width(text) <= width {
        return vec![text.to_owned()];
    }
    let mut lines = vec![String::new()];
    for word in strip_ansi_codes(text).split_whitespace() {
        let mut word = word;
        loop {
            let line = lines.last_mut().expect("there is a first line");
            let space = usize::from(!line.is_empty());
            if measure_text_width(line) + space + measure_text_width(word) <= width {
                line.push_str(&" "[..space]);
                line.push_str(word);
                break;
            }
            if line.is_empty() {
                let end = end_of_part(word, width);
                line.push_str(&word[..end]);
                word = &word[end..];
            }
            if word.is_empty() {
                break;
            }
            lines.push(String::new());
        }
    }
    lines
}

/// Returns where to split a word that is wider than a line: behind the last of [`BREAKS`], else where it fits.
fn end_of_part(word: &str, width: usize) -> usize {
    let (mut fits, mut nice) = (0, 0);
    for (at, c) in word.char_indices() {
        let end = at + c.len_utf8();
        if measure_text_width(&word[..end]) > width && fits > 0 {
            break;
        }
        fits = end;
        if BREAKS.contains(&c) {
            nice = end;
        }
    }
    // a part of a few characters would waste the line
    if nice > fits / 2 { nice } else { fits }
}

/// Adds a line without spaces at its end.
pub fn push_line(text: &mut String, line: &str) {
    text.push_str(line.trim_end());
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_between_words_if_possible() {
        assert_eq!(wrap("short", 10), ["short"]);
        assert_eq!(wrap("", 10), [""]);
        assert_eq!(wrap("one two three", 8), ["one two", "three"]);
        assert_eq!(wrap("node[1-4,7,9-12]", 10), ["node[1-4,", "7,9-12]"]);
        assert_eq!(wrap("a 0123456789abcdef b", 10), ["a", "0123456789", "abcdef b"]);
        assert_eq!(wrap("深層学習", 5), ["深層", "学習"]);
        assert_eq!(wrap("深層", 1), ["深", "層"]);
        assert_eq!(wrap("\x1b[31mred text\x1b[0m", 4), ["red", "text"]);
    }
}
