//! While a job lasts: the logs of all its nodes, in one stream.

use super::request::Show;
use crate::cluster::nodes::{Member, all, for_each_node, now};
use crate::error::{Error, NodeError};
use crate::event::{Event, Events, Stream};
use crate::inventory::Cluster;
use crate::job::frames::{Frame, Kind, Parser};
use crate::job::record::Progress;
use crate::job::restart::Restart;
use crate::job::tails::Tails;
use crate::transport::node::{Process, Script};
use std::collections::VecDeque;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

const FOLLOW: &str = include_str!("../scripts/job_follow.sh");
pub(super) const READ: &str = include_str!("../scripts/job_read.sh");

/// The launcher's last lines that are kept for an error.
const LAUNCHER_LINES: usize = 20;

/// The bytes that are read of a log at once, and how many such pieces may wait: when the terminal cannot keep up, the nodes' logs
/// wait on their disks.
pub(super) const PIECE: usize = 64 * 1024;
const WAITING: usize = 64;

/// How long a container may take to end when its main process has nothing more to do.
const LAST_MOMENTS: Duration = Duration::from_secs(15);

/// Seconds between two signs of life of a node's follower.
const PULSE: u64 = 3;

/// A node that has given no sign of life for so long does not answer.
const SILENCE: Duration = Duration::from_secs(10);

/// What comes from the nodes while a job lasts.
enum News {
    Bytes(usize, Vec<u8>),
    /// Nothing has come for [`SILENCE`].
    Silent(usize),
    /// Something comes again.
    Answers(usize),
    /// A follower has ended by itself.
    Lost(usize),
}

/// Follows the logs of all nodes.
pub(super) struct Follow<'a> {
    events: &'a Events,
    show: Show,
    names: Vec<String>,
    skews: Vec<f64>,
    parsers: Vec<Parser>,
    offsets: Vec<u64>,
    pub(super) progress: Progress,
    pub(super) launcher: VecDeque<String>,
    pub(super) tails: Tails,
    /// Since when the job supervisor has nothing more to do.
    over: Option<Instant>,
    receiver: mpsc::Receiver<News>,
    /// Followers end when this changes.
    enough: watch::Sender<bool>,
    tasks: tokio::task::JoinSet<()>,
}

impl<'a> Follow<'a> {
    /// From a byte of each node's log on.
    pub(super) async fn start(
        cluster: &Cluster,
        id: &str,
        (members, offsets): (&[Member], Vec<u64>),
        show: Show,
        events: &'a Events,
    ) -> Result<Follow<'a>, Error> {
        let work = members.iter().zip(offsets.clone()).collect();
        let started = for_each_node(work, async |(member, offset): (&Member, u64)| {
            let script = log_script(FOLLOW, cluster, id, offset).with("pulse", &PULSE.to_string());
            let mut process = member.transport.follow(&script, "follow the job's log").await?;
            let hello = tokio::time::timeout(member.transport.limit(), hello(&mut process)).await;
            let hello = hello.unwrap_or_else(|_| Err(std::io::Error::other("the follower did not start in time")));
            let skew = hello.map_err(|e| NodeError::failed(&member.node.name, "follow the job's log", e))?;
            Ok((process, skew))
        })
        .await;
        let started = all(events, started)?;
        let (sender, receiver) = mpsc::channel(WAITING);
        let (enough, wanted) = watch::channel(false);
        let mut tasks = tokio::task::JoinSet::new();
        let mut skews = Vec::new();
        for (i, (process, skew)) in started.into_iter().enumerate() {
            skews.push(skew);
            tasks.spawn(forward(i, process, sender.clone(), wanted.clone()));
        }
        Ok(Follow {
            events,
            show,
            names: members.iter().map(|m| m.node.name.clone()).collect(),
            skews,
            parsers: members.iter().map(|_| Parser::default()).collect(),
            offsets,
            progress: Progress::default(),
            launcher: VecDeque::new(),
            tails: Tails::default(),
            over: None,
            receiver,
            enough,
            tasks,
        })
    }

    /// Tells what comes next.
    pub(super) async fn next(&mut self, on_frame: &mut impl FnMut(&str, &Frame)) {
        let Some(news) = self.receiver.recv().await else {
            // no follower is left; only the end of the job is still to come
            return std::future::pending().await;
        };
        let warn = |i: usize, words: &str| {
            self.events.send(Event::Warning(format!("{}: {words}", self.names[i])));
        };
        match news {
            News::Lost(i) => warn(
                i,
                "the connection that followed its ranks is gone; what they still say is read at the end, if the node \
                 answers then",
            ),
            News::Silent(i) => warn(i, &format!("no answer for {} s", SILENCE.as_secs())),
            News::Answers(i) => warn(i, "it answers again"),
            News::Bytes(..) => {}
        }
        self.take(news, on_frame);
        self.events.throttle().await;
    }

    fn take(&mut self, news: News, on_frame: &mut impl FnMut(&str, &Frame)) {
        match news {
            News::Bytes(i, bytes) => {
                self.offsets[i] += bytes.len() as u64;
                for frame in self.parsers[i].push(&bytes) {
                    self.progress.see(&self.names[i], &frame, self.skews[i]);
                    self.tails.see(&frame);
                    on_frame(&self.names[i], &frame);
                    self.tell(i, frame);
                }
            }
            News::Lost(_) | News::Silent(_) | News::Answers(_) => {}
        }
    }

    fn tell(&mut self, i: usize, frame: Frame) {
        let node = self.names[i].clone();
        let rank = frame.rank;
        match frame.kind {
            Kind::Stdout(_) | Kind::Stderr(_) if !self.show.output => {}
            Kind::Stdout(line) => self.events.send(Event::Output { rank, node, stream: Stream::Stdout, line }),
            Kind::Stderr(line) => self.events.send(Event::Output { rank, node, stream: Stream::Stderr, line }),
            Kind::Broken(words) => self.events.send(Event::Warning(format!("rank {rank} on {node}: {words}"))),
            Kind::Restart(event) => self.events.send(Event::Restart { text: Restart::message(&event) }),
            Kind::Over => self.over = Some(Instant::now()),
            Kind::Started | Kind::Exited { .. } | Kind::Hung { .. } | Kind::Lost(_) => {}
            Kind::Launcher(line) => {
                let line = String::from_utf8_lossy(&line).trim_end().to_owned();
                if self.show.launcher {
                    self.events.send(Event::Launcher { line: line.clone() });
                }
                self.launcher.push_back(line);
                if self.launcher.len() > LAUNCHER_LINES {
                    self.launcher.pop_front();
                }
            }
        }
    }

    /// Waits until the launcher's container should have ended: some time after its job supervisor has. A rank that waits in the kernel keeps
    /// it from that.
    pub(super) fn overdue(&self) -> impl Future<Output = ()> + use<> {
        let over = self.over;
        async move {
            match over {
                Some(over) => tokio::time::sleep_until(over + LAST_MOMENTS).await,
                None => std::future::pending().await,
            }
        }
    }

    /// Whether the ranks' lines are shown.
    pub(super) fn shows_output(&self) -> bool {
        self.show.output
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
        members: &[Member],
        on_frame: &mut impl FnMut(&str, &Frame),
    ) {
        self.enough.send_replace(true);
        let ended = async {
            while let Some(news) = self.receiver.recv().await {
                self.take(news, on_frame);
                self.events.throttle().await;
            }
        };
        let _ = tokio::time::timeout(Duration::from_secs(2), ended).await;
        self.tasks.abort_all();
        while self.tasks.join_next().await.is_some() {}
        while let Ok(news) = self.receiver.try_recv() {
            self.take(news, on_frame);
            self.events.throttle().await;
        }
        let work = members
            .iter()
            .filter_map(|member| {
                let i = self.names.iter().position(|name| *name == member.node.name)?;
                Some((i, member, log_script(READ, cluster, id, self.offsets[i])))
            })
            .collect();
        let (sender, mut receiver) = mpsc::channel(WAITING);
        let reading = async move {
            for_each_node(work, async |(i, member, script): (usize, &Member, Script)| {
                rest(i, member, &script, &sender).await
            })
            .await
        };
        let taking = async {
            while let Some(news) = receiver.recv().await {
                self.take(news, on_frame);
                self.events.throttle().await;
            }
        };
        let (ends, ()) = tokio::join!(reading, taking);
        for error in ends.into_iter().filter_map(Result::err) {
            self.events.send(Event::Warning(error.to_string()));
        }
    }
}

/// Hands on what a script says of a node's log.
async fn rest(i: usize, member: &Member, script: &Script, sender: &mpsc::Sender<News>) -> Result<(), NodeError> {
    let tried = "read the end of the job's log";
    let mut process = member.transport.follow(script, tried).await?;
    let all = pieces(&mut process.stdout, member.transport.limit(), async |piece| {
        let _ = sender.send(News::Bytes(i, piece)).await;
    });
    all.await.map_err(|e| NodeError::failed(&member.node.name, tried, e))?;
    member.transport.ended(process, tried).await
}

/// Hands on what comes to its end, piece by piece: each within the limit, and none before the one before it was taken.
async fn pieces(
    from: &mut (impl AsyncRead + Unpin),
    limit: Duration,
    mut take: impl AsyncFnMut(Vec<u8>),
) -> std::io::Result<()> {
    let mut buffer = vec![0; PIECE];
    loop {
        match piece(from, &mut buffer, limit).await? {
            0 => return Ok(()),
            n => take(buffer[..n].to_vec()).await,
        }
    }
}

/// Reads what has come, within the limit; nothing is the end.
pub(super) async fn piece(
    from: &mut (impl AsyncRead + Unpin),
    buffer: &mut [u8],
    limit: Duration,
) -> std::io::Result<usize> {
    let late = |_| std::io::Error::other(format!("nothing came for {} s", limit.as_secs()));
    tokio::time::timeout(limit, from.read(buffer)).await.map_err(late)?
}

pub(super) fn log_script(source: &'static str, cluster: &Cluster, id: &str, offset: u64) -> Script {
    Script::new(source).with("jobs_dir", &cluster.jobs_dir).with("id", id).with("offset", &offset.to_string())
}

/// Forwards a follower's bytes until it ends or no more are wanted, and reports whether its node answers.
async fn forward(i: usize, mut process: Process, sender: mpsc::Sender<News>, mut wanted: watch::Receiver<bool>) {
    let (mut buffer, mut pulse) = (vec![0; PIECE], [0; 64]);
    let mut enough = false;
    let (mut heard, mut is_silent, mut beats) = (Instant::now(), false, true);
    loop {
        let told = async { wanted.wait_for(|enough| *enough).await.is_ok() };
        let read = tokio::select! {
            // the time is looked at last: where this was held up, what has come meanwhile counts
            biased;
            read = process.stdout.read(&mut buffer) => read,
            beat = process.stderr.read(&mut pulse), if beats => {
                beats = matches!(beat, Ok(1..));
                heard = Instant::now();
                if beats && std::mem::take(&mut is_silent) && sender.send(News::Answers(i)).await.is_err() {
                    return;
                }
                continue;
            }
            _ = told, if !enough => {
                // the end of its standard input ends it, and what it has said by then still comes
                process.stdin = Box::pin(tokio::io::sink());
                enough = true;
                continue;
            }
            () = tokio::time::sleep_until(heard + SILENCE), if beats && !is_silent && !enough => {
                is_silent = true;
                if sender.send(News::Silent(i)).await.is_err() {
                    return;
                }
                continue;
            }
        };
        let news = match read {
            Ok(n @ 1..) => News::Bytes(i, buffer[..n].to_vec()),
            _ if enough => return,
            _ => News::Lost(i),
        };
        let lost = matches!(news, News::Lost(_));
        if sender.send(news).await.is_err() || lost {
            return;
        }
        heard = Instant::now();
    }
}

/// What a follower says first: by how many seconds the node's clock is ahead of ours. It is compared when the words
/// arrive, so that only the way back counts and not what starting a program took. Read byte by byte, so that nothing of the log
/// is taken.
async fn hello(process: &mut Process) -> std::io::Result<f64> {
    let mut line = Vec::new();
    let mut byte = [0];
    while process.stdout.read(&mut byte).await? == 1 && byte[0] != b'\n' && line.len() < 60 {
        line.push(byte[0]);
    }
    let time = String::from_utf8_lossy(&line).parse::<f64>();
    time.map(|time| time - now()).map_err(|_| std::io::Error::other("the follower did not start"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::io::AsyncWriteExt;

    #[tokio::test]
    async fn the_rest_of_a_log_waits_where_it_is_until_it_can_be_shown() {
        const LOG: usize = 32 << 20;
        let (mut node, mut here) = tokio::io::duplex(PIECE);
        let read = AtomicUsize::new(0);
        let says = async {
            for _ in 0..LOG / PIECE {
                node.write_all(&[b'x'; PIECE]).await.unwrap();
                read.fetch_add(PIECE, Ordering::Relaxed);
            }
            drop(node);
        };
        let (sender, mut receiver) = mpsc::channel(WAITING);
        let reads = async move {
            let take = async |piece: Vec<u8>| sender.send(piece).await.unwrap();
            pieces(&mut here, Duration::from_secs(600), take).await.unwrap();
        };
        let shows = async {
            let mut shown = 0;
            while let Some(piece) = receiver.recv().await {
                shown += piece.len();
                // all that can be on its way: in the stream, in the reader's hand, and waiting
                assert!(read.load(Ordering::Relaxed) <= shown + (WAITING + 2) * PIECE, "{shown}");
                tokio::task::yield_now().await;
            }
            shown
        };
        let ((), (), shown) = tokio::join!(says, reads, shows);
        assert_eq!(shown, LOG);
    }

    #[tokio::test]
    async fn a_log_that_stays_out_is_not_waited_for_for_ever() {
        let (_node, mut here) = tokio::io::duplex(PIECE);
        let error = pieces(&mut here, Duration::from_millis(20), async |_| {}).await.unwrap_err();
        assert!(error.to_string().contains("nothing came"), "{error}");
    }
}
