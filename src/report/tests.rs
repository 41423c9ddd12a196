use super::Report;
use crate::launch::placement::{Placement, Share};
use crate::record::frames::Parser;
use crate::record::list::{Job, StoredJobs, add, jobs};
use crate::record::{Record, stored};
use crate::text::argument::ProgramArgument;
use std::fmt::Write as _;

/// The start of the job of the tests.
const START: f64 = 1_795_000_000.0;
/// An hour, in seconds.
const HOUR: u32 = 3600;

/// A job of so many ranks on each of two nodes; `files` are lines as `job/list.sh` prints them.
fn job(ranks: u32, sample: u64, name: &str, files: &str) -> Job {
    let share = |node: &str, first| Share { node: node.into(), ranks, first, ..Share::default() };
    let record = Record {
        id: "20261117-102640-abcd".into(),
        cluster: "lab".into(),
        name: name.into(),
        operator: "ana@laptop".into(),
        created: START,
        placement: Placement { shares: vec![share("node1", 0), share("node2", ranks)], ..Placement::default() },
        command: ["python", "train.py", "--name", "<b>&"].map(ProgramArgument::from).to_vec(),
        restarts: 1,
        variables: vec!["TOKEN".into()],
        image: Some("lab/horovod:1".into()),
        version: Some("0.2.0".into()),
        sample,
        ..Record::default()
    };
    let record = stored::write_checked("job.json", &record).unwrap();
    let mut all = StoredJobs::new();
    for node in ["node1", "node2"] {
        add(&mut all, node, &format!("./20261117-102640-abcd/job.json:{record}\n{files}"));
    }
    jobs("lab", all, &["node1", "node2"], START + 100.0).remove(0)
}

/// Takes a log or samples of a node, with times from the start of the job on.
fn take(report: &mut Report<'_>, node: &str, text: &str) {
    let mut log = String::new();
    for line in text.lines() {
        let (time, rest) = line.split_once(' ').unwrap();
        let _ = writeln!(log, "{:.3} {rest}", START + time.parse::<f64>().unwrap());
    }
    Parser::default().push(log.as_bytes()).iter().for_each(|frame| report.take(node, 0.0, frame));
}

#[test]
fn a_day_of_sixteen_ranks_is_less_than_a_megabyte() {
    let job = job(8, 5, "day", "");
    let day = 24 * HOUR;
    let mut report = Report::new(&job, START + f64::from(day), vec!["loss ([0-9.]+)".parse().unwrap()]);
    for (node, first) in [("node1", 0), ("node2", 8)] {
        let mut text = String::from("0 0 m N 64 515000 3.11.2 6.1.0\n");
        for gpu in 0..8 {
            let _ = writeln!(text, "0 0 m G {gpu} GPU-{first}{gpu} 143771 700 580.1 NVIDIA H200");
            let _ = writeln!(text, "0 {} s \n0 {} m R {gpu}", first + gpu, first + gpu);
        }
        for second in (0..day).step_by(10) {
            let wave = second * 7919 % 100;
            let _ = writeln!(text, "{second} {first} m n {wave} {} {wave}000 {wave}00 {wave}0 7", 100_000 + wave);
            for gpu in 0..8 {
                let rank = first + gpu;
                let _ = writeln!(text, "{second} {rank} m r 1{wave} {} {wave}00 {wave}", 20_000 + wave * (gpu + 1));
                let _ = writeln!(text, "{second} {first} m g {gpu} {wave} 70000 {}.5 60 1500 3201", 400 + wave + gpu);
                let _ = writeln!(text, "{second} {rank} o step {second} loss {}", 1.0 + f64::from(wave) / 100.0);
            }
        }
        take(&mut report, node, &text);
    }
    let page = report.html();
    assert!(page.len() < 1_000_000, "{}", page.len());
    assert!(page.len() > 100_000, "the lines are there: {}", page.len());
    assert!(report.missing().is_empty(), "{:?}", report.missing());
    for text in ["node2 <small>GPU 7, rank 15</small>", "rank 15: last", "64 cores, 503 GiB, 8 NVIDIA H200 of 140 GiB"]
    {
        assert!(page.contains(text), "{text}");
    }
}

#[test]
fn a_failed_job_shows_why_and_when() {
    let exit = r#"{"rank":2,"node":"node2","code":137,"signal":9,"time":1795000090,"asked":false,"oom":true}"#;
    let result = format!(r#"{{"ended":1795000095,"launcher":1,"ranks":4,"started":4,"exits":[{exit}]}}"#);
    let job = job(2, 5, "crash", &format!("./20261117-102640-abcd/result.json:{result}\n"));
    let mut report = Report::new(&job, START + 9000.0, Vec::new());
    take(
        &mut report,
        "node1",
        "1 0 s \n1 1 s \n20 0 q 10 waiting in futex\n40 0 g 30\n91 0 x 143 signal asked\n91 1 x 143 signal asked",
    );
    take(&mut report, "node2", "1 2 s \n1 3 s \n90 2 x 137 signal oom\n91 3 x 143 signal asked");
    report.add_last_lines(vec!["loss <nan>".into()]);
    let page = report.html();
    for text in [
        "<p class=\"state failed\">failed</p>",
        "rank 2 on node2 ran out of memory",
        "loss &lt;nan&gt;",
        "rank 2 on node2: failed with exit code 137, out of memory after 1m29s",
        "rank 0 on node1: ended with the others (143) after 1m30s",
        "rank 0 made no progress for 30s: waiting in futex",
        "hvdctl run -np 4 --restarts 1 -- python train.py --name &#39;&lt;b&gt;&amp;&#39;",
        "TOKEN (values are not recorded)",
        "node1, node2: no sample was written",
    ] {
        assert!(page.contains(text), "{text}\n{page}");
    }
}

#[test]
fn ranks_of_a_lost_node_end_with_its_attempt() {
    let job = job(1, 5, "lost", "");
    let failed = r#"{"failed":{"ended":1.0},"shares":[],"attempt":2,"attempts":4,"pause":2}"#;
    let logs = [
        ("node1", format!("1 0 s \n60 0 x 143 signal asked\n61 0 r {failed}\n64 0 s \n65 1 s \n90 1 x 0")),
        // it is gone: neither the end of its rank nor that of its wait is in its log
        ("node2", "1 1 s \n40 1 q 10 waiting in futex".to_owned()),
    ];
    for order in [[0, 1], [1, 0]] {
        let mut report = Report::new(&job, START + 100.0, Vec::new());
        order.iter().for_each(|i| take(&mut report, logs[*i].0, &logs[*i].1));
        let page = report.html();
        for text in [
            "rank 1 <small>node1</small>",
            "rank 1 on node2: its end was not recorded after 1m00s",
            "rank 1 on node1: succeeded after 25s",
            "rank 0 on node1: runs after 36s",
            "rank 1 made no progress for 31s: waiting in futex",
        ] {
            assert!(page.contains(text), "{text} {order:?}\n{page}");
        }
    }
    // ranks that are kept go on, those of a node that has left do not
    let left =
        r#"{"left":[{"node":"node2","reason":"no answer"}],"joined":[],"ranks":1,"wanted":2,"waits":0,"kept":true}"#;
    let mut report = Report::new(&job, START + 100.0, Vec::new());
    take(&mut report, "node1", &format!("1 0 s \n61 0 r {left}"));
    take(&mut report, "node2", "1 1 s ");
    let page = report.html();
    for text in ["rank 0 on node1: runs after 1m39s", "rank 1 on node2: its end was not recorded after 1m00s"] {
        assert!(page.contains(text), "{text}\n{page}");
    }
}

#[test]
fn samples_of_a_node_that_only_launches_are_not_missed() {
    let mut job = job(1, 5, "launcher", "");
    (job.placement.shares[0].ranks, job.placement.shares[1].first) = (0, 0);
    let report = Report::new(&job, START + 60.0, Vec::new());
    assert_eq!(report.missing(), ["node2: no sample was written"]);
}

#[test]
fn what_only_hvdctl_starts_has_no_command() {
    let mut job = job(1, 5, "notebook", "");
    let row = "Run it again";
    assert!(Report::new(&job, START, Vec::new()).html().contains(row));
    let program = format!("/opt/horovod/jobs/{}/notebook.py", job.id);
    job.record.as_mut().unwrap().command = ["python3", &program, "serve"].map(ProgramArgument::from).to_vec();
    assert!(!Report::new(&job, START, Vec::new()).html().contains(row));
}

#[test]
fn a_gpu_in_use_at_idle_power_is_marked() {
    let job = job(1, 5, "stall", "");
    let mut report = Report::new(&job, START + 600.0, Vec::new());
    let mut text = String::from("0 0 m G 0 GPU-1 143771 700 580.1 NVIDIA H200\n");
    for second in (0..600).step_by(5) {
        let power = if (200..400).contains(&second) { 130 } else { 690 };
        let _ = writeln!(text, "{second} 0 m g 0 100 883 {power} 60 1500 3201");
    }
    take(&mut report, "node1", &text);
    let page = report.html();
    assert!(page.contains("<li>GPU 0 of node1: from 3m20s to 6m35s</li>"), "{page}");
    assert_eq!(page.matches("<rect class=\"stall\"").count(), 1);
}

#[test]
fn what_is_no_number_is_marked_in_the_chart_and_named() {
    let job = job(1, 0, "nan", "");
    let patterns = ["loss ([0-9.]+)", r"accuracy (\S+)", "speed ([0-9]+)"].map(|pattern| pattern.parse().unwrap());
    let mut report = Report::new(&job, START + 60.0, patterns.to_vec());
    take(&mut report, "node1", "1 0 s \n2 0 o step 1 loss 2.0\n3 0 o step 2 loss 1.0");
    let lines = ["2 1 o step 1 loss 2.0 accuracy nan", "3 1 o step 2 loss nan", "9 1 o step 3 loss NaN"];
    take(&mut report, "node2", &lines.join("\n"));
    let (page, at) = (report.html(), crate::text::units::date_time(START + 3.0));
    for text in [
        format!(
            "loss</figcaption>\n<p class=\"nan\">rank 1 printed 2 values that are no numbers, the first at {at} (step 2)</p>"
        ),
        "<path class=\"nan\" d=\"M58 0V1000M158 0V1000\"><title>no number: rank 1: last 2</title></path>".into(),
        "accuracy: no numbers</figcaption>\n<p class=\"nan\">rank 1 printed 1 value that is no number, at ".into(),
    ] {
        assert!(page.contains(&text), "{text}\n{page}");
    }
    assert_eq!(page.matches("<path class=\"nan\"").count(), 2);
    assert!(!page.contains(">speed"), "{page}");
    let missing = report.missing();
    assert!(missing.iter().any(|text| text.contains("speed")), "{missing:?}");
    assert!(!missing.iter().any(|text| text.contains("accuracy") || text.contains("loss")), "{missing:?}");
}

#[test]
fn names_and_lines_of_others_are_no_markup() {
    let hostile = "</title><script src=//evil.example>";
    let job =
        Job { name: hostile.into(), operator: hostile.into(), reason: Some(hostile.into()), ..job(1, 0, "x", "") };
    let mut report = Report::new(&job, START + 60.0, vec!["loss ([0-9.]+)".parse().unwrap()]);
    take(&mut report, "node1", &format!("1 0 s \n2 0 o {hostile} loss is 7\n3 0 q 5 {hostile}\n4 0 m e {hostile}"));
    take(&mut report, hostile, &format!("4 0 m G 0 GPU-1 1 1 {hostile} {hostile}\n5 0 m g 0 1 1 1 1 1 1"));
    report.miss("node2", hostile);
    let page = report.html();
    assert!(!page.contains("<script"), "{page}");
    // nothing is loaded from anywhere
    let own = page.replace("&lt;script src=//evil.example&gt;", "");
    assert!(["src=", "href=", "url(", "@import"].iter().all(|loads| !own.contains(loads)), "{page}");
    assert!(page.contains("content=\"default-src 'none'; style-src 'unsafe-inline'\""));
    assert!(page.contains("the nearest: `"), "{page}");
}

#[test]
fn a_job_of_an_earlier_version_has_what_there_is() {
    let job = job(1, 0, "old", "");
    let mut report = Report::new(&job, START + 60.0, Vec::new());
    take(&mut report, "node1", "1 0 s ");
    take(&mut report, "node2", "1 1 s ");
    let missing = report.missing();
    assert_eq!(missing, ["there are no samples: sample_s was 0, or an earlier hvdctl started the job"]);
    assert!(report.html().contains("rank 1 on node2: runs after 59s"), "{}", report.html());
}

/// A frame with the place of a rank, so many seconds after the start.
fn place(second: u32, rank: u32, function: &str, file: &str) -> String {
    format!(
        "{second} {rank} k {{\"rank\": {rank}, \"quiet\": 14, \"left_out\": 0, \"processes\": [{{\"pid\": 7, \"command\": \
         \"python3\", \"does\": \"sleeping in clock_nanosleep\", \"threads\": [{{\"name\": \"Main\", \"active\": false, \
         \"frames\": [{{\"name\": \"{function}\", \"file\": \"{file}\", \"line\": 31}}]}}]}}]}}\n"
    )
}

#[test]
fn the_places_of_ranks_are_shown_as_they_were_read_last() {
    let job = job(2, 5, "hang", "");
    let mut report = Report::new(&job, START + 9000.0, Vec::new());
    // rank 0 went on
    take(
        &mut report,
        "node1",
        &(place(5, 0, "early", "/w/a.py") + "9 0 g 4\n" + &place(500, 1, "all_reduce", "/w/train.py")),
    );
    take(
        &mut report,
        "node2",
        &(place(501, 2, "load<br>", "/w/data.py") + &place(502, 3, "all_reduce", "/w/train.py")),
    );
    let page = report.html();
    for text in [
        "<h2>Where the ranks were</h2>",
        "2 of 4 ranks wait in all_reduce (train.py:31); rank 2 on node2 is in load&lt;br&gt; (data.py:31), sleeping in \
         clock_nanosleep since 14 s.</p>",
        "<h3>rank 2 on node2: load&lt;br&gt; (data.py:31), sleeping in clock_nanosleep since 14 s</h3>\n<pre>load&lt;br&gt; \
         (data.py:31)</pre>",
        "<h3>ranks 1,3 on node[1-2]: all_reduce (train.py:31)</h3>",
    ] {
        assert!(page.contains(text), "{text}\n{page}");
    }
    assert!(!page.contains("early"), "{page}");
    let without = Report::new(&job, START + 9000.0, Vec::new());
    assert!(!without.html().contains("Where the ranks were"));
}
