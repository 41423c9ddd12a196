//! How often commands wait for the nodes: the steps that begin only when another one has been answered.

use super::jobs::{ends_with, up_with};
use super::*;
use tokio::time::Instant;

/// Runs a command, and returns its trips to the nodes.
async fn trips(nodes: &Nodes, line: &str) -> Vec<Vec<String>> {
    let began = Instant::now();
    hvdctl(nodes, line).await.code(0);
    nodes.trips_since(began)
}

/// Compares the numbers of trips with those that are expected.
#[track_caller]
fn assert_trips(found: &[(&str, Vec<Vec<String>>)], expected: &[(&str, usize)]) {
    let numbers: Vec<(&str, usize)> = found.iter().map(|(what, trips)| (*what, trips.len())).collect();
    let list = |(what, trips): &(&str, Vec<Vec<String>>)| {
        let lines: Vec<String> = trips.iter().map(|calls| format!("    {}", calls.join(", "))).collect();
        format!("{what}:\n{}", lines.join("\n"))
    };
    let lists: Vec<String> = found.iter().map(list).collect();
    assert_eq!(numbers, expected, "{}", lists.join("\n"));
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_nodes_are_ready_starts_and_ends_after_few_trips() {
    let project = tempfile::tempdir().unwrap();
    std::fs::write(project.path().join("train.py"), "print(1)\n").unwrap();
    let nodes = up_with(ends_with([0, 0])).await;
    let line = format!("train {} -np 2 --map-by node -- true", project.path().display());
    trips(&nodes, &line).await;
    nodes.play(ends_with([0, 0]));
    let mut start = trips(&nodes, &line).await;
    let starts = |calls: &Vec<String>| calls.iter().any(|call| call == "node1: docker start hmaster");
    let end = start.split_off(start.iter().position(starts).unwrap() + 1);
    assert_trips(&[("start", start), ("end", end)], &[("start", 11), ("end", 6)]);
}

#[tokio::test(start_paused = true)]
async fn commands_make_few_trips() {
    let nodes = two_up().await;
    let expected = [("status", 6), ("up", 8), ("jobs", 6), ("down", 9)];
    let mut found = Vec::new();
    for (line, _) in expected {
        found.push((line, trips(&nodes, line).await));
    }
    assert_trips(&found, &expected);
}
