//! Text in a page.

/// Adds a text as HTML. Nothing of it is markup, and control characters are left out.
pub(super) fn escape(out: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(c),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
}

/// Returns a text as HTML.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    escape(&mut out, text);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_text_is_markup() {
        let hostile = "</style><script>alert('x')</script>\u{1b}[2J&\"\u{0}";
        assert_eq!(
            escaped(hostile),
            "&lt;/style&gt;&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;\u{fffd}[2J&amp;&quot;\u{fffd}"
        );
    }
}
