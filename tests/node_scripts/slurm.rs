//! Jobs that are submitted to Slurm, with stand-ins for its programs that answer from files.

use super::*;
use hvdctl::launch::programs::REMOTE_SHELL_OF_SLURM;
use hvdctl::text::quote::always;

const LIST: &[&str] = of_processes!["slurm/common.sh", "slurm/list.sh"];
const CHECK: &[&str] = of_processes!["slurm/common.sh", "slurm/check.sh"];
const SUBMIT: &[&str] = of_processes!["slurm/common.sh", "slurm/submit.sh"];
const CANCEL: &[&str] = of_processes!["slurm/common.sh", "slurm/cancel.sh"];
const END: &[&str] = of_processes!["slurm/common.sh", "slurm/end.sh"];
const BEGUN: &[&str] = of_processes!["job/directory.sh", "slurm/begun.sh"];
const WAIT: &[&str] = of_processes!["slurm/common.sh", "slurm/wait.sh"];

/// A login node where one process was created, and programs of Slurm that note how they were called.
fn login() -> Machine {
    let machine = Machine::new(&[]);
    let at = |file: &str| always(machine.path(file).to_str().unwrap());
    machine.stub(
        "squeue",
        &format!(
            "[ ! -e {0}.down ] || {{ echo Unable to contact slurm controller >&2; exit 1; }}; cat {0} 2>/dev/null; :",
            at("queue")
        ),
    );
    machine.stub(
        "sbatch",
        &format!(
            "case $1 in --version) echo slurm 22.05.8; exit ;; esac; printf '%s|' \"$@\" >>{}; echo '7;uni'",
            at("sbatch")
        ),
    );
    machine.stub("scancel", &format!("echo \"$@\" >>{0}; : >{1}", at("scancel"), at("queue")));
    machine.stub("scontrol", &format!("cat {}", at("shown")));
    machine.stub("srun", ":");
    machine.stub("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1");
    fs::create_dir_all(machine.path("run/h-1")).unwrap();
    fs::write(machine.path("run/h-1/id"), "h-1@a\n").unwrap();
    fs::write(machine.path("run/h-1/labels"), "{\"x\":\"y\"}\n").unwrap();
    machine
}

fn variables(machine: &Machine) -> String {
    format!(
        "run_dir='{}' which=h-1@a name=big remove=1 limit=5 shared_gpus=it instead=leave\noptions=\"set -- --ntasks=2 '--comment=a b'\"",
        machine.path("run").display()
    )
}

/// Returns the listed fields of the process, except for its time.
fn listed(machine: &Machine) -> String {
    let listed = machine.prints(LIST, &variables(machine));
    let words: Vec<&str> = listed.trim().split(' ').collect();
    format!("{} {} {}", words[0], words[2], words[3])
}

fn queue(machine: &Machine, line: &str) {
    fs::write(machine.path("queue"), format!("{line}\n")).unwrap();
}

#[test]
fn a_job_is_what_slurm_says_until_it_has_left_the_queue() {
    let machine = login();
    assert_eq!(listed(&machine), "h-1@a created -");
    machine.prints(SUBMIT, &variables(&machine));
    assert_eq!(fs::read_to_string(machine.path("run/h-1/job")).unwrap(), "7\n", "without the cluster of a federation");
    let called = fs::read_to_string(machine.path("sbatch")).unwrap();
    let directory = machine.path("run/h-1").display().to_string();
    assert!(called.starts_with("--parsable|--ntasks=2|--comment=a b|--job-name=big.h-1@a|"), "{called}");
    assert!(
        called.ends_with(&format!(
            "|--wrap=[ -O {directory} ] || exit; trap '' USR1 USR2 50; (umask 077; env -0 >{directory}/begun); \
             exec sh {directory}/main {directory}|"
        )),
        "{called}"
    );

    queue(&machine, "7|PENDING|(Nodes down, reserved)|1|N/A|1:00|big.h-1@a");
    assert_eq!(listed(&machine), "h-1@a queued 7|PENDING|(Nodes_down,_reserved)|1|N/A|1:00");
    // it was submitted after the queue was read
    queue(&machine, "8|RUNNING|None|1|2|1:00|big.h-1@b");
    fs::write(machine.path("shown"), "JobId=7 JobName=x JobState=RUNNING Reason=y\n").unwrap();
    assert_eq!(listed(&machine), "h-1@a running 7|RUNNING", "the other one is not its job");
    // a site has given it another name
    queue(&machine, "7|RUNNING|None|1|2|1:00|renamed");
    assert_eq!(listed(&machine), "h-1@a running 7|RUNNING|None|1|2|1:00");
    queue(&machine, "70|RUNNING|None|1|2|1:00|x");
    fs::write(machine.path("shown"), "JobId=7 JobName=x JobState=NODE_FAIL Reason=y\n").unwrap();
    assert_eq!(listed(&machine), "h-1@a exited 7|NODE_FAIL");
    // Slurm forgets it
    fs::write(machine.path("shown"), "slurm_load_jobs error: Invalid job id specified\n").unwrap();
    assert_eq!(listed(&machine), "h-1@a exited 7|NODE_FAIL");
    fs::remove_file(machine.path("run/h-1/ended")).unwrap();
    assert_eq!(listed(&machine), "h-1@a exited 7|gone");
    // that Slurm does not answer does not mean that nothing runs
    fs::write(machine.path("queue.down"), "").unwrap();
    assert_eq!(listed(&machine), "h-1@a exited 7|gone", "how a job has ended is recorded");
    fs::remove_file(machine.path("run/h-1/ended")).unwrap();
    assert_eq!(listed(&machine), "h-1@a running 7|UNKNOWN|Unable_to_contact_slurm_controller");
    fs::remove_file(machine.path("run/h-1/job")).unwrap();
    assert_eq!(listed(&machine), "h-1@a created -");
}

#[test]
fn a_job_is_listed_as_its_state_in_slurm_means() {
    let programs = concat!(env!("CARGO_MANIFEST_DIR"), "/src/scripts/programs/slurm");
    let print = "import endings\nfor state, means in endings.STATES.items(): print(state + '|' + means)";
    let done = Command::new("python3").args(["-B", "-c", print]).current_dir(programs).output().unwrap();
    let table = String::from_utf8(done.stdout).unwrap();
    assert!(table.lines().count() > 20, "{table}");
    let machine = login();
    fs::write(machine.path("run/h-1/job"), "7\n").unwrap();
    for line in table.lines().chain(["COMPLETING|goes on"]) {
        let (state, means) = line.split_once('|').unwrap();
        queue(&machine, &format!("7|{state}|None|1|2|1:00|big.h-1@a"));
        let is = match (means, state) {
            ("in the queue", _) | (_, "CONFIGURING") => "queued",
            ("goes on", _) => "running",
            _ => "exited",
        };
        let found = listed(&machine);
        assert!(found.starts_with(&format!("h-1@a {is} 7|{state}")), "{line}: {found}");
        let _ = fs::remove_file(machine.path("run/h-1/ended"));
    }
}

#[test]
fn a_waiting_job_leaves_the_queue_and_a_running_one_is_asked_to_end() {
    let machine = login();
    let cancelled = || fs::read_to_string(machine.path("scancel")).unwrap_or_default();
    machine.prints(CANCEL, &variables(&machine));
    assert_eq!(cancelled(), "", "it is not there");
    queue(&machine, "7|PENDING|Resources|1|N/A|1:00|big.h-1@a");
    machine.prints(CANCEL, &variables(&machine));
    queue(&machine, "7|RUNNING|None|1|2|1:00|big.h-1@a");
    machine.prints(CANCEL, &variables(&machine));
    assert_eq!(cancelled(), "7\n--batch --signal=TERM 7\n");
    queue(&machine, "7|RUNNING|None|1|2|1:00|big.h-1@a");
    machine.prints(END, &variables(&machine));
    assert_eq!(cancelled(), "7\n--batch --signal=TERM 7\n7\n");
    assert!(!machine.path("run/h-1").exists());
}

#[test]
fn a_job_has_ended_when_it_says_so_or_has_left_the_queue() {
    let machine = login();
    fs::write(machine.path("run/h-1/job"), "7\n").unwrap();
    fs::write(machine.path("shown"), "slurm_load_jobs error: Invalid job id specified\n").unwrap();
    assert_eq!(machine.prints(WAIT, &variables(&machine)), "ended\n");
    queue(&machine, "7|RUNNING|None|1|2|1:00|big.h-1@a");
    fs::write(machine.path("run/h-1/done"), "").unwrap();
    assert_eq!(machine.prints(WAIT, &variables(&machine)), "ended\n");
    machine.prints(END, &variables(&machine));
    assert!(!machine.path("scancel").exists(), "it leaves the queue by itself");
}

#[test]
fn a_job_that_goes_on_is_looked_for_less_and_less_often() {
    let machine = login();
    fs::write(machine.path("run/h-1/job"), "7\n").unwrap();
    queue(&machine, "7|RUNNING|None|1|2|1:00|big.h-1@a");
    let at = |file: &str| always(machine.path(file).to_str().unwrap());
    // the job ends at the look with this number
    let sleeps = |takes: &str, last: u32| {
        let ends = format!("[ \"$(wc -l <{})\" -lt {last} ] || : >{}", at("slept"), at("run/h-1/done"));
        machine.stub("sleep", &format!("echo \"$1\" >>{}; {ends}; {takes}", at("slept")));
        let said = machine.prints(WAIT, &variables(&machine));
        let slept = fs::read_to_string(machine.path("slept")).unwrap();
        fs::remove_file(machine.path("slept")).unwrap();
        fs::remove_file(machine.path("run/h-1/done")).unwrap();
        let slept: Vec<String> = slept.lines().map(str::to_owned).collect();
        (said.matches("running").count(), slept)
    };
    let (asked, slept) = sleeps(":", 75);
    let counts = ["0.1", "0.2", "0.3", "0.4", "0.5"].map(|one| slept.iter().filter(|pause| *pause == one).count());
    assert_eq!((counts, asked), ([30, 15, 10, 8, 12], 6), "Slurm is asked every 3 s");
    assert!(slept.is_sorted(), "{slept:?}");
    // busybox may have a sleep that takes whole seconds only
    let (asked, slept) = sleeps("case $1 in *.*) exit 1 ;; esac", 12);
    assert_eq!((asked, slept.iter().filter(|pause| *pause == "1").count()), (2, 6), "{slept:?}");
}

#[test]
fn a_job_begins_when_its_record_has_its_nodes_or_it_has_ended() {
    const WAITS: &str = r#"{"id":"1","slurm":{"is_placed":false}}"#;
    const PLACED: &str = r#"{"id": "1", "slurm": {"is_placed": true}}"#;
    let run_dir = |machine: &Machine| format!("run_dir='{}'", machine.path("run").display());
    for (at, to) in [("job.json", PLACED), ("result.json", "{}")] {
        let machine = Machine::new(&[("jobs/1/job.json", WAITS)]);
        let file = machine.path("jobs/1").join(at);
        // the file changes while it is looked for: that the script sleeps is the sign
        machine.stub("sleep", &format!("echo slept; printf %s '{to}' >{}", always(file.to_str().unwrap())));
        let looks = |looks: u32| machine.prints(BEGUN, &format!("{} job=1 looks={looks} pause=0.1", run_dir(&machine)));
        assert_eq!(looks(99), "slept\n", "{at}");
    }
    let machine = Machine::new(&[("jobs/1/job.json", WAITS)]);
    machine.stub("sleep", "echo slept");
    let sleeps = |machine: &Machine, looks: u32| {
        machine.prints(BEGUN, &format!("{} job=1 looks={looks} pause=0.1", run_dir(machine))).matches("slept").count()
    };
    assert_eq!(sleeps(&machine, 3), 3, "it has not begun");
    // busybox may have a sleep that takes whole seconds only
    machine.stub("sleep", "case $1 in *.*) exit 1 ;; esac; echo slept");
    assert_eq!(sleeps(&machine, 9), 1);
    // a link in its place is not the record
    let machine = Machine::new(&[("jobs/1/log", ""), ("placed", PLACED)]);
    symlink(machine.path("placed"), machine.path("jobs/1/job.json")).unwrap();
    machine.stub("sleep", "echo slept");
    assert_eq!(sleeps(&machine, 3), 3);
    // nor is there anything to look at in a directory that is gone
    fs::remove_dir_all(machine.path("jobs/1")).unwrap();
    assert_eq!(sleeps(&machine, 3), 1);
}

const COMMANDS: [&str; 6] = ["squeue", "sbatch", "scancel", "scontrol", "srun", "sacct"];

/// A login node whose start-up file of login shells notes that it was read, and has the directory `opt` in PATH. This
/// machine's own Slurm is not found there. Returns the variables of scripts.
fn login_with_profile() -> (Machine, String) {
    let machine = login();
    for place in ["opt", "home", "bin"] {
        fs::create_dir_all(machine.path(place)).unwrap();
    }
    for tool in fs::read_dir("/usr/bin").unwrap().chain(fs::read_dir("/bin").unwrap()).map(Result::unwrap) {
        if !COMMANDS.iter().any(|command| tool.file_name() == *command) {
            let _ = symlink(tool.path(), machine.path("bin").join(tool.file_name()));
        }
    }
    let place = |name: &str| machine.path(name).display().to_string();
    let (runs, opt, bin, home) = (place("profile.runs"), place("opt"), place("bin"), place("home"));
    let profile =
        format!("echo Welcome; echo run >>{runs}; export PATH={opt}:{bin} SLURM_CONF='/etc/a b.conf'; cat /nowhere\n");
    fs::write(machine.path("home/.bash_profile"), profile).unwrap();
    let variables =
        format!("PATH='{}:{bin}' HOME='{home}' SHELL=bash\nunset SLURM_CONF\n{}", place("tools"), variables(&machine));
    (machine, variables)
}

fn move_commands(machine: &Machine, from: &str, to: &str) {
    for command in COMMANDS {
        fs::rename(machine.path(from).join(command), machine.path(to).join(command)).unwrap();
    }
}

#[test]
fn commands_are_found_as_a_login_shell_finds_them() {
    let (machine, variables) = login_with_profile();
    let runs = || fs::read_to_string(machine.path("profile.runs")).unwrap_or_default().lines().count();
    machine.prints(CHECK, &variables);
    assert_eq!(runs(), 0, "they are in PATH already");
    move_commands(&machine, "tools", "opt");
    assert_eq!(machine.prints(SUBMIT, &variables), "7\n");
    assert_eq!(runs(), 1);
    // the next scripts know it
    queue(&machine, "7|RUNNING|None|1|2|1:00|big.h-1@a");
    machine.prints(CHECK, &variables);
    assert!(machine.prints(LIST, &variables).contains(" running 7|RUNNING"));
    assert_eq!(runs(), 1);
    let kept = fs::read_to_string(machine.path("slurm.environment")).unwrap();
    assert!(kept.contains("SLURM_CONF=/etc/a b.conf\n"), "{kept}");
    // they are nowhere
    fs::rename(machine.path("opt"), machine.path("gone")).unwrap();
    let complaint = machine.fails(CHECK, &variables);
    assert!(complaint.starts_with("sbatch: not found, neither in PATH ("), "{complaint}");
    assert!(complaint.contains("nor in that of a login shell (bash)"), "{complaint}");
}

#[test]
fn what_slurm_refuses_is_known_before_anything_is_sent() {
    let machine = login();
    machine.prints(CHECK, &variables(&machine));
    let called = fs::read_to_string(machine.path("sbatch")).unwrap();
    assert_eq!(called, "--test-only|--ntasks=2|--comment=a b|--wrap=true|");
    machine.stub("sbatch", "case $1 in --version) echo slurm-wlm 19.05.5; exit ;; esac");
    assert!(
        machine.fails(CHECK, &variables(&machine)).contains("20.11 or later is needed, but this is slurm-wlm 19.05.5")
    );
    machine
        .stub("sbatch", "case $1 in --version) echo slurm 24.11.1; exit ;; esac; echo 'invalid partition' >&2; exit 1");
    assert_eq!(machine.fails(CHECK, &variables(&machine)), "invalid partition\n");
}

/// Lets the next commands run within an allocation, where `srun` starts a step with this program as its main process.
fn within_an_allocation(machine: &Machine, main: &str) -> String {
    fs::write(machine.path("run/h-1/main"), format!("{main}\n")).unwrap();
    machine.stub("scontrol", "echo n1");
    // the last five arguments are the command
    machine.stub("srun", "while [ $# -gt 5 ]; do shift; done; SLURM_JOB_ID=7 SLURM_STEP_ID=3 \"$@\"");
    let environment = "SLURM_JOB_ID=7 SLURM_JOB_NODELIST=n1 SLURM_TASKS_PER_NODE=2";
    format!("{}\n{environment}; export SLURM_JOB_ID SLURM_JOB_NODELIST SLURM_TASKS_PER_NODE", variables(machine))
}

#[test]
fn a_step_that_has_ended_before_slurm_lists_it_was_started() {
    for main in ["true", "echo 'no such module'; exit 1"] {
        let machine = login();
        machine.prints(SUBMIT, &within_an_allocation(&machine, main));
        assert_eq!(fs::read_to_string(machine.path("run/h-1/job")).unwrap(), "7.3\n");
        // what it has not recorded has failed, and the reason is in its output
        assert_eq!(listed(&machine), "h-1@a exited 7.3|FAILED");
    }
    // it was started after the queue was read
    let machine = login();
    machine.prints(SUBMIT, &within_an_allocation(&machine, "true"));
    machine.stub("squeue", "case $* in *--steps=7.3*) echo '|7.3|' ;; esac");
    assert_eq!(listed(&machine), "h-1@a running 7.3|RUNNING");
    machine.stub(
        "squeue",
        "case $* in *--steps=7.3*) echo 'slurm_load_jobs error: Unable to contact' >&2; exit 1 ;; esac",
    );
    assert_eq!(listed(&machine), "h-1@a running 7.3|UNKNOWN");
}

#[test]
fn a_step_that_is_not_started_has_the_reason_of_slurm() {
    let machine = login();
    let variables = within_an_allocation(&machine, "true");
    machine.stub("srun", "echo 'srun: error: Unable to create step' >&2; exit 1");
    assert_eq!(machine.fails(SUBMIT, &variables), "srun: error: Unable to create step\n");
    machine.stub("srun", "echo 'srun: Job 7 step creation temporarily disabled' >&2; exec sleep 30");
    let complaint = machine.fails(SUBMIT, &variables);
    assert!(
        complaint.starts_with("Slurm has not started the step of the job on n1 within 5 s: srun: Job 7"),
        "{complaint}"
    );
}

#[test]
fn a_reason_that_comes_late_is_not_lost() {
    let machine = login();
    fs::write(machine.path("run/h-1/job"), "7\n").unwrap();
    fs::write(machine.path("shown"), "slurm_load_jobs error: Invalid job id specified\n").unwrap();
    // accounting does not answer, or has not heard of its end
    for late in ["echo 'sacct: error: slurmdbd: Connection refused' >&2; exit 1", "echo RUNNING", "echo", ":"] {
        machine.stub("sacct", late);
        assert_eq!(listed(&machine), "h-1@a exited 7|gone");
        assert!(!machine.path("run/h-1/ended").exists(), "{late}");
    }
    machine.stub("sacct", "echo 'CANCELLED by 1000'");
    assert_eq!(listed(&machine), "h-1@a exited 7|CANCELLED");
    machine.stub("sacct", "echo TIMEOUT");
    assert_eq!(listed(&machine), "h-1@a exited 7|CANCELLED", "it is not asked again");
    // there is none, the job has said it, or an hour has passed
    let forget = || fs::remove_file(machine.path("run/h-1/ended")).unwrap();
    forget();
    machine.stub("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1");
    assert_eq!(listed(&machine), "h-1@a exited 7|gone");
    forget();
    machine.stub("sacct", "echo RUNNING");
    fs::write(machine.path("run/h-1/done"), "").unwrap();
    assert_eq!(listed(&machine), "h-1@a exited 7|gone");
    forget();
    fs::remove_file(machine.path("run/h-1/done")).unwrap();
    let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(4000);
    fs::File::open(machine.path("run/h-1/gone")).unwrap().set_modified(long_ago).unwrap();
    assert_eq!(listed(&machine), "h-1@a exited 7|gone");
    assert!(machine.path("run/h-1/ended").exists());
}

#[test]
fn the_end_of_a_job_is_awaited_as_long_as_the_command_has_time() {
    let machine = login();
    machine.stub("scancel", ":");
    queue(&machine, "7|COMPLETING|None|1|2|1:00|big.h-1@a");
    let complaint = machine.fails(END, &variables(&machine));
    assert_eq!(complaint, "Slurm has not ended the job within 5 s: its job 7 is still COMPLETING\n");
    // slurmctld is started again meanwhile
    fs::write(machine.path("queue.down"), "").unwrap();
    let down = always(machine.path("queue.down").to_str().unwrap());
    let queued = always(machine.path("queue").to_str().unwrap());
    machine.stub("squeue", &format!("[ ! -e {down} ] || {{ rm {down}; echo away >&2; exit 1; }}; cat {queued}"));
    fs::write(machine.path("queue"), "").unwrap();
    fs::write(machine.path("run/h-1/job"), "7\n").unwrap();
    fs::write(machine.path("shown"), "JobId=7 JobState=CANCELLED Reason=None\n").unwrap();
    machine.prints(END, &variables(&machine));
    assert!(!machine.path("run/h-1").exists());
}

#[test]
fn an_allocation_with_too_few_tasks_is_refused_with_the_way_out() {
    let machine = login();
    let within = |tasks: &str, ranks: u32| {
        format!("{} ranks={ranks}\nexport SLURM_JOB_ID=9 SLURM_TASKS_PER_NODE='{tasks}'", variables(&machine))
    };
    let complaint = machine.fails(CHECK, &within("1", 2));
    assert!(
        complaint.contains("this is inside job 9 of Slurm, which has 1 task, but 2 ranks are to start"),
        "{complaint}"
    );
    assert!(complaint.contains("env -u SLURM_JOB_ID hvdctl"), "{complaint}");
    assert!(machine.fails(CHECK, &within("2(x3),1", 8)).contains("has 7 tasks"));
    for (tasks, ranks) in [("2(x3),1", 7), ("2", 2), ("1", 0)] {
        assert_eq!(machine.prints(CHECK, &within(tasks, ranks)), "hvdctl: within 9\n");
    }
    assert!(!machine.path("sbatch").exists(), "nothing is submitted there");
}

#[test]
fn a_new_job_has_nothing_of_the_one_around_it_and_what_is_passed_on_is_kept() {
    let machine = login();
    let seen = always(machine.path("seen").to_str().unwrap());
    machine.stub("sbatch", &format!("env >{seen}; echo 8"));
    let around = "export SLURM_JOB_NODELIST=n1 SLURM_NTASKS=1 SLURM_CONF=/c X='a b'; unset SLURM_JOB_ID";
    machine.prints(SUBMIT, &format!("{}\n{around}", variables(&machine)));
    let given = fs::read_to_string(machine.path("seen")).unwrap();
    assert!(!given.contains("SLURM_NTASKS") && given.contains("SLURM_CONF=/c"), "{given}");
    let submitted = machine.path("run/h-1/submitted");
    let kept = fs::read(&submitted).unwrap();
    assert!(kept.split(|byte| *byte == 0).any(|one| one == b"X=a b"));
    assert_eq!(fs::metadata(submitted).unwrap().permissions().mode() & 0o777, 0o600);
    // without an allocation, what the user sets for srun is passed on
    machine.prints(SUBMIT, &format!("{}\nexport SLURM_CPU_BIND=none; unset SLURM_JOB_ID", variables(&machine)));
    assert!(fs::read_to_string(machine.path("seen")).unwrap().contains("SLURM_CPU_BIND=none"));
}

#[test]
fn a_job_that_waits_for_nodes_is_no_job_that_can_never_run() {
    let machine = login();
    const NEVER: &str = "allocation failure: Requested node configuration is not available";
    let ml = variables(&machine).replace("--ntasks=2", "--partition=ml");
    let short = ml.replace("=ml", "=ml --partition=short,x");
    for (sinfo, complaint, variables, is_queued) in [
        ("ml* idle\nml* mixed\nold drained", NEVER, &ml, false),
        ("ml* idle\nml* drained\nshort idle", NEVER, &ml, true),
        ("ml* idle\nml* down*\nshort idle", NEVER, &short, false),
        ("ml* idle\nshort idle*", NEVER, &short, true),
        ("ml idle\nshort* reserved", NEVER, &variables(&machine), true),
        // a site shows none
        ("", NEVER, &ml, true),
        ("ml* idle", "allocation failure: Requested nodes are busy", &ml, true),
        ("ml* idle", "allocation failure: Requested partition configuration not available now", &ml, true),
        ("ml* drained", "allocation failure: Invalid qos specification", &ml, false),
    ] {
        machine.stub(
            "sbatch",
            &format!("case $1 in --version) echo slurm 22.05.8; exit ;; esac; echo '{complaint}' >&2; exit 1"),
        );
        machine.stub("sinfo", &format!("echo '{sinfo}'"));
        if is_queued {
            assert_eq!(machine.prints(CHECK, variables), "", "{sinfo}");
        } else {
            assert_eq!(machine.fails(CHECK, variables), format!("{complaint}\n"), "{sinfo}");
        }
    }
}

#[test]
fn a_node_that_comes_back_meanwhile_is_no_reason_to_refuse_a_job() {
    let machine = login();
    let asked = always(machine.path("asked").to_str().unwrap());
    machine.stub(
        "sbatch",
        &format!(
            "case $1 in --version) echo slurm 22.05.8; exit ;; esac; [ ! -e {asked} ] || exit 0; : >{asked}; echo \
             'allocation failure: Requested node configuration is not available' >&2; exit 1"
        ),
    );
    machine.stub("sinfo", "echo 'ml* idle'");
    assert_eq!(machine.prints(CHECK, &variables(&machine)), "");
}

#[test]
fn ranks_that_are_steps_of_their_own_cannot_share_gpus_in_an_old_slurm() {
    let machine = login();
    let (with_gpus, without) = (variables(&machine).replace("--ntasks=2", "--gres=gpu:2"), variables(&machine));
    for (version, variables, is_refused) in [
        ("20.11.4", &with_gpus, true),
        ("21.08.8-2", &with_gpus, true),
        ("21.08.8-2", &without, false),
        ("21.08.8-2", &with_gpus.replace("shared_gpus=it", "shared_gpus="), false),
        ("22.05.8", &with_gpus, false),
        ("21.08.8-2", &variables(&machine).replace("--ntasks=2", "--partition=gpu -p gpu"), false),
        ("21.08.8-2", &variables(&machine).replace("--ntasks=2", "--gres gpu:1"), true),
        ("21.08.8-2", &variables(&machine).replace("--ntasks=2", "-G 2"), true),
    ] {
        machine.stub("sbatch", &format!("case $1 in --version) echo slurm-wlm {version} ;; esac"));
        let output = machine.run(CHECK, variables);
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            complaint.contains(&format!("in this Slurm (slurm-wlm {version})")),
            is_refused,
            "{version}: {output:?}"
        );
        assert_eq!(output.status.success(), !is_refused, "{version}");
    }
}

#[test]
fn what_ends_ranks_does_not_wait_for_the_gpus_that_they_have() {
    let machine = Machine::new(&[("job/addresses", "10.0.0.1 a \n10.0.0.2 b gpu:a100:2\n")]);
    machine.stub("srun", "echo \"$@\"");
    fs::write(machine.path("job/ssh"), REMOTE_SHELL_OF_SLURM.2).unwrap();
    let step = |command: &str| {
        let path = format!("{}:{}", machine.path("tools").display(), std::env::var("PATH").unwrap());
        let ran = Command::new("sh")
            .arg(machine.path("job/ssh"))
            .args(["-p", "22", "10.0.0.2", command])
            .env("PATH", path)
            .output();
        String::from_utf8(ran.unwrap().stdout).unwrap()
    };
    for command in ["sh /s/job/hvdctl-python /s/job/node_launcher.py", "cd /; sh /s/reap.py", "echo true"] {
        assert!(step(command).contains(" --nodelist=b --gres=gpu:a100:2 --overlap "), "{}", step(command));
    }
    for command in ["sh /s/job/hvdctl-python /s/job/reap.py 10", "true"] {
        assert!(step(command).contains(" --nodelist=b --gres=none --overlap "), "{}", step(command));
    }
}

#[test]
fn a_step_has_the_libraries_of_ranks_and_srun_has_them_only_if_it_needs_them() {
    // in place of reap.py, which runs the command
    let step = ("job/hvdctl-python", "[ \"${1##*/} $2\" = 'reap.py step' ] && exec sh -c \"$3\"");
    let machine = Machine::new(&[("job/addresses", "10.0.0.1 a \n10.0.0.2 b \n"), step]);
    fs::write(machine.path("job/ssh"), REMOTE_SHELL_OF_SLURM.2).unwrap();
    let path = format!("{}:{}", machine.path("tools").display(), std::env::var("PATH").unwrap());
    let starts = "echo \"srun has ${LD_LIBRARY_PATH-none}\"; while [ \"$1\" != sh ]; do shift; done; exec \"$@\"";
    for (needs, has) in [("true", "none"), ("[ -n \"${LD_LIBRARY_PATH:-}\" ]", "/opt/slurm/li b")] {
        machine.stub("srun", &format!("{needs} || exit 127; [ \"$1\" != --version ] || exit 0; {starts}"));
        let ran = Command::new("sh")
            .arg(machine.path("job/ssh"))
            .args(["10.0.0.2", "echo \"$LD_LIBRARY_PATH, $OPENSSL_CONF, $node$name\"; env"])
            .env("PATH", &path)
            .envs([("LD_LIBRARY_PATH", "/opt/slurm/li b"), ("OPENSSL_CONF", "it's"), ("node", "1"), ("name", "2")])
            .output();
        let said = String::from_utf8(ran.unwrap().stdout).unwrap();
        let wanted = format!("srun has {has}\n/opt/slurm/li b, it's, 12\n");
        assert!(said.starts_with(&wanted) && !said.contains("HVDCTL_RANKS_"), "{needs}: {said}");
    }
}

const KEY: &[&str] = &["node/close.sh", "node/permissions.sh", "slurm/nodes/key.sh"];
const INSTALL: &[&str] = &["node/close.sh", "node/permissions.sh", "slurm/nodes/install.sh"];
const GIVE: &[&str] = &["node/close.sh", "node/permissions.sh", "slurm/nodes/give_key.sh"];

/// Asks the master of a cluster's queue for its key. Returns why it was made, and the key.
fn key(machine: &Machine, nodes: &str, renew: &str) -> (String, String) {
    let directory = machine.path("slurm");
    let printed = machine.prints(KEY, &format!("directory='{}' nodes='{nodes}' renew='{renew}'", directory.display()));
    let (why, key) = printed.split_once('\n').unwrap();
    assert_eq!(key.trim().len(), 172, "128 bytes in base64");
    (why.to_owned(), key.trim().to_owned())
}

#[test]
fn a_node_that_leaves_has_no_key_that_is_in_use() {
    let machine = Machine::new(&[]);
    let (why, first) = key(&machine, "node1 10.0.0.1\nnode2 10.0.0.2", "");
    assert_eq!(why, "first");
    // one node more changes nothing
    let three = "node1 10.0.0.1\nnode2 10.0.0.2\nnode3 10.0.0.3";
    let given = || fs::write(machine.path("slurm/munge.given"), "node1\nnode2\nnode3\n").unwrap();
    assert_eq!(key(&machine, three, ""), ("unrecorded".to_owned(), first.clone()));
    given();
    assert_eq!(key(&machine, three, ""), (String::new(), first.clone()));
    // the daemons start again with it, also if this command is cut off
    assert!(machine.path("slurm/.restart").exists());
    // it leaves, or another machine has its name
    let (why, second) = key(&machine, "node1 10.0.0.1\nnode2 10.0.0.2", "");
    assert_eq!((why.as_str(), second == first), ("left", false));
    assert!(!machine.path("slurm/munge.given").exists(), "no node has it yet");
    assert_eq!(key(&machine, "node1 10.0.0.1\nnode2 10.0.0.9", "").0, "left");
    // keys rotate, after which it is still known who had a key
    let (why, third) = key(&machine, "", "asked");
    assert_eq!((why.as_str(), third == second), ("asked", false));
    assert_eq!(key(&machine, "node1 10.0.0.1", "").0, "left");
    // what an earlier hvdctl has made
    fs::remove_file(machine.path("slurm/munge.nodes")).unwrap();
    assert_eq!(key(&machine, "node1 10.0.0.1", "").0, "unknown");
    given();
    assert_eq!(key(&machine, "node1 10.0.0.1", "").0, "");
    let mode = |name: &str| fs::metadata(machine.path(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!([mode("slurm"), mode("slurm/munge.key")], [0o700, 0o600]);
}

#[test]
fn no_file_of_slurm_is_written_where_others_can_change_it() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let machine = Machine::new(&[("shared/slurm/munge.key", "secret")]);
    fs::set_permissions(machine.path("shared"), Permissions::from_mode(0o777)).unwrap();
    let directory = machine.path("shared/slurm");
    let variables = format!("directory='{}' nodes=n renew= key=k files=", directory.display());
    for script in [KEY, INSTALL, GIVE] {
        let complaint = machine.fails(script, &variables);
        assert!(complaint.contains("every user can write to "), "{complaint}");
    }
    assert_eq!(fs::read_to_string(directory.join("munge.key")).unwrap(), "secret");
}
