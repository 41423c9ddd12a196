//! A pool of owners (docs/reference/pool.md): host keys, proofs and the inventory of `pool pick`, with real sshds.

use crate::first_contact::{change_host_key, host_key};
use crate::operator::Operator;
use crate::state::{NODES, on};
use std::fs;

#[test]
fn nodes_of_a_pool_are_picked_with_their_host_key_and_their_owner_alone() {
    let operator = Operator::new("user = \"root\"", "user = \"root\"");
    let place = |name: &str| operator.lab.path().join(name);
    let key = operator.home().join(".ssh/id_ed25519");
    let public = fs::read_to_string(key.with_extension("pub")).unwrap();
    fs::create_dir(place("pool")).unwrap();
    fs::write(place("members"), format!("ana {public}")).unwrap();
    let pool = format!(
        "\n[pool]\npath = \"{}\"\nallowed_signers = \"{}\"\nkey = \"{}\"\n",
        place("pool").display(),
        place("members").display(),
        key.display()
    );
    fs::write(operator.lab.inventory(), fs::read_to_string(operator.lab.inventory()).unwrap() + &pool).unwrap();
    operator.hvdctl(&["grade", "--publish"]).code(0).says(&["published node[1-2] as ana until "]);
    for node in NODES {
        let written =
            on(node, "cat /etc/hvdctl/pool-owner.pub; stat -c '%a %u' /etc/hvdctl /etc/hvdctl/pool-owner.pub");
        assert!(
            written.ends_with("\n755 0\n644 0\n") && public.starts_with(written.lines().next().unwrap()),
            "{written}"
        );
    }

    // on a machine that knows neither node
    fs::remove_file(operator.known_hosts()).unwrap();
    let pick = || operator.hvdctl(&["pool", "pick", "-np", "2", "--user", "root"]);
    let picked = pick().code(0);
    for node in NODES {
        assert!(picked.out.contains(&format!("host_key = \"{}\"", host_key(node))), "{}", picked.out);
    }
    assert_eq!(picked.out.matches("master = true").count(), 1, "{}", picked.out);
    let inventory = place("pool.toml");
    fs::write(&inventory, &picked.out).unwrap();
    let with_it = |command: &[&str]| operator.hvdctl(&[&["-i", inventory.to_str().unwrap()], command].concat());
    let pushed = with_it(&["keys", "push"]).code(0);
    for done in [&picked, &pushed] {
        assert!(!done.err.contains("first contact"), "{}", done.err);
    }
    assert_eq!(fs::read_to_string(operator.known_hosts()).unwrap(), "", "nothing is known on trust");
    for node in NODES {
        assert_eq!(
            on(node, "ls /opt/horovod | cut -c 1-5; ls /opt/horovod/pool-*").lines().collect::<Vec<_>>(),
            ["pool-", "ssh", "ssh.lock"]
        );
    }

    change_host_key("node2");
    let other = "node2 of ana: cannot log in by ssh as root@";
    pick().code(1).complains(&[other, "its host key is not the one in the inventory, ssh-ed25519 SHA256:", "hint: "]);
    with_it(&["keys", "status"])
        .code(3)
        .complains(&["node2: cannot log in by ssh", "its host key is not the one in the inventory"]);
    on("node1", "rm /etc/hvdctl/pool-owner.pub");
    pick().code(1).complains(&[
        "there is no master: none of the nodes of ana",
        "node1 of ana: there is no /etc/hvdctl/pool-owner.pub",
    ]);
}
