//! Groups of stacks, and the sentence about them.

use super::*;

fn frame(name: &str, file: &str, line: u32) -> StackFrame {
    StackFrame { name: name.into(), file: file.into(), line, locals: Vec::new() }
}

/// The stack of a rank that waits for the others in PyTorch.
fn waiting() -> Vec<StackFrame> {
    let torch = "/usr/lib/python3/dist-packages/torch/distributed";
    vec![
        frame("all_reduce", &format!("{torch}/distributed_c10d.py"), 2501),
        frame("wrapper", &format!("{torch}/c10d_logger.py"), 79),
        frame("<module>", "/workspace/train.py", 44),
    ]
}

fn loading() -> Vec<StackFrame> {
    vec![frame("load", "/workspace/data.py", 31), frame("<module>", "/workspace/train.py", 40)]
}

fn rank(rank: u32, quiet: u64, does: &str, frames: Vec<StackFrame>) -> RankStack {
    let thread = StackThread { name: "MainThread".into(), active: false, does: None, frames };
    let process = StackProcess {
        pid: 100 + rank,
        command: "python3 train.py".into(),
        does: Some(does.into()),
        threads: vec![thread],
        failure: None,
        dump: None,
    };
    let node = format!("node{}", rank / 2 + 1);
    let (waits_for, processes) = (Vec::new(), vec![process]);
    RankStack { rank, role: None, node, quiet, ending: false, waits_for, processes, left_out: 0, failure: None }
}

#[test]
fn the_ranks_that_are_elsewhere_come_first() {
    let waits = |number| rank(number, 12, "waiting in epoll_wait for input", waiting());
    let slow = rank(2, 14, "sleeping in clock_nanosleep", loading());
    let found = groups([waits(3), waits(0), slow.clone(), waits(1)]);
    let names: Vec<String> = found.iter().map(StackGroup::name).collect();
    assert_eq!(names, ["rank 2 on node2", "ranks 0-1,3 on node[1-2]"]);
    let expected = "3 of 4 ranks wait in all_reduce (train.py:44); rank 2 on node2 is in load (data.py:31), \
                    sleeping in clock_nanosleep since 14 s";
    assert_eq!(sentence(&found, Some(4)).unwrap(), expected);
    // of two ranks the one that waits is not the cause
    let found = groups([waits(0), RankStack { rank: 1, ..slow.clone() }]);
    assert_eq!(found[0].numbers().collect::<Vec<_>>(), [1]);
    assert!(
        sentence(&found, Some(4)).unwrap().starts_with("rank 0 on node1 waits in all_reduce (train.py:44); rank 1 on")
    );
    assert_eq!(sentence(&groups((0..4).map(waits)), Some(4)).unwrap(), "all 4 ranks wait in all_reduce (train.py:44)");
    assert_eq!(
        sentence(&groups([slow]), Some(4)).unwrap(),
        "rank 2 on node2 is in load (data.py:31), sleeping in clock_nanosleep since 14 s"
    );
    assert_eq!(sentence(&[], None), None);
}

#[test]
fn programs_that_are_not_python_are_named_by_their_own_code_or_what_they_wait_in() {
    let sleeps = frame("__GI___clock_nanosleep", "../sysdeps/unix/sysv/linux/clock_nanosleep.c", 48);
    let futex = frame("__futex_abstimed_wait", "./nptl/futex-internal.c", 87);
    let of = |frames: Vec<StackFrame>| sentence(&groups([rank(0, 0, "sleeping", frames)]), None).unwrap();
    let with_lines = vec![sleeps, futex, frame("load", "src/data.cc", 31), frame("main", "src/main.cc", 7)];
    assert_eq!(of(with_lines), "rank 0 on node1 is in __futex_abstimed_wait (data.cc:31), sleeping");
    let without = vec![
        frame("poll", "/lib/x86_64-linux-gnu/libc.so.6", 0),
        frame("PMPI_Allreduce", "/usr/lib/openmpi/libmpi.so.40", 0),
        frame("main", "", 0),
    ];
    assert_eq!(of(without), "rank 0 on node1 waits in PMPI_Allreduce (openmpi/libmpi.so.40)");
}

#[test]
fn what_horovod_says_names_the_rank_that_others_wait_for() {
    let mut waits = rank(0, 60, "waiting in futex for a lock or another thread", waiting());
    waits.waits_for = vec![AwaitedRank { rank: 2, role: None, tensors: "grad_a, grad_b".into() }];
    let slow = rank(2, 64, "sleeping in clock_nanosleep", loading());
    let text = "rank 0 on node1 waits in all_reduce (train.py:44) for rank 2 (Horovod: grad_a, grad_b)";
    assert_eq!(sentence(&groups([waits.clone()]), None).unwrap(), text);
    let text = format!("{text}; rank 2 on node2 is in load (data.py:31), sleeping in clock_nanosleep since 64 s");
    assert_eq!(sentence(&groups([slow.clone(), waits.clone()]), None).unwrap().matches(';').count(), 1);
    assert!(sentence(&groups([waits.clone(), slow]), None).unwrap().ends_with(text.split_once("; ").unwrap().1));
    // without py-spy
    waits.processes[0].threads.clear();
    let text = sentence(&groups([waits]), None).unwrap();
    assert_eq!(text, "rank 0 on node1 waits for rank 2 (Horovod: grad_a, grad_b)");
}

#[test]
fn ranks_that_look_for_one_another_wait() {
    let of = |name: &str, file: &str| groups([rank(0, 9, "x", vec![frame(name, file, 7), loading()[1].clone()])]);
    for (name, file) in [
        ("init", "/usr/lib/python3/dist-packages/horovod/common/basics.py"),
        ("init_process_group", "/v/site-packages/torch/distributed/distributed_c10d.py"),
        ("initialize", "/v/site-packages/jax/_src/distributed.py"),
    ] {
        let text = sentence(&of(name, file), None).unwrap();
        assert_eq!(text, format!("rank 0 on node1 waits in {name} (train.py:40)"), "{file}");
    }
    let does = "waiting in poll for a connection to 10.0.0.1 port 29500";
    let joins = frame("init_process_group", "/v/site-packages/torch/distributed/c10d.py", 9);
    let text = sentence(&groups([rank(1, 9, does, vec![joins, loading()[1].clone()])]), None).unwrap();
    assert_eq!(text, format!("rank 1 on node1 waits in init_process_group (train.py:40), {does} since 9 s"));
    // the project's own function for it
    let own = vec![frame("accept", "/usr/lib/python3.11/socket.py", 294), frame("my_barrier", "/w/sync.py", 7)];
    let text = sentence(&groups([rank(0, 0, "x", [own, loading()].concat())]), None).unwrap();
    assert_eq!(text, "rank 0 on node1 waits in my_barrier (data.py:31)");
    assert!(!of("init", "/v/site-packages/wandb/sdk/wandb_init.py")[0].waits());
}

#[test]
fn many_places_are_a_short_sentence() {
    let at = |number: u32| rank(number, 0, "running", vec![frame("f", "/p/a.py", number + 1)]);
    let text = sentence(&groups((0..9).map(at)), Some(9)).unwrap();
    assert!(text.ends_with("; 5 more ranks are elsewhere") && text.matches(';').count() == 4, "{text}");
}

#[test]
fn a_rank_that_runs_as_it_is_read_has_not_run_since_its_last_progress() {
    let runs = |quiet| groups([rank(1, quiet, RUNNING, Vec::new())])[0].describe();
    assert_eq!([runs(0), runs(90)], ["running", "running"]);
    assert_eq!(groups([rank(1, 90, "sleeping", Vec::new())])[0].describe(), "sleeping since 90 s");
}

#[test]
fn a_rank_that_could_not_be_read_is_shown_with_what_is_known() {
    let mut silent = rank(1, 90, "blocked in the kernel in nfs_wait", Vec::new());
    silent.processes[0].failure = Some("there is no py-spy".into());
    let gone =
        RankStack { processes: Vec::new(), failure: Some("it has just ended".into()), ..rank(3, 0, "", Vec::new()) };
    let found = groups([rank(0, 0, "x", waiting()), rank(2, 0, "x", waiting()), silent, gone]);
    assert_eq!(
        sentence(&found, Some(4)).unwrap(),
        "2 of 4 ranks wait in all_reduce (train.py:44); rank 1 on node1 is blocked in the kernel in nfs_wait since 90 \
         s; rank 3 on node2 could not be read: it has just ended"
    );
}

#[test]
fn a_shell_around_the_training_is_not_where_the_rank_is() {
    let mut found = rank(0, 0, "sleeping in clock_nanosleep", loading());
    let shell = StackProcess {
        pid: 7,
        command: "sh run.sh".into(),
        does: Some("waiting in wait4 for a child process".into()),
        threads: Vec::new(),
        failure: Some("Failed to find python version from target process".into()),
        dump: None,
    };
    found.processes.insert(0, shell.clone());
    assert_eq!(found.main().unwrap().pid, 100);
    found.processes[1].failure = Some("Permission denied".into());
    assert_eq!(found.main().unwrap().pid, 100);
    found.processes.truncate(1);
    assert_eq!(found.main().unwrap().pid, 7);
}

#[test]
fn frames_of_libraries_are_shortened() {
    let library = |line| frame("f", "/usr/lib/python3.11/threading.py", line);
    let frames = [vec![frame("load", "/w/data.py", 3)], (1..9).map(library).collect(), loading()].concat();
    assert_eq!(
        lines_of(&frames, false),
        [
            "load (data.py:3)",
            "f (python3.11/threading.py:1)",
            "… 6 more",
            "f (python3.11/threading.py:8)",
            "load (data.py:31)",
            "<module> (train.py:40)"
        ]
    );
    assert_eq!(lines_of(&frames, true).len(), 11);
    assert_eq!(lines_of(&waiting(), false)[0], "all_reduce (torch/distributed/distributed_c10d.py:2501)");
    let mut local = frame("f", "a.py", 1);
    local.locals = vec![StackVariable { name: "a".into(), value: "4".into() }];
    assert_eq!(lines_of(&[local], false), ["f (a.py:1)\n    a = 4"]);
    assert_eq!(lines_of(&[frame("nfs_wait", "", 0)], false), ["nfs_wait"]);
}

#[test]
fn data_loaders_are_shown_under_their_rank() {
    let mut found = rank(0, 0, "waiting in poll for input", loading());
    for pid in [8, 9] {
        let worker = rank(0, 0, "sleeping in clock_nanosleep", vec![frame("fetch", "/w/data.py", 12)]);
        found.processes.push(StackProcess { pid, ..worker.processes[0].clone() });
    }
    let text = sentence(&groups([found.clone()]), None).unwrap();
    assert_eq!(text, "rank 0 on node1 is in load (data.py:31), waiting in poll for input");
    found.processes[0].does = Some("waiting in wait4 for a child process".into());
    let text = sentence(&groups([found.clone()]), None).unwrap();
    // a program that only starts the training
    assert_eq!(text, "rank 0 on node1 is in fetch (data.py:12), sleeping in clock_nanosleep");
    found.processes[0].does = Some("waiting in poll for input".into());
    found.left_out = 4;
    assert_eq!(others_of(&found), ["2 × python3: fetch (data.py:12), sleeping in clock_nanosleep", "4 more processes"]);
}

#[test]
fn what_a_node_sends_is_read() {
    let text = r#"{"time": 1.5, "pid": 7, "left_out": 0, "rank": 3, "quiet": 14, "number": "a", "processes":
        [{"pid": 7, "command": "python3\u001b[2J t.py", "does": "sleeping", "threads": [{"name": "Main", "active":
        false, "frames": [{"name": "f\n", "file": "/p/t.py", "line": 6, "locals": [{"name": "a", "value":
        "\u00074"}]}]}]}]}"#;
    let found = RankStack::read("node2", text).unwrap();
    assert_eq!((found.rank, &*found.node, found.quiet), (3, "node2", 14));
    assert_eq!(found.processes[0].command, "python3[2J t.py");
    assert_eq!(found.frames()[0].locals, [StackVariable { name: "a".into(), value: "4".into() }]);
    for text in ["", "{", "[]", r#"{"rank": -1}"#, &"[".repeat(200_000)] {
        assert_eq!(RankStack::read("node2", text), None, "{text:.20}");
    }
}

/// The rank, as one of a role.
fn of_role(role: &str, number: u32, rank: RankStack) -> RankStack {
    RankStack { role: Some(RankOfRole { role: role.into(), rank: number }), ..rank }
}

#[test]
fn a_role_that_serves_is_not_what_the_others_wait_for() {
    let waits = |number| rank(number, 14, "polling", waiting());
    let load = rank(2, 14, "sleeping in clock_nanosleep", loading());
    let serve = |number| rank(number, 14, "sleeping in epoll_wait", vec![frame("serve", "/w/serve.py", 7)]);
    let mut found = groups([
        of_role("trainer", 0, waits(0)),
        of_role("trainer", 1, waits(1)),
        of_role("trainer", 2, load),
        of_role("generator", 0, serve(3)),
    ]);
    let names: Vec<String> = found.iter().map(StackGroup::name).collect();
    assert!(
        names[0].starts_with("rank 2 of trainer on ") && names[2].starts_with("rank 0 of generator on "),
        "{names:?}"
    );
    let text = sentence(&found, Some(4)).unwrap();
    let generator = text.split("; ").last().unwrap();
    assert!(text.starts_with("2 ranks of trainer wait in all_reduce (train.py:44); rank 2 of trainer on "), "{text}");
    assert!(generator.starts_with("rank 0 of generator on ") && generator.contains("is in serve"), "{text}");
    found.retain(|group| group.ranks.len() == 2);
    found[0].ranks[0].waits_for = vec![AwaitedRank {
        rank: 2,
        role: Some(RankOfRole { role: "trainer".into(), rank: 2 }),
        tensors: "grad".into(),
    }];
    assert!(found[0].describe().contains("for rank 2 of trainer (Horovod: grad)"), "{}", found[0].describe());
}
