//! `down`: removes what hvdctl created, and nothing else.

use crate::state::{IMAGE, Lab, NODES, id_of, node_sh, on, ours};

#[test]
fn purge_leaves_nothing_where_all_was_ours() {
    let lab = Lab::with_rsa_keys();
    let project = lab.project("odd na'me", &[("train.py", "open('written', 'w')"), ("-f", "")]);
    lab.hvdctl(&["up"]).code(0);
    lab.hvdctl(&["train", project.to_str().unwrap(), "-np", "2", "--launcher", "env"]).code(0);
    lab.hvdctl(&["verify"]).code(0);
    let before = NODES.map(|node| on(node, "docker volume ls -q; docker images -q | sort -u"));
    let done = lab.hvdctl(&["down", "--purge", "--json"]).code(0);
    let document: serde_json::Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!((&document["ok"], document["nodes"].as_array().unwrap().len()), (&true.into(), 2));
    for (node, before) in NODES.iter().zip(before) {
        on(node, "test ! -e /opt/horovod");
        assert_eq!(ours(node), "", "{node}");
        assert_eq!(on(node, "docker volume ls -q; docker images -q | sort -u"), before, "{node}: the image stays");
        assert_eq!(on(node, "find /tmp /var/tmp /root -name '*hvdctl*' | head"), "", "{node}");
    }
    lab.hvdctl(&["down", "--purge", "-y"]).code(0).says(&["no containers"]);
}

#[test]
fn only_ours_is_removed() {
    let lab = Lab::up();
    let project = lab.project("p", &[("train.py", "open('written', 'w')")]);
    lab.hvdctl(&["train", project.to_str().unwrap(), "-np", "2", "--launcher", "env"]).code(0);
    let start = "docker run -d --name \"$1\" --label hvdctl-test=1 --label \"$2\" \"$3\" sleep 600";
    // a foreign container, and one of another cluster
    let others = [("somebodys", "x=y"), ("other-worker", "hvdctl.cluster=other")];
    let ids = others.map(|(name, label)| node_sh("node1", start, &[name, label, IMAGE]).ok().trim().to_owned());
    on(
        "node1",
        "echo theirs >/opt/horovod/ssh/notes && echo 'ssh-ed25519 AAAAx copy of ssh-ed25519 AAAA hvdctl:lab' \
         >>/opt/horovod/ssh/authorized_keys",
    );
    on(
        "node1",
        "mkdir -p /opt/horovod/projects/theirs /opt/horovod/jobs/theirs && echo x >/opt/horovod/projects/theirs/file",
    );

    // keys and projects stay without --purge
    lab.hvdctl(&["down"]).code(0).says(&["node[1-2] (2): removed hworker\n"]);
    assert_eq!(ours("node2"), "");
    on("node1", "cd /opt/horovod && test -s ssh/id_ed25519 -a -s projects/p/train.py -a -e projects/p/written");
    lab.hvdctl(&["down"]).code(0).says(&["node[1-2] (2): no containers\n"]);

    lab.hvdctl(&["up"]).code(0);
    lab.hvdctl(&["down", "--purge", "-y"]).code(0);
    for ((name, _), id) in others.iter().zip(&ids) {
        assert_eq!(id_of("node1", name), *id);
    }
    assert_eq!(
        on("node1", "docker ps --filter label=hvdctl-test --format '{{.Names}}' | sort"),
        "other-worker\nsomebodys\n",
        "both still run"
    );
    let files = "cd /opt/horovod && find . -type f | sort && cat ssh/notes ssh/authorized_keys";
    let left = "./projects/theirs/file\n./ssh/authorized_keys\n./ssh/notes\ntheirs\nssh-ed25519 AAAAx copy of \
        ssh-ed25519 AAAA hvdctl:lab\n";
    assert_eq!(on("node1", files), left);
    assert_eq!(on("node1", "stat -c %a /opt/horovod/ssh/authorized_keys"), "600\n");
    on("node1", "test -d /opt/horovod/jobs/theirs");
    on("node2", "test ! -e /opt/horovod");
    lab.hvdctl(&["down", "--purge", "-y"]).code(0);

    on("node1", "rm -r /opt/horovod/ssh/* /opt/horovod/projects/theirs /opt/horovod/jobs/theirs");
    lab.hvdctl(&["down", "--purge", "-y"]).code(0);
    on("node1", "test ! -e /opt/horovod");
}
