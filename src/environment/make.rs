//! Makes a virtualenv on a node.

use super::EnvPlace;
use super::plan::{EnvStep, WantedEnv};
use super::probe::{EnvProbe, MadeEnv, Packages};
use super::source::PackageSource;
use super::wheels::WheelSet;
use crate::cluster::cancellation::Cancellation;
use crate::error::{ErrorKind, NodeError};
use crate::event::{Events, Step, StepScope};
use crate::inventory::Node;
use crate::text::failure::{self, InstallFailure};
use crate::text::units::span;
use crate::transport::node::{Output, Script, Transport};
use std::collections::VecDeque;
use std::pin::pin;
use std::time::Duration;
use tokio::time::{sleep, timeout};

const PROBE: &str = concat!(
    include_str!("../scripts/node/close.sh"),
    include_str!("../scripts/node/permissions.sh"),
    include_str!("../scripts/env/common.sh"),
    include_str!("../scripts/env/activate.sh"),
    include_str!("../scripts/env/python.sh"),
    include_str!("../scripts/env/probe.sh")
);
const INSTALL: &str = concat!(
    include_str!("../scripts/node/close.sh"),
    include_str!("../scripts/node/permissions.sh"),
    include_str!("../scripts/env/common.sh"),
    include_str!("../scripts/env/activate.sh"),
    include_str!("../scripts/env/python.sh"),
    include_str!("../scripts/env/install.sh")
);
const CREATE: &str = concat!(
    include_str!("../scripts/node/close.sh"),
    include_str!("../scripts/node/permissions.sh"),
    include_str!("../scripts/node/marked.sh"),
    include_str!("../scripts/env/common.sh"),
    include_str!("../scripts/env/activate.sh"),
    include_str!("../scripts/env/change.sh"),
    include_str!("../scripts/env/create.sh")
);

/// The prefix of the lines of `env/create.sh` that are not pip's or uv's.
const OWN: &str = "hvdctl: ";

/// The exit code of `env/create.sh` where pip or uv failed.
const INSTALL_FAILED: i32 = 4;

/// The number of the last lines of pip or uv that are searched for the cause, and of those that an error shows.
const SEARCHED_LINES: usize = 60;
const SHOWN_LINES: usize = 10;

/// The time that a node may take to stop the installer, which gets 5 s after SIGTERM, and to remove what it has left.
const END_LIMIT: Duration = Duration::from_secs(30);

/// The virtualenv of a command, as all nodes are to have it.
#[derive(Clone, Copy)]
pub struct EnvRequest<'a> {
    /// Its place on the nodes.
    pub place: &'a EnvPlace,
    /// Its name.
    pub name: &'a str,
    /// The Python that was asked for; may be empty.
    pub python: &'a str,
    /// The packages that it gets.
    pub source: &'a PackageSource,
    /// The wheels that nodes get; nothing is downloaded if there are some.
    pub wheels: &'a WheelSet,
    /// The hash of all that.
    pub hash: &'a str,
    /// The time that a node may take; `None`: no limit.
    pub limit: Option<Duration>,
}

/// A node's virtualenv after the command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GivenEnv {
    /// Set if it was made.
    pub is_new: bool,
    /// The virtualenv as the node describes it.
    pub made: MadeEnv,
    /// Its packages.
    pub packages: Packages,
    /// The bytes of the wheels that were sent.
    pub sent: u64,
}

/// A reader of the lines of `env/create.sh`.
struct EnvLines<'a> {
    node: &'a str,
    events: &'a Events,
    step: Option<StepScope>,
    last: VecDeque<String>,
    made: MadeEnv,
    packages: Packages,
}

impl EnvLines<'_> {
    fn take(&mut self, line: &str) {
        let Some(own) = line.strip_prefix(OWN) else {
            // uv says first which Python it uses
            if !line.trim().is_empty() && !line.starts_with("Using ") {
                self.last.push_back(line.trim_end().to_owned());
                if self.last.len() > SEARCHED_LINES {
                    self.last.pop_front();
                }
            }
            return;
        };
        let (key, value) = own.split_once(' ').unwrap_or((own, ""));
        let pair = value.split_once(' ');
        match (key, pair) {
            ("step", _) => {
                // the one before ends first
                self.step = None;
                self.step = Some(self.events.begin(self.node, Step::write(value.to_owned())));
                self.last.clear();
            }
            ("made", Some((key, value))) => drop(self.made.take(key, value)),
            ("package", Some((name, version))) => drop(self.packages.insert(name.to_owned(), version.to_owned())),
            _ => {}
        }
    }
}

impl EnvRequest<'_> {
    /// Finds out what a node has for the virtualenv.
    ///
    /// # Errors
    /// If the node does not answer.
    pub async fn probe(&self, node: &Node, transport: &Transport) -> Result<EnvProbe, NodeError> {
        let script = Script::new(PROBE).with("state_dir", &self.place.state_dir).with("name", self.name);
        let script = script.with("python", self.python).with("activate", &self.place.activation_before(node));
        let printed = transport.script_as_login(&script, "find Python and uv").await?;
        Ok(EnvProbe::parse(&String::from_utf8_lossy(&printed)))
    }

    /// Decides what is done on a node.
    ///
    /// # Errors
    /// As [`WantedEnv::decide`].
    pub fn decide(&self, node: &str, probe: &EnvProbe) -> Result<EnvStep, NodeError> {
        let directory = self.place.directory(self.name);
        WantedEnv { directory: &directory, hash: self.hash, python: self.python }.decide(node, probe)
    }

    /// Gives a node the virtualenv. When the command is cancelled, what installs packages ends on the node, and the
    /// result is `None`.
    ///
    /// # Errors
    /// If pip or uv fails, or the time is over.
    pub async fn give(
        &self,
        (step, probe): (EnvStep, EnvProbe),
        (node, transport): (&Node, &Transport),
        cancellation: &Cancellation,
        events: &Events,
    ) -> Result<Option<GivenEnv>, NodeError> {
        if let (EnvStep::Keep, Some(made)) = (step, probe.made) {
            return Ok(Some(GivenEnv { is_new: false, made, packages: probe.packages, sent: 0 }));
        }
        let sending = self.wheels.send(self.place, self.name, &probe.wheels, transport, events);
        let sent = tokio::select! {
            sent = sending => sent?,
            _ = cancellation.cancelled() => return Ok(None),
        };
        let made = self.make((node, transport), cancellation, events).await?;
        Ok(made.map(|given| GivenEnv { sent, ..given }))
    }

    fn script(&self, node: &Node) -> Script {
        let wheels = self.wheels.lines();
        let install = Script::new(INSTALL)
            .with("state_dir", &self.place.state_dir)
            .with("activate", &self.place.activation_before(node))
            .with("python", self.python)
            .with("name", self.name)
            .with("form", self.source.form.name())
            .with("requirements", &self.source.text)
            .with("constraints", &self.source.constraints)
            .with("wheels", wheels.trim_end())
            .with("exact", if self.source.is_exact { "1" } else { "" });
        Script::new(CREATE)
            .with("state_dir", &self.place.state_dir)
            .with("name", self.name)
            .with("activate", &self.place.activation_before(node))
            .with("hash", self.hash)
            .with("source", &self.source.origin.replace('\n', "?"))
            .with("install", &install.whole())
    }

    /// Makes the virtualenv. The program on the node goes on as long as its standard input is open.
    async fn make(
        &self,
        (node, transport): (&Node, &Transport),
        cancellation: &Cancellation,
        events: &Events,
    ) -> Result<Option<GivenEnv>, NodeError> {
        let operation = format!("create the virtualenv {}", self.name);
        let mut process = transport.follow_as_login(&self.script(node), &operation).await?;
        let stdin = process.take_stdin();
        let mut lines = EnvLines {
            node: transport.node(),
            events,
            step: None,
            last: VecDeque::new(),
            made: MadeEnv::default(),
            packages: Packages::new(),
        };
        let ended = {
            let mut reading = pin!(process.lines(&[], |line| lines.take(line)));
            let over = sleep(self.limit.unwrap_or(Duration::MAX));
            let stopped = tokio::select! {
                ended = &mut reading => Ok(ended),
                () = over => Err(true),
                _ = cancellation.cancelled() => Err(false),
            };
            match stopped {
                Ok(ended) => Ok(ended),
                Err(is_late) => {
                    drop(stdin);
                    let _ = timeout(END_LIMIT, reading).await;
                    Err(is_late)
                }
            }
        };
        let EnvLines { last, made, packages, .. } = lines;
        match ended {
            Ok(Ok(output)) => self
                .check(output, &last, transport, &operation)
                .map(|()| Some(GivenEnv { is_new: true, made, packages, sent: 0 })),
            Ok(Err(error)) => Err(transport.broken(&operation, &error)),
            Err(true) => Err(self.late(&last, transport.node(), &operation)),
            Err(false) => Ok(None),
        }
    }

    fn late(&self, last: &VecDeque<String>, node: &str, operation: &str) -> NodeError {
        let limit = span(self.limit.unwrap_or_default());
        let last = last.back().map(|line| format!("; its last line was:\n{line}")).unwrap_or_default();
        let cause = format!("pip or uv did not finish within {limit} and was stopped{last}");
        NodeError::failed(node, operation, cause)
            .kind(ErrorKind::TimedOut)
            .hint("raise --timeout; what the node has downloaded is not downloaded again")
    }

    fn check(
        &self,
        output: Output,
        last: &VecDeque<String>,
        transport: &Transport,
        operation: &str,
    ) -> Result<(), NodeError> {
        if output.code != INSTALL_FAILED {
            return transport.succeeded(output, operation).map(drop).map_err(|error| self.explained(error, ""));
        }
        let all = last.iter().map(String::as_str).collect::<Vec<_>>();
        let shown = all[all.len().saturating_sub(SHOWN_LINES)..].join("\n");
        let cause = if shown.is_empty() { output.complaint() } else { shown };
        let cause = if cause.trim().is_empty() { "pip or uv failed and printed nothing".into() } else { cause };
        let error = NodeError::failed(transport.node(), operation, cause);
        Err(self.explained(error.kind(ErrorKind::CommandFailed { status: INSTALL_FAILED }), &all.join("\n")))
    }

    /// Adds the next step to an error, by what pip or uv has printed.
    fn explained(&self, error: NodeError, printed: &str) -> NodeError {
        let text = format!("{}\n{printed}", error.message);
        let Some(failure) = failure::installer(&text) else { return error };
        let only_wheels = !self.wheels.files.is_empty();
        let hint = match failure {
            InstallFailure::NoSpace => {
                let hint = format!("free space in {}, or set cluster.state_dir to another disk", self.place.state_dir);
                return error.kind(ErrorKind::NoSpace).hint(hint);
            }
            InstallFailure::NoNetwork => {
                "the node cannot reach the package index: set HTTPS_PROXY or PIP_INDEX_URL and UV_INDEX_URL for the \
                 user there; or send wheels from here: python3 -m pip download -d wheels -r FILE, then --wheels wheels"
            }
            InstallFailure::Untrusted => {
                "the node does not trust the certificate of the package index or its proxy: set SSL_CERT_FILE for the \
                 user there, or UV_SYSTEM_CERTS=1 for uv"
            }
            InstallFailure::NoPython => {
                "the node cannot download Python: name one that it has with --python, or set UV_PYTHON_INSTALL_MIRROR \
                 for the user there"
            }
            InstallFailure::WrongPython => "name another version with --python, e.g. --python 3.12",
            InstallFailure::WrongHash => "regenerate the file: its hashes differ from those of the downloaded packages",
            InstallFailure::NoWheel if only_wheels => {
                "download the wheels for the nodes' Python and platform: python3 -m pip download -d wheels -r FILE \
                 --only-binary :all: --python-version 3.11 --platform manylinux_2_28_x86_64"
            }
            InstallFailure::NoMatch if only_wheels => {
                "the directory of --wheels must have every package, including dependencies: python3 -m pip download -d \
                 wheels -r FILE"
            }
            InstallFailure::NoWheel => {
                "the package is not available for this Python or platform: choose another version"
            }
            InstallFailure::NoMatch => {
                "check the names and versions in the file; a package of another index needs --extra-index-url in it"
            }
            InstallFailure::NotBuilt => {
                "the package has no wheel for this Python, and the node cannot build it: choose a version with a \
                 wheel, build one elsewhere and send it with --wheels, or load a compiler with `activate`"
            }
            InstallFailure::OldPip => {
                "install uv on the node, or export a requirements file: uv export -o requirements.txt"
            }
        };
        error.hint(hint)
    }
}
