//! Virtualenvs on a scripted node.

use super::scripts::variable;
use super::state::NodeState;
use super::{Node, Own};
use std::collections::{BTreeMap, BTreeSet};
use tokio::io::AsyncReadExt;

/// The state of a node's virtualenvs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envs {
    /// The output of `env/probe.sh` about Python and uv.
    pub tools: String,
    /// The packages that are installed, whatever is asked for.
    pub packages: String,
    /// The error output of pip or uv, if they fail.
    pub failure: Option<String>,
    /// The virtualenvs by their names: the lines of `hvdctl.env`.
    pub made: BTreeMap<String, String>,
    /// The wheels that were sent for each: `SHA-256/FILE`.
    pub wheels: BTreeMap<String, BTreeSet<String>>,
    /// The reason why no virtualenv is removed, if any.
    pub used: Option<String>,
    /// The latest Python that its uv knows.
    pub latest: String,
    /// The lines of `activate` that came last.
    pub activated: String,
}

impl Default for Envs {
    fn default() -> Envs {
        Envs {
            tools: "os debian \nuv 0.9.1\npython 3.11.2 /usr/bin/python3\n".into(),
            packages: "six 1.17.0\n".into(),
            failure: None,
            made: BTreeMap::new(),
            wheels: BTreeMap::new(),
            used: None,
            latest: "3.13.1".into(),
            activated: String::new(),
        }
    }
}

/// Puts a text before each line.
fn each_line(prefix: &str, text: &str) -> String {
    text.lines().map(|line| format!("{prefix}{line}\n")).collect()
}

impl Node {
    /// Receives wheels as `env/wheels.sh`.
    pub(super) async fn take_wheels(&self, script: &str, mut own: Own) -> i32 {
        if let Some(words) = self.arrives("env/wheels.sh").await {
            return own.fail(&words).await;
        }
        let mut bytes = Vec::new();
        let _ = own.stdin.read_to_end(&mut bytes).await;
        let mut archive = tar::Archive::new(bytes.as_slice());
        let entries = archive.entries().expect("a tar stream");
        let names: Vec<String> =
            entries.map(|entry| entry.expect("an entry").path().expect("a path").display().to_string()).collect();
        self.edit(|state| state.envs.wheels.entry(variable(script, "name")).or_default().extend(names));
        self.ends("env/wheels.sh").await;
        0
    }
}

impl NodeState {
    /// Returns the output of `env/probe.sh`.
    pub(super) fn probe_env(&mut self, text: &str) -> String {
        self.envs.activated = variable(text, "activate");
        let (envs, name) = (&self.envs, variable(text, "name"));
        let wheels = envs.wheels.get(&name).into_iter().flatten().map(|wheel| format!("wheel {wheel}\n"));
        let made = envs.made.get(&name).map(|made| {
            let python = made.lines().find_map(|line| line.strip_prefix("python ")).unwrap_or_default();
            format!("{}{}runs {python}\n", each_line("made ", made), each_line("package ", &envs.packages))
        });
        format!("{}{}{}", envs.tools, made.unwrap_or_default(), wheels.collect::<String>())
    }

    /// Makes a virtualenv, unless pip or uv fails there.
    pub(super) fn create_env(&mut self, text: &str, now: u64) -> Result<String, (i32, String)> {
        let envs = &mut self.envs;
        if let Some(words) = &envs.failure {
            return Err((4, words.clone()));
        }
        let of = |key: &str| envs.tools.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default().to_owned();
        let (python, uv) = (of("python "), of("uv "));
        let tool = if uv.is_empty() { "pip 23.2.1".to_owned() } else { format!("uv {uv}") };
        // uv installs one where there is none: the latest that it knows
        let asked = variable(&variable(text, "install"), "python");
        let installed = if asked.is_empty() { envs.latest.clone() } else { format!("{asked}.1") };
        let python = python.split(' ').next().filter(|python| !python.is_empty()).unwrap_or(&installed);
        let made = format!(
            "tool {tool}\nhash {}\npython {python}\ncontent {}\nsize 2048\ntime {now}\nsource {}\n",
            variable(text, "hash"),
            envs.packages.len(),
            variable(text, "source")
        );
        let packages = each_line("hvdctl: package ", &envs.packages);
        let said =
            format!("hvdctl: step installing packages\nResolved\n{}{packages}", each_line("hvdctl: made ", &made));
        envs.made.insert(variable(text, "name"), made);
        Ok(said)
    }

    /// Returns the output of `env/list.sh`.
    pub(super) fn list_envs(&self, now: u64) -> String {
        let list = |(name, made): (&String, &String)| format!("env {name} complete\n{made}now {now}\n");
        self.envs.made.iter().map(list).collect()
    }

    /// Removes a virtualenv.
    pub(super) fn remove_env(&mut self, text: &str) -> Result<String, (i32, String)> {
        match (&self.envs.used, self.envs.made.remove(&variable(text, "name"))) {
            (Some(words), _) => Err((5, words.clone())),
            (None, Some(_)) => Ok("removed\n".into()),
            (None, None) => Ok(String::new()),
        }
    }
}
