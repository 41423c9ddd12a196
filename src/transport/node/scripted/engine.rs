//! The Docker Engine of a scripted node: the few requests that hvdctl makes, over HTTP/1.1, on a list of containers.

use super::jobs::WRITTEN;
use super::state::{Container, NodeState, image_id};
use super::{DIAL, Node, Own};
use crate::text::digest::hex;
use base64::Engine as _;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use std::time::Duration;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::sleep;

/// The id of every image that it builds.
const BUILT: &str = "sha256:b01d";

/// Interval at which the engine checks whether a container has exited.
const GLANCE: Duration = Duration::from_millis(20);

/// A request.
struct Request {
    method: String,
    /// The path without the leading slash.
    path: String,
    query: String,
    body: Vec<u8>,
    /// The credentials for a registry, as JSON; empty without any.
    login: String,
}

/// The status and the body of an answer.
type Answer = (u16, Value);

/// The effect of a request on its node.
type Effect = Box<dyn FnOnce(&Node) -> Answer + Send>;

impl Node {
    /// Answers requests until the connection ends; returns the exit code of `docker system dial-stdio`.
    pub(super) async fn serve_engine(&self, mut own: Own) -> i32 {
        if let Some(words) = self.arrives(DIAL).await {
            return own.fail(&words).await;
        }
        self.ends(DIAL).await;
        let mut input = BufReader::new(&mut own.stdin);
        while let Some(request) = read(&mut input).await {
            let Some((call, answer)) = self.find(&request) else {
                let what = format!("docker: {} /{}?{}", request.method, request.path, request.query);
                self.nodes.inner().unexpected.push(format!("{}: {what}", self.name));
                return 1;
            };
            let exits = call.strip_prefix("docker wait ").map(str::to_owned);
            let is_archive = call == "docker export" || call.starts_with("docker cp-out ");
            let (status, body) = match self.arrives(&call).await {
                Some(words) if call == "docker build" => (200, build_report(&words, false)),
                Some(words) => (500, json!({ "message": words })),
                None => {
                    if let Some(container) = exits {
                        tokio::select! {
                            () = self.exited(&container) => {}
                            // hvdctl no longer waits
                            _ = input.fill_buf() => return 0,
                        }
                    }
                    let answer = match pushed_name(&request) {
                        Some(name) => pull_from_hvdctl(self, &name).await,
                        None => answer(self),
                    };
                    self.ends(&call).await;
                    answer
                }
            };
            let answer = match body {
                Value::String(path) if is_archive && status == 200 => archive(&self.archived(&path)),
                _ if is_archive && status == 200 => archive(&self.edit(|state| state.saved.clone())),
                body => response(status, &body),
            };
            if own.stdout.write_all(&answer).await.is_err() {
                break;
            }
        }
        0
    }

    /// A file of its containers as a tar archive, as `docker cp` sends it.
    fn archived(&self, path: &str) -> Vec<u8> {
        let contents = self.edit(|state| state.container_files.get(path).cloned()).unwrap_or_default();
        let mut header = tar::Header::new_gnu();
        header.set_size(contents.len() as u64);
        header.set_mode(0o640);
        header.set_mtime(WRITTEN);
        let mut archive = tar::Builder::new(Vec::new());
        let name = path.rsplit('/').next().unwrap_or_default();
        archive.append_data(&mut header, name, &contents[..]).expect("an archive");
        archive.into_inner().expect("an archive")
    }

    /// Waits until a container does not run.
    async fn exited(&self, name: &str) {
        while self.edit(|state| state.container(name).is_some_and(|container| container.state == "running")) {
            sleep(GLANCE).await;
        }
    }

    /// The name of a request's call, and what it does; none where this engine does not know it.
    fn find(&self, request: &Request) -> Option<(String, Effect)> {
        let parts: Vec<&str> = request.path.split('/').collect();
        let named = |id: &str| {
            let found = self.edit(|state| state.containers.iter().find(|c| c.id == id).map(|c| c.name.clone()));
            found.unwrap_or_else(|| id.to_owned())
        };
        Some(match (request.method.as_str(), &parts[..]) {
            ("GET", ["version"]) => ("docker version".into(), Box::new(version)),
            ("GET", ["info"]) => {
                ("docker info".into(), Box::new(|_| (200, json!({ "DockerRootDir": "/var/lib/docker" }))))
            }
            ("GET", ["images", "json"]) => ("docker images".into(), Box::new(list_images)),
            ("GET", ["images", _name @ .., "get"]) => ("docker export".into(), Box::new(|_| (200, Value::Null))),
            ("POST", ["images", name @ .., "tag"]) => {
                let (name, query) = (decoded(&name.join("/")), request.query.clone());
                ("docker tag".into(), Box::new(move |node| tag(node, &name, &query)))
            }
            ("DELETE", ["images", name @ ..]) => {
                let name = decoded(&name.join("/"));
                ("docker untag".into(), Box::new(move |node| untag(node, &name)))
            }
            ("GET", ["containers", "json"]) => ("docker list".into(), Box::new(list)),
            ("GET", ["images", name @ .., "json"]) => {
                let name = decoded(&name.join("/"));
                ("docker image".into(), Box::new(move |node| image(node, &name)))
            }
            ("POST", ["images", "create"]) => {
                let name = request.query.split('&').find_map(|pair| pair.strip_prefix("fromImage="))?;
                let (name, login) = (decoded(name), request.login.clone());
                ("docker pull".into(), Box::new(move |node| pull(node, &name, &login)))
            }
            ("POST", ["containers", "create"]) => {
                let name = request.query.split('&').find_map(|pair| pair.strip_prefix("name="))?.to_owned();
                let body: Value = serde_json::from_slice(&request.body).ok()?;
                (format!("docker create {name}"), Box::new(move |node| create(node, &name, &body)))
            }
            ("POST", ["containers", id, verb @ ("start" | "unpause" | "kill" | "stop")]) => {
                let (call, id) = (format!("docker {verb} {}", named(id)), (*id).to_owned());
                let change: Effect = match *verb {
                    "kill" | "stop" => Box::new(move |node| kill(node, &id)),
                    _ => Box::new(move |node| start(node, &id)),
                };
                (call, change)
            }
            ("POST", ["containers", id, "wait"]) => {
                let (call, id) = (format!("docker wait {}", named(id)), (*id).to_owned());
                (call, Box::new(move |node| exit_code(node, &id)))
            }
            ("GET", ["containers", id, "archive"]) => (format!("docker cp-out {}", named(id)), copy_out(request)?),
            ("PUT", ["containers", id, "archive"]) => {
                (format!("docker cp {}", named(id)), Box::new(|_| (200, json!({}))))
            }
            ("POST", ["build"]) => {
                let (query, context) = (decoded(&request.query), request.body.clone());
                ("docker build".into(), Box::new(move |node| build(node, query, &context)))
            }
            ("POST", ["commit"]) => {
                let field = |name: &str| {
                    let value = request.query.split('&').find_map(|pair| pair.strip_prefix(name));
                    value.map(decoded).unwrap_or_default()
                };
                let image = format!("{}:{}", field("repo="), field("tag="));
                let commit = move |node: &Node| {
                    node.edit(|state| state.images.push(image.clone()));
                    (201, json!({ "Id": image_id(&image) }))
                };
                (format!("docker commit {}", field("container=")), Box::new(commit))
            }
            ("DELETE", ["containers", id]) => {
                let (call, id) = (format!("docker remove {}", named(id)), (*id).to_owned());
                (call, Box::new(move |node| remove(node, &id)))
            }
            ("GET", ["containers", id, "json"]) => {
                let (call, id) = (format!("docker inspect {}", named(id)), (*id).to_owned());
                (call, Box::new(move |node| inspect(node, &id)))
            }
            ("GET", ["containers", id, "logs"]) => (format!("docker logs {}", named(id)), Box::new(log)),
            _ => return None,
        })
    }
}

fn log(node: &Node) -> Answer {
    (200, Value::String(node.edit(|state| state.log.clone())))
}

/// Sends a file of a container.
fn copy_out(request: &Request) -> Option<Effect> {
    let path = decoded(request.query.strip_prefix("path=")?);
    Some(Box::new(move |node: &Node| match node.edit(|state| state.container_files.contains_key(&path)) {
        true => (200, Value::String(path)),
        false => (404, json!({ "message": format!("Could not find the file {path} in container") })),
    }))
}

fn is(container: &Container, id: &str) -> bool {
    container.id == id || container.name == id
}

fn missing(id: &str) -> Answer {
    (404, json!({ "message": format!("No such container: {id}") }))
}

fn list(node: &Node) -> Answer {
    let listed = node.edit(|state| {
        let listed = state.containers.iter().map(|c| {
            json!({
                "Id": c.id, "Names": [format!("/{}", c.name)], "Image": c.image, "ImageID": c.image, "State": c.state,
                "Labels": c.labels, "Created": 1_763_735_527 + i64::from_str_radix(&c.id, 16).unwrap_or_default(),
            })
        });
        listed.collect::<Vec<_>>()
    });
    (200, json!(listed))
}

fn version(node: &Node) -> Answer {
    let (os, arch) = node.edit(|state| state.platform);
    (200, json!({ "Version": "27.1.0", "Os": os, "Arch": arch }))
}

fn list_images(node: &Node) -> Answer {
    node.edit(|state| {
        let listed = state.pulled.iter().filter(|_| !state.is_unpacked).map(|(name, image)| {
            let (tags, digests) = if name.contains('@') { (vec![], vec![name]) } else { (vec![name], vec![]) };
            json!({
                "Id": image["Id"], "ParentId": "", "RepoTags": tags, "RepoDigests": digests, "Created": 0, "Size": 0,
                "SharedSize": 0, "Labels": {}, "Containers": 0,
            })
        });
        (200, json!(listed.collect::<Vec<_>>()))
    })
}

fn tag(node: &Node, name: &str, query: &str) -> Answer {
    let of = |key: &str| query.split('&').find_map(|pair| pair.strip_prefix(key)).map(decoded).unwrap_or_default();
    let tagged = format!("{}:{}", of("repo="), of("tag="));
    node.edit(|state| match pulled(state, name) {
        Some(image) => {
            state.pulled.insert(tagged, image);
            (201, Value::Null)
        }
        None if name == BUILT && state.images.iter().any(|image| image == BUILT) => {
            state.images.push(tagged);
            (201, Value::Null)
        }
        None => (404, json!({ "message": format!("No such image: {name}") })),
    })
}

fn untag(node: &Node, name: &str) -> Answer {
    match node.edit(|state| state.pulled.remove(name)) {
        Some(_) => (200, json!([{ "Untagged": name }])),
        None => (404, json!({ "message": format!("No such image: {name}") })),
    }
}

/// The name of the image that a request lets the engine pull from hvdctl; none for another request.
fn pushed_name(request: &Request) -> Option<String> {
    let name = request.query.split('&').find_map(|pair| pair.strip_prefix("fromImage=")).map(decoded)?;
    (request.path == "images/create" && name.starts_with("127.0.0.1:")).then_some(name)
}

/// Pulls as an engine does: it asks only for layers that it does not have, and verifies each.
async fn pull_from_hvdctl(node: &Node, name: &str) -> Answer {
    match try_pull(node, name).await {
        Ok(()) => (200, json!({ "status": "Pull complete" })),
        Err(message) => (500, json!({ "message": message })),
    }
}

async fn try_pull(node: &Node, name: &str) -> Result<(), String> {
    let (repository, digest) = name.split_once('@').ok_or("no digest")?;
    let (address, repository) = repository.split_once('/').ok_or("no repository")?;
    let parse = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).map_err(|error| error.to_string());
    let manifest = parse(&fetch(address, &format!("/v2/{repository}/manifests/{digest}"), digest).await?)?;
    let blob = async |of: &Value| {
        let digest = of["digest"].as_str().unwrap_or_default();
        fetch(address, &format!("/v2/{repository}/blobs/{digest}"), digest).await
    };
    let config = parse(&blob(&manifest["config"]).await?)?;
    for layer in manifest["layers"].as_array().into_iter().flatten() {
        let digest = layer["digest"].as_str().unwrap_or_default();
        if !node.edit(|state| state.layers.contains(digest)) {
            blob(layer).await?;
            node.edit(|state| state.layers.insert(digest.to_owned()));
        }
    }
    let image = json!({
        "Id": manifest["config"]["digest"], "Os": config["os"], "Architecture": config["architecture"], "Size": 2048,
        "Created": config["created"], "Config": { "Env": config["config"]["Env"] },
        "RootFS": { "Type": "layers", "Layers": config["rootfs"]["diff_ids"] },
    });
    node.edit(|state| state.pulled.insert(name.to_owned(), image));
    Ok(())
}

async fn fetch(address: &str, path: &str, digest: &str) -> Result<Vec<u8>, String> {
    let get = async {
        let mut stream = TcpStream::connect(address).await?;
        let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        std::io::Result::Ok(answer)
    };
    let answer = get.await.map_err(|error| error.to_string())?;
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n").ok_or("no answer")?;
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let body = answer[end + 4..].to_vec();
    let found = format!("sha256:{}", hex(&Sha256::digest(&body)));
    if head.starts_with("HTTP/1.1 200") && found == digest { Ok(body) } else { Err(format!("{path}: {head}")) }
}

/// The image of this name or id that was pulled from hvdctl.
fn pulled(state: &NodeState, name: &str) -> Option<Value> {
    let is_it = |own: &str, image: &Value| own == name || image["Id"] == name;
    state.pulled.iter().find(|(own, image)| is_it(own, image)).map(|(_, image)| image.clone())
}

fn image(node: &Node, name: &str) -> Answer {
    if let Some(image) = node.edit(|state| pulled(state, name)) {
        return (200, image);
    }
    match node.edit(|state| state.images.iter().any(|image| image == name).then_some(state.are_old)) {
        Some(true) => (200, json!({ "Id": "sha256:01d", "RootFS": { "Type": "layers", "Layers": ["sha256:0"] } })),
        Some(false) => (200, json!({ "Id": image_id(name), "RootFS": { "Type": "layers", "Layers": ["sha256:1"] } })),
        None => (404, json!({ "message": format!("No such image: {name}") })),
    }
}

/// An image's name as a URL has it.
fn decoded(name: &str) -> String {
    name.replace("%3A", ":").replace("%2F", "/").replace("%40", "@")
}

fn pull(node: &Node, name: &str, login: &str) -> Answer {
    node.edit(|state| {
        state.logins.push(login.to_owned());
        if state.registry_login.is_some_and(|needed| needed != login) {
            let message = match login {
                "" => format!("Head \"https://r.example/v2/{name}\": no basic auth credentials"),
                _ => "unauthorized: incorrect username or password".to_owned(),
            };
            return (500, json!({ "message": message }));
        }
        if !state.has_registry {
            return (404, json!({ "message": format!("pull access denied for {name}") }));
        }
        state.images.push(name.to_owned());
        state.are_old = false;
        (200, json!({ "status": "Pull complete" }))
    })
}

/// Builds a Dockerfile: keeps what was asked, and the names in the context.
fn build(node: &Node, query: String, context: &[u8]) -> Answer {
    let mut archive = tar::Archive::new(context);
    let names = archive.entries().unwrap().map(|entry| entry.unwrap().path().unwrap().display().to_string());
    let names = names.collect::<Vec<_>>().join(" ");
    node.edit(|state| {
        state.builds.push(format!("{query} {names}"));
        state.images.push(BUILT.to_owned());
    });
    (200, build_report("built", true))
}

/// Returns the engine's report of a build with one instruction, which prints `words` and succeeds if `is_ok`.
fn build_report(words: &str, is_ok: bool) -> Value {
    let end = match is_ok {
        true => json!({ "aux": { "ID": BUILT } }),
        false => {
            let message = "The command '/bin/sh -c pip install x' returned a non-zero code: 7";
            json!({ "errorDetail": { "code": 7, "message": message }, "error": message })
        }
    };
    let lines = [json!({ "stream": "Step 2/2 : RUN pip install x" }), json!({ "stream": format!("\n{words}\n") }), end];
    Value::String(lines.map(|line| format!("{line}\r\n")).concat())
}

fn create(node: &Node, name: &str, body: &Value) -> Answer {
    let image = body["Image"].as_str().unwrap_or_default();
    let labels = serde_json::from_value(body["Labels"].clone()).unwrap_or_default();
    // that of the encrypted network has sockets of its own on an interface
    if name != "hmesh" && body["HostConfig"]["CapDrop"] != json!(["CAP_NET_RAW"]) {
        return (400, json!({ "message": format!("{name} could read packets of the node") }));
    }
    node.edit(|state| {
        if state.container(name).is_some() {
            return (409, json!({ "message": format!("Conflict. The container name \"/{name}\" is already in use") }));
        }
        let id = state.create(name, image, labels);
        if let Some(pulled) = state.pulled.get(image).and_then(|pulled| pulled["Id"].as_str()).map(str::to_owned) {
            state.containers.iter_mut().filter(|c| c.id == id).for_each(|c| c.image.clone_from(&pulled));
        }
        (201, json!({ "Id": id, "Warnings": [] }))
    })
}

/// Starts a container. If it is a job's launcher, what was arranged for the next job begins.
fn start(node: &Node, id: &str) -> Answer {
    let mut launched = None;
    let answer = of(node, id, |container| {
        container.state = "running";
        let job = container.labels.get("hvdctl.job").filter(|_| container.name.starts_with("hmaster"));
        launched = job.map(|job| (container.id.clone(), job.clone()));
    });
    if let Some((container, job)) = launched
        && let Some(play) = node.nodes.inner().play.take()
    {
        tokio::spawn(play.perform(node.nodes.clone(), node.name.clone(), container, job));
    }
    answer
}

/// Ends a container. A job supervisor that is asked to end records the result first.
fn kill(node: &Node, id: &str) -> Answer {
    let state = node.edit(|state| state.clone());
    let job =
        state.containers.iter().find(|c| is(c, id) && c.state == "running").and_then(|c| c.labels.get("hvdctl.job"));
    if let Some(job) = job.filter(|job| state.directories.contains_key(*job)) {
        node.nodes.record(&node.name, job, None);
    }
    of(node, id, |container| (container.state, container.code) = ("exited", 143))
}

fn exit_code(node: &Node, id: &str) -> Answer {
    let code = node.edit(|state| state.containers.iter().find(|c| is(c, id)).map(|c| c.code));
    code.map_or_else(|| missing(id), |code| (200, json!({ "StatusCode": code })))
}

fn of(node: &Node, id: &str, change: impl FnOnce(&mut Container)) -> Answer {
    node.edit(|state| match state.containers.iter_mut().find(|c| is(c, id)) {
        Some(container) => {
            change(container);
            (204, Value::Null)
        }
        None => missing(id),
    })
}

fn remove(node: &Node, id: &str) -> Answer {
    node.edit(|state| {
        let before = state.containers.len();
        state.containers.retain(|c| !is(c, id));
        if state.containers.len() < before { (204, Value::Null) } else { missing(id) }
    })
}

fn inspect(node: &Node, id: &str) -> Answer {
    node.edit(|state| match state.containers.iter().find(|c| is(c, id)) {
        Some(c) => (200, json!({ "Id": c.id, "State": { "Status": c.state, "Running": c.state == "running" } })),
        None => missing(id),
    })
}

/// The bytes of an answer. A text is sent as it is, as a container's log is.
fn response(status: u16, body: &Value) -> Vec<u8> {
    let head = format!("HTTP/1.1 {status} -\r\ncontent-type: application/json\r\n");
    match (status, body) {
        (204, _) => format!("{head}\r\n"),
        (_, body) => {
            let body = body.as_str().map_or_else(|| body.to_string(), str::to_owned);
            format!("{head}content-length: {}\r\n\r\n{body}", body.len())
        }
    }
    .into_bytes()
}

/// The answer with an archive.
fn archive(bytes: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 200 -\r\ncontent-type: application/x-tar\r\ncontent-length: {}\r\n\r\n", bytes.len());
    [head.as_bytes(), bytes].concat()
}

/// Reads a request; none where the connection has ended.
async fn read(input: &mut (impl AsyncBufRead + Unpin)) -> Option<Request> {
    let (mut first, mut length, mut login, mut is_chunked) = (String::new(), 0, String::new(), false);
    input.read_line(&mut first).await.ok()?;
    let mut words = first.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    loop {
        let mut line = String::new();
        input.read_line(&mut line).await.ok()?;
        let Some((name, value)) = line.split_once(':') else { break };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().ok()?;
        }
        is_chunked |= name.eq_ignore_ascii_case("transfer-encoding");
        if name.eq_ignore_ascii_case("x-registry-auth") {
            // as the engine reads it
            let decoded = base64::engine::general_purpose::URL_SAFE.decode(value.trim()).unwrap_or_default();
            let mut fields: serde_json::Map<String, Value> = serde_json::from_slice(&decoded).unwrap_or_default();
            fields.retain(|_, field| !field.is_null());
            login = Value::Object(fields).to_string();
        }
    }
    let mut body = vec![0; length];
    input.read_exact(&mut body).await.ok()?;
    while is_chunked {
        let mut line = String::new();
        input.read_line(&mut line).await.ok()?;
        let size = usize::from_str_radix(line.trim(), 16).ok()?;
        let mut chunk = vec![0; size + "\r\n".len()];
        input.read_exact(&mut chunk).await.ok()?;
        body.extend_from_slice(&chunk[..size]);
        is_chunked = size > 0;
    }
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    Some(Request { method, path: path.trim_start_matches('/').to_owned(), query: query.to_owned(), body, login })
}
