//! JupyterLab as a browser reaches it: the port here, where it is reported, and the browser.

use crate::cli::ForwardedPort;
use crate::commands::Context;
use crate::error::Error;
use crate::event::{Event, Message};
use crate::random;
use crate::record::frames::{Frame, FrameKind};
use crate::runtime::Runtime;
use crate::secret::Secret;
use crate::transport::node::{Reach, Transport};
use serde::Deserialize;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::process::Stdio;
use tempfile::NamedTempFile;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// Ports here that are tried, Jupyter's own first.
const PORTS: std::ops::Range<u16> = 8888..8988;
/// Becomes the program in the first argument, with the others. The directory of a notebook of hvdctl 0.2.0 does not have the script that starts
/// it outside the environment of ranks.
const OPEN: &str = "python=${0%/*}/hvdctl-python
if [ -e \"$python\" ]; then exec sh \"$python\" \"$0\" \"$@\"; fi
exec python3 \"$0\" \"$@\"";
/// The most ports that lead to others of the node: each is a program there, of which a connection has few.
const MOST_FORWARDS: usize = 4;
/// The operation on the master, for messages.
const FORWARD: &str = "open JupyterLab";

/// Listens on the port of this machine that is to lead to JupyterLab.
pub fn listen(wanted: Option<u16>) -> Result<TcpListener, Error> {
    let hint = "choose another one with --port PORT";
    match wanted {
        Some(port) => bound(port).ok_or_else(|| Error::usage(format!("port {port} of this machine is in use"), hint)),
        None => PORTS.into_iter().find_map(bound).ok_or_else(|| {
            Error::usage(format!("the ports {} to {} of this machine are in use", PORTS.start, PORTS.end - 1), hint)
        }),
    }
}

/// A port of this machine that is to lead to one of the notebook's node.
pub struct NotebookPort {
    /// The listener on the port of this machine.
    listener: TcpListener,
    /// The port of the node.
    to: u16,
}

/// Listens on the ports of this machine that are to lead to ports of the notebook's node.
pub fn listen_for(ports: &[ForwardedPort]) -> Result<Vec<NotebookPort>, Error> {
    let forward = |port: &ForwardedPort| {
        let listener = bound(port.here).ok_or_else(|| {
            let hint = format!("choose another one with --forward PORT:{}", port.there);
            Error::usage(format!("port {} of this machine is in use", port.here), hint)
        })?;
        Ok(NotebookPort { listener, to: port.there })
    };
    if ports.len() > MOST_FORWARDS {
        let why = format!("--forward: at most {MOST_FORWARDS} ports are forwarded");
        return Err(Error::usage(why, "more lead there by ssh itself: ssh -N -L PORT:127.0.0.1:PORT NODE"));
    }
    ports.iter().map(forward).collect()
}

fn bound(port: u16) -> Option<TcpListener> {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()?;
    listener.set_nonblocking(true).ok()?;
    TcpListener::from_std(listener).ok()
}

/// The report of the first rank once JupyterLab answers.
#[derive(Deserialize)]
struct Ready {
    notebook: String,
}

/// Returns whether a frame reports that JupyterLab answers.
fn is_ready(frame: &Frame) -> bool {
    match &frame.kind {
        FrameKind::Stdout(line) if frame.rank == 0 => {
            serde_json::from_slice::<Ready>(line).is_ok_and(|ready| ready.notebook == "ready")
        }
        _ => false,
    }
}

/// JupyterLab, as a browser reaches it.
pub struct Page<'a> {
    /// The listener on the port of this machine.
    pub listener: TcpListener,
    /// The ports of this machine that lead to other ports of the node.
    pub forwards: Vec<NotebookPort>,
    /// If set, a browser is opened.
    pub open: bool,
    /// The node of JupyterLab.
    pub transport: &'a Transport,
    /// The runtime of its node.
    pub runtime: Runtime,
    /// The container in which it runs.
    pub container: String,
    /// The path of its program there.
    pub program: String,
}

impl Page<'_> {
    /// Follows the job with what is done about each frame, and has the page open from when JupyterLab answers until the
    /// job has ended.
    pub async fn while_open<T>(self, job: impl AsyncFnOnce(&mut dyn FnMut(&str, &Frame)) -> T, context: &Context) -> T {
        let (sender, ready) = oneshot::channel();
        let mut sender = Some(sender);
        let mut on_frame = |_: &str, frame: &Frame| {
            if is_ready(frame)
                && let Some(sender) = sender.take()
            {
                let _ = sender.send(());
            }
        };
        let serving = async {
            if ready.await.is_ok()
                && let Some((mut reach, _page, _forwards)) = self.serve(context).await
            {
                let why = reach.ended().await;
                let lost = Message::from(format!("the page of the notebook is closed: {why}"));
                context.events.warn(lost.hint("hvdctl notebook --attach opens it again, from another terminal"));
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            ended = job(&mut on_frame) => ended,
            () = serving => unreachable!("it waits for the job"),
        }
    }

    /// Gives JupyterLab a new token, lets the port lead to it, reports where it is and opens a browser. What fails is
    /// only reported: the job goes on. Returns what has to be kept.
    async fn serve(self, context: &Context) -> Option<(Reach, Option<NamedTempFile>, Vec<Reach>)> {
        let events = &context.events;
        let (token, port) = (Secret::plain(random::token()), self.listener.local_addr().ok()?.port());
        let mut forwards = Vec::new();
        for NotebookPort { listener, to } in self.forwards {
            let (here, number) = (listener.local_addr().ok()?.port(), to.to_string());
            if self.transport.is_here() && here == to {
                events.note(format!("the notebook's node is this machine, which has its port {to}"));
                continue;
            }
            let operation = format!("forward port {to}");
            let forward = async {
                let argv = ["sh", "-c", OPEN, &self.program, "forward", &number];
                let process = self.runtime.exec(&self.container, &argv, &operation).await?;
                self.transport.reach(listener, process, &Secret::plain(String::new()), &operation).await
            };
            match forward.await {
                Ok(reach) => {
                    events.note(format!("http://127.0.0.1:{here} leads to port {to} of {}", self.transport.node()));
                    forwards.push(reach);
                }
                Err(error) => events.warn(error),
            }
        }
        let reach = async {
            let argv = ["sh", "-c", OPEN, &self.program, "page"];
            let process = self.runtime.exec(&self.container, &argv, FORWARD).await?;
            self.transport.reach(self.listener, process, &token, FORWARD).await
        };
        let reach = reach.await.map_err(|error| {
            events.warn(error.hint("Ctrl-C ends the notebook; after the terminal was closed, --attach opens it again"));
        });
        let reach = reach.ok()?;
        let url = format!("http://127.0.0.1:{port}/lab?token={}", token.expose());
        events.send(Event::Ready { url: url.clone() });
        let [connection, user] = ["SSH_CONNECTION", "USER"].map(|name| std::env::var(name).ok());
        if let Some(line) = from_elsewhere(connection.as_deref(), user.as_deref(), port) {
            events.note(Message::from("if your browser is on another machine, run this there first").hint(line));
        }
        events.note("Ctrl-C ends the notebook, and fetches what was written to the project");
        let page = if self.open { open(&url, context) } else { None };
        Some((reach, page, forwards))
    }
}

/// Returns the command by which the port of this machine is reached from where the operator has logged in from. The
/// value of `SSH_CONNECTION` is client, its port, server, its port (ssh(1)).
fn from_elsewhere(connection: Option<&str>, user: Option<&str>, port: u16) -> Option<String> {
    let mut fields = connection?.split(' ').skip(2);
    let (server, of_sshd) = (fields.next()?, fields.next()?);
    let of_sshd = if of_sshd == "22" { String::new() } else { format!(" -p {of_sshd}") };
    Some(format!("ssh -N -L {port}:127.0.0.1:{port}{of_sshd} {}@{server}", user?))
}

/// Opens a page in the browser of this machine. The token is in a file that only its owner can read, and not in the
/// browser's arguments. Returns the file.
fn open(url: &str, context: &Context) -> Option<NamedTempFile> {
    let program = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let open = || -> anyhow::Result<NamedTempFile> {
        let mut page = tempfile::Builder::new().prefix("hvdctl-").suffix(".html").tempfile()?;
        write!(page, "<!doctype html><meta http-equiv=\"refresh\" content=\"0; url={url}\">")?;
        let mut browser = tokio::process::Command::new(which::which(program)?);
        browser.arg(page.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // Ctrl-C is for the notebook
        browser.process_group(0).spawn()?;
        Ok(page)
    };
    open().inspect_err(|error| context.events.warn(format!("cannot open a browser with {program}: {error:#}"))).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_rank_says_when_jupyter_answers() {
        let frame = |rank, line: &[u8]| Frame { rank, time: 0.0, kind: FrameKind::Stdout(line.to_vec()) };
        assert!(is_ready(&frame(0, b"{\"notebook\": \"ready\"}")));
        assert!(!is_ready(&frame(1, b"{\"notebook\": \"ready\"}")));
        for other in [&b"{\"notebook\": 1}"[..], b"{\"notebook\": \"\"}", b"ready", b""] {
            assert!(!is_ready(&frame(0, other)));
        }
    }

    #[tokio::test]
    async fn a_port_that_is_in_use_is_refused_or_passed_over() {
        let first = listen(None).unwrap();
        let port = |listener: &TcpListener| listener.local_addr().unwrap().port();
        assert!(port(&listen(None).unwrap()) > port(&first));
        assert!(listen(Some(port(&first))).unwrap_err().to_string().contains("is in use"));
    }

    #[tokio::test]
    async fn two_notebooks_forward_different_ports_of_this_machine() {
        let free = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let port = ForwardedPort { here: free, there: 6006 };
        let first = listen_for(&[port]).unwrap();
        assert_eq!(first[0].to, 6006);
        let error = listen_for(&[port]).err().unwrap().to_string();
        assert!(error.contains(&format!("port {free} of this machine is in use")), "{error}");
        assert!(error.contains("--forward PORT:6006"), "{error}");
        assert!(listen_for(&[port; 5]).err().unwrap().to_string().contains("at most 4 ports"));
    }

    #[test]
    fn a_login_over_ssh_gets_the_line_for_its_own_machine() {
        let line = |connection| from_elsewhere(connection, Some("ana"), 8888);
        assert_eq!(line(None), None);
        assert_eq!(line(Some("10.0.0.7")), None);
        let expected = "ssh -N -L 8888:127.0.0.1:8888 ana@10.0.0.2";
        assert_eq!(line(Some("10.0.0.7 5000 10.0.0.2 22")).unwrap(), expected);
        let expected = "ssh -N -L 8888:127.0.0.1:8888 -p 2222 ana@10.0.0.2";
        assert_eq!(line(Some("10.0.0.7 5000 10.0.0.2 2222")).unwrap(), expected);
    }
}
