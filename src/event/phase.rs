//! The phases of commands.

use crate::text::units::count;
use std::fmt;

/// A phase of a command, which all its nodes are in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// `init` examines the machines.
    Probing,
    /// `doctor` observes the nodes.
    Observing,
    /// `doctor` examines what only it looks at.
    Examining,
    /// `doctor` tests connections between the nodes.
    TestingConnections,
    /// `verify` logs in from worker to worker.
    LoggingIn,
    /// `data push` reads a directory of this machine.
    Reading,
    /// An image is built on the first node.
    BuildingImage {
        /// Its name.
        image: String,
    },
    /// The nodes are prepared for a job.
    Preparing,
    /// The ranks of a job are started.
    StartingRanks {
        /// Number of ranks.
        ranks: u32,
    },
    /// A job runs.
    RunningJob {
        /// Its id.
        job: String,
    },
    /// Nodes are added to an elastic job.
    AddingNodes {
        /// Its id.
        job: String,
    },
    /// A job is stopped.
    StoppingJob {
        /// Its id.
        job: String,
    },
    /// `fetch` compares the outputs of a job with what is here.
    Comparing,
    /// `fetch` transfers them.
    Fetching,
    /// `bench` starts its program in the workers.
    StartingMeasurement,
    /// `bench` measures processors.
    MeasuringProcessors,
    /// `bench` measures connections.
    MeasuringConnections {
        /// The number of the round, from 1 on.
        round: usize,
        /// Number of rounds.
        rounds: usize,
    },
    /// `bench` measures connections that look slow again.
    MeasuringAgain {
        /// Number of connections.
        connections: usize,
    },
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Phase::Probing => f.write_str("probing"),
            Phase::Observing => f.write_str("observing the nodes"),
            Phase::Examining => f.write_str("examining the nodes"),
            Phase::TestingConnections => f.write_str("testing connections"),
            Phase::LoggingIn => f.write_str("logging in from worker to worker"),
            Phase::Reading => f.write_str("reading"),
            Phase::BuildingImage { image } => write!(f, "building {image}"),
            Phase::Preparing => f.write_str("preparing"),
            Phase::StartingRanks { ranks } => write!(f, "starting {}", count(*ranks as usize, "rank")),
            Phase::RunningJob { job } => write!(f, "job {job} is running"),
            Phase::AddingNodes { job } => write!(f, "adding nodes to job {job}"),
            Phase::StoppingJob { job } => write!(f, "stopping the job {job}"),
            Phase::Comparing => f.write_str("comparing"),
            Phase::Fetching => f.write_str("fetching"),
            Phase::StartingMeasurement => f.write_str("starting the measurement in the workers"),
            Phase::MeasuringProcessors => f.write_str("measuring processors"),
            Phase::MeasuringConnections { round, rounds } => {
                write!(f, "measuring connections, round {round} of {rounds}")
            }
            Phase::MeasuringAgain { connections } => write!(f, "measuring {} again", count(*connections, "connection")),
        }
    }
}
