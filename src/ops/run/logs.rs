//! What the ranks of a run have said, and say.

use super::follow::{Follow, PIECE, READ, log_script, piece};
use super::{Show, signalled};
use crate::core::frames::{Frame, Kind, Parser};
use crate::core::inventory::Cluster;
use crate::core::logs::{Filter, Merge};
use crate::core::tails::Tails;
use crate::edge::docker::Engine;
use crate::error::{Error, NodeError};
use crate::event::{Event, Events};
use crate::ops::fleet::Member;
use std::collections::VecDeque;
use tokio::sync::mpsc::{self, Receiver};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Tells what all nodes' logs hold by now, in the order of time, the last `tail` lines where that is given; and how many bytes of
/// each that was; `tails` takes note of all. Only what the terminal has not taken yet is held in memory.
///
/// # Errors
/// When a node does not answer.
pub async fn history(
    cluster: &Cluster,
    id: &str,
    members: &[Member],
    (filter, tail): (&Filter, Option<usize>),
    tails: &mut Tails,
    events: &Events,
) -> Result<Vec<u64>, Error> {
    let mut tasks = JoinSet::new();
    let mut logs: Vec<Receiver<Vec<Frame>>> = Vec::new();
    for (i, member) in members.iter().enumerate() {
        let (sender, receiver) = mpsc::channel(4);
        let script = log_script(READ, cluster, id, 0);
        let member = member.clone();
        let filter = filter.clone();
        logs.push(receiver);
        tasks.spawn(async move {
            let tried = "read the run's log";
            let mut process = member.link.follow(&script, tried).await?;
            let (mut parser, mut buffer, mut bytes) = (Parser::default(), vec![0; PIECE], 0);
            loop {
                let read = piece(&mut process.stdout, &mut buffer, member.link.limit()).await;
                let read = read.map_err(|e| NodeError::failed(&member.node.name, tried, e))?;
                if read == 0 {
                    break;
                }
                bytes += read as u64;
                let frames: Vec<Frame> = parser.push(&buffer[..read]).into_iter().filter(|f| filter.takes(f)).collect();
                if !frames.is_empty() && sender.send(frames).await.is_err() {
                    break;
                }
            }
            // a connection that broke looks like the end of the log, but for the exit code
            member.link.ended(process, tried).await?;
            Ok::<_, NodeError>((i, bytes - parser.waiting() as u64))
        });
    }
    let mut merge = Merge::of(members.len());
    let mut last = VecDeque::new();
    loop {
        while let Some(i) = merge.wants() {
            match logs[i].recv().await {
                Some(frames) => merge.push(i, frames),
                None => merge.close(i),
            }
        }
        let Some((i, frame)) = merge.take() else { break };
        tails.see(&frame);
        match tail {
            Some(0) => {}
            Some(lines) => {
                if last.len() == lines {
                    last.pop_front();
                }
                last.push_back((i, frame));
            }
            None => {
                tell(&members[i], frame, events);
                events.room().await;
            }
        }
    }
    for (i, frame) in last {
        tell(&members[i], frame, events);
        events.room().await;
    }
    let mut offsets = vec![0; members.len()];
    while let Some(ended) = tasks.join_next().await {
        let (i, bytes) = ended.map_err(|e| Error::Here(format!("could not read the logs: {e}")))??;
        offsets[i] = bytes;
    }
    Ok(offsets)
}

/// Tells what comes after that, until the launcher's container has ended.
///
/// # Errors
/// When the way to the launcher's node breaks; a signal.
pub async fn follow(
    cluster: &Cluster,
    id: &str,
    (members, offsets): (&[Member], Vec<u64>),
    (engine, container): (&Engine, &str),
    filter: &Filter,
    events: &Events,
    cancel: &mut watch::Receiver<Option<u8>>,
) -> Result<(), Error> {
    let show = Show { output: false, launcher: false };
    let mut follow = Follow::start(cluster, id, (members, offsets), show, events).await?;
    let mut on_frame = |node: &str, frame: &Frame| {
        if let Some(member) = members.iter().find(|m| m.node.name == node).filter(|_| filter.takes(frame)) {
            tell(member, frame.clone(), events);
        }
    };
    let mut ended = std::pin::pin!(engine.wait(container));
    let mut signal = std::pin::pin!(signalled(cancel));
    loop {
        tokio::select! {
            code = &mut ended => { code?; break }
            () = follow.overdue() => break,
            number = &mut signal => return Err(Error::Signal(number)),
            () = follow.next(&mut on_frame) => {}
        }
    }
    follow.drain(cluster, id, members, &mut on_frame).await;
    Ok(())
}

fn tell(member: &Member, frame: Frame, events: &Events) {
    let (stderr, line) = match frame.kind {
        Kind::Stdout(line) => (false, line),
        Kind::Stderr(line) => (true, line),
        _ => return,
    };
    events.send(Event::Output { rank: frame.rank, node: member.node.name.clone(), stderr, line });
}
