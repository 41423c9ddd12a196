//! Virtualenvs: made by stand-ins of pip and uv, cut off at any time, listed and removed.

use super::{Machine, SCRIPTS};
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const PROBE: &[&str] =
    &["node/close.sh", "node/permissions.sh", "env/common.sh", "env/activate.sh", "env/python.sh", "env/probe.sh"];
const INSTALL: &[&str] =
    &["node/close.sh", "node/permissions.sh", "env/common.sh", "env/activate.sh", "env/python.sh", "env/install.sh"];
const CREATE: &[&str] = &[
    "node/close.sh",
    "node/permissions.sh",
    "node/marked.sh",
    "env/common.sh",
    "env/activate.sh",
    "env/change.sh",
    "env/create.sh",
];
const LIST: &[&str] = &["node/close.sh", "node/permissions.sh", "env/common.sh", "env/activate.sh", "env/list.sh"];
const REMOVE: &[&str] =
    &["node/close.sh", "node/permissions.sh", "node/marked.sh", "env/common.sh", "env/change.sh", "env/remove.sh"];

/// Python 3.11.2 with pip 23.2.1, which "installs" the lines NAME==VERSION of the file, and waits or fails if one says
/// so.
const PYTHON: &str = r#"
case $* in
*ensurepip*) ;;
'-I -c'*) echo 3.11.2 ;;
'-c '*) echo "3.11.2 $0" ;;
'-m venv'*)
  for place; do :; done
  mkdir -p "$place/bin" "$place/lib/python3.11/site-packages/pip-23.2.1.dist-info" && cp "$0" "$place/bin/python"
  ;;
'-m pip --version') echo "pip 23.2.1 from /x" ;;
*) exec pip-or-uv "${0%/bin/python}" "$@" ;;
esac
"#;

const UV: &str = r#"
case $* in
--version) echo "uv 0.9.1 (x86_64-unknown-linux-gnu)" ;;
venv*)
  for place; do :; done
  mkdir -p "$place/bin" "$place/lib/python3.11/site-packages" && cp "$(command -v python3)" "$place/bin/python"
  ;;
pip*) place=${4%/bin/python}; exec pip-or-uv "$place" "$@" ;;
*) exit 2 ;;
esac
"#;

/// Installs into the virtualenv that is its first argument.
const PIP_OR_UV: &str = r#"
place=$1
shift
echo "$*" >>"$place/called"
cat wheels/* >>"$place/called" 2>/dev/null
cat requirements.txt pylock.toml 2>/dev/null | while read -r line; do
  case $line in
  *==*) mkdir "$place/lib/python3.11/site-packages/${line%%==*}-${line##*==}.dist-info" ;;
  hangs) echo "Downloading hangs"; sleep 300 ;;
  fails) echo "ERROR: No matching distribution found for fails"; exit 1 ;;
  esac
done
"#;

/// A value in single quotes.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn source(scripts: &[&str]) -> String {
    scripts.iter().map(|script| fs::read_to_string(Path::new(SCRIPTS).join(script)).unwrap()).collect()
}

/// A request for a virtualenv.
struct Asked<'a> {
    shell: &'a str,
    requirements: &'a str,
    more: &'a str,
}

impl Default for Asked<'_> {
    fn default() -> Self {
        Asked { shell: "sh", requirements: "six==1.17.0\n", more: "" }
    }
}

impl Machine {
    /// A node with Python, and uv if `has_uv`.
    fn with_python(has_uv: bool) -> Machine {
        let machine = Machine::new(&[]);
        machine.stub("python3", PYTHON);
        machine.stub("uv", if has_uv { UV } else { "exit 127" });
        machine.stub("pip-or-uv", PIP_OR_UV);
        machine
    }

    /// The variables of all these scripts.
    fn env_variables(&self) -> String {
        format!(
            "state_dir={} name=default python='' activate='' HOME={0}\n",
            quoted(&self.path("state").display().to_string())
        )
    }

    /// Starts env/create.sh. Its standard input stays open.
    fn start_env(&self, asked: &Asked) -> (Child, ChildStdin) {
        let Asked { shell, requirements, more } = asked;
        let install = format!(
            "{}form=requirements constraints='' wheels='' exact='' requirements={}\n{more}\n{}",
            self.env_variables(),
            quoted(requirements.trim_end()),
            source(INSTALL)
        );
        let text = format!(
            "{}hash={} source=ana@desk:/r.txt install={}\n{}",
            self.env_variables(),
            hash(requirements),
            quoted(&install),
            source(CREATE)
        );
        let mut command = Command::new(shell);
        command.arg("-s").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let path = format!("{}:{}", self.path("tools").display(), std::env::var("PATH").unwrap());
        let mut child = command.env("PATH", path).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(text.as_bytes()).unwrap();
        (child, stdin)
    }

    fn create_env(&self, asked: &Asked) -> Output {
        let (child, stdin) = self.start_env(asked);
        let output = child.wait_with_output().unwrap();
        drop(stdin);
        output
    }

    fn builds(&self) -> usize {
        fs::read_dir(self.path("state/env/.builds")).map_or(0, Iterator::count)
    }

    /// Returns the arguments with which pip or uv was called for the virtualenv.
    fn called(&self) -> String {
        fs::read_to_string(self.path("state/env/default/called")).unwrap_or_default()
    }
}

/// Returns a stand-in for the hash of requirements.
fn hash(requirements: &str) -> String {
    let number = requirements.bytes().fold(7u64, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
    format!("{number:016x}").chars().rev().collect()
}

#[track_caller]
fn succeeds(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The shells of this machine.
fn shells() -> Vec<&'static str> {
    let is_there = |shell: &&str| Command::new(shell).args(["-c", "exit"]).status().is_ok();
    ["sh", "dash", "bash"].into_iter().filter(is_there).collect()
}

/// Waits until something holds.
#[track_caller]
fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < end, "not within 60 s: {what}");
        sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_virtualenv_is_made_by_pip_or_uv_and_known_again() {
    for shell in shells() {
        for (has_uv, tool, call) in
            [(false, "pip 23.2.1", "-m pip install -r requirements.txt\n"), (true, "uv 0.9.1", "pip install --python ")]
        {
            let machine = Machine::with_python(has_uv);
            let said = succeeds(&machine.create_env(&Asked { shell, ..Asked::default() }));
            let has = |line: &str| assert!(said.lines().any(|other| other == line), "{line:?} is not in {said}");
            has("hvdctl: package six 1.17.0");
            has(&format!("hvdctl: step installing packages with {tool}"));
            has(&format!("hvdctl: made tool {tool}"));
            for line in [format!("hash {}", hash("six==1.17.0\n")).as_str(), "python 3.11.2", "source ana@desk:/r.txt"]
            {
                has(&format!("hvdctl: made {line}"));
            }
            assert!(!said.contains("package pip"), "{said}");
            assert!(machine.called().starts_with(call), "{}", machine.called());
            let mode = |path: &str| fs::metadata(machine.path(path)).unwrap().permissions().mode() & 0o777;
            assert_eq!([mode("state"), mode("state/env"), mode("state/env/default/")], [0o700; 3]);
            let probed = machine.prints(PROBE, &machine.env_variables());
            for line in [format!("made hash {}", hash("six==1.17.0\n")).as_str(), "package six 1.17.0", "runs 3.11.2"] {
                assert!(probed.lines().any(|other| other == line), "{line:?} is not in {probed}");
            }
            assert_eq!(probed.contains("uv 0.9.1"), has_uv);
            assert!(machine.prints(LIST, &machine.env_variables()).starts_with("env default complete\n"));
            // what it was made in
            assert!(!machine.path("state/env/default/.work").exists());
        }
    }
}

#[test]
fn options_reach_pip_and_uv() {
    let more = "wheels='00 a-1-py3-none-any.whl\n11 b-1-py3-none-any.whl' constraints='six<2'";
    for (has_uv, exact, call) in [
        (false, "", "-m pip install -r requirements.txt --no-index --find-links wheels -c constraints.txt\n"),
        (
            false,
            "1",
            "-m pip install -r requirements.txt --no-index --find-links wheels -c constraints.txt --no-deps\n",
        ),
        (true, "", "pip install --python P -r requirements.txt --no-index --find-links wheels -c constraints.txt\n"),
        (true, "1", "pip sync --python P requirements.txt --no-index --find-links wheels -c constraints.txt\n"),
    ] {
        let machine = Machine::with_python(has_uv);
        for (hash, name) in [("00", "a-1"), ("11", "b-1"), ("22", "c-1")] {
            let place = machine.path(&format!("state/env/.wheels/default/{hash}"));
            fs::create_dir_all(&place).unwrap();
            fs::write(place.join(format!("{name}-py3-none-any.whl")), format!("{name}\n")).unwrap();
        }
        let more = format!("{more} exact='{exact}'");
        succeeds(&machine.create_env(&Asked { more: &more, ..Asked::default() }));
        let python = fs::canonicalize(machine.path("state/env/default")).unwrap().join("bin/python");
        let called = machine.called().replace(python.to_str().unwrap(), "P");
        assert_eq!(called, format!("{call}a-1\nb-1\n"));
        let kept = ["00", "11", "22"].map(|hash| machine.path(&format!("state/env/.wheels/default/{hash}")).exists());
        assert_eq!(kept, [true, true, false], "what is not asked for any more is removed");
        let probed = machine.prints(PROBE, &machine.env_variables());
        assert_eq!(probed.lines().filter(|line| line.starts_with("wheel ")).count(), 2, "{probed}");
    }
}

#[test]
fn a_pip_that_cannot_read_pylock_is_updated_or_named() {
    let machine = Machine::with_python(false);
    let output = machine.create_env(&Asked { more: "form=pylock exact=1", ..Asked::default() });
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    assert!(said.contains("hvdctl: step updating pip\n"), "{said}");
    assert!(said.ends_with("pip 23.2.1 cannot read pylock.toml; pip 26.1 and uv can\n"), "{said}");
    machine.stub("python3", &PYTHON.replace("echo \"pip 23.2.1", "echo \"pip 26.1"));
    succeeds(&machine.create_env(&Asked { more: "form=pylock exact=1", ..Asked::default() }));
    assert_eq!(machine.called(), "-m pip install -r pylock.toml\n");
}

#[test]
fn what_fails_or_is_cut_off_leaves_the_earlier_one() {
    for shell in shells() {
        let machine = Machine::with_python(false);
        succeeds(&machine.create_env(&Asked { shell, ..Asked::default() }));
        let earlier = fs::read_link(machine.path("state/env/default")).unwrap();
        let asked = |requirements| Asked { shell, requirements, more: "" };
        let output = machine.create_env(&asked("fails\n"));
        assert_eq!(output.status.code(), Some(4), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stdout).ends_with("ERROR: No matching distribution found for fails\n"));
        assert_eq!((fs::read_link(machine.path("state/env/default")).unwrap(), machine.builds()), (earlier.clone(), 1));

        // hvdctl is gone
        let (mut child, stdin) = machine.start_env(&asked("hangs\n"));
        let mut stdout = child.stdout.take().unwrap();
        let (mut said, mut bytes) = (String::new(), [0; 4096]);
        while !said.contains("Downloading hangs") {
            let count = stdout.read(&mut bytes).unwrap();
            assert!(count > 0, "{said}");
            said += &String::from_utf8_lossy(&bytes[..count]);
        }
        let listed = machine.prints(LIST, &machine.env_variables());
        assert!(listed.starts_with("env default complete\n"), "{listed}");
        drop(stdin);
        let begin = Instant::now();
        assert_eq!(child.wait().unwrap().code(), Some(4));
        assert!(begin.elapsed() < Duration::from_secs(5), "{shell}: SIGTERM is enough");
        assert_eq!((fs::read_link(machine.path("state/env/default")).unwrap(), machine.builds()), (earlier.clone(), 1));

        // the script itself is killed; what installs ends when its standard input does
        let (mut child, stdin) = machine.start_env(&asked("hangs\n"));
        wait_until("pip runs", || machine.builds() == 2 && calls(&machine) == 2);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(machine.builds(), 2, "it could not remove what it had made");
        drop(stdin);
        // the lock is free when all of them have ended
        succeeds(&machine.create_env(&asked("six==1.16.0\n")));
        assert_eq!(machine.builds(), 1);
        assert_ne!(fs::read_link(machine.path("state/env/default")).unwrap(), earlier);
    }
}

/// Returns the number of builds for which pip or uv was called.
fn calls(machine: &Machine) -> usize {
    let builds = fs::read_dir(machine.path("state/env/.builds")).unwrap();
    builds.filter(|build| build.as_ref().unwrap().path().join("called").exists()).count()
}

#[test]
fn one_from_which_a_process_runs_stays_until_that_has_ended() {
    let machine = Machine::with_python(false);
    succeeds(&machine.create_env(&Asked::default()));
    let build = fs::canonicalize(machine.path("state/env/default")).unwrap();
    let mut user = Command::new("sleep").arg("300").env("VIRTUAL_ENV", &build).spawn().unwrap();
    // a process that is just starting has the environment of its parent
    let environment = format!("/proc/{}/environ", user.id());
    wait_until("it runs", || fs::read_to_string(&environment).unwrap_or_default().contains("VIRTUAL_ENV="));
    let refused = machine.run(REMOVE, &machine.env_variables());
    let message = format!("a process runs from it (pid {})\n", user.id());
    assert_eq!((refused.status.code(), String::from_utf8_lossy(&refused.stderr)), (Some(5), message.into()));
    succeeds(&machine.create_env(&Asked { requirements: "six==1.16.0\n", ..Asked::default() }));
    assert!(build.join("hvdctl.env").exists() && machine.builds() == 2);
    user.kill().unwrap();
    user.wait().unwrap();
    // a worker, whose environment is in a file
    let worker = machine.path("state/run/hworker");
    fs::create_dir_all(&worker).unwrap();
    fs::write(worker.join("environment"), format!("export PATH='{}/bin:/bin'\n", build.display())).unwrap();
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let start = stat.rsplit(") ").next().unwrap().split(' ').nth(19).unwrap();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let note = |start: &str, boot: &str| {
        fs::write(worker.join("pid"), format!("{} {start} {}\n", std::process::id(), boot.trim())).unwrap();
    };
    note(start, &boot);
    assert_eq!(machine.run(REMOVE, &machine.env_variables()).status.code(), Some(5));
    let six = Asked { requirements: "six==1.16.0\n", ..Asked::default() };
    succeeds(&machine.create_env(&six));
    assert_eq!(machine.builds(), 2);
    // its number is another process's by now
    note("1", &boot);
    succeeds(&machine.create_env(&six));
    assert_eq!(machine.builds(), 1);
    succeeds(&machine.create_env(&Asked::default()));
    note(start, "before");
    assert_eq!(machine.prints(REMOVE, &machine.env_variables()), "removed\n");
    assert_eq!(machine.prints(REMOVE, &machine.env_variables()), "");
    assert!(!machine.path("state/env").exists(), "nothing is left");
    assert_eq!(machine.prints(LIST, &machine.env_variables()), "");
}

#[test]
fn what_hvdctl_has_not_made_stays() {
    let machine = Machine::with_python(false);
    let create = || machine.create_env(&Asked::default());
    let complaint = |output: Output| {
        assert!(!output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    fs::create_dir_all(machine.path("state/env/default")).unwrap();
    assert!(complaint(create()).contains("default exists and was not created by hvdctl"));
    assert!(machine.prints(PROBE, &machine.env_variables()).contains("\nforeign\n"));
    assert!(complaint(machine.run(REMOVE, &machine.env_variables())).contains("was not created by hvdctl"));
    fs::remove_dir(machine.path("state/env/default")).unwrap();
    symlink("/usr", machine.path("state/env/default")).unwrap();
    assert!(complaint(create()).contains("was not created by hvdctl"));
    fs::remove_dir_all(machine.path("state")).unwrap();
    fs::create_dir(machine.path("elsewhere")).unwrap();
    symlink(machine.path("elsewhere"), machine.path("state")).unwrap();
    assert!(complaint(create()).contains("state is a link or belongs to another user: remove it"));
    fs::remove_file(machine.path("state")).unwrap();
    // another command has the lock
    machine.stub("flock", "exit 1");
    assert_eq!(complaint(create()), "another command is changing the virtualenv default on this node\n");
    machine.stub("flock", "exit 0");
    let full = "case $1 in -p) exec /bin/mkdir \"$@\" ;; esac; echo 'mkdir: No space left on device' >&2; exit 1";
    machine.stub("mkdir", full);
    assert_eq!(complaint(create()), "mkdir: No space left on device\n");
}

#[test]
fn what_a_node_has_for_a_virtualenv() {
    let machine = Machine::with_python(true);
    // this machine may have them
    ["3.1", "3.11", "3.12", "3.13"].iter().for_each(|version| machine.stub(&format!("python{version}"), "exit 127"));
    let probe = |python: &str| {
        let text = machine.prints(PROBE, &format!("{}python={python}", machine.env_variables()));
        text.lines().filter(|line| line.starts_with("python ")).map(str::to_owned).collect::<Vec<_>>()
    };
    let own = machine.path("tools/python3").display().to_string();
    for asked in ["", "3", "3.11", "3.11.2", "python3", &own] {
        assert_eq!(probe(asked), [format!("python 3.11.2 {own}")], "{asked}");
    }
    for asked in ["3.1", "3.12", "3.11.20", "no-such-python", "/no/python3"] {
        assert_eq!(probe(asked), [""; 0], "{asked}");
    }
    machine.stub("python3.12", &PYTHON.replace("3.11.2", "3.12.1"));
    assert_eq!(probe("3.12"), [format!("python 3.12.1 {}", machine.path("tools/python3.12").display())]);
    // one that uv has installed
    machine.stub("opt/python3.13", &PYTHON.replace("3.11.2", "3.13.0"));
    let other = machine.path("tools/opt/python3.13").display().to_string();
    machine.stub("uv", &UV.replace("*) exit 2", &format!("*3.13) echo {other} ;; *) exit 2")));
    assert_eq!(probe("3.13"), [format!("python 3.13.0 {other}")]);
    machine
        .stub("python3", &PYTHON.replace("*ensurepip*) ;;", "*ensurepip*) printf 'a\\nNo module\\n' >&2; exit 1 ;;"));
    let text = machine.prints(PROBE, &machine.env_variables());
    assert!(text.contains("\nno-venv No module\n"), "{text}");
    assert!(!machine.path("state").exists(), "it changes nothing");
}

#[test]
fn the_lines_of_activate_come_first_and_their_failure_is_named() {
    let machine = Machine::with_python(false);
    machine.stub("modules/python3", &PYTHON.replace("3.11.2", "3.12.1"));
    let modules = machine.path("tools/modules").display().to_string();
    // a login shell may set PATH anew
    let path = format!("{modules}:{}", machine.path("tools").display());
    let lines = format!("echo loading\nmodule() {{ PATH=$1:$PATH; }}\nmodule '{path}'\nexport PS='a\tb'\n");
    let variables = |lines: &str| format!("{}activate={}", machine.env_variables(), quoted(lines.trim_end()));
    let text = machine.prints(PROBE, &variables(&lines));
    assert!(text.contains(&format!("python 3.12.1 {modules}/python3\n")) && !text.contains("loading"), "{text}");
    let said = machine.fails(PROBE, &variables("true\nls /no-such-module\nexit 0"));
    assert!(said.contains("activate: ls /no-such-module: exit code 2\n"), "{said}");
    let more = format!("activate={}", quoted(lines.trim_end()));
    let said = succeeds(&machine.create_env(&Asked { more: &more, ..Asked::default() }));
    assert!(said.contains("hvdctl: step creating the virtualenv with Python 3.12.1\n"), "{said}");
}

#[test]
fn wheels_arrive_as_they_were_sent() {
    let machine = Machine::new(&[("from/a/a-1.whl", "A")]);
    let hash = "559aead08264d5795d3909718cdd05abd49572e84fe55590eef31a88a08fdffd";
    let send = |directory: &str| {
        fs::rename(machine.path("from/a"), machine.path(&format!("from/{directory}"))).unwrap();
        let script = format!(
            "{}{}",
            machine.env_variables(),
            source(&["node/close.sh", "node/permissions.sh", "env/common.sh", "env/wheels.sh"])
        );
        let text = "tar -cf - -C \"$1\" \"$2\" | sh -c \"$3\"";
        let mut command = Command::new("sh");
        let output =
            command.args(["-c", text, "sh"]).arg(machine.path("from")).arg(directory).arg(script).output().unwrap();
        fs::rename(machine.path(&format!("from/{directory}")), machine.path("from/a")).unwrap();
        output
    };
    succeeds(&send(hash));
    let place = machine.path("state/env/.wheels/default");
    assert_eq!(fs::read_to_string(place.join(hash).join("a-1.whl")).unwrap(), "A");
    let refused = send("00");
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("a-1.whl arrived with different contents"),
        "{refused:?}"
    );
    assert_eq!(fs::read_dir(place).unwrap().count(), 1);
}

#[test]
fn the_states_of_virtualenvs() {
    let machine = Machine::with_python(false);
    succeeds(&machine.create_env(&Asked::default()));
    let states = || {
        let text = machine.prints(LIST, &machine.env_variables());
        text.lines().filter_map(|line| line.strip_prefix("env ").map(str::to_owned)).collect::<Vec<_>>()
    };
    fs::create_dir(machine.path("state/env/.builds/half.aB3xYz")).unwrap();
    assert_eq!(states(), ["default complete", "half incomplete"]);
    let lock = machine.path("state/env/.lock.half");
    fs::write(&lock, "").unwrap();
    assert_eq!(states(), ["default complete", "half incomplete"]);
    let mut holder = Command::new("flock").arg(&lock).args(["sleep", "300"]).spawn().unwrap();
    wait_until("the lock is held", || states()[1] == "half creating");
    holder.kill().unwrap();
    holder.wait().unwrap();
    // on a file system without locks
    machine.stub("flock", "exit 65");
    assert_eq!(states()[1], "half incomplete");
    let python = machine.path("state/env/default/bin/python");
    // it needs what a module sets
    let runs = fs::read_to_string(&python).unwrap();
    fs::write(&python, runs.replacen('\n', "\n[ -n \"$OF_MODULE\" ] || exit 127\n", 1)).unwrap();
    let with = |activate: &str| machine.prints(LIST, &format!("{} activate='{activate}'", machine.env_variables()));
    assert!(with("").starts_with("env default broken\n"));
    assert!(with("false").starts_with("env default broken\n"));
    assert!(with("export OF_MODULE=1").starts_with("env default complete\n"), "{}", with("export OF_MODULE=1"));
    fs::write(&python, runs).unwrap();
    fs::write(&python, fs::read_to_string(&python).unwrap().replace("3.11.2", "3.12.0")).unwrap();
    assert_eq!(states()[0], "default broken");
}
