//! An operator: a home with an ssh configuration, an inventory for it, and hvdctl with or without a terminal.

use crate::pool::node_command;
use crate::process::{Done, Running, eventually, run, s};
use crate::state::{IMAGE, Lab, NODES, address, hvdctl_in, node_sh, on, ours, shared_file};
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Resets the nodes, whatever a test has done to them.
const UNDO: &str = r#"
for port in 22 2222; do
  while rule=$(iptables -S INPUT | grep -m1 -- "--dport $port -j DROP"); do iptables -D INPUT ${rule#-A INPUT} || break; done
done
if [ -e /etc/ssh/kept_key ]; then
  mv -f /etc/ssh/kept_key /etc/ssh/ssh_host_ed25519_key
  kill -HUP "$(cat /run/sshd.pid)"
fi
rm -rf /home/pass/.ssh
if [ -e /run/moved-engine.sock ]; then mv /run/moved-engine.sock "/run/user/$(id -u own)/docker.sock"; fi
sed -i '/DOCKER_HOST/d' /home/own/.bashrc
"#;

/// The lab for one test, used by an operator with a home of their own. The nodes are reset at the start and at the end.
pub struct Operator {
    /// The lab, and the directory of all files.
    pub lab: Lab,
    variables: Vec<(String, String)>,
}

impl Operator {
    /// Two nodes, each with these fields of the inventory in addition to its host.
    #[track_caller]
    pub fn new(node1: &str, node2: &str) -> Operator {
        let operator = Operator { lab: Lab::empty(), variables: Vec::new() };
        NODES.iter().for_each(|node| drop(node_sh(node, UNDO, &[]).code(0)));
        fs::create_dir_all(operator.home().join(".ssh")).unwrap();
        for (name, mode) in [("id_ed25519", 0o600), ("id_ed25519.pub", 0o644)] {
            let key = operator.home().join(".ssh").join(name);
            fs::copy(shared_file(name), &key).unwrap();
            fs::set_permissions(key, fs::Permissions::from_mode(mode)).unwrap();
        }
        operator.configure(&format!("{}{}", operator.hosts(), operator.with_key()));
        operator.inventory(&["node1", "node2"], node1, node2);
        operator
    }

    /// Replaces the inventory.
    pub fn inventory(&self, hosts: &[&str; 2], node1: &str, node2: &str) {
        let text = format!(
            "[cluster]\nname = \"lab\"\nimage = \"{IMAGE}\"\nconnect_timeout_s = 10\nconnection_idle_s = 0\nkey_type = \
             \"ed25519\"\n\n\
             [defaults]\ngpus = 1\n\n[[node]]\nname = \"node1\"\nhost = \"{}\"\n{node1}\n\n\
             [[node]]\nname = \"node2\"\nhost = \"{}\"\n{node2}\n",
            hosts[0], hosts[1]
        );
        fs::write(self.lab.inventory(), text).unwrap();
    }

    /// The operator's home.
    pub fn home(&self) -> PathBuf {
        self.lab.path().join("home")
    }

    /// hvdctl's own known-hosts file.
    pub fn known_hosts(&self) -> PathBuf {
        self.home().join(".local/state/hvdctl/known_hosts")
    }

    /// Writes `~/.ssh/config`.
    pub fn configure(&self, text: &str) {
        fs::write(self.home().join(".ssh/config"), text).unwrap();
    }

    /// The part of it with the nodes' addresses.
    pub fn hosts(&self) -> String {
        NODES.iter().map(|node| format!("Host {node}\n  HostName {}\n", address(node))).collect()
    }

    /// The part of it that names the operator's key.
    pub fn with_key(&self) -> String {
        format!("Host *\n  IdentitiesOnly yes\n  IdentityFile {}\n", self.home().join(".ssh/id_ed25519").display())
    }

    /// Sets a variable for all calls that follow.
    pub fn set(&mut self, name: &str, value: &str) {
        self.variables.push((name.to_owned(), value.to_owned()));
    }

    /// Puts sudo's password into a file for all calls that follow: its first line, followed by another line.
    pub fn sudo_password(&mut self, password: &str) {
        let file = self.lab.path().join("sudo-password");
        fs::write(&file, format!("{password}\nthe second line\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        self.set("HVDCTL_SUDO_PASSWORD_FILE", file.to_str().unwrap());
    }

    fn environment(&self, command: &mut Command) {
        // the variables of the person who runs the tests are not this operator's
        let theirs = ["XDG_STATE_HOME", "SSH_AUTH_SOCK", "SSH_ASKPASS", "DISPLAY"];
        for name in theirs.into_iter().chain(["HVDCTL_INVENTORY", "HVDCTL_SUDO_PASSWORD_FILE"]) {
            command.env_remove(name);
        }
        command
            .env("PATH", own_home())
            .env("HOME", self.home())
            .envs(self.variables.iter().map(|(name, value)| (name, value)));
    }

    /// hvdctl in a session without a terminal.
    pub fn command(&self, args: &[&str]) -> Command {
        let bare = hvdctl_in(self.lab.path());
        let mut command = Command::new("setsid");
        command.arg(bare.get_program()).args(args).current_dir(self.lab.path());
        for (name, value) in bare.get_envs() {
            if value.is_none() {
                command.env_remove(name);
            }
        }
        self.environment(&mut command);
        command
    }

    /// Runs that to its end.
    #[track_caller]
    pub fn hvdctl(&self, args: &[&str]) -> Done {
        run(self.command(args), s(240))
    }

    /// Runs hvdctl with a file as its standard input, opened so that a pipe never comes to its end.
    #[track_caller]
    pub fn hvdctl_reading(&self, file: &Path, args: &[&str]) -> Done {
        let inner = self.command(args);
        let mut command = Command::new("setsid");
        command.args(["sh", "-c", "exec \"$@\" <>\"$0\""]).arg(file).args(inner.get_args());
        self.environment(command.current_dir(self.lab.path()));
        run(command, s(120))
    }

    /// hvdctl on a terminal. Each answer is typed as soon as its prompt is shown and the echo is off. Standard output
    /// is all that the terminal showed; standard error reports whether the echo is on afterwards.
    #[track_caller]
    pub fn terminal(&self, args: &[&str], answers: &[(&str, &str)]) -> Done {
        let inner = self.command(args);
        let mut command = Command::new("python3");
        command.args(["-c", TERMINAL]).args(inner.get_args()).current_dir(self.lab.path());
        for (name, value) in inner.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.env("TERM", "xterm");
        let input = format!("{}\n", serde_json::to_string(answers).unwrap());
        Running::start(command, input.as_bytes()).end(s(150))
    }
}

/// A PATH with an ssh whose home is $HOME.
pub fn own_home() -> String {
    format!("{}/tests/own_home:{}", env!("CARGO_MANIFEST_DIR"), std::env::var("PATH").unwrap())
}

/// The part of an ssh configuration that people have for their own sessions, and the port that it forwards, which is in
/// use.
pub fn interactive() -> (String, TcpListener) {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let text = format!(
        "Host *\n  LocalForward 127.0.0.1:{port} localhost:6006\n  ExitOnForwardFailure yes\n  RemoteCommand echo \
         theirs; exec sleep 300\n  \
         RequestTTY force\n  SessionType none\n  StdinNull yes\n  ForkAfterAuthentication yes\n  VisualHostKey yes\n  \
         PermitLocalCommand yes\n  LocalCommand echo theirs >&2\n  ControlMaster auto\n  ControlPath \
         /tmp/hvdctl-test-{port}\n"
    );
    (text, taken)
}

impl Drop for Operator {
    fn drop(&mut self) {
        for node in NODES {
            let _ = node_command(node, &["sh", "-c", UNDO]).stdout(Stdio::null()).status();
        }
    }
}

/// Runs its arguments on a terminal of their own. Answers come as JSON on standard input, so that they are no
/// arguments.
const TERMINAL: &str = r#"
import fcntl, json, os, pty, select, signal, struct, sys, termios, time
answers = json.loads(sys.stdin.readline())
child, terminal = pty.fork()
if child == 0:
    os.execvp(sys.argv[1], sys.argv[1:])
fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
echoes = lambda: bool(termios.tcgetattr(terminal)[3] & termios.ECHO)
seen, at, end = b"", 0, time.time() + 120
while True:
    if time.time() > end:
        os.kill(child, signal.SIGKILL)
        end += 5
    if answers and answers[0][0].encode() in seen[at:]:
        wait = time.time() + 3
        while echoes() and time.time() < wait: time.sleep(0.01)
        time.sleep(0.2)
        answer = answers.pop(0)[1]
        at = len(seen)
        os.write(terminal, answer.encode())
    if select.select([terminal], [], [], 0.05)[0]:
        try: piece = os.read(terminal, 65536)
        except OSError: break
        if not piece: break
        seen += piece
status = os.waitpid(child, 0)[1]
print("echo on" if echoes() else "echo off", file=sys.stderr)
sys.stdout.buffer.write(seen)
sys.stdout.flush()
sys.exit(os.waitstatus_to_exitcode(status) % 256)
"#;

/// The password that one of the lab's users has.
#[track_caller]
pub fn password(user: &str) -> String {
    let all = fs::read_to_string(shared_file("passwords")).unwrap();
    all.lines().find_map(|line| line.strip_prefix(&format!("{user}:"))).unwrap().to_owned()
}

/// The part of it that no quoting changes.
pub fn needle(password: &str) -> String {
    let word = password.rsplit('`').nth(1).unwrap().to_owned();
    assert_eq!(word.len(), 12, "the lab's passwords end with a word of their own");
    word
}

/// Returns the number of wrong passwords that sudo was given on a node, by its own log.
#[track_caller]
pub fn wrong_passwords(node: &str) -> u32 {
    let log = on(node, "cat /var/log/sudo.log 2>/dev/null || :");
    let attempts =
        log.lines().filter_map(|line| line.split(" incorrect password attempt").next().filter(|l| *l != line));
    attempts.map(|line| line.rsplit(' ').next().unwrap().parse::<u32>().unwrap()).sum()
}

/// The node's host key as ssh-keygen on the node shows it.
#[track_caller]
pub fn fingerprint(node: &str) -> String {
    let shown = on(node, "ssh-keygen -y -f /etc/ssh/ssh_host_ed25519_key | ssh-keygen -lf -");
    shown.split_whitespace().nth(1).unwrap().to_owned()
}

/// Lines of a node's sshd since it started.
#[track_caller]
pub fn sshd_log(node: &str) -> Vec<String> {
    on(node, "cat /var/log/sshd.log").lines().map(str::to_owned).collect()
}

/// Everything in an engine other than hvdctl's worker: containers, networks and volumes.
#[track_caller]
pub fn engine_has(node: &str) -> String {
    on(
        node,
        "docker ps -a --format '{{.Names}} {{.Image}}' | grep -v '^hworker '; docker volume ls -q; \
         docker network ls --format '{{.Name}}'; docker images --format '{{.ID}}'",
    )
}

/// Asserts that nothing of hvdctl's is on the nodes.
#[track_caller]
pub fn nothing_is_there() {
    for node in NODES {
        let files = on(node, "find /opt/horovod -type f 2>/dev/null || :");
        assert_eq!(files, "", "files of hvdctl on {node}");
        assert_eq!(ours(node), "", "containers of hvdctl on {node}");
        let containers = || on(node, "docker ps -a");
        // the engine removes the container that provided root a moment after it has ended
        assert!(eventually(s(30), || containers().lines().count() == 1), "containers on {node}: {}", containers());
    }
}

/// Waits until the sshd of a node takes connections.
#[track_caller]
pub fn sshd_listens(node: &str) {
    let banner = "timeout 2 bash -c 'exec 3<>/dev/tcp/127.0.0.1/22 && head -c 4 <&3'";
    assert!(
        eventually(Duration::from_secs(10), || node_sh(node, banner, &[]).out.starts_with("SSH-")),
        "sshd of {node}"
    );
}
