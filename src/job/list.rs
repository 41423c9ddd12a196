//! The jobs of a cluster, as the records on its nodes tell of them. No state is kept anywhere else, so that every operator sees the
//! same.

use crate::job::record::{
    Attempt, JobResult, LostOutput, RankExit, Record, RootCause, SETTING_OUT, State, lost_output,
};
use crate::job::restart::Membership;
use crate::launch::placement::Placement;
use crate::model::launcher::{Controller, LauncherName};
use crate::text::argument::ProgramArgument;
use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

/// What one node knows of one job.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Piece {
    /// Its record; the same on all nodes but for the node's own share.
    pub record: Option<Record>,
    /// How it ended; on the node of the launcher.
    pub ending: Option<JobResult>,
    /// The attempts that failed; on the node of the launcher.
    pub attempts: Vec<Attempt>,
    /// The nodes that take part in an elastic job; on the node of the launcher.
    pub membership: Option<Membership>,
    /// Ranks that have started on this node, in the last of them.
    pub started: u32,
}

/// What one node knows.
#[derive(Debug, Clone, Default)]
pub struct NodeRecords {
    /// The node.
    pub node: String,
    /// Its pieces by the job's id.
    pub pieces: BTreeMap<String, Piece>,
    /// Runs whose launcher is up there.
    pub launchers: Vec<String>,
}

/// A job.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Job {
    /// Its id.
    pub id: String,
    /// Its own name, else the project's or that of the program.
    pub name: String,
    /// The project's name on the nodes; none of a program that is in the image.
    pub project: Option<String>,
    /// Who started it, `user@host`.
    pub operator: String,
    /// Where it stands; none where the node that knows was not seen.
    pub state: Option<State>,
    /// The number of ranks.
    pub ranks: u32,
    /// Who runs where; the launcher is on the first.
    pub placement: Placement,
    /// What starts the ranks.
    pub launcher: LauncherName,
    /// Horovod's controller, if `horovodrun` does.
    pub controller: Option<Controller>,
    /// The program.
    pub command: Vec<ProgramArgument>,
    /// How often it is started again after a failure.
    pub restarts: u32,
    /// The least number of ranks, if it is elastic.
    pub min_ranks: Option<u32>,
    /// The nodes that take part in an elastic job, and how they changed.
    pub membership: Option<Membership>,
    /// The failed attempts, after each of which the job was started again.
    pub attempts: Vec<Attempt>,
    /// Whether all its ranks had started when it ended.
    #[serde(skip)]
    pub all_started: bool,
    /// When it was started, in seconds since the epoch; in JSON RFC 3339 in UTC.
    #[serde(serialize_with = "rfc3339")]
    #[schemars(with = "String")]
    pub started: f64,
    /// When it ended, in the same form.
    #[serde(serialize_with = "rfc3339_option")]
    #[schemars(with = "Option<String>")]
    pub ended: Option<f64>,
    /// The program's exit code; none before its end, and where nobody knows.
    pub code: Option<i64>,
    /// The rank that failed first.
    pub first_failure: Option<RankExit>,
    /// Who it failed by, and how.
    pub root_cause: Option<RootCause>,
    /// The same in words, or what else there is to tell of its end.
    pub reason: Option<String>,
    /// Why nobody could write down how it ended.
    pub fault: Option<String>,
    /// Output that a full disk lost.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<LostOutput>,
    /// Whether it is a check of hvdctl's own.
    #[serde(skip)]
    pub is_check: bool,
    /// Bytes that its log may take on each node.
    #[serde(skip)]
    pub log_max: Option<u64>,
}

/// Formats seconds since the epoch as RFC 3339 in UTC.
pub(super) fn stamp(seconds: f64) -> String {
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs_f64(seconds.max(0.0))).to_string()
}

fn rfc3339<S: Serializer>(seconds: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&stamp(*seconds))
}

fn rfc3339_option<S: Serializer>(seconds: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
    seconds.map(stamp).serialize(serializer)
}

impl Job {
    /// Whether it is over for certain.
    pub fn is_over(&self) -> bool {
        !matches!(self.state, None | Some(State::Starting | State::Running))
    }

    /// The node of its launcher.
    pub fn launcher(&self) -> &str {
        self.placement.shares.first().map_or("", |share| share.node.as_str())
    }

    /// Its nodes' names.
    pub fn nodes(&self) -> Vec<String> {
        self.placement.shares.iter().map(|share| share.node.clone()).collect()
    }
}

/// Reads what `jobs_list.sh` says. A line that is none of its own is passed over: a record that a full disk cut off must not
/// hide the others.
pub fn parse(text: &str) -> BTreeMap<String, Piece> {
    let mut pieces: BTreeMap<String, Piece> = BTreeMap::new();
    for line in text.lines() {
        let Some((path, value)) = line.split_once(':') else { continue };
        let mut parts = path.trim_start_matches("./").split('/');
        let (Some(id), Some(file), None) = (parts.next(), parts.next(), parts.next()) else { continue };
        let piece = pieces.entry(id.to_owned()).or_default();
        match file {
            "job.json" => piece.record = serde_json::from_str(value).ok(),
            "result.json" => piece.ending = serde_json::from_str(value).ok(),
            "attempts.json" => piece.attempts = serde_json::from_str(value).unwrap_or_default(),
            "members.json" => piece.membership = serde_json::from_str(value).ok(),
            "states" => piece.started = value.trim().parse().unwrap_or_default(),
            _ => {}
        }
    }
    pieces
}

/// The cluster's jobs, the newest first. `now`: seconds since the epoch.
pub fn jobs(cluster: &str, looks: &[NodeRecords], now: f64) -> Vec<Job> {
    let mut records: BTreeMap<&str, &Record> = BTreeMap::new();
    for (id, piece) in looks.iter().flat_map(|look| &look.pieces) {
        if let Some(record) = piece.record.as_ref().filter(|record| record.cluster == cluster) {
            records.entry(id).or_insert(record);
        }
    }
    let mut jobs: Vec<Job> = records.into_iter().map(|(id, record)| job(id, record, looks, now)).collect();
    jobs.sort_by(|a, b| b.started.total_cmp(&a.started).then(b.id.cmp(&a.id)));
    jobs
}

fn job(id: &str, record: &Record, looks: &[NodeRecords], now: f64) -> Job {
    let ranks = record.placement.ranks();
    let pieces = || looks.iter().filter_map(|look| look.pieces.get(id));
    let ending = pieces().find_map(|piece| piece.ending.as_ref());
    let launcher = record.placement.shares.first().map_or("", |share| share.node.as_str());
    let is_up = looks.iter().any(|look| look.launchers.iter().any(|up| up == id));
    let attempts =
        pieces().map(|piece| &piece.attempts).find(|attempts| !attempts.is_empty()).cloned().unwrap_or_default();
    let membership = pieces().find_map(|piece| piece.membership.clone());
    let begun = pieces().map(|piece| piece.started).sum::<u32>();
    // started again, it may have lost nodes
    let needed = match &membership {
        Some(membership) => membership.ranks().max(1),
        None if attempts.is_empty() => ranks,
        None => 1,
    };
    let state = match ending {
        Some(ending) => Some(ending.state(ranks)),
        None if is_up && begun >= needed => Some(State::Running),
        None if is_up => Some(State::Starting),
        None if !looks.iter().any(|look| look.node == launcher) => None,
        // its launcher was there once
        None if begun > 0 => Some(State::Lost),
        None if now - record.created < SETTING_OUT => Some(State::Starting),
        None => Some(State::Lost),
    };
    let unwritten = (ending.is_none() && state == Some(State::Lost))
        .then(|| format!("its launcher on {launcher} is gone, and nobody wrote down how it ended"));
    Job {
        id: id.to_owned(),
        name: record.name.clone(),
        operator: record.operator.clone(),
        state,
        ranks,
        placement: record.placement.clone(),
        launcher: record.launcher,
        controller: record.controller,
        command: record.command.clone(),
        project: record.project.clone(),
        restarts: record.restarts,
        min_ranks: record.min_ranks,
        membership,
        attempts,
        all_started: ending.is_some_and(|ending| ending.started >= ending.ranks.unwrap_or(ranks)),
        started: record.created,
        ended: ending.map(|ending| ending.ended),
        code: ending.and_then(|ending| ending.code(ranks)),
        first_failure: ending.and_then(|ending| ending.first_failure(ranks)).cloned(),
        root_cause: ending.and_then(|ending| ending.root_cause(&record.placement)),
        reason: ending
            .and_then(|ending| ending.reason(&record.placement).or_else(|| lost_output(&ending.lost)))
            .or(unwritten),
        fault: ending.and_then(|ending| ending.fault.clone()),
        lost: ending.map(|ending| ending.lost.clone()).unwrap_or_default(),
        is_check: record.cwd.ends_with(&format!("/{id}")),
        log_max: record.log_max,
    }
}

/// Which run is meant where none is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Newest {
    /// The newest.
    Any,
    /// The newest that is not a check of hvdctl's own, as `verify` makes them; that one where there are no others.
    Program,
    /// The newest that has a project.
    Project,
}

/// The job that was meant: by its id, the beginning of it, or a name (the newest of that name); without a word the newest of its kind.
///
/// # Errors
/// In words: there is none, or several begin so.
pub fn find<'a>(jobs: &'a [Job], word: Option<&str>, newest: Newest) -> Result<&'a Job, String> {
    let Some(word) = word else {
        return match newest {
            Newest::Any => jobs.first().ok_or_else(|| "there was no job yet".to_owned()),
            Newest::Program => {
                let job = jobs.iter().find(|job| !job.is_check).or(jobs.first());
                job.ok_or_else(|| "there was no job yet".to_owned())
            }
            Newest::Project => {
                let job = jobs.iter().find(|job| job.project.is_some());
                job.ok_or_else(|| "there was no run with a project yet".to_owned())
            }
        };
    };
    let named = || jobs.iter().find(|job| job.name == word);
    if let Some(job) = jobs.iter().find(|job| job.id == word).or_else(named) {
        return Ok(job);
    }
    let fitting: Vec<&Job> = jobs.iter().filter(|job| job.id.starts_with(word)).collect();
    match fitting[..] {
        [job] => Ok(job),
        [] => Err(format!("there is no job {word}")),
        _ => {
            let ids: Vec<&str> = fitting.iter().take(5).map(|job| job.id.as_str()).collect();
            Err(format!("{word} may be {} jobs: {}", fitting.len(), ids.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::placement::Share;

    fn record(id: &str, created: f64) -> Record {
        let share = |node: &str, first| Share { node: node.into(), ranks: 1, first, ..Share::default() };
        Record {
            id: id.into(),
            cluster: "lab".into(),
            name: "digits".into(),
            project: Some("digits".into()),
            restarts: 0,
            min_ranks: None,
            operator: "ana@desk".into(),
            created,
            launcher: LauncherName::Horovodrun,
            controller: None,
            placement: Placement { shares: vec![share("a", 0), share("b", 1)] },
            command: vec!["python".into(), "a:b.py".into()],
            bind: None,
            cwd: "/workspace".into(),
            ranks: 1,
            port: None,
            interface: "eth0".into(),
            grace: 10,
            stall: 0,
            idle_margin: 30,
            log_max: None,
            ulimits: BTreeMap::new(),
        }
    }

    #[test]
    fn the_record_of_an_older_hvdctl_is_read() {
        let now = record("j1", 1.0);
        let mut older = serde_json::to_value(&now).unwrap();
        for field in ["idle_margin", "stall", "port"] {
            older.as_object_mut().unwrap().remove(field).unwrap();
        }
        assert_eq!(serde_json::from_value::<Record>(older).unwrap(), now);
        assert_eq!(now.idle_margin, crate::inventory::Cluster::default().idle_margin.as_secs());
    }

    fn look(node: &str, text: &str, launchers: &[&str]) -> NodeRecords {
        NodeRecords {
            node: node.into(),
            pieces: parse(text),
            launchers: launchers.iter().map(|l| (*l).to_owned()).collect(),
        }
    }

    fn lines(id: &str, created: f64, started: u32) -> String {
        let json = serde_json::to_string(&record(id, created)).unwrap();
        format!("./{id}/job.json:{json}\n./{id}/states:{started}\n")
    }

    #[test]
    fn a_run_is_known_by_what_its_nodes_say() {
        let text = lines("j1", 1000.0, 1);
        let state = |looks: &[NodeRecords], now| jobs("lab", looks, now)[0].state;
        let both = |launchers: &[&str]| [look("a", &text, launchers), look("b", &text, &[])];
        assert_eq!(state(&both(&["j1"]), 5000.0), Some(State::Running));
        let early = [look("a", &text, &["j1"]), look("b", &lines("j1", 1000.0, 0), &[])];
        assert_eq!(state(&early, 5000.0), Some(State::Starting));
        assert_eq!(state(&both(&["other"]), 5000.0), Some(State::Lost), "no launcher, no result");
        let nothing_yet = [look("a", &lines("j1", 1000.0, 0), &[]), look("b", &lines("j1", 1000.0, 0), &[])];
        assert_eq!(state(&nothing_yet, 1010.0), Some(State::Starting), "it is being prepared");
        assert_eq!(state(&both(&[]), 1010.0), Some(State::Lost), "its ranks had begun");
        assert_eq!(
            jobs("lab", &both(&[]), 1010.0)[0].reason.as_deref(),
            Some("its launcher on a is gone, and nobody wrote down how it ended")
        );
        assert_eq!(state(&[look("b", &text, &[])], 5000.0), None, "the node that knows is away");
        assert!(jobs("other", &both(&[]), 0.0).is_empty(), "another cluster's in the same directory");
    }

    #[test]
    fn an_ended_run_says_how() {
        let ending = r#"{"ended": 1060.5, "launcher": 1, "stopped": false, "started": 2, "silent": [],
            "exits": [{"rank": 1, "node": "b", "code": 7, "time": 1060.0, "asked": false}]}"#;
        let text =
            format!("{}./j1/result.json:{}\nnoise\n./x/y/z:1\n", lines("j1", 1000.0, 1), ending.replace('\n', ""));
        let jobs = jobs("lab", &[look("a", &text, &[])], 5000.0);
        let job = &jobs[0];
        assert_eq!((job.state, job.code, job.ended, job.ranks), (Some(State::Failed), Some(7), Some(1060.5), 2));
        assert_eq!(job.first_failure.as_ref().unwrap().node, "b");
        assert_eq!(job.reason.as_deref(), Some("rank 1 on b ended with exit code 7"));
        assert!(job.is_over() && job.launcher() == "a");
    }

    #[test]
    fn a_run_that_was_started_again_has_its_tries_and_may_have_lost_ranks() {
        let attempts = r#"[{"started": 1000.0, "ended": 1060.5, "ranks": 2, "launcher": 1, "silent": ["b"],
            "exits": [{"rank": 1, "node": "b", "code": 7, "time": 1060.0, "asked": false}]}]"#;
        let text = format!("{}./j1/attempts.json:{}\n", lines("j1", 1000.0, 1), attempts.replace('\n', ""));
        let under_way = &jobs("lab", &[look("a", &text, &["j1"])], 5000.0)[0];
        assert_eq!((under_way.state, under_way.attempts[0].exits[0].code), (Some(State::Running), 7));
        let ending = r#"{"ended": 1090.5, "launcher": 0, "stopped": false, "started": 1, "silent": ["b"], "ranks": 1,
            "exits": [{"rank": 0, "node": "a", "code": 0, "time": 1090.0, "asked": false}]}"#;
        let text = format!("{text}./j1/result.json:{}\n", ending.replace('\n', ""));
        assert_eq!(jobs("lab", &[look("a", &text, &[])], 5000.0)[0].state, Some(State::Succeeded), "with one rank");
    }

    #[test]
    fn a_record_that_was_cut_off_hides_no_other() {
        let text = format!("./j1/job.json:{{\"id\": \"j1\n{}", lines("j2", 1000.0, 0));
        let jobs = jobs("lab", &[look("a", &text, &[])], 5000.0);
        assert_eq!(jobs.iter().map(|job| job.id.as_str()).collect::<Vec<_>>(), ["j2"]);
    }

    #[test]
    fn a_run_is_found_by_id_by_its_beginning_and_by_name() {
        let text =
            [("20261121-1", 1.0), ("20261121-2", 2.0), ("20261122-1", 3.0)].map(|(id, t)| lines(id, t, 0)).concat();
        let jobs = jobs("lab", &[look("a", &text, &[])], 5000.0);
        let found = |word| find(&jobs, word, Newest::Any).map(|job| job.id.as_str());
        assert_eq!(found(None), Ok("20261122-1"));
        assert_eq!(found(Some("20261121-1")), Ok("20261121-1"));
        assert_eq!(found(Some("20261122")), Ok("20261122-1"));
        assert_eq!(found(Some("digits")), Ok("20261122-1"));
        assert_eq!(found(Some("20261121")), Err("20261121 may be 2 jobs: 20261121-2, 20261121-1".into()));
        assert_eq!(found(Some("x")), Err("there is no job x".into()));
        assert_eq!(find(&[], None, Newest::Any).unwrap_err(), "there was no job yet");
    }

    #[test]
    fn the_newest_of_its_kind_is_meant() {
        let mut jobs = jobs("lab", &[look("a", &["p", "r", "v"].map(|id| lines(id, 1.0, 0)).concat(), &[])], 5000.0);
        jobs.sort_by_key(|job| std::cmp::Reverse(job.id.clone()));
        // v is a check, r a program of the image
        (jobs[0].is_check, jobs[0].project, jobs[1].project) = (true, None, None);
        let found = |newest| find(&jobs, None, newest).unwrap().id.as_str();
        assert_eq!([Newest::Any, Newest::Program, Newest::Project].map(found), ["v", "r", "p"]);
        assert_eq!(find(&jobs[..1], None, Newest::Program).unwrap().id, "v", "there is no other");
        assert_eq!(find(&jobs[..2], None, Newest::Project).unwrap_err(), "there was no run with a project yet");
    }
}
