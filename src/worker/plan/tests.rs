use super::*;
use crate::inventory::Inventory;
use crate::node::facts::{Facts, Span};
use crate::node::gpus::GpuRequest;
use crate::node::jobs::{NodeJobs, OpenJobs, Rank};
use crate::runtime::spec::{LABEL_NAME, LABEL_ROLE};
use proptest::prelude::*;

fn line(operations: &[Operation]) -> String {
    summarize(&describe(operations, Tense::Planned))
}
use std::collections::BTreeMap;

/// Performs the operations as an engine does, in single steps: the first `cut` of them, or all if it is `None`. Refuses
/// everything that Docker refuses: the model that the properties check against.
fn apply(
    containers: &[ContainerSummary],
    operations: &[Operation],
    image_id: &str,
    cut: Option<usize>,
) -> Vec<ContainerSummary> {
    let mut after = containers.to_vec();
    let mut left = cut.unwrap_or(usize::MAX);
    let mut step = || {
        let goes_on = left > 0;
        left = left.saturating_sub(1);
        goes_on
    };
    let of = |after: &mut Vec<ContainerSummary>, name: &str, from: &[ContainerState]| {
        let container = after.iter_mut().find(|c| c.name == name).expect("starts what is there");
        assert!(from.contains(&container.state), "{name} is {:?}", container.state);
        container.state = ContainerState::Running;
    };
    for operation in operations {
        if !step() {
            break;
        }
        match operation {
            Operation::Pull { .. } => {}
            Operation::Remove { id, .. } => after.retain(|c| c.id != *id),
            // docker(1): a paused container is not started, and one that restarts counts as started
            Operation::Start { name } => of(&mut after, name, &[ContainerState::Created, ContainerState::Exited]),
            Operation::Unpause { name } => of(&mut after, name, &[ContainerState::Paused]),
            Operation::Create(desired) => {
                assert!(after.iter().all(|c| c.name != desired.name), "name clash");
                after.push(ContainerSummary {
                    name: desired.name.clone(),
                    id: format!("new-{}-{}", desired.name, after.len()),
                    image: "img".into(),
                    image_id: image_id.into(),
                    state: ContainerState::Created,
                    labels: desired.labels(),
                    created: None,
                    queue: None,
                });
                if step() {
                    of(&mut after, &desired.name, &[ContainerState::Created]);
                }
            }
        }
    }
    after
}

fn desired(port: u16, gpus: bool, workspace: Option<&str>) -> ContainerSpec {
    let Inventory { mut cluster, nodes, .. } = Inventory::local("here", "image");
    let gpus = if gpus { GpuRequest::All } else { GpuRequest::None };
    cluster.name = "lab".into();
    cluster.port = port;
    ContainerSpec {
        workspace: workspace.map(str::to_owned),
        ..ContainerSpec::worker(&cluster, &nodes[0], gpus, [10, 0, 0, 1].into())
    }
}

fn summary(desired: &ContainerSpec, image_id: &str, state: ContainerState) -> ContainerSummary {
    let (name, labels) = (desired.name.clone(), desired.labels());
    ContainerSummary {
        name,
        id: "1".into(),
        image: "img".into(),
        image_id: image_id.into(),
        state,
        labels,
        created: None,
        queue: None,
    }
}

#[test]
fn a_shell_that_was_never_started_is_removed() {
    let Inventory { mut cluster, nodes, .. } = Inventory::local("here", "image");
    cluster.name = "lab".into();
    let shell = ContainerSpec::shell(&cluster, &nodes[0], GpuRequest::None, Vec::new(), "ab12");
    let left = |state, created, cluster: &str, clock| {
        let there = [
            ContainerSummary { created, ..summary(&shell, "img", state) },
            summary(&desired(1, false, None), "img", state),
        ];
        line(&orphaned_shells(cluster, &there, clock))
    };
    let clock = Some(Span { low: 1000.5, high: 1001.0 });
    assert_eq!(left(ContainerState::Created, Some(800), "lab", clock), "remove hmaster-shell-ab12 (never started)");
    let stays = |state, created, cluster, clock| assert_eq!(left(state, created, cluster, clock), "unchanged");
    // it may be about to be started
    stays(ContainerState::Created, Some(900), "lab", clock);
    stays(ContainerState::Created, Some(2000), "lab", clock);
    // a running one is in use, and one that has ended removes itself
    stays(ContainerState::Running, Some(1), "lab", clock);
    stays(ContainerState::Exited, Some(1), "lab", clock);
    stays(ContainerState::Created, Some(1), "other", clock);
    stays(ContainerState::Created, None, "lab", clock);
    stays(ContainerState::Created, Some(1), "lab", None);
}

#[test]
fn of_ended_containers_the_newest_with_files_is_kept() {
    let Inventory { mut cluster, nodes, .. } = Inventory::local("here", "image");
    cluster.name = "lab".into();
    let of_job = |job: &str, created, state| {
        let master = ContainerSpec::master(&cluster, &nodes[0], GpuRequest::None, Vec::new(), job);
        let named = ContainerSpec { name: format!("hmaster-{job}"), ..master };
        ContainerSummary { id: job.into(), created: Some(created), ..summary(&named, "img", state) }
    };
    let exited = |job: &str, created| of_job(job, created, ContainerState::Exited);
    let left = |containers: &[ContainerSummary], outside: &[&str]| {
        let outside = outside.iter().map(|job| (*job).to_owned()).collect();
        let kept = kept("lab", containers, &outside).map(|kept| kept.id.clone());
        let removed = ended_containers("lab", containers, &NodeJobs { outside, ..NodeJobs::default() }, |_| false);
        (kept.unwrap_or_default(), line(&removed).replace(" (its job has ended)", ""))
    };
    let three = [exited("j2", 20), exited("j3", 30), exited("j1", 10)];
    let removed = |kept: &str, rest: &str| (kept.to_owned(), rest.to_owned());
    assert_eq!(left(&three, &["j1", "j2"]), removed("j2", "remove hmaster-j3, remove hmaster-j1"));
    assert_eq!(left(&three, &[]), removed("", "remove hmaster-j2, remove hmaster-j3, remove hmaster-j1"));
    // what runs or is about to be started is no container of an ended job
    let up = [of_job("j1", 10, ContainerState::Running), of_job("j2", 20, ContainerState::Created)];
    assert_eq!(left(&up, &["j1", "j2"]), removed("", "unchanged"));
    // nor is that of another cluster or of a newer hvdctl touched
    let foreign = |label: &str, value: &str| {
        let mut container = exited("j1", 10);
        container.labels.insert(label.to_owned(), value.to_owned());
        container
    };
    for container in [foreign(LABEL_CLUSTER, "other"), foreign("hvdctl.format", "9")] {
        assert_eq!(left(&[container], &["j1"]), removed("", "unchanged"));
    }
}

#[test]
fn table() {
    let want = desired(12345, true, None);
    let plan = |containers: &[ContainerSummary]| worker(&want, "img", containers).map(|o| line(&o));
    assert_eq!(plan(&[]).unwrap(), "start hworker");
    assert_eq!(plan(&[summary(&want, "old", ContainerState::Running)]).unwrap(), "recreate hworker (image)");
    let other = desired(22, false, None);
    assert_eq!(plan(&[summary(&other, "img", ContainerState::Running)]).unwrap(), "recreate hworker (gpus, port)");
    assert_eq!(
        plan(&[summary(&other, "img", ContainerState::Created)]).unwrap(),
        "recreate hworker (gpus, port, never started)"
    );
    let mut mounts = want.clone();
    mounts.spec.mounts.pop();
    assert_eq!(plan(&[summary(&mounts, "img", ContainerState::Exited)]).unwrap(), "recreate hworker (mounts)");
    let mut renamed = summary(&want, "img", ContainerState::Running);
    renamed.name = "before".into();
    assert_eq!(
        plan(std::slice::from_ref(&renamed)).unwrap(),
        "start hworker",
        "of an image that was committed from it"
    );
    renamed.labels.insert(LABEL_NAME.into(), "before".into());
    assert_eq!(plan(&[renamed]).unwrap(), "remove before (renamed), start hworker");
    // that of a single job is no worker of the node's, and goes only when its job has ended
    let own = ContainerSpec { name: "hworker-j1".into(), ..want.clone() }.for_job(
        &Inventory::local("here", "image").cluster,
        "j1",
        false,
    );
    let both = [summary(&want, "img", ContainerState::Running), summary(&own, "img", ContainerState::Running)];
    assert_eq!(plan(&both).unwrap(), "unchanged");
    assert_eq!(line(&worker(&own, "img", &both[..1]).unwrap()), "start hworker-j1");
    let none = NodeJobs::default();
    assert_eq!(ended_containers("lab", &both, &none, |run| run == "j1"), []);
    let rank = Rank { job: "j1".into(), pid: 7, container: None, cluster: None, killed: false };
    let ranks = NodeJobs { ranks: vec![rank], ..NodeJobs::default() };
    assert_eq!(ended_containers("lab", &both, &ranks, |_| false), []);
    assert_eq!(line(&ended_containers("lab", &both, &none, |_| false)), "remove hworker-j1 (its job has ended)");
    let mut older = summary(&want, "img", ContainerState::Running);
    older.labels.insert(LABEL_SPEC.into(), "000000000000".into());
    older.labels.insert(LABEL_SPEC_FULL.into(), "{\"version\":0}".into());
    assert_eq!(plan(&[older]).unwrap(), "recreate hworker (spec)");

    let mut foreign = summary(&want, "img", ContainerState::Running);
    foreign.labels.clear();
    let error = plan(std::slice::from_ref(&foreign)).unwrap_err().to_string();
    assert_eq!(error, "a container named hworker exists already and was not created by hvdctl");
    foreign.labels.insert(LABEL_CLUSTER.into(), "other".into());
    let error = plan(&[foreign]).unwrap_err().to_string();
    assert_eq!(error, "a container named hworker exists already and belongs to the cluster other");
}

#[test]
fn a_worker_in_any_state_can_be_brought_up() {
    let want = desired(12345, true, None);
    let Inventory { mut cluster, .. } = Inventory::local("here", "image");
    cluster.name = "lab".into();
    let states = [
        (ContainerState::Running, "unchanged", WorkerStatus::Up),
        (ContainerState::Exited, "start hworker again (stopped)", WorkerStatus::Stopped),
        (ContainerState::Paused, "unpause hworker", WorkerStatus::Paused),
        (ContainerState::Created, "recreate hworker (never started)", WorkerStatus::Differs),
        (ContainerState::Restarting, "recreate hworker (restarting)", WorkerStatus::Differs),
        (ContainerState::Removing, "recreate hworker (half removed)", WorkerStatus::Differs),
        (ContainerState::Dead, "recreate hworker (dead)", WorkerStatus::Differs),
        (ContainerState::Stopping, "recreate hworker (stopping)", WorkerStatus::Differs),
        (ContainerState::Unknown, "recreate hworker (in an unknown state)", WorkerStatus::Differs),
    ];
    for (state, steps, status) in states {
        let there = [summary(&want, "img", state)];
        let operations = worker(&want, "img", &there).unwrap();
        assert_eq!(line(&operations), steps);
        assert_eq!(worker_status(&cluster, &there, Some(&operations)).0, status, "{state:?}");
    }
    // what is left of others beside it is none of its own differences
    let concurrent =
        [Operation::Remove { name: "hworker-j1".into(), id: "2".into(), reasons: vec!["its job has ended".into()] }];
    assert_eq!(
        worker_status(&cluster, &[summary(&want, "img", ContainerState::Running)], Some(&concurrent)),
        (WorkerStatus::Up, vec![])
    );
    assert_eq!(worker_status(&cluster, &[], None), (WorkerStatus::None, vec![]));
    // without an image or a place nothing is planned
    assert_eq!(
        worker_status(&cluster, &[summary(&want, "img", ContainerState::Running)], None),
        (WorkerStatus::Differs, vec![])
    );
    assert_eq!(
        worker_status(&cluster, &[summary(&want, "img", ContainerState::Exited)], None),
        (WorkerStatus::Stopped, vec![])
    );
    let other = [summary(&desired(22, true, None), "img", ContainerState::Exited)];
    let operations = worker(&want, "img", &other).unwrap();
    assert_eq!(worker_status(&cluster, &other, Some(&operations)), (WorkerStatus::Differs, vec!["port".to_owned()]));
    cluster.name = "another".into();
    assert_eq!(worker_status(&cluster, &other, None).0, WorkerStatus::Foreign);
}

#[test]
fn a_workspace_matters_only_to_a_job() {
    let plain = desired(12345, true, None);
    let with = desired(12345, true, Some("/opt/horovod/projects/a"));
    let there = [summary(&with, "img", ContainerState::Running)];
    assert!(worker(&plain, "img", &there).unwrap().is_empty());
    assert!(worker(&with, "img", &there).unwrap().is_empty());
    let other = desired(12345, true, Some("/opt/horovod/projects/b"));
    let plan = worker(&other, "img", &there).unwrap();
    assert_eq!(line(&plan), "recreate hworker with /opt/horovod/projects/b (workspace)");
    let renewed = ContainerSpec { new_workspace: true, ..with };
    let plan = worker(&renewed, "img", &there).unwrap();
    assert_eq!(line(&plan), "recreate hworker with /opt/horovod/projects/a (workspace)");
}

/// Two nodes, the first the master, with a worker each and what they say of jobs; the worker of each is recreated.
fn disrupted_by(
    master: &str,
    other: &str,
    launcher: Option<ContainerState>,
) -> Vec<(String, Vec<String>, Vec<String>)> {
    let old = desired(22, true, None);
    let want = desired(12345, true, None);
    let Inventory { mut cluster, nodes, .. } = Inventory::local("here", "image");
    cluster.name = "lab".into();
    let worker_there = |id: &str| ContainerSummary { id: id.into(), ..summary(&old, "img", ContainerState::Running) };
    let hmaster = ContainerSpec::master(&cluster, &nodes[0], GpuRequest::All, Vec::new(), "run-1");
    let hmaster = launcher.map(|state| ContainerSummary { id: "m".into(), ..summary(&hmaster, "img", state) });
    let containers = [Vec::from_iter([worker_there("w1")].into_iter().chain(hmaster)), vec![worker_there("w2")]];
    let facts = [Facts::parse(master), Facts::parse(other)];
    let operations = containers.each_ref().map(|there| worker(&want, "img", there).unwrap());
    let open = facts.each_ref().map(|facts| OpenJobs::recorded(&facts.jobs));
    let part = |i: usize| NodePlan {
        name: ["a", "b"][i],
        ranks: &facts[i].jobs.ranks,
        open: &open[i],
        containers: &containers[i],
        operations: &operations[i],
    };
    let found = disrupted_jobs("lab", &[part(0), part(1)]);
    let has = |i: usize| found.keys().any(|job| part(i).has_job("lab", job));
    let ended = (0..2).filter(|i| has(*i)).map(|i| ["a", "b"][i].to_owned());
    let ended: Vec<String> = ended.collect();
    found.into_iter().map(|(run, nodes)| (run, nodes, ended.clone())).collect()
}

#[test]
fn a_job_is_disrupted_where_it_would_lose_its_worker() {
    let names = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
    let on_b = |ended: &[&str]| vec![("run-1".to_owned(), names(&["b"]), names(ended))];
    let up = Some(ContainerState::Running);
    // its ranks on the master live in hmaster, which stays; with force it is ended wherever it has a part
    let (master, other) = ("rank run-1 7 m lab -\nopen run-1\n", "rank run-1 7 w2 lab -\nopen run-1\n");
    assert_eq!(disrupted_by(master, other, up), on_b(&["a", "b"]));
    assert_eq!(disrupted_by(master, other, Some(ContainerState::Paused)), on_b(&["a", "b"]));
    // the ranks are about to be started, or the launcher was not seen
    assert_eq!(disrupted_by("open run-1\n", "open run-1\n", up), on_b(&["a", "b"]));
    assert_eq!(disrupted_by("", "rank run-1 7 w2 - -\n", None), on_b(&["b"]));
    assert_eq!(disrupted_by("", "rank run-1 7 - - -\n", None), on_b(&["b"]));
    // its launcher was seen though its node is not among these
    let recorded = Facts::parse("open run-1\n").jobs;
    let elsewhere = OpenJobs { under_way: vec!["run-1".into()], ..OpenJobs::recorded(&recorded) };
    let (old, new) = (summary(&desired(22, true, None), "img", ContainerState::Running), desired(12345, true, None));
    let containers = [ContainerSummary { id: "w2".into(), ..old }];
    let operations = worker(&new, "img", &containers).unwrap();
    let part = NodePlan { name: "b", ranks: &[], open: &elsewhere, containers: &containers, operations: &operations };
    assert_eq!(disrupted_jobs("lab", &[part]).keys().collect::<Vec<_>>(), ["run-1"]);
    // on the master alone; over, and never written down; in another container
    assert_eq!(disrupted_by(master, "", up), []);
    assert_eq!(disrupted_by("open run-1\n", "open run-1\n", Some(ContainerState::Exited)), []);
    assert_eq!(disrupted_by("", "rank run-2 7 w3 theirs -\n", None), []);
    // nothing is in the way of a node whose worker stays, or is down
    let want = desired(12345, true, None);
    let jobs = Facts::parse(other).jobs;
    let open = OpenJobs::recorded(&jobs);
    let part = |containers: &[ContainerSummary]| {
        let operations = worker(&want, "img", containers).unwrap();
        let part = NodePlan { name: "b", ranks: &jobs.ranks, open: &open, containers, operations: &operations };
        disrupted_jobs("lab", &[part]).len()
    };
    let there =
        |desired: &ContainerSpec, state| [ContainerSummary { id: "w2".into(), ..summary(desired, "img", state) }];
    assert_eq!(part(&there(&want, ContainerState::Running)), 0);
    assert_eq!(part(&there(&desired(22, true, None), ContainerState::Exited)), 0);
    assert_eq!(part(&there(&desired(22, true, None), ContainerState::Running)), 1);
}

const STATES: [ContainerState; 9] = [
    ContainerState::Created,
    ContainerState::Running,
    ContainerState::Paused,
    ContainerState::Restarting,
    ContainerState::Exited,
    ContainerState::Removing,
    ContainerState::Dead,
    ContainerState::Stopping,
    ContainerState::Unknown,
];

fn any_summary() -> impl Strategy<Value = ContainerSummary> {
    (
        prop::sample::select(vec!["hworker", "hmaster", "old-worker", "postgres"]),
        prop::option::of(prop::sample::select(vec!["lab", "other"])),
        prop::sample::select(vec![Role::Worker, Role::Master]),
        prop::sample::select(vec!["img", "old"]),
        prop::sample::select(STATES.to_vec()),
        (prop::sample::select(vec![22u16, 12345]), any::<bool>(), any::<bool>(), any::<bool>()),
        prop::option::of(prop::sample::select(vec!["/a", "/b"])),
    )
        .prop_map(|(name, cluster, role, image, state, (port, gpus, older, committed), workspace)| {
            let mut labels = BTreeMap::new();
            if let Some(cluster) = cluster {
                labels = desired(port, gpus, workspace).labels();
                labels.insert(LABEL_CLUSTER.into(), cluster.into());
                labels.insert(LABEL_ROLE.into(), role.as_str().into());
                // a user's, from an image that was committed from another container
                labels.insert(LABEL_NAME.into(), if committed { "hother" } else { name }.into());
                if older {
                    labels.remove(LABEL_SPEC_FULL);
                    labels.insert(LABEL_SPEC.into(), "an older one".into());
                }
            }
            ContainerSummary {
                name: name.into(),
                id: String::new(),
                image: image.into(),
                image_id: image.into(),
                state,
                labels,
                created: None,
                queue: None,
            }
        })
}

/// Generates the containers of an engine: never two of one name, each with its own id.
fn engine() -> impl Strategy<Value = Vec<ContainerSummary>> {
    prop::collection::vec(any_summary(), 0..5).prop_map(|mut containers| {
        containers.sort_by(|a, b| a.name.cmp(&b.name));
        containers.dedup_by(|a, b| a.name == b.name);
        for (i, container) in containers.iter_mut().enumerate() {
            container.id = i.to_string();
        }
        containers
    })
}

proptest! {
    #[test]
    fn a_plan_reaches_the_desired_state_also_after_an_interrupted_one(
        containers in engine(),
        exact in any::<bool>(),
        cut in prop::option::of(0usize..6),
    ) {
        let want = desired(12345, true, exact.then_some("/a"));
        let plan = |there: &[ContainerSummary]| worker(&want, "img", there);
        let Ok(first) = plan(&containers) else {
            prop_assert!(containers.iter().any(|c| c.name == "hworker" && !c.belongs_to("lab")));
            return Ok(());
        };
        // broken off after some of its steps, or not at all
        let halfway = apply(&containers, &first, "img", cut);
        let after = apply(&halfway, &plan(&halfway).unwrap(), "img", None);
        prop_assert!(plan(&after).unwrap().is_empty(), "{after:?}");
        if cut.is_none() {
            prop_assert!(plan(&halfway).unwrap().is_empty(), "the first was enough: {halfway:?}");
        }
        let worker = after.iter().find(|c| c.name == "hworker").unwrap();
        prop_assert_eq!((worker.state, worker.image_id.as_str()), (ContainerState::Running, "img"));
        prop_assert!(worker.label(LABEL_SPEC) == Some(want.spec.hash().as_str()));
        prop_assert!(after.iter().all(|c| c.name == "hworker" || !c.belongs_to("lab") || !c.is(Role::Worker)));
        for c in containers.iter().filter(|c| !c.belongs_to("lab") || c.is(Role::Master) && c.name != "hworker") {
            prop_assert!(after.contains(c), "{} was touched", c.name);
        }
        let none = apply(&after, &down("lab", &after), "img", None);
        prop_assert!(none.iter().all(|c| !c.belongs_to("lab")));
        for c in containers.iter().filter(|c| !c.belongs_to("lab")) {
            prop_assert!(none.contains(c), "{} was touched", c.name);
        }
        prop_assert!(down("lab", &none).is_empty());
    }

    #[test]
    fn a_worker_in_the_desired_state_is_left_alone(containers in engine(), id in "[a-f0-9]{4}") {
        let want = desired(12345, true, Some("/a"));
        let mut there: Vec<ContainerSummary> =
            containers.into_iter().filter(|c| c.name != "hworker" && !(c.belongs_to("lab") && c.is(Role::Worker))).collect();
        there.push(ContainerSummary { id, ..summary(&want, "img", ContainerState::Running) });
        prop_assert!(worker(&want, "img", &there).unwrap().is_empty());
    }
}
