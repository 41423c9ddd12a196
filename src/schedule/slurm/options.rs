//! The options with which a job is submitted to Slurm.

use crate::error::Error;
use crate::inventory::{Cluster, Slurm};
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

/// Returns the options of sbatch: those of hvdctl and of the inventory, then those of the operator, which take
/// precedence.
///
/// # Errors
/// Options that jobs under Slurm do not have.
pub fn options(slurm: &Slurm, job: &JobOptions, cluster: &Cluster) -> Result<Vec<String>, Error> {
    let (resources, given) = (job.resources, &job.submission);
    check(job, &slurm.options)?;
    check_time(slurm, job, cluster)?;
    let needed = needed_to_end(cluster);
    let gpus = slurm.gres.as_deref().and_then(gpus_of);
    let per_node = resources.per_node.or(gpus.map(|(_, count)| count));
    let gres = match (gpus, resources.per_node) {
        (Some((kind, _)), Some(count)) => Some(format!("{kind}:{count}")),
        _ => slurm.gres.clone(),
    };
    let ranks = resources.ranks.map(|ranks| ranks.max);
    let tasks_per_node = per_node.map(|per_node| ranks.map_or(per_node, |ranks| ranks.min(per_node)));
    let fields = [
        ("partition", slurm.partition.clone()),
        ("account", slurm.account.clone()),
        ("qos", slurm.qos.clone()),
        ("constraint", slurm.constraint.clone()),
        ("time", slurm.time.clone()),
        ("gres", gres),
        ("ntasks", ranks.map(|ranks| ranks.to_string())),
        ("ntasks-per-node", tasks_per_node.map(|tasks| tasks.to_string())),
        ("signal", Some(format!("B:USR2@{needed}"))),
    ];
    let named = fields.into_iter().filter_map(|(name, value)| Some(format!("--{name}={}", value?)));
    let spread = (resources.map_by == MapBy::Node).then(|| "--spread-job".to_owned());
    // a job that has lost a node begins anew only if it may be restarted
    let requeue = if job.restarts > 0 { "--requeue" } else { "--no-requeue" };
    let own = named.chain(spread).chain([requeue.to_owned()]);
    Ok(own.chain(slurm.options.iter().cloned()).chain(given.iter().cloned()).collect())
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

/// Returns the kind and the number of GPUs in generic resources such as `gpu:a100:4`.
fn gpus_of(gres: &str) -> Option<(&str, u32)> {
    let gpus = gres.split(',').find(|one| *one == "gpu" || one.starts_with("gpu:"))?;
    if gres.contains(',') {
        return None;
    }
    match gpus.rsplit_once(':') {
        Some((kind, count)) => Some((kind, count.parse().ok()?)),
        None => Some((gpus, 1)),
    }
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
            watch: WatchOptions::default(),
        }
    }

    fn read(slurm: &Slurm, given: &[&str], job: &JobOptions) -> Result<String, String> {
        let submission = given.iter().map(|option| (*option).to_owned()).collect();
        let job = JobOptions { submission, ..job.clone() };
        let options = options(slurm, &job, &Inventory::local("here", "").cluster);
        options.map(|options| options.join(" ")).map_err(|error| error.to_string())
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
            "--partition=ml --time=8:00:00 --gres=gpu:a100:4 --ntasks=8 --ntasks-per-node=4 --signal=B:USR2@20 \
             --no-requeue --exclusive --time=1-0"
        );
        let two = read(&slurm, &[], &JobOptions { restarts: 1, ..job(Some("1"), Some(2)) }).unwrap();
        assert!(
            two.contains("--gres=gpu:a100:2 --ntasks=1 --ntasks-per-node=1 ") && two.contains(" --requeue"),
            "{two}"
        );
        assert_eq!(read(&Slurm::default(), &[], &job(None, None)).unwrap(), "--signal=B:USR2@20 --no-requeue");
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
        let gres = ["gpu", "gpu:2", "gpu:a100:4", "shard:2", "gpu:1,shard:2", "gpu:x"];
        let found = [Some(("gpu", 1)), Some(("gpu", 2)), Some(("gpu:a100", 4)), None, None, None];
        assert_eq!(gres.map(gpus_of), found);
    }
}
