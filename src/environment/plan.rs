//! The plan for a virtualenv on a node, and the check that all nodes have the same one.

use super::probe::{EnvProbe, Packages, minor_version};
use crate::error::{Error, NodeError};
use crate::text::nodeset;
use std::collections::BTreeMap;

/// The earliest Python that hvdctl's own programs run with.
const OLDEST_PYTHON: (u32, u32) = (3, 7);

/// The hint on installing uv without root.
const GET_UV: &str = "install uv there, which needs no root: curl -LsSf https://astral.sh/uv/install.sh | sh";

/// The action for a virtualenv on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnvStep {
    /// Nothing: the node has the virtualenv.
    Keep,
    /// It is made.
    Make,
}

/// The virtualenv that is asked for.
#[derive(Debug, Clone, Copy)]
pub struct WantedEnv<'a> {
    /// Its directory on the node.
    pub directory: &'a str,
    /// The hash of what it is made of.
    pub hash: &'a str,
    /// The Python that was asked for; may be empty.
    pub python: &'a str,
}

impl WantedEnv<'_> {
    /// Decides what is done on a node.
    ///
    /// # Errors
    /// If the node cannot have it, with what is missing there.
    pub fn decide(&self, node: &str, probe: &EnvProbe) -> Result<EnvStep, NodeError> {
        let failed = |cause: String| NodeError::failed(node, "create the virtualenv", cause);
        if probe.is_foreign {
            let cause = format!("{} exists, but was not created by hvdctl", self.directory);
            return Err(failed(cause).hint("choose another name with --name, or remove it"));
        }
        if let (Some(made), Some(runs)) = (&probe.made, &probe.runs)
            && made.hash == self.hash
            && minor_version(runs) == minor_version(&made.python)
        {
            return Ok(EnvStep::Keep);
        }
        let Some((version, path)) = &probe.python else {
            return self.without_python(probe).map_err(|(cause, hint)| failed(cause).hint(hint));
        };
        if is_too_old(version) {
            let cause = format!("{path} there is Python {version}, but hvdctl needs 3.7 or later");
            return Err(failed(cause).hint(
                "name a later one with --python, or load one with `activate` in the inventory; uv installs any version",
            ));
        }
        match &probe.no_venv {
            Some(cause) if probe.uv.is_none() => {
                let cause = format!("{path} there cannot create virtualenvs: {cause}");
                let package = format!("python{}-venv", minor_version(version));
                let install = probe.distribution.install(&[&package]).filter(|command| command.starts_with("apt-get"));
                let install = install.map(|command| format!("{command} (as root); or ")).unwrap_or_default();
                Err(failed(cause).hint(install + GET_UV))
            }
            _ => Ok(EnvStep::Make),
        }
    }

    /// Decides for a node that has no such Python: its uv may install it.
    fn without_python(&self, probe: &EnvProbe) -> Result<EnvStep, (String, String)> {
        let is_version = self.python.starts_with(|c: char| c.is_ascii_digit());
        match (&probe.uv, self.python) {
            (Some(_), "") => Ok(EnvStep::Make),
            (Some(_), _) if is_version => Ok(EnvStep::Make),
            (_, "") => Err(("the user's PATH there has neither python3 nor uv".to_owned(), GET_UV.to_owned())),
            (_, asked) => {
                let what = if is_version { format!("Python {asked}") } else { asked.to_owned() };
                let hint = "name another one with --python, or load it with `activate` in the inventory";
                let hint =
                    if is_version { format!("{hint}; or {GET_UV}, and it installs Python") } else { hint.into() };
                Err((format!("the user's PATH there has no {what}"), hint))
            }
        }
    }
}

fn is_too_old(version: &str) -> bool {
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or_default());
    (parts.next().unwrap_or_default(), parts.next().unwrap_or_default()) < OLDEST_PYTHON
}

/// Returns the versions of Python that nodes have, if they differ. `nodes`: each with its version.
pub fn differing_pythons(nodes: &[(&str, &str)]) -> Option<String> {
    let by_version = nodeset::alike(nodes.iter().map(|(node, version)| (minor_version(version), *node)));
    let versions: Vec<String> =
        by_version.iter().map(|(version, nodes)| format!("{version} on {}", nodeset::fold(nodes))).collect();
    (versions.len() > 1).then(|| versions.join(", "))
}

/// Checks that all nodes would have the same version of Python. `nodes`: each with its version. Returns the version that
/// uv installs where there is none yet, if a node has one.
///
/// # Errors
/// If they would not: ranks exchange pickled objects, and wheels are for one version.
pub fn check_pythons<'a>(nodes: &[(&str, &'a str)]) -> Result<Option<&'a str>, Error> {
    let first = nodes.first().map(|(_, version)| minor_version(version));
    let Some((versions, first)) = differing_pythons(nodes).zip(first) else { return Ok(first) };
    let message = format!("the nodes would have different versions of Python: {versions}");
    Err(Error::check(
        format!("{message}\nnothing was changed"),
        format!("name one that all have, e.g. --python {first}, or load the same one with `activate` in the inventory"),
    ))
}

/// Returns in which packages nodes differ, a text each: a file without versions may give each node another one.
pub fn differences(nodes: &[(&str, &Packages)]) -> Vec<String> {
    let mut versions: BTreeMap<&str, Vec<(&str, &str)>> = BTreeMap::new();
    let names = nodes.iter().flat_map(|(_, packages)| packages.keys());
    for name in names {
        versions.entry(name).or_insert_with(|| {
            nodes.iter().map(|(node, packages)| (packages.get(name).map_or("none", String::as_str), *node)).collect()
        });
    }
    let rows = versions.into_iter().filter_map(|(name, versions)| {
        let alike = nodeset::alike(versions);
        let parts = alike.iter().map(|(version, nodes)| format!("{version} on {}", nodeset::fold(nodes)));
        (alike.len() > 1).then(|| format!("{name}: {}", parts.collect::<Vec<_>>().join(", ")))
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANTED: WantedEnv<'_> = WantedEnv { directory: "/s/env/default", hash: "h", python: "" };

    fn refusal(wanted: WantedEnv<'_>, text: &str) -> String {
        wanted.decide("n1", &EnvProbe::parse(text)).unwrap_err().to_string()
    }

    #[test]
    fn a_virtualenv_of_the_same_hash_whose_python_runs_stays() {
        let step = |text: &str| WANTED.decide("n1", &EnvProbe::parse(text)).unwrap();
        let python = "python 3.11.2 /usr/bin/python3\n";
        let made = "made hash h\nmade python 3.11.2\n";
        assert_eq!(step(&format!("{python}{made}runs 3.11.9\n")), EnvStep::Keep, "it was updated within its version");
        // without anything to make another one
        assert_eq!(step(&format!("{made}runs 3.11.2\n")), EnvStep::Keep);
        for other in ["made hash x\nmade python 3.11.2\nruns 3.11.2\n", made, &format!("{made}runs 3.12.0\n"), ""] {
            assert_eq!(step(&format!("{python}{other}")), EnvStep::Make, "{other}");
        }
    }

    #[test]
    fn uv_makes_one_without_a_python() {
        let uv = EnvProbe::parse("uv 0.13.9\n");
        let asked = |python| WantedEnv { python, ..WANTED }.decide("n1", &uv);
        assert_eq!((asked("").unwrap(), asked("3.12").unwrap()), (EnvStep::Make, EnvStep::Make));
        assert!(asked("/opt/python").is_err());
        let broken = "uv 0.13.9\npython 3.11.2 /usr/bin/python3\nno-venv No module named 'ensurepip'\n";
        assert_eq!(WANTED.decide("n1", &EnvProbe::parse(broken)).unwrap(), EnvStep::Make);
    }

    #[test]
    fn a_node_that_cannot_have_it_says_what_is_missing() {
        let is = |said: String, words: &[&str]| {
            words.iter().for_each(|words| assert!(said.contains(words), "{words:?} is not in {said}"));
        };
        is(
            refusal(WANTED, ""),
            &["n1: cannot create the virtualenv: the user's PATH there has neither python3 nor uv"],
        );
        let wanted = |python| WantedEnv { python, ..WANTED };
        is(refusal(wanted("3.12"), ""), &["has no Python 3.12\n", "--python", "it installs Python"]);
        is(refusal(wanted("/opt/py"), "uv 1\n"), &["has no /opt/py\n"]);
        is(refusal(WANTED, "python 3.6.8 /usr/bin/python3\n"), &["/usr/bin/python3 there is Python 3.6.8"]);
        is(refusal(WANTED, "python 2.7.18 /usr/bin/python\n"), &["Python 2.7.18, but hvdctl needs 3.7"]);
        let no_venv = "python 3.11.2 /usr/bin/python3\nno-venv ModuleNotFoundError: No module named 'ensurepip'\n";
        let said = refusal(WANTED, &format!("os debian \n{no_venv}"));
        is(
            said,
            &["No module named 'ensurepip'\n  hint: apt-get install python3.11-venv (as root); or install uv there"],
        );
        is(refusal(WANTED, no_venv), &["hint: install uv there"]);
        is(refusal(WANTED, &format!("os fedora \n{no_venv}")), &["hint: install uv there"]);
        is(refusal(WANTED, "foreign\n"), &["/s/env/default exists, but was not created by hvdctl", "--name"]);
    }

    #[test]
    fn nodes_with_different_versions_of_python_get_nothing() {
        assert_eq!(check_pythons(&[("n1", "3.11.2"), ("n2", "3.11.9")]).unwrap(), Some("3.11"));
        assert_eq!(check_pythons(&[]).unwrap(), None);
        let said = check_pythons(&[("n1", "3.11.2"), ("n2", "3.12.1"), ("n3", "3.11.4")]).unwrap_err().to_string();
        assert!(
            said.starts_with("the nodes would have different versions of Python: 3.11 on n[1,3], 3.12 on n2\n"),
            "{said}"
        );
        assert!(said.contains("--python 3.11"), "{said}");
    }

    #[test]
    fn packages_that_differ_are_named_with_their_nodes() {
        let packages = |all: &[(&str, &str)]| -> Packages {
            all.iter().map(|(name, version)| ((*name).to_owned(), (*version).to_owned())).collect()
        };
        let one = packages(&[("numpy", "1.26.4"), ("six", "1.17.0")]);
        let other = packages(&[("numpy", "2.0.1"), ("six", "1.17.0"), ("tqdm", "4.66")]);
        assert_eq!(differences(&[("n1", &one), ("n2", &one)]), [""; 0]);
        assert_eq!(
            differences(&[("n1", &one), ("n2", &other), ("n3", &one)]),
            ["numpy: 1.26.4 on n[1,3], 2.0.1 on n2", "tqdm: none on n[1,3], 4.66 on n2"]
        );
    }
}
