//! Containers, what ended jobs have left, and engines.

use super::*;

#[test]
fn containers() {
    let found = |make: &dyn Fn(&mut Sick)| {
        let sick = |c: &mut Clinic| {
            c.nodes[1].facts.network.listeners.clear();
            make(&mut c.nodes[1]);
        };
        Clinic::with(2, sick).found()
    };
    let foreign = |n: &mut Sick| n.containers = vec![container("hworker", "f", ContainerState::Running, &[])];
    let first = found(&foreign);
    assert_eq!(
        first,
        ["error container gpu02: a container named hworker exists already and was not created by hvdctl"]
    );
    // a launcher's name matters where runs are launched
    assert_eq!(
        found(&|n| n.containers.push(container("hmaster", "f", ContainerState::Running, &[]))),
        Vec::<String>::new()
    );
    let on_master =
        Clinic::with(2, |c| c.nodes[0].containers.push(container("hmaster", "f", ContainerState::Exited, &[])));
    assert!(on_master.found()[0].starts_with("error container gpu01: a container named hmaster"));
    assert_eq!(found(&|n| n.containers.clear()), ["note worker gpu02: its worker is not running"]);
    assert_eq!(
        found(&|n| n.containers[0].state = ContainerState::Exited),
        ["warning worker gpu02: its worker differs from the inventory: start hworker again (stopped)"]
    );
    let port = Clinic::with(2, |c| c.inventory.cluster.port = 12346).found();
    assert_eq!(port, ["warning worker gpu[01-02]: its worker differs from the inventory: recreate hworker (port)"]);
}

#[test]
fn what_ended_jobs_left_behind() {
    let labels = [(LABEL_CLUSTER, "local"), (LABEL_ROLE, "master"), (LABEL_JOB, "run-1")];
    let facts = Facts::parse(
        "rank run-1 7 - local -\nrank run-1 8 w2 local -\nrank run-1 x - local -\nrank run-2 9 - theirs -\n",
    );
    let ranks = |c: &mut Clinic| c.nodes[1].facts.jobs.ranks = facts.jobs.ranks.clone();
    let stale = Clinic::with(2, ranks);
    stale.finds(&["error stale gpu02: 2 processes of job run-1, whose launcher is not running"]);
    assert_eq!(stale.all()[0].fixes, [("gpu02".to_owned(), Fix::EndJob("run-1".into()))]);
    let mut under_way = Clinic::with(2, ranks);
    under_way.nodes[0].containers.push(container("hmaster", "m", ContainerState::Running, &labels));
    under_way.finds(&[]);
    // what nothing ends is nothing to fix; of a job that is not over it may go the next moment
    let killed = Facts::parse("rank run-1 7 - local killed\nrank run-2 8 - theirs killed\n").jobs.ranks;
    let mut stuck = Clinic::with(2, |c: &mut Clinic| c.nodes[1].facts.jobs.ranks = killed.clone());
    stuck.finds(&["warning killed gpu02: still there after SIGKILL: process 7 of the job run-1"]);
    assert!(stuck.all().iter().all(|finding| finding.fixes.is_empty()));
    let record = include_str!("../../../tests/compat/job.json").replace("20261125-203344-5ae9", "run-1");
    stuck.nodes[1].facts.jobs.recorded = vec![RecordedJob { id: "run-1".into(), record: record.clone() }];
    stuck.finds(&["error stale gpu02: 1 process of job run-1, whose launcher is not running"]);
    stuck.nodes[0].containers.push(container("hmaster", "m", ContainerState::Running, &labels));
    stuck.finds(&[]);
    // of a job whose record cannot be read it is not known whether it has ended
    let mut unreadable = Clinic::with(2, ranks);
    unreadable.nodes[1].facts.jobs.recorded =
        vec![RecordedJob { id: "run-1".into(), record: "{\"format\": 9}".into() }];
    unreadable.finds(&[
        "warning jobs gpu02: the record of job run-1 cannot be read: written by a newer hvdctl (format 9); this one \
         reads up to 1",
    ]);
    assert!(unreadable.all().iter().all(|finding| finding.fixes.is_empty()));
    // of another cluster
    let mut theirs = Clinic::with(2, ranks);
    let other = [(LABEL_CLUSTER, "theirs"), (LABEL_ROLE, "master"), (LABEL_JOB, "run-1")];
    theirs.nodes[1].containers.push(container("m", "m", ContainerState::Running, &other));
    assert!(theirs.found()[0].starts_with("error stale"));
    // without the master this is unknown, and nothing is ended
    let mut unknown = Clinic::with(2, ranks);
    unknown.nodes.remove(0);
    unknown.finds(&[]);
    let mut newer = clinic(2);
    let future = [labels.as_slice(), &[("hvdctl.format", "9")]].concat();
    newer.nodes[1].containers.push(container("hmaster", "m", ContainerState::Exited, &future));
    newer.finds(&[]);
    let mut ended = clinic(2);
    ended.nodes[0].containers.push(container("hmaster", "m", ContainerState::Exited, &labels));
    // the next job removes it, unless it is kept
    ended.finds(&[]);
    ended.nodes[0].facts.jobs.recorded = vec![RecordedJob { id: "run-1".into(), record }];
    ended.finds(&["warning stale gpu01: hmaster of the ended job run-1 still exists"]);
    let fix = ("gpu01".to_owned(), Fix::RemoveContainer { name: "hmaster".into(), id: "m".into() });
    assert_eq!(ended.all()[0].fixes, [fix]);
    // the nodes' clocks show 1000
    let mut shell = clinic(2);
    let of_shell =
        container("hmaster-shell-1", "s", ContainerState::Created, &[(LABEL_CLUSTER, "local"), (LABEL_ROLE, "shell")]);
    shell.nodes[0].containers.push(ContainerSummary { created: Some(990), ..of_shell.clone() });
    shell.finds(&[]);
    shell.nodes[0].containers.push(ContainerSummary { created: Some(700), id: "old".into(), ..of_shell });
    shell.finds(&["warning stale gpu01: hmaster-shell-1 is the container of a shell that was never started"]);
    let name = "hmaster-shell-1".to_owned();
    assert_eq!(shell.all()[0].fixes, [("gpu01".to_owned(), Fix::RemoveContainer { name, id: "old".into() })]);
    let mut foreign = clinic(2);
    foreign.nodes[1].containers.push(container("other", "m", ContainerState::Exited, &other));
    foreign.finds(&[]);
    // its GPUs' users are its ranks
    let mut using = Clinic::with(2, ranks);
    using.nodes[1].details.gpu_users = Details::parse("gpu-user root run-1 python, 7, 1 MiB, GPU-2\n").gpu_users;
    assert_eq!(using.found().len(), 1);
}

#[test]
fn an_engine_without_root_has_the_limits_and_no_groups_of_its_login() {
    use crate::inventory::Ulimit;
    let found = |limits: &[(&str, u64)], name: &str, hard: i64| {
        let sick = Clinic::with(1, |c| {
            let sick = &mut c.nodes[0];
            sick.limits = limits.iter().map(|(name, limit)| ((*name).to_owned(), *limit)).collect();
            sick.node.container.ulimits = [(name.to_owned(), Ulimit { soft: hard, hard })].into();
        });
        let found = sick.all().into_iter().filter(|finding| finding.check == Check::Limits);
        found.map(|finding| format!("{} {}\n{}", finding.severity, finding.message, finding.hint)).collect::<Vec<_>>()
    };
    let small = [("memlock", 65536), ("nofile", 4096), ("nproc", 500)];
    let memlock = &found(&small, "memlock", -1)[0];
    assert!(memlock.starts_with("error `ulimits` asks for memlock unlimited, but the hard limit of own is 64.0 KiB"));
    assert!(memlock.contains("LimitMEMLOCK=infinity") && memlock.contains("set memlock = 65536"), "{memlock}");
    assert!(found(&small, "nofile", 1 << 20)[0].contains("LimitNOFILE=1048576"));
    assert_eq!(found(&small, "nofile", -1).len(), 1);
    assert_eq!(found(&[("nofile", 1 << 20)], "nofile", -1), [""; 0], "Podman gives that number");
    for (name, hard) in [("memlock", 65536), ("nproc", -1), ("stack", -1)] {
        assert_eq!(found(&small, name, hard), [""; 0], "{name}");
    }
    assert_eq!(found(&[], "memlock", -1), [""; 0], "an engine with root, or limits that cannot be read");

    let lines = "denied device /dev/kfd\ndenied device /dev/dri/card 0\ndenied directory /srv/set\n";
    let sick = Clinic::with(1, |c| c.nodes[0].facts.permissions = Facts::parse(lines).permissions);
    let found: Vec<String> = sick
        .all()
        .iter()
        .filter(|f| f.message.contains("cannot"))
        .map(|f| format!("{} {} {}", f.check, f.message, f.hint))
        .collect();
    assert!(
        found.iter().any(|f| f.starts_with("accelerators its containers cannot open /dev/kfd '/dev/dri/card 0'")
            && f.ends_with("sudo setfacl -m u:own:rw /dev/kfd '/dev/dri/card 0'")),
        "{found:?}"
    );
    assert!(found.iter().any(|f| f.starts_with("permissions its containers cannot read /srv/set")), "{found:?}");
}

#[test]
fn variables_that_have_no_effect_on_an_engine() {
    let found = |name: &str, engine: EngineName| {
        let sick = Clinic::with(1, |c| {
            c.nodes[0].engine_name = engine;
            c.nodes[0].node.container.env = [(name.to_owned(), "all".to_owned())].into();
        });
        let found = sick.all().into_iter().filter(|finding| finding.message.contains("in `env` has no effect"));
        found.map(|finding| finding.hint).collect::<Vec<_>>().join(" ")
    };
    assert!(found("NVIDIA_VISIBLE_DEVICES", EngineName::Docker).contains("set `gpus` instead"));
    assert_eq!(found("NVIDIA_DRIVER_CAPABILITIES", EngineName::Docker), "");
    assert!(found("NVIDIA_DRIVER_CAPABILITIES", EngineName::Podman).contains("remove the variable"));
    assert_eq!(found("NVIDIA_TF32_OVERRIDE", EngineName::Podman), "");
}
