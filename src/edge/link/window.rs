//! How much of what a program is fed may be under way to it at once.
//!
//! OpenSSH lets 2 MiB be under way in a session. When a program takes less than comes, all of that lies in sshd, in a buffer
//! that is allotted, copied and wiped anew for each packet by which it grows: on a busy machine a fifth of what sshd costs.
//! So a program that says what it has taken is only sent a part of that at once, where the way to it is short.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

/// Bytes that may be under way.
const MOST: u64 = 1 << 20;

/// The longest way there and back on which [`MOST`] is no brake: 100 MiB/s.
const NEAR: Duration = Duration::from_millis(10);

/// After so many parts the quickest of them tells how long the way is; the others had to wait for each other.
const ENOUGH: u64 = 32;

/// A program that says nothing for so long may have no words for it: it is sent all there is.
const SILENT: Duration = Duration::from_secs(1);

/// How a program says what it takes of what it is fed.
#[derive(Debug, Clone, Copy)]
pub struct Taking {
    /// A line of its standard error, with its end, for each part.
    pub line: &'static str,
    /// Bytes of a part.
    pub part: u64,
}

/// What is known on this side of what is under way.
#[derive(Debug, Default)]
struct State {
    /// How many bytes had been written in all, and when.
    written: VecDeque<(u64, Instant)>,
    /// Bytes that were taken.
    taken: u64,
    /// The shortest time between writing bytes and hearing that they were taken.
    soonest: Option<Duration>,
    /// Whether ssh's own window is the only one.
    wide: bool,
}

impl State {
    /// Whether so many bytes in all may be written.
    fn has_room(&self, bytes: u64) -> bool {
        self.wide || bytes <= self.taken + MOST
    }

    fn takes(&mut self, part: u64, now: Instant) {
        self.taken += part;
        while let Some((_, at)) = self.written.front().filter(|(bytes, _)| *bytes <= self.taken) {
            let time = now - *at;
            self.written.pop_front();
            self.soonest = Some(self.soonest.map_or(time, |soonest| soonest.min(time)));
        }
        if self.taken >= ENOUGH * part && self.soonest.is_some_and(|soonest| soonest > NEAR) {
            self.wide = true;
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
        let state = State { wide: taking.is_none(), ..State::default() };
        Window { taking, state: Mutex::new(state), more: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until so many bytes in all may be written.
    pub(super) async fn room(&self, bytes: u64) {
        while !self.state().has_room(bytes) {
            if timeout(SILENT, self.more.notified()).await.is_err() {
                self.state().wide = true;
            }
        }
    }

    /// So many bytes in all were written just now.
    pub(super) fn wrote(&self, bytes: u64) {
        let mut state = self.state();
        if !state.wide {
            state.written.push_back((bytes, Instant::now()));
        }
    }

    /// Reads the program's standard error to its end, and puts behind `rest` what is not about this.
    ///
    /// # Errors
    /// When the stream breaks.
    pub(super) async fn listen(
        &self,
        stream: &mut (impl AsyncRead + Unpin),
        rest: &mut Vec<u8>,
    ) -> std::io::Result<()> {
        // where the line begins that has not ended yet
        let mut start = rest.len();
        while stream.read_buf(rest).await? > 0 {
            let Some(taking) = self.taking else { continue };
            while let Some(length) = rest[start..].iter().position(|b| *b == b'\n') {
                let end = start + length + 1;
                if &rest[start..end] == taking.line.as_bytes() {
                    rest.drain(start..end);
                    self.state().takes(taking.part, Instant::now());
                    self.more.notify_one();
                } else {
                    start = end;
                }
            }
        }
        // whoever waits finds out by writing
        self.state().wide = true;
        self.more.notify_one();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    const PART: u64 = 256 << 10;
    const TAKING: Taking = Taking { line: "tar: taken\n", part: PART };

    /// What is known after so many parts, each of which took so long.
    fn after(parts: u64, way: Duration) -> State {
        let (mut state, start) = (State::default(), Instant::now());
        for part in 1..=parts {
            state.written.push_back((part * PART, start));
            state.takes(PART, start + way);
        }
        state
    }

    #[test]
    fn a_short_way_has_a_narrow_window_and_a_long_one_has_none() {
        for parts in [0, 1, ENOUGH, 10 * ENOUGH] {
            let state = after(parts, NEAR);
            assert!(state.has_room(parts * PART + MOST) && !state.has_room(parts * PART + MOST + 1), "{parts}");
        }
        let far = NEAR + Duration::from_millis(1);
        assert!(!after(ENOUGH - 1, far).has_room(1 << 40) && after(ENOUGH, far).has_room(1 << 40));
        // the quickest tells how long the way is
        let mut state = after(1, NEAR);
        let now = Instant::now();
        (2..10 * ENOUGH).for_each(|part| state.written.push_back((part * PART, now)));
        (2..10 * ENOUGH).for_each(|_| state.takes(PART, now + 10 * far));
        assert!(!state.has_room(1 << 40));
    }

    #[tokio::test(start_paused = true)]
    async fn who_writes_waits_for_what_is_taken_but_not_for_a_program_that_says_nothing_or_is_gone() {
        let window = Window::new(Some(TAKING));
        let (mut node, mut here) = tokio::io::duplex(64);
        let mut rest = b"before\n".to_vec();
        let program = async {
            // a part in two pieces, between words of others
            node.write_all(b"tar: t/x: Cannot open\ntar: ta").await.unwrap();
            tokio::task::yield_now().await;
            node.write_all(b"ken\ntar: taken\nlast words").await.unwrap();
            tokio::time::sleep(SILENT / 2).await;
            drop(node);
        };
        let writer = async {
            let start = Instant::now();
            window.room(MOST + 2 * PART).await;
            assert!(start.elapsed() < SILENT / 2, "they were taken");
            window.room(MOST + 2 * PART + 1).await;
            assert!(start.elapsed() >= SILENT / 2 && start.elapsed() < SILENT, "the end is heard");
        };
        let (heard, (), ()) = tokio::join!(window.listen(&mut here, &mut rest), program, writer);
        heard.unwrap();
        assert_eq!(rest, b"before\ntar: t/x: Cannot open\nlast words");

        let (silent, start) = (Window::new(Some(TAKING)), Instant::now());
        silent.room(MOST + 1).await;
        assert!(start.elapsed() >= SILENT);
        let start = Instant::now();
        silent.room(1 << 40).await;
        assert!(start.elapsed() < SILENT, "that is waited for once");
        Window::new(None).room(1 << 40).await;
    }
}
