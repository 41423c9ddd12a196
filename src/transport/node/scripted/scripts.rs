//! hvdctl's scripts as a scripted node answers them. A script is recognised by its source, which is the end of what is
//! sent.

use super::state::{KeyFile, Lease};
use super::{Node, Own};
use base64::Engine as _;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::time::sleep;

macro_rules! scripts {
    ($($name:literal),*) => {
        [$(($name, include_str!(concat!("../../../scripts/", $name)))),*]
    };
}

/// The scripts that are known, each with its source.
const SCRIPTS: [(&str, &str); 46] = scripts![
    "access/access.sh",
    "env/create.sh",
    "env/list.sh",
    "env/probe.sh",
    "env/remove.sh",
    "node/directories.sh",
    "node/drain.sh",
    "node/facts.sh",
    "node/health.sh",
    "node/shared.sh",
    "image/space.sh",
    "job/end.sh",
    "job/files.sh",
    "job/follow.sh",
    "job/join.sh",
    "job/outside.sh",
    "job/piece.sh",
    "job/read.sh",
    "job/result.sh",
    "job/size.sh",
    "job/start.sh",
    "job/list.sh",
    "job/prune.sh",
    "lease/hold.sh",
    "lease/read.sh",
    "lease/release.sh",
    "keys/push.sh",
    "keys/stage.sh",
    "keys/switch.sh",
    "bench/past_read.sh",
    "bench/past_write.sh",
    "ledger/append.sh",
    "ledger/read.sh",
    "mesh/install.sh",
    "mesh/remove.sh",
    "mesh/state.sh",
    "node/wait_port.sh",
    "pool/claim.sh",
    "pool/owner.sh",
    "pool/publish.sh",
    "pool/read.sh",
    "pool/round_trips.sh",
    "node/purge.sh",
    "slurm/nodes/has_key.sh",
    "node/sshd_forwarding.sh",
    "worker/ready.sh"
];

/// The script that holds the lease.
const HOLD: &str = "lease/hold.sh";
/// The script that follows a log.
const FOLLOW: &str = "job/follow.sh";
/// Scripts whose standard input stays open behind them.
const OPEN: [&str; 4] = [HOLD, FOLLOW, "job/read.sh", "env/create.sh"];

impl Node {
    /// Reads a script to its end and answers it; returns its exit code.
    pub(super) async fn run_script(&self, mut own: Own) -> i32 {
        let mut input = Vec::new();
        let open: Vec<&[u8]> =
            SCRIPTS.iter().filter(|(name, _)| OPEN.contains(name)).map(|(_, s)| s.as_bytes()).collect();
        let is_whole = |input: &[u8]| open.iter().any(|source| input.ends_with(source));
        while !is_whole(&input) && matches!(own.stdin.read_buf(&mut input).await, Ok(1..)) {}
        let text = String::from_utf8_lossy(&input).into_owned();
        if text.is_empty() {
            // hvdctl left before it had sent anything
            return 0;
        }
        let Some((name, _)) = SCRIPTS.iter().find(|(_, source)| text.ends_with(source)) else {
            let first: Vec<&str> = text.lines().filter(|line| line.starts_with('#')).take(3).collect();
            return self.unexpected(&format!("sh -s: {}", first.join(" / ")), own).await;
        };
        if let Some(words) = self.arrives(name).await {
            return own.fail(&words).await;
        }
        match *name {
            HOLD => return self.hold_lease(&text, own).await,
            FOLLOW => return self.follow_log(&text, own).await,
            _ => {}
        }
        let answer = self.effect(name, &text).await;
        self.ends(name).await;
        match answer {
            Ok(words) => {
                own.say(&words).await;
                0
            }
            Err((code, words)) => {
                own.fail(&words).await;
                code
            }
        }
    }

    /// Performs a script on the node and returns its output, or its exit code and error output.
    async fn effect(&self, name: &str, text: &str) -> Result<String, (i32, String)> {
        let now = self.nodes.now();
        match name {
            "access/access.sh" => Ok(self.edit(|state| state.access.to_owned())),
            name if name.starts_with("job/") => self.effect_on_jobs(name, text),
            name if name.starts_with("env/") => self.effect_on_envs(name, text, now),
            "node/directories.sh" => {
                let asked = variable(text, "unclosed");
                self.edit(|state| {
                    assert!(asked.lines().eq(state.unclosed.iter()), "{asked:?} is not {:?}", state.unclosed);
                    (state.lacks_directories, state.unclosed) = (false, Vec::new());
                });
                Ok(String::new())
            }
            name if name.starts_with("mesh/") => Ok(self.effect_on_mesh(name, text)),
            "node/facts.sh" => Ok(self.edit(|state| state.facts()) + &self.mesh_facts()),
            "node/health.sh" => Ok(self.edit(|state| {
                let diagnosis = if variable(text, "diagnose").is_empty() { "" } else { &state.diagnosis };
                format!("{}{diagnosis}", state.health)
            })),
            "node/shared.sh" => Ok(self.edit(|state| state.mark(&variable(text, "step")))),
            "lease/read.sh" => Ok(self.edit(|state| state.lease.as_ref().map_or(String::new(), |l| l.shown(now)))),
            "lease/release.sh" => {
                let id = variable(text, "id");
                Ok(self.edit(|state| match state.lease.take_if(|lease| lease.id == id) {
                    Some(_) => "released\n".into(),
                    None => String::new(),
                }))
            }
            "keys/push.sh" => {
                self.edit(|state| push(state.keys.get_or_insert_default(), text));
                Ok(String::new())
            }
            "keys/stage.sh" => Ok(self.edit(|state| stage(state.keys.get_or_insert_default(), text))),
            "keys/switch.sh" => {
                self.edit(|state| switch(state.keys.get_or_insert_default(), text));
                Ok(String::new())
            }
            "node/wait_port.sh" => {
                let listens = || self.edit(|state| state.containers.iter().any(|c| c.state == "running"));
                if !listens() {
                    sleep(Duration::from_secs(variable(text, "seconds").parse().unwrap_or(0))).await;
                }
                if listens() { Ok(String::new()) } else { Err((1, String::new())) }
            }
            "image/space.sh" => Ok(self.edit(|state| state.free_space(&variable(text, "directories")))),
            "node/sshd_forwarding.sh" => Ok(self.edit(|state| state.sshd.clone())),
            "worker/ready.sh" => Ok(self.edit(|state| state.worker_gpus())),
            "node/drain.sh" => {
                let mark = variable(text, "mark");
                self.edit(|state| match mark.as_str() {
                    "" => state.facts.clear(),
                    mark => state.facts.push_str(&format!("drained {mark}\n")),
                });
                Ok(String::new())
            }
            "bench/past_read.sh" => Ok(self.edit(|state| state.past.clone())),
            // it prints nothing
            "bench/past_write.sh" => Ok(self.edit(|state| state.keep(variable(text, "past")))),
            "ledger/append.sh" => {
                self.edit(|state| state.append_to_ledger(&variable(text, "entries"), now));
                Ok(String::new())
            }
            "ledger/read.sh" => Ok(self.edit(|state| state.read_ledger(now))),
            "pool/claim.sh" => Ok(self.edit(|state| state.claim(variable(text, "key")))),
            "pool/owner.sh" => Ok(self.edit(|state| state.pool_owner.clone())),
            "pool/publish.sh" => self.edit(|state| state.publish(&variable(text, "files"))),
            "pool/read.sh" => self.edit(|state| state.read_pool()),
            "pool/round_trips.sh" => Ok(self.edit(|state| state.measure(&variable(text, "targets")))),
            "node/purge.sh" => {
                // hvdctl has removed the files before, and the directory goes only if it is empty
                self.edit(|state| {
                    drop(state.keys.take_if(|keys| keys.is_empty()));
                    state.lacks_directories = true;
                });
                Ok(String::new())
            }
            // the cluster has no Slurm of its own
            "slurm/nodes/has_key.sh" => Ok(String::new()),
            _ => unreachable!("{name} is a known script without an effect"),
        }
    }

    /// The effect of a script on the encrypted network.
    fn effect_on_mesh(&self, name: &str, text: &str) -> String {
        match name {
            "mesh/install.sh" => self.edit(|state| state.install_mesh(text)),
            "mesh/remove.sh" => self.edit(|state| state.remove_mesh()),
            _ => self.print_mesh_state(),
        }
    }

    /// The effect of a script on virtualenvs.
    fn effect_on_envs(&self, name: &str, text: &str, now: u64) -> Result<String, (i32, String)> {
        match name {
            "env/create.sh" => self.edit(|state| state.create_env(text, now)),
            "env/list.sh" => Ok(self.edit(|state| state.list_envs(now))),
            "env/probe.sh" => Ok(self.edit(|state| state.probe_env(text))),
            "env/remove.sh" => self.edit(|state| state.remove_env(text)),
            _ => unreachable!("{name} is a known script without an effect"),
        }
    }

    /// The effect of a script on the directories of jobs.
    fn effect_on_jobs(&self, name: &str, text: &str) -> Result<String, (i32, String)> {
        match name {
            "job/files.sh" => self.edit(|state| state.job_files(text)),
            // the job supervisor accepts all nodes
            "job/join.sh" => Ok(self.edit(|state| state.join_job(text))),
            "job/outside.sh" => Ok(self.edit(|state| state.outside())),
            "job/piece.sh" => Ok(self.edit(|state| state.piece_of_log(text))),
            "job/read.sh" => Ok(self.edit(|state| state.read_log(text))),
            "job/size.sh" => Ok(self.edit(|state| state.log_size(text))),
            "job/start.sh" => self.edit(|state| state.start_job(text)),
            "job/result.sh" => Ok(self.edit(|state| state.job_result(text))),
            "job/list.sh" => Ok(self.edit(|state| state.job_list())),
            "job/prune.sh" => {
                let ids = variable(text, "ids");
                self.edit(|state| state.directories.retain(|job, _| !ids.lines().any(|id| id == job)));
                Ok(String::new())
            }
            "job/end.sh" => {
                self.edit(|state| state.end_job(text));
                Ok(String::new())
            }
            _ => unreachable!("{name} is a known script without an effect"),
        }
    }

    /// `lease/hold.sh`: holds the lease until its standard input ends, or another operator has it.
    async fn hold_lease(&self, text: &str, mut own: Own) -> i32 {
        let now = || self.nodes.now();
        let taken = now();
        let mine = Lease {
            id: variable(text, "id"),
            holder: variable(text, "holder"),
            purpose: variable(text, "purpose"),
            since: taken,
            renewed: taken,
        };
        let id = mine.id.clone();
        let answer = self.edit(|state| match &state.lease {
            Some(other) => Err(format!("busy\n{}", other.shown(taken))),
            None => {
                state.lease = Some(mine);
                Ok("held\n")
            }
        });
        self.ends(HOLD).await;
        let said = match answer {
            Ok(held) => held,
            Err(busy) => {
                own.say(&busy).await;
                return 3;
            }
        };
        own.say(said).await;
        let mut line = [0; 64];
        while matches!(own.stdin.read(&mut line).await, Ok(1..)) {
            let at = now();
            let lost = self.edit(|state| match &mut state.lease {
                Some(lease) if lease.id == id => {
                    lease.renewed = at;
                    None
                }
                Some(other) => Some(format!("taken\n{}", other.shown(at))),
                None => Some("released\n".to_owned()),
            });
            if let Some(words) = lost {
                own.say(&words).await;
                return 1;
            }
        }
        self.edit(|state| drop(state.lease.take_if(|lease| lease.id == id)));
        0
    }
}

/// Writes and removes what a push says.
fn push(keys: &mut BTreeMap<String, KeyFile>, text: &str) {
    for line in variable(text, "puts").lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [mode, name, content] = words[..] else { panic!("not a file to write: {line}") };
        put(keys, mode, name, content);
    }
    variable(text, "removes").lines().for_each(|name| drop(keys.remove(name)));
}

/// Writes a file whose content is base64.
fn put(keys: &mut BTreeMap<String, KeyFile>, mode: &str, name: &str, content: &str) {
    let content = base64::engine::general_purpose::STANDARD.decode(content).expect("base64");
    let text = String::from_utf8(content).expect("text");
    keys.insert(name.to_owned(), KeyFile { mode: mode.to_owned(), text });
}

/// Stages a new pair next to the one in use, unless another one is staged, and says which is.
fn stage(keys: &mut BTreeMap<String, KeyFile>, text: &str) -> String {
    let staged = ["id_rsa", "id_ed25519"].into_iter().find(|name| {
        let has = |file: String| keys.contains_key(&file);
        has(format!("{name}.next.pub"))
            && (has(format!("{name}.next")) || has((*name).to_owned()) && !has(format!("{name}.pub")))
    });
    let name = staged.map_or_else(|| variable(text, "name"), str::to_owned);
    if staged.is_none() {
        keys.retain(|file, _| !file.contains(".next"));
        put(keys, "600", &format!("{name}.next"), &variable(text, "private"));
        put(keys, "644", &format!("{name}.next.pub"), &variable(text, "public"));
    }
    format!("{name} {}", keys[&format!("{name}.next.pub")].text)
}

/// Puts the staged pair in place, all at once.
fn switch(keys: &mut BTreeMap<String, KeyFile>, text: &str) {
    let (new, old) = (variable(text, "new"), variable(text, "old"));
    if !keys.contains_key(&format!("{new}.next.pub")) {
        return;
    }
    for half in ["", ".pub"] {
        if !old.is_empty() {
            keys.remove(&format!("{old}{half}"));
        }
        if let Some(file) = keys.remove(&format!("{new}.next{half}")) {
            keys.insert(format!("{new}{half}"), file);
        }
    }
}

/// The value that a script's first lines give a variable, as `text::quote` writes it.
pub(super) fn variable(script: &str, name: &str) -> String {
    let start = format!("{name}='");
    let mut rest = match script.strip_prefix(&start) {
        Some(rest) => rest,
        None => script.split_once(&format!("\n{start}")).map_or("'", |(_, rest)| rest),
    };
    let mut value = String::new();
    while let Some((part, behind)) = rest.split_once('\'') {
        value.push_str(part);
        let Some(more) = behind.strip_prefix(r"\''") else { break };
        value.push('\'');
        rest = more;
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::node::Script;

    #[test]
    fn variables_are_read_as_they_were_set() {
        let values = ["", "x", "it's ''", "a\nputs='no'\n", "'"];
        for value in values {
            let script = Script::new("# Variables: first, value, last.\nexit\n");
            let script = script.with("first", "a='b").with("value", value).with("last", "z");
            assert_eq!(variable(&script.whole(), "value"), value);
            assert_eq!(variable(&script.whole(), "first"), "a='b");
        }
        assert_eq!(variable("exit\n", "value"), "");
    }
}
