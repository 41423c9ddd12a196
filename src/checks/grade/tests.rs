use super::*;
use crate::model::job_state::JobState;

/// The clock of every node.
const NOW: f64 = 1_800_000_000.0;

/// A node whose entries have these ages in days.
fn node(name: &str, entries: Vec<(f64, Event)>) -> Evidence {
    let entries = entries.into_iter().map(|(days, event)| Entry { time: NOW - days * DAY, event }).collect();
    let kind = NodeKind { cores: 8, ..NodeKind::default() };
    Evidence {
        node: name.to_owned(),
        kind,
        ledger: Ledger { entries, now: NOW, boot: "b0".into(), ..Ledger::default() },
    }
}

fn check(by: &str, failed: &[&str]) -> Event {
    Event::check(by, failed.iter().map(|text| (*text).to_owned()).collect(), Vec::new())
}

fn bench(gigabits: f64, product: f64) -> Event {
    let bytes = gigabits * 1.25e8;
    Event::bench([(Figure::Send, bytes), (Figure::Receive, bytes), (Figure::Product, product * 1e12)])
}

fn boot(id: &str) -> Event {
    Event::System { boot: id.to_owned(), driver: String::new(), booted: 0.0 }
}

fn job(id: &str, lost: Option<&str>) -> Event {
    let state = if lost.is_some() { JobState::Failed } else { JobState::Succeeded };
    Event::Job { job: id.to_owned(), state, seconds: 7200.0, gpus: Some(4), lost: lost.map(str::to_owned) }
}

/// What a good node records in a month.
fn good() -> Vec<(f64, Event)> {
    let mut entries = vec![(30.0, boot("b0"))];
    for day in (0..30).rev().map(f64::from) {
        entries.push((day + 0.5, check("verify", &[])));
        entries.push((day + 0.4, job(&format!("job-{day}"), None)));
    }
    entries.push((1.0, bench(9.4, 40.0)));
    entries
}

fn with(more: Vec<(f64, Event)>) -> Vec<(f64, Event)> {
    let mut entries = [good(), more].concat();
    entries.sort_by(|a, b| b.0.total_cmp(&a.0));
    entries
}

/// Name, grade and reasons of each node, in their order.
fn shown(nodes: &[Evidence]) -> Vec<String> {
    let text = |assessed: Assessment| {
        let NodeGrade { node, grade, reasons, .. } = assessed.grade;
        [vec![format!("{node} {grade}")], reasons].concat().join("; ")
    };
    assess(nodes).into_iter().map(text).collect()
}

#[test]
fn a_slow_node_and_one_that_is_restarted_often_come_after_a_good_one() {
    let restarts = (1..=8).map(|i| (f64::from(i) * 3.0, boot(&format!("r{i}")))).collect();
    let slow = with(vec![(0.5, bench(0.9, 40.0))]);
    let nodes = [node("slow", slow), node("restarted", with(restarts)), node("good", good())];
    assert_eq!(
        shown(&nodes),
        [
            "good A",
            "restarted C; uptime: 8 restarts in 30 days",
            "slow F; network: sends 9 % of the fastest of its kind",
        ]
    );
    // whatever the order in which they answer
    let turned: Vec<Evidence> = nodes.iter().rev().cloned().collect();
    assert_eq!(assess(&turned), assess(&nodes));
}
