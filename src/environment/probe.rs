//! The state of a node for a virtualenv, as `env/probe.sh` and `env/create.sh` print it.

use crate::text::packages::Distribution;
use std::collections::{BTreeMap, BTreeSet};

/// The packages of a virtualenv, each with its version.
pub type Packages = BTreeMap<String, String>;

/// A virtualenv that is complete.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MadeEnv {
    /// The hash of what was asked for.
    pub hash: String,
    /// The version of its Python.
    pub python: String,
    /// The installer of the packages, with its version.
    pub tool: String,
    /// The hash of the names and versions of its packages.
    pub content: String,
    /// Its size in bytes.
    pub size: u64,
    /// When it was made, in seconds since the epoch.
    pub time: u64,
    /// The file that it was made from, with its machine.
    pub source: String,
}

impl MadeEnv {
    /// Takes a line `KEY VALUE`. Returns false if it is none of a virtualenv's.
    pub fn take(&mut self, key: &str, value: &str) -> bool {
        let number = || value.parse().unwrap_or_default();
        match key {
            "hash" => value.clone_into(&mut self.hash),
            "python" => value.clone_into(&mut self.python),
            "tool" => value.clone_into(&mut self.tool),
            "content" => value.clone_into(&mut self.content),
            "source" => value.clone_into(&mut self.source),
            "size" => self.size = number(),
            "time" => self.time = number(),
            _ => return false,
        }
        true
    }
}

/// The state of a node before a virtualenv is made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EnvProbe {
    /// The version of its uv.
    pub uv: Option<String>,
    /// The version and the path of the Python that was asked for.
    pub python: Option<(String, String)>,
    /// The reason why that Python makes no virtualenv.
    pub no_venv: Option<String>,
    /// The node's distribution.
    pub distribution: Distribution,
    /// Set if something else has the place of the virtualenv.
    pub is_foreign: bool,
    /// The virtualenv, if it is complete.
    pub made: Option<MadeEnv>,
    /// The version that its Python says.
    pub runs: Option<String>,
    /// Its packages.
    pub packages: Packages,
    /// The wheels that were sent to the node before: `SHA-256/FILE`.
    pub wheels: BTreeSet<String>,
}

impl EnvProbe {
    /// Reads what the script has printed.
    pub fn parse(text: &str) -> EnvProbe {
        let mut probe = EnvProbe::default();
        for line in text.lines() {
            let (key, value) = line.split_once(' ').unwrap_or((line, ""));
            let pair = || value.split_once(' ').map(|(one, other)| (one.to_owned(), other.to_owned()));
            match key {
                "uv" => probe.uv = Some(value.to_owned()),
                "python" => probe.python = pair(),
                "no-venv" => probe.no_venv = Some(value.to_owned()),
                "os" => probe.distribution = Distribution::parse(value),
                "foreign" => probe.is_foreign = true,
                "runs" => probe.runs = Some(value.to_owned()),
                "package" => probe.packages.extend(pair()),
                "wheel" => drop(probe.wheels.insert(value.to_owned())),
                "made" => {
                    if let Some((key, value)) = pair() {
                        probe.made.get_or_insert_default().take(&key, &value);
                    }
                }
                _ => {}
            }
        }
        probe
    }
}

/// Returns `3.11` for `3.11.7`.
pub fn minor_version(version: &str) -> &str {
    version.match_indices('.').nth(1).map_or(version, |(at, _)| &version[..at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_of_the_script_are_read() {
        let probe = EnvProbe::parse(
            "os ubuntu debian\nuv 0.13.9\npython 3.11.7 /opt/a python/bin/python3\nno-venv No module named 'ensurepip'\n\
             foreign\nmade hash 1f0c\nmade python 3.11.6\nmade tool pip 23.2.1\nmade size 1024\nmade time 7\n\
             made source ana@desk:/r.txt\nmade content 77\npackage six 1.17.0\nruns 3.11.7\n\
             wheel 00ff/six-1-py3-none-any.whl\nodd\n",
        );
        assert_eq!(probe.uv.as_deref(), Some("0.13.9"));
        assert_eq!(probe.python, Some(("3.11.7".into(), "/opt/a python/bin/python3".into())));
        assert_eq!(probe.no_venv.as_deref(), Some("No module named 'ensurepip'"));
        assert_eq!(probe.distribution, Distribution::parse("ubuntu debian"));
        let made = probe.made.unwrap();
        assert_eq!((made.hash.as_str(), made.python.as_str(), made.tool.as_str()), ("1f0c", "3.11.6", "pip 23.2.1"));
        assert_eq!((made.size, made.time, made.source.as_str()), (1024, 7, "ana@desk:/r.txt"));
        assert_eq!((probe.is_foreign, probe.runs.as_deref()), (true, Some("3.11.7")));
        assert_eq!(probe.packages["six"], "1.17.0");
        assert!(probe.wheels.contains("00ff/six-1-py3-none-any.whl"));
        assert_eq!(EnvProbe::parse(""), EnvProbe::default());
        assert_eq!(["3.11.7", "3.11", "3", ""].map(minor_version), ["3.11", "3.11", "3", ""]);
    }
}
