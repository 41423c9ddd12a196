//! The network of the ranks: that of the inventory's addresses, whatever the nodes' names and interfaces lead to.

use crate::pool::pair_number;
use crate::state::{FULL, Lab, NODES, Restore, address, no_job_is_left, node_sh, on};

const SOCKETS: &str = include_str!("sockets.py");

/// Gives each node a second address on its interface, and its own name the address `own` says: the first or the second.
/// TCP between the other ones does not pass if `cuts`. Returns the first and the second addresses, which are there
/// until this is dropped.
fn second_addresses(own: usize, cuts: bool) -> ([[String; 2]; 2], impl Drop) {
    let second = [1, 2].map(|node| format!("10.78.{}.{node}", pair_number()));
    let restore = Restore(|| {
        let undo =
            "cat /run/hvdctl-test-hosts >/etc/hosts; ip addr flush dev eth0 to 10.78.0.0/16; iptables -w 10 -F INPUT";
        NODES.into_iter().for_each(|node| drop(node_sh(node, undo, &[])));
    });
    let first = NODES.map(address);
    for index in [0, 1] {
        let own = [&first, &second][own][index].as_str();
        let peer = if cuts { first[1 - index].as_str() } else { "" };
        let script = "cp /etc/hosts /run/hvdctl-test-hosts
            { awk -v name=\"$(hostname)\" '$0 !~ name' /run/hvdctl-test-hosts; echo \"$2 $(hostname)\"; } >/run/hosts
            cat /run/hosts >/etc/hosts && ip addr add \"$1/24\" dev eth0 || exit
            [ -z \"$3\" ] || iptables -w 10 -I INPUT -p tcp -s \"$3\" -j DROP";
        node_sh(NODES[index], script, &[&second[index], own, peer]).code(0);
    }
    ([first, second], restore)
}

/// Runs two ranks with these options, and checks that all connections between the nodes are between these addresses.
#[track_caller]
fn all_sockets_are_on(addresses: &[String; 2], lab: &Lab, options: &[&str]) {
    let project = lab.project("sockets", &[("train.py", SOCKETS)]);
    let out = lab.hvdctl(&[&["train", project.to_str().unwrap(), "-np", "2"], options].concat()).code(0).out;
    let mut between = Vec::new();
    for line in out.lines().filter(|line| line.contains("] socket ")) {
        let words: Vec<&str> = line.split("] socket ").nth(1).unwrap().split(' ').collect();
        let host = |end: &str| end.rsplit_once(':').unwrap().0.trim_matches(['[', ']']).replace("::ffff:", "");
        let (local, peer) = (host(words[0]), host(words[1]));
        if local.starts_with("127.") {
            continue;
        }
        assert!(addresses.contains(&local) && addresses.contains(&peer), "{options:?}: {line}\n{out}");
        between.extend((local != peer).then(|| words[2].to_owned()));
    }
    // the program itself and not only its launcher
    assert!(between.iter().any(|program| program.starts_with("python")), "{options:?}: {between:?}\n{out}");
}

#[test]
fn ranks_use_the_inventorys_address_if_it_is_the_second_of_the_interface() {
    let lab = Lab::empty();
    let ([_, second], _restore) = second_addresses(0, true);
    for (node, address) in NODES.into_iter().zip(&second) {
        lab.edit(&format!("host = \"{node}\"\n"), &format!("host = \"{node}\"\naddress = \"{address}\"\n"));
    }
    lab.hvdctl(&["up"]).code(0).complains(&["is not the first of eth0: Open MPI and NCCL use"]);
    // PyTorch makes its own connections under torchrun and env
    let launchers = [&["--gloo"][..], &["--launcher", "torchrun"], &["--launcher", "env"]];
    for options in &launchers[..if FULL { 3 } else { 2 }] {
        all_sockets_are_on(&second, &lab, options);
    }
    no_job_is_left();
}

#[test]
fn ranks_use_the_inventorys_address_if_their_own_names_lead_to_another() {
    let lab = Lab::empty();
    let ([first, _], _restore) = second_addresses(1, false);
    lab.hvdctl(&["up"]).code(0);
    // horovodrun starts mpirun
    let launchers = [&["--mpi", "-e", "WITH_HOROVOD=1"][..], &["--launcher", "mpirun"]];
    for options in &launchers[..if FULL { 2 } else { 1 }] {
        all_sockets_are_on(&first, &lab, options);
    }
    // Docker then copies the node's /etc/hosts again
    for node in NODES {
        on(node, "docker restart -t 1 hworker && ! docker exec hworker grep hvdctl /etc/hosts");
    }
    all_sockets_are_on(&first, &lab, &["--gloo"]);
    no_job_is_left();
}
