//! The environment of launchers and ranks, and what other users of a node see of it.

use crate::cluster::{Cluster, OF_LOGIN};
use crate::job::{Job, Method, Spec, each_launcher};
use hvdctl::record::JobState;
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// Writes the variables of the login and of the user, and waits.
const SHOW: &str =
    "echo \"$OF_LOGIN, $DECLARED, $PATH\"\necho ready\nuntil [ -e /run/cluster/shared/go ]; do sleep 0.05; done";
const DECLARED: &str = "canary of the file";

/// Asserts that no command line of the two nodes has a value of the environment.
#[track_caller]
fn no_command_line_tells(job: &Job<'_>, cluster: &Cluster) {
    let mut processes = job.launching.processes();
    processes.extend(cluster.worker.processes());
    assert!(processes.len() > 6, "{processes:#?}");
    for process in processes {
        assert!(!process.arguments.contains("canary"), "{process:#?}");
    }
}

#[test]
fn ranks_have_the_environment_and_no_command_line_tells_it() {
    each_launcher(|method| {
        let cluster = Cluster::new();
        let env = format!("{{\"DECLARED\": \"{DECLARED}\"}}");
        let job = cluster.start(&Spec { env, ..Spec::shell(method, SHOW) });
        job.until_ready();
        no_command_line_tells(&job, &cluster);
        if method == Method::Gloo {
            let kept = fs::metadata(cluster.job_file(0, "inherited.json")).unwrap();
            assert_eq!(kept.permissions().mode() & 0o777, 0o600);
            // of each launcher's process, though nobody else can read that
            for launcher in job.launchers() {
                let environment =
                    fs::read(format!("/proc/{}/environ", launcher.pid.as_raw_nonzero())).unwrap_or_default();
                assert!(!String::from_utf8_lossy(&environment).contains("canary"), "{launcher:?}");
            }
        }
        fs::write(cluster.shared("go"), "").unwrap();
        let end = job.end();
        assert_eq!(end.ending.state(), JobState::Succeeded, "{}", end.all);
        // the other launchers pass their own on
        let second = if method == Method::Gloo { OF_LOGIN[1] } else { OF_LOGIN[0] };
        for (rank, of_login) in [OF_LOGIN[0], second].into_iter().enumerate() {
            let wanted = format!("{of_login}, {DECLARED}, ");
            assert!(end.lines[rank][0].starts_with(&wanted), "{:?}{}", end.lines[rank], end.all);
            assert!(end.lines[rank][0].ends_with("/sbin:/bin"), "{:?}", end.lines[rank]);
        }
    });
}

#[test]
fn ranks_that_are_kept_have_it_too() {
    let cluster = Cluster::new();
    let spec = Spec { min_ranks: Some(1), in_place: true, ..Spec::shell(Method::Gloo, SHOW) };
    let job = cluster.start(&spec);
    job.until_ready();
    no_command_line_tells(&job, &cluster);
    (0..2).for_each(|rank| job.until_holds("its variable", || job.lines(rank)[0].starts_with(OF_LOGIN[rank as usize])));
    fs::write(cluster.shared("go"), "").unwrap();
    assert_eq!(job.end().ending.state(), JobState::Succeeded);
}
