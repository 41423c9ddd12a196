//! Questions to the operator, on the terminal itself: standard input may be a pipe, and standard output the result.

use crate::error::Error;
use crate::event::Events;
use rustix::fs::{Mode, OFlags};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::time::Duration;
use tokio::sync::mpsc;
use zeroize::Zeroizing;

/// The most bytes that an answer may have.
const MAX_ANSWER: usize = 1024;

/// Whether an answer is shown while it is typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Echo {
    /// It is shown.
    Shown,
    /// It is not, because it is a password.
    Hidden,
}

/// Returns whether there is a terminal to ask on.
pub fn present() -> bool {
    open().is_ok()
}

/// Asks a question and returns the line that was typed, without its end. The renderer shows nothing meanwhile. When the future
/// is dropped (a signal), the terminal's settings are restored.
///
/// # Errors
/// When there is no terminal, its settings cannot be changed, or the input ended without a line (Ctrl-D).
pub async fn ask(events: &Events, prompt: &str, echo: Echo) -> Result<Zeroizing<String>, Error> {
    let failed = |e: std::io::Error| Error::Here(format!("could not ask on the terminal: {e}"));
    let tty = open().map_err(failed)?;
    let _suspension = events.suspend().await;
    let hidden = match echo {
        Echo::Shown => None,
        Echo::Hidden => Some(SavedSettings::hide_input(&tty).map_err(failed)?),
    };
    (&tty).write_all(prompt.as_bytes()).map_err(failed)?;
    let line = read_line(&tty).await;
    // the newline that was typed was not seen
    if hidden.is_some() {
        let _ = (&tty).write_all(b"\n");
    }
    line.map_err(failed)
}

fn open() -> std::io::Result<File> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open("/dev/tty", flags, Mode::empty())?))
}

/// Reads a line by polling: not every system can wait for `/dev/tty` (kqueue cannot), and a read that blocks could not be
/// cancelled.
async fn read_line(mut tty: &File) -> std::io::Result<Zeroizing<String>> {
    let mut typed = Zeroizing::new(Vec::with_capacity(MAX_ANSWER));
    let mut piece = Zeroizing::new([0u8; 256]);
    // a terminal hands out whole lines; one that is longer than the buffer comes in pieces
    while typed.last() != Some(&b'\n') {
        match tty.read(&mut piece[..]) {
            Ok(0) if typed.is_empty() => return Err(std::io::Error::other("nothing was typed")),
            Ok(0) => break,
            Ok(n) if typed.len() + n <= MAX_ANSWER => typed.extend_from_slice(&piece[..n]),
            Ok(_) => return Err(std::io::Error::other(format!("the answer is longer than {MAX_ANSWER} bytes"))),
            Err(e) if would_block(&e) => tokio::time::sleep(Duration::from_millis(20)).await,
            Err(e) => return Err(e),
        }
    }
    let line = typed.strip_suffix(b"\n").unwrap_or(&typed);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let line = std::str::from_utf8(line).map_err(std::io::Error::other)?;
    Ok(Zeroizing::new(line.to_owned()))
}

/// The terminal's settings, which are restored when this is dropped, whatever has changed them meanwhile.
pub struct SavedSettings {
    tty: File,
    before: Termios,
    /// What is waited for or dropped when they are restored.
    when: OptionalActions,
}

impl SavedSettings {
    /// Saves them; `None` without a terminal.
    pub fn save() -> Option<SavedSettings> {
        let tty = open().ok()?;
        let before = tcgetattr(&tty).ok()?;
        Some(SavedSettings { tty, before, when: OptionalActions::Now })
    }

    fn change(tty: File, when: OptionalActions, change: impl Fn(&mut Termios)) -> std::io::Result<SavedSettings> {
        let before = tcgetattr(&tty)?;
        let mut settings = before.clone();
        change(&mut settings);
        tcsetattr(&tty, when, &settings)?;
        Ok(SavedSettings { tty, before, when })
    }

    /// Does not show what is typed. What was typed before the question is not its answer, and is dropped.
    fn hide_input(tty: &File) -> std::io::Result<SavedSettings> {
        SavedSettings::change(tty.try_clone()?, OptionalActions::Flush, |settings| {
            settings.local_modes.remove(LocalModes::ECHO | LocalModes::ECHONL);
        })
    }
}

impl Drop for SavedSettings {
    fn drop(&mut self) {
        let _ = tcsetattr(&self.tty, self.when, &self.before);
    }
}

/// The terminal in raw mode until this is dropped: it hands on each key as it is typed, and shows what it is given unchanged.
pub struct Raw(SavedSettings);

impl Raw {
    /// Puts the terminal into raw mode.
    ///
    /// # Errors
    /// When there is no terminal, or its settings cannot be changed.
    pub fn new() -> std::io::Result<Raw> {
        let mut saved = SavedSettings::change(open()?, OptionalActions::Drain, Termios::make_raw)?;
        saved.when = OptionalActions::Now;
        Ok(Raw(saved))
    }

    /// Returns rows and columns.
    pub fn size(&self) -> (u16, u16) {
        tcgetwinsize(&self.0.tty).map_or((24, 80), |size| (size.ws_row, size.ws_col))
    }

    /// Returns what is typed, piece by piece, until the terminal is gone. A thread of its own reads it, because not every system
    /// can wait for `/dev/tty` (kqueue cannot); it ends with the process, or at the first key after the receiver is dropped.
    ///
    /// # Errors
    /// When the terminal cannot be opened.
    pub fn keys(&self) -> std::io::Result<mpsc::Receiver<Vec<u8>>> {
        let mut tty = File::open("/dev/tty")?;
        let (sender, receiver) = mpsc::channel(16);
        std::thread::Builder::new().name("keys".into()).spawn(move || {
            let mut buffer = [0; 4096];
            loop {
                match tty.read(&mut buffer) {
                    Ok(n @ 1..) if sender.blocking_send(buffer[..n].to_vec()).is_ok() => {}
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    _ => return,
                }
            }
        })?;
        Ok(receiver)
    }

    /// Writes all of it.
    ///
    /// # Errors
    /// When it cannot be written.
    pub async fn write(&self, mut text: &[u8]) -> std::io::Result<()> {
        while !text.is_empty() {
            match (&self.0.tty).write(text) {
                Ok(n) => text = &text[n..],
                Err(e) if would_block(&e) => tokio::time::sleep(Duration::from_millis(5)).await,
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

fn would_block(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
