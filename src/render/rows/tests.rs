use super::*;
use crate::error::NodeError;
use crate::event::Step;
use crate::render::tests::terminal::Terminal;

/// The renderer under test, and the test's own time.
struct Shown {
    rows: Rows,
    terminal: Terminal,
    now: Instant,
}

impl Shown {
    fn on(terminal: &Terminal, streams_output: bool) -> Shown {
        console::set_colors_enabled(false);
        console::set_colors_enabled_stderr(false);
        let options = Options { json: false, quiet: false, verbose: 0, has_rows: true, streams_output };
        Shown { rows: Rows::on(terminal, options), terminal: terminal.clone(), now: Instant::now() }
    }

    fn show(&mut self, event: Event) {
        self.rows.show(event, self.now);
    }

    fn pass(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
    }

    /// Draws the rows and returns the lines of the terminal.
    fn drawn(&mut self) -> Vec<String> {
        self.rows.draw(self.now);
        self.terminal.lines()
    }
}

fn busy(node: &str, step: &str) -> Event {
    Event::StepStarted { node: node.into(), step: Step::write(step.to_owned()) }
}

fn ended(node: &str, step: &str) -> Event {
    Event::StepEnded { node: node.into(), step: Step::write(step.to_owned()) }
}

fn done(node: &str, what: &str) -> Event {
    Event::Done { node: node.into(), what: what.into() }
}

fn nodes(n: usize) -> Vec<String> {
    (1..=n).map(|i| format!("node{i:03}")).collect()
}

#[test]
fn every_node_has_a_row_that_says_what_it_is_at() {
    let terminal = Terminal::new(12, 70);
    let mut rows = Shown::on(&terminal, false);
    rows.show(Event::Nodes(["node1", "node2", "node3", "node4"].map(str::to_owned).to_vec()));
    rows.show(busy("node1", "connecting"));
    rows.show(busy("node2", "connecting"));
    rows.show(busy("node3", "connecting"));
    rows.pass(7);
    rows.show(busy("node1", "starting hworker"));
    rows.show(done("node2", "unchanged"));
    rows.pass(65);
    rows.show(Event::failed(NodeError::failed("node3", "start hworker", "no space\nleft").hint("x")));
    rows.pass(1);
    // of what is under way the step's time, of what is over that of all steps
    assert_eq!(
        rows.drawn(),
        [
            "* node1  1m06s  starting hworker",
            "✔ node2     7s  unchanged",
            "✘ node3  1m12s  cannot start hworker: no space",
            "· node4         waiting",
        ]
    );
    rows.show(busy("node1", "starting hworker"));
    assert!(rows.drawn()[0].contains(" 1m06s "), "the same step goes on");
    rows.show(Event::Note("a note".into()));
    for step in ["connecting", "starting hworker", "starting hworker"] {
        rows.show(ended("node1", step));
    }
    rows.show(Event::Phase(Phase::Comparing));
    assert_eq!(
        rows.drawn(),
        [
            "a note",
            "* comparing  0s",
            "· node1     0s  waiting",
            "✔ node2     7s  unchanged",
            "✘ node3  1m12s  cannot start hworker: no space",
            "· node4         waiting",
        ]
    );
    rows.rows.finish();
    assert_eq!(terminal.lines(), ["a note"], "the result says the rest");
}

#[test]
fn what_was_done_stays_above_what_the_ranks_write() {
    let terminal = Terminal::new(12, 60);
    let mut rows = Shown::on(&terminal, true);
    rows.show(Event::Nodes(nodes(3)));
    rows.show(Event::Job { id: "x".into(), state: job_state::JobState::Starting });
    for node in nodes(2) {
        rows.show(done(&node, "project unchanged"));
    }
    rows.show(done("node003", "uploaded 1 file, 1.0 KiB"));
    rows.rows.tick(rows.now);
    rows.show(Event::Job { id: "x".into(), state: job_state::JobState::Running });
    let done = ["✔ node[001-002] project unchanged", "✔ node003 uploaded 1 file, 1.0 KiB"];
    assert_eq!(terminal.lines(), done);
    // between the ranks' lines nothing moves, and when they are silent the time does
    let output =
        || Event::Output { rank: 0, role: None, node: "node001".into(), stream: Stream::Stdout, line: b"x".to_vec() };
    rows.show(output());
    for (seconds, running) in [(1, None), (0, None), (1, Some("2s")), (60, Some("1m02s"))] {
        rows.pass(seconds);
        rows.rows.tick(rows.now);
        assert_eq!(terminal.lines().get(2).cloned(), running.map(|time| format!("* job x is running  {time}")));
    }
    rows.show(output());
    assert_eq!(terminal.lines(), done);
}

#[test]
fn a_transfer_has_a_bar_with_bytes_rate_and_time_left() {
    let terminal = Terminal::new(10, 80);
    let mut rows = Shown::on(&terminal, false);
    let pulling = |gib: u64, image: &str| Event::Transfer {
        node: "node1".into(),
        what: format!("pulling {image}"),
        done: gib << 30,
        total: 4 << 30,
        rate: 5 << 20,
    };
    rows.show(busy("node1", "connecting"));
    rows.drawn();
    rows.show(pulling(1, "registry.example.org/team/horovod:latest"));
    let row = rows.drawn().remove(0);
    assert_eq!(row, "* node1     0s  pulling r ██░░░░░░░░  1.0 GiB of 4.0 GiB, 5.0 MiB/s, 10m14s left");
    rows.show(pulling(2, "x:1"));
    let row = rows.drawn().remove(0);
    assert_eq!(row, "* node1     0s  pulling x: █████░░░░░  2.0 GiB of 4.0 GiB, 5.0 MiB/s, 6m49s left");
    terminal.resize(10, 40);
    assert_eq!(rows.drawn(), ["* node1     0s  pulling x:1          50%"]);
    rows.show(busy("node1", "starting hworker"));
    assert_eq!(rows.drawn(), ["* node1     0s  starting hworker"]);
}

#[test]
fn a_step_that_ends_leaves_the_others_of_its_node() {
    let terminal = Terminal::new(10, 80);
    let mut rows = Shown::on(&terminal, false);
    let uploading = Step::transfer("uploading 3 files, 4.0 MiB".into());
    rows.show(Event::StepStarted { node: "node1".into(), step: uploading.clone() });
    rows.show(busy("node1", "start hworker"));
    let (node, what) = ("node1".to_owned(), "uploading".to_owned());
    rows.show(Event::Transfer { node, what, done: 1 << 20, total: 4 << 20, rate: 0 });
    rows.show(ended("node1", "start hworker"));
    assert!(rows.drawn()[0].starts_with("* node1     0s  uploading  "));
    rows.show(busy("node1", "remove hshell-x"));
    rows.show(Event::StepEnded { node: "node1".into(), step: uploading });
    assert_eq!(rows.drawn(), ["* node1     0s  remove hshell-x"]);
    rows.show(ended("node1", "remove hshell-x"));
    assert_eq!(rows.drawn(), ["· node1     0s  waiting"]);
}

#[test]
fn two_hundred_nodes_on_twenty_lines() {
    let terminal = Terminal::new(20, 70);
    let mut rows = Shown::on(&terminal, false);
    let all = nodes(200);
    rows.show(Event::Nodes(all.clone()));
    assert_eq!(rows.drawn(), ["  200 nodes: 200 waiting"]);
    for node in &all[..64] {
        rows.show(busy(node, "connecting"));
    }
    let seen = rows.drawn();
    let first: Vec<String> = all[..18].iter().map(|node| format!("* {node}     0s  connecting")).collect();
    assert_eq!((&seen[..18], seen[18].as_str()), (&first[..], "  182 more: 46 busy, 136 waiting"));
    assert_eq!(seen.len(), 19, "the last line is the cursor's");

    // those that are over make room, and those that have failed stay
    for node in &all[..10] {
        rows.show(done(node, "unchanged"));
    }
    for node in &all[10..14] {
        rows.show(Event::failed(NodeError::unreachable(node, "log in by ssh", "Connection refused")));
    }
    let seen = rows.drawn();
    assert_eq!(seen[0], "✘ node011     0s  cannot log in by ssh: Connection refused");
    assert_eq!(seen[4], "* node015     0s  connecting");
    assert_eq!((seen.len(), seen[18].as_str()), (19, "  182 more: 36 busy, 10 done, 136 waiting"));

    // however many fail, half of the rows are for those that are still busy
    for node in &all[100..150] {
        rows.show(Event::failed(NodeError::unreachable(node, "log in by ssh", "Connection refused")));
    }
    let seen = rows.drawn();
    assert_eq!(seen.iter().filter(|line| line.starts_with('✘')).count(), 9);
    assert_eq!(seen[18], "  182 more: 41 busy, 45 failed, 10 done, 86 waiting");

    // nothing of it has moved the screen, and it goes without a trace
    for _ in 0..50 {
        rows.drawn();
    }
    assert_eq!(terminal.scrolled(), 0);
    rows.rows.finish();
    assert_eq!((terminal.lines(), terminal.scrolled()), (Vec::new(), 0));
}

#[test]
fn rows_follow_the_terminals_size() {
    let terminal = Terminal::new(10, 60);
    let mut rows = Shown::on(&terminal, false);
    let all = nodes(30);
    for node in &all {
        rows.show(busy(node, "making a worker of the new image"));
    }
    assert_eq!(rows.drawn().len(), 9);
    terminal.resize(16, 60);
    assert_eq!(rows.drawn().len(), 15);
    // narrow: cut, not wrapped, and the time is still there
    terminal.resize(16, 24);
    let seen = rows.drawn();
    assert_eq!(seen.last().unwrap(), "  16 more: 16 busy");
    assert_eq!(seen.iter().filter(|line| *line == "* node030     0s  making").count(), 0, "{seen:?}");
    assert!(seen.contains(&"* node001     0s  making".to_owned()), "{seen:?}");
    for (height, width) in [(1, 1), (2, 3), (3, 80), (1, 80)] {
        terminal.resize(height, width);
        assert!(rows.drawn().len() < usize::from(height).max(1), "{height} {width}");
    }
}

#[test]
fn wrapped_rows_take_more_lines() {
    assert_eq!(
        [wrapped(3, 60, 60), wrapped(3, 60, 59), wrapped(3, 60, 20), wrapped(3, 80, 50), wrapped(1, 80, 0)],
        [3, 4, 9, 5, 80]
    );
}

#[test]
fn words_that_would_move_the_cursor_do_not() {
    let terminal = Terminal::new(10, 60);
    let mut rows = Shown::on(&terminal, false);
    rows.show(busy("node1", "a\r\x1b[31mb\x1b[2J\nc"));
    assert_eq!(rows.drawn(), ["* node1     0s  a b c"]);
}

#[test]
fn a_question_finds_the_terminal_empty_and_the_rows_come_back() {
    let terminal = Terminal::new(10, 60);
    let mut rows = Shown::on(&terminal, false);
    rows.show(busy("node1", "connecting"));
    rows.rows.tick(rows.now);
    assert_eq!(terminal.lines().len(), 1);
    rows.rows.hide();
    assert_eq!(terminal.lines(), Vec::<String>::new());
    assert_eq!(rows.drawn(), ["* node1     0s  connecting"]);
}
