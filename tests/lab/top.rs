//! A running job on a screen of its own, as lines, and in a report.

use crate::process::{eventually, run, s};
use crate::shell::Typed;
use crate::state::{Lab, no_job_is_left, on};
use std::fs;
use std::process::Command;

/// Starts a program on a terminal, closes that after a second in which something was written to it, and prints the exit
/// code.
const HANG_UP: &str = "import os, pty, subprocess, sys, time
ours, theirs = pty.openpty()
child = subprocess.Popen(['setsid', '--ctty'] + sys.argv[1:], stdin=theirs, stdout=theirs, stderr=theirs)
os.close(theirs)
os.read(ours, 1)
time.sleep(1)
os.close(ours)
print(child.wait(60))";

/// Returns the contents of the terminal: only cells that differ are written to it.
fn shown(top: &Typed) -> String {
    let mut terminal = vt100::Parser::new(24, 80, 0);
    terminal.process(top.text().as_bytes());
    terminal.screen().contents()
}

#[test]
fn a_running_job_is_watched_on_a_screen_and_reported_afterwards() {
    let lab = Lab::up();
    lab.edit("[defaults]", "sample_s = 1\n[defaults]");
    lab.hvdctl(&["top"]).code(2).complains(&["top needs a terminal", "hvdctl top --json"]);
    lab.hvdctl(&["top", "--json"]).code(1).says(&["no job is running"]);
    let program = "while :; do echo \"loss 0.$RANK\"; sleep 0.2; done";
    lab.hvdctl(&["run", "-np", "2", "-d", "--launcher", "env", "--", "sh", "-c", program]).code(0);
    let top = Typed::of(&lab.command(&["top", "--grep", "loss"]));
    top.size(24, 80);
    let before = top.settings();
    // what both ranks print, and a sample of one
    let has = |words: &[&str]| words.iter().all(|word| shown(&top).contains(word));
    assert!(eventually(s(60), || has(&["2 of 2 ranks run", "loss 0.0", "loss 0.1", "%"])), "{}", shown(&top));
    assert_ne!(top.settings().local_modes, before.local_modes, "keys are read as they are typed");
    // where the ranks are, and back; what py-spy is to be had does not matter
    top.keys("s");
    assert!(eventually(s(30), || has(&["any other key: back"])), "{}", shown(&top));
    top.keys("q");
    assert!(eventually(s(30), || has(&["2 of 2 ranks run", "s: stacks"])), "{}", shown(&top));
    top.keys("q");
    assert!(eventually(s(30), || top.settings().local_modes == before.local_modes), "{}", top.text());
    assert!(eventually(s(30), || top.text().contains("\x1b[?1049l")), "the screen is gone: {}", top.text());
    top.end(0);
    // a terminal that is gone ends it, as a hangup does, and nothing of it is left
    let inner = lab.command(&["top"]);
    let mut lost = Command::new("python3");
    lost.args(["-c", HANG_UP]).arg(inner.get_program()).args(inner.get_args()).env("TERM", "xterm");
    lost.current_dir(inner.get_current_dir().unwrap());
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => lost.env(name, value),
            None => lost.env_remove(name),
        };
    }
    // by the signal, or because nothing can be drawn any more
    let code = run(lost, s(90)).code(0).out;
    assert!(["129", "1"].contains(&code.trim()), "{code}");
    assert!(eventually(s(30), || on("node1", "pgrep -f '^tail -c'; :").is_empty()), "a follower is left");
    // the same as lines, until the job ends
    let mut lines = lab.start(&["top", "--json"]);
    lines.until(&["\"event\":\"rank_usage\"", "\"event\":\"node_usage\""], s(60));
    lab.hvdctl(&["stop"]).code(0);
    let end = lines.end(s(60)).code(0).out;
    assert!(end.lines().last().is_some_and(|line| line.contains("\"state\":\"stopped\"")), "{end}");
    no_job_is_left();
    lab.hvdctl(&["report", "-o", "job.html"]).code(0).says(&["wrote job.html"]);
    let page = fs::read_to_string(lab.path().join("job.html")).unwrap();
    assert!(
        page.contains("stopped") && page.contains("Processors, in cores") && !page.contains("What is missing"),
        "{page}"
    );
}
