//! While a run lasts: the logs of all nodes and the launcher's own words, in one stream.

use super::{Options, Seat};
use crate::core::frames::{Frame, Kind, Parser};
use crate::core::inventory::Cluster;
use crate::core::job::{Progress, State};
use crate::edge::docker::Engine;
use crate::edge::link::{Process, Script};
use crate::error::{Error, NodeError};
use crate::event::{Event, Events};
use crate::ops::fleet::{all, each, now};
use futures_util::StreamExt;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc;

const FOLLOW: &str = include_str!("../../edge/scripts/job_follow.sh");
const READ: &str = include_str!("../../edge/scripts/job_read.sh");

/// The launcher's last lines that are kept for an error.
const LAUNCHER_LINES: usize = 20;

/// What comes from the nodes while a run lasts.
enum News {
    Bytes(usize, Vec<u8>),
    /// A follower has ended by itself.
    Lost(usize),
    Launcher(Vec<u8>),
}

/// Follows the logs of all nodes and the launcher.
pub(super) struct Follow<'a> {
    events: &'a Events,
    options: &'a Options,
    names: Vec<String>,
    skews: Vec<f64>,
    parsers: Vec<Parser>,
    offsets: Vec<u64>,
    pub(super) pids: BTreeMap<String, String>,
    pub(super) progress: Progress,
    pub(super) launcher: VecDeque<String>,
    launcher_rest: Vec<u8>,
    sender: mpsc::Sender<News>,
    receiver: mpsc::Receiver<News>,
    tasks: tokio::task::JoinSet<()>,
}

impl<'a> Follow<'a> {
    pub(super) async fn start(
        cluster: &Cluster,
        id: &str,
        seats: &[Seat],
        events: &'a Events,
        options: &'a Options,
    ) -> Result<Follow<'a>, Error> {
        let started = each(seats.iter().collect(), async |seat: &Seat| {
            let script = log_script(FOLLOW, cluster, id, 0);
            let mut process = seat.seen.member.link.follow(&script, "follow the run's log").await?;
            let hello = tokio::time::timeout(seat.seen.member.link.limit(), hello(&mut process)).await;
            let hello = hello.unwrap_or_else(|_| Err(std::io::Error::other("the follower did not start in time")));
            let (pid, skew) = hello.map_err(|e| NodeError::failed(seat.seen.name(), "follow the run's log", e))?;
            Ok((process, pid, skew))
        })
        .await;
        let started = all(events, started)?;
        // bounded, as is what waits to be shown: when the terminal cannot keep up, the nodes' logs wait on their disks
        let (sender, receiver) = mpsc::channel(64);
        let mut tasks = tokio::task::JoinSet::new();
        let (mut pids, mut skews) = (BTreeMap::new(), Vec::new());
        for (i, (process, pid, skew)) in started.into_iter().enumerate() {
            skews.push(skew);
            pids.insert(seats[i].seen.name().to_owned(), pid);
            let sender = sender.clone();
            tasks.spawn(async move {
                // the whole of it: a capture of its output alone would drop the rest, and that ends the follower
                let mut process = process;
                let mut buffer = vec![0; 64 * 1024];
                while let Ok(n @ 1..) = process.stdout.read(&mut buffer).await {
                    if sender.send(News::Bytes(i, buffer[..n].to_vec())).await.is_err() {
                        return;
                    }
                }
                let _ = sender.send(News::Lost(i)).await;
            });
        }
        Ok(Follow {
            events,
            options,
            names: seats.iter().map(|s| s.seen.name().to_owned()).collect(),
            skews,
            parsers: seats.iter().map(|_| Parser::default()).collect(),
            offsets: vec![0; seats.len()],
            pids,
            progress: Progress::default(),
            launcher: VecDeque::new(),
            launcher_rest: Vec::new(),
            sender,
            receiver,
            tasks,
        })
    }

    /// Follows the launcher's container too.
    pub(super) fn launcher(&mut self, engine: &Engine, name: &str) {
        let stream = engine.follow(name);
        let sender = self.sender.clone();
        self.tasks.spawn(async move {
            let mut stream = std::pin::pin!(stream);
            while let Some(bytes) = stream.next().await {
                if sender.send(News::Launcher(bytes)).await.is_err() {
                    return;
                }
            }
        });
    }

    /// Tells what comes until the launcher's container ends, and gives its exit code.
    pub(super) async fn until_end(
        &mut self,
        engine: &Engine,
        container: &str,
        id: &str,
        ranks: u32,
        on_frame: &mut impl FnMut(&str, &Frame),
    ) -> Result<i64, NodeError> {
        let mut running = false;
        let mut wait = std::pin::pin!(engine.wait(container));
        loop {
            let news = tokio::select! {
                code = &mut wait => return code,
                news = self.receiver.recv() => news,
            };
            let Some(news) = news else { continue };
            if let News::Lost(i) = news {
                let node = &self.names[i];
                self.events.send(Event::Warning(format!(
                    "{node}: the connection that followed its ranks is gone; what they still say is read at the end, if \
                     the node answers then"
                )));
            }
            self.take(news, on_frame);
            self.events.room().await;
            if !running && self.progress.started() >= ranks {
                running = true;
                self.events.send(Event::Job { id: id.to_owned(), state: State::Running });
            }
        }
    }

    fn take(&mut self, news: News, on_frame: &mut impl FnMut(&str, &Frame)) {
        match news {
            News::Bytes(i, bytes) => {
                self.offsets[i] += bytes.len() as u64;
                for frame in self.parsers[i].push(&bytes) {
                    self.progress.see(&self.names[i], &frame, self.skews[i]);
                    on_frame(&self.names[i], &frame);
                    self.tell(i, frame);
                }
            }
            News::Lost(_) => {}
            News::Launcher(bytes) => {
                self.launcher_rest.extend_from_slice(&bytes);
                while let Some(end) = self.launcher_rest.iter().position(|b| *b == b'\n') {
                    let line: Vec<u8> = self.launcher_rest.drain(..=end).collect();
                    let line = String::from_utf8_lossy(&line).trim_end().to_owned();
                    if self.options.show_launcher {
                        self.events.send(Event::Launcher(line.clone()));
                    }
                    self.launcher.push_back(line);
                    if self.launcher.len() > LAUNCHER_LINES {
                        self.launcher.pop_front();
                    }
                }
            }
        }
    }

    fn tell(&self, i: usize, frame: Frame) {
        let node = self.names[i].clone();
        let rank = frame.rank;
        match frame.kind {
            Kind::Stdout(_) | Kind::Stderr(_) if !self.options.show_output => {}
            Kind::Stdout(line) => self.events.send(Event::Output { rank, node, stderr: false, line }),
            Kind::Stderr(line) => self.events.send(Event::Output { rank, node, stderr: true, line }),
            Kind::Broken(words) => self.events.send(Event::Warning(format!("rank {rank} on {node}: {words}"))),
            Kind::Started | Kind::Exited { .. } => {}
        }
    }

    /// The nodes whose ranks have said nothing yet, not even that they were started.
    pub(super) fn silent(&self) -> Vec<String> {
        let heard = self.names.iter().zip(&self.offsets);
        heard.filter(|(_, bytes)| **bytes == 0).map(|(name, _)| name.clone()).collect()
    }

    /// Takes what is still under way, then reads from each node what its log holds beyond that: nothing is lost when a
    /// follower was ended before it had sent all.
    pub(super) async fn drain(
        &mut self,
        cluster: &Cluster,
        id: &str,
        seats: &[Seat],
        on_frame: &mut impl FnMut(&str, &Frame),
    ) {
        let ended = async {
            loop {
                let news = tokio::select! {
                    news = self.receiver.recv() => news,
                    joined = self.tasks.join_next() => if joined.is_some() { continue } else { break },
                };
                if let Some(news) = news {
                    self.take(news, on_frame);
                }
            }
        };
        let _ = tokio::time::timeout(Duration::from_secs(2), ended).await;
        self.tasks.abort_all();
        while self.tasks.join_next().await.is_some() {}
        while let Ok(news) = self.receiver.try_recv() {
            self.take(news, on_frame);
        }
        let work = seats
            .iter()
            .filter_map(|seat| {
                let i = self.names.iter().position(|name| name == seat.seen.name())?;
                Some((i, seat, self.offsets[i]))
            })
            .collect();
        let rests = each(work, async |(i, seat, offset): (usize, &Seat, u64)| {
            let script = log_script(READ, cluster, id, offset);
            (i, seat.seen.member.link.script(&script, "read the end of the run's log").await)
        })
        .await;
        for (i, rest) in rests {
            match rest {
                Ok(bytes) => self.take(News::Bytes(i, bytes), on_frame),
                Err(error) => self.events.send(Event::Warning(error.to_string())),
            }
        }
    }
}

fn log_script(source: &'static str, cluster: &Cluster, id: &str, offset: u64) -> Script {
    Script::new(source).with("jobs_dir", &cluster.jobs_dir).with("id", id).with("offset", &offset.to_string())
}

/// What a follower says first: its process id, and by how many seconds the node's clock is ahead of ours. The clock is
/// compared when the words arrive, so that only the way back counts and not what starting a program took. Read byte by
/// byte, so that nothing of the log is taken.
async fn hello(process: &mut Process) -> std::io::Result<(String, f64)> {
    let mut line = Vec::new();
    let mut byte = [0];
    while process.stdout.read(&mut byte).await? == 1 && byte[0] != b'\n' && line.len() < 60 {
        line.push(byte[0]);
    }
    let line = String::from_utf8_lossy(&line);
    let words = line.split_once(' ').and_then(|(pid, time)| {
        let time: f64 = time.parse().ok()?;
        pid.parse::<u32>().ok().map(|_| (pid.to_owned(), time - now()))
    });
    words.ok_or_else(|| std::io::Error::other("the follower did not start"))
}
