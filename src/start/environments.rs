//! The nodes of roles that have an image or lines of `activate` of their own: their workers have these in place of the
//! cluster's and the node's. A node has one of each, which is that of all roles with ranks there.

use super::capacity::AllocatedNodes;
use super::roles::{JobRole, RoleImage};
use crate::cluster::each_node::{NodeResults, each_node};
use crate::cluster::member::Member;
use crate::cluster::observation::{ObservedNode, OwnEnvironment};
use crate::cluster::site::Site;
use crate::delivery::image::give;
use crate::delivery::origin::SourceChoice;
use crate::delivery::pull::pull;
use crate::error::{Error, NodeError};
use crate::inventory::{Cluster, Pull};
use crate::launch::description::Start;
use crate::launch::placement::Placement;
use crate::runtime::Image;
use crate::runtime::spec::is_setup_image;
use crate::text::nodeset;
use crate::worker::image;
use std::collections::BTreeMap;

impl JobRole {
    /// Returns what its nodes have in place of what the inventory says.
    fn environment(&self) -> OwnEnvironment {
        OwnEnvironment {
            image: self.image.as_ref().map(|image| image.name.clone()),
            activate: self.project.environment.activate.clone(),
        }
    }
}

/// Checks that the ranks of roles can have what the roles name.
///
/// # Errors
/// An image without containers, or `activate` in these.
pub fn check_runtime(roles: &[JobRole], cluster: &Cluster) -> Result<(), Error> {
    let (has_images, is_batch) = (cluster.can().images, !cluster.can().choose_nodes);
    for role in roles {
        let (name, own) = (&role.project.name, &role.project.environment);
        let refused = [
            ("image", own.image.is_some() && !has_images, "use `activate`: ranks are processes, and have no image"),
            ("setup", own.setup.is_some() && !has_images, "use `activate`, or hvdctl env create: ranks have no image"),
            ("activate", own.activate.is_some() && has_images, "use `image` or `setup`: ranks are in containers"),
            ("activate", own.activate.is_some() && is_batch, "activate it in `command`, or set slurm.activate for all"),
        ];
        if let Some((field, _, hint)) = refused.into_iter().find(|(_, is_refused, _)| *is_refused) {
            let line = role.project.line;
            return Err(Error::usage(
                format!("hvdctl.toml: line {line}: the role {name} cannot have `{field}` here"),
                hint,
            ));
        }
    }
    Ok(())
}

/// Returns the number of the role whose environment each node has, by the node's name. Nodes of roles that have none of
/// their own are left out.
///
/// # Errors
/// A role that another node would have to launch in its own environment.
fn roles_of_nodes<'a>(placement: &'a Placement, roles: &[JobRole]) -> Result<BTreeMap<&'a str, usize>, Error> {
    let starts_there = |role: &JobRole| role.launcher().start == Start::Central;
    let launcher = placement.launcher();
    let mut found = BTreeMap::new();
    for share in &placement.shares {
        let there = share.roles.iter().position(|ranks| *ranks > 0);
        // the node of the launcher may have no ranks
        let of_launcher = || roles.iter().position(starts_there).filter(|_| share.node == launcher);
        found.extend(there.or_else(of_launcher).map(|role| (share.node.as_str(), role)));
    }
    let of_launcher = found.get(launcher).map(|role| roles[*role].environment()).unwrap_or_default();
    if let Some(role) = roles.iter().find(|role| starts_there(role) && role.environment() != of_launcher) {
        let (name, program) = (&role.project.name, role.launcher().program);
        return Err(Error::usage(
            format!(
                "{program} starts the ranks of the role {name} from {launcher}, which has not the image, `setup` and \
                 `activate` of that role"
            ),
            format!("use launcher = \"torchrun\" or \"env\" for it, or give {launcher} to it: --on {name}={launcher}"),
        ));
    }
    found.retain(|_, role| roles[*role].environment() != OwnEnvironment::default());
    Ok(found)
}

/// Gives the nodes of roles the environment of these, and pulls or copies the images that they lack. A dry run says
/// which ones that would be.
///
/// # Errors
/// A role that another node would have to launch in its own environment; an image that a node cannot get; the command is
/// cancelled.
pub async fn provide(
    allocated: &mut AllocatedNodes,
    roles: &[JobRole],
    site: Site<'_>,
    is_dry_run: bool,
) -> Result<(), Error> {
    let of_nodes = roles_of_nodes(&allocated.placement, roles)?;
    let with_role = |observed: &ObservedNode| of_nodes.get(observed.name()).map(|role| &roles[*role]);
    let mut images: Vec<(&RoleImage, Vec<usize>)> = Vec::new();
    for (position, observed) in allocated.nodes.iter_mut().enumerate() {
        let Some(role) = with_role(observed) else { continue };
        let own = role.environment();
        if let Some(lines) = &own.activate {
            observed.member.node.container.activate.clone_from(lines);
        }
        observed.runtime.own = own;
        let Some(image) = &role.image else { continue };
        match images.iter_mut().find(|(other, _)| *other == image) {
            Some((_, nodes)) => nodes.push(position),
            None => images.push((image, vec![position])),
        }
    }
    for (image, positions) in images {
        let member = |position: &usize| allocated.nodes[*position].member.clone();
        let members = positions.iter().map(member).collect();
        let others = (0..allocated.nodes.len()).filter(|position| !positions.contains(position));
        let others = others.map(|position| member(&position)).filter(|other| other.node.is_source()).collect();
        let found = images_on(image, (members, others), site, is_dry_run).await?;
        positions.iter().zip(found).for_each(|(position, image)| allocated.nodes[*position].runtime.image = image);
    }
    Ok(())
}

/// Returns the image of a role on each of its nodes, which get it if they lack it. `others`: nodes from which they may
/// get it.
async fn images_on(
    wanted: &RoleImage,
    (members, others): (Vec<Member>, Vec<Member>),
    site: Site<'_>,
    is_dry_run: bool,
) -> Result<Vec<Option<Image>>, Error> {
    let Site { events, session, .. } = site;
    let find = async |member: Member| member.runtime().await?.image(&wanted.name).await;
    let on_each = async |nodes: &[Member]| {
        session.cancellation.run(async { each_node(nodes.to_vec(), events, find).await.all() }).await
    };
    let mut found = on_each(&members).await?;
    let is_wanted = |image: &Option<Image>| image::is_wanted_by(wanted.pull, &wanted.name, image.is_some());
    let lacking: Vec<Member> =
        members.iter().zip(&found).filter(|(_, image)| is_wanted(image)).map(|(member, _)| member.clone()).collect();
    if lacking.is_empty() || is_setup_image(&wanted.name) {
        return Ok(found);
    }
    if is_dry_run {
        let nodes: Vec<&str> = lacking.iter().map(|member| member.node.name.as_str()).collect();
        let gets = if wanted.pull == Pull::Peers { "gets it from another node first" } else { "pulls it first" };
        events.note(format!("{}: the job {gets}: {}", nodeset::fold(&nodes), wanted.name));
        for image in &mut found {
            image.get_or_insert_with(image::to_be_pulled);
        }
        return Ok(found);
    }
    let nodes = |ok| NodeResults { ok, failed: Vec::new() };
    let (done, failed): (usize, Vec<NodeError>) = match wanted.pull {
        Pull::Peers => {
            let elsewhere = if found.iter().any(Option::is_some) { Vec::new() } else { on_each(&others).await? };
            let other = others.iter().zip(elsewhere).find(|(_, image)| image.is_some());
            let from = other.map(|(other, _)| SourceChoice::Node(other.node.name.clone()));
            let from = from.unwrap_or(SourceChoice::Anywhere);
            let given = give(&from, &wanted.name, nodes(members.clone()), site).await?;
            (given.ok.len(), given.failed)
        }
        _ => {
            let pulled = pull(&wanted.name, nodes(lacking), site).await?;
            (pulled.ok.len(), pulled.failed)
        }
    };
    if failed.is_empty() { on_each(&members).await } else { Err(Error::Nodes { failed, done }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::Inventory;
    use crate::launch::placement::Share;
    use crate::model::launcher::LauncherName;
    use crate::model::role_size::RoleSize;
    use crate::sync::project::ProjectFile;

    /// Roles whose launchers and other fields are these, on nodes with these ranks of each.
    fn chosen(fields: &[(LauncherName, &str)], shares: &[(&str, &[u32])]) -> Result<String, String> {
        let table = |(number, (_, fields)): (usize, &(LauncherName, &str))| {
            format!("[[role]]\nname = 'r{number}'\ncommand = ['true']\nranks = 1\n{fields}\n")
        };
        let directory = tempfile::tempdir().unwrap();
        let text: String = fields.iter().enumerate().map(table).collect();
        std::fs::write(directory.path().join("hvdctl.toml"), text).unwrap();
        let cluster = Inventory::local("here", "image").cluster;
        let roles = ProjectFile::read(directory.path()).unwrap().roles.into_iter().zip(fields);
        let roles: Vec<JobRole> =
            roles.map(|(role, (launcher, _))| JobRole::new(role, RoleSize::Ranks(1), *launcher, &cluster)).collect();
        let share = |(node, roles): &(&str, &[u32])| Share {
            node: (*node).to_owned(),
            ranks: roles.iter().sum(),
            roles: roles.to_vec(),
            ..Share::default()
        };
        let placement = Placement { shares: shares.iter().map(share).collect(), ..Placement::default() };
        let found = roles_of_nodes(&placement, &roles).map_err(|error| error.to_string())?;
        Ok(found.iter().map(|(node, role)| format!("{node} {role}")).collect::<Vec<_>>().join(", "))
    }

    #[test]
    fn each_node_has_the_environment_of_its_ranks() {
        use LauncherName::{Env, Mpirun, Torchrun};
        let (own, lines) = ("image = 'x'", "activate = ['true']");
        for (roles, shares, expected) in [
            (vec![(Torchrun, ""), (Env, own)], vec![("a", &[1, 0][..]), ("b", &[0, 1])], "b 1"),
            (vec![(Torchrun, lines), (Env, own)], vec![("a", &[1, 0]), ("b", &[0, 1])], "a 0, b 1"),
            (
                vec![(Mpirun, own), (Env, "image = 'x'\nbeside = 'r0'")],
                vec![("a", &[1, 1]), ("b", &[1, 1])],
                "a 0, b 0",
            ),
            // the launcher's node without ranks has what a launcher there needs
            (vec![(Env, ""), (Mpirun, own)], vec![("m", &[]), ("a", &[1, 0]), ("b", &[0, 1])], "b 1, m 1"),
            (vec![(Env, own)], vec![("m", &[]), ("a", &[1])], "a 0"),
            (vec![(Mpirun, ""), (Mpirun, "")], vec![("a", &[1, 0]), ("b", &[0, 1])], ""),
        ] {
            assert_eq!(chosen(&roles, &shares).as_deref(), Ok(expected), "{roles:?}");
        }
        for roles in [[(Env, own), (Mpirun, "")], [(Env, ""), (Mpirun, lines)]] {
            let why = chosen(&roles, &[("a", &[1, 0]), ("b", &[0, 1])]).unwrap_err();
            assert!(why.contains("mpirun starts the ranks of the role r1 from a, which has not"), "{why}");
        }
    }
}
