//! `examples/notebook` in JupyterLab itself, as a browser shows it.

use crate::mallory::{Stranger, compare, strangers_stop};
use crate::process::s;
use crate::state::{Lab, no_job_is_left};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Instant;

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/notebook");

/// A browser with one page, which is ended when this is dropped. It is driven over pipes: messages of the DevTools
/// protocol, each ended by NUL.
struct Browser {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    session: Option<String>,
    number: u64,
    _profile: tempfile::TempDir,
}

impl Browser {
    fn open(url: &str) -> Browser {
        let profile = tempfile::tempdir().unwrap();
        let directory = format!("--user-data-dir={}", profile.path().display());
        // it reads from descriptor 3 and writes to 4. As root it has no sandbox of its own
        let pipes = "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>/dev/null";
        let mut child = Command::new("sh")
            .args(["-c", pipes, "sh", "chromium", "--headless", "--no-sandbox", "--disable-gpu"])
            .args(["--disable-dev-shm-usage", "--remote-debugging-pipe", "--window-size=1200,1600", &directory])
            .arg("about:blank")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (to, from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut browser = Browser { child, to, from, session: None, number: 0, _profile: profile };
        let page = browser.call("Target.createTarget", json!({"url": url}))["targetId"].clone();
        let attached = browser.call("Target.attachToTarget", json!({"targetId": page, "flatten": true}));
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        browser
    }

    /// The result of a method.
    fn call(&mut self, method: &str, params: Value) -> Value {
        self.number += 1;
        let mut message = json!({"id": self.number, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = session.clone().into();
        }
        self.to.write_all(format!("{message}\0").as_bytes()).unwrap();
        loop {
            let mut line = Vec::new();
            assert!(self.from.read_until(0, &mut line).unwrap() > 0, "the browser has ended");
            let answer: Value = serde_json::from_slice(&line[..line.len() - 1]).unwrap();
            if answer["id"] == self.number {
                return answer["result"].clone();
            }
        }
    }

    /// The value of an expression in the page.
    fn value(&mut self, expression: &str) -> Value {
        let evaluated = self.call("Runtime.evaluate", json!({"expression": expression, "returnByValue": true}));
        evaluated["result"]["value"].clone()
    }

    /// Waits until an expression is true in the page.
    #[track_caller]
    fn until(&mut self, expression: &str) {
        let began = Instant::now();
        while self.value(expression) != true {
            let text = || "document.body.innerText";
            assert!(began.elapsed() < s(120), "{expression} is never true:\n{}", self.value(text()));
            thread::sleep(std::time::Duration::from_millis(200));
        }
    }

    /// Runs the selected cell, and selects the next one.
    fn run_cell(&mut self) {
        for kind in ["rawKeyDown", "keyUp"] {
            let key =
                json!({"type": kind, "key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "modifiers": 8});
            self.call("Input.dispatchKeyEvent", key);
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A directory and what is in it, but for what a program leaves there.
fn copy(from: &str, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for name in ["hvdctl.toml", "notebook.ipynb"] {
        fs::copy(Path::new(from).join(name), to.join(name)).unwrap();
    }
}

#[test]
fn the_example_runs_in_jupyterlab_in_a_browser_and_comes_back_with_its_outputs() {
    let lab = Lab::up_with_full_image();
    let project = lab.path().join("notebook");
    copy(EXAMPLE, &project);
    lab.start(&["image", "build", project.to_str().unwrap()]).end(s(500)).code(0);
    let _stop = strangers_stop();
    let stranger = Stranger::on_node("node1", &json!({}));
    let mut notebook = lab.start(&["--json", "notebook", project.to_str().unwrap()]);
    notebook.until(&["\"event\":\"ready\""], s(90));
    let out = notebook.out();
    let line = out.lines().find(|line| line.contains("\"event\":\"ready\"")).unwrap();
    let line: Value = serde_json::from_str(line).unwrap();
    let mut browser = Browser::open(&line["url"].as_str().unwrap().replace("/lab?", "/lab/tree/notebook.ipynb?"));
    browser.until("document.querySelectorAll('.jp-CodeCell .cm-content').length == 4");
    browser.until("document.body.innerText.includes('| Idle')");
    browser.value("document.querySelector('.jp-MarkdownCell, .jp-CodeCell').click()");
    browser.value("document.querySelector('.jp-CodeCell .cm-content').focus()");
    browser.run_cell();
    browser.until("document.body.innerText.includes(\"'HVDCTL_NODES': 'node1,node2'\")");
    // before a program of the user's listens
    Stranger::stop_all();
    compare(&stranger.end(), &[]);
    (0..5).for_each(|_| browser.run_cell());
    browser.until("/rank 1 of 2 on node2/.test(document.body.innerText)");
    browser.until("/loss 2\\.\\d+ to 0\\.\\d+/.test(document.body.innerText)");
    browser.until("document.querySelector('.jp-OutputArea img') != null");
    // Ctrl-S
    for kind in ["rawKeyDown", "keyUp"] {
        let key = json!({"type": kind, "key": "s", "code": "KeyS", "windowsVirtualKeyCode": 83, "modifiers": 2});
        browser.call("Input.dispatchKeyEvent", key);
    }
    thread::sleep(s(2));
    drop(browser);
    notebook.signal("INT");
    notebook.end(s(60)).code(0);
    let saved = fs::read_to_string(project.join("notebook.ipynb")).unwrap();
    assert!(saved.contains("rank 1 of 2 on node2") && saved.contains("image/png"), "{saved}");
    assert!(project.join("train_digits.py").exists());
    no_job_is_left();
}
