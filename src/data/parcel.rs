//! Data as relays receive them: a stream that is not larger than the files, of a length that is known before it is
//! read. Each relay makes the tar stream for its node of it: with many small files, the headers and the padding of tar
//! would be a large part of what crosses the operator's link.
//!
//! The head is a line with two lengths, the manifest's records of the entries that are sent, and a table with a record
//! (NUL) for each of these: `SIZE MTIME` of a file, with ` OFFSET:LENGTH` of each part that has data if it has holes,
//! `.` of a directory, `>TARGET` of a link. The contents of the files follow, one after the other, without holes.

use crate::sync::contents::{KEPT_MODE, Range, are_ranges};
use crate::sync::files::{ProjectFiles, append_directory, append_file, append_link, file_header, write_stream};
use crate::sync::manifest::{ManifestEntry, Selection};
use std::io::{self, BufReader, Read, Write};
use std::sync::Arc;
use tokio::sync::mpsc::Receiver;

/// Bytes that are copied at once.
const BLOCK: usize = 64 << 10;

/// Files and what is sent of them.
#[derive(Debug, Clone)]
pub struct Parcel {
    files: ProjectFiles,
    sent: Selection,
    head: Arc<[u8]>,
    length: u64,
}

impl Parcel {
    /// A parcel of these entries.
    pub fn new(files: &ProjectFiles, sent: &Selection) -> Parcel {
        let (mut records, mut table) = (String::new(), String::new());
        // the records are UTF-8
        let _ = files.manifest.records(sent).read_to_string(&mut records);
        for (at, _, entry) in files.manifest.select_at(sent) {
            match entry {
                ManifestEntry::File { size, .. } => {
                    table.extend([size.to_string(), " ".into(), files.mtime(at).to_string()]);
                    let ranges = files.ranges(at).into_iter().flatten();
                    table.extend(ranges.map(|(offset, length)| format!(" {offset}:{length}")));
                    // of a file that is all hole
                    table.push_str(if files.ranges(at).is_some_and(<[Range]>::is_empty) { " -" } else { "" });
                }
                ManifestEntry::Directory { .. } => table.push('.'),
                ManifestEntry::Link { target } => table.extend([">", target]),
            }
            table.push('\0');
        }
        let head = format!("{} {}\n{records}{table}", records.len(), table.len()).into_bytes();
        let length = head.len() as u64 + files.stored(sent);
        Parcel { files: files.clone(), sent: sent.clone(), head: head.into(), length }
    }

    /// Returns what names the parcel: another head has other contents.
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    /// Returns its bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Sends it from an offset on, as [`ProjectFiles::stream`] does. Files before the offset are not read.
    pub fn stream(&self, offset: u64) -> Receiver<io::Result<Vec<u8>>> {
        let Parcel { sent, head, .. } = self.clone();
        self.files.send(move |files, pieces| {
            let mut out = Skip { left: offset, inner: pieces };
            out.write_all(&head)?;
            for (at, name, entry) in files.manifest.select_at(&sent) {
                let stored = files.stored_at(at, entry);
                if stored <= out.left {
                    out.left -= stored;
                    continue;
                }
                let copy =
                    |reader: &mut dyn Read| io::copy(&mut BufReader::with_capacity(BLOCK, reader), &mut out).map(drop);
                files.send_file((at, name, entry), files.ranges(at), copy)?;
            }
            Ok(())
        })
    }
}

/// Leaves out the first bytes of what is written.
struct Skip<W> {
    left: u64,
    inner: W,
}

impl<W: Write> Write for Skip<W> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let skipped = usize::try_from(self.left).unwrap_or(usize::MAX).min(data.len());
        self.left -= skipped as u64;
        self.inner.write_all(&data[skipped..])?;
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Makes the tar stream of a parcel with this head, which has all names, modes and sizes, from the `contents` behind
/// it.
///
/// # Errors
/// If the streams break, or it is no parcel.
pub fn unpack(head: &[u8], contents: &mut dyn Read, out: &mut dyn Write) -> io::Result<()> {
    let wrong = || io::Error::other("other machines sent something that is not a parcel of data");
    let mut input = BufReader::with_capacity(BLOCK, contents);
    let (line, texts) = str::from_utf8(head).ok().and_then(|head| head.split_once('\n')).ok_or_else(wrong)?;
    let length = line.split_once(' ').and_then(|(records, _)| records.parse().ok());
    let (records, table) = length.and_then(|length| texts.split_at_checked(length)).ok_or_else(wrong)?;
    let entries = records.split_terminator('\0').zip(table.split_terminator('\0'));
    let entries: Option<Vec<_>> = entries.map(|(record, sent)| item(record, sent)).collect();
    let entries = entries.ok_or_else(wrong)?;
    let with_size = entries.into_iter().map(|(name, item)| {
        let size = if let Item::File { size, .. } = &item { Some(*size) } else { None };
        (name, size, item)
    });
    write_stream(
        &mut *out,
        (records.len() as u64, records.as_bytes()),
        with_size,
        |tar, _, item, in_tar| match item {
            Item::File { mode, size, mtime, ranges } => {
                let stored = ranges.as_ref().map_or(size, |ranges| ranges.iter().map(|(_, length)| length).sum());
                let mut contents = (&mut input).take(stored);
                append_file(tar, file_header(mode, size, mtime), in_tar, ranges.as_deref(), &mut contents)?;
                if contents.limit() == 0 { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
            }
            Item::Directory { mode } => append_directory(tar, in_tar, mode),
            Item::Link { target } => append_link(tar, in_tar, target),
        },
    )?;
    out.flush()
}

/// An entry of a parcel.
enum Item<'a> {
    File { mode: u32, size: u64, mtime: u64, ranges: Option<Vec<Range>> },
    Directory { mode: u32 },
    Link { target: &'a str },
}

/// Reads the records of an entry in the manifest and in the table.
fn item<'a>(record: &'a str, sent: &'a str) -> Option<(&'a str, Item<'a>)> {
    let fields: Vec<&str> = record.splitn(4, ' ').collect();
    let [kind, mode, _, name] = fields[..] else { return None };
    let mode = || Some(u32::from_str_radix(mode, 8).ok()? & KEPT_MODE);
    let item = match kind {
        "f" => {
            let (size, rest) = sent.split_once(' ')?;
            let (mtime, ranges) = rest.split_once(' ').map_or((rest, None), |(mtime, ranges)| (mtime, Some(ranges)));
            let size = size.parse().ok()?;
            let ranges = match ranges {
                Some(ranges) => Some(read_ranges(ranges).filter(|ranges| are_ranges(ranges, size))?),
                None => None,
            };
            Item::File { mode: mode()?, size, mtime: mtime.parse().ok()?, ranges }
        }
        "d" => Item::Directory { mode: mode()? },
        _ => Item::Link { target: sent.strip_prefix('>')? },
    };
    Some((name, item))
}

/// Reads where a file has data; `-` is nowhere.
fn read_ranges(text: &str) -> Option<Vec<Range>> {
    let range = |text: &str| {
        let (offset, length) = text.split_once(':')?;
        Some((offset.parse().ok()?, length.parse().ok()?))
    };
    if text == "-" { Some(Vec::new()) } else { text.split(' ').map(range).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn all(mut pieces: Receiver<io::Result<Vec<u8>>>) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        while let Some(piece) = pieces.blocking_recv() {
            bytes.extend(piece?);
        }
        Ok(bytes)
    }

    #[test]
    fn a_parcel_becomes_the_same_tar_stream_from_any_offset_on() {
        let dir = tempfile::tempdir().unwrap();
        let long = "l".repeat(200);
        for (name, size) in [("a b", 0), ("new\nline", 1), ("deep/er/c", 1000), (&long, 300_000), ("z", 513)] {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, vec![7; size]).unwrap();
        }
        fs::File::create(dir.path().join("y hole")).unwrap().set_len(1 << 20).unwrap();
        let sparse = fs::File::create(dir.path().join("sparse")).unwrap();
        sparse.set_len(8 << 20).unwrap();
        for at in (0..100).step_by(2) {
            std::os::unix::fs::FileExt::write_all_at(&sparse, &[1; 4096], at << 16).unwrap();
        }
        symlink("..//x", dir.path().join("link")).unwrap();
        symlink(format!("t/{long}"), dir.path().join("long link")).unwrap();
        let files = ProjectFiles::read_data(dir.path()).unwrap();
        let all_of_it = files.manifest.all();
        let text = files.manifest.text();
        let records = text.split_terminator('\0').map(|record| {
            let (at, _) = record.match_indices(' ').nth(2).unwrap();
            (record[at + 1..].to_owned(), record[..at].to_owned())
        });
        let is_there = |name: &str| !["new\nline", "z", "link", "sparse"].contains(&name) && !name.starts_with("deep");
        let a_part = files.manifest.missing(&records.filter(|(name, _)| is_there(name)).collect());
        assert_eq!(files.manifest.select(&a_part).count(), 7);
        assert!(files.stored(&all_of_it) < 1 << 20);
        for sent in [all_of_it, a_part] {
            let parcel = Parcel::new(&files, &sent);
            let whole = all(parcel.stream(0)).unwrap();
            assert_eq!(whole.len() as u64, parcel.length());
            let mut made = Vec::new();
            let head = parcel.head();
            unpack(head, &mut &whole[head.len()..], &mut made).unwrap();
            assert!(made == all(files.stream(sent.clone())).unwrap(), "another tar stream");
            for offset in [1, parcel.head().len(), parcel.head().len() + 700, whole.len() - 1, whole.len()] {
                assert!(all(parcel.stream(offset as u64)).unwrap() == whole[offset..], "from {offset} on");
            }
            assert!(unpack(head, &mut &whole[head.len()..whole.len() - 1], &mut io::sink()).is_err());
            for cut in [0, 3] {
                assert!(unpack(&head[..cut], &mut io::empty(), &mut io::sink()).is_err(), "cut at {cut}");
            }
        }
        for (table, is_right) in [
            ("1024 0 0:512 512:512", true),
            ("1024 0 512:512", true),
            ("1023 0 512:511", true),
            ("1024 0 -", true),
            ("1024 0 512:512 0:512", false),
            ("1024 0 0:1024 512:512", false),
            ("1024 0 0:1025", false),
            ("1024 0 0:0", false),
            ("1024 0 1:1023", false),
            ("1024 0 0:500", false),
            ("1024 0 512:18446744073709551615", false),
            ("1024 0 ", false),
            ("1024 0 x:1", false),
        ] {
            let text = format!("f 600 {} a\0", "0".repeat(64));
            let head = format!("{} {}\n{text}{table}\0", text.len(), table.len() + 1);
            let unpacked = unpack(head.as_bytes(), &mut io::repeat(0), &mut io::sink());
            assert_eq!(unpacked.is_ok(), is_right, "{table}");
        }
        // whatever the head says, no mode lets others write or become another user
        let text = "f 6777 0 a\0d 7777 - d\0";
        let head = format!("{} 0\n{text}0 0\0.\0", text.len());
        let mut made = Vec::new();
        unpack(head.as_bytes(), &mut io::empty(), &mut made).unwrap();
        let mut made = tar::Archive::new(&made[..]);
        let modes: Vec<u32> = made.entries().unwrap().map(|entry| entry.unwrap().header().mode().unwrap()).collect();
        assert_eq!(modes, [0o600, 0o755, 0o755, 0o600]);

        fs::write(dir.path().join(&long), "changed").unwrap();
        let parcel = Parcel::new(&files, &files.manifest.all());
        let error = all(parcel.stream(0)).unwrap_err();
        assert!(error.to_string().ends_with("the file changes while it is uploaded"), "{error}");
    }
}
