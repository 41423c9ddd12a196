use super::draw::{DrawOptions, draw};
use super::view::View;
use crate::launch::placement::{Placement, Share};
use crate::model::role::{Ends, RecordedRole};
use crate::model::usage::Sampled;
use crate::record::frames::Parser;
use crate::record::list::{Job, StoredJobs, add, jobs};
use crate::record::{Record, stored};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Color;
use std::fmt::Write as _;

/// The present in the tests.
const NOW: f64 = 1_795_000_600.0;

/// A job that runs for ten minutes, with so many ranks on each of these nodes.
fn job(nodes: &[&str], ranks: u32, sample: u64) -> Job {
    let share = |(i, node): (usize, &&str)| Share {
        node: (*node).to_owned(),
        ranks,
        first: ranks * u32::try_from(i).unwrap(),
        ..Share::default()
    };
    let record = Record {
        id: "20261117-102640-abcd".into(),
        cluster: "lab".into(),
        name: "digits".into(),
        created: NOW - 600.0,
        placement: Placement { shares: nodes.iter().enumerate().map(share).collect(), ..Placement::default() },
        sample,
        ..Record::default()
    };
    let mut all = StoredJobs::new();
    let record = stored::write_checked("job.json", &record).unwrap();
    add(&mut all, nodes[0], &format!("./20261117-102640-abcd/job.json:{record}\n"));
    jobs("lab", all, nodes, NOW).remove(0)
}

/// Takes frames of a node with times before the present, in seconds.
fn take(view: &mut View, node: &str, text: &str) -> Vec<Sampled> {
    let mut log = String::new();
    for line in text.lines() {
        let (ago, rest) = line.split_once(' ').unwrap();
        let _ = writeln!(log, "{:.3} {rest}", NOW + 5.0 - ago.parse::<f64>().unwrap());
    }
    // the node's clock is ahead by 5 s
    let frames = Parser::default().push(log.as_bytes());
    frames.iter().filter_map(|frame| view.take(node, 5.0, frame)).map(|report| report.what).collect()
}

/// Returns what is on a terminal of this size.
fn screen(view: &View, width: u16, height: u16, options: DrawOptions) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, view, NOW, options)).unwrap();
    terminal
}

/// Two nodes with four ranks. Rank 1 makes no progress, the GPU of rank 0 waits, and the second node has said nothing
/// for a minute.
fn stalled() -> View {
    let mut view = View::new(&job(&["node1", "gpu-0002.cluster.example.org"], 2, 5), NOW - 600.0, None);
    let mut node = |node: &str, first: u32, ago: u32, power: u32| {
        let mut text = String::new();
        for place in 0..2 {
            let rank = first + place;
            let _ = writeln!(text, "{ago} {first} m G {place} GPU-{rank} 143771 700 580.1 NVIDIA H200");
            let _ = writeln!(text, "{ago} {rank} m R {place}\n{ago} {rank} m r 104 20480 0 12");
            for before in [30, 15, 0] {
                let ago = ago + before;
                let _ = writeln!(text, "{ago} {first} m g {place} 100 {} {power} 61 1455 3201", 70_000 + rank);
            }
            let _ = writeln!(text, "{ago} {rank} o step {} loss 0.2{rank}", 100 + rank);
        }
        let _ = writeln!(text, "{ago} {first} m n 52 812345 1200000 1190000 0 512");
        take(&mut view, node, &text);
    };
    node("node1", 0, 2, 690);
    node("gpu-0002.cluster.example.org", 2, 61, 690);
    take(&mut view, "node1", "40 0 m g 0 100 70000 130 61 1 1\n3 0 m g 0 100 70000 130 61 1 1");
    take(&mut view, "node1", "1 1 q 1800 waiting in futex for a lock or another thread");
    view
}

#[test]
fn a_stalled_rank_and_a_silent_node_stand_out() {
    insta::assert_snapshot!(screen(&stalled(), 80, 24, DrawOptions::default()).backend());
    insta::assert_snapshot!(screen(&stalled(), 120, 14, DrawOptions::default()).backend());
}

#[test]
fn colours_are_only_used_where_they_are_wanted() {
    let colours = |has_colours| {
        let terminal = screen(&stalled(), 80, 24, DrawOptions { has_colours, first: 0 });
        terminal.backend().buffer().content().iter().filter(|cell| cell.fg != Color::Reset).count()
    };
    assert_eq!(colours(false), 0);
    assert!(colours(true) > 100);
}

#[test]
fn ranks_that_do_not_fit_can_be_scrolled_to() {
    let nodes: Vec<String> = (1..=16).map(|i| format!("node{i}")).collect();
    let names: Vec<&str> = nodes.iter().map(String::as_str).collect();
    let mut view = View::new(&job(&names, 4, 5), NOW - 600.0, None);
    take(&mut view, "node9", "400 33 s \n1 33 o step 1\n1 34 x 1");
    insta::assert_snapshot!(screen(&view, 80, 24, DrawOptions { has_colours: false, first: 30 }).backend());
    let last = super::draw::last_first(&view, 24);
    let text = screen(&view, 80, 24, DrawOptions { has_colours: false, first: 1000 }).backend().to_string();
    assert!(text.contains("node16") && text.contains(&format!("ranks {} to 64 of 64", last + 1)), "{text}");
    // nothing panics in a terminal that is too small for anything
    for (width, height) in [(1, 1), (3, 2), (20, 5), (79, 6)] {
        screen(&view, width, height, DrawOptions::default());
    }
}

#[test]
fn nothing_that_a_rank_writes_reaches_the_terminal_as_it_is() {
    let mut view = View::new(&job(&["node1"], 1, 0), NOW - 60.0, Some(regex::bytes::Regex::new("loss").unwrap()));
    let long = "x".repeat(10_000);
    take(
        &mut view,
        "node1",
        &format!("3 0 o \x1b[2J\x1b]0;title\x07\x1b[31mloss\x1b[0m 損失 \u{202e}0.5\ttab\n2 0 o {long}"),
    );
    let terminal = screen(&view, 100, 12, DrawOptions::default());
    let text = terminal.backend().to_string();
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
    assert!(text.contains("loss 損失"), "{text}");
    // the age is that of the last line, the text that of the last one that matches
    assert!(text.contains(" 2s ") && !text.contains("xxx"), "{text}");
    assert!(text.contains("no samples: sample_s was 0"), "{text}");
}

#[test]
fn a_rank_that_prints_what_is_no_number_is_marked_until_it_starts_again() {
    let grep = || Some(regex::bytes::Regex::new("loss").unwrap());
    let mut view = View::new(&job(&["node1"], 2, 0), NOW - 60.0, grep());
    take(&mut view, "node1", "9 0 o loss nan\n8 0 o loss=-inf\n7 0 o loss 0.5\n9 1 o loss 0.5\n8 1 o gradient nan");
    let text = screen(&view, 100, 12, DrawOptions::default()).backend().to_string();
    let rows: Vec<&str> = text.lines().filter(|row| row.contains("loss")).collect();
    assert!(rows[0].starts_with("\"!    0") && rows[0].contains("nan or inf in 2 lines: loss 0.5"), "{text}");
    assert!(rows[1].starts_with("\"     1") && rows[1].contains("  loss 0.5"), "{text}");
    take(&mut view, "node1", "5 0 s \n4 0 o loss 1.5");
    assert_eq!(view.ranks[&0].no_numbers, 0);
}

#[test]
fn samples_are_passed_on_with_the_rank_of_a_gpu() {
    let mut view = View::new(&job(&["node1"], 2, 5), NOW - 60.0, None);
    let text = "9 0 m G 1 GPU-b 143771 700 580.1 NVIDIA H200\n9 0 m G 0 GPU-a 143771 700 580.1 NVIDIA H200\n\
        8 1 m r 100 2048 0 0\n8 0 m g 1 97 883 690 52 1455 3201\n8 0 m n 10 1 2 3 4 5\n8 0 m e no driver";
    let [Sampled::Rank(1, _), Sampled::Gpu { rank: Some(1), uuid: Some(uuid), .. }, Sampled::Node(_)] =
        &take(&mut view, "node1", text)[..]
    else {
        panic!("{view:?}")
    };
    assert_eq!(uuid, "GPU-b");
    assert_eq!(view.message.as_deref(), Some("node1: GPUs: no driver"));
}

#[test]
fn a_restart_begins_again_with_the_ranks() {
    let mut view = View::new(&job(&["node1"], 1, 0), NOW - 60.0, None);
    let restart = r#"{"failed":{"ended":1.0},"shares":[],"attempt":2,"attempts":4,"pause":2}"#;
    // it is also in what was read again
    take(&mut view, "node1", &format!("9 0 s \n8 0 x 1\n7 0 r {restart}\n7 0 r {restart}\n6 0 s "));
    assert_eq!((view.head.attempt, view.ranks[&0].code), (2, None));
}

#[test]
fn a_rank_is_on_the_node_where_it_was_started_last() {
    let job = || job(&["node1", "node2"], 1, 5);
    let logs = [
        ("node2", "90 1 s \n50 1 q 10 waiting\n40 1 x 143"),
        ("node1", "60 1 s \n30 1 o step 7\n30 1 m r 50 100 0 0"),
        // node2 was lost, and has not noticed it before
        ("node2", "20 1 o late\n20 1 m r 1 1 0 0\n19 1 x 143 signal asked"),
    ];
    for order in [[0, 1, 2], [1, 0, 2], [1, 2, 0]] {
        let mut view = View::new(&job(), NOW - 600.0, None);
        order.iter().for_each(|i| drop(take(&mut view, logs[*i].0, logs[*i].1)));
        let rank = &view.ranks[&1];
        let known = (view.nodes[rank.node].name.as_str(), rank.code, rank.waits.as_deref(), rank.line.1.as_str());
        assert_eq!(known, ("node1", None, None, "step 7"), "{order:?}");
        assert_eq!(rank.usage.unwrap().memory_mib, 100.0, "{order:?}");
    }
}

#[test]
fn a_node_that_only_launches_is_not_silent() {
    let mut job = job(&["node1", "node2"], 1, 5);
    (job.placement.shares[0].ranks, job.placement.shares[1].first) = (0, 0);
    let mut view = View::new(&job, NOW - 600.0, None);
    take(&mut view, "node1", "500 0 l starting");
    take(&mut view, "node2", "500 0 s ");
    let fault = |node: usize| view.fault(&view.nodes[node], NOW);
    assert_eq!((fault(0), fault(1).as_deref()), (None, Some("silent for 500 s")));
}

#[test]
fn ranks_get_other_numbers_in_any_order() {
    let mut view = View::new(&job(&["node1"], 3, 0), NOW - 60.0, None);
    // rank 0 has left, and the others move up
    take(&mut view, "node1", "9 2 n 1 2\n9 1 n 0 2\n8 0 o one\n8 1 o two");
    let lines: Vec<_> = view.ranks.iter().map(|(rank, one)| (*rank, one.line.1.as_str())).collect();
    assert_eq!(lines, [(0, "one"), (1, "two")]);
    // a rank that cannot be takes no row
    take(&mut view, "node1", "7 4000000000 o x");
    assert_eq!(view.ranks.len(), 2);
}

#[test]
fn one_role_is_shown_alone_and_its_ranks_have_their_names() {
    let mut job = job(&["node1", "node2"], 3, 5);
    job.placement.roles =
        vec![RecordedRole::example("trainer", Ends::Job), RecordedRole::example("generator", Ends::Job)];
    job.placement.shares.iter_mut().for_each(|share| share.roles = vec![2, 1]);
    let text =
        "9 1 s \n9 2 s \n8 2 o serving\n8 1 o step 7\n7 2 m r 50 100 0 0\n7 1 m r 60 100 0 0\n7 1 m n 10 1 2 3 4 5";
    let mut all = View::new(&job, NOW - 60.0, None);
    take(&mut all, "node1", text);
    let rows = |view: &View| screen(view, 80, 24, DrawOptions::default()).backend().to_string();
    let shown = rows(&all);
    assert!(shown.contains("\"         RANK NODE "), "{shown}");
    assert!(shown.contains("   trainer 1 node1 ") && shown.contains(" generator 0 node1 "), "{shown}");
    assert_eq!((all.ranks.len(), all.label(5)), (6, "generator 1".into()));

    let mut one = View::new(&job, NOW - 60.0, None).of_ranks([2, 5].into());
    let [Sampled::Rank(2, _), Sampled::Node(_)] = &take(&mut one, "node1", text)[..] else { panic!("{one:?}") };
    let shown = rows(&one);
    assert!(shown.contains("serving") && !shown.contains("step 7") && shown.contains("2 of 2 ranks run"), "{shown}");
}
