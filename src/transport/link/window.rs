//! How much of what a program is fed may be under way to it at once.
//!
//! OpenSSH lets 2 MiB be under way in a session. When a program takes less than comes, all of that lies in sshd, in a buffer
//! that is allotted, copied and wiped anew for each packet by which it grows: on a busy machine a fifth of what sshd costs.
//! So a program that says what it has taken is only sent a part of that at once, where the way to it is short.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

/// Bytes that may be under way.
const MOST: u64 = 1 << 20;

/// The longest way there and back on which [`MOST`] is no brake: 100 MiB/s.
const NEAR: Duration = Duration::from_millis(10);

/// How many parts are sent one by one, at most, to find out how long the way is. One of them is not delayed by others.
const ONE_BY_ONE: u32 = 4;

/// A program that has said nothing after so long may have no word for it: it is sent all there is.
const SILENT: Duration = Duration::from_secs(5);

/// How a program says what it takes of what it is fed.
#[derive(Debug, Clone, Copy)]
pub struct Taking {
    /// A byte of its standard output, which is there for nothing else: once before it takes anything, then for each part.
    pub mark: u8,
    /// Bytes of a part.
    pub part: u64,
}

/// How long the way is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// After so many parts that took longer than [`NEAR`].
    Unknown(u32),
    Near,
    Far,
}

/// What is known on this side of what is under way.
#[derive(Debug)]
struct State {
    way: Way,
    /// Marks that were heard.
    marks: u64,
    /// How many bytes had been written in all, last of all, and when.
    written: (u64, Instant),
}

impl State {
    fn new(way: Way) -> State {
        State { way, marks: 0, written: (0, Instant::now()) }
    }

    fn taken(&self, part: u64) -> u64 {
        self.marks.saturating_sub(1) * part
    }

    /// Whether so many bytes in all may be written.
    fn has_room(&self, bytes: u64, part: u64) -> bool {
        match self.way {
            Way::Unknown(_) => bytes <= self.taken(part) + part,
            Way::Near => bytes <= self.taken(part) + MOST,
            Way::Far => true,
        }
    }

    fn hears(&mut self, part: u64, now: Instant) {
        self.marks += 1;
        let (bytes, at) = self.written;
        if let Way::Unknown(tried) = self.way
            && bytes > 0
            && bytes <= self.taken(part)
        {
            self.way = match tried + 1 {
                _ if now - at <= NEAR => Way::Near,
                ONE_BY_ONE => Way::Far,
                tried => Way::Unknown(tried),
            };
        }
    }
}

/// What the one who writes and the one who hears the program share.
#[derive(Debug)]
pub(super) struct Window {
    taking: Option<Taking>,
    state: Mutex<State>,
    more: Notify,
}

impl Window {
    /// For a program that says what it takes, or does not.
    pub(super) fn new(taking: Option<Taking>) -> Window {
        let way = if taking.is_some() { Way::Unknown(0) } else { Way::Far };
        Window { taking, state: Mutex::new(State::new(way)), more: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until so many bytes in all may be written; as long as it takes, once the program has said something.
    pub(super) async fn room(&self, bytes: u64) {
        let Some(Taking { part, .. }) = self.taking else { return };
        let has_room = || self.state().has_room(bytes, part);
        while !has_room() {
            let heard = timeout(SILENT, self.more.notified()).await.is_ok();
            let mut state = self.state();
            if !heard && state.marks == 0 {
                state.way = Way::Far;
            }
        }
    }

    /// So many bytes in all were written just now.
    pub(super) fn wrote(&self, bytes: u64) {
        self.state().written = (bytes, Instant::now());
    }

    /// Reads the program's standard output to its end, and puts behind `rest` what is not about this.
    ///
    /// # Errors
    /// When the stream breaks, or has more than `most` bytes.
    pub(super) async fn listen(
        &self,
        stream: &mut (impl AsyncRead + Unpin),
        rest: &mut Vec<u8>,
        most: usize,
    ) -> std::io::Result<()> {
        loop {
            let start = rest.len();
            if start > most {
                return Err(super::process::too_long(most));
            }
            if stream.read_buf(rest).await? == 0 {
                break;
            }
            let Some(Taking { mark, part }) = self.taking else { continue };
            let marks = rest[start..].iter().filter(|byte| **byte == mark).count();
            if marks > 0 {
                let words: Vec<u8> = rest.drain(start..).filter(|byte| *byte != mark).collect();
                rest.extend(words);
                let mut state = self.state();
                (0..marks).for_each(|_| state.hears(part, Instant::now()));
                self.more.notify_one();
            }
        }
        // whoever waits finds out by writing
        self.state().way = Way::Far;
        self.more.notify_one();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    const PART: u64 = 256 << 10;
    const TAKING: Taking = Taking { mark: b'.', part: PART };
    const FAR: Duration = Duration::from_millis(11);

    /// What is known after parts that took so long each, behind the mark at the start.
    fn after(ways: &[Duration]) -> State {
        let start = Instant::now();
        let mut state = State::new(Way::Unknown(0));
        state.hears(PART, start);
        for (way, part) in ways.iter().zip(1..) {
            assert!(state.has_room(part * PART, PART));
            state.written = (part * PART, start);
            state.hears(PART, start + *way);
        }
        state
    }

    #[test]
    fn a_short_way_has_a_narrow_window_and_a_long_one_has_none() {
        // one part after the other until it is known
        for ways in [&[][..], &[FAR], &[FAR; 3]] {
            let (state, sent) = (after(ways), ways.len() as u64 * PART);
            assert!(state.has_room(sent + PART, PART) && !state.has_room(sent + PART + 1, PART), "{ways:?}");
        }
        assert!(after(&[FAR; 4]).has_room(1 << 40, PART));
        // the quickest tells how long the way is
        for ways in [&[NEAR][..], &[FAR, NEAR], &[FAR, FAR, FAR, NEAR], &[NEAR, FAR, FAR, FAR, FAR, FAR]] {
            let (state, sent) = (after(ways), ways.len() as u64 * PART);
            assert!(state.has_room(sent + MOST, PART) && !state.has_room(sent + MOST + 1, PART), "{ways:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_writes_waits_for_what_is_taken_but_not_for_a_program_that_says_nothing_or_is_gone() {
        let window = Window::new(Some(TAKING));
        let (mut node, mut here) = tokio::io::duplex(64);
        let mut rest = b"before ".to_vec();
        let program = async {
            node.write_all(b".").await.unwrap();
            tokio::time::sleep(NEAR / 2).await;
            node.write_all(b"words.").await.unwrap();
            // a program that is at work for long is waited for
            tokio::time::sleep(5 * SILENT).await;
            node.write_all(b".. and words").await.unwrap();
            tokio::time::sleep(SILENT).await;
            drop(node);
        };
        let writer = async {
            window.room(PART).await;
            window.wrote(PART);
            window.room(PART + 1).await;
            assert_eq!(window.state().way, Way::Near);
            let start = Instant::now();
            window.room(3 * PART + MOST).await;
            assert_eq!(start.elapsed().as_secs(), 5 * SILENT.as_secs(), "until they are taken");
            window.room(3 * PART + MOST + 1).await;
            assert_eq!(start.elapsed().as_secs(), 6 * SILENT.as_secs(), "until the end is heard");
        };
        let (heard, (), ()) = tokio::join!(window.listen(&mut here, &mut rest, usize::MAX), program, writer);
        heard.unwrap();
        assert_eq!(rest, b"before words and words");

        let (silent, start) = (Window::new(Some(TAKING)), Instant::now());
        silent.room(PART + 1).await;
        assert_eq!(start.elapsed().as_secs(), SILENT.as_secs());
        silent.room(1 << 40).await;
        assert_eq!(start.elapsed().as_secs(), SILENT.as_secs(), "that is waited for once");
        Window::new(None).room(1 << 40).await;
    }
}
