//! The output, arguments and cores of ranks.

use crate::cluster::Cluster;
use crate::job::{Method, Spec, each, each_kind, each_launcher};
use hvdctl::launch::programs::BINDING;
use hvdctl::model::launcher::Bind;
use hvdctl::record::JobState;
use hvdctl::record::OutsideFile;
use hvdctl::record::frames::FrameKind;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

#[test]
fn many_lines_of_many_ranks_come_whole() {
    each_kind(|method| {
        let cluster = Cluster::new();
        // a progress bar, a line longer than any buffer, bytes that are no UTF-8, and no newline at the end
        let program = "out = sys.stdout.buffer
for i in range(5000): out.write(b'%d ' % i + b'x' * 200 + b'\\n')
for i in range(100): out.write(b'\\rbar %d' % i)
out.write(b'\\n' + b'y' * 300000 + b'\\n')
out.flush()
print('an error', file=sys.stderr)
out.write(b'\\xff\\xfe end without newline')";
        let end = cluster.start(&Spec { ranks: [2, 2], log_progress: true, ..Spec::python(method, program) }).end();
        assert_eq!((end.ending.state(), end.ending.started), (JobState::Succeeded, 4), "{}", end.all);
        for rank in 0..4 {
            let of_rank = || end.frames.iter().filter(|frame| frame.rank == rank);
            let lines: Vec<&[u8]> = of_rank()
                .filter_map(|frame| if let FrameKind::Stdout(line) = &frame.kind { Some(&line[..]) } else { None })
                .collect();
            let x = "x".repeat(200);
            let wanted = (0..5000).map(|i| format!("{i} {x}")).chain((0..100).map(|i| format!("bar {i}")));
            for (line, wanted) in lines.iter().zip(wanted) {
                assert_eq!(*line, wanted.as_bytes(), "rank {rank}");
            }
            assert_eq!(lines[5100..].iter().copied().flatten().filter(|byte| **byte == b'y').count(), 300_000);
            assert_eq!(lines.last(), Some(&&b"\xff\xfe end without newline"[..]));
            let errors: Vec<&FrameKind> =
                of_rank().map(|frame| &frame.kind).filter(|k| matches!(k, FrameKind::Stderr(_))).collect();
            assert_eq!(errors, [&FrameKind::Stderr(b"an error".to_vec())]);
        }
    });
}

#[test]
fn a_program_that_is_not_python_writes_line_by_line() {
    // Perl has its own buffers, which it writes out at a newline to a terminal only
    if Command::new("perl").arg("-v").output().is_err() {
        return;
    }
    each_launcher(|method| {
        let cluster = Cluster::new();
        let program = "print \"step $_\\n\" for 1..3; sleep 300";
        let job = cluster.start(&Spec::command(method, &["perl", "-e", program]));
        (0..2).for_each(|rank| job.until(rank, "step 3"));
        job.signal(rustix::process::Signal::TERM);
        let end = job.end();
        assert_eq!(end.lines, [["step 1", "step 2", "step 3"]; 2], "{}", end.all);
    });
}

#[test]
fn output_over_a_terminal_comes_byte_for_byte() {
    each_kind(|method| {
        let cluster = Cluster::new();
        let program = "exec 3>&1; echo \"$TERM $(stty size <&3)\"; seq 5000; head -c 300000 /dev/zero | tr '\\0' y
            printf '\\n\\011\\003\\004\\177\\377\\376 end without newline'";
        let end = cluster.start(&Spec::shell(method, program)).end();
        assert_eq!(end.ending.state(), JobState::Succeeded, "{}", end.all);
        for rank in 0..2 {
            let of_rank = end.frames.iter().filter(|frame| frame.rank == rank);
            let lines: Vec<&[u8]> = of_rank
                .filter_map(|frame| if let FrameKind::Stdout(line) = &frame.kind { Some(&line[..]) } else { None })
                .collect();
            assert_eq!(lines[0], b"dumb 24 80", "{}", end.all);
            for (line, wanted) in lines[1..].iter().zip(1..=5000) {
                assert_eq!(*line, wanted.to_string().as_bytes(), "rank {rank}");
            }
            assert_eq!(lines[5001..].iter().copied().flatten().filter(|byte| **byte == b'y').count(), 300_000);
            assert_eq!(lines.last(), Some(&&b"\t\x03\x04\x7f\xff\xfe end without newline"[..]));
        }
    });
}

#[test]
fn a_process_that_escapes_with_the_terminal_does_not_delay_the_end() {
    let cluster = Cluster::new();
    let end = cluster.start(&Spec::shell(Method::Env, "setsid sleep 300 & echo last")).end();
    assert_eq!(end.lines, [["last"]; 2], "{}", end.all);
}

#[test]
fn python_sees_no_terminal() {
    each(
        ["python3 -c 'import sys; print(sys.stdout.isatty())'", "exec python3 -c 'import os; print(os.isatty(1))'"],
        |script| {
            let cluster = Cluster::new();
            let end = cluster.start(&Spec::shell(Method::Gloo, script)).end();
            assert_eq!(end.lines, [["False"]; 2], "{}", end.all);
        },
    );
}

#[test]
fn files_outside_the_mounts_are_in_the_result() {
    each([0, 1], |restarts: u32| {
        let cluster = Cluster::new();
        // a volume of an image, which goes with the container; larger than all that other programs write here meanwhile
        let program = format!(
            "volume={}/volumes/$(printf %064d $RANK)/_data
            mkdir -p $volume
            mountpoint -q /mnt || mount --bind $volume /mnt
            [ $RANK = 0 ] || truncate -s 900G /mnt/last.pt
            touch /mnt/empty
            [ $HVDCTL_RESTART = {restarts} ] || exit 9",
            cluster.shared("").display()
        );
        let spec = Spec { restarts, cwd: Some("/"), ..Spec::shell(Method::Gloo, &program) };
        let end = cluster.start(&spec).end();
        assert_eq!(end.ending.state(), JobState::Succeeded, "{}", end.all);
        let largest = |node: &str| {
            let found = end.ending.outside.iter().find(|found| found.node == node)?;
            found.largest.first().filter(|file| file.path.starts_with("/mnt/")).cloned()
        };
        let last = OutsideFile { path: "/mnt/last.pt".into(), bytes: 900 << 30 };
        assert_eq!((largest("node1"), largest("node2")), (None, Some(last)), "{:?}{}", end.ending.outside, end.all);
        assert!(cluster.job_file(1, "outside").exists());
    });
}

#[test]
fn a_limited_log_keeps_its_newest_part() {
    each_kind(|method| {
        let cluster = Cluster::new();
        let program = "for i in range(40000): print('%d' % i + 'x' * 200)";
        let job = cluster.start(&Spec { log_max: Some(1 << 20), ..Spec::python(method, program) });
        let end = job.end();
        assert_eq!(end.ending.state(), JobState::Succeeded, "{}", end.all);
        let x = "x".repeat(200);
        for rank in 0..2 {
            let log = std::fs::metadata(cluster.job_file(rank, "log")).unwrap();
            assert!(log.len() > 8 << 20, "all bytes keep their places");
            assert!(log.blocks() * 512 < 1300 << 10, "{} KiB are on the disk", log.blocks() / 2);
            assert_eq!(end.lines[rank].last(), Some(&format!("39999{x}")));
            assert!(end.lines[rank].len() > 4000 && end.lines[rank].len() < 7000, "{}", end.lines[rank].len());
        }
    });
}

#[test]
fn the_last_lines_of_a_rank_come_however_it_ends() {
    each_kind(|method| {
        let ways = [("exit 7", 7), ("kill -9 $$", 137), ("kill -SEGV $$", 139)];
        each(ways, |(way, code): (&str, i32)| {
            let cluster = Cluster::new();
            let program = format!("[ $RANK = 1 ] || exec sleep 300; seq 200; printf end; printf error >&2; {way}");
            let end = cluster.start(&Spec::shell(method, &program)).end();
            assert_eq!(end.rank(1), (code, false), "{}", end.all);
            let wanted: Vec<String> = (1..=200).map(|i| i.to_string()).chain(["end".to_owned()]).collect();
            assert_eq!(end.lines[1], wanted, "{way}");
            assert!(
                end.frames.iter().any(|frame| frame.kind == FrameKind::Stderr(b"error".to_vec())),
                "{way}{}",
                end.all
            );
        });
    });
}

#[test]
fn every_state_of_a_progress_bar_is_in_the_log_if_asked() {
    each_kind(|method| {
        let cluster = Cluster::new();
        let program = "for i in range(3): print(f'\\rstep {i}', end='', flush=True)
print('\\r\\ndone\\r\\n\\nand a prompt', end='', flush=True)
time.sleep(300)";
        let job = cluster.start(&Spec { log_progress: true, ..Spec::python(method, program) });
        (0..2).for_each(|rank| job.until(rank, "and a prompt"));
        job.signal(rustix::process::Signal::TERM);
        let end = job.end();
        assert_eq!(end.lines, [["step 0", "step 1", "step 2", "done", "", "and a prompt"]; 2], "{}", end.all);
    });
}

#[test]
fn a_progress_bar_is_in_the_log_now_and_then_while_it_moves() {
    each_kind(|method| {
        let cluster = Cluster::new();
        let program = "step, ended = 0, []
signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
while not ended:
    step += 1
    for file in (sys.stdout, sys.stderr): print(f'\\r{step} of many', end='', file=file, flush=True)
    time.sleep(0.001)
print(f'\\r{step} in all')
print('\\rthe end', end='', file=sys.stderr)";
        let job = cluster.start(&Spec::python(method, program));
        job.until_holds("two states of each bar", || {
            let bars = [&b" 0 o "[..], b" 0 e ", b" 1 o ", b" 1 e "];
            let log = [0, 1].map(|node| std::fs::read(cluster.job_file(node, "log")).unwrap()).concat();
            bars.iter().all(|bar| log.windows(bar.len()).filter(|text| text == bar).count() >= 2)
        });
        job.signal(rustix::process::Signal::TERM);
        let end = job.end();
        for rank in 0..2 {
            let errors = end.frames.iter().filter(|frame| frame.rank == rank).filter_map(|frame| match &frame.kind {
                FrameKind::Stderr(line) => Some(String::from_utf8_lossy(line).into_owned()),
                _ => None,
            });
            let (lines, errors): (&[String], Vec<String>) = (&end.lines[rank as usize], errors.collect());
            let steps = lines.last().and_then(|line| line.strip_suffix(" in all")).and_then(|step| step.parse().ok());
            let steps: usize = steps.unwrap_or_else(|| panic!("the last state is missing{}", end.all));
            assert_eq!(errors.last().map(String::as_str), Some("the end"), "{}", end.all);
            assert!(lines.len() + errors.len() < steps / 5, "{} states: {}", 2 * steps, end.all);
        }
    });
}

#[test]
fn arguments_reach_the_program_byte_for_byte() {
    let words = [
        "a b",
        "$HOME",
        "q'q",
        "-np",
        "*",
        "",
        "two\nlines",
        "\"",
        "\\",
        "`id`",
        "$(id)",
        "--",
        "é€",
        ";",
        " lead",
        "#",
    ];
    each_kind(|method| {
        let cluster = Cluster::new();
        let mut spec = Spec::python(method, "import json; print(json.dumps(sys.argv[1:]))");
        spec.command.extend(words.map(str::to_owned));
        let end = cluster.start(&spec).end();
        for lines in &end.lines {
            let came: Vec<String> =
                serde_json::from_str(&lines[0]).unwrap_or_else(|error| panic!("{error}{}", end.all));
            assert_eq!(came, words, "{}", end.all);
        }
    });
}

#[test]
fn each_rank_has_its_cores_and_threads() {
    let asked =
        Command::new("python3").args(["-c", BINDING, "core", "2"]).env_remove("OMP_NUM_THREADS").output().unwrap();
    let expected: serde_json::Value = serde_json::from_slice(&asked.stdout).unwrap();
    each_launcher(|method| {
        let cluster = Cluster::new();
        let script = "sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status; echo $OMP_NUM_THREADS";
        let spec = Spec { ranks: [2, 2], bind: Some(Bind::Core), ..Spec::shell(method, script) };
        let end = cluster.start(&spec).end();
        for rank in 0..4 {
            let (cpus, threads) = (expected["cpus"][rank % 2].as_str().unwrap(), expected["threads"].as_str().unwrap());
            assert_eq!(end.lines[rank], [cpus, threads], "{}", end.all);
        }
    });
}
