use super::*;
use crate::error::NodeError;
use std::sync::{Arc, Mutex};

/// A terminal in memory.
#[derive(Clone)]
struct Fake(Arc<Mutex<vt100::Parser>>);

impl Fake {
    fn new(rows: u16, columns: u16) -> Fake {
        Fake(Arc::new(Mutex::new(vt100::Parser::new(rows, columns, 1000))))
    }

    /// Its lines, without empty ones at the end. The spinner's signs are one.
    fn lines(&self) -> Vec<String> {
        let parser = self.0.lock().unwrap();
        let (_, columns) = parser.screen().size();
        let still = |c: char| if ('\u{2800}'..='\u{28ff}').contains(&c) { '*' } else { c };
        let mut lines: Vec<String> =
            parser.screen().rows(0, columns).map(|line| line.trim_end().chars().map(still).collect()).collect();
        while lines.last().is_some_and(String::is_empty) {
            lines.pop();
        }
        lines
    }

    fn resize(&self, rows: u16, columns: u16) {
        self.0.lock().unwrap().screen_mut().set_size(rows, columns);
    }

    /// How many lines have left the screen at its top.
    fn scrolled(&self) -> usize {
        let mut parser = self.0.lock().unwrap();
        parser.screen_mut().set_scrollback(usize::MAX);
        let lines = parser.screen().scrollback();
        parser.screen_mut().set_scrollback(0);
        lines
    }
}

impl Terminal for Fake {
    fn size(&self) -> (usize, usize) {
        let (rows, columns) = self.0.lock().unwrap().screen().size();
        (rows.into(), columns.into())
    }

    fn write(&mut self, text: &str) {
        self.0.lock().unwrap().process(text.as_bytes());
    }

    fn shows_output(&self) -> bool {
        true
    }
}

/// The renderer under test, and the test's own time.
struct Shown {
    rows: Rows<Fake>,
    terminal: Fake,
    now: Instant,
}

impl Shown {
    fn on(terminal: &Fake, result_names_nodes: bool) -> Shown {
        console::set_colors_enabled_stderr(false);
        let options = Options { json: false, quiet: false, verbose: 0, result_names_nodes };
        Shown { rows: Rows::new(terminal.clone(), options), terminal: terminal.clone(), now: Instant::now() }
    }

    fn show(&mut self, event: Event) {
        self.rows.show(event, self.now);
    }

    fn pass(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
    }

    /// What stands there once the rows are drawn.
    fn drawn(&mut self) -> Vec<String> {
        self.rows.draw(self.now);
        self.terminal.lines()
    }
}

fn busy(node: &str, step: &str) -> Event {
    Event::Busy { node: node.into(), step: step.into(), reads: false }
}

fn done(node: &str, what: &str) -> Event {
    Event::Done { node: node.into(), what: what.into() }
}

fn nodes(n: usize) -> Vec<String> {
    (1..=n).map(|i| format!("node{i:03}")).collect()
}

#[test]
fn every_node_has_a_row_that_says_what_it_is_at() {
    let terminal = Fake::new(12, 70);
    let mut rows = Shown::on(&terminal, true);
    rows.show(Event::Nodes(["node1", "node2", "node3", "node4"].map(str::to_owned).to_vec()));
    rows.show(busy("node1", "connecting"));
    rows.show(busy("node2", "connecting"));
    rows.show(busy("node3", "connecting"));
    rows.pass(7);
    rows.show(busy("node1", "starting hworker"));
    rows.show(done("node2", "unchanged"));
    rows.pass(65);
    rows.show(Event::Failed(NodeError::failed("node3", "start hworker", "no space\nleft").hint("x")));
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
    rows.show(Event::Note("a remark".into()));
    rows.show(Event::Idle { node: "node1".into() });
    rows.show(Event::Phase("looking closer".into()));
    assert_eq!(
        rows.drawn(),
        [
            "a remark",
            "* looking closer  0s",
            "· node1     0s  waiting",
            "✔ node2     7s  unchanged",
            "✘ node3  1m12s  cannot start hworker: no space",
            "· node4         waiting",
        ]
    );
    rows.rows.finish();
    assert_eq!(terminal.lines(), ["a remark"], "the result says the rest");
}

#[test]
fn what_was_done_stays_above_what_the_ranks_write() {
    let terminal = Fake::new(12, 60);
    let mut rows = Shown::on(&terminal, false);
    rows.show(Event::Nodes(nodes(3)));
    rows.show(Event::Job { id: "x".into(), state: State::Starting });
    for node in nodes(2) {
        rows.show(done(&node, "project unchanged"));
    }
    rows.show(done("node003", "shipped 1 file, 1.0 KiB"));
    rows.rows.tick(rows.now);
    rows.show(Event::Job { id: "x".into(), state: State::Running });
    let done = ["✔ node[001-002] project unchanged", "✔ node003 shipped 1 file, 1.0 KiB"];
    assert_eq!(terminal.lines(), done);
    // between the ranks' lines nothing moves, and when they are silent the time does
    let output = Event::Output { rank: 0, node: "node001".into(), stderr: false, line: b"x".to_vec() };
    rows.show(output.clone());
    for (seconds, running) in [(1, None), (0, None), (1, Some("2s")), (60, Some("1m02s"))] {
        rows.pass(seconds);
        rows.rows.tick(rows.now);
        assert_eq!(terminal.lines().get(2).cloned(), running.map(|time| format!("* the run x is under way  {time}")));
    }
    rows.show(output);
    assert_eq!(terminal.lines(), done);
}

#[test]
fn a_transfer_says_how_far_it_is_however_long_its_name() {
    let terminal = Fake::new(10, 60);
    let mut rows = Shown::on(&terminal, true);
    let what = |image: &str| Event::Transfer {
        node: "node1".into(),
        what: format!("pulling {image}"),
        done: 1 << 30,
        total: 3 << 30,
        rate: 5 << 20,
    };
    rows.show(what("x:1"));
    assert_eq!(rows.drawn(), ["* node1     0s  pulling x:1: 1.0 GiB of 3.0 GiB, 5.0 MiB/s"]);
    rows.show(what("registry.example.org/team/horovod:latest"));
    assert_eq!(rows.drawn(), ["* node1     0s  pulling reg…: 1.0 GiB of 3.0 GiB, 5.0 MiB/s"]);
}

#[test]
fn two_hundred_nodes_on_twenty_lines() {
    let terminal = Fake::new(20, 70);
    let mut rows = Shown::on(&terminal, true);
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
        rows.show(Event::Failed(NodeError::unreachable(node, "log in by ssh", "Connection refused")));
    }
    let seen = rows.drawn();
    assert_eq!(seen[0], "✘ node011     0s  cannot log in by ssh: Connection refused");
    assert_eq!(seen[4], "* node015     0s  connecting");
    assert_eq!((seen.len(), seen[18].as_str()), (19, "  182 more: 36 busy, 10 done, 136 waiting"));

    // however many fail, half of the rows are for those that are still busy
    for node in &all[100..150] {
        rows.show(Event::Failed(NodeError::unreachable(node, "log in by ssh", "Connection refused")));
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
    let terminal = Fake::new(10, 60);
    let mut rows = Shown::on(&terminal, true);
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
    assert_eq!(seen.iter().filter(|line| *line == "* node030     0s  makin…").count(), 0, "{seen:?}");
    assert!(seen.contains(&"* node001     0s  maki…".to_owned()), "{seen:?}");
    for (height, width) in [(1, 1), (2, 3), (3, 80), (1, 80)] {
        terminal.resize(height, width);
        assert!(rows.drawn().len() < usize::from(height).max(1), "{height} {width}");
    }
}

#[test]
fn a_terminal_that_has_folded_the_rows_is_cleared_of_all_of_them() {
    let terminal = Fake::new(10, 60);
    let mut rows = Shown::on(&terminal, true);
    rows.show(busy("node1", "making a worker of the new image"));
    rows.rows.tick(rows.now);
    // rows of 48 columns take three lines of 20
    assert_eq!(rows.rows.back(10, 60), "\r\x1b[1A");
    assert_eq!(rows.rows.back(10, 20), "\r\x1b[3A");
    assert_eq!(rows.rows.back(2, 20), "\r\x1b[1A", "above the first line there is nothing");
}

#[test]
fn words_that_would_move_the_cursor_do_not() {
    let terminal = Fake::new(10, 60);
    let mut rows = Shown::on(&terminal, true);
    rows.show(busy("node1", "a\r\x1b[31mb\x1b[2J\nc"));
    assert_eq!(rows.drawn(), ["* node1     0s  a b c"]);
}

#[test]
fn a_question_finds_the_terminal_empty_and_the_rows_come_back() {
    let terminal = Fake::new(10, 60);
    let mut rows = Shown::on(&terminal, true);
    rows.show(busy("node1", "connecting"));
    rows.rows.tick(rows.now);
    assert_eq!(terminal.lines().len(), 1);
    rows.rows.hide();
    assert_eq!(terminal.lines(), Vec::<String>::new());
    assert_eq!(rows.drawn(), ["* node1     0s  connecting"]);
}
