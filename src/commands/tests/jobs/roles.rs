//! Jobs with roles, as people see them.

use super::*;
use crate::model::role::{Ends, RecordedRole};
use crate::record::{Record, stored};

/// Writes into the records of all jobs that rank 0 is a trainer and rank 1 a generator, which serves it.
fn give_roles(nodes: &Nodes) {
    give_roles_on(nodes, [vec![1, 0], vec![0, 1]]);
}

/// Writes into these records that the two nodes have so many ranks of each role.
fn give_roles_on(nodes: &Nodes, ranks: [Vec<u32>; 2]) {
    let change = |text: &mut String| {
        let mut record: Record = stored::read(text).unwrap();
        record.roles = vec![
            RecordedRole::example("trainer", Ends::Job),
            RecordedRole::example("generator", Ends::With { role: 0 }),
        ];
        for (share, roles) in record.placement.shares.iter_mut().zip(ranks.clone()) {
            share.roles = roles;
        }
        *text = stored::write_checked("job.json", &record).unwrap();
    };
    for node in NODES {
        nodes.edit(node, |state| {
            let directories = state.directories.values_mut();
            directories.filter_map(|directory| directory.files.get_mut("job.json")).for_each(change);
        });
    }
}

/// Starts a job with these roles. Returns its id.
async fn started(nodes: &Nodes) -> String {
    let id = hvdctl(nodes, &RUN.replace("run ", "run --detach ")).await.code(0).out.trim().to_owned();
    give_roles(nodes);
    id
}

#[tokio::test(start_paused = true)]
async fn a_rank_that_failed_is_named_by_its_role() {
    let nodes = up_with(ends_with([143, 7])).await;
    started(&nodes).await;
    let done = hvdctl(&nodes, "attach").await;
    done.code(7).complains(&["warning: rank 0 of generator on node2 ended with exit code 7; job "]);
    assert!(done.ranks.contains("trainer 0 step 1\n") && done.ranks.contains("generator 0 step 1\n"), "{done}");
    assert_over(&nodes, "after the failure");
    hvdctl(&nodes, "jobs")
        .await
        .code(0)
        .says(&["trainer×1 generator×1", "rank 0 of generator on node2 ended with exit code 7"]);
    let job = hvdctl(&nodes, "jobs --json").await.document()["jobs"][0].clone();
    let cause = &job["root_cause"];
    assert_eq!((&cause["rank"], &cause["role"]), (&1.into(), &"generator".into()), "{job}");
    assert_eq!((&cause["role_rank"], &job["roles"][1]["name"]), (&0.into(), &"generator".into()), "{job}");
}

#[tokio::test(start_paused = true)]
async fn roles_that_are_not_placed_yet_are_counted_together() {
    let nodes = up_with(ends_with([0, 0])).await;
    started(&nodes).await;
    give_roles_on(&nodes, [Vec::new(), Vec::new()]);
    let listed = hvdctl(&nodes, "jobs").await;
    assert!(!listed.out.contains('×') && listed.out.contains(" 2 "), "{listed}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_has_ended_before_is_no_early_end() {
    let play = Play::default()
        .frame(0, "node1", "0 s ")
        .frame(0, "node2", "1 s ")
        .frame(1000, "node2", "1 x 0")
        .frame(2000, "node1", "0 r {\"role\": \"generator\", \"ready\": 4}")
        .frame(900_000, "node1", "0 x 0")
        .ends(900_000, 0);
    for has_roles in [true, false] {
        let nodes = up_with(play.clone()).await;
        hvdctl(&nodes, &RUN.replace("run ", "run --detach ")).await.code(0);
        if has_roles {
            give_roles(&nodes);
        }
        let done = hvdctl(&nodes, "attach").await;
        done.code(0);
        assert_eq!(done.err.contains("has ended with 0 since"), !has_roles, "{done}");
    }
}

#[tokio::test(start_paused = true)]
async fn one_role_is_shown_alone_and_its_ranks_count_in_it() {
    let nodes = up_with(ends_with([0, 0])).await;
    let id = started(&nodes).await;
    hvdctl(&nodes, "logs -f").await.code(0);
    let logs = async |words: &str| hvdctl(&nodes, format!("logs {words}").trim_end()).await;
    for words in ["--role generator", "--role generator --rank 0", "--rank 1"] {
        assert_eq!(logs(words).await.code(0).ranks, "generator 0 step 1\n", "{words}");
    }
    assert_eq!(logs("--role trainer").await.code(0).ranks, "trainer 0 step 1\n");
    logs("--role generator --rank 1")
        .await
        .code(2)
        .complains(&["has no rank 1 of generator", "the ranks of generator are 0 to 0"]);
    for command in ["logs", "report", "fetch"] {
        let done = hvdctl(&nodes, &format!("{command} {id} --role nosuch")).await;
        done.complains(&["has no role nosuch", "its roles are trainer, generator"]);
        assert_ne!(done.code, 0, "{done}");
    }
    let ordinary = up_with(ends_with([0, 0])).await;
    hvdctl(&ordinary, RUN).await.code(0);
    hvdctl(&ordinary, "logs --role trainer").await.code(2).complains(&["has no roles", "leave out --role"]);
}
