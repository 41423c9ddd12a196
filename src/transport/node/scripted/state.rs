//! The state of a scripted node, and the answers that hvdctl's scripts get from it.

use super::envs::Envs;
use super::jobs::{Directory, clock};
use super::mesh::Mesh;
use crate::text::digest;
use base64::Engine as _;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// The image that every scripted node has.
pub const IMAGE: &str = "test/horovod:1";

/// A scripted node's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeState {
    /// Its own host name.
    pub hostname: String,
    /// Its address on `eth0`, by which ssh reached it.
    pub address: String,
    /// Seconds by which its clock is ahead of this machine's.
    pub clock_ahead: i32,
    /// The images that its engine has.
    pub images: Vec<String>,
    /// Set if they are older than those of other nodes; cleared by a pull.
    pub are_old: bool,
    /// Set if the engine can pull every image from a registry.
    pub has_registry: bool,
    /// The login that it wants, as the engine gets it.
    pub registry_login: Option<&'static str>,
    /// The logins that came with pulls; empty without one.
    pub logins: Vec<String>,
    /// The images that were pulled from hvdctl by their names, as the engine describes them.
    pub pulled: BTreeMap<String, Value>,
    /// Set if its engine keeps them only unpacked, so that it can neither list nor export them.
    pub is_unpacked: bool,
    /// The digests of the layers that were pulled from there.
    pub layers: BTreeSet<String>,
    /// The builds of Dockerfiles: what was asked, and the names in the context.
    pub builds: Vec<String>,
    /// The archive that its engine writes of every image.
    pub saved: Vec<u8>,
    /// The free bytes of its disk.
    pub free: u64,
    /// Number of files for which the disk has room.
    pub inodes: u64,
    /// The platform of its engine: operating system and architecture.
    pub platform: (&'static str, &'static str),
    /// The lines of sshd's configuration about forwarded ports.
    pub sshd: String,
    /// The containers that its engine has.
    pub containers: Vec<Container>,
    /// The files of the cluster's key directory by name; none where there is no directory.
    pub keys: Option<BTreeMap<String, KeyFile>>,
    /// Set if it lacks the directories that containers mount.
    pub lacks_directories: bool,
    /// The directories that other users may enter.
    pub unclosed: Vec<String>,
    /// The lease, if it is held.
    pub lease: Option<Lease>,
    /// Further lines of `node/facts.sh`.
    pub facts: String,
    /// The output of `node/health.sh`.
    pub health: String,
    /// The further output of `node/health.sh` if it has to ask DCGM.
    pub diagnosis: String,
    /// Further lines of `job/list.sh`.
    pub jobs: String,
    /// The directories of jobs by their ids.
    pub directories: BTreeMap<String, Directory>,
    /// The hash of what was uploaded of each project; empty before the first upload.
    pub projects: BTreeMap<String, String>,
    /// The hash of each of the cluster's data; `None` before the first push.
    pub data: Option<BTreeMap<String, String>>,
    /// The directory from which the data were pushed, if the next push is to come from another one.
    pub data_origin: Option<String>,
    /// Number of times that all followers of logs were lost here.
    pub lost_followers: usize,
    /// Set if the id of every new job belongs to another job already.
    pub ids_are_taken: bool,
    /// Set if its containers have lost their GPUs; cleared when one is created.
    pub gpus_are_lost: bool,
    /// The output of `access/access.sh`.
    pub access: &'static str,
    /// The passwords that were sent there, each time.
    pub passwords: Vec<String>,
    /// The log of every container.
    pub log: String,
    /// The files of every container by their paths.
    pub container_files: BTreeMap<String, Vec<u8>>,
    /// The last image of a container that was made here.
    pub last_image: String,
    /// Number of containers that were ever created here.
    pub made: usize,
    /// Scripts that were run in containers.
    pub scripts: Vec<String>,
    /// The last call of `hosts.py` in a container.
    pub names: String,
    /// Bandwidth in Mb/s that it sends in `bench/network.py`; `None` if its workers have no Python.
    pub sends: Option<u32>,
    /// Number of marks in its directories.
    pub marks: usize,
    /// The bandwidths that it keeps of earlier benchmarks.
    pub past: String,
    /// Its ledger.
    pub ledger: String,
    /// The files of the pool that it has; `None` without a directory.
    pub pool: Option<BTreeMap<String, String>>,
    /// The key of its owner, as root has written it.
    pub pool_owner: String,
    /// The host key of its sshd; `None`: whatever is expected.
    pub host_key: Option<String>,
    /// The state of its virtualenvs.
    pub envs: Envs,
    /// Its part in the encrypted network.
    pub mesh: Mesh,
    /// The round trips that it measures to hosts, in microseconds; to others it cannot connect.
    pub round_trips: BTreeMap<String, u64>,
}

/// A container of a scripted node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// Its name.
    pub name: String,
    /// Its id.
    pub id: String,
    /// The id of its image.
    pub image: String,
    /// Its state, in Docker's word.
    pub state: &'static str,
    /// The exit code, once it has exited.
    pub code: i64,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

/// A file of a key directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyFile {
    /// Permission bits in octal.
    pub mode: String,
    /// Its content.
    pub text: String,
}

/// A lease of a scripted node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Its unique id.
    pub id: String,
    /// The holder, `user@host`.
    pub holder: String,
    /// The operation for which it is held.
    pub purpose: String,
    /// The time at which it was taken, in seconds since the epoch.
    pub since: u64,
    /// The time of its last renewal.
    pub renewed: u64,
}

impl Lease {
    /// The lease of another operator, who took it at this time.
    pub fn of_another(now: u64) -> Lease {
        Lease { id: "0".into(), holder: "bob@laptop".into(), purpose: "hvdctl down".into(), since: now, renewed: now }
    }

    /// Returns the lines that `lease/common.sh` prints about it.
    pub fn shown(&self, now: u64) -> String {
        let Lease { id, holder, purpose, since, renewed } = self;
        format!("id {id}\nholder {holder}\npid 4711\npurpose {purpose}\nsince {since}\nrenewed {renewed}\nnow {now}\n")
    }
}

impl NodeState {
    /// The node of this number as it is before hvdctl has ever changed it: Docker, the image, no keys and no container.
    pub fn new(name: &str, number: usize) -> NodeState {
        NodeState {
            hostname: name.to_owned(),
            address: format!("10.0.0.{number}"),
            clock_ahead: 0,
            images: vec![IMAGE.to_owned()],
            are_old: false,
            has_registry: false,
            registry_login: None,
            logins: Vec::new(),
            pulled: BTreeMap::new(),
            is_unpacked: false,
            layers: BTreeSet::new(),
            builds: Vec::new(),
            saved: Vec::new(),
            free: 1 << 40,
            inodes: 1 << 20,
            platform: ("linux", "amd64"),
            sshd: String::new(),
            containers: Vec::new(),
            keys: None,
            lacks_directories: true,
            unclosed: Vec::new(),
            lease: None,
            facts: String::new(),
            health: String::new(),
            diagnosis: String::new(),
            jobs: String::new(),
            directories: BTreeMap::new(),
            projects: BTreeMap::new(),
            data: None,
            data_origin: None,
            lost_followers: 0,
            ids_are_taken: false,
            gpus_are_lost: false,
            access: "user root\nsudo root\nengine open\n",
            passwords: Vec::new(),
            log: String::new(),
            container_files: BTreeMap::new(),
            last_image: String::new(),
            made: 0,
            scripts: Vec::new(),
            names: String::new(),
            sends: None,
            marks: 0,
            past: String::new(),
            ledger: String::new(),
            pool: None,
            pool_owner: String::new(),
            host_key: None,
            envs: Envs::default(),
            mesh: Mesh::default(),
            round_trips: BTreeMap::new(),
        }
    }

    /// Keeps these bandwidths, and prints nothing.
    pub fn keep(&mut self, past: String) -> String {
        self.past = past;
        String::new()
    }

    /// Adds entries to its ledger as `ledger/append.sh` does.
    pub fn append_to_ledger(&mut self, entries: &str, now: u64) {
        let stamp = format!("{{\"format\":1,\"time\":{now},\"host\":\"{}\",", self.hostname);
        let system = "\"what\":\"system\",\"boot\":\"b1\",\"driver\":\"\",\"booted\":0}";
        if !self.ledger.contains(system) {
            self.ledger.push_str(&format!("{stamp}{system}\n"));
        }
        let lines = entries.lines().filter_map(|line| line.strip_prefix('{'));
        self.ledger.extend(lines.map(|line| format!("{stamp}{line}\n")));
    }

    /// Returns the output of `ledger/read.sh`.
    pub fn read_ledger(&self, now: u64) -> String {
        format!("clock {now}\nbooted 0\nhost {}\nboot b1\ndriver \n\n{}", self.hostname, self.ledger)
    }

    /// Writes its owner's key, and prints a host key. One node stands for those of all owners, so that each owner gets
    /// another one.
    pub fn claim(&mut self, key: String) -> String {
        let engine = base64::engine::general_purpose::STANDARD;
        let hash = digest::hash(format!("{key} {}", self.hostname).as_bytes());
        let blob = [&b"\0\0\0\x0bssh-ed25519\0\0\0 "[..], &hash[..]].concat();
        self.pool_owner = key;
        format!("ssh-ed25519 {}\n", engine.encode(blob))
    }

    /// Writes files to the pool, and prints nothing.
    pub fn publish(&mut self, files: &str) -> Result<String, (i32, String)> {
        let pool = self.pool.as_mut().ok_or((66, "there is no directory /srv/pool".to_owned()))?;
        for (name, text) in files.lines().filter_map(|line| line.split_once(' ')) {
            let text = base64::engine::general_purpose::STANDARD.decode(text).expect("base64");
            pool.insert(name.to_owned(), String::from_utf8(text).expect("text"));
        }
        Ok(String::new())
    }

    /// Prints the files of the pool.
    pub fn read_pool(&self) -> Result<String, (i32, String)> {
        let pool = self.pool.as_ref().ok_or((66, "there is no directory /srv/pool".to_owned()))?;
        let named: String = pool.keys().map(|name| format!("file {name}\n")).collect();
        let mut archive = tar::Builder::new((named + "files\n").into_bytes());
        for (name, text) in pool {
            let mut header = tar::Header::new_gnu();
            header.set_size(text.len() as u64);
            archive.append_data(&mut header, name, text.as_bytes()).expect("an archive");
        }
        Ok(String::from_utf8(archive.into_inner().expect("an archive")).expect("text") + "tar 0\n")
    }

    /// Prints the round trips to targets.
    pub fn measure(&self, targets: &str) -> String {
        let answer = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            let time = self.round_trips.get(*words.get(1)?).map_or("-".to_owned(), u64::to_string);
            Some(format!("{} {time}\n", words[0]))
        };
        targets.lines().filter_map(answer).collect()
    }

    /// The container of this name.
    pub fn container(&self, name: &str) -> Option<&Container> {
        self.containers.iter().find(|container| container.name == name)
    }

    /// Name and state of each container.
    pub fn ps(&self) -> Vec<String> {
        self.containers.iter().map(|container| format!("{} {}", container.name, container.state)).collect()
    }

    /// Returns everything that hvdctl can change there permanently: containers and keys.
    pub fn contents(&self) -> (&[Container], Option<&BTreeMap<String, KeyFile>>) {
        (&self.containers, self.keys.as_ref())
    }

    /// Returns true if the node has a private key of the cluster.
    pub fn has_private_key(&self) -> bool {
        self.keys.as_ref().is_some_and(|keys| keys.contains_key("id_ed25519"))
    }

    /// Adds a running container.
    pub fn add(&mut self, name: &str, labels: &[(&str, &str)]) {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let id = self.create(name, IMAGE, labels);
        self.containers.iter_mut().filter(|c| c.id == id).for_each(|c| c.state = "running");
    }

    /// Makes a container and returns its id.
    pub fn create(&mut self, name: &str, image: &str, labels: BTreeMap<String, String>) -> String {
        self.made += 1;
        image.clone_into(&mut self.last_image);
        self.gpus_are_lost = false;
        let id = format!("{:064x}", self.made);
        self.containers.push(Container {
            name: name.to_owned(),
            id: id.clone(),
            image: image_id(image),
            state: "created",
            code: 0,
            labels,
        });
        id
    }

    /// Returns the output of `node/gpus.sh` in a container, which is that of the node unless the GPUs are lost.
    pub fn worker_gpus(&self) -> String {
        if self.gpus_are_lost {
            return "nvidia-smi yes\ngpu Failed to initialize NVML: Unknown Error\ngpu exit 255\nmig exit 255\n".into();
        }
        let of_gpus = |line: &&str| ["nvidia-smi ", "gpu ", "mig "].iter().any(|key| line.starts_with(key));
        self.facts.lines().filter(of_gpus).map(|line| format!("{line}\n")).collect()
    }

    /// Performs a script of `data` and returns its output.
    pub fn answer_data(&mut self, call: &str, name: &str, tree: &str) -> String {
        let has = self.data.as_ref().and_then(|data| data.get(name));
        match call {
            "data/compare.sh" if has.is_some_and(|has| has == tree) => "present\0same\0".into(),
            "data/compare.sh" => {
                let origin = self.data_origin.iter().filter(|_| has.is_some());
                let replaces: String = origin.map(|origin| format!("replaces {origin}\0")).collect();
                // the files are none of those that are pushed, and there is no other
                let present = has.map(|_| format!("present\0has {}\0", digest::in_hex(b""))).unwrap_or_default();
                format!("{replaces}{present}free {}\0inodes {}\0", self.free, self.inodes)
            }
            "data/apply.sh" => {
                self.data.get_or_insert_default().insert(name.to_owned(), tree.to_owned());
                format!("{tree}  -\n")
            }
            "data/list.sh" => {
                let record = |(name, tree): (&String, &String)| format!("{name} complete {tree} 2 3000 90 desk:/d\0");
                self.data.iter().flatten().map(record).collect()
            }
            "data/remove.sh" => {
                let removed = self.data.as_mut().and_then(|data| data.remove(name));
                if removed.is_some() { "removed\0".into() } else { String::new() }
            }
            _ => String::new(),
        }
    }

    /// Returns the output of `image/space.sh` for these directories.
    pub fn free_space(&self, directories: &str) -> String {
        directories.lines().map(|directory| format!("{} {directory}\n", self.free)).collect()
    }

    /// A step of `node/shared.sh`, which finds no directory that is another node's.
    pub fn mark(&mut self, step: &str) -> String {
        match step {
            "mark" => self.marks += 1,
            "clear" => self.marks = 0,
            _ => {}
        }
        String::new()
    }

    /// The time by its clock, in seconds since the epoch: hvdctl compares this clock with its own, which no test can
    /// pause.
    pub(super) fn clock(&self) -> f64 {
        clock() + f64::from(self.clock_ahead)
    }

    /// Returns the output of `node/facts.sh`.
    pub fn facts(&self) -> String {
        let clock = self.clock();
        let NodeState { hostname, address, facts, .. } = self;
        let figures = self.ledger.lines().filter(|entry| entry.contains("\"what\":\"bench\","));
        let measured: String = figures.map(|entry| format!("measured {entry}\n")).collect();
        let mut text = format!(
            "clock {clock}\nhostname {hostname}\ncores 4\nssh {address}\naddr lo 127.0.0.1/8\naddr eth0 {address}/24\n\
             ports 22\n{facts}{}{measured}clock {clock}\n",
            self.job_facts()
        );
        if self.lacks_directories {
            text.push_str("missing /opt/horovod/jobs\n");
        }
        text.extend(self.unclosed.iter().map(|directory| format!("unclosed {directory}\n")));
        if let Some(data) = &self.data {
            text.extend(data.iter().map(|(name, tree)| format!("pushed {name} {tree} 7\n")));
        }
        let Some(keys) = &self.keys else { return text };
        text.push_str("dir . 700 0:0\n");
        for (name, KeyFile { mode, text: lines }) in keys {
            text.push_str(&format!("file {name} {mode} 0:0\n"));
            if name.ends_with(".pub") || matches!(name.as_str(), "authorized_keys" | "known_hosts") {
                lines.lines().for_each(|line| text.push_str(&format!("text {name} {line}\n")));
            }
        }
        text
    }
}

/// The id of an image, which is the same on every node.
pub fn image_id(image: &str) -> String {
    format!("sha256:{:0>64}", image.bytes().map(|byte| format!("{byte:02x}")).collect::<String>())
}
