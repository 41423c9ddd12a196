//! A terminal in memory, for tests.

use indicatif::TermLike;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex};

/// A terminal in memory.
#[derive(Clone)]
pub struct Terminal(Arc<Mutex<vt100::Parser>>);

impl Terminal {
    pub fn new(rows: u16, columns: u16) -> Terminal {
        Terminal(Arc::new(Mutex::new(vt100::Parser::new(rows, columns, 1000))))
    }

    /// Its lines, without empty ones at the end. The spinner's signs are one.
    pub fn lines(&self) -> Vec<String> {
        let parser = self.0.lock().unwrap();
        let (_, columns) = parser.screen().size();
        let still = |c: char| if ('\u{2800}'..='\u{28ff}').contains(&c) { '*' } else { c };
        let mut lines: Vec<String> =
            parser.screen().rows(0, columns).map(|line| line.trim_end().chars().map(still).collect()).collect();
        while lines.last().is_some_and(String::is_empty) {
            lines.pop();
        }
        lines
    }

    pub fn resize(&self, rows: u16, columns: u16) {
        self.0.lock().unwrap().screen_mut().set_size(rows, columns);
    }

    /// Returns the number of lines that have left the screen at its top.
    pub fn scrolled(&self) -> usize {
        let mut parser = self.0.lock().unwrap();
        parser.screen_mut().set_scrollback(usize::MAX);
        let lines = parser.screen().scrollback();
        parser.screen_mut().set_scrollback(0);
        lines
    }
}

impl Terminal {
    fn write(&self, text: &str) -> io::Result<()> {
        self.0.lock().unwrap().process(text.as_bytes());
        Ok(())
    }

    fn move_cursor(&self, n: usize, direction: char) -> io::Result<()> {
        if n > 0 { self.write(&format!("\x1b[{n}{direction}")) } else { Ok(()) }
    }
}

impl fmt::Debug for Terminal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Terminal")
    }
}

impl TermLike for Terminal {
    fn width(&self) -> u16 {
        self.0.lock().unwrap().screen().size().1
    }
    fn height(&self) -> u16 {
        self.0.lock().unwrap().screen().size().0
    }
    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        self.move_cursor(n, 'A')
    }
    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        self.move_cursor(n, 'B')
    }
    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        self.move_cursor(n, 'C')
    }
    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        self.move_cursor(n, 'D')
    }
    fn write_line(&self, s: &str) -> io::Result<()> {
        self.write(&format!("{}\r\n", s.replace('\n', "\r\n")))
    }
    fn write_str(&self, s: &str) -> io::Result<()> {
        self.write(s)
    }
    fn clear_line(&self) -> io::Result<()> {
        self.write("\r\x1b[2K")
    }
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}
