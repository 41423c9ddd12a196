//! The environment of launchers and ranks, and what other users of a node see of it.

use crate::cluster::{Cluster, OF_LOGIN};
use crate::job::{Job, Method, Spec, each_launcher};
use hvdctl::record::JobState;
use std::collections::BTreeSet;
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

/// Variables that change what a Python, a loader, a shell, ssh or the C library does, and for most of which a program that
/// heeds them does not start. `/run/cluster/lib` has modules that fail, and libraries that are none.
const OF_RANKS: &[(&str, &str)] = &[
    ("PYTHONPATH", "/run/cluster/lib"),
    ("PYTHONHOME", "/nowhere"),
    ("PYTHONSTARTUP", "/run/cluster/lib/json.py"),
    ("PYTHONHASHSEED", "none"),
    ("PYTHONMALLOC", "none"),
    ("PYTHONTRACEMALLOC", "none"),
    ("PYTHONWARNINGS", "error"),
    ("PYTHONOPTIMIZE", "2"),
    ("PYTHONVERBOSE", "1"),
    ("PYTHONINSPECT", "1"),
    ("PYTHONDEVMODE", "1"),
    ("PYTHONIOENCODING", "utf-16"),
    ("PYTHONUTF8", "0"),
    ("PYTHONCOERCECLOCALE", "warn"),
    ("PYTHONUSERBASE", "/run/cluster/lib"),
    ("PYTHONPLATLIBDIR", "nowhere"),
    ("PYTHONBREAKPOINT", "nowhere.f"),
    ("LD_LIBRARY_PATH", "/run/cluster/lib"),
    ("LD_PRELOAD", "/nowhere.so"),
    ("LD_AUDIT", "/nowhere.so"),
    ("LD_BIND_NOW", "1"),
    ("GLIBC_TUNABLES", "glibc.malloc.check=3"),
    ("MALLOC_CHECK_", "3"),
    ("MALLOC_PERTURB_", "85"),
    ("GCONV_PATH", "/nowhere"),
    ("LOCPATH", "/nowhere"),
    ("RES_OPTIONS", "attempts:0"),
    ("HOSTALIASES", "/nowhere"),
    ("LANG", "xx_XX.nothing"),
    ("TZ", "nowhere"),
    ("TMPDIR", "/nowhere"),
    ("BASH_ENV", "/run/cluster/lib/fails.sh"),
    ("ENV", "/run/cluster/lib/fails.sh"),
    ("CDPATH", "/:/run"),
    ("POSIXLY_CORRECT", "1"),
    ("PERL5OPT", "-Mnothing"),
    ("SSH_AUTH_SOCK", "/nowhere"),
    ("SSH_ASKPASS", "/nowhere"),
    ("SSH_ASKPASS_REQUIRE", "force"),
    ("OPENSSL_CONF", "/nowhere"),
    ("OPENSSL_MODULES", "/nowhere"),
    // names that a script may use itself
    ("name", "1"),
    ("aside", "2"),
    ("here", "3"),
    ("VALUE", "it's $HOME; `id` \"x\" \\\\"),
];

#[test]
fn ranks_have_variables_for_which_hvdctls_programs_do_not_start() {
    each_launcher(|method| {
        // the stand-ins for launchers are programs of Python, and a real one needs the libraries of ranks
        let of_ranks = OF_RANKS.iter().filter(|(name, _)| *name != "LD_LIBRARY_PATH" || method == Method::Env);
        let of_ranks: Vec<_> = of_ranks.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let cluster = Cluster::with(of_ranks.clone());
        let lib = cluster.dir().join("cluster/lib");
        fs::create_dir(&lib).unwrap();
        for module in ["resource", "json", "signal", "sitecustomize", "usercustomize"] {
            fs::write(lib.join(format!("{module}.py")), "raise SystemExit(f'{__name__} of the user')").unwrap();
        }
        // Python needs the first one, and ssh the others
        for library in ["libm.so.6", "libz.so.1", "libcrypto.so.3", "libexpat.so.1"] {
            fs::write(lib.join(library), "none").unwrap();
        }
        fs::write(lib.join("fails.sh"), "exit 77").unwrap();
        let job = cluster.start(&Spec::shell(method, "exec env"));
        let end = job.end();
        assert_eq!(end.ending.state(), JobState::Succeeded, "{method:?} {}", end.all);
        for (rank, lines) in end.lines.iter().enumerate() {
            for (name, value) in &of_ranks {
                assert!(lines.contains(&format!("{name}={value}")), "{method:?}: {name} of rank {rank}: {lines:#?}");
            }
            // a launcher that is a program of Python sets the second one, too
            let is_ours = |line: &&String| {
                line.starts_with("HVDCTL_RANKS_") || method == Method::Env && line.starts_with("LC_CTYPE=")
            };
            let ours = lines.iter().find(is_ours);
            assert_eq!(ours, None, "{method:?}");
        }
        let of_ssh = fs::read_to_string(cluster.shared("of_ssh")).unwrap();
        let of_ssh: BTreeSet<&str> = of_ssh.lines().filter(|name| !name.starts_with("HVDCTL_")).collect();
        assert_eq!(of_ssh, BTreeSet::from(["HOME", "LC_CTYPE", "PATH"]), "{method:?}; Python sets the second one");
    });
}
