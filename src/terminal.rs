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

/// No answer is longer than this, in bytes.
const LONGEST: usize = 1024;

/// Whether an answer is seen while it is typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Echo {
    /// It is.
    Shown,
    /// It is not: a password.
    Hidden,
}

/// Whether there is a terminal to ask on.
pub fn present() -> bool {
    open().is_ok()
}

/// Asks, and gives the line that was typed, without its end. What moves on the terminal stands still meanwhile. When the
/// future is dropped (a signal), the terminal is as it was before.
///
/// # Errors
/// Where there is no terminal, it cannot be set, or nothing but its end came (Ctrl-D).
pub async fn ask(events: &Events, prompt: &str, echo: Echo) -> Result<Zeroizing<String>, Error> {
    let failed = |e: std::io::Error| Error::Here(format!("cannot ask on the terminal: {e}"));
    let tty = open().map_err(failed)?;
    let _still = events.suspend().await;
    let quiet = match echo {
        Echo::Shown => None,
        Echo::Hidden => Some(Quiet::new(&tty).map_err(failed)?),
    };
    (&tty).write_all(prompt.as_bytes()).map_err(failed)?;
    let line = read_line(&tty).await;
    // the newline that was typed was not seen
    if quiet.is_some() {
        let _ = (&tty).write_all(b"\n");
    }
    line.map_err(failed)
}

fn open() -> std::io::Result<File> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open("/dev/tty", flags, Mode::empty())?))
}

/// Looks again and again instead of waiting for readiness: not every system can wait for `/dev/tty` (kqueue cannot), and a
/// read that blocks could not be given up.
async fn read_line(mut tty: &File) -> std::io::Result<Zeroizing<String>> {
    let mut typed = Zeroizing::new(Vec::with_capacity(LONGEST));
    let mut piece = Zeroizing::new([0u8; 256]);
    // a terminal hands out whole lines; one that is longer than the buffer comes in pieces
    while typed.last() != Some(&b'\n') {
        match tty.read(&mut piece[..]) {
            Ok(0) if typed.is_empty() => return Err(std::io::Error::other("nothing was typed")),
            Ok(0) => break,
            Ok(n) if typed.len() + n <= LONGEST => typed.extend_from_slice(&piece[..n]),
            Ok(_) => return Err(std::io::Error::other(format!("the answer is longer than {LONGEST} bytes"))),
            Err(e) if is_later(&e) => tokio::time::sleep(Duration::from_millis(20)).await,
            Err(e) => return Err(e),
        }
    }
    let line = typed.strip_suffix(b"\n").unwrap_or(&typed);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let line = std::str::from_utf8(line).map_err(std::io::Error::other)?;
    Ok(Zeroizing::new(line.to_owned()))
}

/// The terminal's settings as they are, put back when this is dropped, whatever another program has made of them.
pub struct Kept(Option<(File, Termios)>);

impl Kept {
    /// Remembers them; without a terminal nothing.
    #[allow(clippy::new_without_default, reason = "it looks at the terminal, which is no default")]
    pub fn new() -> Kept {
        Kept(open().ok().and_then(|tty| tcgetattr(&tty).ok().map(|settings| (tty, settings))))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some((tty, settings)) = &self.0 {
            let _ = tcsetattr(tty, OptionalActions::Now, settings);
        }
    }
}

/// A terminal that does not show what is typed, until this is dropped.
struct Quiet {
    tty: File,
    before: Termios,
}

impl Quiet {
    fn new(tty: &File) -> std::io::Result<Quiet> {
        let tty = tty.try_clone()?;
        let before = tcgetattr(&tty)?;
        let mut hidden = before.clone();
        hidden.local_modes.remove(LocalModes::ECHO | LocalModes::ECHONL);
        // what was typed before the question is not its answer
        tcsetattr(&tty, OptionalActions::Flush, &hidden)?;
        Ok(Quiet { tty, before })
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        let _ = tcsetattr(&self.tty, OptionalActions::Flush, &self.before);
    }
}

/// A terminal that hands every key on as it is typed and shows what it is given as it is, until this is dropped.
pub struct Raw {
    tty: File,
    before: Termios,
}

impl Raw {
    /// Makes the terminal so.
    ///
    /// # Errors
    /// Where there is none, or it cannot be set.
    pub fn new() -> std::io::Result<Raw> {
        let tty = open()?;
        let before = tcgetattr(&tty)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(&tty, OptionalActions::Drain, &raw)?;
        Ok(Raw { tty, before })
    }

    /// Rows and columns.
    pub fn size(&self) -> (u16, u16) {
        tcgetwinsize(&self.tty).map_or((24, 80), |size| (size.ws_row, size.ws_col))
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

    /// Shows all of it.
    ///
    /// # Errors
    /// When it cannot be written.
    pub async fn write(&self, mut text: &[u8]) -> std::io::Result<()> {
        while !text.is_empty() {
            match (&self.tty).write(text) {
                Ok(n) => text = &text[n..],
                Err(e) if is_later(&e) => tokio::time::sleep(Duration::from_millis(5)).await,
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = tcsetattr(&self.tty, OptionalActions::Now, &self.before);
    }
}

fn is_later(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
