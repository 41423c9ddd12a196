//! The directories of jobs: lent to the worker that jobs share, taken back, and with what a job may have put there.

use super::{FACTS, Machine};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

const START: &[&str] = &["job/directory.sh", "job/lend.sh", "job/start.sh"];
const LIST: &[&str] = &["job/directory.sh", "job/lend.sh", "job/list.sh"];
const END: &[&str] = &["node/marked.sh", "node/killed.sh", "job/directory.sh", "job/lend.sh", "job/end.sh"];

/// The record of a job, which is its own alone.
fn record(id: &str) -> String {
    format!("{{\"id\":\"{id}\",\"cluster\":\"lab\"}}\n")
}

/// The variables of `job/start.sh`. `shared`: 1 where ranks run in the worker that jobs share, else empty.
fn job(id: &str, shared: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in [("job.json", record(id)), ("env.json", "{}".into()), ("log", "line\n".into())] {
        fs::write(dir.path().join(name), text).unwrap();
    }
    let script = "tar -cf - -C \"$1\" job.json env.json log | base64 -w 0";
    let packed = Command::new("sh").args(["-c", script, "sh"]).arg(dir.path()).output().unwrap();
    let files = String::from_utf8(packed.stdout).unwrap();
    format!("id={id} shared={shared} own='\"id\":\"{id}\"' files={files}")
}

impl Machine {
    fn start(&self, id: &str) {
        self.prints(START, &job(id, "1"));
    }

    fn ends(&self, id: &str) {
        self.prints(END, &format!("id={id} grace=0"));
    }

    /// Returns the place of a job's directory: `lent`, `back` or `gone`.
    fn place(&self, id: &str) -> &'static str {
        let (own, lent) = (self.path("jobs").join(id), self.path("jobs/.worker@lab").join(id));
        match fs::read_link(&own) {
            Ok(target) => {
                assert_eq!(target, Path::new(".worker@lab").join(id), "a path that holds in containers");
                assert!(!lent.is_symlink() && lent.is_dir(), "{id}");
                "lent"
            }
            Err(_) if own.is_dir() => "back",
            Err(_) => "gone",
        }
    }
}

/// A machine on which the shared worker has the directory of job j1, and a file that is no job's.
fn lent() -> Machine {
    let machine = Machine::new(&[("secret", "SECRET\n"), ("outside/env.json", "theirs"), ("ssh/x", "")]);
    machine.start("j1");
    machine
}

#[test]
fn the_shared_worker_has_the_directory_of_its_job_until_that_ends() {
    let machine = lent();
    assert_eq!(machine.place("j1"), "lent");
    let mode = |path: &str| fs::metadata(machine.path(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("jobs/.worker@lab"), mode("jobs/.worker@lab/j1")), (0o700, 0o700));
    // what Docker has created for a container is closed
    fs::set_permissions(machine.path("jobs/.worker@lab"), PermissionsExt::from_mode(0o755)).unwrap();
    // the answer to the first time was lost
    machine.start("j1");
    assert_eq!((machine.place("j1"), mode("jobs/.worker@lab")), ("lent", 0o700));
    assert_eq!(fs::read_to_string(machine.path("jobs/j1/job.json")).unwrap(), record("j1"));
    // another one has the id
    assert_eq!(machine.run(START, &job("j1", "1").replace("\"id\":\"j1\"", "no")).status.code(), Some(17));
    machine.ends("j1");
    assert_eq!(machine.place("j1"), "back");
    assert!(!machine.path("jobs/j1/env.json").exists() && machine.path("jobs/j1/log").exists());
    machine.ends("j1");
    assert_eq!(machine.place("j1"), "back");
    // a node that could not be added to the job is added again
    machine.start("j1");
    assert_eq!(machine.place("j1"), "lent");
    assert_eq!(machine.run(START, &job("j1", "1").replace("\"id\":\"j1\"", "no")).status.code(), Some(17));
    // one that was left alone, even if no hvdctl has noticed its end
    machine.start("j2");
    assert_eq!((machine.place("j1"), machine.place("j2")), ("back", "lent"));
    // an answer that was lost, where a process of the job has put something next to its directory
    fs::create_dir(machine.path("jobs/.worker@lab/x")).unwrap();
    machine.start("j2");
    assert_eq!((machine.place("j2"), machine.place("x")), ("lent", "gone"));
    assert!(!machine.path("jobs/.worker@lab/x").exists());
    // a job on the launcher's node, or in a worker of its own
    machine.prints(START, &job("j3", ""));
    assert_eq!((machine.place("j2"), machine.place("j3")), ("lent", "back"));
    machine.prints(&["node/close.sh", "node/permissions.sh", "job/prune.sh"], "ids='j1\nj2\n'");
    assert_eq!((machine.place("j1"), machine.place("j2"), machine.place("j3")), ("gone", "gone", "back"));
    assert!(fs::read_dir(machine.path("jobs/.worker@lab")).unwrap().next().is_none());
}

#[test]
fn a_directory_is_lent_and_taken_back_whenever_a_script_was_interrupted() {
    for (tool, arguments) in [("mv", "*j1*"), ("ln", "*j2*"), ("mkdir", "*j2*"), ("rm", "*j1*"), ("tar", "*")] {
        let machine = lent();
        machine.break_tool(tool, arguments, "interrupted");
        machine.fails(START, &job("j2", "1"));
        machine.fails(START, &job("j2", "1"));
        machine.repair();
        machine.start("j3");
        assert_eq!((machine.place("j1"), machine.place("j3")), ("back", "lent"), "{tool}");
        assert!(machine.path("jobs/j1/log").exists(), "{tool}");
        let worker = fs::read_dir(machine.path("jobs/.worker@lab")).unwrap().count();
        assert_eq!(worker, 1, "{tool}");
    }
    for tool in ["mv", "rm"] {
        let machine = lent();
        machine.break_tool(tool, "*.worker@lab/j1*|*/jobs/j1*|*/jobs/.back@j1*", "interrupted");
        machine.fails(END, "id=j1 grace=0");
        machine.repair();
        machine.ends("j1");
        assert_eq!(machine.place("j1"), "back", "{tool}");
    }
}

#[test]
fn jobs_that_are_lent_are_listed_like_the_others() {
    let machine = lent();
    fs::write(machine.path("jobs/j1/states"), "1.0 0 s \n").unwrap();
    let lists = |machine: &Machine| {
        let mut lines: Vec<String> = machine.prints(LIST, "").lines().skip(1).map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let before = lists(&machine);
    let record = format!("./j1/job.json:{}", record("j1").trim());
    assert_eq!(before, ["./j1/env.json:", record.as_str(), "./j1/states:1.0 0 s "]);
    let open = |machine: &Machine| machine.prints(FACTS, "").contains("open j1 {");
    assert!(open(&machine));
    let read = || machine.prints(&["job/directory.sh", "job/read.sh"], "id=j1 file=log offset=0 quiet=");
    assert_eq!(read(), "line\n");
    fs::write(machine.path("jobs/j1/log"), "1.0 0 s \n1.1 0 o a line\n1.2 10 e an error\n1.3 0 x 0\n").unwrap();
    let quiet = || machine.prints(&["job/directory.sh", "job/read.sh"], "id=j1 file=log offset=0 quiet=1");
    assert_eq!(quiet(), "1.0 0 s \n1.3 0 x 0\n", "without the output of ranks");
    fs::write(machine.path("jobs/j1/log"), "1.1 0 o a line\n").unwrap();
    assert_eq!(quiet(), "");
    fs::write(machine.path("jobs/j1/log"), "line\n").unwrap();
    let piece =
        |variables| machine.prints(&["job/directory.sh", "job/piece.sh"], &format!("id=j1 file=log {variables}"));
    assert_eq!(["offset=1 length=2", "offset=3 length=9", "offset=5 length=1"].map(piece), ["in", "e\n", ""]);
    machine.ends("j1");
    assert_eq!(lists(&machine), &before[1..]);
    assert!(!open(&machine));
    assert_eq!(read(), "line\n");
}

#[test]
fn what_the_worker_has_put_next_to_the_directory_is_no_job() {
    let machine = lent();
    let worker = machine.path("jobs/.worker@lab");
    machine.prints(START, &job("other", ""));
    let outside = machine.path("outside");
    symlink(&outside, worker.join("link")).unwrap();
    for name in ["other", "a b", ".hidden"] {
        fs::create_dir(worker.join(name)).unwrap();
        fs::write(worker.join(name).join("job.json"), record("fake")).unwrap();
    }
    fs::write(worker.join("job.json"), record("fake")).unwrap();
    assert!(!machine.prints(LIST, "").contains("fake"));
    assert!(!machine.prints(FACTS, "").contains("fake"));
    machine.start("j2");
    assert_eq!((machine.place("j1"), machine.place("j2")), ("back", "lent"));
    assert_eq!(fs::read_to_string(machine.path("jobs/other/job.json")).unwrap(), record("other"));
    for name in ["link", "a b", ".hidden"] {
        assert!(!machine.path("jobs").join(name).exists(), "{name}");
    }
    // the directory itself is now a link to another one
    fs::rename(worker.join("j2"), worker.join("moved")).unwrap();
    symlink(&outside, worker.join("j2")).unwrap();
    fs::write(outside.join("job.json"), record("j2")).unwrap();
    fs::write(outside.join("log"), "SECRET\n").unwrap();
    assert!(!machine.prints(LIST, "").contains("j2"));
    assert!(!machine.prints(FACTS, "").contains("open j2"));
    assert!(machine.fails(END, "id=j2 grace=0").contains("which is not a job's directory"));
    assert_eq!(fs::read_to_string(outside.join("env.json")).unwrap(), "theirs");
    assert_eq!(machine.prints(&["job/directory.sh", "job/read.sh"], "id=j2 file=log offset=0 quiet="), "");
    assert_eq!(
        machine.prints(&["job/directory.sh", "job/size.sh"], "id=j2 file=log").rsplit_once(' ').unwrap().0,
        "0 0 1"
    );
    machine.fails(&["job/directory.sh", "job/result.sh"], "id=j2 result='{}'");
    machine.fails(&["job/directory.sh", "job/join.sh"], "id=j2 joining='[]' record='{}'");
    machine.prints(&["job/directory.sh", "node/drain.sh"], "mark=by-ana");
    assert!(machine.run(START, &job("j2", "1")).status.code() == Some(17));
    let mut left: Vec<_> = fs::read_dir(&outside).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["env.json", "job.json", "log"]);
    machine.prints(&["node/close.sh", "node/permissions.sh", "job/prune.sh"], "ids='j2\n'");
    assert!(outside.join("env.json").exists() && !machine.path("jobs/j2").is_symlink());
}

#[test]
fn a_log_that_was_cut_off_is_not_followed_from_its_beginning() {
    let machine = lent();
    let follow = |offset: usize| {
        let output =
            machine.run(&["job/directory.sh", "job/follow.sh"], &format!("id=j1 file=log offset={offset} pulse=1"));
        String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap()
    };
    // its standard input has ended
    assert!(!follow("line\n".len()).contains("line"));
    assert_eq!(follow("line\n".len() + 1), "the log of the job is shorter than it was\n");
}

#[test]
fn links_in_the_directory_of_a_job_are_neither_read_nor_written_through() {
    let machine = lent();
    let (directory, secret) = (machine.path("jobs/j1"), machine.path("secret"));
    let plant = |name: &str| {
        let _ = fs::remove_file(directory.join(name));
        symlink(&secret, directory.join(name)).unwrap();
    };
    ["log", "result.json", "result.json.new", "idle.0", "drained.new", "joining.json.new"].into_iter().for_each(plant);
    fs::remove_file(directory.join("result.json")).unwrap();
    let of_job = |script: &'static str, variables: &str| {
        let output = machine.run(&["job/directory.sh", script], &format!("id=j1 {variables}"));
        String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap()
    };
    assert_eq!(of_job("job/read.sh", "file=log offset=0 quiet="), "");
    assert_eq!(of_job("job/piece.sh", "file=log offset=0 length=9"), "");
    assert_eq!(of_job("job/size.sh", "file=log").rsplit_once(' ').unwrap().0, "0 0 1");
    assert_eq!(of_job("job/follow.sh", "file=log offset=0 pulse=1"), "the job has no log here\n");
    assert_eq!(of_job("job/result.sh", "result='{}'"), "{}\n");
    plant("result.json");
    assert_eq!(of_job("job/result.sh", "result='{\"b\":1}'"), "{\"b\":1}\n");
    assert!(!machine.prints(FACTS, "").contains("SECRET"));
    machine.prints(&["job/directory.sh", "node/drain.sh"], "mark=by-ana");
    assert!(directory.join("drained").is_file());
    machine.prints(&["job/directory.sh", "node/drain.sh"], "mark=");
    assert!(!directory.join("drained").exists());
    plant("job.json");
    plant("env.json");
    assert!(!machine.prints(FACTS, "").contains("SECRET"));
    assert!(!machine.prints(LIST, "").contains("SECRET"));
    assert_eq!(of_job("job/files.sh", "names='job.json env.json' origin=/nowhere"), "");
    machine.ends("j1");
    assert_eq!(machine.place("j1"), "back");
    assert_eq!(fs::read_to_string(secret).unwrap(), "SECRET\n");
}

#[test]
fn the_jobs_of_a_drained_node_learn_of_it() {
    let machine = lent();
    let drain = |mark: &str| machine.prints(&["job/directory.sh", "node/drain.sh"], &format!("mark={mark}"));
    machine.prints(START, &job("own", ""));
    fs::create_dir_all(machine.path("jobs/theirs")).unwrap();
    fs::write(machine.path("jobs/theirs/env.json"), "{}").unwrap();
    fs::write(machine.path("jobs/theirs/job.json"), "{\"cluster\":\"lab2\"}").unwrap();
    let told =
        |ids: &[&str]| ids.iter().map(|id| machine.path("jobs").join(id).join("drained").exists()).collect::<Vec<_>>();
    drain("by-ana");
    assert_eq!(fs::read_to_string(machine.path("jobs/.drained@lab")).unwrap(), "by-ana\n");
    assert_eq!(told(&["j1", "own", "theirs"]), [true, true, false]);
    // it was observed before
    machine.prints(START, &job("late", ""));
    assert_eq!(told(&["late"]), [true]);
    drain("");
    assert_eq!(told(&["j1", "own", "late"]), [false, false, false]);
    assert!(!machine.path("jobs/.drained@lab").exists());
    // a job that cannot be told keeps the node from being drained
    machine.break_tool("mv", "*drained.new*", "No space left on device");
    assert!(machine.fails(&["job/directory.sh", "node/drain.sh"], "mark=by-ana").contains("No space left"));
    assert!(!machine.path("jobs/.drained@lab").exists());
}

const STACK: &[&str] = &["job/directory.sh", "job/stack.sh"];

/// The variables of `job/stack.sh` for a wait of one second.
const ASKED: &str = "id=j1 number=a1 limit=10 request='{\"number\": \"a1\"}'";

#[test]
fn the_ranks_that_run_are_asked_where_they_are() {
    let machine = lent();
    let own = machine.path("jobs/.worker@lab/j1");
    assert!(machine.prints(STACK, ASKED).ends_with("\nold\n"), "of an earlier build");
    fs::write(own.join("stacks.py"), "").unwrap();
    let machine_only = machine.prints(STACK, ASKED);
    assert!(machine_only.starts_with("machine ") && machine_only.lines().count() == 1, "{machine_only}");
    // rank 1 has ended, rank 2 was started again, and ranks 3 and 10 do not answer
    let states = "1.0 0 s \n1.0 1 s \n1.0 2 s \n1.0 10 s \n1.0 3 s \n1.1 1 x 0\n1.2 2 x 1\n1.3 2 s \n1.4 x s\n1.5\n";
    fs::write(own.join("states"), states).unwrap();
    fs::write(own.join("stack.0"), "{\"number\": \"earlier\"}").unwrap();
    fs::write(own.join("py-spy"), "").unwrap();
    symlink(machine.path("secret"), own.join("stack.3")).unwrap();
    let asked = own.join("stack.wanted");
    let answers = std::thread::spawn({
        let own = own.clone();
        move || {
            while fs::read_to_string(own.join("stack.wanted")).unwrap_or_default() != "{\"number\": \"a1\"}" {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            for rank in [0, 2] {
                let (new, answer) = (own.join("new"), own.join(format!("stack.{rank}")));
                fs::write(&new, format!("{{\"number\": \"a1\", \"rank\": {rank}}}")).unwrap();
                fs::rename(new, answer).unwrap();
            }
        }
    });
    let printed = machine.prints(STACK, ASKED);
    answers.join().unwrap();
    let mut lines: Vec<&str> = printed.lines().skip(1).collect();
    lines[1..3].sort_unstable();
    let stack = |rank: u32| format!("stack {{\"number\": \"a1\", \"rank\": {rank}}}");
    let empty = "py-spy e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    assert_eq!(lines, [empty, &stack(0), &stack(2), "silent 10", "silent 3"]);
    assert!(!asked.exists() && !own.join("stack.0").exists());
}

#[test]
fn a_program_that_was_sent_is_there_for_later_jobs_and_goes_with_the_cluster() {
    let machine = lent();
    machine.prints(&["node/close.sh", "node/permissions.sh", "job/directory.sh", "job/tool.sh"], "id=j1");
    let (kept, own) = (machine.path("jobs/.py-spy@lab"), machine.path("jobs/j1/py-spy"));
    assert!(kept.is_file() && own.is_file());
    fs::write(&kept, "program").unwrap();
    machine.start("j2");
    assert_eq!(fs::read_to_string(machine.path("jobs/j2/py-spy")).unwrap(), "program");
    let mode = kept.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
}
