//! Jobs with roles.

use crate::cluster::{ADDRESSES, Cluster};
use crate::job::{End, Method, Spec, each};
use crate::role_files::RoleSpec;
use hvdctl::model::role::{Ends, ReadyWhen};
use hvdctl::record::frames::FrameKind;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::fs;

const WITH_FIRST: Ends = Ends::With { role: 0 };
/// Ends when it is asked to, after it has saved.
const SERVES: &str = "trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.1; done";
/// Waits until the test lets it go on.
const GO: &str = "until [ -e /run/cluster/shared/go ]; do sleep 0.05; done";

/// The first role: two ranks of `torchrun`, which end the job.
fn trainer(script: &str) -> RoleSpec {
    RoleSpec::shell("trainer", Method::Torchrun, [1, 1], script)
}

/// The second role: two ranks on the second node, which hvdctl starts itself.
fn generator(script: &str) -> RoleSpec {
    RoleSpec { ends: WITH_FIRST, ..RoleSpec::shell("generator", Method::Env, [0, 2], script) }
}

/// Returns what the job supervisor has logged about roles.
fn events(end: &End) -> Vec<Value> {
    let event = |frame: &hvdctl::record::frames::Frame| match &frame.kind {
        FrameKind::Restart(text) => serde_json::from_str::<Value>(text).ok(),
        _ => None,
    };
    end.frames.iter().filter_map(event).filter(|event| event["role"].is_string()).collect()
}

#[track_caller]
fn succeeded(end: &End, served: &[u32]) {
    assert_eq!(end.ending.launcher, Some(0), "{:?}{}", end.ending, end.all);
    assert_eq!((end.ending.stopped, &end.ending.served[..]), (false, served), "{:?}{}", end.ending, end.all);
}

#[test]
fn each_role_finds_the_others_and_is_asked_to_end_with_the_one_that_it_serves() {
    each([Method::Env, Method::Torchrun], |method| {
        let cluster = Cluster::new();
        let shown = "echo $HVDCTL_ROLE $RANK of $WORLD_SIZE as $PORT_HTTP; cat $HVDCTL_ROLES; echo";
        let first = format!("{shown}; echo $HVDCTL_ROLE_GENERATOR_HTTP; echo $HVDCTL_ROLE_GENERATOR_HOSTS; echo $X");
        let trainer = RoleSpec { needs: vec![1], env: json!({"X": "of the trainer"}), ..trainer(&first) };
        let mut generator = RoleSpec {
            ports: vec!["http".into()],
            ready: Some(ReadyWhen::Line { text: "ready".into() }),
            method,
            env: json!({"X": "of the generator"}),
            ..generator(&format!("{shown}; echo at $0; echo $X; {SERVES}"))
        };
        generator.command.push("$PORT_HTTP-${PORT_HTTP}-$PORT_OTHER".into());
        let end = cluster.start(&Spec::roles(vec![trainer, generator])).end();
        // on node2 the ranks of the trainer come first
        succeeded(&end, &[2, 3]);
        let roles: Value = serde_json::from_str(&end.lines[0][1]).unwrap();
        let at = roles["generator"]["ports"]["http"].as_array().unwrap();
        let ports: Vec<&str> = at.iter().map(|at| at.as_str().unwrap().strip_prefix("127.0.0.2:").unwrap()).collect();
        assert!(ports.len() == 2 && ports[0] != ports[1], "{ports:?}");
        assert_eq!(roles["trainer"], json!({"ranks": 2, "hosts": ADDRESSES, "ports": {}}));
        for rank in [0, 1] {
            let [line, all, http, hosts, own] = &end.lines[rank][..] else { panic!("{}", end.all) };
            assert_eq!(line, &format!("trainer {rank} of 2 as"));
            assert_eq!(all, &end.lines[0][1], "{}", end.all);
            assert_eq!(http, &format!("127.0.0.2:{},127.0.0.2:{}", ports[0], ports[1]));
            assert_eq!((hosts.as_str(), own.as_str()), ("127.0.0.2", "of the trainer"));
            let port = ports[rank];
            let [line, all, command, own, rest @ ..] = &end.lines[2 + rank][..] else { panic!("{}", end.all) };
            assert_eq!(line, &format!("generator {rank} of 2 as {port}"), "{}", end.all);
            assert_eq!(all, &end.lines[0][1], "{}", end.all);
            assert_eq!(command, &format!("at {port}-{port}-$PORT_OTHER"), "{}", end.all);
            assert_eq!((own.as_str(), rest), ("of the generator", &["ready".to_owned(), "saved".to_owned()][..]));
        }
        assert_eq!([0, 1, 2, 3].map(|rank| end.rank(rank)), [(0, false), (0, false), (0, true), (0, true)]);
    });
}

/// A server that is there some time after its start; with a file next to it that says since when.
const SERVER: &str = "import http.server, socketserver
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == '/health': open('/run/cluster/shared/before%d' % rank, 'w').close()
        self.send_response(200 if self.path == '/health' else 404)
        self.end_headers()
    def log_message(self, *_): pass
time.sleep(0.7)
socketserver.TCPServer.allow_reuse_address = True
socketserver.TCPServer((HOST, int(os.environ['PORT_HTTP'])), Handler).serve_forever()";

/// A rank that is ready some time after its start; by then `before0` and `before1` exist.
const LATE: &str = "sleep 0.7; touch /run/cluster/shared/before$RANK";

#[derive(Debug, Clone, Copy)]
enum When {
    HttpAtItsAddress,
    HttpHere,
    Port,
    Line,
    LineAtItsEnd,
    File,
    FileAtItsEnd,
}

fn server(host: &str) -> RoleSpec {
    let program = SERVER.replace("HOST", host);
    let role = RoleSpec::python("generator", Method::Env, [0, 2], &program);
    let url = "http://:$PORT_HTTP/health".into();
    let ready = Some(ReadyWhen::Http { url });
    RoleSpec { ends: WITH_FIRST, ports: vec!["metrics".into(), "http".into()], ready, ..role }
}

fn becomes_ready(when: When) -> RoleSpec {
    let line = Some(ReadyWhen::Line { text: "now serving".into() });
    let file = Some(ReadyWhen::File { path: "is.ready".into() });
    let listens = "open('/run/cluster/shared/before%d' % rank, 'w').close(); import socket; s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(('', int(os.environ['PORT_HTTP']))); s.listen(9); time.sleep(600)";
    match when {
        When::HttpAtItsAddress => server("'127.0.0.2'"),
        When::HttpHere => server("'127.0.0.1'"),
        When::Port => {
            let role = RoleSpec::python("generator", Method::Env, [0, 2], &format!("time.sleep(0.7); {listens}"));
            let ready = Some(ReadyWhen::Port { name: "http".into() });
            RoleSpec { ends: WITH_FIRST, ports: vec!["http".into()], ready, ..role }
        }
        When::Line => {
            RoleSpec { ready: line, ..generator(&format!("{LATE}; echo \"[$RANK] now serving!\" >&2; sleep 600")) }
        }
        When::LineAtItsEnd => RoleSpec { ready: line, ..generator(&format!("{LATE}; echo now serving")) },
        // of two ranks one writes it
        When::File => RoleSpec {
            ready: file,
            ..generator(&format!("{LATE}; [ $RANK = 0 ] || {{ sleep 0.3; touch is.ready; }}; sleep 600"))
        },
        When::FileAtItsEnd => RoleSpec {
            ready: file,
            ..generator(&format!(
                "{LATE}; [ $RANK = 0 ] || {{ sleep 0.3; touch is.ready; }}; until [ -e is.ready ]; do sleep 0.1; done"
            ))
        },
    }
}

#[test]
fn a_role_begins_when_the_one_that_it_needs_is_ready() {
    use When::*;
    each([HttpAtItsAddress, HttpHere, Port, Line, LineAtItsEnd, File, FileAtItsEnd], |when| {
        let cluster = Cluster::new();
        let generator = becomes_ready(when);
        let trainer = RoleSpec { needs: vec![1], ..trainer("cd /run/cluster/shared; echo $(ls)") };
        let end = cluster.start(&Spec::roles(vec![trainer, generator])).end();
        let has_ended = matches!(when, LineAtItsEnd | FileAtItsEnd);
        succeeded(&end, if has_ended { &[] } else { &[2, 3] });
        for rank in [0, 1] {
            assert!(end.lines[rank][0].contains("before0 before1"), "{:?}{}", end.lines[rank], end.all);
        }
        let [ready] = &events(&end)[..] else { panic!("{}", end.all) };
        assert!(ready["role"] == "generator" && ready["ready"].is_u64(), "{ready}");
    });
}

#[test]
fn a_role_that_never_becomes_ready_ends_the_job() {
    each([false, true], |ends: bool| {
        let cluster = Cluster::new();
        let ready = Some(ReadyWhen::Line { text: "now serving".into() });
        // one that has ended never will be
        let script = if ends { "[ $RANK = 1 ] || echo now serving" } else { SERVES };
        let (ready_timeout, ranks) = if ends { (600, "1") } else { (1, "0, 1") };
        let generator = RoleSpec { ready, ready_timeout, ..generator(script) };
        let trainer = RoleSpec { needs: vec![1], ..trainer("echo never") };
        let end = cluster.start(&Spec::roles(vec![trainer, generator])).end();
        assert_eq!((end.ending.launcher, &end.ending.served[..]), (Some(1), &[][..]), "{}", end.all);
        let mut fault = end.result["reason"].clone();
        let seconds = fault["seconds"].take();
        let mut expected = json!({"kind": "role_not_ready", "role": "generator", "ranks": ranks, "seconds": null});
        if ends {
            expected["ended"] = json!(true);
        }
        assert_eq!(fault, expected);
        assert!(seconds.is_u64() && (ends || seconds == json!(1)), "{seconds}");
        assert!(end.lines[0].is_empty() && end.lines[1].is_empty(), "{}", end.all);
    });
}

/// How a rank of the second role fails at its first start, and what it does at the next one.
#[derive(Debug, Clone, Copy)]
enum Failure {
    Fails,
    IsKilled,
    Hangs,
}

impl Failure {
    fn script(self) -> String {
        let fails = match self {
            Failure::Fails => "exit 7",
            Failure::IsKilled => "kill -9 $$",
            // it ignores requests, too
            Failure::Hangs => "trap '' TERM; touch /run/cluster/shared/go; while :; do sleep 0.1; done",
        };
        // when all of the others run
        format!(
            "trap 'echo saved; exit 0' TERM; cd /run/cluster/shared; echo start $HVDCTL_RESTART at $PORT_HTTP
            touch $RANK.$HVDCTL_RESTART
            if [ $RANK = 0 ]; then
              until [ -e 1.$HVDCTL_RESTART ] && [ -e trainer0 ] && [ -e trainer1 ]; do sleep 0.05; done
              [ $HVDCTL_RESTART = 1 ] || {{ {fails}; }}
              touch go
            fi
            while :; do sleep 0.1; done"
        )
    }
}

/// Each way to fail, and each effect of the end of a role: the exit code of the job, how often the role was started,
/// and which ranks were served.
#[test]
fn what_the_failure_of_a_role_means_depends_on_its_ends() {
    use Failure::*;
    let restarts = Ends::Restarts { times: 1 };
    each(
        [
            (Fails, Ends::Job, 7, 1, &[][..]),
            (Fails, WITH_FIRST, 7, 1, &[]),
            (Fails, restarts, 0, 2, &[2, 3]),
            (IsKilled, Ends::Job, 137, 1, &[]),
            (IsKilled, WITH_FIRST, 137, 1, &[]),
            (IsKilled, restarts, 0, 2, &[2, 3]),
            // the first role ends in all of these
            (Hangs, Ends::Job, 0, 1, &[2, 3]),
            (Hangs, WITH_FIRST, 0, 1, &[2, 3]),
            (Hangs, restarts, 0, 1, &[2, 3]),
        ],
        |(failure, ends, code, starts, served): (Failure, Ends, i64, usize, &[u32])| {
            let cluster = Cluster::new();
            let generator = RoleSpec { ends, ports: vec!["http".into()], ..generator(&failure.script()) };
            let trainer = trainer(&format!("touch /run/cluster/shared/trainer$RANK; {GO}"));
            let grace = if matches!(failure, Hangs) { 1 } else { 60 };
            let spec = Spec { grace, ..Spec::roles(vec![trainer, generator]) };
            let end = cluster.start(&spec).end();
            let seen = (end.ending.launcher, &end.ending.served[..]);
            assert_eq!(seen, (Some(code), served), "{:?}{}", end.ending, end.all);
            for rank in [2, 3] {
                let starts_of = end.lines[rank].iter().filter(|line| line.starts_with("start"));
                let addresses: Vec<&str> = starts_of.map(|line| line.split_once(" at ").unwrap().1).collect();
                assert_eq!(addresses.len(), starts, "{}", end.all);
                assert!(addresses.iter().all(|one| *one == addresses[0] && !one.is_empty()), "{addresses:?}");
            }
            let again: Vec<Value> = events(&end).into_iter().filter(|event| event["again"].is_u64()).collect();
            assert_eq!(again.len(), starts - 1, "{again:?}{}", end.all);
            let signal = matches!(failure, IsKilled).then_some(9);
            let exit = json!({"rank": 2, "node": "node2", "code": signal.map_or(7, |n| 128 + n), "signal": signal});
            for event in again {
                assert_eq!(event, json!({"role": "generator", "again": 1, "of": 1, "exit": exit}));
            }
            // of each rank, its last end
            let expected = match (code, failure) {
                (0, Hangs) => [(137, true), (0, true)],
                (0, _) => [(0, true), (0, true)],
                (code, _) => [(code as i32, false), (0, true)],
            };
            assert_eq!([end.rank(2), end.rank(3)], expected, "{}", end.all);
            let first = if code == 0 { (0, false) } else { (143, true) };
            assert_eq!([end.rank(0), end.rank(1)], [first; 2], "{}", end.all);
            assert_eq!(end.ending.started, 4, "{}", end.all);
        },
    );
}

#[test]
fn a_role_that_fails_too_often_ends_the_job() {
    let cluster = Cluster::new();
    let script = format!("echo start; [ $RANK = 0 ] || exit 9; {SERVES}");
    let generator = RoleSpec { ends: Ends::Restarts { times: 2 }, ..generator(&script) };
    let end = cluster.start(&Spec::roles(vec![trainer(GO), generator])).end();
    assert_eq!(end.ending.launcher, Some(9), "{}", end.all);
    assert_eq!(end.lines[3], ["start"; 3], "{}", end.all);
    assert_eq!(events(&end).iter().map(|event| &event["again"]).collect::<Vec<_>>(), [1, 2], "{}", end.all);
    assert_eq!(end.rank(3), (9, false), "{}", end.all);
}

#[test]
fn a_role_without_a_condition_is_ready_when_its_ranks_have_started() {
    let cluster = Cluster::new();
    let generator = generator("until [ -e /run/cluster/shared/go ]; do sleep 0.05; done; echo went");
    let trainer = RoleSpec { needs: vec![1], ..trainer("touch /run/cluster/shared/go; sleep 600") };
    let job = cluster.start(&Spec::roles(vec![trainer, generator]));
    [2, 3].into_iter().for_each(|rank| job.until(rank, "went"));
    job.signal(Signal::TERM);
    let end = job.end();
    assert!(end.ending.stopped, "{:?}{}", end.ending, end.all);
    assert_eq!([2, 3].map(|rank| end.rank(rank)), [(0, false); 2], "{}", end.all);
}

#[test]
fn a_failure_of_the_first_role_ends_all() {
    let cluster = Cluster::new();
    let script = format!("echo ready; {GO}; [ $RANK = 0 ] || exit 3; sleep 600");
    let job = cluster.start(&Spec::roles(vec![trainer(&script), generator(SERVES)]));
    (0..4).for_each(|rank| job.until(rank, "ready"));
    fs::write(cluster.shared("go"), "").unwrap();
    let end = job.end();
    assert_eq!((end.ending.launcher, &end.ending.served[..]), (Some(3), &[][..]), "{}", end.all);
    assert_eq!([0, 1, 2, 3].map(|rank| end.rank(rank)), [(143, true), (3, false), (0, true), (0, true)], "{}", end.all);
}

#[test]
fn a_role_ends_with_one_that_does_not_end_the_job() {
    let cluster = Cluster::new();
    let data = RoleSpec {
        ends: Ends::Restarts { times: 0 },
        ..RoleSpec::shell("data", Method::Env, [1, 0], "until [ -e /run/cluster/shared/first ]; do sleep 0.05; done")
    };
    let cache = RoleSpec {
        ends: Ends::With { role: 1 },
        ..RoleSpec::shell("cache", Method::Env, [1, 0], &format!("touch /run/cluster/shared/first; {SERVES}"))
    };
    // it goes on without them
    let job = cluster.start(&Spec::roles(vec![trainer(GO), data, cache]));
    job.until(2, "saved");
    assert!(job.file(0, "result.json").unwrap_or_default().is_empty());
    fs::write(cluster.shared("go"), "").unwrap();
    let end = job.end();
    succeeded(&end, &[2]);
    assert_eq!([0, 1, 2, 3].map(|rank| end.rank(rank)), [(0, false), (0, false), (0, true), (0, false)], "{}", end.all);
}

#[test]
fn a_job_with_roles_that_is_stopped_ends_all_with_their_grace_period() {
    each([true, false], |needs: bool| {
        let cluster = Cluster::new();
        let ready = Some(ReadyWhen::Line { text: "never".into() });
        let generator = RoleSpec { ready, ..generator(SERVES) };
        let trainer = RoleSpec { needs: if needs { vec![1] } else { Vec::new() }, ..trainer(SERVES) };
        let job = cluster.start(&Spec::roles(vec![trainer, generator]));
        let running = if needs { 2..4 } else { 0..4 };
        running.clone().for_each(|rank| job.until(rank, "ready"));
        job.signal(Signal::TERM);
        let end = job.end();
        assert!(end.ending.stopped && end.ending.served.is_empty(), "{:?}{}", end.ending, end.all);
        running.clone().for_each(|rank| assert_eq!(end.rank(rank), (0, true), "{}", end.all));
        assert_eq!(end.ending.exits.len(), running.count(), "{}", end.all);
    });
}

#[test]
fn all_roles_of_a_job_that_failed_are_started_again_with_other_ports() {
    let cluster = Cluster::new();
    let trainer = trainer("[ $HVDCTL_RESTART = 1 ] || exit 4");
    let script = format!("echo start $HVDCTL_RESTART at $PORT_HTTP; {SERVES}");
    let trainer = RoleSpec { needs: vec![1], ..trainer };
    let ready = Some(ReadyWhen::Line { text: "ready".into() });
    let generator = RoleSpec { ports: vec!["http".into()], ready, ..generator(&script) };
    let end = cluster.start(&Spec { restarts: 1, ..Spec::roles(vec![trainer, generator]) }).end();
    succeeded(&end, &[2, 3]);
    assert_eq!((end.attempts.len(), end.attempts[0].launcher), (1, Some(4)), "{}", end.all);
    for rank in [2, 3] {
        let starts: Vec<&String> = end.lines[rank].iter().filter(|line| line.starts_with("start")).collect();
        assert!(
            starts.len() == 2 && starts[1].starts_with("start 1 at ") && starts[0].len() == "start 0 at 20000".len(),
            "{starts:?}"
        );
    }
}

#[test]
fn a_node_that_is_gone_has_no_ports() {
    let cluster = Cluster::new();
    cluster.worker.signal(Signal::KILL);
    let generator = RoleSpec { ports: vec!["http".into()], ..generator(SERVES) };
    let end = cluster.start(&Spec::roles(vec![trainer(GO), generator])).end();
    assert_eq!((end.ending.launcher, &end.ending.silent[..]), (Some(1), &["node2".to_owned()][..]), "{}", end.all);
    let refused = "cannot choose ports on node2: ssh: connect to host 127.0.0.2 port 12345: Connection refused";
    assert!(end.all.contains(refused), "{}", end.all);
}

/// The part of the second node that is lost.
#[derive(Debug, Clone, Copy)]
enum Lost {
    Node,
    Connection,
}

/// Each effect of the end of a role that is on the lost node: only one that may start again on it goes on.
#[test]
fn what_a_lost_node_means_depends_on_the_ends_of_its_role() {
    let restarts = Ends::Restarts { times: 1 };
    let silence = "is gone: the worker there did not answer at the end: ssh: connect to host 127.0.0.2 port 12345";
    each(
        [
            (Lost::Node, Ends::Job, Some(silence)),
            (Lost::Node, WITH_FIRST, Some(silence)),
            (Lost::Node, restarts, Some(silence)),
            (Lost::Connection, Ends::Job, None),
            (Lost::Connection, WITH_FIRST, None),
            (Lost::Connection, restarts, None),
        ],
        |(lost, ends, silence): (Lost, Ends, Option<&str>)| {
            let cluster = Cluster::new();
            let script = format!("[ $HVDCTL_RESTART = 0 ] || touch /run/cluster/shared/go; {SERVES}");
            let generator = RoleSpec { ends, ..RoleSpec::shell("generator", Method::Env, [0, 1], &script) };
            let script = format!("trap 'echo saved; exit 0' TERM; echo ready; {GO}");
            let trainer = RoleSpec::shell("trainer", Method::Torchrun, [1, 0], &script);
            let job = cluster.start(&Spec::roles(vec![trainer, generator]));
            job.until_ready();
            match lost {
                Lost::Node => cluster.worker.signal(Signal::KILL),
                Lost::Connection => {
                    let sessions = cluster.worker.others().into_iter().filter(|process| process.name == "sshd");
                    sessions.for_each(|session| session.signal(Signal::KILL));
                }
            }
            let end = job.end();
            let again: Vec<Value> = events(&end).into_iter().filter(|event| event["again"].is_u64()).collect();
            assert_eq!(again.len(), usize::from(ends == restarts), "{again:?}{}", end.all);
            match (silence, ends) {
                (Some(silence), _) => drop(end.failed(&format!("rank 0 of generator on node2 {silence}"), 255)),
                (None, Ends::Restarts { .. }) => succeeded(&end, &[1]),
                (None, _) => assert_eq!((end.ending.launcher, end.ending.silent.len()), (Some(255), 0), "{}", end.all),
            }
            // it has saved, and the rank of the lost node too if it could
            let is_asked = (0, !matches!((lost, ends), (Lost::Connection, Ends::Restarts { .. })));
            assert_eq!(end.rank(0), is_asked, "{}", end.all);
            let saved = matches!(lost, Lost::Connection);
            assert_eq!(end.lines[1].iter().any(|line| line == "saved"), saved, "{}", end.all);
        },
    );
}

#[test]
fn the_first_role_is_on_the_lost_node() {
    let cluster = Cluster::new();
    let trainer = RoleSpec::shell("trainer", Method::Torchrun, [0, 1], SERVES);
    let generator = RoleSpec { ends: WITH_FIRST, ..RoleSpec::shell("generator", Method::Env, [1, 0], SERVES) };
    let job = cluster.start(&Spec::roles(vec![trainer, generator]));
    job.until_ready();
    cluster.worker.signal(Signal::KILL);
    let end = job.end();
    end.failed("rank 0 of trainer on node2 is gone: the worker there did not answer at the end: ssh: connect", 255);
    assert_eq!(end.rank(0), (0, true), "{}", end.all);
}
