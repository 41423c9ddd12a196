//! `hvdctl down`.

use super::{Context, Outcome, Reached, connect_or_skip};
use crate::cli::Down;
use crate::core::hostset;
use crate::core::plan::{self, Operation};
use crate::edge::link::Script;
use crate::edge::terminal::{self, Echo};
use crate::error::{Error, NodeError};
use crate::ops::fleet::{EngineSeen, each, engine, split};
use serde_json::json;

const PURGE: &str = include_str!("../edge/scripts/purge.sh");

/// `down`.
pub async fn run(options: &Down, context: Context) -> Result<Outcome, Error> {
    let Context { target, events, ask, .. } = context;
    let cluster = target.cluster();
    if options.purge && ask && terminal::present() {
        let what = format!(
            "remove the keys, the shipped projects with all that runs wrote into them, and the records of runs of {} from \
             every node?",
            cluster.name
        );
        let answer = terminal::ask(&events, &format!("{what} [y/N] "), Echo::Shown).await?;
        if !matches!(answer.trim(), "y" | "Y" | "yes") {
            return Err(Error::usage("nothing was removed", "answer y, or say -y"));
        }
    }
    let Reached { members, offline, refused } = connect_or_skip(&target, &events, options.skip_offline).await?;
    let results = each(members, async |member| {
        let node = member.node.name.clone();
        events.busy(&node, "looking");
        let EngineSeen { engine, containers, .. } = engine(cluster, &member).await?;
        let mut removed = Vec::new();
        for operation in plan::down(&cluster.name, &containers) {
            if let Operation::Remove { name, id, .. } = operation {
                events.busy(&node, format!("removing {name}"));
                engine.remove(&id).await?;
                removed.push(name);
            }
        }
        if options.purge {
            events.busy(&node, "removing keys, projects and records");
            let script = Script::new(PURGE)
                .with("ssh_dir", &cluster.ssh_dir)
                .with("projects_dir", &cluster.projects_dir)
                .with("jobs_dir", &cluster.jobs_dir)
                .with("cluster", &cluster.name);
            member.link.script(&script, "remove keys, projects and records").await?;
        }
        engine.remove_helpers(&cluster.name).await?;
        events.done(&node, "down");
        Ok((node, removed))
    })
    .await;
    let (done, mut failed) = split(&events, results);
    failed.extend(refused);
    Ok(outcome(options.purge, &done, failed).skipping(&offline))
}

pub(super) fn outcome(purged: bool, done: &[(String, Vec<String>)], failed: Vec<NodeError>) -> Outcome {
    let (mut told, mut nodes) = (Vec::new(), Vec::new());
    for (node, removed) in done {
        let mut what =
            if removed.is_empty() { "nothing was up".to_owned() } else { format!("removed {}", removed.join(", ")) };
        if purged {
            what.push_str("; keys, projects and records removed");
        }
        told.push((node.clone(), what));
        nodes.push(
            json!({ "node": node, "ok": true, "changed": !removed.is_empty(), "removed": removed, "purged": purged }),
        );
    }
    Outcome::of_nodes(hostset::rows(told), nodes, failed)
}
