//! The options with which a job is submitted to Slurm.

use super::role_nodes::NodeOptions;
use crate::error::Error;
use crate::inventory::{Cluster, Slurm};
use crate::launch::description::Warning;
use crate::launch::placement::MapBy;
use crate::start::request::JobOptions;

/// Seconds beyond the ranks' grace period before its time limit at which a job is asked to end.
const BEFORE_LIMIT: u64 = 10;

/// Options of sbatch that hvdctl cannot follow a job with: it would be several jobs, one of another cluster, or none.
const REFUSED: [(&str, &str, &str); 10] = [
    ("--help", "-h", SEVERAL),
    ("--usage", "", SEVERAL),
    ("--version", "-V", SEVERAL),
    ("--array", "-a", SEVERAL),
    ("--wait", "-W", SEVERAL),
    ("--clusters", "-M", SEVERAL),
    ("--test-only", "", SEVERAL),
    ("--wrap", "", SEVERAL),
    ("--parsable", "", SEVERAL),
    ("--output", "-o", SEVERAL),
];

/// The next step for all of them.
const SEVERAL: &str = "leave it out; for several jobs, run hvdctl several times";

/// The signal with which Slurm warns hvdctl of the time limit: one that people do not send to their programs
/// (`job_state.py`).
pub const OWN_SIGNAL: &str = "50";

/// The options of sbatch that decide how many ranks a node has and which signal they get: long and short name.
const READ: [(&str, &str); 9] = [
    ("--signal", ""),
    ("--nodes", "-N"),
    ("--gres", ""),
    ("--gpus", "-G"),
    ("--gpus-per-node", ""),
    ("--gpus-per-task", ""),
    ("--ntasks", "-n"),
    ("--ntasks-per-node", ""),
    ("--ntasks-per-gpu", ""),
];

/// With one of these, Slurm itself decides how many tasks a node has.
const PLACING: [&str; 4] = ["--ntasks-per-node", "--ntasks-per-gpu", "--gpus-per-task", "--gpus"];

/// Signals by the names that Slurm knows, with their numbers on Linux. Programs cannot catch KILL and STOP.
const SIGNALS: [(&str, u8); 11] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ABRT", 6),
    ("USR1", 10),
    ("USR2", 12),
    ("ALRM", 14),
    ("TERM", 15),
    ("CONT", 18),
    ("URG", 23),
    ("XCPU", 24),
];

/// How a job is submitted.
#[derive(Debug)]
pub struct SlurmSubmission {
    /// The options of sbatch: those of hvdctl and of the inventory, then those of the operator, which take precedence.
    pub options: Vec<String>,
    /// The signal that the ranks get before the time limit, if one was asked for (`--signal`).
    pub warning: Option<Warning>,
}

/// Returns how a job is submitted. `signal`: the one with which Slurm warns of the time limit.
///
/// # Errors
/// Options that jobs under Slurm do not have.
pub fn submission(slurm: &Slurm, job: &JobOptions, cluster: &Cluster, signal: &str) -> Result<SlurmSubmission, Error> {
    check(job, &slurm.options)?;
    check_time(slurm, job, cluster)?;
    let needed = needed_to_end(cluster);
    let (usual, given) = (Given::read(&slurm.options), Given::read(&job.submission));
    let signals = [usual.value("--signal"), given.value("--signal")];
    let before_limit = signals.into_iter().flatten().next_back().map(|text| before_limit(text, needed)).transpose()?;
    let warned = before_limit.map_or(needed, |(_, seconds)| seconds);
    let warning = before_limit.map(|(signal, seconds)| Warning { signal, seconds: seconds - needed });
    let tasks = Tasks::new(slurm, job, [&usual, &given])?;
    let roles = NodeOptions::of(tasks.gpus, |name| given.value(name).or(usual.value(name)));
    let roles = (!job.roles.is_empty()).then(|| roles.wanted(&job.roles)).transpose()?;
    let per_node = roles.as_ref().map_or(tasks.per_node, |roles| roles.tasks);
    let fields = [
        ("partition", slurm.partition.clone()),
        ("account", slurm.account.clone()),
        ("qos", slurm.qos.clone()),
        ("constraint", slurm.constraint.clone()),
        ("time", slurm.time.clone()),
        ("gres", tasks.gres),
        ("nodes", roles.map(|roles| roles.nodes.to_string())),
        ("ntasks", job.resources.ranks.map(|ranks| ranks.max.to_string())),
        ("ntasks-per-node", per_node.map(|tasks| tasks.to_string())),
        ("signal", Some(format!("B:{signal}@{warned}"))),
    ];
    let named = fields.into_iter().filter_map(|(name, value)| Some(format!("--{name}={}", value?)));
    let spread = (job.resources.map_by == MapBy::Node).then(|| "--spread-job".to_owned());
    // a job that has lost a node begins anew only if it may be restarted
    let requeue = if job.restarts > 0 { "--requeue" } else { "--no-requeue" };
    let own = named.chain(spread).chain([requeue.to_owned()]);
    let others = usual.without("--signal").chain(tasks.changed).chain(given.without("--signal"));
    Ok(SlurmSubmission { options: own.chain(others).collect(), warning })
}

/// Options of sbatch as they were given, and what those of [`READ`] say.
struct Given<'a> {
    options: &'a [String],
    /// Name, value, and which of the options it is made of.
    read: Vec<(&'static str, &'a str, std::ops::Range<usize>)>,
}

impl<'a> Given<'a> {
    fn read(options: &'a [String]) -> Given<'a> {
        let (mut read, mut at) = (Vec::new(), 0);
        while let Some(option) = options.get(at) {
            let end = match split(option) {
                Some((name, Some(value))) => {
                    read.push((name, value, at..at + 1));
                    at + 1
                }
                // its value is the next argument
                Some((name, None)) if at + 1 < options.len() => {
                    read.push((name, options[at + 1].as_str(), at..at + 2));
                    at + 2
                }
                _ => at + 1,
            };
            at = end;
        }
        Given { options, read }
    }

    /// Returns the value of an option; the last one counts.
    fn value(&self, name: &str) -> Option<&'a str> {
        self.read.iter().rev().find(|(one, ..)| *one == name).map(|(_, value, _)| *value)
    }

    /// Returns all arguments but those of an option.
    fn without(&self, name: &'static str) -> impl Iterator<Item = String> {
        let is_of = move |at: &usize| self.read.iter().any(|(one, _, range)| *one == name && range.contains(at));
        (0..self.options.len()).filter(move |at| !is_of(at)).map(|at| self.options[at].clone())
    }
}

/// Returns which option of [`READ`] an argument is, and its value if it has one. Long names may be cut short where they
/// remain unique (getopt_long(3)).
fn split(option: &str) -> Option<(&'static str, Option<&str>)> {
    const LEAST: usize = "--sig".len();
    let (name, value) = option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
    if let Some((long, _)) = READ.iter().find(|(long, _)| *long == name) {
        return Some((long, value));
    }
    let mut begun = READ.iter().filter(|(long, _)| name.len() >= LEAST && long.starts_with(name));
    if let (Some((long, _)), None) = (begun.next(), begun.next()) {
        return Some((long, value));
    }
    let (long, rest) = READ
        .iter()
        .filter(|(_, short)| !short.is_empty())
        .find_map(|(long, short)| Some((long, option.strip_prefix(short)?)))?;
    Some((long, Some(rest.trim_start_matches('=')).filter(|rest| !rest.is_empty())))
}

/// The GPUs and the tasks of each node.
struct Tasks {
    /// `--gres` for the inventory's `gres`.
    gres: Option<String>,
    /// `--ntasks-per-node`: as many as each node has GPUs.
    per_node: Option<u32>,
    /// The number of GPUs of each node, if the options say it.
    gpus: Option<u32>,
    /// Options of the inventory that `--gpus-per-node` changes.
    changed: Vec<String>,
}

impl Tasks {
    /// `given`: the options of the inventory and of the operator.
    fn new(slurm: &Slurm, job: &JobOptions, given: [&Given<'_>; 2]) -> Result<Tasks, Error> {
        let resources = job.resources;
        let value = |name: &str| given[1].value(name).or(given[0].value(name));
        let by_other = ["--gpus", "--gpus-per-node", "--gpus-per-task"].iter().any(|name| value(name).is_some());
        // the table's own would ask for these GPUs a second time
        let table = if by_other { slurm.gres.as_deref().and_then(without_gpus) } else { slurm.gres.clone() };
        let wanted = |gres: &str| match resources.per_node {
            Some(count) => with_gpus(gres, count),
            None => Ok(gres.to_owned()),
        };
        let gres = table.as_deref().map(wanted).transpose()?;
        let mut changed = Vec::new();
        if let Some(count) = resources.per_node {
            if let Some(of_inventory) = given[0].value("--gres").filter(|gres| gpus_of(gres).is_some()) {
                changed.push(format!("--gres={}", with_gpus(of_inventory, count)?));
            }
            if let Some(of_inventory) = given[0].value("--gpus-per-node") {
                changed.push(format!("--gpus-per-node={}", with_count(of_inventory, count)));
            }
        }
        let gpus = value("--gpus-per-node").and_then(count_of);
        let gpus = gpus.or_else(|| value("--gres").map_or(table.as_deref().and_then(gpus_of), gpus_of));
        let is_placed = resources.per_node.is_none() && PLACING.iter().any(|name| value(name).is_some());
        let per_node = resources.per_node.or(gpus).filter(|count| *count > 0 && !is_placed);
        let ranks = resources.ranks.map(|ranks| ranks.max);
        let per_node = per_node.map(|per_node| ranks.map_or(per_node, |ranks| ranks.min(per_node)));
        Ok(Tasks { gres, per_node, gpus: gpus.filter(|gpus| *gpus > 0), changed })
    }
}

/// Returns the seconds before its time limit at which a job is asked to end.
fn needed_to_end(cluster: &Cluster) -> u64 {
    cluster.stop_grace.as_secs() + BEFORE_LIMIT
}

/// Checks that the time limit leaves ranks the time in which they end. The last option counts, as for sbatch.
///
/// # Errors
/// It is shorter.
fn check_time(slurm: &Slurm, job: &JobOptions, cluster: &Cluster) -> Result<(), Error> {
    let of = |options: &[String]| last_time(options).map(|time| (format!("the option --time={time} of sbatch"), time));
    let of_table = || slurm.time.clone().map(|time| ("slurm.time".to_owned(), time));
    let Some((source, time)) = of(&job.submission).or_else(|| of(&slurm.options)).or_else(of_table) else {
        return Ok(());
    };
    let needed = needed_to_end(cluster);
    if seconds(&time).is_none_or(|time| time >= needed) {
        return Ok(());
    }
    Err(Error::usage(
        format!(
            "{source} is shorter than the {needed} s in which ranks end (cluster.stop_grace_s and {BEFORE_LIMIT} s)"
        ),
        "give the job more time, or lower cluster.stop_grace_s",
    ))
}

/// Returns the last time limit among options of sbatch.
fn last_time(options: &[String]) -> Option<String> {
    let before = [None].into_iter().chain(options.iter().map(Some));
    let time = |(before, option): (Option<&String>, &String)| match before.map(String::as_str) {
        Some("-t" | "--time") => Some(option.clone()),
        _ => option
            .strip_prefix("--time=")
            .or_else(|| option.strip_prefix("-t").filter(|value| !value.is_empty()))
            .map(str::to_owned),
    };
    before.zip(options).filter_map(time).last()
}

/// Checks that a job can be submitted. `usual`: the inventory's options of sbatch.
///
/// # Errors
/// It is elastic, or has options with which hvdctl cannot follow it.
pub fn check(job: &JobOptions, usual: &[String]) -> Result<(), Error> {
    if job.min_ranks().is_some() {
        return Err(Error::usage(
            "-np MIN:MAX is for elastic jobs, but a Slurm allocation keeps its nodes",
            "give one number of ranks",
        ));
    }
    refuse(usual.iter().chain(&job.submission), &REFUSED, |option| {
        format!("the option {option} of sbatch cannot be used with hvdctl jobs")
    })
}

/// Refuses the options of sbatch in a table of long name, short name and next step. `message`: what the error says of
/// one.
///
/// # Errors
/// With the first of them.
pub fn refuse<'a>(
    options: impl IntoIterator<Item = &'a String>,
    refused: &[(&str, &str, &str)],
    message: impl Fn(&str) -> String,
) -> Result<(), Error> {
    for option in options {
        let name = option.split_once('=').map_or(option.as_str(), |(name, _)| name);
        let is_short = |short: &str| !short.is_empty() && option.starts_with(short) && !option.starts_with("--");
        if let Some((.., hint)) = refused.iter().find(|(long, short, _)| name == *long || is_short(short)) {
            return Err(Error::usage(message(option), *hint));
        }
    }
    Ok(())
}

/// Returns true for generic resources such as `gpu`, `gpu:a100` and `gres/gpu:a100:4`.
fn is_gpu(one: &str) -> bool {
    let one = one.strip_prefix("gres").map_or(one, |rest| rest.trim_start_matches(['/', ':']));
    one.split([':', '(']).next() == Some("gpu")
}

/// Returns the number at the end of a resource such as `4`, `a100:4` or `a100:4(S:0-1)`; 1 without one.
fn count_of(one: &str) -> Option<u32> {
    let last = one.split('(').next()?.rsplit(':').next()?;
    Some(last.parse().unwrap_or(1))
}

/// Returns a resource with another number.
fn with_count(one: &str, count: u32) -> String {
    let one = one.split('(').next().unwrap_or_default();
    match one.rsplit_once(':') {
        Some((kind, last)) if last.parse::<u32>().is_ok() => format!("{kind}:{count}"),
        None if one.parse::<u32>().is_ok() => count.to_string(),
        _ => format!("{one}:{count}"),
    }
}

/// Returns the number of GPUs among generic resources such as `gpu:a100:4,nvme:1`.
fn gpus_of(gres: &str) -> Option<u32> {
    let counts: Vec<u32> = gres.split(',').filter(|one| is_gpu(one)).filter_map(count_of).collect();
    (!counts.is_empty()).then(|| counts.iter().sum())
}

/// Returns generic resources with so many GPUs.
///
/// # Errors
/// They have GPUs of several kinds.
fn with_gpus(gres: &str, count: u32) -> Result<String, Error> {
    if gres.split(',').filter(|one| is_gpu(one)).count() > 1 {
        return Err(Error::usage(
            format!("--gpus-per-node: the resources {gres} have GPUs of several kinds"),
            "leave it out, or choose one kind: --sbatch=--gres=gpu:KIND:K",
        ));
    }
    let each = gres.split(',').map(|one| if is_gpu(one) { with_count(one, count) } else { one.to_owned() });
    Ok(each.collect::<Vec<_>>().join(","))
}

/// Returns what generic resources have besides GPUs.
fn without_gpus(gres: &str) -> Option<String> {
    let rest: Vec<&str> = gres.split(',').filter(|one| !is_gpu(one)).collect();
    (!rest.is_empty()).then(|| rest.join(","))
}

/// Returns the signal and the seconds before the time limit in a value of `--signal`: `USR1`, `B:USR1@90`, `10@90`.
///
/// # Errors
/// Slurm or a program could do nothing with it, or it would come when the ranks are already asked to end.
fn before_limit(text: &str, needed: u64) -> Result<(u8, u64), Error> {
    const DEFAULT: u64 = 60;
    // with B: it is for the batch script, which is hvdctl's
    let (signal, time) = text.split_once('@').map_or((text, None), |(signal, time)| (signal, Some(time)));
    let signal = signal.strip_prefix("B:").or(signal.strip_prefix("b:")).unwrap_or(signal).to_uppercase();
    let name = signal.strip_prefix("SIG").unwrap_or(&signal);
    let by_name = SIGNALS.iter().find(|(one, _)| *one == name).map(|(_, number)| *number);
    let by_number = signal.parse().ok().filter(|number| (1..=64).contains(number) && ![9, 19].contains(number));
    let number = by_name.or(by_number);
    let seconds = time.map_or(Some(DEFAULT), |time| time.parse::<u16>().ok().map(u64::from));
    let (Some(number), Some(seconds)) = (number, seconds) else {
        return Err(Error::usage(
            format!("--signal={text}: not a signal that a program can catch and a number of seconds"),
            "for example --sbatch=--signal=USR1@90",
        ));
    };
    if seconds <= needed {
        return Err(Error::usage(
            format!(
                "--signal={text}: ranks are asked to end {needed} s before the time limit, which is before this signal"
            ),
            format!("give it more than {needed} seconds, lower cluster.stop_grace_s, or let the program catch SIGTERM"),
        ));
    }
    Ok((number, seconds))
}

/// Returns a time limit as sbatch takes it in seconds: minutes, minutes:seconds, hours:minutes:seconds, and the same
/// with days before it, where the first number is hours. `None` if it is none.
fn seconds(text: &str) -> Option<u64> {
    let (days, rest) = match text.split_once('-') {
        Some((days, rest)) => (Some(days.parse::<u64>().ok()?), rest),
        None => (None, text),
    };
    let parts = rest.split(':').map(|part| part.parse::<u64>().ok()).collect::<Option<Vec<u64>>>()?;
    let (hours, minutes, seconds) = match (days, parts[..].as_ref()) {
        (Some(_), [hours]) => (*hours, 0, 0),
        (Some(_), [hours, minutes]) => (*hours, *minutes, 0),
        (None, [minutes]) => (0, *minutes, 0),
        (None, [minutes, seconds]) => (0, *minutes, *seconds),
        (_, [hours, minutes, seconds]) => (*hours, *minutes, *seconds),
        _ => return None,
    };
    let total = days.unwrap_or_default() * 86_400 + hours * 3600 + minutes * 60 + seconds;
    // no limit
    Some(total).filter(|total| *total > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::{Controller, Inventory, LauncherName};
    use crate::job::supervision::WatchOptions;
    use crate::launch::env_file::EnvFiles;
    use crate::start::request::ResourceRequest;
    use std::collections::BTreeMap;
    use std::time::Duration;

    /// A job with this number of ranks, and this many GPUs of each node.
    fn job(ranks: Option<&str>, per_node: Option<u32>) -> JobOptions {
        JobOptions {
            resources: ResourceRequest {
                ranks: ranks.map(|text| text.parse().unwrap()),
                map_by: MapBy::Slot,
                per_node,
            },
            submission: Vec::new(),
            launcher: LauncherName::Srun,
            controller: Controller::Gloo,
            bind: None,
            restarts: 0,
            elastic: None,
            changes: None,
            stall_timeout: Duration::ZERO,
            log_max: None,
            log_progress: false,
            env: BTreeMap::new(),
            env_files: EnvFiles::new(),
            roles: Vec::new(),
            watch: WatchOptions::default(),
        }
    }

    fn read(slurm: &Slurm, given: &[&str], job: &JobOptions) -> Result<String, String> {
        let options = given.iter().map(|option| (*option).to_owned()).collect();
        let job = JobOptions { submission: options, ..job.clone() };
        let cluster = Inventory::local("here", "").cluster;
        let submission = submission(slurm, &job, &cluster, OWN_SIGNAL).map_err(|error| error.to_string())?;
        Ok(submission.options.join(" ") + &submission.warning.map(|found| format!(" {found:?}")).unwrap_or_default())
    }

    #[test]
    fn a_job_asks_for_what_its_ranks_need_and_the_operator_has_the_last_word() {
        let slurm = Slurm {
            partition: Some("ml".into()),
            gres: Some("gpu:a100:4".into()),
            time: Some("8:00:00".into()),
            options: vec!["--exclusive".into()],
            ..Slurm::default()
        };
        assert_eq!(
            read(&slurm, &["--time=1-0"], &job(Some("8"), None)).unwrap(),
            "--partition=ml --time=8:00:00 --gres=gpu:a100:4 --ntasks=8 --ntasks-per-node=4 --signal=B:50@20 \
             --no-requeue --exclusive --time=1-0"
        );
        let two = read(&slurm, &[], &JobOptions { restarts: 1, ..job(Some("1"), Some(2)) }).unwrap();
        assert!(
            two.contains("--gres=gpu:a100:2 --ntasks=1 --ntasks-per-node=1 ") && two.contains(" --requeue"),
            "{two}"
        );
        assert_eq!(read(&Slurm::default(), &[], &job(None, None)).unwrap(), "--signal=B:50@20 --no-requeue");
    }

    #[test]
    fn what_an_allocation_cannot_do_is_refused() {
        let error = read(&Slurm::default(), &[], &job(Some("1:2"), None)).unwrap_err();
        assert!(error.contains("a Slurm allocation keeps its nodes"), "{error}");
        for option in ["--array=1-2", "-a1-2", "--wait", "-W", "-Mother", "--wrap=true"] {
            let error = read(&Slurm::default(), &[option], &job(Some("1"), None)).unwrap_err();
            assert!(error.contains("cannot be used with hvdctl jobs"), "{option}: {error}");
        }
        assert!(read(&Slurm::default(), &["--wait-all-nodes=1", "--account=a"], &job(Some("1"), None)).is_ok());
        let short = Slurm { time: Some("0:10".into()), ..Slurm::default() };
        let error = read(&short, &[], &job(Some("1"), None)).unwrap_err();
        assert!(error.contains("slurm.time is shorter than the 20 s"), "{error}");
        for (given, is_short) in [
            (&["--time=0:15"][..], true),
            (&["-t0:15"], true),
            (&["-t", "0:15"], true),
            (&["--time=0:15", "--time=1"], false),
            (&["--time=0:20", "--time-min=0:01"], false),
        ] {
            let complaint = "is shorter than the 20 s in which ranks end";
            for slurm in [Slurm::default(), Slurm { time: Some("1:00:00".into()), ..Slurm::default() }] {
                let found = read(&slurm, given, &job(Some("1"), None));
                assert_eq!(found.is_err_and(|error| error.contains(complaint)), is_short, "{given:?}");
            }
            let usual = Slurm { options: given.iter().map(|one| (*one).to_owned()).collect(), ..Slurm::default() };
            assert_eq!(read(&usual, &[], &job(Some("1"), None)).is_err(), is_short, "{given:?}");
        }
        // what is given for this job counts
        assert!(read(&short, &["--time=2"], &job(Some("1"), None)).is_ok());
    }

    #[test]
    fn limits_and_gpus_are_read_as_slurm_reads_them() {
        let times = ["10", "1:30", "2:00:00", "1-12", "1-0:30", "1-0:0:5", "0", "UNLIMITED", "x", "1:2:3:4"];
        let found =
            [Some(600), Some(90), Some(7200), Some(129_600), Some(88_200), Some(86_405), None, None, None, None];
        assert_eq!(times.map(seconds), found);
        let gres = ["gpu", "gpu:2", "gpu:a100:4", "shard:2", "nvme:1,gpu:1", "gpu:a100", "gres/gpu:3(S:0-1)", "gpus:2"];
        let found = [Some(1), Some(2), Some(4), None, Some(1), Some(1), Some(3), None];
        assert_eq!(gres.map(gpus_of), found);
        assert_eq!(gpus_of("gpu:a100:2,gpu:h100:3"), Some(5));
    }

    /// Returns the options of a job of 4 ranks, but not those that are the same for all.
    fn of_gpus(slurm: &Slurm, given: &[&str], per_node: Option<u32>) -> String {
        let all = read(slurm, given, &job(Some("4"), per_node)).unwrap_or_else(|error| error);
        all.replace(" --signal=B:50@20 --no-requeue", "").replace("--ntasks=4", "").trim().replace("  ", " ")
    }

    #[test]
    fn each_gpu_has_a_task_however_it_was_asked_for() {
        let table = |gres: Option<&str>, options: &[&str]| Slurm {
            gres: gres.map(str::to_owned),
            options: options.iter().map(|option| (*option).to_owned()).collect(),
            ..Slurm::default()
        };
        let none = table(None, &[]);
        for given in [
            &["--gpus-per-node=2"][..],
            &["--gres=gpu:2"],
            &["--gres=gpu:h100:2,nvme:1"],
            &["--gres", "gpu:2"],
            &["--gpus-per-node", "a100:2"],
            &["--gpus-per-n=2"],
            &["--gres=gpu:1", "--gres=gpu:2"],
        ] {
            assert_eq!(of_gpus(&none, given, None), format!("--ntasks-per-node=2 {}", given.join(" ")));
            assert_eq!(of_gpus(&table(None, given), &[], None), format!("--ntasks-per-node=2 {}", given.join(" ")));
        }
        let gpus = table(Some("gpu:4,nvme:1"), &[]);
        assert_eq!(of_gpus(&gpus, &[], None), "--gres=gpu:4,nvme:1 --ntasks-per-node=4");
        assert_eq!(of_gpus(&gpus, &[], Some(1)), "--gres=gpu:1,nvme:1 --ntasks-per-node=1");
        assert_eq!(of_gpus(&table(Some("gpu:a100"), &[]), &[], Some(2)), "--gres=gpu:a100:2 --ntasks-per-node=2");
        assert_eq!(of_gpus(&table(Some("gpu:a100"), &[]), &[], None), "--gres=gpu:a100 --ntasks-per-node=1");
        // those of the command line are in the place of the table's
        assert_eq!(of_gpus(&gpus, &["--gpus-per-node=1"], None), "--gres=nvme:1 --ntasks-per-node=1 --gpus-per-node=1");
        assert_eq!(of_gpus(&gpus, &["--gpus=8"], None), "--gres=nvme:1 --gpus=8");
        assert_eq!(of_gpus(&gpus, &["-G8"], None), "--gres=nvme:1 -G8");
        let last = of_gpus(&gpus, &["--gres=gpu:1"], None);
        assert_eq!(last, "--gres=gpu:4,nvme:1 --ntasks-per-node=1 --gres=gpu:1");
        // hvdctl's own option also changes what the inventory has as an option
        let options = table(None, &["--gpus-per-node=a100:4", "--mem=0"]);
        assert_eq!(
            of_gpus(&options, &[], Some(2)),
            "--ntasks-per-node=2 --gpus-per-node=a100:4 --mem=0 --gpus-per-node=a100:2"
        );
        // Slurm places the tasks
        for given in ["--gpus-per-task=1", "--ntasks-per-gpu=2", "--ntasks-per-node=3"] {
            assert!(!of_gpus(&none, &["--gres=gpu:2", given], None).contains("--ntasks-per-node=2"), "{given}");
        }
        let kinds = of_gpus(&table(Some("gpu:a:1,gpu:b:1"), &[]), &[], Some(1));
        assert!(kinds.contains("GPUs of several kinds"), "{kinds}");
    }

    #[test]
    fn a_signal_before_the_limit_is_for_the_ranks_and_hvdctl_keeps_its_own() {
        let signal = |given: &[&str]| read(&Slurm::default(), given, &job(Some("1"), None));
        let expected = "--ntasks=1 --signal=B:50@90 --no-requeue Warning { signal: 10, seconds: 70 }";
        for given in [
            &["--signal=USR1@90"][..],
            &["--signal=B:USR1@90"],
            &["--signal", "SIGUSR1@90"],
            &["--sig=10@90"],
            &["--signal=TERM", "--signal=usr1@90"],
        ] {
            assert_eq!(signal(given).unwrap(), expected, "{given:?}");
            let options = given.iter().map(|option| (*option).to_owned()).collect();
            let inventory = Slurm { options, ..Slurm::default() };
            assert_eq!(read(&inventory, &[], &job(Some("1"), None)).unwrap(), expected, "{given:?}");
        }
        assert!(signal(&["--signal=HUP"]).unwrap().contains("B:50@60 --no-requeue Warning { signal: 1, seconds: 40 }"));
        for odd in ["KILL@90", "9@90", "USR1@x", "R:USR1@90", "", "SIG@70", "65", "USR1@70000"] {
            let error = signal(&[&format!("--signal={odd}")]).unwrap_err();
            assert!(error.contains("not a signal that a program can catch"), "{odd}: {error}");
        }
        let error = signal(&["--signal=USR1@20"]).unwrap_err();
        assert!(error.contains("asked to end 20 s before the time limit"), "{error}");
    }
}
