//! `notebook` with a stand-in for JupyterLab, whose cells are commands of a shell: the port, the token, launches on all
//! nodes, and what is fetched at the end.

use crate::mallory::{Stranger, backwards, compare, strangers_stop};
use crate::process::{Running, eventually, s};
use crate::state::{Lab, NODES, Restore, no_job_is_left, node_sh, on, ours};
use serde_json::{Value, json};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::SystemTime;

/// The program that `python3 -m jupyterlab` runs. It reads the configuration that hvdctl writes, and a request to /cell
/// runs its body. hvdctl gives it another token as it does with JupyterLab's server.
const JUPYTERLAB: &str = r#"
import http.server, json, os, socket, socketserver, subprocess, sys, types
config = json.load(open(sys.argv[1].split("=", 1)[1]))["ServerApp"]
class ServerApp:
    web_app = types.SimpleNamespace(settings=config)
    instance = classmethod(lambda cls: cls)
sys.modules["jupyter_server"] = types.ModuleType("jupyter_server")
sys.modules["jupyter_server.serverapp"] = types.SimpleNamespace(ServerApp=ServerApp)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        known = self.headers.get("Authorization") == "token " + config["token"]
        text, code = b"{}", 200 if known or self.path == "/api" else 403
        if known and self.path == "/cell":
            cell = self.rfile.read(int(self.headers["Content-Length"])).decode()
            done = subprocess.run(["sh", "-c", cell], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            text = done.stdout + b"exit code %d\n" % done.returncode
        self.send_response(code)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    def get_request(self):
        return super().get_request()[0], ("local", 0)
os.umask(0o177)
Server(config["sock"], Handler).serve_forever()
"#;
const PLACE: &str = "/opt/hvdctl-test/jupyterlab";

/// A running notebook with its port and token.
struct Notebook {
    running: Running,
    port: u16,
    token: String,
}

impl Notebook {
    #[track_caller]
    fn open(lab: &Lab, project: &str, options: &[&str]) -> Notebook {
        let running = lab.start(&[&["--json", "notebook", project], options].concat());
        let ready = || running.out().lines().find(|line| line.contains("\"event\":\"ready\"")).map(str::to_owned);
        assert!(eventually(s(60), || ready().is_some()), "{}\n{}", running.out(), running.err());
        let line: Value = serde_json::from_str(&ready().unwrap()).unwrap();
        let url = line["url"].as_str().unwrap().to_owned();
        let (server, token) = url.split_once("/lab?token=").unwrap();
        let port = server.rsplit(':').next().unwrap().parse().unwrap();
        Notebook { running, port, token: token.to_owned() }
    }

    /// The answer to a request with this token, as a whole.
    fn ask(&self, path: &str, token: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(s(60))).unwrap();
        let length = body.len();
        write!(stream, "GET {path} HTTP/1.0\r\nAuthorization: token {token}\r\nContent-Length: {length}\r\n\r\n{body}")
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// The output of a cell, and its exit code.
    fn cell(&self, command: &str) -> String {
        self.ask("/cell", &self.token, command)
    }
}

/// A lab whose workers have the stand-in, and no torchrun.
fn lab() -> Lab {
    let lab = Lab::empty();
    for node in NODES {
        let put = format!("mkdir -p {PLACE} && cd {PLACE} && : >__init__.py && printf %s \"$1\" >__main__.py");
        node_sh(node, &put, &[JUPYTERLAB]).code(0);
    }
    lab.edit(
        "gpus = 1",
        &format!(
            "gpus = 1\nmounts = [\"{PLACE}:/usr/lib/python3/dist-packages/jupyterlab:ro\", \
             \"{PLACE}/__init__.py:/usr/bin/torchrun:ro\"]"
        ),
    );
    lab.hvdctl(&["up"]).code(0);
    lab
}

/// Checks that nobody else gets in, here or on its node.
#[track_caller]
fn assert_is_closed(notebook: &Notebook) {
    // whoever else reaches the port of this machine is refused
    assert!(notebook.ask("/api/contents", "", "").contains(" 403 "));
    // on the node nothing listens, and the socket is behind a closed directory
    assert_eq!(on("node1", "ss -Hltnp | grep -c notebook_server; :"), "0\n");
    let socket = "docker exec hmaster sh -c 'stat -c %a%F /tmp/hvdctl-*/jupyter.sock; stat -c %a /tmp/hvdctl-*'";
    assert_eq!(on("node1", socket), "600socket\n700\n");
    let token = format!("ps -eo args | grep -c '[{}]{}'; :", &notebook.token[..1], &notebook.token[1..]);
    assert_eq!(on("node1", &token), "0\n");
}

#[test]
fn cells_start_ranks_on_all_nodes_with_the_code_that_was_just_written() {
    let lab = lab();
    let _restore = Restore(|| NODES.iter().for_each(|node| drop(on(node, "rm -rf /opt/hvdctl-test/jupyterlab"))));
    // one is named like a module of Python, and one has a time that is still to come
    let written = [
        ("old.py", "print('old')"),
        ("both.txt", "uploaded\n"),
        ("json.py", "raise OSError"),
        ("late.py", ""),
        ("conf", ""),
    ];
    let project = lab.project("work", &written);
    let late = fs::File::options().write(true).open(project.join("late.py")).unwrap();
    late.set_modified(SystemTime::now() + s(7200)).unwrap();
    let _stop = strangers_stop();
    let stranger = Stranger::on_node("node1", &json!({ "secrets": backwards(&["hush"]) }));
    let notebook = Notebook::open(&lab, project.to_str().unwrap(), &["--launcher", "env", "-e", "SECRET=hush"]);

    assert_is_closed(&notebook);
    let named = notebook.cell("echo $HVDCTL_NODES $HVDCTL_NP; echo \"$HVDCTL_HOSTS\"; env | grep -c '^RANK='");
    assert!(named.contains("node1,node2 2\n") && named.contains(":1,") && named.contains("\n0\n"), "{named}");
    lab.hvdctl(&["jobs"]).code(0).says(&["notebook", "running"]);
    lab.hvdctl(&["run", "-np", "1", "--", "true"]).code(125).complains(&["is allocated"]);
    // one that takes nothing runs next to it
    let second = Notebook::open(&lab, project.to_str().unwrap(), &["--gpus-per-node", "0", "--no-fetch"]);
    assert!(second.cell("echo $HVDCTL_NP $HVDCTL_NODES").contains("1 node1\n"));
    second.running.signal("INT");
    second.running.end(s(60)).code(0);

    let program = "import os, socket; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], \
        socket.gethostname(), os.getcwd(), os.environ['SECRET'], os.environ['CUDA_DEVICE_ORDER'], flush=True)";
    let launched = notebook.cell(&format!("printf %s \"{program}\" >new.py; $HVDCTL_LAUNCH python3 new.py"));
    for line in ["rank 0 of 2 node1 /workspace hush PCI_BUS_ID\n", "rank 1 of 2 node2 /workspace hush PCI_BUS_ID\n"] {
        assert!(launched.contains(line), "{launched}");
    }
    assert!(launched.ends_with("exit code 0\n"), "{launched}");
    // what ranks of the other node wrote stays there
    let written = notebook
        .cell("$HVDCTL_LAUNCH sh -c 'echo of $RANK >of_rank.txt'; $HVDCTL_LAUNCH cat of_rank.txt; $HVDCTL_LAUNCH sh -c 'exit $RANK'");
    assert!(written.contains("of 0\n") && written.contains("of 1\n"), "{written}");
    assert!(written.ends_with("exit code 1\n"), "{written}");
    // a rank that fails ends the others, on all nodes
    let failed = notebook.cell("$HVDCTL_LAUNCH sh -c 'test $RANK = 1 && exit 7; sleep 4712'");
    assert!(failed.ends_with("exit code 7\n"), "{failed}");
    NODES.iter().for_each(|node| assert_eq!(on(node, "pgrep -f '[s]leep 4712'; :"), "", "{node}"));

    Stranger::stop_all();
    compare(&stranger.end(), &[]);

    // an interrupted cell is killed a moment later, as a terminal does it
    let interrupted = notebook.cell(
        "python3 -c 'import os, pty, signal, subprocess, sys, time
ours, theirs = pty.openpty()
launch = [\"sh\", \"-c\", \"exec $HVDCTL_LAUNCH sleep 4713\"]
child = subprocess.Popen([\"setsid\", \"--ctty\"] + launch, stdin=theirs, stdout=theirs, stderr=theirs)
time.sleep(4)
for number in (signal.SIGINT, signal.SIGHUP, signal.SIGKILL):
    child.send_signal(number)
    time.sleep(0.1)'",
    );
    assert!(interrupted.ends_with("exit code 0\n"), "{interrupted}");
    let is_gone = || NODES.iter().all(|node| on(node, "pgrep -f '[s]leep 4713'; :").is_empty());
    assert!(eventually(s(20), is_gone), "ranks are left");
    // what was sent is sent again when it changes, also with an earlier time, and old copies are not fetched
    let sent = notebook.cell(
        "echo 'print(\"second\")' >new.py; echo 'print(\"moved\")' >/tmp/m; touch -d 2020-01-01 /tmp/m; mv /tmp/m moved.py
        $HVDCTL_LAUNCH python3 new.py; $HVDCTL_LAUNCH python3 moved.py",
    );
    assert_eq!((sent.matches("second\n").count(), sent.matches("moved\n").count()), (2, 2), "{sent}");
    let late = notebook.cell("echo 'print(\"late\")' >late.py; $HVDCTL_LAUNCH python3 late.py");
    assert_eq!(late.matches("late\n").count(), 2, "{late}");
    let replaced = notebook.cell("rm conf; mkdir conf; echo below >conf/a; $HVDCTL_LAUNCH cat conf/a");
    assert_eq!(replaced.matches("below\n").count(), 2, "{replaced}");
    notebook.cell("$HVDCTL_LAUNCH sh -c 'mkdir -p .git/hooks && echo true >.git/hooks/pre-commit'");
    notebook.cell("echo 'print(3)' >new.py");

    // changed here and there: neither is lost
    notebook.cell("echo of the notebook >both.txt; echo 'print(1)' >old.py");
    fs::write(project.join("both.txt"), "of the laptop\n").unwrap();
    notebook.running.signal("INT");
    let ended = notebook.running.end(s(60)).code(0).complains(&["exists with different contents", "instead"]);
    assert!(!ended.err.contains("panic"), "{}", ended.err);
    assert_eq!(fs::read_to_string(project.join("both.txt")).unwrap(), "of the laptop\n");
    let found = fs::read_dir(lab.path()).unwrap().flatten().map(|entry| entry.path());
    let fetched = found.into_iter().find(|path| path.file_name().unwrap().to_str().unwrap().starts_with("notebook-"));
    let fetched = fetched.unwrap();
    assert_eq!(fs::read_to_string(fetched.join("both.txt")).unwrap(), "of the notebook\n");
    assert_eq!(fs::read_to_string(fetched.join("new.py")).unwrap(), "print(3)\n");
    assert!(!fetched.join(".git").exists() && !fetched.join("conf").is_file(), "{fetched:?}");
    assert!(fetched.join("node2/of_rank.txt").exists() && !fetched.join("node2/new.py").exists(), "{fetched:?}");
    no_job_is_left();
    assert!(TcpStream::connect(("127.0.0.1", notebook.port)).is_err(), "the port is open");
    assert_eq!(ours("node2"), "hworker running\n");
}

#[test]
fn a_notebook_is_opened_again_and_its_files_are_in_the_project_at_the_end() {
    let lab = lab();
    let _restore = Restore(|| NODES.iter().for_each(|node| drop(on(node, "rm -rf /opt/hvdctl-test/jupyterlab"))));
    let project = lab.project("work", &[("both.txt", "uploaded\n")]);
    let notebook = Notebook::open(&lab, project.to_str().unwrap(), &["--launcher", "torchrun"]);
    notebook.cell("echo of the cell >both.txt");
    // the terminal goes away
    let Notebook { running, token, .. } = notebook;
    running.signal("HUP");
    running.end(s(60)).code(129).complains(&[
        "cells cannot start ranks: the image",
        "has no torchrun",
        "notebook --attach",
    ]);
    let again = Notebook::open(&lab, project.to_str().unwrap(), &["--attach", "notebook"]);
    assert_ne!(again.token, token);
    assert!(again.ask("/api/contents", &token, "").contains(" 403 "), "the old token is refused");
    assert!(again.cell("cat both.txt").contains("of the cell\n"));
    lab.hvdctl(&["stop"]).code(0);
    again.running.end(s(60)).code(0);
    assert_eq!(fs::read_to_string(project.join("both.txt")).unwrap(), "of the cell\n");
    no_job_is_left();
    lab.hvdctl(&["notebook", project.to_str().unwrap(), "--attach", "notebook"]).code(2).complains(&["has ended"]);

    // one that takes nothing has a directory of its own while a job uses another version of the project
    let sleeping = [
        "train",
        project.to_str().unwrap(),
        "--name",
        "sleeper",
        "-np",
        "1",
        "--launcher",
        "env",
        "--",
        "sleep",
        "4714",
    ];
    let mut train = lab.start(&sleeping);
    assert!(eventually(s(60), || !on("node1", "pgrep -f '[s]leep 4714'; :").is_empty()), "{}", train.err());
    fs::write(project.join("both.txt"), "newer\n").unwrap();
    let edited = Notebook::open(&lab, project.to_str().unwrap(), &["--gpus-per-node", "0"]);
    assert!(on("node1", "ls /opt/horovod/projects").contains("work+"));
    assert!(edited.cell("cat both.txt; echo edited >both.txt").contains("newer\n"));
    lab.hvdctl(&["stop", "notebook"]).code(0);
    edited.running.end(s(60)).code(0);
    assert_eq!(fs::read_to_string(project.join("both.txt")).unwrap(), "edited\n");
    assert!(train.runs(), "{}", train.err());
    lab.hvdctl(&["stop", "sleeper"]).code(0);
    train.end(s(60)).code(143);

    // other jobs get the nodes of one that takes nothing
    let idle = Notebook::open(&lab, project.to_str().unwrap(), &["--gpus-per-node", "0"]);
    lab.hvdctl(&["run", "-np", "2", "--launcher", "env", "--", "true"]).code(0);
    assert!(idle.cell("echo ${CUDA_VISIBLE_DEVICES-all}.").contains("\r\n\r\n.\n"));
    idle.running.signal("INT");
    idle.running.end(s(60)).code(0);
    no_job_is_left();
}

#[test]
fn an_image_without_jupyterlab_and_a_taken_port_are_found_before_the_job() {
    let lab = Lab::up();
    let project = lab.project("work", &[("a.py", "")]);
    let taken = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let project = project.to_str().unwrap();
    lab.hvdctl(&["notebook", project, "--port", &port])
        .code(2)
        .complains(&[&format!("port {port} of this machine is in use"), "--port PORT"]);
    lab.hvdctl(&["notebook", project])
        .code(125)
        .complains(&["node1: cannot check the image: it has none of jupyterlab", "setup = ["]);
    assert_eq!(on("node1", "ls /opt/horovod/jobs 2>/dev/null | wc -l"), "0\n");
}
