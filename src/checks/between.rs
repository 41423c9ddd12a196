//! Rules that compare nodes: versions, packet sizes, routes, names, logins and random ports.

use super::Severity::{Error, Note, Warning};
use super::{Check, Details, Finding, NodeView};
use crate::inventory::Cluster;
use crate::keys::reachability::{FailedLogins, Matrix, hint};
use crate::launch::VERSIONS;
use crate::model::engine::EngineName;
use crate::model::mesh::let_in;
use crate::node::differing::differing;
use crate::node::network::is_virtual;
use crate::text::nodeset;

/// Applies these rules, except those on connections: [`logins`] and [`ports`].
pub(super) fn examine(cluster: &Cluster, views: &[NodeView<'_>]) -> Vec<Finding> {
    let mut found = Vec::new();
    for view in views {
        found.extend(views.iter().filter_map(|other| name(cluster, view, other)));
        let Some(details) = &view.details else { continue };
        let others = views.iter().filter(|other| other.name() != view.name());
        found.extend(others.filter_map(|other| route(view, details, other)));
    }
    found.extend(mtu(views));
    found.extend(versions(cluster, views));
    found
}

/// The frameworks in an image, with their keys in [`Versions`](super::Versions).
const FRAMEWORKS: [(&str, &str); 4] =
    [("PyTorch", "torch"), ("TensorFlow", "tensorflow"), ("MXNet", "mxnet"), ("JAX", "jax")];

/// Versions that differ, and what the images have.
fn versions(cluster: &Cluster, views: &[NodeView<'_>]) -> Vec<Finding> {
    let compare = |severity, what: &str, version: &dyn Fn(&NodeView<'_>) -> Option<String>| {
        let versions = views.iter().filter_map(|view| Some((view.node, version(view)?))).collect();
        differing(severity, Check::Versions, &format!("the {what} differs"), versions)
    };
    let mut found = Vec::new();
    let libraries = VERSIONS.into_iter().chain([("CUDA", "cuda"), ("NCCL", "nccl")]);
    for (what, key) in [("Python", "python")].into_iter().chain(FRAMEWORKS).chain(libraries) {
        let version = |view: &NodeView<'_>| {
            let version = view.inside.get(key).map_or("none", String::as_str);
            let is_known = !view.inside.is_empty() && !view.inside.contains_key(&format!("unread:{key}"));
            is_known.then(|| version.to_owned())
        };
        let why = |view: &NodeView<'_>| view.inside.get(&format!("unread:{key}")).cloned();
        found.extend(views.iter().filter_map(|view| Some(unread(view, what, &why(view)?))));
        found.extend(compare(Error, what, &version).map(|finding| {
            finding.explain(
                "ranks with different versions may hang, or compute different results",
                match cluster.can().images {
                    true => "give every node the same image (`hvdctl image push --from NODE`), then `hvdctl up`",
                    false => "`hvdctl env create` makes the same virtualenv on every node",
                },
            )
        }));
    }
    let driver = compare(Warning, "NVIDIA driver", &|view| view.details.as_ref()?.driver.clone());
    found.extend(driver.map(|finding| {
        finding.explain(
            "an older driver may be too old for the image, and speeds may differ",
            "install the same driver on every node, and restart the nodes",
        )
    }));
    // a view without an answer of its engine may be of a node that has another one
    let is_docker = |view: &NodeView<'_>| view.engine.is_none() || view.engine_name == EngineName::Docker;
    found.extend(match views.iter().all(is_docker) {
        true => compare(Note, "Docker Engine", &|view| view.engine.map(str::to_owned)),
        false => compare(Note, "engine", &|view| Some(view.engine_name.with(view.engine?))),
    });
    found.extend(compare(Note, "kernel", &|view| view.details.as_ref()?.kernel.clone()));
    found.extend(views.iter().filter_map(|view| image(view, cluster.can().surroundings)));
    found
}

/// A version that could not be read, and so was not compared.
fn unread(view: &NodeView<'_>, what: &str, why: &str) -> Finding {
    let message = format!("cannot read the {what}: {why}");
    let hint = "try it there with `hvdctl exec -c`; the node may be busy, or the image's file system slow; \
                cluster.command_timeout_s allows more time";
    view.warning(Check::Versions, message).explain("it was not compared with that of the other nodes", hint)
}

/// The launchers and frameworks of a node's image.
fn image(view: &NodeView<'_>, what: &str) -> Option<Finding> {
    let launchers = view.inside.get("launchers")?;
    let version = |(name, key): (&str, &str)| view.inside.get(key).map(|version| format!("{name} {version}"));
    let frameworks: Vec<String> = FRAMEWORKS.into_iter().chain([("mpi4py", "mpi4py")]).filter_map(version).collect();
    let frameworks = if frameworks.is_empty() { "none".to_owned() } else { frameworks.join(", ") };
    Some(view.note(Check::Launchers, format!("{what} has {launchers}; frameworks: {frameworks}")))
}

fn mtu(views: &[NodeView<'_>]) -> Option<Finding> {
    let mtu = |view: &NodeView<'_>| view.details.as_ref()?.mtu.get(&view.place()?.interface).map(u32::to_string);
    let mtus = views.iter().filter_map(|view| Some((view.node, mtu(view)?))).collect();
    Some(differing(Warning, Check::Mtu, "its interface has a different MTU", mtus)?.explain(
        "large packets may be lost: small ones pass, and the job hangs with the first large tensor",
        "set the same MTU on every node (`sudo ip link set dev INTERFACE mtu N`), also in the network configuration",
    ))
}

/// The interface by which packets to another node leave.
fn route(view: &NodeView<'_>, details: &Details, other: &NodeView<'_>) -> Option<Finding> {
    let (own, target) = (&view.place()?.interface, other.place()?.address);
    let hint = "fix the route (`ip route get ADDRESS` on the node), or set `address` or `interface` of the [[node]]s";
    let interface = match details.routes.get(&target)? {
        Ok(interface) if interface == own => return None,
        Ok(interface) => interface,
        Err(reason) => {
            let message = format!("has no route to {} ({target}): {reason}", other.name());
            return Some(view.error(Check::Route, message).explain("ranks on the two nodes cannot connect", hint));
        }
    };
    let message = format!("packets to {} ({target}) leave by {interface}", other.name());
    Some(if is_virtual(interface) {
        view.error(Check::Route, format!("{message}, which reaches no other machine")).explain(
            "a local network has the same addresses as the cluster, or both nodes have the same address: ranks hang",
            hint,
        )
    } else if details.strict.contains(own) {
        let message = format!("{message} instead of {own}, and {own} drops incoming packets from there (rp_filter)");
        view.warning(Check::Route, message).explain(
            "the kernel drops such packets because they may be forged: ranks hang",
            format!("{hint}; or `sudo sysctl net.ipv4.conf.{{all,{own}}}.rp_filter=2`"),
        )
    } else {
        view.warning(Check::Route, format!("{message} instead of {own}")).explain(
            "requests and replies take different interfaces: this is slow, and firewalls may drop the replies",
            hint,
        )
    })
}

/// A host name that does not lead to its node in the worker of a node, where `up` and every job write the names.
fn name(cluster: &Cluster, view: &NodeView<'_>, other: &NodeView<'_>) -> Option<Finding> {
    let (hostname, address) = (&other.facts.hostname, other.place()?.address.to_string());
    let found = view.inside.get(&format!("name:{hostname}"))?.trim();
    if found == address {
        return None;
    }
    let leads = if found.is_empty() { "is unknown".to_owned() } else { format!("resolves to {found}") };
    if !cluster.layout(&cluster.worker).own_hosts {
        let message = format!("the host name {hostname} {leads} there instead of {address}");
        return Some(Finding::new(Note, Check::Names, view.name(), message).explain(
            "hvdctl uses addresses, and gives the interface to Gloo, NCCL and MPI; a program that connects by host name \
             reaches the wrong machine, or none",
            "without containers, only root can fix this, in /etc/hosts of the node",
        ));
    }
    let message = format!("the host name {hostname} {leads} in its worker instead of {address}");
    let (severity, why) = if view.name() == other.name() {
        (
            Error,
            "Gloo connects the ranks of a node by the address of its host name: jobs hang, fail, or use another \
             network",
        )
    } else {
        (Warning, "hvdctl uses addresses, but a program that connects by host name reaches the wrong machine, or none")
    };
    Some(Finding::new(severity, Check::Names, view.name(), message).explain(
        why,
        "run `hvdctl up`, which writes the names to /etc/hosts of the worker; if they are there, add `files` to \
         `hosts:` in /etc/nsswitch.conf of the image",
    ))
}

/// Logins from worker to worker that failed. Nodes whose worker is not running have a finding of their own. `network`: the
/// interface of the encrypted network, if they went through it.
pub fn logins(matrix: &Matrix, port: u16, network: Option<&str>) -> Vec<Finding> {
    let finding = |row: FailedLogins| {
        let message = format!("cannot log in to {} on port {port}: {}", nodeset::fold(&row.to), row.reason);
        let why = "the launcher starts ranks over these logins, and hangs if one of them does";
        Finding::of_nodes(Error, Check::Login, row.from, message).explain(why, hint(&row.reason, port, network))
    };
    matrix.rows().into_iter().map(finding).collect()
}

/// Connections on random ports that failed. `open`: the workers' port can be reached. `network`: the interface of the
/// encrypted network, if they went through it.
pub fn ports(matrix: &Matrix, open: Option<u16>, network: Option<&str>) -> Vec<Finding> {
    let firewall = open.map_or(String::new(), |port| format!("a firewall allows port {port} but not the others; "));
    let in_firewalls =
        "allow TCP ports above 1023 between the nodes in both directions (the nodes' firewalls, security groups)";
    let finding = |row: FailedLogins| {
        let message = format!("cannot reach {} on random high ports: {}", nodeset::fold(&row.to), row.reason);
        Finding::of_nodes(Error, Check::Ports, row.from, message).explain(
            format!("{firewall}ranks connect on random ports above 1023, and hang without a message if they cannot"),
            network.map_or_else(|| in_firewalls.to_owned(), let_in),
        )
    };
    matrix.rows().into_iter().map(finding).collect()
}
