//! Questions to the operator, on the terminal itself: standard input may be a pipe, and standard output the result.

use crate::error::Error;
use crate::event::Events;
use rustix::fs::{Mode, OFlags};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use zeroize::Zeroizing;

/// The most bytes that an answer may have.
const MAX_ANSWER: usize = 1024;

/// The echo of an answer while it is typed.
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

/// Asks a question and returns the line that was typed, without its end. The renderer shows nothing meanwhile. When the
/// future is dropped (a signal), the terminal's settings are restored.
///
/// # Errors
/// When there is no terminal, its settings cannot be changed, or the input ended without a line (Ctrl-D).
pub async fn ask(events: &Events, prompt: &str, echo: Echo) -> Result<Zeroizing<String>, Error> {
    let _suspension = events.suspend().await;
    let asked = async {
        let tty = open_async()?;
        let _hidden = match echo {
            Echo::Shown => None,
            Echo::Hidden => Some(SavedSettings::hide_input(tty.get_ref())?),
        };
        write(&tty, prompt.as_bytes()).await?;
        let line = read_line(&tty).await;
        if echo == Echo::Hidden {
            // the newline that was typed was not shown
            write(&tty, b"\n").await?;
        }
        line
    };
    asked.await.map_err(|e: io::Error| Error::Local(format!("could not ask on the terminal: {e}")))
}

fn open() -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open("/dev/tty", flags, Mode::empty())?))
}

/// Opens the terminal for reads and writes that wait without a thread.
fn open_async() -> io::Result<AsyncFd<File>> {
    #[allow(
        deprecated,
        reason = "its successor is unsafe, because not every type keeps its descriptor as a `File` does"
    )]
    AsyncFd::new(open()?)
}

/// Reads a line. A terminal hands out whole lines; one that is longer than the buffer comes in pieces.
async fn read_line(tty: &AsyncFd<File>) -> io::Result<Zeroizing<String>> {
    let mut typed = Zeroizing::new(Vec::with_capacity(MAX_ANSWER));
    let mut piece = Zeroizing::new([0u8; 256]);
    while typed.last() != Some(&b'\n') {
        match read(tty, &mut piece[..]).await? {
            0 if typed.is_empty() => return Err(io::Error::other("nothing was typed")),
            0 => break,
            n if typed.len() + n <= MAX_ANSWER => typed.extend_from_slice(&piece[..n]),
            _ => return Err(io::Error::other(format!("the answer is longer than {MAX_ANSWER} bytes"))),
        }
    }
    let line = typed.strip_suffix(b"\n").unwrap_or(&typed);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    Ok(Zeroizing::new(std::str::from_utf8(line).map_err(io::Error::other)?.to_owned()))
}

async fn read(tty: &AsyncFd<File>, buffer: &mut [u8]) -> io::Result<usize> {
    perform(tty, Interest::READABLE, |mut tty| tty.read(buffer)).await
}

async fn write(tty: &AsyncFd<File>, mut text: &[u8]) -> io::Result<()> {
    while !text.is_empty() {
        text = &text[perform(tty, Interest::WRITABLE, |mut tty| tty.write(text)).await?..];
    }
    Ok(())
}

/// Performs an operation as soon as it does not block. A blocking one could not be cancelled.
async fn perform(
    tty: &AsyncFd<File>,
    interest: Interest,
    mut operation: impl FnMut(&File) -> io::Result<usize>,
) -> io::Result<usize> {
    let mut uninterrupted = |tty: &File| loop {
        match operation(tty) {
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            result => return result,
        }
    };
    // the first attempt is made at once, so that a question stops a background job before anything is typed
    match uninterrupted(tty.get_ref()) {
        Err(e) if e.kind() == ErrorKind::WouldBlock => tty.async_io(interest, uninterrupted).await,
        result => result,
    }
}

/// The terminal's settings, which are restored when this is dropped, whatever has changed them meanwhile.
pub struct SavedSettings {
    tty: File,
    before: Termios,
    /// When the restored settings take effect.
    when: OptionalActions,
}

impl SavedSettings {
    /// Saves them; `None` without a terminal.
    pub fn save() -> Option<SavedSettings> {
        let tty = open().ok()?;
        let before = tcgetattr(&tty).ok()?;
        Some(SavedSettings { tty, before, when: OptionalActions::Now })
    }

    fn change(tty: &File, when: OptionalActions, change: impl Fn(&mut Termios)) -> io::Result<SavedSettings> {
        let before = tcgetattr(tty)?;
        let mut settings = before.clone();
        change(&mut settings);
        tcsetattr(tty, when, &settings)?;
        Ok(SavedSettings { tty: tty.try_clone()?, before, when })
    }

    /// Does not show what is typed. What was typed before the question is not its answer, and is dropped.
    fn hide_input(tty: &File) -> io::Result<SavedSettings> {
        SavedSettings::change(tty, OptionalActions::Flush, |settings| {
            settings.local_modes.remove(LocalModes::ECHO | LocalModes::ECHONL);
        })
    }
}

impl Drop for SavedSettings {
    fn drop(&mut self) {
        let _ = tcsetattr(&self.tty, self.when, &self.before);
    }
}

/// The terminal in raw mode until this is dropped: it delivers each key as it is typed, and shows its output unchanged.
pub struct Raw {
    tty: AsyncFd<File>,
    _saved: SavedSettings,
}

impl Raw {
    /// Puts the terminal into raw mode.
    ///
    /// # Errors
    /// When there is no terminal, or its settings cannot be changed.
    pub fn new() -> io::Result<Raw> {
        let tty = open_async()?;
        let mut saved = SavedSettings::change(tty.get_ref(), OptionalActions::Drain, Termios::make_raw)?;
        saved.when = OptionalActions::Now;
        Ok(Raw { tty, _saved: saved })
    }

    /// Returns rows and columns.
    pub fn size(&self) -> (u16, u16) {
        tcgetwinsize(self.tty.get_ref()).map_or((24, 80), |size| (size.ws_row, size.ws_col))
    }

    /// Waits for what is typed next and returns how many bytes it is; 0 if the terminal is gone.
    ///
    /// # Errors
    /// When it cannot be read.
    pub async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        read(&self.tty, buffer).await
    }

    /// Writes all of it.
    ///
    /// # Errors
    /// When it cannot be written.
    pub async fn write(&self, text: &[u8]) -> io::Result<()> {
        write(&self.tty, text).await
    }
}
