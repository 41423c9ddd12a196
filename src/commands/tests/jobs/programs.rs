//! Programs and projects: what is found wrong with them, and what ranks get of them.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_script_that_linux_cannot_start_is_refused_before_the_start() {
    let nodes = two_up().await;
    let (_dir, path) = project(&[("run.sh", 0o644, "#!/bin/sh\r\n"), ("dir/train.sh", 0o755, "#!/bin/sh\r\n")]);
    std::os::unix::fs::symlink("dir/train.sh", format!("{path}/link.sh")).unwrap();
    let train = async |command| hvdctl(&nodes, &format!("train {path} -np 2 --map-by node -- {command}")).await;
    train("./run.sh").await.code(2).complains(&["./run.sh is not executable (mode 644)", "hint: chmod +x ./run.sh"]);
    train("./link.sh").await.code(2).complains(&["the first line of ./link.sh ends with a carriage return", "sed -i"]);
    for call in NODES.iter().flat_map(|node| nodes.calls(node)) {
        assert!(!call.starts_with("upload/") && !call.starts_with("job/start"), "{call}");
    }
    assert_over(&nodes, "after it was refused");
    nodes.play(ends_with([0, 0]));
    let done = train("sh ./run.sh").await;
    done.code(0).complains(&["./run.sh has Windows line ends", "sed -i 's/\\r$//' ./run.sh"]);
    assert_eq!(done.err.matches("Windows line ends").count(), 1, "{done}");
}

#[tokio::test(start_paused = true)]
async fn a_module_of_the_project_that_is_not_found_is_not_to_be_installed() {
    let failed = |line: &str| {
        let play = Play::default().frame(0, "node1", "0 s ").frame(0, "node2", "1 s ");
        let play = play.frame(1000, "node2", &format!("1 e {line}")).frame(2000, "node2", "1 x 1");
        play.frame(2000, "node1", "0 x 143 asked").ends(2000, 1)
    };
    let nodes = up_with(failed("ModuleNotFoundError: No module named 'src'")).await;
    let (_dir, path) = project(&[("src/net.py", 0o644, ""), ("scripts/train.py", 0o644, "from src import net\n")]);
    let train = format!("train {path} -np 2 --map-by node -- python scripts/train.py");
    let done = hvdctl(&nodes, &train).await;
    done.code(1).complains(&[
        "hint: src is in the project, but",
        "python -m scripts.train",
        "-e PYTHONPATH=/workspace",
    ]);
    assert!(!done.err.contains("pip install"), "{done}");
    hvdctl(&nodes, "attach").await.complains(&["hint: if src is in the project: -e PYTHONPATH=/workspace"]);
    nodes.play(failed("ModuleNotFoundError: No module named 'tiny'"));
    let done = hvdctl(&nodes, &train).await;
    done.code(1).complains(&["setup = [\"pip install PACKAGE\"] with the package that has tiny"]);
    // `run` has no project whose ignore files could leave the module out
    nodes.play(failed("ModuleNotFoundError: No module named 'src'"));
    hvdctl(&nodes, RUN).await.code(1).complains(&["hint: `run` does not upload a project; `hvdctl train` does"]);
    hvdctl(&nodes, "attach").await.complains(&["hint: `run` does not upload a project"]);
}

#[tokio::test(start_paused = true)]
async fn the_python_that_runs_in_place_of_the_default_one_is_noted_once() {
    let play = Play::default().frame(0, "node1", "0 p python3").frame(0, "node1", "0 s ").frame(0, "node2", "1 s ");
    let play = play.frame(500, "node1", "0 p python3").frame(1000, "node1", "0 x 0").frame(1000, "node2", "1 x 0");
    let nodes = up_with(play.ends(1000, 0)).await;
    let (_dir, path) = project(&[("train.py", 0o644, "")]);
    let noted = "there is no `python`: the ranks run `python3`";
    for line in [format!("train {path} -np 2 --map-by node"), "logs".to_owned()] {
        let done = hvdctl(&nodes, &line).await;
        done.code(0);
        assert_eq!(done.err.matches(noted).count(), 1, "{done}");
    }
    let record = nodes.state("node1").directories.into_values().next().unwrap().files["job.json"].clone();
    assert!(record.contains("\"default_command\":true"), "{record}");
}

#[tokio::test(start_paused = true)]
async fn why_a_program_does_not_start_has_a_hint() {
    let reason =
        r#"1 b {"program": "./x", "error": "No such file or directory", "fault": "line_ends", "about": "/bin/bash"}"#;
    let play = Play::default().frame(0, "node1", "0 s ").frame(0, "node2", reason).frame(0, "node2", "1 x 127");
    let nodes = up_with(play.frame(100, "node1", "0 x 143 asked").ends(100, 127)).await;
    let done = hvdctl(&nodes, &RUN.replace("true", "./x")).await;
    done.code(127)
        .complains(&["rank 1 on node2: cannot start ./x: No such file or directory: its first line names /bin/bash\\r (Windows line ends)", "hint: sed -i 's/\\r$//' ./x removes"]);
}

#[tokio::test(start_paused = true)]
async fn an_mpirun_that_is_not_open_mpis_is_named() {
    let refused = "0 l [mpiexec@node1] match_arg (utils/args/args.c:163): unrecognized argument allow-run-as-root";
    let nodes = up_with(Play::default().frame(500, "node1", refused).ends(1000, 255)).await;
    let mpirun = RUN.replace("run ", "run --launcher mpirun ");
    let hint = "hint: install Open MPI in the image";
    nodes.fault("node1", "find program", Fault::Fails("MPICH\n".into()));
    let done = hvdctl(&nodes, &mpirun).await;
    done.code(125).complains(&["the first mpirun in PATH of the image test/horovod:1 is that of MPICH", hint]);
    assert_eq!(nodes.count("job/start.sh"), [0, 0], "{done}");
    nodes.repair();
    nodes.fault("node1", "find program", Fault::Fails("missing\n".into()));
    hvdctl(&nodes, &mpirun).await.code(125).complains(&["the image test/horovod:1 has no mpirun"]);
    // an image that no worker has yet
    nodes.repair();
    let done = hvdctl(&nodes, &mpirun).await;
    done.code(125).complains(&["not all ranks started (launcher: exit code 255)", "unrecognized argument", hint]);
    assert!(!done.err.contains("start_timeout_s"), "{done}");
}

#[tokio::test(start_paused = true)]
async fn variables_of_the_engine_are_not_those_of_a_job() {
    let nodes = two_up().await;
    let with = |variable: &str| RUN.replace("run ", &format!("run -e {variable} "));
    let done = hvdctl(&nodes, &with("NVIDIA_DRIVER_CAPABILITIES=all")).await;
    done.code(2)
        .complains(&["NVIDIA_DRIVER_CAPABILITIES cannot be set for a job", "set NVIDIA_DRIVER_CAPABILITIES in `env`"]);
    hvdctl(&nodes, &with("NVIDIA_VISIBLE_DEVICES=0")).await.code(2).complains(&["choose GPUs by `gpus`"]);
    assert_eq!(nodes.count("job/start.sh"), [0, 0], "{done}");
}

#[tokio::test(start_paused = true)]
async fn ranks_and_the_record_have_the_commit_of_the_project() {
    let nodes = up_with(ends_with([0, 0])).await;
    let (_dir, path) = project(&[("train.py", 0o644, "")]);
    let git = |arguments: &str| {
        let mut git = std::process::Command::new("git");
        git.args(["-C", &path, "-c", "user.name=a", "-c", "user.email=a@b"]).args(arguments.split(' '));
        let output = git.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let train = format!("train {path} -np 2 --map-by node");
    let variables = |node: &str| {
        // the job that runs is the one that has the file; two that start in the same second have no order
        let mut directories = nodes.state(node).directories.into_values();
        let env = directories.find_map(|directory| directory.files.get("env.json").cloned()).unwrap();
        let env: serde_json::Value = serde_json::from_str(&env).unwrap();
        (env["HVDCTL_GIT_COMMIT"].clone(), env["HVDCTL_GIT_DIRTY"].clone())
    };
    let job = async || hvdctl(&nodes, "jobs --json").await.document()["jobs"][0].clone();
    hvdctl(&nodes, &train).await.code(0);
    assert_eq!((&job().await["commit"], &job().await["dirty"]), (&serde_json::Value::Null, &serde_json::Value::Null));
    for command in ["init -q", "add .", "commit -q -m one"] {
        git(command);
    }
    let id = git("rev-parse HEAD");
    for (change, is_dirty) in [(None, false), (Some("new.py"), true)] {
        change.into_iter().for_each(|name| std::fs::write(format!("{path}/{name}"), "").unwrap());
        nodes.play(Play::default().frame(0, "node1", "0 s ").frame(0, "node2", "1 s "));
        hvdctl(&nodes, &train.replace("train ", "train --detach ")).await.code(0);
        let dirty = if is_dirty { "1" } else { "0" };
        for node in NODES {
            assert_eq!(variables(node), (id.as_str().into(), dirty.into()), "{node}");
        }
        let job = job().await;
        assert_eq!((&job["commit"], &job["dirty"]), (&id.as_str().into(), &is_dirty.into()));
        hvdctl(&nodes, "stop").await.code(0);
        hvdctl(&nodes, "-y jobs prune").await.code(0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_module_that_the_image_lacks_is_named_before_the_start() {
    let nodes = two_up().await.copy();
    let (_dir, path) = project(&[("train.py", 0o644, "import torch\nimport sklearn\n")]);
    let train = format!("train {path} -np 2 --map-by node");
    nodes.fault("node2", "find imports", Fault::Fails("missing sklearn 2\n".into()));
    let missing = "error: the image test/horovod:1 has no module sklearn, which train.py imports in line 2";
    let ways = ["setup = [\"pip install scikit-learn\"]", "build = \"Dockerfile\"", "another `image`"];
    hvdctl(&nodes, &train).await.code(125).complains(&[missing]).complains(&ways);
    let calls = nodes.calls("node1");
    assert!(!calls.iter().any(|call| call.starts_with("docker create")), "{calls:?}");
    assert_over(&nodes, "after it was refused");
    // an earlier job may have left it in a project that no worker has mounted
    nodes.repair();
    nodes.play(ends_with([0, 0]));
    hvdctl(&nodes, &train.replace("train ", "train --as other ")).await.code(0);
    nodes.fault("node2", "find imports", Fault::Fails("missing sklearn 2\n".into()));
    nodes.play(ends_with([0, 0]));
    hvdctl(&nodes, &train).await.code(0);
    // it has this one mounted now
    hvdctl(&nodes, &train).await.code(125).complains(&[missing]);
    // what ranks have and the worker has not may decide what is found
    nodes.play(ends_with([0, 0]));
    hvdctl(&nodes, &format!("{train} -e PYTHONPATH=/data/lib")).await.code(0);
}

#[tokio::test(start_paused = true)]
async fn the_modules_of_every_role_are_sought() {
    let nodes = two_up().await.copy();
    let file = "[[role]]\nname = \"trainer\"\ncommand = [\"./run.sh\"]\nlauncher = \"env\"\nranks = 1\n\
                [[role]]\nname = \"generator\"\ncommand = [\"python\", \"serve.py\"]\nlauncher = \"env\"\nranks = 1\n";
    let serve = ("serve.py", 0o644, "import sklearn\n");
    let (_dir, path) = project(&[("run.sh", 0o755, "#!/bin/sh\n"), serve, ("hvdctl.toml", 0o644, file)]);
    nodes.fault("node2", "find imports", Fault::Fails("missing sklearn 1\n".into()));
    let missing = "error: the image test/horovod:1 has no module sklearn, which serve.py imports in line 1";
    hvdctl(&nodes, &format!("train {path}")).await.code(125).complains(&[missing]);
    // what its ranks have and the worker has not may decide what is found
    std::fs::write(format!("{path}/hvdctl.toml"), format!("{file}env = {{ PYTHONPATH = \"/data/lib\" }}\n")).unwrap();
    let started = hvdctl(&nodes, &format!("train {path} --dry-run")).await;
    started.code(0);
}
