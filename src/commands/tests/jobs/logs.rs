//! Output of ranks: logs of nodes that were lost meanwhile, and their filters.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_follower_that_is_lost_loses_no_output() {
    let nodes = up_with(ends_with([0, 0])).await;
    let cutting = async {
        sleep(Duration::from_millis(600)).await;
        nodes.edit("node2", |state| state.lost_followers += 1);
    };
    let (done, ()) = tokio::join!(hvdctl(&nodes, RUN), cutting);
    done.code(0).complains(&["node2: lost the connection that follows its log"]);
    assert_eq!(done.ranks.matches("1 step 1").count(), 1, "{done}");
    assert_over(&nodes, "after the connection was lost");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_was_lost_is_followed_again_and_cleaned_up_after() {
    let play = |back: &str| {
        Play::default()
            .frame(0, "node1", "0 s ")
            .frame(0, "node2", "1 s ")
            .frame(1000, "node2", "1 o before")
            .frame(60_000, "node2", "1 o between")
            // a rank that is started again, before its log is followed again
            .frame(250_000, "node2", &format!("1 o {back}"))
            .frame(500_000, "node2", "1 o later")
            .frame(600_000, "node1", "0 o last")
            .frame(600_000, "node1", "0 x 0")
            .frame(600_000, "node2", "1 x 0")
            .ends(600_000, 0)
    };
    // the disk of a node that loses power may have less than was shown
    for (loses_output, back) in [(false, "back"), (true, "back"), (true, "back with more than is missing")] {
        let nodes = up_with(play(back)).await;
        let cutting = async {
            sleep(Duration::from_secs(30)).await;
            nodes.fault("node2", CONNECT, Fault::Fails("No route to host".into()));
            nodes.cut("node2");
            sleep(Duration::from_secs(200)).await;
            let first = |log: &String| log.find('\n').unwrap() + 1;
            let cut = |log: &mut String| log.truncate(if loses_output { first(log) } else { log.len() });
            nodes.edit("node2", |state| state.directories.values_mut().for_each(|directory| cut(&mut directory.log)));
            nodes.repair();
        };
        let (done, ()) = tokio::join!(hvdctl(&nodes, RUN), cutting);
        done.code(0)
            .complains(&["node2: lost the connection that follows its log", "node2: its log is followed again"]);
        assert_eq!(done.err.matches("No route to host").count(), 1, "{done}");
        assert_eq!(done.err.contains("of its log had not reached its disk"), loses_output, "{done}");
        let between = if loses_output { "" } else { "1 between\n" };
        let expected = format!("1 before\n{between}1 {back}\n1 later\n0 last\n");
        assert_eq!(done.ranks, expected, "each line once and in time: {done}");
        assert!(!done.err.contains("containers"), "it is cleaned up over the new connection: {done}");
        assert_over(&nodes, "after the node was lost");
    }
}

/// Runs a job that loses node2 after 30 s, and changes its log there before the node answers again `back` seconds
/// later. `later`: what is added to that log when it is followed again.
async fn with_another_log(line: &str, play: Play, back: u64, change: fn(&mut String), later: &str) -> (Nodes, Done) {
    let nodes = up_with(play).await;
    let edit = |change: &dyn Fn(&mut String)| {
        nodes.edit("node2", |state| state.directories.values_mut().for_each(|directory| change(&mut directory.log)));
    };
    let cutting = async {
        sleep(Duration::from_secs(30)).await;
        nodes.fault("node2", CONNECT, Fault::Fails("No route to host".into()));
        nodes.cut("node2");
        sleep(Duration::from_secs(back)).await;
        edit(&change);
        nodes.repair();
        sleep(Duration::from_secs(300)).await;
        edit(&|log| log.push_str(later));
    };
    let (done, ()) = tokio::join!(hvdctl(&nodes, line), cutting);
    (nodes, done)
}

/// A job of two ranks. The second one writes these lines while hvdctl does not follow its log.
fn written_unseen(lines: &[String]) -> Play {
    let play = Play::default().frame(0, "node1", "0 s ").frame(0, "node2", "1 s ").frame(1000, "node2", "1 o before");
    let play = lines.iter().fold(play, |play, line| play.frame(60_000, "node2", &format!("1 o {line}")));
    play.frame(600_000, "node1", "0 x 0")
        .frame(600_000, "node2", "1 o last")
        .frame(600_000, "node2", "1 x 0")
        .ends(600_000, 0)
}

/// Takes away what was written after the first line, which hvdctl has read.
fn lose_power(log: &mut String) {
    log.truncate(log.find('\n').unwrap() + 1);
}

#[tokio::test(start_paused = true)]
async fn what_was_discarded_while_a_node_was_lost_is_no_loss_of_power() {
    const LIMIT: usize = 2 << 20;
    let hole = |log: &mut String| {
        let length = log.len() - LIMIT;
        log.replace_range(..length, &"\0".repeat(length));
    };
    let lines = vec!["x".repeat(LIMIT / 32); 40];
    let line = RUN.replace("run ", "run --log-max 2m ");
    let (_, done) = with_another_log(&line, written_unseen(&lines), 200, hole, "").await;
    assert!(done.err.contains("of its log were discarded (--log-max)"), "{}", done.err);
    assert!(!done.err.contains("not reached its disk"), "{}", done.err);
    let shown: Vec<&str> = done.ranks.lines().map(|line| line.trim_end_matches('x')).collect();
    let expected = [vec!["1 before"], vec!["1 "; 31], vec!["1 last"]].concat();
    assert_eq!((done.code, shown), (0, expected), "{}", done.err);
}

#[tokio::test(start_paused = true)]
async fn what_is_written_after_a_loss_of_power_is_new_whatever_the_clock() {
    // a rank is started again before the node answers, or writes later
    let restarts = |log: &mut String| {
        lose_power(log);
        log.push_str("1.0 1 s \n1.1 1 o early\n");
    };
    for (change, later) in [(restarts as fn(&mut String), ""), (lose_power, "1.1 1 o early\n")] {
        let (_, done) = with_another_log(RUN, written_unseen(&[]), 200, change, later).await;
        done.code(0).complains(&["node2: the last lines of its log had not reached its disk, and are lost"]);
        assert_eq!(done.ranks, "1 before\n1 early\n1 last\n", "{done}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_job_says_too_which_lines_are_gone() {
    // the node answers between two attempts to follow the log again
    let (nodes, done) = with_another_log(RUN, written_unseen(&[]), 565, lose_power, "").await;
    done.code(0).complains(&["node2: the last lines of its log had not reached its disk, and are lost"]);
    assert!(!done.err.contains("its log is followed again"), "{done}");
    assert_eq!(done.ranks, "1 before\n1 last\n", "{done}");
    assert_over(&nodes, "after the node was lost");
}

#[tokio::test(start_paused = true)]
async fn logs_are_filtered_by_rank_time_and_pattern() {
    let mut play = Play::default().frame(0, "node1", "0 s ").frame(0, "node2", "1 s ");
    for (rank, node) in NODES.iter().enumerate() {
        for step in 1..=30 {
            play = play.frame(1000, node, &format!("{rank} o step {step} of {rank}"));
        }
    }
    let play = play.frame(9000, "node1", "0 x 0").frame(9000, "node2", "1 x 0").ends(9000, 0);
    let nodes = up_with(play).await;
    let id = hvdctl(&nodes, &RUN.replace("run ", "run --detach ")).await.code(0).out.trim().to_owned();
    let logs = async |words: &str| hvdctl(&nodes, format!("logs {words}").trim_end()).await;
    let followed = logs("-f --rank 0").await;
    assert!(followed.code(0).ranks.ends_with("0 step 30 of 0\n") && !followed.ranks.contains("of 1"), "{followed}");
    hvdctl(&nodes, "jobs").await.code(0).says(&[&id, "succeeded"]);

    let all = logs("").await;
    assert_eq!(all.code(0).ranks.lines().count(), 60);
    let some = logs("--rank 1 --grep ^step.[123].of").await;
    assert_eq!(some.code(0).ranks, "1 step 1 of 1\n1 step 2 of 1\n1 step 3 of 1\n");
    assert_eq!(logs("--rank 0 --grep step -n 1").await.ranks, "0 step 30 of 0\n");
    assert_eq!(logs("-n 1000").await.ranks, all.ranks);
    assert_eq!(logs("--since 2099-01-01T00:00:00Z").await.ranks, "");
    assert_eq!(logs("--since 1h").await.ranks, all.ranks);
    logs("--rank 2").await.code(2).complains(&["has no rank 2"]);
    logs("nosuch").await.code(1).complains(&["there is no job nosuch", "hvdctl jobs"]);
}

#[tokio::test(start_paused = true)]
async fn the_last_lines_are_those_of_all_however_far_back_they_begin() {
    let mut play = Play::default().frame(0, "node1", "0 s ");
    for line in 0..40 {
        // together more than what is read first of a log's end, and more than eight times as much
        play = play.frame(1000, "node1", &format!("0 o {line} {}", "x".repeat(60_000)));
    }
    let nodes = up_with(play.frame(2000, "node1", "0 x 0").ends(2000, 0)).await;
    hvdctl(&nodes, "--on node1 run -np 1 -- true").await.code(0);
    let all = hvdctl(&nodes, "logs").await;
    let all: Vec<&str> = all.code(0).ranks.lines().collect();
    assert_eq!(all.len(), 40);
    for tail in [1, 3, 20, 39, 40, 100] {
        let last = hvdctl(&nodes, &format!("logs -n {tail}")).await;
        let expected = &all[all.len().saturating_sub(tail)..];
        assert!(last.code(0).ranks.lines().eq(expected.iter().copied()), "the last {tail} lines");
    }
}
