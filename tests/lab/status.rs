//! `status`: one row for each node, whatever its state.

use crate::pool::power;
use crate::state::{IMAGE, Lab, Restore, on};
use serde_json::{Value, json};

/// The cells of a node's row.
fn row<'a>(text: &'a str, node: &str) -> Vec<&'a str> {
    let line = text.lines().find(|l| l.split_whitespace().next() == Some(node));
    line.unwrap_or_else(|| panic!("no row of {node} in\n{text}")).split_whitespace().collect()
}

fn document(lab: &Lab, code: i32) -> Value {
    let done = lab.hvdctl(&["status", "--json"]).code(code);
    serde_json::from_str(&done.out).unwrap_or_else(|e| panic!("{e}\n{}", done.out))
}

/// Tests of behaviour that other tests prove without a lab, repeated on real nodes (`scripts/test --full`).
mod full {
    use super::*;

    #[test]
    fn the_state_of_every_node() {
        let lab = Lab::empty();
        let engine = on("node1", "docker version -f '{{.Server.Version}}'");
        let image = on("node1", &format!("docker images --no-trunc -q {IMAGE}"));
        let image = image.trim().trim_start_matches("sha256:").get(..12).unwrap().to_owned();
        // nothing there yet
        let text = lab.hvdctl(&["status"]).ok();
        assert_eq!(
            text.lines().next().unwrap().split_whitespace().collect::<Vec<_>>(),
            ["NODE", "ENGINE", "WORKER", "IMAGE", "GPUS", "SLOTS", "JOB"]
        );
        assert_eq!(row(&text, "node1"), ["node1", "(master)", "Docker", engine.trim(), "none", &image, "1", "1", "–"]);
        assert_eq!(row(&text, "node2")[3], "none");
        assert_eq!(document(&lab, 0)["nodes"][0]["worker"], "none");
        on("node1", "test ! -e /opt/horovod");

        lab.hvdctl(&["up"]).code(0);
        assert_eq!(
            row(&lab.hvdctl(&["ps"]).ok(), "node2"),
            ["node2", "Docker", engine.trim(), "up", &image, "1", "1", "–"]
        );
        let up = document(&lab, 0);
        assert_eq!(up["ok"], true);
        for (i, node) in up["nodes"].as_array().unwrap().iter().enumerate() {
            assert_eq!((&node["node"], &node["reachable"]), (&format!("node{}", i + 1).into(), &true.into()));
            assert_eq!((&node["worker"], &node["master"], &node["jobs"]), (&"up".into(), &(i == 0).into(), &json!([])));
        }

        on("node1", "docker stop -t 1 hworker");
        on(
            "node2",
            &format!("docker rm -f hworker && docker run -d --name hworker --label hvdctl-test=1 {IMAGE} sleep 600"),
        );
        let text = lab.hvdctl(&["status"]).ok();
        assert_eq!((row(&text, "node1")[3], row(&text, "node2")[2]), ("stopped", "foreign"));
        on("node2", "docker rm -f hworker");
        lab.hvdctl(&["up"]).code(0);
        lab.edit("[defaults]", "port = 12346\n[defaults]");
        assert_eq!(row(&lab.hvdctl(&["status"]).ok(), "node2")[2], "differs");
    }

    #[test]
    fn a_node_out_of_reach_does_not_hide_the_other() {
        let lab = Lab::up();
        lab.edit("connect_timeout_s = 10", "connect_timeout_s = 3");
        power(&["pause"], "node2");
        let _restore = Restore(|| power(&["unpause"], "node2"));
        let done = lab.hvdctl(&["status"]).code(3).complains(&["node2: cannot log in by ssh"]);
        assert_eq!(row(&done.out, "node1")[3], "up");
        assert_eq!(row(&done.out, "node2"), ["node2", "unreachable"]);
        let document = document(&lab, 3);
        assert_eq!(document["ok"], false);
        let nodes = document["nodes"].as_array().unwrap();
        let reported: Vec<_> =
            nodes.iter().map(|n| (n["node"].as_str().unwrap(), n["reachable"] == true, n["ok"] == true)).collect();
        assert_eq!(reported, [("node1", true, true), ("node2", false, false)]);
        // with no node in reach it is another code
        lab.hvdctl(&["--on", "node2", "status"]).code(4);
    }
}
