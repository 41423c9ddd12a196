//! Jobs of several programs: what the nodes get of each role, and what is refused before anything is changed.

use super::gpus::two_with_gpus;
use super::queue::with_slurm;
use super::*;
use crate::inventory::Pull;
use crate::model::engine::RuntimeChoice;
use crate::transport::node::scripted::Play;

const FILE: &str = "[[role]]
name = 'trainer'
command = ['python', 'train.py']
launcher = 'torchrun'
ranks = 2

[[role]]
name = 'generator'
command = ['./serve', '$PORT_HTTP']
launcher = 'env'
ranks = 2
ports = ['http']
ready = 'http://:$PORT_HTTP/health'
needs = []
beside = 'trainer'
env = { MODE = 'serve' }
";

/// A project with this file, and its path.
fn project(file: &str) -> (tempfile::TempDir, String) {
    let project = tempfile::Builder::new().prefix("rl").tempdir().unwrap();
    for (name, text) in [("hvdctl.toml", file), ("train.py", "")] {
        std::fs::write(project.path().join(name), text).unwrap();
    }
    let path = project.path().display().to_string();
    (project, path)
}

/// A job whose ranks start, and go on.
fn goes_on(ranks: [(&str, u32); 4]) -> Play {
    ranks.iter().fold(Play::default(), |play, (node, rank)| play.frame(0, node, &format!("{rank} s ")))
}

/// A file of the job on a node.
fn file(nodes: &Nodes, node: &str, name: &str) -> Value {
    let files = nodes.state(node).directories.into_values().next().unwrap().files;
    let text = files.get(name).unwrap_or_else(|| panic!("{node} has no {name}: {:?}", files.keys()));
    serde_json::from_str(text).unwrap()
}

#[tokio::test(start_paused = true)]
async fn each_role_gets_files_of_its_own() {
    let nodes = two_with_gpus().await;
    hvdctl(&nodes, "up").await.code(0);
    let (_dir, path) = project(FILE);
    nodes.play(goes_on([("node1", 0), ("node1", 1), ("node2", 2), ("node2", 3)]));
    hvdctl(&nodes, &format!("train {path} -d -e LEVEL=2")).await.code(0);

    let job = file(&nodes, "node2", "job.json");
    let shares: Vec<_> =
        job["placement"]["shares"].as_array().unwrap().iter().map(|s| s["roles"].to_string()).collect();
    assert_eq!(shares, ["[1,1]", "[1,1]"], "{job}");
    let recorded: Vec<_> = job["roles"].as_array().unwrap().iter().map(|role| role["ends"].to_string()).collect();
    assert_eq!(recorded, [r#"{"kind":"job"}"#, r#"{"kind":"with","role":0}"#]);
    assert_eq!((&job["launcher"], &job["command"][1]), (&"torchrun".into(), &"train.py".into()));
    let variables = job["variables"].as_array().unwrap();
    assert!(["LEVEL", "MODE"].iter().all(|name| variables.contains(&(*name).into())), "{job}");

    let launch = file(&nodes, "node1", "launch.json");
    assert_eq!((&launch["ranks"], &launch["workers"][0]["ranks"]), (&2.into(), &2.into()), "of all roles");
    let (trainer, generator) = (&launch["roles"][0], &launch["roles"][1]);
    assert_eq!(launch["launcher"], trainer["launcher"]);
    for (role, number) in [(trainer, "0"), (generator, "1")] {
        assert_eq!(role["launcher"].as_array().unwrap().last().unwrap(), number, "{role}");
        let ranks: Vec<_> = role["places"].as_array().unwrap().iter().map(|p| (&p["ranks"], &p["first"])).collect();
        let first = if number == "0" { [0, 2] } else { [1, 3] };
        assert_eq!(ranks, [(&1.into(), &first[0].into()), (&1.into(), &first[1].into())], "{role}");
    }
    let text = |role: &Value| role.to_string();
    let port = |role: &Value| text(role).split("\"port\":").nth(1).unwrap()[..5].to_owned();
    assert_ne!(port(&trainer["launcher"]), port(&generator["variables"]), "{launch}");
    assert_eq!(text(&generator["ready"]), r#"{"kind":"http","url":"http://:$PORT_HTTP/health"}"#);
    assert_eq!((&generator["ready_timeout"], &generator["ports"][0]), (&600.into(), &"http".into()));

    let roles = file(&nodes, "node2", "launcher.json");
    let numbers = |role: &Value| ["ranks", "first", "before", "offset"].map(|name| role[name].as_u64().unwrap());
    assert_eq!(numbers(&roles["roles"][0]), [1, 2, 1, 0], "{roles}");
    assert_eq!(numbers(&roles["roles"][1]), [1, 3, 1, 1], "{roles}");
    assert_eq!(roles["roles"][1]["job"]["command"][0], "./serve");
    assert!(
        roles["roles"][0]["job"]["stall_warning"].as_u64() > Some(0) && roles["roles"][1]["job"]["stall_warning"] == 0
    );

    for node in NODES {
        let (trainer, generator) = (file(&nodes, node, "env.0.json"), file(&nodes, node, "env.1.json"));
        let gpu = |env: &Value| env["CUDA_VISIBLE_DEVICES"].as_str().unwrap().to_owned();
        assert_eq!((gpu(&trainer), gpu(&generator)), ("0".to_owned(), "1".to_owned()), "{node}");
        assert_eq!((&trainer["MODE"], &generator["MODE"]), (&Value::Null, &"serve".into()));
        assert_eq!((&trainer["LEVEL"], &generator["LEVEL"]), (&"2".into(), &"2".into()));
        // it only shows that the job has not ended
        assert_eq!(file(&nodes, node, "env.json"), serde_json::json!({}));
        let roles = file(&nodes, node, "roles.json");
        assert_eq!((&roles["generator"]["ranks"], &roles["trainer"]["ports"]), (&2.into(), &serde_json::json!({})));
        let hosts = roles["generator"]["hosts"].as_array().unwrap();
        assert!(hosts.len() == 2 && hosts[0] != hosts[1], "{roles}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_files_of_a_job_without_roles_do_not_mention_them() {
    let nodes = two_up().await;
    nodes.play(goes_on([("node1", 0), ("node1", 1), ("node1", 2), ("node1", 3)]));
    hvdctl(&nodes, "run -d -np 4 -- true").await.code(0);
    let files = nodes.state("node1").directories.into_values().next().unwrap().files;
    assert!(!files.keys().any(|name| name.starts_with("env.") && name != "env.json" || name == "roles.json"));
    for name in ["job.json", "launch.json", "launcher.json"] {
        assert!(!files[name].contains("role"), "{name}: {}", files[name]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_shows_each_role() {
    let nodes = two_up().await;
    let (_dir, path) = project(FILE);
    let dry = async |options: &str| hvdctl(&nodes, &format!("train {path} --dry-run{options}")).await;
    dry("").await.code(0).says(&[
        "node1  0-3    127.0.0.1  trainer 0-1, generator 0-1\n",
        "trainer launcher: torchrun ",
        "each rank of trainer: python train.py\n",
        "generator rank: env ",
        "each rank of generator: ./serve '$PORT_HTTP'\n",
    ]);
    let done = dry(" -np trainer=5,generator=2 --json").await;
    let document = done.code(0).document();
    let ranks: Vec<_> = document["roles"].as_array().unwrap().iter().map(|role| &role["ranks"]).collect();
    assert_eq!(ranks, [&Value::from(5), &2.into()], "{done}");
    let alone = dry(" --role generator -np 3 -- ./other").await;
    alone.code(0).says(&["node1  0-2    127.0.0.1  generator 0-2\n", "each rank of generator: ./other\n"]);
    assert!(!alone.out.contains("trainer"), "{alone}");
}

#[tokio::test(start_paused = true)]
async fn ranks_of_a_role_that_takes_no_slots_may_be_more_than_these() {
    let nodes = two_up().await;
    let (_dir, path) = project("[[role]]\nname = 'evaluator'\ncommand = ['./evaluate']\nlauncher = 'env'\ngpus = 0\n");
    let dry = async |project: &str, options: &str| {
        let mut inventory = inventory(&nodes);
        inventory.nodes.iter_mut().for_each(|node| node.slots = Some(4));
        let line = format!("train {project} --dry-run {options}");
        hvdctl_on(&nodes, inventory, &line, mpsc::unbounded_channel().1).await
    };
    for options in ["-np 99", "-np 99 --role evaluator", "-np evaluator=99"] {
        let done = dry(&path, options).await;
        done.code(0).says(&["each rank of evaluator: ./evaluate"]);
    }
    let (_plain, plain) = project("");
    let done = dry(&plain, "-np 99").await;
    done.code(2).complains(&["99 ranks were requested"]);
}

#[tokio::test(start_paused = true)]
async fn what_roles_cannot_have_is_refused_before_anything_is_changed() {
    let nodes = two_up().await;
    let (_dir, path) = project(FILE);
    let (_plain, plain) = project("");
    let before = NODES.map(|node| nodes.state(node));
    for (line, words) in [
        (
            format!("train {path} -np 4"),
            "-np 4 does not say of which role: the roles of the project are trainer, generator",
        ),
        (format!("train {path} -np 2:4"), "a job with roles cannot be elastic"),
        (format!("train {path} -np x=4"), "the project has no role x"),
        (format!("train {path} --role x"), "the project has no role x"),
        (format!("train {path} --gpus-per-node 1"), "a job with roles does not take --gpus-per-node"),
        (format!("train {path} --map-by node"), "a job with roles does not take --map-by"),
        (format!("train {path} -- python x.py"), "the command after -- has no role"),
        (format!("train {path} -np trainer=9"), "the role trainer has 9 ranks, but the nodes left have room for fewer"),
        (format!("train {path} -e RANK=1"), "RANK cannot be set: the launcher torchrun sets it"),
        (format!("notebook {path}"), "notebook does not support roles, but hvdctl.toml has trainer, generator"),
        (format!("export sbatch {path} -np 2"), "export sbatch does not support roles"),
        (format!("train {plain} -np trainer=4"), "the project has no role trainer"),
        (format!("train {plain} --role trainer -np 1"), "its hvdctl.toml has no [[role]]"),
        (format!("train {plain}"), "the number of ranks is missing"),
    ] {
        let done = hvdctl(&nodes, &line).await;
        done.complains(&[words, "hint: "]);
        assert_ne!(done.code, 0, "{done}");
    }
    assert_eq!(NODES.map(|node| nodes.state(node)), before);
    with_slurm(&nodes, &NODES);
    let before = NODES.map(|node| nodes.state(node));
    let (_image, image) = project(&FILE.replace("ranks = 2\n", "ranks = 2\nimage = 'serve:1'\n"));
    for (line, words) in [
        (
            format!("train {image}"),
            "the role trainer names an image of its own, which the cluster's queue does not support",
        ),
        (format!("train {path} --on generator=node1"), "the role generator names nodes (--on) of its own"),
    ] {
        for options in ["", " --dry-run"] {
            hvdctl(&nodes, &format!("{line}{options}")).await.code(2).complains(&[words, "--scheduler ssh"]);
        }
    }
    let large = hvdctl(&nodes, &format!("train {path} -np trainer=9")).await;
    large.code(2).complains(&["the role trainer has 9 ranks, but the nodes left have room for fewer"]);
    assert_eq!(NODES.map(|node| nodes.state(node)), before);
}

#[tokio::test(start_paused = true)]
async fn the_queue_is_asked_for_the_nodes_that_roles_need() {
    let names = ["node1", "node2", "node3"];
    let nodes = Nodes::new(&names);
    hvdctl(&nodes, "up").await.code(0);
    with_slurm(&nodes, &names);
    let (_beside, beside) = project(FILE);
    let (_apart, apart) = project(&FILE.replace("beside = 'trainer'\n", ""));
    for (line, asked) in [
        (format!("train {beside}"), "--ntasks=1 --nodes=1 --output"),
        (format!("train {apart}"), "--ntasks=2 --nodes=2 --output"),
        (format!("train {apart} --on node[2-3]"), "--ntasks=2 --nodes=2 --exclude=node1 --output"),
    ] {
        let done = hvdctl(&nodes, &format!("{line} --dry-run")).await;
        done.code(0).says(&["sbatch --job-name=", asked, " --exclusive "]);
    }
    // on others than these the roles might not fit
    let mut inventory = inventory(&nodes);
    inventory.nodes[2].slots = Some(2);
    let line = format!("train {apart} --dry-run");
    let done = hvdctl_on(&nodes, inventory, &line, mpsc::unbounded_channel().1).await;
    done.code(0).says(&["--ntasks=2 --nodes=2 --exclude=node3 --output"]);
}

#[tokio::test(start_paused = true)]
async fn roles_get_the_nodes_that_on_names() {
    let nodes = Nodes::new(&["node1", "node2", "node3"]);
    hvdctl(&nodes, "up").await.code(0);
    let (_beside, beside) = project(FILE);
    let (_dir, path) = project(&FILE.replace("beside = 'trainer'\n", ""));
    let (_plain, plain) = project("");
    for (on, rows) in [
        ("trainer=node3,generator=node1", ["node1  0-1 ", "node3  2-3 "]),
        ("trainer=node[2-3],generator=node2", ["node2  0-1 ", "node3  2-3 "]),
        // what is not named has any node that is selected
        ("node1,trainer=node2", ["node1  0-1 ", "node2  2-3 "]),
    ] {
        let done = hvdctl(&nodes, &format!("train {path} --dry-run --on {on}")).await;
        done.code(0).says(&rows);
    }
    let before = ["node1", "node2", "node3"].map(|node| nodes.state(node));
    for (line, words) in [
        (format!("train {path} --on worker=node1"), "the project has no role worker"),
        (format!("train {plain} -np 1 --on trainer=node1"), "the project has no role trainer"),
        (format!("train {path} --on trainer=node1"), "the role generator needs a node with room for 1 rank"),
        (
            format!("train {beside} --on trainer=node1,generator=node2"),
            "the role generator shares the nodes of trainer (`beside`), which may have none of node2",
        ),
        ("run -np 1 --on trainer=node1 -- true".to_owned(), "--on trainer=…: only train starts roles"),
        ("status --on trainer=node1".to_owned(), "--on trainer=…: only train starts roles"),
    ] {
        let done = hvdctl(&nodes, &line).await;
        done.complains(&[words, "hint: "]);
        assert_ne!(done.code, 0, "{done}");
    }
    assert_eq!(["node1", "node2", "node3"].map(|node| nodes.state(node)), before);
}

/// A trainer, and a generator that has nodes and this of its own.
fn with_generator(own: &str) -> String {
    format!("{}{own}\n", FILE.replace("beside = 'trainer'\n", ""))
}

/// The image of the last container that was created on each node.
fn last_images(nodes: &Nodes) -> [String; 2] {
    NODES.map(|node| nodes.state(node).last_image)
}

#[tokio::test(start_paused = true)]
async fn the_nodes_of_a_role_get_its_image() {
    let nodes = two_with_gpus().await;
    let (_dir, path) = project(&with_generator("image = 'team/serve:1'"));
    let has_it = || NODES.map(|node| nodes.state(node).images.contains(&"team/serve:1".to_owned()));
    let line = format!("train {path} -d");
    let dry = hvdctl(&nodes, &format!("train {path} --dry-run")).await;
    dry.code(0).complains(&["node2: the job pulls it first: team/serve:1"]);
    // neither a registry nor another node has it
    for node in NODES {
        nodes.edit(node, |state| state.has_registry = false);
    }
    hvdctl(&nodes, &line).await.code(125).complains(&["node2: cannot pull", "hvdctl image push team/serve:1"]);
    let mut never = inventory(&nodes);
    never.cluster.pull = Pull::Never;
    for options in ["-d", "--dry-run"] {
        let line = format!("train {path} {options}");
        let done = hvdctl_on(&nodes, never.clone(), &line, mpsc::unbounded_channel().1).await;
        done.complains(&["node2: cannot find the image team/serve:1 of a role", "hvdctl image push team/serve:1"]);
        assert_ne!(done.code, 0, "{done}");
    }
    assert_eq!((has_it(), last_images(&nodes)[1].as_str()), ([false; 2], "test/horovod:1"));
    assert_given_back(&nodes, "after it was refused");

    // it is copied from another node, which the engines of the test cannot do to its end
    let mut peers = inventory(&nodes);
    peers.cluster.pull = Pull::Peers;
    let before = nodes.copy();
    before.edit("node1", |state| state.images.push("team/serve:1".to_owned()));
    hvdctl_on(&before, peers, &line, mpsc::unbounded_channel().1).await;
    assert_eq!(before.count("docker export"), [1, 0]);

    nodes.edit("node2", |state| state.has_registry = true);
    nodes.play(goes_on([("node1", 0), ("node1", 1), ("node2", 2), ("node2", 3)]));
    hvdctl(&nodes, &line).await.code(0);
    assert_eq!(has_it(), [false, true]);
    assert_eq!(last_images(&nodes), ["test/horovod:1", "team/serve:1"]);
    let recorded = NODES.map(|node| file(&nodes, node, "job.json")["image"].as_str().unwrap().to_owned());
    assert_eq!(recorded, ["test/horovod:1", "team/serve:1"]);
    // PATH of the launcher's image is not that of the other
    let launch = file(&nodes, "node1", "launch.json");
    let inherits = [0, 1].map(|role: usize| launch["roles"][role]["inherits"].to_string());
    assert_eq!(inherits, ["null", r#"["HVDCTL_*","PYTHONUNBUFFERED"]"#]);
    // the job goes on in it
    let worker = nodes.state("node2").containers[0].id.clone();
    hvdctl(&nodes, "up").await.code(0);
    assert_eq!(nodes.state("node2").containers[0].id, worker);
}

#[tokio::test(start_paused = true)]
async fn roles_with_one_setup_share_an_image_and_the_others_have_theirs() {
    let nodes = two_with_gpus().await;
    let built = |node: &str| -> Vec<String> {
        let images = nodes.state(node).images.into_iter().chain(nodes.state(node).pulled.into_keys());
        images.filter(|image| image.starts_with("hvdctl/")).collect()
    };
    let (_dir, path) = project(&format!("setup = ['pip install a']\n{}", with_generator("setup = ['pip install b']")));
    let name = path.rsplit('/').next().unwrap().to_ascii_lowercase();
    let dry = hvdctl(&nodes, &format!("train {path} --dry-run")).await;
    dry.code(0)
        .complains(&["the image of the project's setup is built", "the image of the setup of generator is built"]);
    // the engine of the test cannot export images
    let done = hvdctl(&nodes, &format!("--on node1 image build {path}")).await;
    done.code(0).says(&[": built (image of trainer)\n", ": built (image of generator)\n"]);
    let images = built("node1");
    let of_generator = format!("hvdctl/{name}-generator:");
    assert!(images.len() == 2 && images[1].starts_with(&of_generator), "{images:?}");
    hvdctl(&nodes, &format!("--on node1 image build {path}"))
        .await
        .code(0)
        .says(&[": nothing to do (image of trainer)"]);
    // each role's nodes have what it needs already
    nodes.edit("node2", |state| state.images.push(images[1].clone()));
    let line = format!("train {path} -d --on trainer=node1,generator=node2");
    nodes.play(goes_on([("node1", 0), ("node1", 1), ("node2", 2), ("node2", 3)]));
    hvdctl(&nodes, &line).await.code(0);
    assert_eq!(last_images(&nodes).as_slice(), images);
    assert!(!built("node2").contains(&images[0]), "the image of another role");

    let (_same, same) = project(&with_generator("setup = ['pip install b']").replacen(
        "ranks = 2",
        "ranks = 2\nsetup = ['pip install b']",
        1,
    ));
    let done = hvdctl(&nodes, &format!("--on node1 image build {same}")).await;
    done.code(0).says(&[": built (image of trainer, generator)\n"]);
}

#[tokio::test(start_paused = true)]
async fn an_environment_that_a_role_cannot_have_is_refused() {
    let nodes = two_with_gpus().await;
    let before = NODES.map(|node| nodes.state(node));
    let (_dir, mpirun) =
        project(&with_generator("image = 'team/serve:1'").replace("launcher = 'env'", "launcher = 'mpirun'"));
    let done = hvdctl(&nodes, &format!("train {mpirun}")).await;
    done.code(2).complains(&[
        "mpirun starts the ranks of the role generator from node1, which has not the image",
        "--on generator=node1",
    ]);
    let (_dir, activate) = project(&with_generator("activate = ['module load serve']"));
    let done = hvdctl(&nodes, &format!("train {activate}")).await;
    done.code(2).complains(&["hvdctl.toml: line 7: the role generator cannot have `activate` here", "use `image`"]);
    for own in ["image = 'team/serve:1'", "setup = ['true']"] {
        let mut processes = inventory(&nodes);
        processes.cluster.runtime = RuntimeChoice::Process;
        let (_dir, path) = project(&with_generator(own));
        let done = hvdctl_on(&nodes, processes, &format!("train {path}"), mpsc::unbounded_channel().1).await;
        done.code(2).complains(&["line 7: the role generator cannot have `", "use `activate`"]);
    }
    assert_eq!(NODES.map(|node| nodes.state(node)), before);
}
