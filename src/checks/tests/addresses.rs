//! Ports, names, addresses and routes.

use super::*;

#[test]
fn the_port() {
    let listener = |line: &str| {
        let facts = Facts::parse(&format!("listener {line}\n"));
        Clinic::with(2, |c| c.nodes[1].facts.network.listeners = facts.network.listeners)
    };
    listener("*:12345 4711 ana - python3")
        .finds(&["error port gpu02: port 12345 is in use by python3 (process 4711 of ana)"]);
    listener("10.0.0.2:12345 - - - -").finds(&[]);
    let hidden = |c: &mut Clinic| {
        c.nodes[1].facts.network.listeners = Facts::parse("listener 0.0.0.0:12345 - - - -\n").network.listeners;
        c.nodes[1].containers[0].state = ContainerState::Exited;
    };
    assert!(Clinic::with(2, hidden).found()[0].contains("is in use by another program"));
    // elsewhere it does no harm
    listener("127.0.0.1:12345 4711 ana - python3").finds(&[]);
    listener("[::]:12345 4711 ana - python3").finds(&[]);
    let other = |c: &mut Clinic| {
        c.nodes[1].facts.network.listeners = Facts::parse("listener *:12345 9 root x1 sshd\n").network.listeners;
        c.nodes[1].containers.push(container(
            "their-worker",
            "x1",
            ContainerState::Running,
            &[(LABEL_CLUSTER, "theirs")],
        ));
    };
    Clinic::with(2, other).finds(&["error port gpu02: port 12345 is in use by the container their-worker"]);
    // ranks on the launcher's node need no worker
    let mut sick = Clinic::with(2, other);
    sick.nodes[1].worker = false;
    sick.finds(&[]);
}

#[test]
fn host_names_and_addresses() {
    let twice = Clinic::with(3, |c| {
        c.nodes[2].facts.hostname = "gpu01".into();
    });
    twice.finds(&["error hostname gpu[01,03]: they have the same host name, gpu01"]);
    let unnamed = |c: &mut Clinic| c.nodes.iter_mut().for_each(|n| n.facts.hostname = "localhost.localdomain".into());
    Clinic::with(2, unnamed).finds(&["error hostname gpu[01-02]: its host name is localhost.localdomain"]);
    let place = |ssh: &str| {
        let facts = Facts::parse(&format!(
            "ssh {ssh}\naddr docker0 172.17.0.1/16\naddr eth0 10.0.0.2/24\naddr eth1 10.0.0.1/24\n"
        ));
        let found = Clinic::with(2, |c| {
            (c.nodes[1].facts.network.ssh_address, c.nodes[1].facts.network.addresses) =
                (facts.network.ssh_address, facts.network.addresses);
        });
        preflight::rules(&found.inventory, &found.views())
            .iter()
            .map(|f| format!("{} {} {}", f.check, f.message, f.hint))
            .collect::<Vec<_>>()
    };
    let docker = place("172.17.0.1");
    assert!(docker[0].starts_with(
        "interface its address in the cluster is 172.17.0.1 on docker0, an interface that reaches no other"
    ));
    assert!(docker[0].contains("(the node has: eth0 10.0.0.2, eth1 10.0.0.1)"), "{docker:?}");
    assert!(place("10.0.0.1")[0].starts_with("address they have the same address in the cluster, 10.0.0.1"));
    assert_eq!(place("10.0.0.2"), Vec::<String>::new());
    let found = Clinic::with(2, |c| c.nodes[1].facts.network.ssh_address = Some("10.9.9.9".parse().unwrap())).found();
    assert!(
        found[0].starts_with("error network gpu02: its address in the cluster is unknown: no interface"),
        "{found:?}"
    );
}

#[test]
fn fast_networks_that_containers_do_not_get() {
    let found = |lines: &str, given: &[&str], inside: &str| {
        let sick = |c: &mut Clinic| {
            let details = Details::parse(lines);
            let sick = &mut c.nodes[1];
            (sick.details.fabrics, sick.details.adapters) = (details.fabrics, details.adapters);
            let device =
                |name: &&str| Device { source: (*name).into(), target: (*name).into(), permissions: "rwm".into() };
            sick.node.container.devices = given.iter().map(device).collect();
            sick.inside.extend(versions(inside));
        };
        let found = Clinic::with(2, sick).all().into_iter().filter(|finding| finding.check == Check::Fabric);
        found.map(|finding| format!("{} {}", finding.severity, finding.message)).collect::<Vec<_>>()
    };
    let lines = "fabric /dev/infiniband/uverbs0\nadapter mlx5_0\nadapter mlx5_1\n";
    let lacking = "warning it has InfiniBand or EFA (mlx5_0, mlx5_1), which its containers cannot use";
    assert_eq!(found(lines, &[], ""), [lacking]);
    let ethernet = "fabric /dev/infiniband/uverbs0\nadapter mlx5_0 Ethernet\n";
    assert!(found(ethernet, &[], "")[0].starts_with("note it has Ethernet cards with RoCE or iWARP (mlx5_0), "));
    assert_eq!(found(&format!("{ethernet}adapter mlx5_1 InfiniBand\n"), &[], ""), [lacking]);
    assert_eq!(found("fabric /dev/infiniband/uverbs0\n", &[], ""), [""; 0], "no port is connected");
    // none can be listed
    let device = "fabric /dev/infiniband/uverbs0\nadapter uverbs0\n";
    assert_eq!(found(device, &[], ""), ["warning it has InfiniBand or EFA (uverbs0), which its containers cannot use"]);
    let given = ["/dev/infiniband"];
    assert_eq!(found(lines, &given, "ibverbs 1\n"), [""; 0]);
    assert_eq!(found(lines, &given, "unread:ibverbs no time\n"), [""; 0]);
    assert_eq!(found(lines, &given, ""), ["warning the image has no libibverbs for its InfiniBand, RoCE or EFA"]);
    let imex = "fabric /dev/nvidia-caps-imex-channels/channel0\n";
    assert!(found(imex, &[], "")[0].starts_with("note it has IMEX channels"));
    assert_eq!(found(imex, &["/dev/nvidia-caps-imex-channels/channel0"], ""), [""; 0]);
}

#[test]
fn an_address_that_is_not_the_first_of_its_interface() {
    let second = |label: &str| {
        let facts = Facts::parse(&format!(
            "ssh 10.0.0.2\naddr eth0 192.168.0.2/24 eth0\naddr eth0 10.0.0.2/24 {label}\naddr eth1 10.8.0.2/24 eth1\n"
        ));
        Clinic::with(2, |c| {
            let node = &mut c.nodes[1].facts.network;
            (node.addresses, node.labels, node.networks) =
                (facts.network.addresses, facts.network.labels, facts.network.networks);
        })
        .found()
    };
    assert_eq!(
        second("eth0"),
        ["warning address gpu02: its address in the cluster, 10.0.0.2, is not the first of eth0: Open MPI and NCCL \
             use 192.168.0.2"]
    );
    assert_eq!(
        second("eth0:1"),
        ["warning address gpu02: its address in the cluster, 10.0.0.2, is not the first of eth0: Open MPI uses \
          192.168.0.2"]
    );
}

#[test]
fn names_in_the_workers() {
    let found = |lines: &str| {
        let resolved = versions(&format!("name:gpu01 10.0.0.1\nname:gpu02 10.0.0.2\n{lines}"));
        Clinic::with(2, |c| c.nodes[1].inside.extend(resolved)).found()
    };
    assert_eq!(found(""), Vec::<String>::new());
    let own = "error names gpu02: the host name gpu02";
    assert_eq!(
        found("name:gpu02 127.0.1.1\n"),
        [format!("{own} resolves to 127.0.1.1 in its worker instead of 10.0.0.2")]
    );
    // Gloo binds to the first that it can
    let several = format!("{own} resolves to 10.0.0.2 192.168.0.2 in its worker instead of 10.0.0.2");
    assert_eq!(found("name:gpu02 10.0.0.2 192.168.0.2\n"), [several]);
    let unknown = "warning names gpu02: the host name gpu01 is unknown in its worker instead of 10.0.0.1";
    assert_eq!(found("name:gpu01 \n"), [unknown]);
}

#[test]
fn the_network_between() {
    let found = |said: &str| {
        let details = Details::parse(said);
        Clinic::with(3, |c| {
            let node = &mut c.nodes[1].details;
            node.routes.extend(details.routes);
            node.mtu.extend(details.mtu);
            node.strict.extend(details.strict);
            node.unresolved = details.unresolved;
        })
        .found()
    };
    assert_eq!(
        found("route 10.0.0.1 docker0 172.17.0.1\n"),
        ["error route gpu02: packets to gpu01 (10.0.0.1) leave by docker0, which reaches no other machine"]
    );
    assert_eq!(
        found("route 10.0.0.1 - RTNETLINK answers: Network is unreachable\n"),
        ["error route gpu02: has no route to gpu01 (10.0.0.1): RTNETLINK answers: Network is unreachable"]
    );
    assert_eq!(
        found("route 10.0.0.1 wlan0 192.168.0.2\n"),
        ["warning route gpu02: packets to gpu01 (10.0.0.1) leave by wlan0 instead of eth0"]
    );
    assert_eq!(
        found("route 10.0.0.1 wlan0 192.168.0.2\nstrict eth0\n"),
        ["warning route gpu02: packets to gpu01 (10.0.0.1) leave by wlan0 instead of eth0, and eth0 drops \
             incoming packets from there (rp_filter)"]
    );
    assert_eq!(found("strict eth0\nstrict wlan0\n"), Vec::<String>::new());
    assert_eq!(
        found("unresolved gpu02\n"),
        ["warning names gpu02: its host name gpu02 does not resolve to an address there"]
    );
    assert_eq!(
        found("mtu eth0 9000\n"),
        ["warning mtu gpu02: its interface has a different MTU: gpu[01,03] 1500 · gpu02 9000"]
    );
}
