//! Directories, data, memory and disks.

use super::*;

#[test]
fn a_directory_that_nodes_share_is_named_with_its_nodes() {
    let shared = |with: &str| crate::node::storage::SharedDirectory {
        what: "projects".into(),
        path: "/nfs/projects".into(),
        with: vec![with.into()],
    };
    let found = Clinic::with(2, |c| {
        (c.nodes[0].facts.storage.shared, c.nodes[1].facts.storage.shared) =
            (vec![shared("gpu02")], vec![shared("gpu01")]);
    });
    let message = "cluster.projects_dir must be local to each node, but /nfs/projects is one directory on gpu[01-02]";
    assert_eq!(found.found(), [format!("error shared gpu[01-02]: {message}")]);
    let unknown = Clinic::with(2, |c| c.nodes[1].facts.storage.shared_unknown = Some("sh: Permission denied".into()));
    let message = "cannot find out whether the cluster's directories are local to the node: sh: Permission denied";
    assert_eq!(unknown.found(), [format!("error shared gpu02: {message}")]);
}

#[test]
fn data_that_are_not_the_same_on_all_nodes_are_named() {
    let pushed = |c: &mut Clinic, node: usize, hash: &str| {
        let data = crate::node::storage::PushedData { hash: hash.into(), inode: None };
        drop(c.nodes[node].facts.storage.pushed.insert("set".into(), data))
    };
    let same = Clinic::with(3, |c| (0..3).for_each(|node| pushed(c, node, "1f0c2a7d33e99")));
    assert_eq!(same.found(), [""; 0]);
    let different = Clinic::with(3, |c| {
        pushed(c, 0, "1f0c2a7d33e99");
        pushed(c, 1, "-");
    });
    let message = "the data set differ: gpu01 1f0c2a7d33e9 · gpu02 incomplete · gpu03 missing";
    assert_eq!(different.found(), [format!("warning data gpu[02-03]: {message}")]);
    let alone = Clinic::with(1, |c| pushed(c, 0, "-"));
    assert_eq!(alone.found(), ["warning data gpu01: the data set are incomplete"]);
    let shared =
        crate::node::storage::SharedDirectory { what: "data".into(), path: "/d".into(), with: vec!["gpu02".into()] };
    assert_eq!(
        Clinic::with(2, |c| c.nodes[0].facts.storage.shared = vec![shared]).found(),
        [""; 0],
        "jobs only read there"
    );
}

#[test]
fn files_that_fit() {
    let clinic = |said: &str| {
        Clinic::with(2, |c| {
            let inodes = Facts::parse(said).storage.inodes;
            let (others, images) = inodes.into_iter().partition(|inodes| inodes.what != "images");
            (c.nodes[1].facts.storage.inodes, c.nodes[1].details.inodes) = (others, images);
        })
    };
    let few =
        clinic("inodes images 999 /var/lib/docker\ninodes jobs 49 /opt\ninodes projects 9999 /p\ninodes data x /d\n");
    assert_eq!(
        few.found(),
        [
            "error disk gpu02: cluster.jobs_dir has room for 49 more files in /opt",
            "error disk gpu02: Docker's directory /var/lib/docker has room for 999 more files",
            "warning disk gpu02: cluster.projects_dir has room for 9999 more files in /p",
            "warning disk gpu02: cluster.data_dir has room for 0 more files in /d"
        ]
    );
    assert_eq!(clinic("inodes images 10000 /d\ninodes projects 10000 /p\n").found(), [""; 0]);
    let mut without = clinic("inodes images 99999 /d\n");
    without.nodes[1].image = None;
    assert_eq!(without.found()[1], "warning disk gpu02: Docker's directory /d has room for 99999 more files");
}

#[test]
fn memory_and_disks() {
    let shm = |size: u64, slots: u32| {
        let set = |c: &mut Clinic| {
            c.inventory.cluster.shm_size = size;
            c.nodes[1].node.slots = Some(slots);
            for (i, node) in c.nodes.iter_mut().enumerate() {
                let address = format!("10.0.0.{}", i + 1).parse().unwrap();
                node.containers[0].labels =
                    ContainerSpec::worker(&c.inventory.cluster, &node.node, GpuRequest::All, address).labels();
            }
        };
        Clinic::with(2, set).found()
    };
    assert_eq!(shm(64 << 20, 2), ["error shm gpu02: /dev/shm of its containers has 64.0 MiB for 2 ranks"]);
    assert_eq!(shm(128 << 20, 2), ["warning shm gpu02: /dev/shm of its containers has 128.0 MiB for 2 ranks"]);
    assert_eq!(shm(256 << 20, 2), Vec::<String>::new());
    assert_eq!(shm(64 << 20, 1), Vec::<String>::new());
    let found = |said: &str| {
        let details = Details::parse(said);
        Clinic::with(2, |c| {
            let (others, images) = Facts::parse(said).storage.disks.into_iter().partition(|disk| disk.what != "images");
            (c.nodes[1].facts.storage.disks, c.nodes[1].details.disks) = (others, images);
            c.nodes[1].details.infiniband = details.infiniband;
            c.nodes[1].details.memlock = details.memlock;
            c.nodes[1].details.nofile = details.nofile;
            c.nodes[1].details.max_sessions = details.max_sessions;
        })
        .found()
    };
    assert_eq!(
        found("disk images 1024 /var/lib/docker\n"),
        ["error disk gpu02: Docker's directory /var/lib/docker has 1.0 MiB left"]
    );
    assert_eq!(
        found("disk jobs 1023 /opt\ndisk projects 524287 /data\n"),
        [
            "error disk gpu02: cluster.jobs_dir has 1023.0 KiB left in /opt",
            "warning disk gpu02: cluster.projects_dir has 512.0 MiB left in /data"
        ]
    );
    assert_eq!(found("disk jobs 524288 /opt\ndisk projects 524288 /data\n"), Vec::<String>::new());
    let full = Facts::parse("disk jobs 1023 /opt\ndisk projects 1023 /data\n").storage.disks;
    let full = Clinic::with(2, |c| c.nodes[1].facts.storage.disks = full).all();
    let explained: Vec<_> = full.iter().map(|f| (&f.why[..], &f.hint[..])).collect();
    assert_eq!(
        explained,
        [
            ("rank output that does not fit is lost", "`hvdctl jobs prune`, or free space on the node"),
            ("projects and the files that ranks write may not fit", "free space on the node")
        ]
    );
    assert_eq!(found("max-sessions 2\n"), ["warning sshd gpu02: its sshd has MaxSessions 2"]);
    assert_eq!(found("max-sessions 10\n"), Vec::<String>::new());
    assert_eq!(found("disk images 4194304 /var/lib/docker\n"), Vec::<String>::new());
    let mut without = Clinic::with(2, |c| c.nodes[1].details.disks = Details::parse("disk images 4194304 /d\n").disks);
    without.nodes[1].image = None;
    assert_eq!(without.found()[1], "warning disk gpu02: Docker's directory /d has 4.0 GiB left");
    assert_eq!(
        found("infiniband yes\nmemlock 65536\n"),
        ["warning memlock gpu02: its worker may lock 64.0 KiB of memory"]
    );
    assert_eq!(found("infiniband yes\nmemlock unlimited\n"), Vec::<String>::new());
    assert_eq!(found("memlock 65536\n"), Vec::<String>::new());
    assert_eq!(found("nofile 1024\n"), ["warning limits gpu02: a rank in its worker may open only 1024 files"]);
    for enough in ["nofile 4096\n", "nofile 524288\n", "nofile unlimited\n", "nofile \n"] {
        assert_eq!(found(enough), Vec::<String>::new(), "{enough}");
    }
}

#[test]
fn a_directory_that_others_can_change_is_an_error_on_one_node_too() {
    let facts = Facts::parse(
        "exposed jobs owner 755 mallory users /scratch/hvd\nexposed data owner 755 mallory users /scratch/hvd\n",
    );
    let exposed = Clinic::with(1, |c| c.nodes[0].facts.permissions = facts.permissions);
    let message =
        "other users can change cluster.jobs_dir, cluster.data_dir: /scratch/hvd belongs to mallory (mode 755)";
    assert_eq!(exposed.found(), [format!("error permissions gpu01: {message}")]);
    let hint = &exposed.all()[0].hint;
    assert!(
        hint.contains("or `sudo chown root:root /scratch/hvd && sudo chmod go-w /scratch/hvd` on the node"),
        "{hint}"
    );
    let facts = Facts::parse("exposed data owner 755 mallory users /scratch/hvd\n");
    let unused = Clinic::with(1, |c| c.nodes[0].facts.permissions = facts.permissions);
    let message = "other users can change cluster.data_dir: /scratch/hvd belongs to mallory (mode 755)";
    assert_eq!(unused.found(), [format!("warning permissions gpu01: {message}")], "there are no data");
}
