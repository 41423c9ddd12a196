//! One stream for all who want the same: what many nodes lack is read once.

use std::fs::File;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Bytes that are handed on at once.
const PIECE: usize = 256 * 1024;
/// How many pieces wait for each reader: by so much one may be behind another.
const WAITING: usize = 16;
/// How many are kept for readers who join. Nodes that are looked at together are some tens of milliseconds apart.
const KEPT: usize = 64;

/// A part of a stream, or why it broke off.
pub type Piece = io::Result<Arc<Vec<u8>>>;

/// The streams under way, by what they carry.
#[derive(Debug)]
pub struct Streams<K>(Mutex<Vec<(K, Weak<Stream>)>>);

impl<K> Default for Streams<K> {
    fn default() -> Streams<K> {
        Streams(Mutex::default())
    }
}

impl<K: PartialEq> Streams<K> {
    /// A reader of the stream of a key: of one that has just begun, else of a new one, which `write` makes on a thread of its own, at
    /// the speed of the slowest reader. It breaks off when there is none left.
    pub fn read(&self, key: K, write: impl FnOnce(&mut Out<'_>) -> io::Result<()> + Send + 'static) -> Receiver<Piece> {
        let mut streams = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        streams.retain(|(_, stream)| stream.strong_count() > 0);
        let same = streams.iter().filter(|(of, _)| *of == key).filter_map(|(_, stream)| stream.upgrade());
        if let Some(receiver) = same.into_iter().find_map(|stream| stream.join()) {
            return receiver;
        }
        let (sender, receiver) = channel(WAITING);
        let stream = Arc::new(Stream(Mutex::new(State { readers: vec![sender], kept: Some(Vec::new()) })));
        streams.push((key, Arc::downgrade(&stream)));
        thread::spawn(move || {
            let mut out = Out { stream: &stream, piece: Vec::with_capacity(PIECE) };
            let written = write(&mut out).and_then(|()| out.flush());
            stream.end(written);
        });
        receiver
    }
}

/// A stream under way.
#[derive(Debug)]
struct Stream(Mutex<State>);

#[derive(Debug)]
struct State {
    readers: Vec<Sender<Piece>>,
    /// All pieces from the first on, as long as a reader may join.
    kept: Option<Vec<Arc<Vec<u8>>>>,
}

impl Stream {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn join(&self) -> Option<Receiver<Piece>> {
        let mut state = self.state();
        let kept = state.kept.as_ref()?;
        let (sender, receiver) = channel(KEPT);
        for piece in kept {
            // there is room for all that are kept
            let _ = sender.try_send(Ok(Arc::clone(piece)));
        }
        state.readers.push(sender);
        Some(receiver)
    }

    /// Hands a piece to all who read now; who joins from here on finds it among those that are kept.
    fn send(&self, piece: Vec<u8>) -> io::Result<()> {
        let piece = Arc::new(piece);
        let readers = {
            let mut state = self.state();
            state.kept = state.kept.take().filter(|kept| kept.len() < KEPT).map(|mut kept| {
                kept.push(Arc::clone(&piece));
                kept
            });
            state.readers.retain(|reader| !reader.is_closed());
            if state.readers.is_empty() {
                // it breaks off now, and nobody is to join
                state.kept = None;
            }
            state.readers.clone()
        };
        if readers.is_empty() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        for reader in readers {
            // one who has gone since is nobody's loss
            let _ = reader.blocking_send(Ok(Arc::clone(&piece)));
        }
        Ok(())
    }

    fn end(&self, written: io::Result<()>) {
        let readers = {
            let mut state = self.state();
            state.kept = None;
            std::mem::take(&mut state.readers)
        };
        if let Err(error) = written {
            for reader in readers {
                let _ = reader.blocking_send(Err(io::Error::new(error.kind(), error.to_string())));
            }
        }
    }
}

/// Makes pieces of what is written.
pub struct Out<'a> {
    stream: &'a Stream,
    piece: Vec<u8>,
}

impl Out<'_> {
    /// Reads so many bytes of a file right into the stream; how many there were. Of a file that has more, no more get there.
    pub fn read_from(&mut self, file: &File, size: u64) -> io::Result<u64> {
        let mut read = 0;
        while read < size {
            let some = || rustix::io::read(file, rustix::buffer::spare_capacity(&mut self.piece));
            match rustix::io::retry_on_intr(some)? {
                0 => break,
                n => read += n as u64,
            }
            let beyond = read.saturating_sub(size);
            self.piece.truncate(self.piece.len() - beyond as usize);
            if self.piece.len() == self.piece.capacity() {
                self.flush()?;
            }
        }
        Ok(read)
    }
}

impl Write for Out<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let taken = data.len().min(self.piece.capacity() - self.piece.len());
        self.piece.extend_from_slice(&data[..taken]);
        if self.piece.len() == self.piece.capacity() {
            self.flush()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.send(std::mem::replace(&mut self.piece, Vec::with_capacity(PIECE)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// More than is ever kept.
    const LONG: usize = 3 * KEPT * PIECE + 7;

    fn long(out: &mut dyn Write) -> io::Result<()> {
        const STEP: usize = 10_000;
        (0..LONG).step_by(STEP).try_for_each(|at| out.write_all(&vec![(at / STEP) as u8; STEP.min(LONG - at)]))
    }

    fn all(mut receiver: Receiver<Piece>) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        while let Some(piece) = receiver.blocking_recv() {
            text.extend_from_slice(&piece?);
        }
        Ok(text)
    }

    #[test]
    fn who_wants_the_same_at_the_same_time_has_it_from_one_writing() {
        let mut wanted = Vec::new();
        long(&mut wanted).unwrap();
        let streams = Streams::default();
        let written = Arc::new(AtomicUsize::new(0));
        let read = |key: &'static str| {
            let written = Arc::clone(&written);
            streams.read(key, move |out| {
                written.fetch_add(1, Ordering::SeqCst);
                long(out)
            })
        };
        // nobody has taken anything yet, so nobody can have missed anything
        let readers = [read("a"), read("b"), read("a"), read("a")];
        let readers = readers.map(|reader| thread::spawn(move || all(reader).unwrap()));
        for reader in readers {
            assert!(reader.join().unwrap() == wanted);
        }
        assert_eq!(written.load(Ordering::SeqCst), 2);
        // what is over is written again
        assert!(all(read("a")).unwrap() == wanted);
        assert_eq!(written.load(Ordering::SeqCst), 3);
    }

    #[test]
    fn of_a_file_that_has_grown_no_more_is_sent_than_was_said() {
        use std::io::{Seek, SeekFrom};
        let mut file = tempfile::tempfile().unwrap();
        let contents: Vec<u8> = (0..3 * PIECE).map(|at| (at / 1000) as u8).collect();
        file.write_all(&contents).unwrap();
        for size in [0, 1, PIECE - 5, PIECE, PIECE + 1, 3 * PIECE - 1, 3 * PIECE] {
            let mut file = file.try_clone().unwrap();
            file.seek(SeekFrom::Start(0)).unwrap();
            let stream = Streams::default().read((), move |out| {
                out.write_all(b"head")?;
                let read = out.read_from(&file, size as u64)?;
                assert!(read >= size as u64);
                out.write_all(b"tail")
            });
            assert!(all(stream).unwrap() == [b"head", &contents[..size], b"tail"].concat(), "{size}");
        }
    }

    #[test]
    fn who_comes_late_misses_nothing() {
        let streams = Streams::default();
        let mut first = streams.read((), |out| long(out));
        let mut taken = Vec::new();
        for _ in 0..2 * KEPT {
            taken.extend_from_slice(&first.blocking_recv().unwrap().unwrap());
        }
        let late = streams.read((), |out| long(out));
        let late = thread::spawn(move || all(late).unwrap());
        taken.extend(all(first).unwrap());
        assert!(late.join().unwrap() == taken && taken.len() == LONG);
    }

    #[test]
    fn who_goes_holds_nobody_up_and_a_failure_is_everybodys() {
        let streams = Streams::default();
        let (gone, stays) = (streams.read(0, |out| long(out)), streams.read(0, |out| long(out)));
        let reading = thread::spawn(move || all(stays).unwrap().len());
        drop(gone);
        assert_eq!(reading.join().unwrap(), LONG);

        let fails = |out: &mut Out<'_>| long(out).and(Err(io::Error::other("gone")));
        let readers = [streams.read(1, fails), streams.read(1, fails)].map(|reader| thread::spawn(move || all(reader)));
        for reader in readers {
            assert_eq!(reader.join().unwrap().unwrap_err().to_string(), "gone");
        }
    }
}
