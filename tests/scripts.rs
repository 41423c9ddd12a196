//! `scripts/test` in a checkout whose cargo, lints and lab are stand-ins.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Each stand-in writes its arguments to `calls`. One whose call has the words `$HANGS` waits for a child, whose
/// process id it writes to `pids`.
const STAND_IN: &str = r#"#!/bin/sh
call="${0##*/} $*"
echo "$call" >>"$CHECKOUT/calls"
# RESULT TARGET TEST: nothing for a success, `killed` for a target without a result, `gone` for a cargo that says nothing at all, `cut …`
# for one that is killed behind that result
report() {
  code=101
  case $1 in "cut "*) code=137; set -- "${1#cut }" "$2" "$3" ;; esac
  case $1 in
  '') echo "test result: ok. 1 passed; 0 failed; 0 ignored"; return ;;
  gone) exit 137 ;;
  killed) printf 'failures:\n    %s\n\n' "$3" ;;
  *) printf 'failures:\n    %s\n\ntest result: %s\n' "$3" "$1" ;;
  esac
  echo "error: test failed, to rerun pass \`--test $2\`"
  exit "$code"
}
case $call in *"--test lab"*"--test-threads"*) echo "running 1 test" ;; esac
case $call in
*"$HANGS"*) sleep 1000 & echo $! >>"$CHECKOUT/pids"; wait ;;
"lab check") [ -z "$FOREIGN" ] || { echo "lab: error: the lab of another checkout is up" >&2; exit 1; } ;;
"lab status") exit 1 ;;
"lint clippy "*) [ -z "$LINT" ] || exit 1 ;;
"lab up "*) mkdir -p .lab/p1 && : >.lab/p1/ssh_config ;;
*--list*numbers*) ;;
*--list*) echo "a_lab_test: test" ;;
"cargo test "*"--test lab"*"--exact"*) echo "test result: ${AGAIN#cut }"; case $AGAIN in ok.*) ;; cut*) exit 137 ;; *) exit 101 ;; esac ;;
"cargo test "*"--exact"*) echo "test result: ok. 0 passed; 0 failed; 0 ignored" ;;
"cargo test "*"--test lab"*"--test-threads"*) report "$LAB" lab keys::a_lab_test ;;
"cargo test "*"--test-threads"*) report "$OTHERS" cli a_test ;;
esac
"#;

/// The last line of `scripts/test` where a test has failed twice.
const FAILED: &str = "2 passed, 1 failed, 0 skipped";

struct Checkout {
    dir: tempfile::TempDir,
}

impl Checkout {
    fn new() -> Checkout {
        let checkout = Checkout { dir: tempfile::tempdir().unwrap() };
        for name in ["scripts/lab", "scripts/lint", "bin/cargo"] {
            checkout.write(name, STAND_IN);
        }
        checkout.write("scripts/test", include_str!("../scripts/test"));
        checkout.write("tests/lab/keys.rs", "fn a_lab_test() {}\n");
        checkout
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), text).unwrap();
        fs::set_permissions(self.path(name), Permissions::from_mode(0o755)).unwrap();
    }

    fn lines(&self, name: &str) -> Vec<String> {
        fs::read_to_string(self.path(name)).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    /// `scripts/test` with these variables in addition.
    fn command(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Command {
        let path = format!("{}:{}", self.path("bin").display(), std::env::var("PATH").unwrap());
        // bash cannot trap what it was started to ignore
        let mut test = Command::new("env");
        test.args(["--default-signal=HUP,INT,TERM", "bash"]).arg(self.path("scripts/test")).args(arguments);
        test.env("PATH", path).env("CHECKOUT", self.dir.path()).env_remove("CI").env_remove("FOREIGN");
        test.env("HANGS", "nothing hangs").envs(variables.iter().copied());
        test.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        test
    }

    fn run(&self, arguments: &[&str], variables: &[(&str, &str)]) -> (Output, Vec<String>) {
        let _ = fs::remove_file(self.path("calls"));
        (self.command(arguments, variables).output().unwrap(), self.lines("calls"))
    }
}

/// Waits for what must happen soon.
#[track_caller]
fn wait_until(what: &str, mut happens: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !happens() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status().unwrap().success());
}

#[test]
fn a_signal_ends_all_that_scripts_test_has_started_and_its_lab() {
    // the lab starts in the background; tests with and without it run at the same time
    for (hangs, count, name, code) in [
        ("lint", 1, "TERM", 143),
        ("lab up", 1, "TERM", 143),
        ("cargo test --quiet --no-run", 1, "INT", 130),
        ("--test-threads", 2, "TERM", 143),
        ("--test-threads", 2, "HUP", 129),
    ] {
        let checkout = Checkout::new();
        let mut test = checkout.command(&[], &[("HANGS", hangs)]).spawn().unwrap();
        wait_until(&format!("{hangs} is not called: {:?}", checkout.lines("calls")), || {
            checkout.lines("pids").len() == count
                && checkout.lines("calls").iter().any(|call| call.starts_with("lab up"))
        });
        signal(&test, name);
        assert_eq!(test.wait().unwrap().code(), Some(code), "{hangs} {name}");
        for pid in checkout.lines("pids") {
            // a zombie has no arguments
            let arguments = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            assert!(!arguments.starts_with("sleep"), "{hangs} {name}: {arguments}");
        }
        assert_eq!(checkout.lines("calls").last().unwrap(), "lab down", "{hangs} {name}");
    }
}

#[test]
fn the_lab_of_another_checkout_is_named_before_anything_is_compiled() {
    let checkout = Checkout::new();
    let foreign = [("FOREIGN", "1")];
    for arguments in [&[][..], &["a_lab"], &["keys::a_lab_test"], &["--full"]] {
        let (output, calls) = checkout.run(arguments, &foreign);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), calls), (Some(1), vec!["lab check".to_owned()]), "{arguments:?}: {stderr}");
        assert!(stderr.contains("the lab of another checkout is up") && stderr.contains("--no-lab"), "{stderr}");
    }
    // what needs no lab, and CI, which replaces the other one
    for (arguments, variables) in [
        (&["--no-lab"][..], foreign.to_vec()),
        (&["--no-lab", "a_lab"], foreign.to_vec()),
        (&["parses_numbers"], foreign.to_vec()),
        (&[], vec![("FOREIGN", "1"), ("CI", "true")]),
        (&[], vec![]),
    ] {
        let (output, calls) = checkout.run(arguments, &variables);
        let shown = format!("{arguments:?} {calls:?}: {output:?}");
        assert!(output.status.success(), "{shown}");
        assert_eq!(calls.contains(&"lab check".to_owned()), variables.is_empty(), "{shown}");
        let up = calls.iter().find(|call| call.starts_with("lab up"));
        assert_eq!(up.is_some(), arguments.is_empty(), "{shown}");
        assert_eq!(up.is_some_and(|up| up.ends_with("--replace")), variables.len() == 2, "{shown}");
        assert_eq!(calls.last().unwrap() == "lab down", up.is_some(), "{shown}");
    }
}

#[test]
fn a_test_that_fails_among_others_runs_once_more_alone_and_is_named() {
    for (lab, again, last, passes_alone) in [
        (
            "FAILED. 1 passed; 1 failed; 0 ignored",
            "ok. 1 passed; 0 failed; 0 ignored",
            "3 passed, 0 failed, 0 skipped, 1 only alone",
            true,
        ),
        ("FAILED. 1 passed; 1 failed; 0 ignored", "FAILED. 0 passed; 1 failed; 0 ignored", FAILED, false),
        // one that was not found has not passed
        ("FAILED. 1 passed; 1 failed; 0 ignored", "ok. 0 passed; 0 failed; 0 ignored", FAILED, false),
        // the runner was killed behind it
        ("FAILED. 1 passed; 1 failed; 0 ignored", "cut ok. 1 passed; 0 failed; 0 ignored", FAILED, false),
    ] {
        let checkout = Checkout::new();
        let (output, calls) = checkout.run(&[], &[("LAB", lab), ("AGAIN", again)]);
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.success(), passes_alone, "{stdout}");
        assert_eq!(stdout.lines().last(), Some(last), "{stdout}");
        assert_eq!(stdout.contains("passed only when nothing else ran: keys::a_lab_test"), passes_alone, "{stdout}");
        assert!(calls.iter().any(|call| call.ends_with("--test-threads=1 --exact keys::a_lab_test")), "{calls:?}");
    }
    // what a runner that was killed has not run is unknown, also if another one has a test that can be repeated
    let failed = "FAILED. 1 passed; 1 failed; 0 ignored";
    let cut = &format!("cut {failed}");
    for (lab, others) in [("killed", ""), ("gone", ""), ("gone", failed), (cut, ""), ("", cut), (cut, failed)] {
        let checkout = Checkout::new();
        let again = "ok. 1 passed; 0 failed; 0 ignored";
        let (output, calls) = checkout.run(&[], &[("LAB", lab), ("OTHERS", others), ("AGAIN", again)]);
        assert!(!output.status.success(), "{lab} {others}: {output:?}");
        assert!(!calls.iter().any(|call| call.contains("--exact")), "{lab} {others}: {calls:?}");
    }
}

#[test]
fn what_needs_no_lab_is_linted_and_compiled_while_lab_tests_run() {
    for (lint, succeeds) in [("", true), ("fails", false)] {
        let checkout = Checkout::new();
        let (output, calls) = checkout.run(&[], &[("LINT", lint)]);
        assert_eq!(output.status.success(), succeeds, "{output:?}");
        assert!(String::from_utf8_lossy(&output.stdout).ends_with("\n2 passed, 0 failed, 0 skipped\n"), "{output:?}");
        let at = |words: &[&str]| {
            let found = calls.iter().position(|call| words.iter().all(|word| call.contains(word)));
            found.unwrap_or_else(|| panic!("no {words:?} in {calls:?}"))
        };
        let on_lab = at(&["--test lab", "--test-threads"]);
        assert!(at(&["lint format shell python"]) < on_lab, "{calls:?}");
        let others = [at(&["lint clippy macos docs"]), at(&["--no-run --lib"]), at(&["--lib", "--test-threads"])];
        assert!(on_lab < others[0] && others.is_sorted(), "{calls:?}");
    }
}

/// A page with two rows, the second of which is the older one.
const TURNS: &str = "| tests | variant | last run | result |\n|---|---|---|---|\n| `keys::` | | 2026-02-01 | passed |\n\
                     | `full::x` | a, b | 2026-01-01 | passed |\n";

#[test]
fn the_part_of_full_that_was_run_longest_ago_is_run_and_its_result_is_written() {
    let checkout = Checkout::new();
    checkout.write("scripts/turn", include_str!("../scripts/turn"));
    let today = || {
        let date = Command::new("date").args(["-u", "+%F"]).output().unwrap();
        String::from_utf8(date.stdout).unwrap().trim().to_owned()
    };
    let runs =
        [(0, "1 passed, 0 failed", "passed"), (1, "1 passed, 1 failed", "failed"), (1, "no lab", ""), (130, "", "")];
    for (code, said, result) in runs {
        let written = !result.is_empty();
        checkout.write("docs/development/full.md", TURNS);
        checkout.write(
            "scripts/test",
            &format!("#!/bin/sh\necho \"$* $HVDCTL_TEST_VARIANT\" >asked\necho '{said}'\nexit {code}\n"),
        );
        let before = today();
        let done = Command::new("bash").arg(checkout.path("scripts/turn")).output().unwrap();
        assert_eq!(done.status.code(), Some(code), "{done:?}");
        assert_eq!(checkout.lines("asked"), ["--full full::x a, b"]);
        let line = |day: &str| format!("| `full::x` | a, b | {day} | {result} |");
        let now = fs::read_to_string(checkout.path("docs/development/full.md")).unwrap();
        let rewritten =
            [before, today()].iter().any(|day| now == TURNS.replace(TURNS.lines().last().unwrap(), &line(day)));
        assert_eq!((rewritten, now == TURNS), (written, !written), "{now}");
    }
}

#[test]
fn each_file_with_tests_that_only_full_runs_has_its_turn() {
    let page = include_str!("../docs/development/full.md");
    let files = |directory: &str| {
        let entries = fs::read_dir(format!("{}/{directory}", env!("CARGO_MANIFEST_DIR"))).unwrap().flatten();
        let text = |path: PathBuf| Some((path.file_stem()?.to_str()?.to_owned(), fs::read_to_string(&path).ok()?));
        entries.filter_map(move |entry| text(entry.path())).collect::<Vec<_>>()
    };
    let with_full = files("tests/lab").into_iter().filter(|(_, text)| text.contains("\nmod full {"));
    let whole = files("tests/lab/full").into_iter().filter(|(_, text)| text.contains("#[test]"));
    let rows = with_full.map(|(name, _)| format!("| `{name}::`"));
    let rows: Vec<String> = rows.chain(whole.map(|(name, _)| format!("| `full::{name}"))).collect();
    assert!(rows.len() > 30, "{rows:?}");
    let missing: Vec<&String> = rows.iter().filter(|row| !page.contains(*row)).collect();
    assert!(missing.is_empty(), "no row of docs/development/full.md begins with {missing:?}");
}
