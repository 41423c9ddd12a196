//! The page of `hvdctl report` in a real browser: what it shows at the width of a phone and of a desk, and that it
//! neither runs scripts nor loads anything.

use hvdctl::record::frames::Parser;
use hvdctl::record::list::{Job, StoredJobs, add, jobs};
use hvdctl::report::Report;
use std::fmt::Write as _;
use std::fs;
use std::process::Command;

/// When the job began, in seconds since the epoch.
const START: f64 = 1_795_000_000.0;
/// The duration of the job, in seconds.
const SECONDS: u32 = 1200;
/// Names of the browser, the distribution's first.
const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];
/// The script that measures the page; only its parent runs scripts.
const MEASURE: &str = "
const frame = document.querySelector('iframe'), seen = {};
frame.onload = () => {
  const page = frame.contentDocument, root = page.documentElement;
  const visible = (selector) => [...page.querySelectorAll(selector)].filter((one) => {
    const box = one.getBoundingClientRect();
    return box.width > 0 && (box.height > 0 || one.localName === 'path'); // a line may be level
  }).length;
  seen.overflow = Math.max(0, root.scrollWidth - frame.clientWidth);
  seen.lines = visible('figure path[class^=c]');
  seen.gpus = visible('.row.gpu .plot path.used');
  seen.stalls = visible('rect.stall');
  seen.bars = visible('.bar i');
  seen.font = Math.min(...[...page.querySelectorAll('.ticks span')].map((one) => parseFloat(getComputedStyle(one).fontSize)));
  seen.clipped = [...page.querySelectorAll('.ticks')].filter((one) => one.scrollWidth > one.clientWidth).length;
  seen.marks = visible('figure path.nan');
  const top = (one) => one.getBoundingClientRect().top, bottom = (one) => one.getBoundingClientRect().bottom;
  const plot = (one) => one.closest('.plot');
  seen.edges = [...page.querySelectorAll('figure path[class^=c]')].filter((one) => top(one) < top(plot(one)) + 3).length;
  seen.outside = [...page.querySelectorAll('.y')].filter(
    (one) => top(one) < top(plot(one)) - 5 || bottom(one) > bottom(plot(one)) + 5).length;
  seen.background = frame.contentWindow.getComputedStyle(page.body).backgroundColor;
  seen.scripts = page.querySelectorAll('script').length;
  seen.ran = frame.contentWindow.ran === true;
  document.title = 'measured';
  document.body.textContent = JSON.stringify(seen);
};";

/// A job of four ranks on two nodes, of which one failed.
fn failed_job() -> Job {
    let record = r#"{"id":"j1","cluster":"lab","name":"digits","project":"digits","restarts":0,"min_ranks":null,
        "max_ranks":null,"operator":"ana@laptop-with-a-rather-long-name.example.org","created":1795000000.0,
        "launcher":"torchrun","controller":null,"placement":{"shares":[{"node":"node1","ranks":2,"first":0},
        {"node":"gpu-node-with-a-long-name-0002.cluster.example.org","ranks":2,"first":2}]},
        "command":["python","train.py","--learning-rate-schedule=cosine-with-restarts-and-a-long-name"],"bind":null,
        "cwd":"/workspace","ranks":2,"port":12345,"interface":"eth0","grace":10,"stall":0,"idle_margin":30,
        "sample":5,"log_max":null,"ulimits":{}}"#;
    let exit = r#"{"rank":3,"node":"gpu-node-with-a-long-name-0002.cluster.example.org","code":1,"signal":null,
        "time":1795001190,"asked":false,"oom":false}"#;
    let result = format!(r#"{{"ended":1795001200,"launcher":1,"ranks":4,"started":4,"exits":[{exit}]}}"#);
    let files = format!("./j1/job.json:{}\n./j1/result.json:{}\n", record.replace('\n', ""), result.replace('\n', ""));
    let mut stored = StoredJobs::new();
    add(&mut stored, "node1", &files);
    let mut jobs = jobs("lab", stored, &["node1"], START + 2000.0);
    assert_eq!(jobs.len(), 1);
    jobs.remove(0)
}

/// The page of that job.
fn page() -> String {
    let job = failed_job();
    let mut report = Report::new(&job, START + 2000.0, vec!["loss ([0-9.]+)".parse().unwrap()]);
    for (node, first) in [("node1", 0), ("gpu-node-with-a-long-name-0002.cluster.example.org", 2)] {
        let mut log = String::new();
        let mut line = |second: u32, text: &str| writeln!(log, "{:.1} {text}", START + f64::from(second)).unwrap();
        line(0, &format!("{first} m N 64 515000 3.11.2 6.1.0-13-amd64"));
        for place in 0..2 {
            let rank = first + place;
            line(0, &format!("{first} m G {place} GPU-{rank} 143771 700 580.1 NVIDIA H200"));
            line(1, &format!("{rank} s "));
            line(0, &format!("{rank} m R {place}"));
        }
        for second in (5..SECONDS).step_by(5) {
            let wave = second * 7919 % 50;
            line(second, &format!("{first} m n {wave} {} {wave}000 {wave}00 {wave}0 7", 100_000 + wave));
            for place in 0..2 {
                let rank = first + place;
                // from the middle on, the GPUs are in use and take no power
                let power = if (600..900).contains(&second) { 130 } else { 650 };
                line(second, &format!("{rank} m r 1{wave} {} 0 {wave}", 20_000 + wave));
                line(second, &format!("{first} m g {place} 100 70000 {power} 60 1500 3201"));
                match (rank, second % 200) {
                    (2, 0) => line(second, &format!("{rank} o step {second} loss nan")),
                    _ => line(second, &format!("{rank} o loss {}", 100.0 / f64::from(second))),
                }
            }
        }
        line(900, &format!("{first} q 60 waiting in futex"));
        line(1000, &format!("{first} g 160"));
        for place in 0..2 {
            let (rank, how) = (first + place, if first + place == 3 { "1" } else { "143 signal asked" });
            line(1190, &format!("{rank} x {how}"));
        }
        Parser::default().push(log.as_bytes()).iter().for_each(|frame| report.take(node, 0.0, frame));
    }
    report.add_last_lines(vec!["<script>parent.ran = window.ran = true</script>".into(), "x".repeat(3000)]);
    report.html()
}

/// Opens the page in a browser at this width. Returns what it measures.
fn measured(width: u32, page: &str) -> serde_json::Value {
    let browser = BROWSERS.iter().find_map(|name| which::which(name).ok());
    let browser = browser.expect("this test needs a browser: apt-get install chromium");
    let dir = tempfile::tempdir().unwrap();
    let source = page.replace('&', "&amp;").replace('"', "&quot;");
    let harness = format!(
        "<!doctype html><meta charset=utf-8><body style=margin:0><iframe style=border:0 width={width} height=900 \
        srcdoc=\"{source}\"></iframe><script>{MEASURE}</script>"
    );
    let file = dir.path().join("harness.html");
    fs::write(&file, harness).unwrap();
    let profile = format!("--user-data-dir={}", dir.path().join("profile").display());
    // as root it has no sandbox of its own; nothing leaves this machine
    let options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--proxy-server=127.0.0.1:1",
        "--virtual-time-budget=10000",
        "--dump-dom",
    ];
    let mut command = Command::new("timeout");
    command
        .args(["120", browser.to_str().unwrap()])
        .args(options)
        .arg(profile)
        .arg(format!("file://{}", file.display()));
    let output = command.output().unwrap();
    let dom = String::from_utf8_lossy(&output.stdout);
    let text = dom.split("<body").nth(1).and_then(|body| Some(&body[body.find('{')?..=body.find('}')?]));
    let text = text.unwrap_or_else(|| panic!("{dom}\n{}", String::from_utf8_lossy(&output.stderr)));
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn a_report_shows_everything_at_the_width_of_a_phone_and_of_a_desk() {
    let page = page();
    for width in [400, 1400] {
        let seen = measured(width, &page);
        let number = |name: &str| seen[name].as_f64().unwrap_or_else(|| panic!("{name}: {seen}"));
        assert_eq!(number("overflow"), 0.0, "at {width} pixels: {seen}");
        // a metric of four ranks; three values of four ranks and six of two nodes that are not 0 all the time
        assert_eq!(number("lines"), 4.0 + 12.0 + 12.0, "at {width} pixels: {seen}");
        assert_eq!((number("gpus"), number("stalls")), (4.0, 4.0), "at {width} pixels: {seen}");
        assert_eq!(number("bars"), 4.0 + 2.0, "at {width} pixels: {seen}");
        assert!(number("font") >= 11.0 && number("clipped") == 0.0, "at {width} pixels: {seen}");
        // lines and texts of ticks stay inside, and what is no number is marked
        assert_eq!((number("edges"), number("outside"), number("marks")), (0.0, 0.0, 1.0), "at {width} pixels: {seen}");
        assert_eq!((number("scripts"), &seen["ran"]), (0.0, &false.into()), "at {width} pixels: {seen}");
        assert_ne!(seen["background"], "rgba(0, 0, 0, 0)", "the style sheet applies: {seen}");
    }
}
