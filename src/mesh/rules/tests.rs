//! Tests of the findings.

use super::*;

/// A node that reports this of each other one: `d`irect, `r`elayed through x, `u`nreachable, `h`alf: packets arrive;
/// `o`pen: WireGuard gets through, and agents are not heard; `a`nd heard; `t`: direct, without TCP; `s`mall packets.
fn report(peers: &[(&str, char)]) -> NodeMesh {
    let peers: Vec<String> = peers
        .iter()
        .map(|(name, how)| match how {
            'd' => format!(r#""{name}":{{"state":"direct","received":9}}"#),
            'r' => format!(r#""{name}":{{"state":"relayed","via":"x","received":9,"round_trip_ms":41.6}}"#),
            'h' => format!(r#""{name}":{{"state":"unreachable","arrived":90}}"#),
            'o' => format!(r#""{name}":{{"state":"unreachable","handshake":95,"arrived":95,"heard":10}}"#),
            'a' => format!(r#""{name}":{{"state":"unreachable","handshake":95,"arrived":95,"heard":95}}"#),
            't' => format!(r#""{name}":{{"state":"direct","tcp":false}}"#),
            's' => format!(r#""{name}":{{"state":"direct","tcp":true,"mtu":1216}}"#),
            // what arrived long ago does not count
            _ => format!(r#""{name}":{{"state":"unreachable","arrived":10,"handshake":10}}"#),
        })
        .collect();
    let state = format!(r#"{{"time":100,"peers":{{{}}}}}"#, peers.join(","));
    NodeMesh { state: Some(serde_json::from_str(&state).unwrap()), ..NodeMesh::default() }
}

fn found(nodes: &[(&str, NodeMesh)]) -> Vec<String> {
    let mut views = Vec::new();
    for (name, mesh) in nodes {
        views.push(MeshView { name, mesh, now: 101.0, is_up: true });
    }
    examine(&Cluster::default(), &views).iter().map(|finding| format!("{} {finding}", finding.severity)).collect()
}

#[test]
fn a_pair_is_named_with_the_direction_in_which_packets_are_lost() {
    let all = [
        ("a", report(&[("b", 'h'), ("x", 'd')])),
        ("b", report(&[("a", 'u'), ("x", 'd')])),
        ("x", report(&[("a", 'd'), ("b", 'd')])),
    ];
    let found = found(&all);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0]
            .starts_with("error a,b: they do not reach each other on UDP port 51820: packets of a do not arrive at b")
    );
}

#[test]
fn a_node_that_reaches_no_other_one_is_one_finding() {
    let all = [
        ("a", report(&[("b", 'u'), ("x", 'u')])),
        ("b", report(&[("a", 'u'), ("x", 'd')])),
        ("x", report(&[("a", 'u'), ("b", 'd')])),
    ];
    let found = found(&all);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("error a: it reaches no other node on UDP port 51820: no packet arrives"));
}

#[test]
fn a_node_that_is_off_accuses_no_other_one() {
    let all = [("a", report(&[("b", 'd'), ("off", 'u')])), ("b", report(&[("a", 'd'), ("off", 'u')]))];
    assert!(found(&all).is_empty(), "{:?}", found(&all));
    let two = [("a", report(&[("b", 'u'), ("off", 'u')])), ("b", report(&[("a", 'u'), ("off", 'u')]))];
    let listed = found(&two);
    assert!(listed.len() == 1 && listed[0].starts_with("error a,b: they do not reach each other"), "{listed:?}");
}

#[test]
fn a_node_without_a_network_accuses_no_other_one() {
    let mut all = [
        ("a", report(&[("b", 'd'), ("x", 'u')])),
        ("b", report(&[("a", 'd'), ("x", 'u')])),
        ("x", report(&[("a", 'u'), ("b", 'u')])),
    ];
    let problem = NetworkProblem { kind: "port_in_use".into(), text: "in use".into() };
    all[2].1.state.as_mut().unwrap().problem = Some(problem);
    let listed = found(&all);
    assert!(listed.len() == 1 && listed[0].starts_with("error x: it has no encrypted network: in use"), "{listed:?}");
}

#[test]
fn a_relaying_node_is_named() {
    let all = [
        ("a", report(&[("b", 'r'), ("x", 'd')])),
        ("b", report(&[("a", 'r'), ("x", 'd')])),
        ("x", report(&[("a", 'd'), ("b", 'd')])),
    ];
    let listed = found(&all);
    assert!(listed[0].starts_with("note x: it passes on the packets between a–b (42 ms there and back)"), "{listed:?}");
    let states = all.iter().map(|(name, mesh)| (*name, &mesh.state.as_ref().unwrap().peers)).collect();
    let line = "encrypted network: 2 of 3 pairs direct, 1 relayed: a–b through x\n";
    assert_eq!(summary(&states).unwrap(), line);
}

#[test]
fn a_node_without_a_network_says_why() {
    let with_problem = |kind: &str| {
        let state = format!(r#"{{"time":100,"problem":{{"kind":"{kind}","text":"in use"}}}}"#);
        NodeMesh { state: Some(serde_json::from_str(&state).unwrap()), ..NodeMesh::default() }
    };
    let taken = found(&[("a", with_problem("port_in_use"))]);
    assert!(taken[0].contains("it has no encrypted network: in use") && taken[0].contains("network_port"), "{taken:?}");
    assert!(found(&[("a", with_problem("address_in_use"))])[0].contains("network_range"));
    assert!(found(&[("a", NodeMesh::default())])[0].contains("has written no state"));
    let exposed = r#"{"time":100,"exposed":"nft: Operation not supported"}"#;
    let exposed = NodeMesh { state: Some(serde_json::from_str(exposed).unwrap()), ..NodeMesh::default() };
    let listed = found(&[("a", exposed)]);
    assert!(listed[0].starts_with("warning a: machines on its other networks") && listed.len() == 1, "{listed:?}");
    let (name, mesh) = ("a", &NodeMesh::default());
    let down = examine(&Cluster::default(), &[MeshView { name, mesh, now: 1.0, is_up: false }]);
    assert!(down[0].message.contains("hmesh does not run"));
}

#[test]
fn a_firewall_of_the_interface_is_named_and_not_the_udp_port() {
    // b drops all that comes out of the network, x only what a sends
    let all = [
        ("a", report(&[("b", 'a'), ("x", 'a')])),
        ("b", report(&[("a", 'o'), ("x", 'o')])),
        ("x", report(&[("a", 'o'), ("b", 'a')])),
    ];
    let listed = found(&all);
    assert_eq!(listed.len(), 2, "{listed:?}");
    assert!(listed[0].starts_with("error b: its firewall drops packets that come out of hmesh\n"), "{}", listed[0]);
    assert!(
        listed[1].starts_with("error x: its firewall drops packets that come out of hmesh from a\n"),
        "{}",
        listed[1]
    );
    for finding in &listed {
        assert!(finding.contains("ufw allow in on hmesh") && !finding.contains("51820"), "{finding}");
    }
    // an agent that is not heard because no packet arrives
    let blocked = [("a", report(&[("b", 'u')])), ("b", report(&[("a", 'u')]))];
    assert!(found(&blocked)[0].contains("on UDP port 51820: packets arrive in neither direction"));
}

#[test]
fn a_firewall_that_drops_connections_is_named_by_the_direction_in_which_they_fail() {
    let one_way = [
        ("a", report(&[("b", 't'), ("x", 'd')])),
        ("b", report(&[("a", 'd'), ("x", 'd')])),
        ("x", report(&[("a", 'd'), ("b", 't')])),
    ];
    let listed = found(&one_way);
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert!(listed[0].starts_with("error b: its firewall drops TCP connections that come out of hmesh\n"));
    let states = one_way.iter().map(|(name, mesh)| (*name, &mesh.state.as_ref().unwrap().peers)).collect();
    let line = "encrypted network: 3 of 3 pairs direct, 2 without TCP: a–b, b–x\n";
    assert_eq!(summary(&states).unwrap(), line);
    let both_ways = [
        ("a", report(&[("b", 't'), ("x", 'd')])),
        ("b", report(&[("a", 't'), ("x", 't')])),
        ("x", report(&[("a", 'd'), ("b", 't')])),
    ];
    let listed = found(&both_ways);
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert!(listed[0].starts_with("error a,b,x: no TCP connection between them succeeds (a–b, b–x): "), "{listed:?}");
    // an agent that is not there says nothing of the others
    assert!(found(&[("a", report(&[("off", 't')])), ("b", report(&[("off", 't')]))]).is_empty());
}

#[test]
fn small_packets_and_encryption_by_a_program_are_notes() {
    let mut all = [("a", report(&[("b", 's')])), ("b", report(&[("a", 's')]))];
    assert_eq!(found(&all).len(), 1);
    assert!(found(&all)[0].starts_with("note a,b: only small packets pass between them: a–b 1216 bytes"));
    for (_, mesh) in &mut all {
        mesh.state.as_mut().unwrap().kind = Some("userspace".into());
    }
    let listed = found(&all);
    assert_eq!(listed.len(), 2, "one note for all nodes: {listed:?}");
    assert!(listed[1].starts_with("note a,b: the kernel has no WireGuard, so a program encrypts"), "{listed:?}");
    all[0].1.state.as_mut().unwrap().kind = Some("kernel".into());
    assert!(found(&all)[1].starts_with("note b: "));
}
