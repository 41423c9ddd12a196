//! Makes the encrypted network what the inventory says: plans, gets the image, starts the containers, carries the public keys, and
//! waits until all nodes reach each other.

use super::install;
use super::plan::{self, Addresses, NetworkChange};
use super::rules;
use super::trust::{self, MeshNode, OPERATION, Unconnected};
use crate::cluster::each_node::{NodeResults, each_node, for_each_node};
use crate::cluster::member::Member;
use crate::cluster::observation::{ObservedNode, facts};
use crate::cluster::site::Site;
use crate::cluster::target::Target;
use crate::delivery::project::{ProjectBuild, ProjectImage};
use crate::delivery::worker_image::pull_planned;
use crate::error::{Error, NodeError};
use crate::event::{Events, Step};
use crate::inventory::{Cluster, Node};
use crate::model::finding::Severity;
use crate::model::mesh::{NetworkFile, NetworkNode, NetworkState};
use crate::text::nodeset;
use crate::worker::apply::WorkerPlan;
use crate::worker::plan::Tense;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;
use tokio::time::timeout;

/// The longest time that the build of the image may take.
const BUILD_LIMIT: Duration = Duration::from_secs(3600);

/// The operations on each node, done or planned.
pub type Operations = BTreeMap<String, Vec<String>>;

/// The nodes after the network was changed, or would be.
pub struct NetworkUp {
    /// Each as it was observed afterwards.
    pub nodes: NodeResults<ObservedNode>,
    /// The operations on each node, done or planned.
    pub done: Operations,
}

/// A node and its missing parts.
struct Need {
    observed: ObservedNode,
    /// Why its container has to be started or replaced.
    container: Option<&'static str>,
    /// Its public key, as far as it is known.
    key: Option<String>,
}

/// How the network is made.
pub struct Connecting<'a> {
    /// If set, nothing is changed.
    pub dry_run: bool,
    /// If set, jobs may lose their network.
    pub force: bool,
    /// If set, the output of the build of the image is shown.
    pub shows_output: bool,
    /// The nodes.
    pub site: Site<'a>,
}

impl Connecting<'_> {
    /// Makes the encrypted network of the cluster what the inventory says, if it has one. A dry run only plans. `accepts`
    /// asks the operator whether nodes get the cluster's image from elsewhere than its registry. Nodes on which something
    /// was done have to be observed again: they have their address only now.
    ///
    /// # Errors
    /// If no range is free, only nodes of other owners answer, or jobs would lose their network; when the command is
    /// cancelled. A failure on some nodes is part of the result.
    pub async fn run(
        &self,
        observed: NodeResults<ObservedNode>,
        accepts: impl AsyncFn(&str) -> Result<bool, Error>,
    ) -> Result<NetworkUp, Error> {
        let Site { target, session, events, .. } = self.site;
        let (cluster, all) = (target.cluster(), &target.inventory.nodes);
        // a node that was removed has to lose its way to the last one, too
        let is_needed = all.len() > 1 || observed.ok.iter().any(|node| node.facts.mesh.file.is_some());
        if cluster.network.is_none() || !is_needed {
            return Ok(NetworkUp { nodes: observed, done: BTreeMap::new() });
        }
        let usable = async { Ok(self.usable(observed).await) };
        let observed = session.cancellation.run(usable).await?;
        let hosts = session.cancellation.run(self.hosts(&observed.ok)).await?;
        // what is known now of nodes that fail later
        let known: Vec<NetworkFile> = trust::believed(&views(&observed.ok, &hosts)).into_iter().cloned().collect();
        let (observed, addresses) = self.address(observed, &hosts)?;
        let needs: Vec<Need> = observed.ok.iter().map(|node| self.need(node)).collect();
        let (done, refused) = self.plan(&observed.ok, &hosts, &needs, (&addresses, &known))?;
        let needs =
            NodeResults { ok: needs, failed: Vec::new() }.leave_out(refused.clone(), |need| need.observed.name());
        let observed = observed.without(events, refused, ObservedNode::name);
        if self.dry_run {
            let name = &cluster.network_interface;
            let ok = observed.ok.into_iter().map(|node| connected(node, name, &addresses)).collect();
            return Ok(NetworkUp { nodes: NodeResults { ok, failed: observed.failed }, done });
        }
        let (image, lacking) = match needs.ok.iter().any(|need| need.container.is_some()) {
            true => self.image(&observed, accepts).await?,
            false => (None, Vec::new()),
        };
        let needs = NodeResults { ok: needs.ok, failed: Vec::new() }.leave_out(lacking, |need| need.observed.name());
        let start = async |need: Need| self.start(need, image.as_deref()).await;
        let NodeResults { ok: started, failed } = needs.then(events, start).await;
        session.progress.failed(&failed);
        session.cancellation.check()?;
        let observed = observed.leave_out(failed, ObservedNode::name);
        let keys: BTreeMap<String, String> = started.into_iter().collect();
        let views = views(&observed.ok, &hosts);
        let claimed = trust::claimed_keys(&views, &keys, &plan::absent(all, &views, &known));
        let observed = observed.without(events, claimed, ObservedNode::name);
        let views = self::views(&observed.ok, &hosts);
        // a node that has failed now stays in the network that it has
        let elsewhere = plan::absent(all, &views, &known);
        let files = plan::files(cluster, &views, &addresses, &keys, &elsewhere);
        note_absent(&elsewhere, &done, events);
        let nodes = self.give(observed, &files, done.is_empty()).await?;
        Ok(NetworkUp { nodes, done })
    }

    /// Leaves out nodes that can have no network, or whose endpoint stands for no address.
    async fn usable(&self, observed: NodeResults<ObservedNode>) -> NodeResults<ObservedNode> {
        let Site { target, events, .. } = self.site;
        let refuse = |node| refuse_rootless(node).or_else(|| install::refuse_foreign(target.cluster(), node));
        let refused = observed.ok.iter().filter_map(refuse).collect();
        let observed = observed.without(events, refused, ObservedNode::name);
        let unresolved = unresolved(target.cluster(), &observed.ok).await;
        observed.without(events, unresolved, ObservedNode::name)
    }

    /// Chooses the addresses, and leaves out nodes that use them for something else.
    ///
    /// # Errors
    /// If no range is free, or one of the operator's own nodes uses that of the inventory for something else; if only nodes
    /// of other owners are left.
    fn address(
        &self,
        observed: NodeResults<ObservedNode>,
        hosts: &BTreeMap<String, String>,
    ) -> Result<(NodeResults<ObservedNode>, Addresses), Error> {
        let Site { target, events, .. } = self.site;
        if !observed.ok.is_empty() && !observed.ok.iter().any(|node| node.member.node.is_source()) {
            return Err(without_source());
        }
        let views = views(&observed.ok, hosts);
        let addresses = plan::addresses(target.cluster(), &views, &plan::elsewhere(&target.inventory.nodes, &views))?;
        let collisions = plan::collisions(target.cluster(), addresses.range, &views);
        // another owner's node costs only itself its network
        let is_own = |name: &str| views.iter().any(|seen| seen.node.name == name && seen.node.is_source());
        if collisions.iter().any(|error| is_own(&error.node)) {
            return Err(Error::Nodes { failed: collisions, done: 0 });
        }
        Ok((observed.without(events, collisions, ObservedNode::name), addresses))
    }

    /// Returns what is done on each node, or would be, and the errors of other owners' nodes whose jobs would lose their
    /// network.
    ///
    /// # Errors
    /// If jobs of the operator's own nodes would lose their network.
    fn plan(
        &self,
        observed: &[ObservedNode],
        hosts: &BTreeMap<String, String>,
        needs: &[Need],
        (addresses, known): (&Addresses, &[NetworkFile]),
    ) -> Result<(Operations, Vec<NodeError>), Error> {
        let Site { target, events, .. } = self.site;
        let (cluster, views) = (target.cluster(), views(observed, hosts));
        let keys = needs.iter().filter_map(|need| Some((need.observed.name().to_owned(), need.key.clone()?)));
        let elsewhere = plan::absent(&target.inventory.nodes, &views, known);
        let expected = plan::files(cluster, &views, addresses, &unknown_keys(needs, keys), &elsewhere);
        let (mut planned, mut refused) = (BTreeMap::new(), Vec::new());
        for need in needs {
            let name = need.observed.name();
            let changes = plan::changes(need.observed.facts.mesh.file.as_ref(), &expected[name]);
            if let Some(why) = self.broken_jobs(need, &changes).filter(|_| !self.force) {
                let hint = "wait until they have ended, or stop them: hvdctl stop; --force goes on at once";
                let error = || Error::check(format!("{name}: {why}"), hint);
                match (self.dry_run, need.observed.member.node.is_source()) {
                    (true, _) => events.warn(error()),
                    (false, true) => return Err(error()),
                    (false, false) => {
                        refused.push(NodeError::failed(name, OPERATION, why).hint(hint));
                        continue;
                    }
                }
            }
            let tense = if self.dry_run { Tense::Planned } else { Tense::Done };
            let done = operations(&cluster.network_interface, need.container, &changes, tense);
            if !done.is_empty() {
                planned.insert(name.to_owned(), done);
            }
        }
        Ok((planned, refused))
    }

    /// Gives the nodes what they are to know, and waits until they reach each other.
    async fn give(
        &self,
        observed: NodeResults<ObservedNode>,
        files: &BTreeMap<String, NetworkFile>,
        is_unchanged: bool,
    ) -> Result<NodeResults<ObservedNode>, Error> {
        let Site { target, session, events, .. } = self.site;
        let give = async |node: ObservedNode| self.give_node(node, files, is_unchanged).await;
        let giving = async { Ok(observed.then(events, give).await) };
        let given: NodeResults<(ObservedNode, Option<NetworkState>)> = session.cancellation.run(giving).await?;
        let NodeResults { ok, failed } = given;
        let (nodes, states): (Vec<ObservedNode>, Vec<Option<NetworkState>>) = ok.into_iter().unzip();
        // a node that sees nothing wrong may be the one that others do not reach
        let known = nodes.iter().zip(&states).filter(|_| states.iter().any(Option::is_some));
        let reported: BTreeMap<&str, &NetworkState> = known
            .filter_map(|(node, state)| Some((node.name(), state.as_ref().or(node.facts.mesh.state.as_ref())?)))
            .collect();
        let members = nodes.iter().map(|node| &node.member);
        let unconnected = failures(target.cluster(), members, &reported, events);
        Ok(NodeResults { ok: nodes, failed }.without(events, unconnected, ObservedNode::name))
    }

    /// Returns the host to which ssh connects for each node, where nothing is in between.
    async fn hosts(&self, nodes: &[ObservedNode]) -> Result<BTreeMap<String, String>, Error> {
        let Some(control) = self.site.fleet.control(self.site.cluster()).await? else { return Ok(BTreeMap::new()) };
        let host = async |node: &ObservedNode| {
            let destination = control.destination(&node.member.node).await?;
            Ok((!destination.is_behind_jump_host).then(|| (node.name().to_owned(), destination.host)))
        };
        let found: Vec<Option<(String, String)>> =
            each_node(nodes.iter().collect(), self.site.events, host).await.all()?;
        Ok(found.into_iter().flatten().collect())
    }

    /// Returns what a node lacks.
    fn need(&self, observed: &ObservedNode) -> Need {
        let container = install::lack(self.site.cluster(), observed);
        let now = observed.facts.clock.map_or(f64::MAX, |clock| clock.high);
        let state = observed.facts.mesh.current(now).filter(|_| container.is_none());
        Need { observed: observed.clone(), container, key: state.and_then(|state| state.public_key.clone()) }
    }

    /// Returns why jobs of a node would lose their network, if they would.
    fn broken_jobs(&self, need: &Need, changes: &[NetworkChange]) -> Option<String> {
        let jobs = &need.observed.open.under_way;
        let is_used = need.observed.facts.mesh.file.is_some() && !jobs.is_empty();
        let replaces = matches!(need.container, Some("differs" | "name"));
        let records = need.observed.open.jobs.iter().filter(|job| need.observed.open.is_under_way(&job.id));
        let records: Vec<&str> = records.map(|job| job.record.as_str()).collect();
        let broken: Vec<String> =
            changes.iter().filter(|change| change.breaks_jobs(&records)).map(ToString::to_string).collect();
        let name = &self.site.cluster().network_interface;
        let what = if replaces { format!("{name} is replaced") } else { broken.join(", ") };
        (is_used && !what.is_empty())
            .then(|| format!("the encrypted network is changed ({what}), and jobs use it: {}", jobs.join(", ")))
    }

    /// Gives the nodes the image of the container, and returns its name, and the nodes that failed. As yet they have no
    /// address in the network, so the cluster's image, too, gets there as if there were no such network.
    ///
    /// # Errors
    /// If the build fails, or neither the master nor a node of the operator's has the cluster's image.
    async fn image(
        &self,
        observed: &NodeResults<ObservedNode>,
        accepts: impl AsyncFn(&str) -> Result<bool, Error>,
    ) -> Result<(Option<String>, Vec<NodeError>), Error> {
        let Site { target, fleet, events, session } = self.site;
        let lacks = |node: &&ObservedNode| install::lack(target.cluster(), node).is_some();
        let lacking: BTreeSet<&str> = observed.ok.iter().filter(lacks).map(ObservedNode::name).collect();
        let outside = Target { inventory: target.inventory.outside_network(), ..target.clone() };
        let site = Site { target: &outside, fleet, session, events };
        let as_outside = |mut node: ObservedNode| {
            node.member.node.interface = None;
            // it takes no jobs, and stays in the network
            node.facts.drained = None;
            node
        };
        let nodes = NodeResults { ok: observed.ok.iter().cloned().map(as_outside).collect(), failed: Vec::new() };
        let plans = nodes.then(events, async |node| WorkerPlan::new(&outside.inventory, node)).await;
        let plans = pull_planned(plans, site, accepts).await?;
        let NodeResults { ok: plans, failed } = plans;
        if plans.is_empty() {
            return Ok((None, failed));
        }
        let mut nodes: Vec<ObservedNode> = plans.into_iter().map(|plan| plan.observed).collect();
        // all others run what the first one builds
        nodes.sort_by_key(|node| !node.member.node.is_source());
        if !nodes[0].member.node.is_source() {
            return Err(if failed.is_empty() { without_source() } else { Error::Nodes { failed, done: 0 } });
        }
        // a node whose container stays needs no image, unless it builds that
        let source = nodes[0].name().to_owned();
        nodes.retain(|node| node.name() == source || lacking.contains(node.name()));
        let recipe = install::image(&outside.inventory.cluster);
        let build = ProjectBuild {
            name: "network",
            recipe: &recipe,
            limit: BUILD_LIMIT,
            shows_output: self.shows_output,
            site,
        };
        let ProjectImage { image, .. } = build.provide(nodes).await?;
        Ok((Some(image), failed))
    }

    /// Gives a node the programs and its container, and returns its name with its public key.
    async fn start(&self, need: Need, image: Option<&str>) -> Result<(String, String), NodeError> {
        let Site { target, events, session, .. } = self.site;
        let (cluster, Need { observed, container, key }) = (target.cluster(), need);
        let name = observed.name().to_owned();
        let has_changed = install::install_programs(cluster, &observed).await?;
        match (container, image) {
            (Some(_), Some(image)) => {
                let _step = events.begin(&name, Step::write(format!("starting {}", cluster.network_interface)));
                install::start(cluster, &observed, image).await?;
                session.progress.record(&name, format!("started {}", cluster.network_interface));
            }
            _ if has_changed => install::restart_agent(cluster, &observed).await?,
            _ => {}
        }
        let key = match key {
            Some(key) => key,
            None => install::public_key(cluster, &observed.member, false).await?,
        };
        Ok((name, key))
    }

    /// Gives a node what it is to know, and waits until it reaches the others. Where nothing changes and all is well, only
    /// looks.
    async fn give_node(
        &self,
        node: ObservedNode,
        files: &BTreeMap<String, NetworkFile>,
        is_unchanged: bool,
    ) -> Result<(ObservedNode, Option<NetworkState>), NodeError> {
        let Site { target, events, session, .. } = self.site;
        let (cluster, file) = (target.cluster(), &files[node.name()]);
        if node.facts.mesh.file.as_ref() != Some(file) {
            install::write(cluster, &node.member, file).await?;
            session.progress.record(node.name(), "changed the encrypted network");
        }
        let counts = |name: &str| files.contains_key(name);
        let now = node.facts.clock.map_or(f64::MAX, |clock| clock.high);
        if is_unchanged && node.facts.mesh.file.as_ref() == Some(file) && node.facts.mesh.is_well(now, counts) {
            return Ok((node, None));
        }
        let state = install::wait(cluster, &node.member, file, counts, events).await?;
        Ok((node, Some(state)))
    }
}

/// Gives all nodes of a network new keys, and waits until they reach each other again. Their connections wait meanwhile.
/// Returns the nodes that have one, and the failures; a node without the network has nothing to change.
///
/// # Errors
/// If one of them cannot be asked, or two have the same key. Then no key was replaced.
pub async fn rotate(cluster: &Cluster, members: &[Member], events: &Events) -> Result<NodeResults<String>, Error> {
    let known = async |member: &Member| {
        let Some(file) = facts(cluster, member).await?.mesh.file else { return Ok(None) };
        let key = install::public_key(cluster, member, true).await?;
        Ok(Some((member.clone(), file, key)))
    };
    let known = each_node(members.iter().collect(), events, known).await.all()?;
    let known: Vec<(Member, NetworkFile, String)> = known.into_iter().flatten().collect();
    let keys: BTreeMap<String, String> =
        known.iter().map(|(member, _, key)| (member.node.name.clone(), key.clone())).collect();
    let own = known.iter().filter(|(member, ..)| member.node.is_source()).flat_map(|(_, file, _)| &file.nodes);
    let before = own.map(|node| (node.name.as_str(), node.public_key.as_str()));
    let new = keys.iter().map(|(name, key)| (name.as_str(), key.as_str()));
    if let Some([one, other]) = trust::shared_key(before.chain(new)) {
        let hint = format!("hvdctl --on {one} down --network, then hvdctl up: it makes a key of its own");
        return Err(Error::check(format!("{one} and {other} have the same key of the encrypted network"), hint));
    }
    let renewed = known.into_iter().map(|(member, mut file, _)| {
        for node in &mut file.nodes {
            if let Some(key) = keys.get(&node.name) {
                node.public_key.clone_from(key);
            }
        }
        (member, file)
    });
    let give = async |(member, file): (Member, NetworkFile)| {
        install::write(cluster, &member, &file).await?;
        Ok((member, file))
    };
    let given = each_node(renewed.collect(), events, give).await;
    let settle = async |(member, file): (Member, NetworkFile)| {
        let state = install::wait(cluster, &member, &file, |name| keys.contains_key(name), events).await?;
        Ok((member.node.name.clone(), state))
    };
    let settled = given.then(events, settle).await;
    let states = settled.ok.iter().map(|(name, state)| (name.as_str(), state)).collect();
    let unconnected = failures(cluster, members.iter(), &states, events);
    let NodeResults { ok, failed } = settled.without(events, unconnected, |(name, _)| name);
    Ok(NodeResults { ok: ok.into_iter().map(|(name, _)| name).collect(), failed })
}

/// Returns the error of a command for which neither the master nor a node of the operator's can speak.
fn without_source() -> Error {
    let hint = "let the master take part (--on), or repair it: root of other nodes decides what these know";
    Error::check("neither the master nor a node of yours can say what the encrypted network is", hint)
}

/// Returns a node as it will be when it has its address in the network.
fn connected(mut node: ObservedNode, interface: &str, addresses: &Addresses) -> ObservedNode {
    let address = IpAddr::V4(addresses.of[node.name()]);
    let known = &mut node.facts.network.addresses;
    known.retain(|(known, _)| known != interface);
    known.push((interface.to_owned(), address));
    node
}

/// Refuses a node on which hvdctl can make no network interface.
fn refuse_rootless(node: &ObservedNode) -> Option<NodeError> {
    let cause = "its engine has no root, which a network interface needs";
    let hint = "log in as root or with sudo, or leave out `network` in [cluster]";
    node.facts.permissions.home.as_ref().map(|_| NodeError::failed(node.name(), OPERATION, cause).hint(hint))
}

/// Returns the errors of nodes whose endpoint stands for no address.
async fn unresolved(cluster: &Cluster, nodes: &[ObservedNode]) -> Vec<NodeError> {
    let (limit, port) = (cluster.connect_timeout, cluster.network_port);
    let nodes = nodes.iter().map(|observed| &observed.member.node);
    let named = nodes.filter_map(|node| Some((node, node.endpoint.as_deref()?))).collect();
    let failed = for_each_node(named, async |(node, endpoint): (&Node, &str)| {
        let place = plan::with_port(endpoint, port);
        let cause = match timeout(limit, tokio::net::lookup_host(&place)).await {
            Ok(Ok(mut found)) => found.next().is_none().then(|| "it stands for no address".to_owned()),
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("no answer within {} s", limit.as_secs())),
        };
        let operation = format!("resolve its endpoint {endpoint}");
        cause.map(|cause| NodeError::failed(&node.name, &operation, cause).hint("correct `endpoint` of this [[node]]"))
    })
    .await;
    failed.into_iter().flatten().collect()
}

fn views<'a>(nodes: &'a [ObservedNode], hosts: &'a BTreeMap<String, String>) -> Vec<MeshNode<'a>> {
    let view = |observed: &'a ObservedNode| MeshNode {
        node: &observed.member.node,
        facts: &observed.facts,
        host: hosts.get(observed.name()).map(String::as_str),
    };
    nodes.iter().map(view).collect()
}

/// Returns the keys that are known, and in place of the others those of the files that the nodes have: a container that is
/// started again has its key still.
fn unknown_keys(needs: &[Need], known: impl Iterator<Item = (String, String)>) -> BTreeMap<String, String> {
    let of_file = |need: &Need| {
        let (name, file) = (need.observed.name(), need.observed.facts.mesh.file.as_ref());
        let own = file.and_then(|file| file.nodes.iter().find(|node| node.name == name));
        (name.to_owned(), own.map_or_else(String::new, |node| node.public_key.clone()))
    };
    needs.iter().map(of_file).collect::<BTreeMap<_, _>>().into_iter().chain(known).collect()
}

/// Formats what is done on a node.
fn operations(name: &str, container: Option<&str>, changes: &[NetworkChange], tense: Tense) -> Vec<String> {
    let mut done: Vec<String> = container
        .map(|reason| match reason {
            "missing" => format!("{} {name}", tense.of("start")),
            reason => format!("{} {name} ({reason})", tense.of("recreate")),
        })
        .into_iter()
        .collect();
    if !changes.is_empty() {
        let list: Vec<String> = changes.iter().map(ToString::to_string).collect();
        done.push(format!("{} the encrypted network ({})", tense.of("change"), list.join("; ")));
    }
    done
}

/// Notes which nodes do not know of the changes yet.
fn note_absent(elsewhere: &BTreeMap<String, NetworkNode>, done: &Operations, events: &Events) {
    if !elsewhere.is_empty() && !done.is_empty() {
        let absent: Vec<&String> = elsewhere.keys().collect();
        events.note(format!(
            "{}: left out; what has changed in the encrypted network gets there with the next hvdctl up",
            nodeset::fold(&absent)
        ));
    }
}

/// Returns the nodes that have no network, or do not reach all others, and notes the rest of the findings.
fn failures<'a>(
    cluster: &Cluster,
    members: impl Iterator<Item = &'a Member>,
    states: &BTreeMap<&str, &NetworkState>,
    events: &Events,
) -> Vec<NodeError> {
    let error = |node: &str, cause: &str, hint: &str| NodeError::failed(node, OPERATION, cause).hint(hint);
    let problems = states.iter().filter_map(|(node, state)| Some((*node, state.problem.as_ref()?)));
    let mut failed: Vec<NodeError> =
        problems.map(|(node, problem)| error(node, &problem.text, &rules::hint(problem, cluster))).collect();
    let notes = rules::between(cluster, states).into_iter().filter(|found| found.severity != Severity::Error);
    notes.for_each(|finding| events.note(finding.to_string()));
    let own: BTreeSet<&str> =
        members.filter(|member| member.node.is_source()).map(|member| member.node.name.as_str()).collect();
    let faults = trust::faults(cluster, states, |name| own.contains(name));
    failed.extend(faults.iter().map(|Unconnected { node, cause, hint }| error(node, cause, hint)));
    failed
}
