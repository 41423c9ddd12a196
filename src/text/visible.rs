//! Text from ranks, nodes and files, made safe for a terminal: of control sequences only those for colour and style
//! pass.

/// Control sequences that a terminal acts upon can set its title, clear it, write to the clipboard (OSC 52), or have it
/// answer into the shell's input (`\e[6n`). They are shown escaped; so are characters that turn the direction of text
/// around (Unicode Technical Report 36, 2.8), and bytes that are no UTF-8. Only a line's tabs and SGR sequences
/// (ECMA-48, 8.3.117) stay. A style that the text leaves on ends with it.
pub fn visible(text: &[u8]) -> Vec<u8> {
    filtered(text, false)
}

/// Makes text of several lines safe as [`visible`] does; its line ends stay.
pub fn visible_lines(text: &str) -> String {
    String::from_utf8_lossy(&filtered(text.as_bytes(), true)).into_owned()
}

/// Returns the first characters of a text as one line, with `…` for the rest.
pub fn one_line(text: &str, most: usize) -> String {
    let words: Vec<&str> =
        text.split(|c: char| c.is_control() || c.is_whitespace()).filter(|word| !word.is_empty()).collect();
    let text = words.join(" ");
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

fn filtered(text: &[u8], lines: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut styled = false;
    for chunk in text.utf8_chunks() {
        let valid = chunk.valid();
        let mut rest = valid;
        while let Some(c) = rest.chars().next() {
            if let Some(sequence) = style_sequence(rest) {
                styled = !matches!(sequence, "\x1b[m" | "\x1b[0m");
                out.extend_from_slice(sequence.as_bytes());
                rest = &rest[sequence.len()..];
                continue;
            }
            match c {
                '\t' => out.push(b'\t'),
                '\n' if lines => out.push(b'\n'),
                '\r' if lines && rest.starts_with("\r\n") => {}
                c if c.is_control() || is_bidi_control(c) => out.extend(c.escape_default().to_string().bytes()),
                c => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
            }
            rest = &rest[c.len_utf8()..];
        }
        for byte in chunk.invalid() {
            out.extend(format!("\\x{byte:02x}").bytes());
        }
    }
    if styled {
        out.extend_from_slice(b"\x1b[0m");
    }
    out
}

/// The SGR sequence that a text begins with.
fn style_sequence(text: &str) -> Option<&str> {
    let parameters = text.strip_prefix("\x1b[")?;
    let length = parameters.bytes().take(64).position(|byte| !matches!(byte, b'0'..=b'9' | b';' | b':'))?;
    (parameters.as_bytes()[length] == b'm').then(|| &text[..length + 3])
}

/// Returns whether a character changes the text direction.
fn is_bidi_control(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shown(text: &[u8]) -> String {
        String::from_utf8(visible(text)).unwrap()
    }

    #[test]
    fn only_colours_pass() {
        for (text, wanted) in [
            (&b"loss 0.5\tacc 0.9"[..], "loss 0.5\tacc 0.9"),
            ("zażółć 火 🎉".as_bytes(), "zażółć 火 🎉"),
            (b"\x1b[1;38;5;196mred\x1b[0m", "\x1b[1;38;5;196mred\x1b[0m"),
            (b"\x1b[31mred", "\x1b[31mred\x1b[0m"),
            (b"\x1b]0;title\x07", "\\u{1b}]0;title\\u{7}"),
            (b"\x1b]52;c;aGk=\x1b\\", "\\u{1b}]52;c;aGk=\\u{1b}\\"),
            (b"\x1b[6n\x1b[2J\x1bc", "\\u{1b}[6n\\u{1b}[2J\\u{1b}c"),
            // a private sequence, a C1 introducer, an end that never comes
            (b"\x1b[>0m\xc2\x9b2J\x1b[31", "\\u{1b}[>0m\\u{9b}2J\\u{1b}[31"),
            (b"a\rb\x08\x7f\n", "a\\rb\\u{8}\\u{7f}\\n"),
            (b"\xff\x9b1", "\\xff\\x9b1"),
            ("abc\u{202e}fed".as_bytes(), "abc\\u{202e}fed"),
        ] {
            assert_eq!(shown(text), wanted);
        }
        assert_eq!(visible_lines("error: a\n  hint: \x1b[2Jb"), "error: a\n  hint: \\u{1b}[2Jb");
    }

    proptest! {
        #[test]
        fn whatever_comes_nothing_but_styles_is_left(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let text = shown(&bytes);
            let mut rest = text.as_str();
            while let Some(at) = rest.find(|c: char| c.is_control() && c != '\t') {
                let sequence = style_sequence(&rest[at..]).expect("a style");
                rest = &rest[at + sequence.len()..];
            }
        }
    }
}
