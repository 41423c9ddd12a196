//! Nodes of several owners: no password, no login and no image of one goes to the nodes of another.

use super::*;
use crate::inventory::Pull;
use crate::runtime::credentials;

/// One node of the operator's, and one each of two others.
const ALL: [&str; 3] = ["node1", "node2", "node3"];

/// The output of `access/access.sh` for a login that needs a password.
const ASKS: &str = "user ana\nsudo asks sudo: a password is required\nengine closed\n";

/// Nodes whose logins need a password, and their inventory.
fn nodes() -> (Nodes, Inventory) {
    let nodes = Nodes::new(&ALL);
    ALL.iter().for_each(|node| nodes.edit(node, |state| state.access = ASKS));
    let mut inventory = inventory(&nodes);
    inventory.nodes[1].owner = Some("bob".into());
    inventory.nodes[2].owner = Some("eve".into());
    (nodes, inventory)
}

async fn hvdctl_asked(nodes: &Nodes, inventory: &Inventory, line: &str, sudo: SudoPasswords) -> Done {
    hvdctl_by(nodes, inventory.clone(), line, mpsc::unbounded_channel().1, sudo).await
}

#[tokio::test(start_paused = true)]
async fn no_password_goes_to_the_nodes_of_another_owner() {
    let (nodes, inventory) = nodes();
    let sudo = SudoPasswords::answering(&inventory, |prompt| match prompt {
        "password for sudo on your node node1: " => "mine",
        "password for sudo on bob's node node2: " => "bobs",
        "password for sudo on eve's node node3: " => "eves",
        other => panic!("{other}"),
    });
    hvdctl_asked(&nodes, &inventory, "up", sudo).await.code(0);
    for (node, expected) in ALL.into_iter().zip(["mine", "bobs", "eves"]) {
        let passwords = nodes.state(node).passwords;
        assert!(passwords.len() > 1 && passwords.iter().all(|password| password == expected), "{node}: {passwords:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_password_from_a_file_is_for_own_nodes_and_a_note_names_them() {
    let (nodes, inventory) = nodes();
    let (events, _) = Events::channel();
    let sudo = SudoPasswords::given(&inventory, "mine", &events).await.unwrap();
    let done = hvdctl_asked(&nodes, &inventory, "down", sudo).await;
    done.code(3).complains(&[
        "using the password in $HVDCTL_SUDO_PASSWORD_FILE for sudo on your node node1\n",
        "error: node2: cannot get root: sudo asks for a password, and ",
        "hint: hvdctl needs root on the node, but does not send a password for other nodes to those of bob",
        "NOPASSWD in /etc/sudoers.d",
    ]);
    assert_eq!(done.err.matches("using the password").count(), 1, "{done}");
    assert!(!nodes.state("node1").passwords.is_empty());
    assert_eq!(["node2", "node3"].map(|node| nodes.state(node).passwords), [vec![""; 0], vec![""; 0]]);
}

#[tokio::test(start_paused = true)]
async fn a_login_to_a_registry_goes_to_own_nodes_only() {
    let (nodes, mut inventory) = nodes();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("config.json"), r#"{"auths": {"r.example": {"auth": "YTpi"}}}"#).unwrap();
    credentials::DIRECTORY.set(Some(dir.path().to_owned()));
    let login = "{\"password\":\"b\",\"username\":\"a\"}";
    for node in ALL {
        nodes.edit(node, |state| {
            state.access = "user root\nsudo root\nengine open\n";
            state.has_registry = true;
        });
    }
    nodes.edit("node3", |state| state.registry_login = Some(login));
    (inventory.cluster.image, inventory.cluster.pull) = ("r.example/app:2".into(), Pull::Missing);
    for line in ["image pull", "up"] {
        let done = hvdctl_asked(&nodes, &inventory, line, SudoPasswords::of(&inventory, false)).await;
        done.code(3).complains(&[
            "node[2-3]: pulling r.example/app:2 without your login to the registry",
            "error: node3: cannot pull the image r.example/app:2: ",
            "your login to the registry is not sent to nodes of eve: pull = \"peers\"",
        ]);
        let last = ALL.map(|node| nodes.state(node).logins.pop().unwrap());
        assert_eq!(last, [login, "", ""], "{line}");
        ALL.iter().for_each(|node| nodes.edit(node, |state| state.images.retain(|image| image != "r.example/app:2")));
    }
    // also if all nodes belong to one other owner
    inventory.nodes.iter_mut().for_each(|node| node.owner = Some("bob".into()));
    hvdctl_asked(&nodes, &inventory, "image pull", SudoPasswords::of(&inventory, false)).await.code(3);
    assert_eq!(nodes.state("node3").logins.pop().as_deref(), Some(""));
    credentials::DIRECTORY.set(None);
}

#[tokio::test(start_paused = true)]
async fn an_image_of_another_owners_node_is_not_given_to_others() {
    let (nodes, mut inventory) = nodes();
    ALL.iter().for_each(|node| nodes.edit(node, |state| state.access = "user root\nsudo root\nengine open\n"));
    (inventory.cluster.image, inventory.cluster.pull) = ("app:1".into(), Pull::Peers);
    nodes.edit("node3", |state| state.images.push("app:1".into()));
    for line in ["up", "image push"] {
        let done = hvdctl_asked(&nodes, &inventory, line, SudoPasswords::of(&inventory, false)).await;
        done.code(1).complains(&["the image app:1 is only on nodes of other owners (node3)", "--from NODE"]);
    }
    assert_eq!(nodes.count("docker export"), [0, 0, 0]);
    hvdctl_asked(&nodes, &inventory, "image push --from node3", SudoPasswords::of(&inventory, false)).await;
    assert_eq!(nodes.count("docker export"), [0, 0, 1], "the operator has named it");
}
