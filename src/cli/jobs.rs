//! Arguments of the commands on existing jobs.

use crate::job::logs::Since;
use crate::report::metric::Pattern;
use crate::text::moment;
use clap::{Args, Subcommand, ValueHint};
use jiff::Timestamp;
use jiff::tz::{self, TimeZone};
use regex::bytes::Regex;
use std::path::PathBuf;
use std::time::Duration;

/// Options of `jobs`.
#[derive(Debug, Args)]
pub struct Jobs {
    /// Subcommand
    #[command(subcommand)]
    pub what: Option<JobsCommand>,
    /// Show only jobs that have not ended
    #[arg(short, long)]
    pub running: bool,
    /// Show them full screen, refreshed every 2 s, until q is pressed
    #[arg(short, long)]
    pub watch: bool,
}

/// The subcommands of `jobs`.
#[derive(Debug, Subcommand)]
pub enum JobsCommand {
    /// Remove records and logs of ended jobs
    Prune(Prune),
}

/// Options of `jobs prune`.
#[derive(Debug, Args)]
pub struct Prune {
    /// Keep the newest N ended jobs
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub keep: usize,
    /// Remove only jobs started longer ago than this, e.g. 7d or "12h 30m"
    #[arg(long, value_name = "SPAN", value_parser = humantime::parse_duration)]
    pub older_than: Option<Duration>,
}

/// Options of `attach`.
#[derive(Debug, Args)]
pub struct Attach {
    /// Job id, a prefix of it, or a name [default: the newest that is not a check]
    pub job: Option<String>,
}

/// Options of `stop`.
#[derive(Debug, Args)]
pub struct Stop {
    /// Job id, a prefix of it, or a name [default: the newest running one]
    pub job: Option<String>,
}

/// Options of `logs`.
#[derive(Debug, Args)]
pub struct Logs {
    /// Job id, a prefix of it, or a name [default: the newest that is not a check]
    pub job: Option<String>,
    /// Follow the output until the job ends
    #[arg(short, long)]
    pub follow: bool,
    /// Show only these ranks, e.g. 0,3
    #[arg(long, value_name = "RANK", value_delimiter = ',')]
    pub rank: Vec<u32>,
    /// Show only the ranks of this role; --rank then counts in it
    #[arg(long, value_name = "NAME")]
    pub role: Option<String>,
    /// Show only lines since this time: 10m (ago), 14:30, today, "2026-11-21 10:15:00" in the local time zone, or with a
    /// zone 2026-11-21T10:15:00Z
    #[arg(long, value_name = "TIME", value_parser = since)]
    pub since: Option<Since>,
    /// Show only lines that match this regular expression
    #[arg(long, value_name = "REGEX")]
    pub grep: Option<Regex>,
    /// Show only the last N lines so far
    #[arg(short = 'n', long, value_name = "N")]
    pub tail: Option<usize>,
}

/// Options of `top`.
#[derive(Debug, Args)]
pub struct Top {
    /// Job id, a prefix of it, or a name [default: the newest running one]
    pub job: Option<String>,
    /// Show the last line of each rank that matches this regular expression
    #[arg(long, value_name = "REGEX")]
    pub grep: Option<Regex>,
    /// Show only the ranks of this role
    #[arg(long, value_name = "NAME")]
    pub role: Option<String>,
}

/// Options of `stack`.
#[derive(Debug, Args)]
#[command(after_help = STACK)]
pub struct Stack {
    /// Job id, a prefix of it, or a name [default: the newest running one]
    pub job: Option<String>,
    /// Show only these ranks, e.g. 0,3
    #[arg(long, value_name = "N", value_delimiter = ',')]
    pub rank: Vec<u32>,
    /// Show only the ranks of this role; --rank then counts in it
    #[arg(long, value_name = "NAME")]
    pub role: Option<String>,
    /// Show all threads of each process, and all frames
    #[arg(long)]
    pub all_threads: bool,
    /// Show the values of variables, shortened; those whose names look like secrets are withheld
    #[arg(long)]
    pub locals: bool,
    /// Also read frames of C and C++, and other programs than Python with gdb; each process is stopped meanwhile
    #[arg(long)]
    pub native: bool,
    /// The program of py-spy for nodes that have none [default: the one of PyPI, fetched by pip and kept]
    #[arg(long, value_name = "FILE", env = "HVDCTL_PY_SPY", value_hint = ValueHint::FilePath)]
    pub py_spy: Option<PathBuf>,
}

const STACK: &str = "\
Asks the supervisors of all ranks at once. Most ranks of a job that hangs wait for the others in one place; the few that \
are elsewhere are the cause, and come first. The ranks go on. Stacks of Python are read by py-spy: that of the image or \
environment, or else one that is sent to the job's directory. Of other programs, the kernel's view is shown or, with \
--native, that of gdb where it is installed. PyTorch's flight recorder is asked for its last operations where it has a \
pipe for that.

Examples:
  hvdctl stack                       # the newest running job
  hvdctl stack digits --rank 3 --all-threads
  hvdctl stack --native --rank 0     # a program of C++
  hvdctl stack --json | jq -r .text";

/// Options of `report`.
#[derive(Debug, Args)]
pub struct Report {
    /// Job id, a prefix of it, or a name [default: the newest that is not a check]
    pub job: Option<String>,
    /// File to write [default: ID.html]
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,
    /// Overwrite an existing file
    #[arg(long)]
    pub force: bool,
    /// Plot the number in the first group of this regular expression, matched against every line of the ranks, e.g.
    /// 'loss ([0-9.]+)'; may be given several times, a chart for each
    #[arg(long, value_name = "REGEX")]
    pub metric: Vec<Pattern>,
    /// Show only the ranks of this role
    #[arg(long, value_name = "NAME")]
    pub role: Option<String>,
}

/// Reads a time, or how long ago it was.
fn since(text: &str) -> Result<Since, String> {
    if let Ok(span) = humantime::parse_duration(text) {
        return Ok(Since::Ago(span));
    }
    // `TZ`, else /etc/localtime; what cannot be read is no reason to refuse a time with a zone
    let zone = TimeZone::try_system();
    let is_known = zone.is_ok();
    let now = Timestamp::now().to_zoned_datetime(zone.unwrap_or(TimeZone::UTC));
    let since = moment::parse(text, &now)?;
    let has_zone = || moment::parse(text, &now.with_time_zone(TimeZone::fixed(tz::offset(1)))) == Ok(since);
    if is_known || has_zone() {
        return Ok(Since::At(since));
    }
    Err("the local time zone is not known (TZ, /etc/localtime): add Z or an offset such as +09:00".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_span_or_a_point() {
        assert_eq!(since("90m"), Ok(Since::Ago(Duration::from_secs(5400))));
        assert_eq!(since("2023-11-14T22:13:20Z"), Ok(Since::At(1_700_000_000.0)));
        assert_eq!(since("2023-11-15 07:13:20 +09:00"), Ok(Since::At(1_700_000_000.0)));
        for bad in ["", "tomorrow", "10", "1969-12-31T23:59:59Z"] {
            assert!(since(bad).is_err(), "{bad}");
        }
    }
}
