//! Table tests of hints and messages.

use super::launchers::isolation_warning;
use super::outcome::JobOutcome;
use super::ports::KnownPorts;
use super::program::{FailedProgram, KnownProject};
use crate::launch::launcher;
use crate::launch::placement::Placement;
use crate::model::fault::Fault;
use crate::model::job_result::JobResult;
use crate::model::job_state::JobState;
use crate::model::launcher::{Controller, LauncherName};
use crate::model::role::{Ends, RecordedRole};
use crate::model::root_cause::{FailureKind, RootCause};
use crate::model::start_fault::StartFailure;
use crate::text::argument::ProgramArgument;
use serde_json::json;

const UNKNOWN: FailedProgram<'_> = FailedProgram {
    command: &[],
    project: KnownProject::Elsewhere,
    directory: None,
    restarts_help: false,
    ports: Vec::new(),
};

#[test]
fn programs_of_another_launcher_are_recognized() {
    const TORCH: &str = "ValueError: Error initializing torch.distributed using env:// rendezvous: environment \
        variable RANK \
                         expected, but not set";
    let hint = |name, line: &str| {
        let lines = ["Traceback (most recent call last):".to_owned(), line.to_owned(), "[W1125] shutdown".to_owned()];
        UNKNOWN.hint_on_output(&lines, launcher(name, Controller::Gloo)).unwrap_or_default()
    };
    for (name, line, expected) in [
        (LauncherName::Horovodrun, TORCH, "than horovodrun: try --launcher torchrun"),
        (LauncherName::Mpirun, TORCH, "than mpirun: try --launcher torchrun"),
        (LauncherName::Horovodrun, "KeyError: 'LOCAL_RANK'", "--launcher torchrun"),
        (LauncherName::Horovodrun, "ValueError: coordinator_address should be defined.", "--launcher env"),
        (LauncherName::Torchrun, "ValueError: coordinator_address should be defined.", "--launcher env"),
    ] {
        assert!(hint(name, line).contains(expected), "{name:?} {line}: {}", hint(name, line));
    }
    for (name, line) in [
        (LauncherName::Torchrun, TORCH),
        (LauncherName::Env, TORCH),
        (LauncherName::Env, "ValueError: coordinator_address should be defined."),
        (LauncherName::Horovodrun, "KeyError: 'RANKING'"),
        (LauncherName::Horovodrun, "RuntimeError: CUDA out of memory"),
    ] {
        assert_eq!(hint(name, line), "", "{name:?} {line}");
    }
    let warning = |name| isolation_warning(launcher(name, Controller::Gloo), None, 60);
    assert!(
        warning(LauncherName::Horovodrun).contains("in 60 s")
            && warning(LauncherName::Mpirun).contains("--launcher torchrun")
    );
    let srun = warning(LauncherName::Srun);
    assert!(srun.contains("SLURM_MPI_TYPE") && srun.contains("--launcher mpirun"), "{srun}");
    assert!(warning(LauncherName::Torchrun).contains("--launcher horovodrun"));
    let role = RecordedRole::example("trainer", Ends::Job);
    let of_role = isolation_warning(launcher(LauncherName::Horovodrun, Controller::Gloo), Some(&role), 60);
    assert!(of_role.starts_with("no rank of trainer had") && !of_role.contains("--launcher"), "{of_role}");
    assert!(
        of_role.contains("launcher = \"horovodrun\" in the [[role]] trainer"),
        "its own launcher is env: {of_role}"
    );
    for line in [
        "OSError: [Errno 24] Too many open files: '/dev/null'",
        "RuntimeError: received 0 items of ancdata",
        "RuntimeError: unable to open shared memory object </torch_29919_1396182366> in read-write mode",
    ] {
        assert!(hint(LauncherName::Torchrun, line).contains("ulimits = { nofile = 1048576 }"), "{line}");
    }
    assert_eq!(UNKNOWN.hint_on_output(&[], launcher(LauncherName::Horovodrun, Controller::Mpi)), None);
}

/// The hint on this last line of `python scripts/train.py` in a project with `src/net.py`, `lib/pkg.py` and
/// `utils.py`.
fn hint(line: &str) -> String {
    let command = ["python", "scripts/train.py"].map(ProgramArgument::from);
    let directory_of = |name: &str| match name {
        "src" | "src.net" | "utils" => Some(String::new()),
        "pkg" => Some("lib".to_owned()),
        _ => None,
    };
    of(
        line,
        &FailedProgram {
            command: &command,
            project: KnownProject::Modules(&directory_of),
            directory: None,
            restarts_help: false,
            ports: Vec::new(),
        },
    )
}

fn of(line: &str, program: &FailedProgram<'_>) -> String {
    let lines = ["Traceback (most recent call last):".to_owned(), line.to_owned(), "[W1125] shutdown".to_owned()];
    program.hint_on_output(&lines, launcher(LauncherName::Env, Controller::Gloo)).unwrap_or_default()
}

#[test]
fn a_program_that_asks_something_is_shown_how_it_gets_the_answer() {
    for (line, expected) in [
        ("EOFError: EOF when reading a line", "ranks have no input: pass what it asks for by an option"),
        ("[rank1]: EOFError: EOF when reading a line", "ranks have no input"),
        ("termios.error: (25, 'Inappropriate ioctl for device')", "ranks have no input"),
        ("Do you want to continue? [Y/n] Abort.", "ranks have no input"),
        ("Run the custom code? [y/N] ", "ranks have no input"),
        ("Proceed ([y]/n)? ", "ranks have no input"),
        ("Aborted!", "ranks have no input"),
        ("bdb.BdbQuit", "-e PYTHONBREAKPOINT=0"),
        (
            "RuntimeError: api_key not configured (no-tty). call wandb.login(key=[your_api_key])",
            "set WANDB_API_KEY for them, and pass it by --env-file, or by -e with the name alone",
        ),
        (
            "wandb.errors.errors.UsageError: No API key configured. Use `wandb login` to log in.",
            "WANDB_MODE=offline needs none",
        ),
        (
            "ValueError: Loading /m requires you to execute the configuration file in that repo on your local machine. \
             Make sure you have read the code there to avoid malicious use, then set the option \
             `trust_remote_code=True` to remove this error.",
            "--trust-remote-code",
        ),
        (
            "Access to model m is restricted. You must have access to it and be authenticated to access it. Please log in.",
            "HF_TOKEN",
        ),
        ("If this is a private repository, pass a token or log in with `huggingface-cli login`", "HF_TOKEN"),
        ("OSError: Could not find kaggle.json. Make sure it's located in /root/.kaggle.", "KAGGLE_KEY"),
        ("fatal: could not read Username for 'https://git.example': No such device or address", "git asks for a login"),
    ] {
        let hint = of(line, &UNKNOWN);
        assert!(hint.contains(expected), "{line}: {hint}");
    }
    for line in ["EOFError: Ran out of input", "Aborted (core dumped)", "y/n", "loss 0.5", "EOFError"] {
        assert_eq!(of(line, &UNKNOWN), "", "{line}");
    }
    let lines =
        [r#"  File "/usr/lib/python3.11/getpass.py", line 130, in _raw_input"#, "    raise EOFError", "EOFError"];
    let launcher = launcher(LauncherName::Env, Controller::Gloo);
    let hint = UNKNOWN.hint_on_output(&lines.map(str::to_owned), launcher).unwrap();
    assert!(hint.contains("set a variable that the program reads instead, and pass it by --env-file"), "{hint}");
}

#[test]
fn a_port_in_use_has_an_owner() {
    let job = KnownPorts { first: 29500, count: 4, owner: "job j2 (its MASTER_PORT)".into() };
    let known = FailedProgram { ports: vec![KnownPorts::of_workers(12345), job], ..UNKNOWN };
    const WORKERS: &str = "12345 is that of the sshd of the workers (cluster.port); let the program listen on another";
    const JOB: &str = "29500 to 29503 are those of job j2 (its MASTER_PORT); let the program";
    const ALL: &str = "of the ports there, 12345 is that of the sshd of the workers (cluster.port), 29500 to 29503 are";
    for (line, expected) in [
        ("OSError: [Errno 98] Address already in use", ALL),
        ("bind: Address already in use", ALL),
        (
            "OSError: [Errno 98] error while attempting to bind on address ('0.0.0.0', 12345): address already in use",
            WORKERS,
        ),
        (
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. \
             port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
            JOB,
        ),
        (
            "[W socket.cpp:464] [c10d] The server socket has failed to bind to 0.0.0.0:29501 (errno: 98 - Address already \
             in use).",
            JOB,
        ),
        (
            "ConnectionError: Tried to launch distributed communication on port `29500`, but another process is utilizing it.",
            JOB,
        ),
        ("Error: listen EADDRINUSE: address already in use :::12345", WORKERS),
        (
            "ValueError: Ray component dashboard_agent_grpc is trying to use a port number 8265 that is used by other \
             components.",
            "no other job that is known has port 8265: `ss -ltnp 'sport = :8265'` on the node shows",
        ),
        ("OSError: Cannot find empty port in range: 7860-7860.", "port 7860"),
        ("12:03:04 E0000 chttp2_server.cc:1045] bind: Address already in use", ALL),
    ] {
        let hint = of(line, &known);
        assert!(hint.contains(expected), "{line}: {hint}");
    }
    let hint = of("OSError: [Errno 98] Address already in use", &UNKNOWN);
    assert!(hint.starts_with("`ss -ltnp` on the node shows which process has the port"), "{hint}");
    assert_eq!(of("ConnectionRefusedError: [Errno 111] Connection refused", &known), "");
}

#[test]
fn modules_of_the_project_are_not_installed_by_pip() {
    const OWN: &str = "is in the project, but Python searches the program's directory only: python -m \
        scripts.train (and its \
                       arguments), or -e PYTHONPATH=/workspace";
    for (line, expected) in [
        ("ModuleNotFoundError: No module named 'src'", OWN),
        ("[rank1]: ModuleNotFoundError: No module named 'src'", OWN),
        ("ModuleNotFoundError: No module named 'src.net'; 'src' is not a package", OWN),
        ("ImportError: No module named utils", OWN),
        ("/usr/bin/python3: No module named pkg", "pkg is in lib of the project: -e PYTHONPATH=/workspace/lib"),
        (
            "ModuleNotFoundError: No module named 'src.gone'",
            "src is in the project, but not src.gone: check .gitignore",
        ),
        ("ModuleNotFoundError: No module named 'models'", "the project on the nodes has no models: check"),
        (
            "ImportError: cannot import name 'f' from 'utils' (/usr/lib/python3/site-packages/utils/__init__.py)",
            "this utils is not the one in the project; utils is in the project",
        ),
        (
            "ImportError: attempted relative import with no known parent package",
            "start it as a module of its package: python -m scripts.train",
        ),
        ("python: can't open file '/workspace/x.py': [Errno 2] No such file or directory", "nodes has no x.py: check"),
    ] {
        let hint = hint(line);
        assert!(hint.contains(expected) && !hint.contains("pip install"), "{line}: {hint}");
    }
    for (line, expected) in [
        (
            "ModuleNotFoundError: No module named 'tiny'",
            "setup = [\"pip install PACKAGE\"] with the package that has tiny",
        ),
        ("ModuleNotFoundError: No module named 'numpy'", "setup = [\"pip install numpy\"] (hvdctl"),
        ("ModuleNotFoundError: No module named 'yaml.cyaml'", "setup = [\"pip install pyyaml\"]"),
        ("ModuleNotFoundError: No module named 'a; rm -rf /'", ""),
        ("ImportError: cannot import name 'f' from 'utils' (/workspace/utils.py)", ""),
        ("ImportError: cannot import name 'f' from 'torch' (/usr/lib/torch.py)", ""),
        ("warning: No module named 'apex', falling back", ""),
    ] {
        let hint = hint(line);
        assert!(hint.contains(expected) && hint.is_empty() == expected.is_empty(), "{line}: {hint}");
    }
}

#[test]
fn a_module_may_be_the_projects_where_the_project_is_not_known() {
    let both = of("ModuleNotFoundError: No module named 'tiny'", &UNKNOWN);
    assert!(
        both.starts_with("if tiny is in the project: -e PYTHONPATH=/workspace; install what the image lacks"),
        "{both}"
    );
    assert_eq!(
        of("ModuleNotFoundError: No module named 'src'", &UNKNOWN),
        "if src is in the project: -e PYTHONPATH=/workspace"
    );
    let none = FailedProgram {
        command: &[],
        project: KnownProject::None,
        directory: None,
        restarts_help: false,
        ports: Vec::new(),
    };
    let run = |line: &str| of(line, &none);
    assert!(run("ModuleNotFoundError: No module named 'tiny'").starts_with("install what the image lacks"));
    for line in ["ModuleNotFoundError: No module named 'src'", "python: can't open file '/workspace/x.py': [Errno 2] …"]
    {
        assert_eq!(run(line), "`run` does not upload a project; `hvdctl train` does");
    }
    let relative = of("ImportError: attempted relative import with no known parent package", &UNKNOWN);
    assert_eq!(relative, "start it as a module of its package: python -m PACKAGE.MODULE");
}

#[test]
fn data_cannot_be_written() {
    for (line, expected) in [
        (
            "OSError: [Errno 30] Read-only file system: '/data/d/my x.lock'",
            "pushed data are mounted read-only at /data",
        ),
        ("sh: 1: cannot create /data/x: Read-only file system", "pushed data are"),
        ("mkdir: cannot create directory ‘/data/x’: Read-only file system", "pushed data are"),
        ("BlockingIOError: unable to lock file, errno = 30, name = '/data/x.h5'", "HDF5_USE_FILE_LOCKING=FALSE"),
        ("filelock._error.Timeout: The file lock '/data/a/x.lock' could not be acquired.", "HF_HOME=/workspace"),
        ("sqlite3.OperationalError: attempt to write a readonly database", "if the file is below /data: pushed data"),
        ("OSError: [Errno 30] Read-only file system: '/datasets/x'", "/datasets/x is mounted read-only: see `mounts`"),
        ("touch: cannot touch '/root/.ssh/x': Read-only file system", ""),
        ("OSError: [Errno 30] Read-only file system: '/proc/sys/vm/x'", ""),
        ("/workspace/a.sh: line 3: /data/x: Read-only file system", "pushed data are"),
        ("cannot open /data/x: Read-only file system at /workspace/x.pl line 3.", "pushed data are"),
        ("panic: open /data/x: read-only file system", "pushed data are"),
        ("mkdir: Read-only file system [/data/x]", "pushed data are"),
        ("Error: Os { code: 30, message: \"Read-only file system\" }", "if the file is below /data"),
        ("unable to lock file, errno = 300, name = '/data/x.h5'", ""),
        ("note: a Read-only file system at /data is faster", ""),
    ] {
        let hint = hint(line);
        assert!(hint.contains(expected) && hint.is_empty() == expected.is_empty(), "{line}: {hint}");
    }
    let lines = ["ModuleNotFoundError: No module named 'x'", "OSError: Read-only file system: '/data/x'"];
    let hint = UNKNOWN.hint_on_output(&lines.map(str::to_owned), launcher(LauncherName::Env, Controller::Gloo));
    assert!(hint.unwrap().starts_with("pushed data"));
}

#[test]
fn windows_line_ends_are_recognized() {
    let command = ["bash", "run.sh"].map(ProgramArgument::from);
    let program = FailedProgram {
        command: &command,
        project: KnownProject::None,
        directory: None,
        restarts_help: false,
        ports: Vec::new(),
    };
    for (line, script) in [
        ("run.sh: line 2: $'\\r': command not found", "run.sh"),
        ("lib/my env.sh: line 12: $'\\r': command not found", "'lib/my env.sh'"),
        ("env: ‘bash\\r’: No such file or directory", "SCRIPT"),
        ("/usr/bin/env: 'python3\\r': No such file or directory", "SCRIPT"),
        ("sh: ./x: /bin/bash^M: bad interpreter: No such file or directory", "./x"),
    ] {
        let hint = of(line, &program);
        assert!(hint.contains(&format!("sed -i 's/\\r$//' {script} removes")), "{line}: {hint}");
    }
}

#[test]
fn a_script_that_starts_python_is_recognized() {
    for line in [
        "./run.sh: 2: python: not found",
        "run.sh: line 2: python: command not found",
        "env: ‘python’: No such file or directory",
        "zsh:1: command not found: python",
        "env: can't execute 'python': No such file or directory",
    ] {
        assert_eq!(hint(line), "the image has no `python`: write python3 in the script", "{line}");
    }
    for line in [
        "sh: 1: ipython: not found",
        "checking for python: not found",
        "python: not found, so python3 is used",
        "x.c:1: 'python': No such file or directory exists",
    ] {
        assert_eq!(hint(line), "", "{line}");
    }
}

#[test]
fn a_program_that_looks_for_a_repository_is_recognized() {
    for line in [
        "fatal: not a git repository (or any of the parent directories): .git",
        "git.exc.InvalidGitRepositoryError: /workspace",
        "FileNotFoundError: [Errno 2] No such file or directory: 'git'",
        "LookupError: setuptools-scm was unable to detect version for /workspace.",
    ] {
        assert!(hint(line).contains("HVDCTL_GIT_COMMIT"), "{line}");
    }
    let run = FailedProgram {
        command: &[],
        project: KnownProject::None,
        directory: None,
        restarts_help: false,
        ports: Vec::new(),
    };
    assert_eq!(of("fatal: not a git repository", &run), "");
}

#[test]
fn the_program_of_the_failed_rank_is_that_of_its_role() {
    let mut placement = Placement::default();
    placement.push("a", 2);
    placement.shares[0].roles = vec![1, 1];
    let command = ["python3", "serve/main.py"].map(ProgramArgument::from).to_vec();
    let trainer = RecordedRole::example("trainer", Ends::Job);
    placement.roles = vec![trainer, RecordedRole { command, ..RecordedRole::example("generator", Ends::Job) }];
    let line = "ImportError: attempted relative import with no known parent package";
    let message = |rank| {
        let cause = RootCause {
            rank,
            role: placement.role(rank),
            node: "a".into(),
            how: FailureKind::Exited { code: 1, signal: None, oom: false },
        };
        let (root_cause, last_lines) = (Some(cause), vec![line.to_owned()]);
        let outcome = JobOutcome { root_cause, last_lines, ..JobOutcome::new("j", &placement, JobResult::default()) };
        let program = FailedProgram { command: &["python".into(), "train.py".into()], ..UNKNOWN };
        let message = outcome.failure(launcher(LauncherName::Torchrun, None), &program).unwrap();
        message.to_string()
    };
    assert!(message(1).contains("python3 -m serve.main"), "{}", message(1));
    assert!(!message(0).contains("serve"), "{}", message(0));
}

#[test]
fn the_last_error_counts() {
    const WARNED: &str = "warning: cannot write the cache: Read-only file system: '/data/x'";
    const FILES: &str = "OSError: [Errno 24] Too many open files: '/x'";
    const CHAIN: &str = "The above exception was the direct cause of the following exception:";
    let of = |lines: &[&str]| {
        let lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        UNKNOWN.hint_on_output(&lines, launcher(LauncherName::Env, Controller::Gloo)).unwrap_or_default()
    };
    for (lines, expected) in [
        (&[WARNED, FILES][..], "the rank may open too few files"),
        (&[FILES, WARNED], "pushed data"),
        (&[WARNED, "torch.cuda.OutOfMemoryError: CUDA out of memory."], ""),
        (&[WARNED, "RuntimeError: x", "[W1125] shutdown"], ""),
        (&[FILES, "", CHAIN, "", "RuntimeError: DataLoader worker exited"], "the rank may open too few files"),
        (&[WARNED, "a step"], "pushed data"),
        (&["sh: 1: python: not found", "subprocess.CalledProcessError: Command 'x' returned 127."], "the image has no"),
        (&["socket.accept() failed: Too many open files in system"], ""),
        (
            &["RuntimeError: unable to open shared memory object </torch_1> in read-write mode: Permission \
                 denied (13)"],
            "",
        ),
        (
            &["RuntimeError: unable to open shared memory object </torch_1> in read-write mode: Too many open \
                 files (24)"],
            "the rank may open",
        ),
    ] {
        let hint = of(lines);
        assert!(hint.contains(expected) && hint.is_empty() == expected.is_empty(), "{lines:?}: {hint}");
    }
}

#[test]
fn reasons_why_a_program_does_not_start_have_hints() {
    let command = ["run.sh"].map(ProgramArgument::from);
    let program = FailedProgram {
        command: &command,
        project: KnownProject::None,
        directory: None,
        restarts_help: false,
        ports: Vec::new(),
    };
    let failure = |fault, about| {
        let json = json!({"program": "run.sh", "error": "No such file or directory", "fault": fault, "about": about});
        StartFailure::read(&json.to_string())
    };
    for (fault, about, expected) in [
        ("line_ends", "/bin/bash", "sed -i"),
        ("interpreter_missing", "/bin/zsh", "#!/bin/sh"),
        ("loader_missing", "", "hvdctl image build"),
        ("not_in_path", "/workspace", "write ./run.sh: Linux"),
        ("only_python3", "", "the image has python3 and no python: -- python3"),
        ("not_executable", "", "chmod +x run.sh"),
        ("not_executable", "#!/usr/bin/env python3", "its interpreter: -- python3 run.sh"),
        ("no_interpreter_either", "", "start it with -- sh run.sh"),
        ("portable", "", "-- sh PROGRAM"),
        ("no_interpreter", "", "write #!/bin/sh"),
        ("other_processor", "", "or on a node"),
        ("other_system", "Windows", "build it for Linux"),
        ("byte_order_mark", "", "save it as UTF-8"),
    ] {
        let hint = program.hint_on_start(&failure(json!(fault), json!(about))).unwrap_or_default();
        assert!(hint.contains(expected), "{fault}: {hint}");
    }
    for (fault, about) in
        [(json!(null), json!(null)), (json!("of_tomorrow"), json!("x")), (json!("not_in_path"), json!("/tmp"))]
    {
        assert_eq!(program.hint_on_start(&failure(fault, about)), None);
    }
    let text = "cannot start run.sh: Permission denied: it is not executable";
    assert_eq!(program.hint_on_start(&StartFailure::read(text)), None, "of an earlier build");
}

/// A job of two ranks that has failed with this fault, and no rank of it.
fn ended(fault: Option<Fault>, started: u32) -> JobOutcome {
    let result = JobResult { launcher: Some(1), fault, ranks: 2, started, ..JobResult::default() };
    JobOutcome { state: JobState::Failed, root_cause: None, ..JobOutcome::new("j1", &Placement::default(), result) }
}

/// The error of a job: its first line, and its hint.
fn error(job: &JobOutcome, restarts_help: bool) -> (String, String) {
    let program = FailedProgram { restarts_help, ..UNKNOWN };
    let text = job.failure(launcher(LauncherName::Horovodrun, Controller::Gloo), &program).unwrap_err().to_string();
    let hint = text.split_once("hint: ").map_or_else(String::new, |(_, hint)| hint.to_owned());
    (text.lines().next().unwrap_or_default().to_owned(), hint)
}

#[test]
fn a_job_that_failed_without_a_rank_has_its_fault_and_the_next_step() {
    let verify = "check the cluster with hvdctl verify; if the ranks are slow to start, raise cluster.start_timeout_s";
    let stopped =
        "hvdctl status shows the nodes; `docker events` (`podman events`) there shows what stopped a container";
    let not_started = Fault::NotStarted { seconds: 9, missing: "rank 1 on b".into() };
    for (fault, started, restarts_help, hint) in [
        (Fault::TimeLimit, 2, false, "give it more time: slurm.time, or --sbatch=--time=2:00:00"),
        (Fault::Preempted { requeues: Some(true) }, 2, true, "with --restarts N Slurm starts it again"),
        (Fault::Preempted { requeues: Some(true) }, 2, false, "run the command again"),
        (Fault::Preempted { requeues: Some(false) }, 2, true, "run the command again"),
        (
            Fault::Preempted { requeues: None },
            2,
            true,
            "run the command again; with --restarts N Slurm starts it again where the site's PreemptMode is REQUEUE",
        ),
        (
            Fault::EndNotKnown,
            2,
            true,
            "hvdctl jobs shows the reason when Slurm answers again; its accounting may have it, too",
        ),
        (Fault::NodeFailed { requeues: Some(false) }, 2, true, "run the command again"),
        (Fault::NodeFailed { requeues: None }, 2, true, "with --restarts N Slurm starts it again, on other nodes"),
        (Fault::NodeFailed { requeues: None }, 2, false, "run the command again"),
        (Fault::OutOfMemory, 2, false, "ask for more: --sbatch=--mem=… or --sbatch=--mem-per-cpu=…"),
        (Fault::ContainerStopped, 2, false, stopped),
        (Fault::TooManyChanges { message: "3 changes".into() }, 1, false, "allow more changes with --reset-limit"),
        (not_started, 1, false, verify),
    ] {
        let text = format!("job j1 failed: {}", fault.to_string().lines().next().unwrap_or_default());
        assert_eq!(error(&ended(Some(fault), started), restarts_help), (text, hint.to_owned()));
    }
    assert_eq!(error(&ended(None, 1), false).0, "not all ranks started (launcher: exit code 1)");
    assert_eq!(error(&ended(None, 2), false).0, "the launcher exited before its ranks (launcher: exit code 1)");
    let mpich = ["unrecognized argument allow-run-as-root".to_owned()].to_vec();
    let (_, hint) = error(&JobOutcome { launcher: mpich, ..ended(None, 1) }, false);
    assert!(hint.starts_with("install Open MPI in the image"), "{hint}");
    let lost = JobOutcome { state: JobState::Lost, ..ended(Some(Fault::Unrecorded { code: Some(137) }), 2) };
    assert!(error(&lost, false).0.starts_with("job j1 is lost: the job supervisor exited with code 137"));
}

#[test]
fn a_root_cause_comes_with_the_last_lines_of_its_rank() {
    let how = FailureKind::Exited { code: 3, signal: None, oom: false };
    let cause = RootCause { rank: 1, role: None, node: "b".into(), how };
    let job = JobOutcome { root_cause: Some(cause), last_lines: vec!["no".into()], ..ended(None, 2) };
    let warning = format!("{:?}", job.failure(launcher(LauncherName::Env, Controller::Gloo), &UNKNOWN).unwrap());
    assert!(warning.contains("last line of rank 1:") && warning.contains("[1 b] no"), "{warning}");
}
