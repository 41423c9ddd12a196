//! Many jobs with roles, one after another.

use crate::cluster::Cluster;
use crate::job::{Method, Spec};
use crate::role_files::RoleSpec;
use hvdctl::model::role::{Ends, ReadyWhen};
use hvdctl::record::frames::FrameKind;
use std::collections::BTreeSet;

/// A rank of each role on each node.
const RANKS: u32 = 4;

/// Listens at both ports of the rank, and says where.
const LISTENS: &str = "import socket
held, role, again = [], os.environ['HVDCTL_ROLE'], os.environ['HVDCTL_RESTART'] != '0'
for name in 'AB':
    at = os.environ['HVDCTL_ROLE_%s_%s' % (role.upper(), name)].split(',')[rank]
    host, _, port = at.partition(':')
    held.append(socket.socket())
    held[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held[-1].bind((host, int(port)))
    held[-1].listen(1)
    print('at', at)
def touch(name): open('/run/cluster/shared/' + name, 'w').close()
def until(*names):
    while not all(os.path.exists('/run/cluster/shared/' + name) for name in names): time.sleep(0.02)
";

/// Starts and ends a job of a trainer and its generators, one of which may be killed once. Returns the ports of all
/// ranks with their addresses.
fn cycle(is_killed: bool) -> Vec<String> {
    let cluster = Cluster::new();
    // the trainer is there until a generator that was killed is there again
    let waits = "touch('trainer%d' % rank); until('again0', 'again1')";
    let waits = if is_killed { waits } else { "until('first0', 'first1')" };
    let serves = "touch(('again%d' if again else 'first%d') % rank)";
    let kills = "if rank == 0 and not again: until('trainer0', 'trainer1'); os.kill(os.getpid(), 9)";
    let kills = if is_killed { kills } else { "" };
    let role = |name, program: &str| RoleSpec {
        ports: vec!["a".into(), "b".into()],
        ..RoleSpec::python(name, Method::Env, [1, 1], &format!("{LISTENS}{program}"))
    };
    let trainer = RoleSpec { needs: vec![1], ..role("trainer", waits) };
    let generator = RoleSpec {
        ready: Some(ReadyWhen::Port { name: "a".into() }),
        ends: Ends::Restarts { times: 1 },
        ..role("generator", &format!("{serves}\n{kills}\ntime.sleep(600)"))
    };
    // that nothing is left is a part of each end
    let end = cluster.start(&Spec::roles(vec![trainer, generator])).end();
    // node by node, and on each of them role by role
    assert_eq!((end.ending.launcher, &end.ending.served[..]), (Some(0), &[1, 3][..]), "{:?}{}", end.ending, end.all);
    let is_again = |kind: &FrameKind| matches!(kind, FrameKind::Restart(text) if text.contains("\"again\""));
    let again = end.frames.iter().filter(|frame| is_again(&frame.kind)).count();
    assert_eq!(again, usize::from(is_killed), "{}", end.all);
    let mut ports = Vec::new();
    for rank in 0..RANKS {
        let lines = &end.lines[rank as usize];
        let starts = if is_killed && rank % 2 == 1 { 2 } else { 1 };
        assert_eq!(lines.len(), 2 * starts, "{lines:?}{}", end.all);
        assert_eq!(lines[..2], lines[lines.len() - 2..], "its addresses are kept");
        ports.extend(lines[..2].iter().map(|line| line.strip_prefix("at ").unwrap().to_owned()));
    }
    ports
}

/// With `scripts/test --full` a hundred, of which twenty have a generator that is killed.
#[test]
fn nothing_is_left_of_many_jobs_and_no_port_is_given_twice() {
    let jobs = if std::env::var_os("HVDCTL_TEST_FULL").is_some() { 100 } else { 5 };
    for number in 0..jobs {
        let ports = cycle(number % 5 == 4);
        let distinct: BTreeSet<&String> = ports.iter().collect();
        assert_eq!((distinct.len(), ports.len()), (8, 8), "{ports:?}");
    }
}
