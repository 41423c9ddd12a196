//! The ledger of a node: what commands have recorded of it, as JSON lines in `JOBS/.ledger@CLUSTER` there.
//!
//! `ledger/append.sh` gives each entry its beginning: the format, the time by the node's clock, and the machine's host
//! name, because a directory may be one that nodes share, or a copied disk's. It also adds [`LedgerEvent::System`] when
//! the boot or the driver is another one.

use crate::model::job_state::JobState;
use crate::record::stored;
use crate::text::visible::one_line;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The version of an entry. One of a later version is left out, and never removed for that.
const FORMAT: u32 = 1;

/// The most bytes of a ledger. Beyond them the older half goes.
pub const LARGEST: usize = 64 << 10;

/// The most bytes that one command adds.
pub const MOST_ADDED: usize = 16 << 10;

/// The most texts of an entry, and the most characters of each.
const TEXTS: usize = 4;
const TEXT: usize = 160;

/// The longest time of a job that is believed, in seconds.
const LONGEST: f64 = 1e9;

/// An event that a ledger records.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "lowercase")]
pub enum LedgerEvent {
    /// A command examined the node. It passed if nothing failed.
    Check {
        /// The command: `verify`, `doctor` or `bench`.
        by: String,
        /// Failures that the node caused.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        failed: Vec<String>,
        /// Warnings that may point to a fault of the node.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        warned: Vec<String>,
    },
    /// A benchmark measured the node.
    Bench {
        /// The figures by what was measured.
        figures: BTreeMap<Figure, f64>,
    },
    /// A job that had ranks on the node has ended. Several operators may have watched it.
    Job {
        /// The id of the job.
        job: String,
        /// Its final state.
        state: JobState,
        /// The time for which it had the node.
        seconds: f64,
        /// The number of the node's GPUs that it had; `None` if it had the whole node.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        gpus: Option<u32>,
        /// The reason why it was lost, if this node caused it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lost: Option<String>,
    },
    /// The system was another one than in the previous such entry: it has been booted, or its driver was changed.
    System {
        /// `/proc/sys/kernel/random/boot_id`.
        boot: String,
        /// The version of the NVIDIA driver; empty without one.
        #[serde(default)]
        driver: String,
        /// When it was booted, in seconds since the epoch by the node's clock when that was recorded.
        booted: f64,
    },
}

/// A quantity that a benchmark measures of a node. The higher, the better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Figure {
    /// The bandwidth to the node that receives most from it, in bytes a second.
    Send,
    /// The bandwidth from the node that sends most to it, in bytes a second.
    Receive,
    /// A matrix product on the slowest device of its ranks, in floating-point operations a second.
    Product,
    /// A loop on one processor, in loops a second.
    Processor,
}

/// An entry of a ledger.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// When it was written, in seconds since the epoch by the node's clock.
    pub time: f64,
    /// The recorded event.
    pub event: LedgerEvent,
}

/// A node's ledger as it was read, with the node's own state at that time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Ledger {
    /// The entries, in the order in which they were written. A job is in one of them.
    pub entries: Vec<Entry>,
    /// The node's clock, in seconds since the epoch.
    pub now: f64,
    /// When it was booted, by that clock.
    pub booted: f64,
    /// Its boot id.
    pub boot: String,
    /// The version of its NVIDIA driver; empty without one.
    pub driver: String,
    /// The number of damaged lines: a full disk or a power failure has cut them off.
    pub damaged: usize,
    /// The number of entries that a later version wrote.
    pub newer: usize,
}

/// Reads a time; 0 is one that is not known.
fn seconds(text: &str) -> f64 {
    text.parse().ok().filter(|time: &f64| time.is_finite()).unwrap_or_default()
}

/// The fields of an entry that are read first.
#[derive(Deserialize)]
struct EntryHeader {
    format: u32,
    time: f64,
    #[serde(default)]
    host: String,
}

impl LedgerEvent {
    /// Creates the result of a check. Texts beyond the first few, and their ends, are cut off.
    pub fn check(by: &str, failed: Vec<String>, warned: Vec<String>) -> LedgerEvent {
        LedgerEvent::Check { by: by.to_owned(), failed: short(failed), warned: short(warned) }
    }

    /// Creates the figures of a benchmark. What is no positive number is left out.
    pub fn bench(figures: impl IntoIterator<Item = (Figure, f64)>) -> LedgerEvent {
        let figures = figures.into_iter().filter(|(_, value)| value.is_finite() && *value > 0.0);
        LedgerEvent::Bench { figures: figures.map(|(figure, value)| (figure, value.round())).collect() }
    }
}

/// Bounds texts, which may have come from a node.
fn short(texts: Vec<String>) -> Vec<String> {
    texts.into_iter().take(TEXTS).map(|text| one_line(&text, TEXT)).collect()
}

/// Formats events for `ledger/append.sh`, one a line, as many as one command may add.
///
/// # Errors
/// A message, if JSON cannot represent them.
pub fn lines(events: &[LedgerEvent]) -> Result<String, String> {
    let mut text = String::new();
    for event in events {
        let line = stored::json("the ledger", event)?;
        if text.len() + line.len() < MOST_ADDED {
            text.push_str(&line);
            text.push('\n');
        }
    }
    Ok(text)
}

impl Ledger {
    /// Reads what `ledger/read.sh` prints: `KEY VALUE` lines, an empty line, and the file. A damaged line takes no
    /// other one with it.
    pub fn parse(output: &[u8]) -> Ledger {
        let head = output.windows(2).position(|bytes| bytes == b"\n\n").unwrap_or(output.len());
        let mut ledger = Ledger::default();
        let mut host = String::new();
        for (key, value) in String::from_utf8_lossy(&output[..head]).lines().filter_map(|line| line.split_once(' ')) {
            match key {
                "clock" => ledger.now = seconds(value),
                "booted" => ledger.booted = seconds(value),
                "host" => value.clone_into(&mut host),
                "boot" => value.clone_into(&mut ledger.boot),
                "driver" => value.clone_into(&mut ledger.driver),
                _ => {}
            }
        }
        let file = output.get(head + 2..).unwrap_or_default();
        ledger.read(&host, file.split(|byte| *byte == b'\n'));
        ledger
    }

    /// Reads some entries of the machine of this host name, at this time by its clock in seconds since the epoch.
    /// Nothing else is known of it.
    pub fn of_entries<'a>(host: &str, now: f64, lines: impl Iterator<Item = &'a str>) -> Ledger {
        // as the entries have it
        let host: String = host.chars().filter(|c| c.is_ascii_alphanumeric() || "._-".contains(*c)).collect();
        let mut ledger = Ledger { now, ..Ledger::default() };
        ledger.read(&host, lines.map(str::as_bytes));
        ledger
    }

    /// Adds the entries of these lines that are of this machine.
    fn read<'a>(&mut self, host: &str, lines: impl Iterator<Item = &'a [u8]>) {
        let mut jobs: BTreeMap<String, usize> = BTreeMap::new();
        for line in lines.filter(|line| !line.trim_ascii().is_empty()) {
            let Ok(EntryHeader { format, time, host: of }) = serde_json::from_slice(line) else {
                self.damaged += 1;
                continue;
            };
            if format > FORMAT {
                self.newer += 1;
                continue;
            }
            let Some(event) = serde_json::from_slice(line).ok().filter(|_| time.is_finite()) else {
                self.damaged += 1;
                continue;
            };
            if of == host {
                self.add(Entry { time, event }, &mut jobs);
            }
        }
    }

    /// Adds events that have just been recorded.
    pub fn add_now<'a>(&mut self, events: impl IntoIterator<Item = &'a LedgerEvent>) {
        let known = self.entries.iter().enumerate().filter_map(|(index, entry)| match &entry.event {
            LedgerEvent::Job { job, .. } => Some((job.clone(), index)),
            _ => None,
        });
        let mut jobs = known.collect();
        for event in events {
            self.add(Entry { time: self.now, event: event.clone() }, &mut jobs);
        }
    }

    /// Adds an entry. Of the entries of one job, the first that blames the node stays, else the first.
    fn add(&mut self, entry: Entry, jobs: &mut BTreeMap<String, usize>) {
        if let LedgerEvent::Job { job, lost, .. } = &entry.event {
            if let Some(index) = jobs.get(job) {
                let known = &mut self.entries[*index];
                if lost.is_some() && matches!(known.event, LedgerEvent::Job { lost: None, .. }) {
                    *known = entry;
                }
                return;
            }
            jobs.insert(job.clone(), self.entries.len());
        }
        self.entries.push(entry);
    }

    /// Returns what it says of a job.
    pub fn job(&self, id: &str) -> Option<&LedgerEvent> {
        self.entries
            .iter()
            .map(|entry| &entry.event)
            .find(|event| matches!(event, LedgerEvent::Job { job, .. } if job == id))
    }

    /// Returns the age of an entry in seconds. One of the future, from before a clock was set back, is new.
    pub fn age(&self, entry: &Entry) -> f64 {
        (self.now - entry.time).max(0.0)
    }

    /// Returns the times of boots that followed the first recorded one, oldest first; that of the present boot is now
    /// if no entry has it.
    pub fn restarts(&self) -> Vec<f64> {
        let mut known = BTreeSet::new();
        let boots = self.entries.iter().filter_map(|entry| match &entry.event {
            LedgerEvent::System { boot, .. } => Some((boot.as_str(), entry.time)),
            _ => None,
        });
        let present = (!self.boot.is_empty()).then_some((self.boot.as_str(), self.now));
        let mut times: Vec<f64> =
            boots.chain(present).filter(|(boot, _)| known.insert(*boot)).map(|(_, time)| time).collect();
        if !times.is_empty() {
            times.remove(0);
        }
        times
    }

    /// Returns how often the driver was another one than before.
    pub fn driver_changes(&self) -> usize {
        let drivers = self.entries.iter().filter_map(|entry| match &entry.event {
            LedgerEvent::System { driver, .. } => Some(driver.as_str()),
            _ => None,
        });
        let drivers: Vec<&str> = drivers.filter(|driver| !driver.is_empty()).collect();
        drivers.windows(2).filter(|pair| pair[0] != pair[1]).count()
    }

    /// Returns the hours for which jobs had the node's GPUs, times their number. `all`: how many GPUs the node has.
    pub fn gpu_hours(&self, all: u32) -> f64 {
        let hours = |entry: &Entry| match entry.event {
            LedgerEvent::Job { seconds, gpus, .. } => {
                seconds.clamp(0.0, LONGEST) / 3600.0 * f64::from(gpus.map_or(all, |gpus| gpus.min(all)))
            }
            _ => 0.0,
        };
        // the sum of no numbers is -0
        self.entries.iter().map(hours).fold(0.0, |sum, hours| sum + hours)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines that `ledger/read.sh` prints before the file.
    const HEAD: &str = "clock 2000\nbooted 1500\nhost node1\nboot b2\ndriver 580.95.05\n\n";

    fn entry(rest: &str) -> String {
        format!("{{\"format\":1,\"time\":1000,\"host\":\"node1\",{rest}}}\n")
    }

    fn whole() -> String {
        let system = |boot: &str, driver: &str| {
            entry(&format!("\"what\":\"system\",\"boot\":\"{boot}\",\"driver\":\"{driver}\",\"booted\":900"))
        };
        let check =
            lines(&[LedgerEvent::check("verify", vec!["a \"b\"\n\u{1b}[31m\tc".to_owned()], Vec::new())]).unwrap();
        let check = check.trim_end().trim_start_matches('{').trim_end_matches('}').to_owned();
        [system("b1", "550.54"), entry(&check), system("b1", "580.95.05"), system("b3", "")].concat()
    }

    fn parse(file: &[u8]) -> Ledger {
        Ledger::parse(&[HEAD.as_bytes(), file].concat())
    }

    #[test]
    fn a_ledger_is_read() {
        let ledger = parse(whole().as_bytes());
        assert_eq!((ledger.now, ledger.boot.as_str(), ledger.driver.as_str()), (2000.0, "b2", "580.95.05"));
        assert_eq!((ledger.entries.len(), ledger.damaged, ledger.newer), (4, 0, 0));
        let expected =
            LedgerEvent::Check { by: "verify".into(), failed: vec!["a \"b\" [31m c".into()], warned: Vec::new() };
        assert_eq!(ledger.entries[1], Entry { time: 1000.0, event: expected });
        // b1 was the first, and the present one is not recorded yet
        assert_eq!((ledger.restarts(), ledger.driver_changes()), (vec![1000.0, 2000.0], 1));
        let none = parse(b"");
        assert_eq!((none.entries.len(), none.restarts(), none.now), (0, vec![], 2000.0));
        assert_eq!(Ledger::parse(b""), Ledger::default());
    }

    #[test]
    fn a_file_that_is_cut_anywhere_loses_only_the_last_entry() {
        let whole = whole();
        let last = whole.trim_end().rfind('\n').unwrap() + 1;
        for cut in last..whole.len() - 1 {
            let ledger = parse(&whole.as_bytes()[..cut]);
            assert_eq!((ledger.entries.len(), ledger.damaged), (3, usize::from(cut > last)), "{cut}");
            // the next entry begins on a line of its own
            let next = parse(
                &[&whole.as_bytes()[..cut], b"\n", entry("\"what\":\"bench\",\"figures\":{}").as_bytes()].concat(),
            );
            assert_eq!((next.entries.len(), next.damaged), (4, usize::from(cut > last)), "{cut}");
        }
    }

    #[test]
    fn damaged_lines_take_no_others_with_them() {
        let good = whole();
        for line in [
            "\0\0\0",
            "{}",
            "[]",
            "null",
            "{\"format\":1}",
            "{\"format\":1,\"time\":1,\"host\":\"node1\",\"what\":\"check\"}",
            "{\"format\":1,\"time\":1,\"host\":\"node1\",\"what\":\"tea\"}",
            "{\"format\":1,\"time\":1e999,\"host\":\"node1\",\"what\":\"bench\",\"figures\":{}}",
            "{\"format\":\"1\",\"time\":1}",
        ] {
            let ledger = parse(format!("{good}{line}\n{good}").as_bytes());
            assert_eq!((ledger.entries.len(), ledger.damaged), (8, 1), "{line}");
        }
        let ledger = parse(&[good.as_bytes(), b"\xff\xfe\x80\n", good.as_bytes()].concat());
        assert_eq!((ledger.entries.len(), ledger.damaged), (8, 1));
        // of a newer hvdctl, and of another machine that has the same directory
        let others = "{\"format\":2,\"time\":7,\"all\":\"new\"}\n{\"format\":1,\"time\":7,\"host\":\"node9\",\"what\":\"bench\",\"figures\":{}}\n";
        let ledger = parse(format!("{good}{others}").as_bytes());
        assert_eq!((ledger.entries.len(), ledger.damaged, ledger.newer), (4, 0, 1));
    }

    #[test]
    fn a_job_is_counted_once_and_what_blames_the_node_counts() {
        let job = |id: &str, lost: &str| {
            entry(&format!("\"what\":\"job\",\"job\":\"{id}\",\"state\":\"failed\",\"seconds\":60{lost}"))
        };
        let lost = ",\"lost\":\"the node did not answer\"";
        let text = [job("a", ""), job("b", lost), job("a", lost), job("b", ""), job("a", ""), job("c", "")].concat();
        let ledger = parse(text.as_bytes());
        let of = |id| matches!(ledger.job(id), Some(LedgerEvent::Job { lost: Some(_), .. }));
        assert_eq!((ledger.entries.len(), of("a"), of("b"), of("c")), (3, true, true, false));
        let mut more = ledger.clone();
        let again: Vec<LedgerEvent> = ledger.entries.iter().map(|entry| entry.event.clone()).collect();
        more.add_now(&again);
        assert_eq!(more, ledger);
    }

    #[test]
    fn what_one_command_adds_is_bounded() {
        let text = "é\n".repeat(10_000);
        let check = LedgerEvent::check("doctor", vec![text.clone(); 50], vec![text; 50]);
        let one = lines(std::slice::from_ref(&check)).unwrap();
        assert!(one.len() < 4 << 10 && one.lines().count() == 1, "{}", one.len());
        let many = lines(&vec![check; 500]).unwrap();
        assert!(many.len() <= MOST_ADDED && many.ends_with("}\n"), "{}", many.len());
        let odd = [(Figure::Send, f64::NAN), (Figure::Receive, -1.0), (Figure::Product, f64::INFINITY)];
        assert_eq!(LedgerEvent::bench(odd), LedgerEvent::Bench { figures: BTreeMap::new() });
    }
}
