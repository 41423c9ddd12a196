//! Jobs on scripted nodes: their directories, and a play in the place of the launcher and the ranks, which writes their
//! logs.

use super::scripts::variable;
use super::state::NodeState;
use super::{Nodes, Own};
use base64::Engine as _;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, sleep};

/// The time at which files outside the mounts were written, in seconds since the epoch.
pub(super) const WRITTEN: u64 = 1_763_735_600;

/// Interval at which a follower looks for more output.
const GLANCE: Duration = Duration::from_millis(20);

/// A job's directory on one node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Directory {
    /// Its files by name, except the log.
    pub files: BTreeMap<String, String>,
    /// The log of its ranks.
    pub log: String,
    /// Set while the worker that jobs share has the directory.
    pub is_lent: bool,
    /// Set if its ranks were killed together with their supervisors, so that their ends are not recorded.
    pub is_killed: bool,
}

impl Directory {
    /// The ranks that have started and not exited.
    fn running(&self) -> Vec<u32> {
        let mut running = Vec::new();
        if self.is_killed {
            return running;
        }
        for frame in self.log.lines() {
            let mut words = frame.split(' ').skip(1);
            let (Some(Ok(rank)), Some(kind)) = (words.next().map(str::parse), words.next()) else { continue };
            match kind {
                "s" => running.push(rank),
                "x" => running.retain(|other| *other != rank),
                _ => {}
            }
        }
        running
    }

    fn write(&mut self, at: f64, frame: &str) {
        self.log.push_str(&format!("{at:.6} {frame}\n"));
    }
}

/// The scripted behaviour of a job's launcher and ranks.
#[derive(Debug, Clone, Default)]
pub struct Play {
    scenes: Vec<(Duration, Scene)>,
}

#[derive(Debug, Clone)]
enum Scene {
    /// A frame of a node's log, without its time.
    Frame(String, String),
    /// The job supervisor records a result, with the exit code of the launcher.
    Result(i64),
    /// It adds these files outside the mounts to the result.
    Outside(Value),
    /// The container of the launcher exits.
    Exit(i64),
}

impl Play {
    /// Writes a frame to a node's log, so many milliseconds after the launcher was started.
    pub fn frame(mut self, at: u64, node: &str, frame: &str) -> Play {
        self.scenes.push((Duration::from_millis(at), Scene::Frame(node.to_owned(), frame.to_owned())));
        self
    }

    /// Adds to the result which files are outside the mounts; their nodes have lists of them.
    pub fn outside(mut self, files: Value) -> Play {
        let ended = self.scenes.iter().position(|(_, scene)| matches!(scene, Scene::Result(_))).expect("an end");
        self.scenes.insert(ended + 1, (self.scenes[ended].0, Scene::Outside(files)));
        self
    }

    /// Ends the job in order: the supervisor records how, and exits.
    pub fn ends(mut self, at: u64, code: i64) -> Play {
        let at = Duration::from_millis(at);
        self.scenes.extend([(at, Scene::Result(code)), (at, Scene::Exit(code))]);
        self
    }

    /// Kills the container of the launcher, and the ranks in it. Nothing is recorded.
    pub fn killed(mut self, at: u64) -> Play {
        self.scenes.push((Duration::from_millis(at), Scene::Exit(137)));
        self
    }

    /// Plays for a container on a node until it ends or is ended.
    pub(super) async fn perform(self, nodes: Nodes, node: String, container: String, job: String) {
        let began = Instant::now();
        for (at, scene) in self.scenes {
            tokio::time::sleep_until(began + at).await;
            let state = nodes.state(&node);
            if !state.containers.iter().any(|other| other.id == container && other.state == "running") {
                return;
            }
            match scene {
                Scene::Frame(node, frame) => nodes.edit(&node, |state| {
                    let at = state.clock();
                    state.directory(&job).write(at, &frame);
                }),
                Scene::Result(code) => nodes.record(&node, &job, Some(code)),
                Scene::Outside(files) => {
                    for found in files.as_array().into_iter().flatten() {
                        let line = |file: &Value| format!("{} {WRITTEN} {}\n", file["bytes"], file["path"]);
                        let list: String = found["largest"].as_array().into_iter().flatten().map(line).collect();
                        let keep = |state: &mut NodeState| state.directory(&job).files.insert("outside".into(), list);
                        nodes.edit(found["node"].as_str().expect("a node"), |state| drop(keep(state)));
                    }
                    nodes.edit(&node, |state| {
                        let result = state.directory(&job).files.get_mut("result.json").expect("a result");
                        let mut changed: Value = serde_json::from_str(result).unwrap();
                        changed["outside"] = files;
                        *result = changed.to_string();
                    });
                }
                Scene::Exit(code) => nodes.edit(&node, |state| {
                    let exited = state.containers.iter_mut().find(|other| other.id == container);
                    exited.into_iter().for_each(|container| (container.state, container.code) = ("exited", code));
                    state.directory(&job).is_killed = true;
                }),
            }
        }
    }
}

impl Nodes {
    /// Lets the launcher of the next job do this.
    pub fn play(&self, play: Play) {
        self.inner().play = Some(play);
    }

    /// Records the result of a job whose launcher is on this node. `launcher`: its exit code, or none if it was asked
    /// to end; then the ranks that still ran were as well.
    pub(super) fn record(&self, node: &str, job: &str, launcher: Option<i64>) {
        let (mut exits, mut started) = (Vec::new(), 0);
        for name in self.names() {
            self.edit(&name, |state| {
                let at = state.clock();
                let Some(directory) = state.directories.get_mut(job) else { return };
                if launcher.is_none() {
                    directory.end_ranks(at);
                }
                for frame in directory.log.lines() {
                    let words: Vec<&str> = frame.split(' ').collect();
                    match words[1..] {
                        [_, "s", ..] => started += 1,
                        [rank, "x", code, ref marks @ ..] => exits.push(json!({
                            "rank": rank.parse::<u32>().unwrap(), "node": name, "code": code.parse::<i64>().unwrap(),
                            "time": words[0].parse::<f64>().unwrap(), "signal": null, "asked": marks.contains(&"asked"),
                            "oom": marks.contains(&"oom"),
                        })),
                        _ => {}
                    }
                }
                directory.files.remove("env.json");
                directory.is_lent = false;
            });
        }
        let record =
            self.state(node).directories.get(job).and_then(|directory| directory.files.get("job.json").cloned());
        let record: Value = serde_json::from_str(&record.unwrap_or_default()).unwrap_or_default();
        let shares = record["placement"]["shares"].as_array().cloned().unwrap_or_default();
        let ranks: u64 = shares.iter().filter_map(|share| share["ranks"].as_u64()).sum();
        let result = json!({
            "ended": self.state(node).clock(), "launcher": launcher, "stopped": launcher.is_none(), "ranks": ranks, "started": started,
            "exits": exits,
        });
        self.edit(node, |state| drop(state.directory(job).files.insert("result.json".into(), result.to_string())));
    }
}

impl Directory {
    /// Ends its ranks as a supervisor that is asked to.
    fn end_ranks(&mut self, at: f64) {
        self.running().into_iter().for_each(|rank| self.write(at, &format!("{rank} x 143 asked")));
    }
}

impl NodeState {
    fn directory(&mut self, job: &str) -> &mut Directory {
        self.directories.entry(job.to_owned()).or_default()
    }

    /// Returns the lines of `node/facts.sh` about jobs: those that have not ended here, and their ranks.
    pub(super) fn job_facts(&self) -> String {
        let mut text = String::new();
        for (job, directory) in &self.directories {
            let name = if directory.files.contains_key("launch.json") { "hmaster" } else { "hworker" };
            let container = self.containers.iter().find(|container| container.name.starts_with(name));
            let container = container.map_or("-", |container| &container.id);
            for rank in directory.running() {
                text.push_str(&format!("rank {job} {} {container} lab -\n", 1000 + rank));
            }
            if let Some(record) = directory.files.get("job.json").filter(|_| directory.files.contains_key("env.json")) {
                text.push_str(&format!("open {job} {record}\n"));
            }
        }
        text + &self.outside()
    }

    /// Returns the output of `job/outside.sh`.
    pub(super) fn outside(&self) -> String {
        let has_files = |directory: &&Directory| directory.files.get("outside").is_some_and(|list| !list.is_empty());
        let jobs = self.directories.iter().filter(|(_, directory)| has_files(directory));
        jobs.map(|(job, _)| format!("outside {job}\n")).collect()
    }

    /// Returns the output of `job/list.sh`.
    pub(super) fn job_list(&self) -> String {
        let mut text = format!("clock:{}\n{}", self.clock(), self.jobs);
        for (job, directory) in &self.directories {
            for (name, content) in &directory.files {
                match name.as_str() {
                    "job.json" | "result.json" => text.push_str(&format!("./{job}/{name}:{content}\n")),
                    "env.json" => text.push_str(&format!("./{job}/{name}:\n")),
                    _ => {}
                }
            }
            let starts = directory.log.lines().filter(|frame| frame.ends_with(" s "));
            text.extend(starts.map(|frame| format!("./{job}/states:{frame}\n")));
        }
        text
    }

    /// `job/start.sh`
    pub(super) fn start_job(&mut self, script: &str) -> Result<String, (i32, String)> {
        if self.ids_are_taken {
            return Err((17, "another job has the id".into()));
        }
        let archive = base64::engine::general_purpose::STANDARD.decode(variable(script, "files")).expect("base64");
        let mut archive = tar::Archive::new(&archive[..]);
        let directory = self.directory(&variable(script, "id"));
        directory.is_lent = !variable(script, "shared").is_empty();
        for entry in archive.entries().expect("a tar archive") {
            let mut entry = entry.expect("a file");
            let name = entry.path().expect("a name").display().to_string();
            let mut text = String::new();
            std::io::Read::read_to_string(&mut entry, &mut text).expect("text");
            if name != "log" {
                directory.files.insert(name, text);
            }
        }
        Ok(String::new())
    }

    /// `job/join.sh`
    pub(super) fn join_job(&mut self, script: &str) -> String {
        let files = [("joining.json", "joining"), ("job.json", "record")];
        let files = files.map(|(name, of)| (name.to_owned(), variable(script, of)));
        self.directory(&variable(script, "id")).files.extend(files);
        String::new()
    }

    /// `job/files.sh`
    pub(super) fn job_files(&mut self, script: &str) -> Result<String, (i32, String)> {
        let missing = || (1, "No such file or directory".to_owned());
        let directory = self.directories.get(&variable(script, "id")).ok_or_else(missing)?;
        let names = variable(script, "names");
        let line = |name: &str| {
            let text = base64::engine::general_purpose::STANDARD.encode(directory.files.get(name)?);
            Some(format!("{name} {text}\n"))
        };
        Ok(names.split(' ').filter_map(line).collect())
    }

    /// `job/end.sh`
    pub(super) fn end_job(&mut self, script: &str) {
        let job = variable(script, "id");
        let rest = self.facts.lines().filter(|line| !line.contains(&job)).map(|line| format!("{line}\n"));
        self.facts = rest.collect();
        self.jobs = self.jobs.replace(&format!("./{job}/env.json:\n"), "");
        let at = self.clock();
        if let Some(directory) = self.directories.get_mut(&job) {
            directory.end_ranks(at);
            directory.files.retain(|name, _| !(name.starts_with("env.") && name.ends_with(".json")));
        }
    }

    /// `job/result.sh`
    pub(super) fn job_result(&mut self, script: &str) -> String {
        let (job, result) = (variable(script, "id"), variable(script, "result"));
        if let Some(directory) = self.directories.get_mut(&job) {
            if result.is_empty() {
                return directory.files.get("result.json").cloned().unwrap_or_default();
            }
            return directory.files.entry("result.json".into()).or_insert(result).clone();
        }
        let path = format!("./{job}/result.json:");
        if !self.jobs.contains(&path) {
            if result.is_empty() {
                return String::new();
            }
            self.jobs.push_str(&format!("{path}{result}\n"));
        }
        let (_, result) = self.jobs.split_once(&path).expect("a result");
        result.lines().next().unwrap_or_default().to_owned()
    }

    /// The log or the samples of a job from a byte on.
    fn log_from(&self, job: &str, file: &str, offset: usize) -> String {
        let text = self.directories.get(job).and_then(|directory| match file {
            "log" => Some(&directory.log),
            _ => directory.files.get(file),
        });
        text.and_then(|text| text.get(offset..)).unwrap_or_default().to_owned()
    }

    /// `job/read.sh`
    pub(super) fn read_log(&self, script: &str) -> String {
        let offset = variable(script, "offset").parse().expect("a number");
        let text = self.log_from(&variable(script, "id"), &variable(script, "file"), offset);
        let is_output = |line: &&str| line.split(' ').nth(2).is_some_and(|kind| kind == "o" || kind == "e");
        match variable(script, "quiet").as_str() {
            "" => text,
            _ => text.split_inclusive('\n').filter(|line| !is_output(line)).collect(),
        }
    }

    /// `job/piece.sh`
    pub(super) fn piece_of_log(&self, script: &str) -> String {
        let length: usize = variable(script, "length").parse().expect("a number");
        let offset = variable(script, "offset").parse().expect("a number");
        let text = self.log_from(&variable(script, "id"), &variable(script, "file"), offset);
        text.chars().take(length).collect()
    }

    /// `job/size.sh`: NULs are a hole.
    pub(super) fn log_size(&self, script: &str) -> String {
        let log = self.log_from(&variable(script, "id"), &variable(script, "file"), 0);
        let allocated = log.bytes().filter(|byte| *byte != 0).count();
        format!("{} {} 512 {}\n", log.len(), allocated.div_ceil(512), self.clock())
    }
}

impl super::Node {
    /// `job/follow.sh`: writes a log as it grows until its standard input ends.
    pub(super) async fn follow_log(&self, script: &str, mut own: Own) -> i32 {
        let (job, file) = (variable(script, "id"), variable(script, "file"));
        let mut offset = variable(script, "offset").parse().expect("a number");
        let pulse = Duration::from_secs(variable(script, "pulse").parse().expect("seconds"));
        own.say(&format!("{:.9}\n", self.edit(|state| state.clock()))).await;
        let (mut beat, mut input) = (Instant::now(), [0; 64]);
        let lost = self.edit(|state| state.lost_followers);
        while self.is_connected() && self.edit(|state| state.lost_followers) == lost {
            let more = self.edit(|state| state.log_from(&job, &file, offset));
            if own.stdout.write_all(more.as_bytes()).await.is_err() {
                return 1;
            }
            offset += more.len();
            if beat.elapsed() >= pulse {
                let _ = own.stderr.write_all(b".").await;
                beat = Instant::now();
            }
            tokio::select! {
                read = own.stdin.read(&mut input) => if !matches!(read, Ok(1..)) { return 0 },
                () = sleep(GLANCE) => {}
            }
        }
        255
    }

    /// `upload/compare.sh`: the node has all files of the project, or none that is of use.
    pub(super) async fn compare_project(&self, name: &str, tree: &str, mut own: Own) -> i32 {
        if let Some(words) = self.arrives("upload/compare.sh").await {
            return own.fail(&words).await;
        }
        let (had, inodes) = self.edit(|state| {
            let had = state.projects.get(name).cloned();
            state.projects.entry(name.to_owned()).or_default();
            (had, format!("inodes {}\0", state.inodes))
        });
        self.ends("upload/compare.sh").await;
        match had {
            None => own.say(&format!("new\0{inodes}")).await,
            Some(had) if had == tree => own.say("same\0").await,
            Some(_) => own.say(&inodes).await,
        }
        0
    }

    /// `upload/apply.sh`: takes what is sent, and proves it.
    pub(super) async fn apply_project(&self, name: &str, tree: &str, mut own: Own) -> i32 {
        if let Some(words) = self.arrives("upload/apply.sh").await {
            return own.fail(&words).await;
        }
        let _ = own.stdin.read_to_end(&mut Vec::new()).await;
        self.edit(|state| state.projects.insert(name.to_owned(), tree.to_owned()));
        self.ends("upload/apply.sh").await;
        own.say(&format!("{tree}  -\n")).await;
        0
    }
}

/// Seconds since the epoch by hvdctl's own clock, which no test can pause.
pub(super) fn clock() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
