//! Images, and the versions of what ranks run.

use super::*;

#[test]
fn images() {
    let other = |c: &mut Clinic| {
        c.nodes[7].image = image("0123456789abcdef", "other");
        c.nodes[7].containers[0].image_id = "sha256:0123456789abcdef".into();
    };
    Clinic::with(8, other)
        .finds(&["error image gpu08: img is not the same image on all nodes: gpu[01-07] aaa · gpu08 0123456789ab"]);
    // engines that keep images in another way
    let id_only = |c: &mut Clinic| {
        c.nodes[1].image = image("bbb", "content");
        c.nodes[1].containers[0].image_id = "sha256:bbb".into();
    };
    Clinic::with(2, id_only).finds(&[]);
    // those of a role are compared with each other
    let of_role = |content: &'static str| {
        let give = move |c: &mut Clinic| {
            for (node, content) in c.nodes[1..].iter_mut().zip(["other", content]) {
                node.image = image(content, content);
                node.own.image = Some("team/serve:1".to_owned());
            }
        };
        let found = Clinic::with(3, give).found();
        found.into_iter().filter(|finding| finding.contains(" image ")).collect::<Vec<_>>()
    };
    assert_eq!(of_role("other"), Vec::<String>::new());
    assert_eq!(
        of_role("new"),
        ["error image gpu03: team/serve:1 is not the same image on all nodes: gpu02 other · gpu03 new"]
    );
    // of two the master's counts
    let masters = |c: &mut Clinic| c.nodes[0].image = image("ccc", "other");
    assert!(
        Clinic::with(2, masters).found()[0]
            .starts_with("error image gpu02: img is not the same image on all nodes: gpu01 ccc · gpu02 aaa")
    );
    let missing = |image: &str, policy: Pull| {
        let clinic = Clinic::with(2, |c| {
            (c.inventory.cluster.image, c.inventory.cluster.pull) = (image.to_owned(), policy);
            c.nodes[1].image = None;
        });
        let all = clinic.all();
        assert_eq!((all[0].severity, all[0].nodes.as_slice()), (Error, &["gpu02".to_owned()][..]));
        assert_eq!(all[0].message, format!("the image {image} is missing"));
        all[0].hint.clone()
    };
    // `up` is the fix where it may get the image, and where a registry could have it
    assert!(
        missing("img", Pull::Missing).starts_with("`hvdctl up`, which pulls it from its registry; or `docker pull")
    );
    assert!(missing("img", Pull::Never).starts_with("`docker pull img` on the node"));
    let id = format!("sha256:{}", "a".repeat(64));
    assert!(missing(&id, Pull::Missing).starts_with("`docker pull sha256:aaa"));
}

#[test]
fn versions_that_differ() {
    let found = Clinic::with(8, |c| {
        c.nodes[7].details.driver = Some("550.54".into());
        c.nodes[2].inside = versions("python 3.11.2\ntorch 1.13\nhorovod 0.28.1\nbuild PyTorch\nnccl 2.18.3\n");
        c.nodes[3].inside = Versions::new();
        c.nodes[4].engine = "27.0";
        // what is not known differs from nothing
        c.nodes[5].inside = versions("python 3.11.2\ntorch 1.13\nhorovod 0.28.1\nunread:build no end within 120 s\n");
    });
    found.finds(&[
        "error versions gpu03: the Horovod build differs: gpu[01-02,05,07-08] PyTorch, Gloo · gpu03 PyTorch",
        "error versions gpu03: the NCCL differs: gpu[01-02,05-08] none · gpu03 2.18.3",
        "warning versions gpu06: cannot read the Horovod build: no end within 120 s",
        "warning versions gpu08: the NVIDIA driver differs: gpu[01-07] 535.161 · gpu08 550.54",
        "note versions gpu05: the Docker Engine differs: gpu[01-04,06-08] 20.10.24 · gpu05 27.0",
    ]);
}

#[test]
fn another_python_of_ranks() {
    let own = "3.11.2 of /home/ana/v (/usr/bin/python3.11)";
    let with = |others: &[&str], activate: &[&str]| {
        Clinic::with(4, |c| {
            for (sick, python) in c.nodes.iter_mut().zip([&own].into_iter().chain(others)) {
                sick.containers[0].labels.insert("hvdctl.python".into(), (*python).to_owned());
            }
            c.nodes[1].node.container.activate = activate.iter().map(|&line| line.to_owned()).collect();
        })
    };
    let system = "3.11.2 of /usr (/usr/bin/python3.11)";
    let later = "3.12.1 of /home/ana/v (/opt/python3.12)";
    with(&[own, own], &[]).finds(&[]);
    // the last one is a worker of an earlier version
    with(&[system, own], &[])
        .finds(&[&format!("warning versions gpu02: the Python of ranks differs: gpu[01,03] {own} · gpu02 {system}")]);
    with(&[own, later], &[])
        .finds(&[&format!("warning versions gpu03: the Python of ranks differs: gpu[01-02] {own} · gpu03 {later}")]);
    // this worker will be replaced
    assert!(!with(&[system, own], &["source v"]).found().iter().any(|found| found.contains("Python")));
}

#[test]
fn launchers_and_frameworks_of_the_image() {
    let all =
        "launchers torchrun (PyTorch 2.1.0), mpirun (Open MPI 4.1.4), env\ntorch 2.1.0\njax 0.4.30\nmpi4py 3.1.4\n";
    let found = Clinic::with(2, |c| c.nodes.iter_mut().for_each(|node| node.inside = versions(all)));
    found.finds(&["note launchers gpu[01-02]: the image has torchrun (PyTorch 2.1.0), mpirun (Open MPI 4.1.4), env; \
                   frameworks: PyTorch 2.1.0, JAX 0.4.30, mpi4py 3.1.4"]);
    let found = Clinic::with(2, |c| {
        c.nodes[0].inside = versions(all);
        c.nodes[1].inside = versions(&all.replace("4.1.4), env", "5.0.11), env"));
    });
    let differs = "error versions gpu02: the set of launchers differs: \
                   gpu01 torchrun (PyTorch 2.1.0), mpirun (Open MPI 4.1.4), env · \
                   gpu02 torchrun (PyTorch 2.1.0), mpirun (Open MPI 5.0.11), env";
    assert_eq!(found.found()[0], differs);
}
