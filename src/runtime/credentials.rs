//! The operator's logins to registries: what `docker login` has stored on this machine, in Docker's `config.json` or by
//! the programs that it names (`docker-credential-…`).

use crate::secret::Secret;
use crate::text::nodeset::printable;
use base64::Engine as _;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::time::timeout;
use zeroize::Zeroizing;

/// Docker's name for its own registry in `config.json`.
const HUB: &str = "https://index.docker.io/v1/";

/// Other names of that registry.
const HUB_HOSTS: [&str; 3] = ["docker.io", "index.docker.io", "registry-1.docker.io"];

/// The user's name in the answer of a credential helper whose secret is a token.
const TOKEN: &str = "<token>";

/// Time limit for a credential helper, which may ask for a passphrase.
const HELPER_LIMIT: Duration = Duration::from_secs(60);

/// The credentials that a registry is sent. They are never stored on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credentials {
    /// A user's password, or a token that is used as one.
    Password {
        /// The user.
        user: String,
        /// The password.
        password: Secret,
    },
    /// A token by which the engine gets others.
    IdentityToken(Secret),
    /// A token that is sent as it is.
    RegistryToken(Secret),
}

/// The operator's login to the registry of an image.
#[derive(Debug, Clone, Default)]
pub struct RegistryLogin {
    /// The registry, by the name that `config.json` has.
    pub registry: String,
    /// The credentials that it is sent; `None` without a login.
    pub credentials: Option<Credentials>,
    /// The reason why it is unknown whether there is a login, if it is.
    pub fault: Option<String>,
    /// The owner of the nodes that do not get it, because it is for others.
    pub withheld_from: Option<String>,
}

/// The part of `config.json` that concerns logins.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct DockerConfig {
    auths: BTreeMap<String, StoredLogin>,
    creds_store: Option<String>,
    cred_helpers: BTreeMap<String, String>,
}

/// A login in `config.json`, which is empty where a program keeps it.
#[derive(Default, Deserialize)]
#[serde(default)]
struct StoredLogin {
    auth: String,
    username: String,
    password: String,
    identitytoken: String,
    registrytoken: String,
}

/// The answer of a program.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    username: String,
    secret: String,
}

impl RegistryLogin {
    /// Finds the login for an image.
    pub async fn find(image: &str) -> RegistryLogin {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let registry = registry(image).to_owned();
        let found = match directory() {
            Some(directory) => find(&directory, &path, &registry).await,
            None => Ok(None),
        };
        match found {
            Ok(credentials) => RegistryLogin { registry, credentials, ..RegistryLogin::default() },
            Err(fault) => RegistryLogin { registry, fault: Some(fault), ..RegistryLogin::default() },
        }
    }

    /// Returns what a node gets of it: nothing secret if it is another owner's (`of_another`).
    pub fn for_node(&self, of_another: Option<&str>) -> RegistryLogin {
        match of_another {
            None => self.clone(),
            Some(owner) => RegistryLogin {
                registry: self.registry.clone(),
                withheld_from: Some(owner.to_owned()),
                ..RegistryLogin::default()
            },
        }
    }

    /// Returns the registry's host for messages.
    pub fn host(&self) -> &str {
        if matches!(self.registry.as_str(), HUB | "") { "docker.io" } else { &self.registry }
    }

    /// Returns the command by which the operator logs in to the registry.
    pub fn command(&self) -> String {
        match self.registry.as_str() {
            HUB | "" => "docker login".to_owned(),
            // the password is an API key
            "nvcr.io" => "docker login nvcr.io -u '$oauthtoken'".to_owned(),
            // valid for 12 hours
            host if host.ends_with(".amazonaws.com") => {
                format!("aws ecr get-login-password | docker login -u AWS --password-stdin {host}")
            }
            host => format!("docker login {host}"),
        }
    }

    /// Returns the next step after the registry has refused the image.
    pub fn hint(&self) -> String {
        let login = self.command();
        if let Some(owner) = &self.withheld_from {
            return format!(
                "your login to the registry is not sent to nodes of {owner}: pull = \"peers\" in [cluster] copies the \
                 image from another node or from this machine"
            );
        }
        match (&self.credentials, &self.fault) {
            (_, Some(fault)) => format!("no login was sent, because {fault}: `{login}` on this machine"),
            (Some(_), None) => format!(
                "this machine's login was sent; renew it by `{login}` here if it has expired. A registry refuses an \
                 image that it does \
                 not have in the same way"
            ),
            (None, None) => format!(
                "this machine has no login for the registry: `{login}` here. A registry refuses an image that it does \
                 not have in \
                 the same way"
            ),
        }
    }
}

/// Returns the directory of `config.json`.
#[cfg(not(test))]
fn directory() -> Option<PathBuf> {
    let named = |variable| std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    named("DOCKER_CONFIG").or_else(|| Some(named("HOME")?.join(".docker")))
}

#[cfg(test)]
thread_local! {
    /// The directory of `config.json` in a test, which has no login without it.
    pub static DIRECTORY: std::cell::RefCell<Option<PathBuf>> = const { std::cell::RefCell::new(None) };
}

#[cfg(test)]
fn directory() -> Option<PathBuf> {
    DIRECTORY.with_borrow(Clone::clone)
}

/// Returns the registry of an image, as `config.json` names it.
fn registry(image: &str) -> &str {
    match image.split_once('/') {
        Some((host, _)) if HUB_HOSTS.contains(&host) => HUB,
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" => host,
        _ => HUB,
    }
}

/// Returns whether a name in `config.json` is that of this registry: with a scheme and a path, as earlier versions of
/// Docker wrote it.
fn is_named(name: &str, registry: &str) -> bool {
    let host = name.split_once("://").map_or(name, |(_, rest)| rest).split('/').next().unwrap_or_default();
    name == registry || host == registry || registry == HUB && HUB_HOSTS.contains(&host)
}

/// Finds the credentials for a registry. `directory`: that of `config.json`; `path`: where programs are looked for.
///
/// # Errors
/// Returns why it is unknown whether there are any. The text contains no secret.
async fn find(directory: &Path, path: &OsStr, registry: &str) -> Result<Option<Credentials>, String> {
    let file = directory.join("config.json");
    let text = match fs::read(&file) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
        text => Zeroizing::new(text.map_err(|error| format!("{} cannot be read: {error}", file.display()))?),
    };
    // the parser's message may have a password in it
    let DockerConfig { auths, creds_store, cred_helpers } = serde_json::from_slice(&text).map_err(|error| {
        format!("{} is not in Docker's format (line {}, column {})", file.display(), error.line(), error.column())
    })?;
    let helper = cred_helpers.into_iter().find(|(name, _)| is_named(name, registry)).map(|(_, helper)| helper);
    if let Some(helper) = helper.or(creds_store).filter(|helper| !helper.is_empty()) {
        let answer = ask(&helper, path, registry).await.map_err(|why| format!("docker-credential-{helper} {why}"))?;
        if answer.is_some() {
            return Ok(answer);
        }
    }
    let exact = auths.get(registry);
    let stored = exact.or_else(|| auths.iter().find(|(name, _)| is_named(name, registry)).map(|(_, stored)| stored));
    stored.map_or(Ok(None), |stored| {
        stored.credentials().map_err(|()| format!("{} has no login for {registry} that can be read", file.display()))
    })
}

impl StoredLogin {
    /// Returns what is stored; an error if it cannot be decoded.
    fn credentials(&self) -> Result<Option<Credentials>, ()> {
        let secret = |text: &str| Secret::plain(text);
        if !self.identitytoken.is_empty() {
            return Ok(Some(Credentials::IdentityToken(secret(&self.identitytoken))));
        }
        if !self.registrytoken.is_empty() {
            return Ok(Some(Credentials::RegistryToken(secret(&self.registrytoken))));
        }
        if self.auth.is_empty() {
            let (user, password) = (self.username.clone(), secret(&self.password));
            return Ok((!user.is_empty()).then_some(Credentials::Password { user, password }));
        }
        let decoded = base64::engine::general_purpose::STANDARD.decode(self.auth.trim()).map_err(|_| ())?;
        let decoded = Zeroizing::new(String::from_utf8(decoded).map_err(|_| ())?);
        let (user, password) = decoded.split_once(':').ok_or(())?;
        Ok(Some(Credentials::Password { user: user.to_owned(), password: secret(password.trim_end_matches('\0')) }))
    }
}

/// Asks a program for the credentials; `None` if it has none.
async fn ask(helper: &str, path: &OsStr, registry: &str) -> Result<Option<Credentials>, String> {
    let missing = |_| "is not in the PATH of this machine".to_owned();
    let program =
        which::which_in(format!("docker-credential-{helper}"), Some(OsString::from(path)), "/").map_err(missing)?;
    let failed = |error: std::io::Error| format!("cannot be started: {error}");
    let mut command = Command::new(program);
    command.arg("get").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().map_err(failed)?;
    let mut stdin = child.stdin.take();
    let asked = async {
        if let Some(stdin) = &mut stdin {
            // one that does not read what it is asked says why when it ends
            let _ = stdin.write_all(format!("{registry}\n").as_bytes()).await;
        }
        drop(stdin);
        child.wait_with_output().await
    };
    let late = |_| format!("did not answer within {} s", HELPER_LIMIT.as_secs());
    let output = timeout(HELPER_LIMIT, asked).await.map_err(late)?.map_err(failed)?;
    let stdout = Zeroizing::new(output.stdout);
    if !output.status.success() {
        // then its message is on standard output, and no secret
        let stdout = String::from_utf8_lossy(&stdout);
        if stdout.contains("credentials not found") {
            return Ok(None);
        }
        let stderr = String::from_utf8_lossy(&output.stderr);
        let message = [stdout.trim(), stderr.trim()].into_iter().find(|text| !text.is_empty()).unwrap_or("no message");
        return Err(format!("failed ({}): {}", output.status, printable(message)));
    }
    let Answer { username, secret } =
        serde_json::from_slice(&stdout).map_err(|_| "gave an unexpected answer".to_owned())?;
    let secret = Secret::plain(secret);
    Ok(Some(match username.as_str() {
        TOKEN => Credentials::IdentityToken(secret),
        _ => Credentials::Password { user: username, password: secret },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// Returns the credentials that are found for a registry in a directory with this `config.json` and with one
    /// program, `docker-credential-x`.
    async fn found(config: &str, program: &str, registry: &str) -> Result<Option<Credentials>, String> {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("config.json"), config).unwrap();
        // not written by this process, whose other threads may start programs meanwhile
        let write = "cat >\"$0\" && chmod 755 \"$0\"";
        let file = directory.path().join("docker-credential-x");
        let mut shell = std::process::Command::new("sh");
        let mut child = shell.args(["-c", write]).arg(&file).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(program.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success());
        find(directory.path(), directory.path().as_os_str(), registry).await
    }

    fn password(user: &str, password: &str) -> Result<Option<Credentials>, String> {
        Ok(Some(Credentials::Password { user: user.into(), password: Secret::plain(password) }))
    }

    #[test]
    fn the_registry_of_an_image() {
        for (image, expected) in [
            ("app", HUB),
            ("horovod/horovod:latest", HUB),
            ("docker.io/horovod/horovod", HUB),
            ("index.docker.io/library/app", HUB),
            ("ghcr.io/a/b:1", "ghcr.io"),
            ("localhost/x", "localhost"),
            ("localhost:5000/x", "localhost:5000"),
            ("10.0.0.1:5000/a/b@sha256:00", "10.0.0.1:5000"),
        ] {
            assert_eq!(registry(image), expected, "{image}");
        }
    }

    #[tokio::test]
    async fn stored_logins_are_found_under_every_name() {
        let encoded = base64::engine::general_purpose::STANDARD.encode("ana:a:b~?>");
        for name in ["r.example", "https://r.example", "https://r.example/v1/"] {
            let config = format!(r#"{{"auths": {{"{name}": {{"auth": "{encoded}"}}, "other": {{}}}}}}"#);
            assert_eq!(found(&config, "", "r.example").await, password("ana", "a:b~?>"), "{name}");
            assert_eq!(found(&config, "", "s.example").await, Ok(None), "{name}");
        }
        let hub = r#"{"auths": {"https://index.docker.io/v1/": {"username": "u", "password": "p"}}}"#;
        assert_eq!(found(hub, "", HUB).await, password("u", "p"));
        let token = r#"{"auths": {"r": {"auth": "", "identitytoken": "t"}}}"#;
        assert_eq!(found(token, "", "r").await, Ok(Some(Credentials::IdentityToken(Secret::plain("t")))));
        let token = r#"{"auths": {"r": {"registrytoken": "t"}}}"#;
        assert_eq!(found(token, "", "r").await, Ok(Some(Credentials::RegistryToken(Secret::plain("t")))));
        assert_eq!(found("{}", "", "r").await, Ok(None));
        let nowhere = Path::new("/nowhere/at/all");
        assert_eq!(find(nowhere, nowhere.as_os_str(), "r").await, Ok(None));
    }

    #[tokio::test]
    async fn programs_are_asked_for_the_registry() {
        let store = r#"{"credsStore": "x", "auths": {"r": {"username": "u", "password": "p"}}}"#;
        let echo = "#!/bin/sh\nread -r r && [ \"$1\" = get ] && echo '{\"ServerURL\": \"\", \"Username\": \"a \
            '\"$r\"'\", \"Secret\": \"s\"}'\n";
        assert_eq!(found(store, echo, "r").await, password("a r", "s"));
        let own = r#"{"credsStore": "none", "credHelpers": {"docker.io": "x"}}"#;
        assert_eq!(found(own, echo, HUB).await, password(&format!("a {HUB}"), "s"));
        let token = "#!/bin/sh\necho '{\"Username\": \"<token>\", \"Secret\": \"t\"}'\n";
        assert_eq!(found(store, token, "r").await, Ok(Some(Credentials::IdentityToken(Secret::plain("t")))));
        let none = "#!/bin/sh\necho credentials not found in native keychain\nexit 1\n";
        assert_eq!(found(store, none, "r").await, password("u", "p"), "that of the file");
    }

    #[tokio::test]
    async fn what_cannot_be_read_is_a_fault_without_secrets() {
        let store = r#"{"credsStore": "x"}"#;
        for (config, program, words) in [
            (r#"{"auths": {"r": "hunter2"}}"#, "", "config.json is not in Docker's format (line 1, column"),
            (r#"{"auths": {"r": {"auth": "hunter2"}}}"#, "", "config.json has no login for r that can be read"),
            (r#"{"credsStore": "missing"}"#, "", "docker-credential-missing is not in the PATH"),
            (store, "#!/bin/sh\necho the keychain is locked\nexit 2\n", "(exit status: 2): the keychain is locked"),
            (store, "#!/bin/sh\necho hunter2\n", "docker-credential-x gave an unexpected answer"),
            (store, "#!/nowhere\n", "docker-credential-x cannot be started"),
        ] {
            let fault = found(config, program, "r").await.unwrap_err();
            assert!(fault.contains(words) && !fault.contains("hunter2"), "{fault}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_program_that_does_not_answer_is_ended() {
        let fault = found(r#"{"credsStore": "x"}"#, "#!/bin/sh\nexec sleep 1000\n", "r").await.unwrap_err();
        assert_eq!(fault, "docker-credential-x did not answer within 60 s");
    }

    #[test]
    fn the_next_step_is_a_login_on_this_machine() {
        let login = |registry: &str, credentials, fault: Option<&str>| {
            let fault = fault.map(str::to_owned);
            RegistryLogin { registry: registry.into(), credentials, fault, ..RegistryLogin::default() }.hint()
        };
        assert!(
            login("r:5000", None, None)
                .starts_with("this machine has no login for the registry: `docker login r:5000` here.")
        );
        assert!(login(HUB, None, None).contains("`docker login` here"));
        assert!(login("nvcr.io", None, None).contains("`docker login nvcr.io -u '$oauthtoken'` here"));
        let ecr = login("1.dkr.ecr.eu-west-1.amazonaws.com", None, None);
        assert!(
            ecr.contains("| docker login -u AWS --password-stdin 1.dkr.ecr.eu-west-1.amazonaws.com` here"),
            "{ecr}"
        );
        let sent = login("r", Some(Credentials::IdentityToken(Secret::plain("t"))), None);
        assert!(sent.starts_with("this machine's login was sent; renew it by `docker login r` here"), "{sent}");
        assert_eq!(
            login("r", None, Some("x failed")),
            "no login was sent, because x failed: `docker login r` on this machine"
        );
    }
}
