//! JupyterLab as a browser reaches it: the port here, where it is reported, and the browser.

use crate::cluster::member::Member;
use crate::commands::Context;
use crate::error::{Error, NodeError};
use crate::event::{Event, Message};
use crate::record::frames::{Frame, FrameKind};
use serde::Deserialize;
use std::io::Write as _;
use std::net::TcpListener;
use std::process::Stdio;
use std::time::Duration;
use tempfile::NamedTempFile;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Ports here that are tried, Jupyter's own first.
const PORTS: std::ops::Range<u16> = 8888..8988;
/// How often another port is tried.
const TRIES: u32 = 10;
/// How long an answer over the forwarded port may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// The operation on the master, for messages.
const FORWARD: &str = "forward a port to JupyterLab";

/// Returns the port of this machine that leads to JupyterLab.
pub fn local_port(wanted: Option<u16>) -> Result<u16, Error> {
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let hint = "choose another one with --port PORT";
    match wanted {
        Some(port) if is_free(&port) => Ok(port),
        Some(port) => Err(Error::usage(format!("port {port} of this machine is in use"), hint)),
        None => PORTS.into_iter().find(is_free).ok_or_else(|| {
            Error::usage(format!("the ports {} to {} of this machine are in use", PORTS.start, PORTS.end - 1), hint)
        }),
    }
}

/// What the first rank reports once JupyterLab answers.
#[derive(Deserialize)]
struct Ready {
    notebook_port: u16,
}

/// Returns the port on the master, if a frame reports it.
fn ready_port(frame: &Frame) -> Option<u16> {
    match &frame.kind {
        FrameKind::Stdout(line) if frame.rank == 0 => {
            serde_json::from_slice::<Ready>(line).ok().map(|ready| ready.notebook_port)
        }
        _ => None,
    }
}

/// JupyterLab, as a browser reaches it.
pub struct Page<'a> {
    /// The port of this machine, if one was chosen.
    pub here: Option<u16>,
    /// What a request has to have.
    pub token: &'a str,
    /// Whether a browser is opened.
    pub open: bool,
    /// The node of JupyterLab.
    pub master: &'a Member,
}

impl Page<'_> {
    /// Follows the job with what is done about each frame, and has the page open from when JupyterLab answers until the
    /// job has ended.
    pub async fn while_open<T>(
        &self,
        job: impl AsyncFnOnce(&mut dyn FnMut(&str, &Frame)) -> T,
        context: &Context,
    ) -> T {
        let (sender, ready) = oneshot::channel();
        let mut sender = Some(sender);
        let mut on_frame = |_: &str, frame: &Frame| {
            if let Some(port) = ready_port(frame)
                && let Some(sender) = sender.take()
            {
                let _ = sender.send(port);
            }
        };
        let serving = async {
            let _open = match ready.await {
                Ok(there) => self.serve(there, context).await,
                Err(_) => None,
            };
            std::future::pending::<()>().await;
        };
        tokio::select! {
            ended = job(&mut on_frame) => ended,
            () = serving => unreachable!("it waits for the job"),
        }
    }

    /// Forwards the port to that of the node, reports where JupyterLab is and opens a browser. What fails is only
    /// reported: the job goes on. Returns what has to be kept.
    async fn serve(&self, there: u16, context: &Context) -> Option<impl Sized + use<>> {
        let events = &context.events;
        let mut tries = 0;
        let forward = loop {
            let here = self.here.map_or_else(|| local_port(None), Ok).inspect_err(|error| events.warn(error)).ok()?;
            match self.master.transport.reach(here, there, FORWARD).await {
                Ok(forward) => break forward,
                // another program has taken the port that was free
                Err(_) if self.here.is_none() && tries < TRIES => tries += 1,
                Err(error) => {
                    events.warn(error.hint("Ctrl-C ends the notebook; try another port with --port PORT"));
                    return None;
                }
            }
        };
        let port = forward.as_ref().map_or(there, |forward| forward.port);
        if !answers(port).await {
            let cause = "nothing answers: sshd allows no connection to 127.0.0.1 of the node";
            let hint = "AllowTcpForwarding in sshd_config, or `restrict`, `no-port-forwarding` or `permitopen` in \
                        authorized_keys of the login may forbid it; Ctrl-C ends the notebook";
            events.warn(NodeError::failed(&self.master.node.name, FORWARD, cause).hint(hint));
            return None;
        }
        let url = format!("http://127.0.0.1:{port}/lab?token={}", self.token);
        events.send(Event::Ready { url: url.clone() });
        let [connection, user] = ["SSH_CONNECTION", "USER"].map(|name| std::env::var(name).ok());
        if let Some(line) = from_elsewhere(connection.as_deref(), user.as_deref(), port) {
            events.note(Message::from("if your browser is on another machine, run this there first").hint(line));
        }
        events.note("Ctrl-C ends the notebook, and fetches what was written to the project");
        let page = if self.open { open(&url, context) } else { None };
        Some((forward, page))
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

/// Returns whether a web server answers at a port of this machine.
async fn answers(port: u16) -> bool {
    let ask = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
        stream.write_all(b"GET /api HTTP/1.0\r\nHost: localhost\r\n\r\n").await.ok()?;
        let mut first = [0; 5];
        stream.read_exact(&mut first).await.ok()?;
        Some(first == *b"HTTP/")
    };
    timeout(ANSWER_LIMIT, ask).await.ok().flatten().unwrap_or_default()
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
    fn only_the_first_rank_says_where_jupyter_is() {
        let frame = |rank, line: &[u8]| Frame { rank, time: 0.0, kind: FrameKind::Stdout(line.to_vec()) };
        assert_eq!(ready_port(&frame(0, b"{\"notebook_port\": 45123}")), Some(45123));
        assert_eq!(ready_port(&frame(1, b"{\"notebook_port\": 45123}")), None);
        for other in [&b"{\"notebook_port\": 99999}"[..], b"{\"port\": 1}", b"45123", b""] {
            assert_eq!(ready_port(&frame(0, other)), None);
        }
    }

    #[test]
    fn a_port_that_is_in_use_is_refused_or_passed_over() {
        let first = local_port(None).unwrap();
        let _taken = TcpListener::bind(("127.0.0.1", first)).unwrap();
        assert!(local_port(None).unwrap() > first);
        assert!(local_port(Some(first)).unwrap_err().to_string().contains("is in use"));
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
