//! The contents of files as they were hashed, for as long as the upload takes, although others write to them meanwhile.

use crate::text::digest::{Hash, Hasher, finish, hasher};
use rustix::fs::{OFlags, SeekFrom, seek};
use std::fs::{File, Metadata};
use std::io::{self, BufReader, ErrorKind, Read, Seek, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Bytes that are read from a file at once.
pub(super) const BLOCK: usize = 64 * 1024;

/// Time after a change in which another one may leave the same times: some file systems store seconds.
const COARSE: Duration = Duration::from_secs(3);

/// The contents of a file that was hashed. A directory may have a million of them, so they are small; copies share
/// them.
#[derive(Debug, Clone)]
pub(super) struct ContentStore {
    source: ContentSource,
    /// The time of the file's last change, in seconds since 1970.
    pub(super) mtime: u64,
}

/// The source of a file's contents.
#[derive(Debug, Clone)]
enum ContentSource {
    /// The bytes that were hashed.
    Memory(Arc<[u8]>),
    /// A private copy, whose bytes were hashed.
    Copy(Arc<File>),
    /// The file in its place, with its state when it was hashed; `None` if it may change, or has changed, without
    /// another state.
    Place(Option<Box<Stamp>>),
    /// [`ContentSource::Place`] for a file with holes, with the ranges that hold data.
    Sparse(Arc<(Option<Box<Stamp>>, Vec<Range>)>),
}

/// The offset and the length of a part of a file.
pub(crate) type Range = (u64, u64);

/// The most parts of one file that are sent; with more it is sent as a whole.
pub(super) const MOST_RANGES: usize = 16 << 10;

/// Holes of fewer bytes altogether are sent.
const WORTHWHILE: u64 = 64 << 10;

/// The alignment of the parts of a file in a tar stream; the last one ends with the file.
const TAR_BLOCK: u64 = 512;

/// Returns whether these are parts of a file of this size, in order, as a tar stream can have them.
pub(crate) fn are_ranges(ranges: &[Range], size: u64) -> bool {
    let mut least = 0;
    ranges.len() <= MOST_RANGES
        && ranges.iter().all(|(offset, length)| {
            let end = offset.checked_add(*length).filter(|end| *length > 0 && *end <= size && *offset >= least);
            least = end.unwrap_or_default();
            offset % TAR_BLOCK == 0 && end.is_some_and(|end| end % TAR_BLOCK == 0 || end == size)
        })
}

/// Returns where a file of this size has data, if sending its holes can be spared.
fn data_of(file: &File, meta: &Metadata, size: u64) -> Option<Vec<Range>> {
    // most file systems allocate a little less or more than is written
    if meta.blocks().saturating_mul(512).saturating_add(WORTHWHILE) >= size {
        return None;
    }
    let (mut ranges, mut at, mut stored) = (Vec::<Range>::new(), 0, 0);
    while at < size {
        let found = match seek(file, SeekFrom::Data(at)) {
            // a hole up to the end
            Err(rustix::io::Errno::NXIO) => break,
            found => found.ok()?,
        };
        let end = seek(file, SeekFrom::Hole(found)).ok()?.checked_next_multiple_of(TAR_BLOCK)?.min(size);
        let start = (found / TAR_BLOCK * TAR_BLOCK).max(at);
        if start >= size {
            break;
        }
        if end <= start || ranges.len() == MOST_RANGES {
            return None;
        }
        ranges.push((start, end - start));
        (at, stored) = (end, stored + end - start);
    }
    (stored + WORTHWHILE < size).then_some(ranges)
}

/// The state of a file that changes with its contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp([i64; 7]);

impl Stamp {
    fn of(meta: &Metadata) -> Stamp {
        let number = |value: u64| i64::from_ne_bytes(value.to_ne_bytes());
        let times = [meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec()];
        Stamp([number(meta.dev()), number(meta.ino()), number(meta.size()), times[0], times[1], times[2], times[3]])
    }
}

impl ContentStore {
    fn new(source: ContentSource, meta: &Metadata) -> ContentStore {
        ContentStore { source, mtime: u64::try_from(meta.mtime()).unwrap_or_default() }
    }

    /// Returns contents that are kept in memory.
    pub(super) fn in_memory(bytes: Vec<u8>, meta: &Metadata) -> ContentStore {
        ContentStore::new(ContentSource::Memory(bytes.into()), meta)
    }

    /// Returns the contents of a file that was hashed after `before`, to be read again when they are sent.
    pub(super) fn in_place(file: &File, before: &Metadata) -> io::Result<ContentStore> {
        let after = file.metadata()?;
        let changed = UNIX_EPOCH + Duration::from_secs(u64::try_from(after.ctime()).unwrap_or_default());
        let age = SystemTime::now().duration_since(changed);
        let stamp = Stamp::of(&after);
        let is_settled = stamp == Stamp::of(before) && age.is_ok_and(|age| age > COARSE);
        Ok(ContentStore::new(ContentSource::Place(is_settled.then(|| Box::new(stamp))), &after))
    }

    /// Hashes a file as long as it is now. Returns hash, size and permission bits.
    pub(super) fn hash(path: &Path) -> io::Result<(Hash, u64, u32, ContentStore)> {
        let (file, meta) = open(path)?;
        let mut hasher = hasher();
        let size = copy(&file, meta.len(), &mut hasher)?;
        let mut contents = ContentStore::in_place(&file, &meta)?;
        if let (ContentSource::Place(stamp), Some(ranges)) = (&mut contents.source, data_of(&file, &meta, size)) {
            contents.source = ContentSource::Sparse(Arc::new((stamp.take(), ranges)));
        }
        Ok((finish(&hasher), size, mode(&meta), contents))
    }

    /// Returns the same contents without what is known of holes: file systems were wrong about them.
    pub(super) fn whole(mut self) -> ContentStore {
        if let ContentSource::Sparse(place) = &self.source {
            self.source = ContentSource::Place(place.0.clone());
        }
        self
    }

    /// Returns where a file with holes has data; `None` for others.
    pub(super) fn ranges(&self) -> Option<&[Range]> {
        if let ContentSource::Sparse(place) = &self.source { Some(&place.1) } else { None }
    }

    /// Returns the state of the file in its place when it was hashed.
    fn stamp(&self) -> Option<&Stamp> {
        match &self.source {
            ContentSource::Place(stamp) => stamp.as_deref(),
            ContentSource::Sparse(place) => place.0.as_deref(),
            ContentSource::Memory(_) | ContentSource::Copy(_) => None,
        }
    }

    /// Hashes a file that keeps changing, and copies what was hashed.
    pub(super) fn hash_copy(path: &Path) -> io::Result<(Hash, u64, u32, ContentStore)> {
        let (file, meta) = open(path)?;
        let mut both = HashedCopy { copy: tempfile::tempfile()?, hasher: hasher() };
        let size = copy(&file, meta.len(), &mut both)?;
        Ok((
            finish(&both.hasher),
            size,
            mode(&meta),
            ContentStore::new(ContentSource::Copy(Arc::new(both.copy)), &meta),
        ))
    }

    /// Passes `size` bytes to `write`, or only what is in these ranges. Returns whether they are those of the hash, as
    /// far as this machine can know; the node finds out.
    pub(super) fn send(
        &self,
        path: &Path,
        (hash, size): (&Hash, u64),
        ranges: Option<&[Range]>,
        write: impl FnOnce(&mut dyn Read) -> io::Result<()>,
    ) -> io::Result<bool> {
        match &self.source {
            ContentSource::Memory(bytes) => write(&mut &bytes[..])?,
            ContentSource::Copy(file) => {
                write(&mut BufReader::with_capacity(BLOCK, ReadAt { file, at: 0 }.take(size)))?
            }
            ContentSource::Place(_) | ContentSource::Sparse(_) => {
                let file = match open(path) {
                    Err(e) if is_gone(&e) => return Ok(false),
                    opened => opened?.0,
                };
                if let Some(ranges) = ranges {
                    let mut reader = Ranges { file: &file, ranges, read: 0 };
                    write(&mut BufReader::with_capacity(BLOCK, &mut reader))?;
                    return Ok(reader.ranges.is_empty() && self.is_as_hashed(&file, hash, size)?);
                }
                let mut reader = BufReader::with_capacity(BLOCK, (&file).take(size));
                write(&mut reader)?;
                return Ok(reader.get_ref().limit() == 0 && self.is_as_hashed(&file, hash, size)?);
            }
        }
        Ok(true)
    }

    /// Returns whether the contents can still be had. A file that has only grown still begins with them.
    pub(super) fn is_intact(&self, path: &Path, hash: &Hash, size: u64) -> io::Result<bool> {
        match &self.source {
            ContentSource::Memory(_) | ContentSource::Copy(_) => Ok(true),
            ContentSource::Place(_) | ContentSource::Sparse(_) => self.is_as_hashed(&open(path)?.0, hash, size),
        }
    }

    /// Returns whether the file's state says that its contents are those that were hashed.
    #[cfg(test)]
    pub(super) fn is_settled(&self) -> bool {
        self.stamp().is_some()
    }

    fn is_as_hashed(&self, mut file: &File, hash: &Hash, size: u64) -> io::Result<bool> {
        if self.stamp() == Some(&Stamp::of(&file.metadata()?)) {
            return Ok(true);
        }
        let mut hasher = hasher();
        file.rewind()?;
        Ok(copy(file, size, &mut hasher)? == size && finish(&hasher) == *hash)
    }
}

/// Opens a file to read it. What was replaced by something else than a file is gone; a pipe would block.
pub(super) fn open(path: &Path) -> io::Result<(File, Metadata)> {
    let flags = (OFlags::NONBLOCK | OFlags::NOFOLLOW).bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path);
    let is_other = |e: &io::Error| {
        [rustix::io::Errno::LOOP, rustix::io::Errno::NXIO]
            .iter()
            .any(|code| e.raw_os_error() == Some(code.raw_os_error()))
    };
    let file = file.map_err(|e| if is_other(&e) { ErrorKind::NotFound.into() } else { e })?;
    let meta = file.metadata()?;
    if meta.is_file() { Ok((file, meta)) } else { Err(ErrorKind::NotFound.into()) }
}

/// The permission bits that a file keeps on another machine. setuid and setgid would mean another owner there, and
/// write permission of others would mean other users: on file systems without owners all files have it.
pub(crate) const KEPT_MODE: u32 = 0o755;

/// Returns the permission bits.
pub(super) fn mode(meta: &Metadata) -> u32 {
    meta.mode() & KEPT_MODE
}

/// Returns whether an error means that a file is not there any more.
pub(super) fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::StaleNetworkFileHandle)
}

/// Copies at most `size` bytes: a file may grow faster than it is read.
fn copy(file: &File, size: u64, to: &mut impl Write) -> io::Result<u64> {
    io::copy(&mut BufReader::with_capacity(BLOCK, file.take(size)), to)
}

/// Hashes what is written to a file.
struct HashedCopy {
    copy: File,
    hasher: Hasher,
}

impl Write for HashedCopy {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.copy.write_all(data)?;
        self.hasher.update(data);
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.copy.flush()
    }
}

/// Reads these parts of a file, one after the other. Ends early where the file does.
struct Ranges<'a> {
    file: &'a File,
    /// The parts that have not been read to their end.
    ranges: &'a [Range],
    /// The bytes of the first of them that were read.
    read: u64,
}

impl Read for Ranges<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(((offset, length), rest)) = self.ranges.split_first() else { return Ok(0) };
        let most = usize::try_from(length - self.read).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.file.read_at(&mut buffer[..most], offset + self.read)?;
        self.read += read as u64;
        if self.read == *length {
            (self.ranges, self.read) = (rest, 0);
        }
        Ok(read)
    }
}

/// Reads a file that is read elsewhere at the same time.
struct ReadAt<'a> {
    file: &'a File,
    at: u64,
}

impl Read for ReadAt<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}
