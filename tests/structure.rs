//! The direction of dependencies: which directory may import which, that no modules import each other in a cycle, and
//! that files that decide do no input or output. It reads the paths in the sources, without their tests.

use regex::Regex;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

/// From top to bottom: a directory imports only from rows below its own.
const ROWS: [&[&str]; 25] = [
    &["main"],
    &["commands"],
    &["render"],
    &["cli"],
    &["doctor", "init", "verify"],
    &["bench", "export"],
    &["schedule"],
    &["start", "top"],
    &["job"],
    &["grade"],
    &["checks", "report"],
    &["record"],
    &["diagnosis", "mesh"],
    &["delivery"],
    &["data", "environment"],
    &["sync", "launch", "worker", "image", "pool"],
    &["keys", "gpus"],
    &["cluster"],
    &["runtime"],
    &["node"],
    &["transport"],
    &["inventory", "terminal"],
    &["document", "event", "trace"],
    &["error"],
    &["trust", "model", "cancel", "text", "secret", "paths", "files", "random"],
];

/// The leaves, which also import each other, from top to bottom.
const LEAVES: [&str; 8] = ["trust", "model", "cancel", "text", "secret", "paths", "files", "random"];

/// Files and directories that decide: they are given values and give values back.
const PURE: [&str; 74] = [
    "bench/outside.rs",
    "mesh/plan.rs",
    "mesh/rules.rs",
    "mesh/trust.rs",
    "text/",
    "model/",
    "inventory/",
    "node/",
    "runtime/spec.rs",
    "runtime/container.rs",
    "runtime/progress.rs",
    "transport/access.rs",
    "transport/host_key.rs",
    "grade/assessment.rs",
    "grade/best.rs",
    "grade/evidence.rs",
    "grade/evidence/",
    "grade/ledger.rs",
    "grade/speed.rs",
    "environment/plan.rs",
    "environment/probe.rs",
    "environment/pylock.rs",
    "environment/requirements.rs",
    "export/",
    "gpus/health.rs",
    "gpus/health/",
    "gpus/rules.rs",
    "gpus/rules/",
    "keys/files.rs",
    "keys/files/",
    "keys/reachability.rs",
    "bench/collectives.rs",
    "bench/measure/schedule.rs",
    "bench/measurements.rs",
    "bench/ranks.rs",
    "bench/recorded.rs",
    "bench/verdict.rs",
    "bench/verdict/",
    "checks/",
    "worker/plan.rs",
    "worker/spec.rs",
    "worker/plan/",
    "launch/mod.rs",
    "launch/description.rs",
    "launch/horovodrun/mod.rs",
    "launch/placement.rs",
    "launch/programs.rs",
    "diagnosis/",
    "data/groups.rs",
    "data/status.rs",
    "sync/manifest.rs",
    "sync/outputs.rs",
    "sync/program.rs",
    "image/archive.rs",
    "image/dockerfile.rs",
    "delivery/manifest.rs",
    "image/names.rs",
    "delivery/relay/order.rs",
    "delivery/relay/protocol.rs",
    "image/status.rs",
    "record/",
    "report/",
    "top/draw.rs",
    "top/view.rs",
    "schedule/queue/config.rs",
    "pool/choice.rs",
    "pool/format.rs",
    "pool/inventory.rs",
    "pool/signature.rs",
    "pool/signers.rs",
    "pool/verification.rs",
    "job/supervision.rs",
    "verify/ranks.rs",
    "verify/verdict.rs",
];

/// Texts that a pure file must not contain.
const IMPURE: [&str; 8] =
    ["async ", ".await", "tokio::", "openssh::", "bollard::", "std::fs", "std::process", "std::net::Tcp"];

/// The most lines of code of a file of `commands`.
const MOST_OF_A_COMMAND: usize = 200;

/// The most files of `commands`, and of one of its directories.
const MOST_COMMAND_FILES: usize = 66;
const MOST_OF_A_DIRECTORY: usize = 28;

/// The groups of `hvdctl --help`, and the directory or file of `commands` that has their commands.
const GROUPS: [(&str, &str); 6] = [
    ("Set up a cluster", "set_up"),
    ("Check and measure it", "check"),
    ("Start jobs", "start"),
    ("Show and stop jobs", "show"),
    ("Work on the nodes", "nodes"),
    ("Use hvdctl itself", "about"),
];

/// The most lines of code of a function, between its braces. One of more has a second task. Tests may have tables of
/// more (clippy.toml).
const MOST_OF_A_FUNCTION: usize = 60;

/// Parts of the paths of tests.
const TESTS: [&str; 6] = [
    "inventory/properties.rs",
    "inventory/sets.rs",
    "/tests",
    "scripted",
    "commands/documents",
    "verdict/simulation.rs",
];

/// An inventory is read from its file there; the others have tests outside of a module of that name.
const EXCEPTIONS: [&str; 2] = ["inventory/mod.rs", "text/quote.rs"];

static TEST_MODULE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"#\[cfg\(test\)\]\n(?:pub(?:\([a-z: ]+\))? )?mod tests \{").unwrap());

/// Each source file by its path below src/, with its text, without test modules.
fn sources() -> BTreeMap<String, String> {
    fn collect(dir: &Path, found: &mut BTreeMap<String, String>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix("src").unwrap().to_str().unwrap().to_owned();
            if path.is_dir() {
                collect(&path, found);
            } else if name.ends_with(".rs") && !TESTS.iter().any(|tests| name.contains(tests)) {
                let text = fs::read_to_string(&path).unwrap();
                let text = text.replace("#[cfg(test)]\nmod tests;\n", "");
                let text = TEST_MODULE.split(&text).next().unwrap();
                let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
                found.insert(name, code.collect::<Vec<_>>().join("\n"));
            }
        }
    }
    let mut found = BTreeMap::new();
    collect(Path::new("src"), &mut found);
    assert!(found.len() > 100, "{found:?}");
    assert!(found["gpus/rules.rs"].lines().count() > 400, "a test module in another file is no end");
    found
}

/// The directory or top-level file that a path is in: `job` for job/watch.rs, `event` for event.rs.
fn room(path: &str) -> &str {
    path.trim_end_matches(".rs").split('/').next().unwrap()
}

/// The module of a file: `start/plan` for start/plan.rs, `start` for start/mod.rs.
fn module(file: &str) -> &str {
    let path = file.strip_suffix(".rs").unwrap();
    path.strip_suffix("/mod").unwrap_or(path)
}

/// The paths of a `use` tree: `a::{b, c::{d, e}}` has three. Renamed ones keep their own name.
fn paths(tree: &str) -> Vec<String> {
    let Some((prefix, rest)) = tree.split_once('{') else {
        return vec![tree.split(" as ").next().unwrap().trim().to_owned()];
    };
    let inside = rest.trim_end().strip_suffix('}').expect("a `use` tree");
    let mut depth = 0;
    let is_end = |c: char| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    };
    let parts = inside.split(is_end).filter(|part| !part.trim().is_empty());
    parts.flat_map(paths).map(|path| format!("{}{path}", prefix.trim())).collect()
}

/// The paths that a module names, from the root of the crate, `/` between their parts; and whether each is re-exported.
fn named(module: &str, text: &str, modules: &BTreeSet<&str>) -> Vec<(String, bool)> {
    static USE: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"(?m)^ *(pub(?:\([a-z]+\))? )?use ([\w:*{},\s]+);").unwrap());
    static INLINE: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\b(?:crate|self|super)(?:::\w+)+").unwrap());
    let rest = USE.replace_all(text, "");
    let inline = INLINE.find_iter(&rest).map(|found| (found.as_str().to_owned(), false));
    let declared = USE.captures_iter(text).flat_map(|found| {
        let is_public = found.get(1).is_some();
        paths(&found[2]).into_iter().map(move |path| (path, is_public))
    });
    let absolute = |(path, is_public): (String, bool)| {
        let mut parts: Vec<&str> = path.split("::").collect();
        let mut base: Vec<&str> = module.split('/').collect();
        match parts[0] {
            "crate" => base.clear(),
            "self" => {}
            "super" => base.truncate(base.len() - parts.iter().filter(|part| **part == "super").count()),
            child if modules.contains(format!("{module}/{child}").as_str()) => {}
            // of another crate, or a type of this file
            _ => return None,
        }
        parts.retain(|part| !matches!(*part, "crate" | "self" | "super"));
        Some(([base, parts].concat().join("/"), is_public))
    };
    declared.chain(inline).filter_map(absolute).collect()
}

/// The module in which a path's item is defined; what a module re-exports is that of another one.
fn defined_in(mut path: String, exported: &BTreeMap<String, String>, modules: &BTreeSet<&str>) -> Option<String> {
    let mut known = path.len();
    loop {
        if modules.contains(&path[..known]) {
            return Some(path[..known].to_owned());
        }
        match exported.get(&path[..known]) {
            Some(target) => {
                path.replace_range(..known, target);
                known = path.len();
            }
            None => known = path[..known].rfind('/')?,
        }
    }
}

/// The row of a room; each leaf has a row of its own.
fn row(room: &str) -> usize {
    if let Some(leaf) = LEAVES.iter().position(|leaf| *leaf == room) {
        return ROWS.len() + leaf;
    }
    ROWS.iter().position(|row| row.contains(&room)).unwrap_or_else(|| panic!("{room} is in no row"))
}

#[test]
fn dependencies_point_one_way() {
    let sources = sources();
    let modules = sources.keys().map(|file| module(file)).collect();
    let rooms: BTreeSet<&str> = sources.keys().map(|file| room(file)).collect();
    let mut edges = 0;
    let mut faults = Vec::new();
    for (file, text) in sources.iter().filter(|(file, _)| *file != "lib.rs") {
        let from = room(file);
        let named = named(module(file), text, &modules);
        for to in named.iter().map(|(path, _)| room(path)).filter(|to| *to != from && rooms.contains(to)) {
            edges += 1;
            if row(to) <= row(from) {
                faults.push(format!("{file} imports {to}, which does not stand below {from}"));
            }
        }
    }
    assert!(edges > 300, "the sources are not read as they are written: {edges} imports");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// A module may name what an ancestor defines: `mod.rs` has the types that its children share, and calls them. What an
/// ancestor only re-exports counts as the import of the module that defines it.
#[test]
fn no_modules_import_each_other_in_a_cycle() {
    let sources = sources();
    let modules: BTreeSet<&str> = sources.keys().map(|file| module(file)).collect();
    let named: BTreeMap<&str, Vec<(String, bool)>> =
        sources.iter().map(|(file, text)| (module(file), named(module(file), text, &modules))).collect();
    let public = named.iter().flat_map(|(module, paths)| {
        let paths = paths.iter().filter(|(_, is_public)| *is_public);
        paths.map(move |(path, _)| (format!("{module}/{}", path.rsplit('/').next().unwrap()), path.clone()))
    });
    let exported: BTreeMap<String, String> = public.filter(|(name, path)| name != path).collect();
    let mut edges: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for (from, paths) in &named {
        let to = paths.iter().filter_map(|(path, _)| defined_in(path.clone(), &exported, &modules));
        edges.insert(from, to.filter(|to| to != from && !from.starts_with(&format!("{to}/"))).collect());
    }
    assert!(edges.values().flatten().count() > 600, "the sources are not read as they are written: {edges:#?}");
    // what imports or is imported by nothing that is left is in no cycle
    loop {
        let before = edges.len();
        let (from, to): (Vec<_>, BTreeSet<_>) =
            (edges.keys().copied().collect(), edges.values().flatten().cloned().collect());
        edges.values_mut().for_each(|to| to.retain(|to| from.contains(&to.as_str())));
        edges.retain(|module, imported| to.contains(*module) && !imported.is_empty());
        if edges.len() == before {
            break;
        }
    }
    assert!(edges.is_empty(), "these modules import each other in a cycle: {edges:#?}");
}

#[test]
fn the_paths_of_a_file_are_read() {
    let modules = BTreeSet::from(["job", "job/plan", "job/plan/parts", "text"]);
    let text = "use crate::{text::{self, units as numbers}, job};\npub(crate) use parts::{Part,\n    Whole};\n\
                use super::super::error;\nuse std::io;\nfn f() { super::list::all(self::g) }";
    let paths: Vec<(String, bool)> = named("job/plan", text, &modules);
    let paths: Vec<String> = paths.into_iter().map(|(path, public)| if public { path + "!" } else { path }).collect();
    assert_eq!(
        paths,
        [
            "text",
            "text/units",
            "job",
            "job/plan/parts/Part!",
            "job/plan/parts/Whole!",
            "error",
            "job/list/all",
            "job/plan/g"
        ]
    );
    let exported = BTreeMap::from([("job/Part".to_owned(), "job/plan/parts/Part".to_owned())]);
    assert_eq!(defined_in("job/Part/new".into(), &exported, &modules).as_deref(), Some("job/plan/parts"));
}

#[test]
fn no_directory_holds_more_than_a_fifth_of_the_code() {
    let mut lines: BTreeMap<&str, usize> = BTreeMap::new();
    let sources = sources();
    for (file, text) in &sources {
        *lines.entry(room(file)).or_default() += text.lines().filter(|line| !line.trim().is_empty()).count();
    }
    let all: usize = lines.values().sum();
    for (room, lines) in lines {
        assert!(lines * 5 <= all, "{room} has {lines} of {all} lines");
    }
}

#[test]
fn only_commands_and_what_serves_them_write_to_the_terminal() {
    let print = Regex::new(r"\be?print(?:ln)?!|\bdbg!|\bstd(?:out|err)\(\)").unwrap();
    // the width of the terminal; the terminal while it shows a screen; the descriptors, which are no file of a project; the streams of other processes
    let others = ["text/table.rs", "top/screen.rs", "sync/tree.rs", "transport/node.rs"];
    for (file, text) in sources() {
        let may = ["main", "commands", "render", "terminal", "trace"].contains(&room(&file));
        let may = may || others.contains(&file.as_str());
        assert!(may || !print.is_match(&text), "{file} prints");
    }
}

/// A command reads options, calls a room and prints. A file that is divided passes as well: what decides is to be in a
/// room.
#[test]
fn commands_are_short() {
    for (file, text) in sources().iter().filter(|(file, _)| file.starts_with("commands/")) {
        let lines = text.lines().filter(|line| !line.trim().is_empty()).count();
        assert!(lines <= MOST_OF_A_COMMAND, "{file} has {lines} lines of code: what decides belongs into a room");
    }
}

/// A reader finds a command in a list that is read at a glance.
#[test]
fn directories_of_commands_are_small() {
    let sources = sources();
    let commands: Vec<&str> = sources.keys().filter(|file| file.starts_with("commands/")).map(String::as_str).collect();
    assert!(commands.len() <= MOST_COMMAND_FILES, "commands has {} files", commands.len());
    let mut files: BTreeMap<&str, usize> = BTreeMap::new();
    for file in commands {
        *files.entry(file.rsplit_once('/').unwrap().0).or_default() += 1;
    }
    files.retain(|_, files| *files > MOST_OF_A_DIRECTORY);
    assert!(files.is_empty(), "{files:?}");
}

/// Each command is called in the directory of its group.
#[test]
fn commands_are_in_the_groups_of_the_help() {
    let sources = sources();
    let group = Regex::new(r#"\("([A-Z][a-z ]+)", &\[([a-z", \n]+)\]\)"#).unwrap();
    let groups: Vec<(&str, &str)> = group.captures_iter(&sources["cli.rs"]).map(|g| g.extract().1.into()).collect();
    assert_eq!(groups.iter().map(|(title, _)| *title).collect::<Vec<_>>(), GROUPS.map(|(title, _)| title));
    let calls = |name: &str, directory: &str| {
        let variant = Regex::new(&format!(r"^(?i:{name})\b")).unwrap();
        let call = Regex::new(&format!(r"[ (]{directory}::")).unwrap();
        sources["commands/mod.rs"].split("Command::").any(|arm| variant.is_match(arm) && call.is_match(arm))
    };
    for ((_, names), (_, directory)) in groups.iter().zip(GROUPS) {
        for name in names.split(|c: char| !c.is_ascii_lowercase()).filter(|name| !name.is_empty()) {
            assert!(calls(name, directory), "{name} is not in commands/{directory}");
        }
    }
    assert!(!calls("up", "check") && !calls("groups", "check"));
}

/// The functions of a file with more lines than that, as rustfmt indents them.
fn long_functions(text: &str) -> Vec<String> {
    let start = Regex::new(r"^( *)(?:pub(?:\([a-z: ]+\))? )?(?:const )?(?:async )?(?:unsafe )?fn (\w+)").unwrap();
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let starts = lines.iter().enumerate().filter_map(|(at, line)| start.captures(line).map(|found| (at, found)));
    let lengths = starts.filter_map(|(at, found)| {
        let is_indented = |line: &&str, rest: &str| line.strip_prefix(&found[1]).is_some_and(|line| line == rest);
        let end = at + lines[at..].iter().position(|line| is_indented(line, "}"))?;
        let body = at + lines[at..].iter().position(|line| line.ends_with('{'))?;
        Some((found[2].to_owned(), end.saturating_sub(body + 1)))
    });
    let long = lengths.filter(|(_, lines)| *lines > MOST_OF_A_FUNCTION);
    long.map(|(name, lines)| format!("{name} has {lines} lines")).collect()
}

#[test]
fn functions_are_short() {
    let sources = sources();
    let long: Vec<String> = sources
        .iter()
        .flat_map(|(file, text)| long_functions(text).into_iter().map(move |found| format!("{file}: {found}")))
        .collect();
    assert!(long.is_empty(), "{long:#?}");
    let of =
        |lines: usize| format!("impl A {{\n    pub async fn f() {{\n{}    }}\n}}\n", "        g();\n".repeat(lines));
    assert_eq!(long_functions(&of(MOST_OF_A_FUNCTION)), [""; 0]);
    assert_eq!(long_functions(&of(MOST_OF_A_FUNCTION + 1)), ["f has 61 lines"]);
}

/// The names of the types that a file defines, also in functions and in the macro of the inventory's tables. Associated
/// types are left out. So are options: they have the names of their commands, as `Image` has, and other rooms write
/// `cli::Image`.
fn types(file: &str, text: &str) -> Vec<String> {
    static OPTIONS: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"#\[derive\([^)]*(?:Args|Subcommand|Parser)\)\]\s+(?:#\[.*\]\s+)*pub (?:struct|enum) \w+").unwrap()
    });
    static TYPE: LazyLock<Regex> = LazyLock::new(|| {
        let public = r"(?:pub(?:\([a-z: ]+\))? )?";
        let declared = format!(r"(?: *{public}(?:struct|enum|union|trait)|{public}type) (\w+)");
        Regex::new(&format!(r"(?m)^(?:{declared}|    (\w+), [A-Z]+ \{{$)")).unwrap()
    });
    let text = if room(file) == "cli" { OPTIONS.replace_all(text, "") } else { text.into() };
    TYPE.captures_iter(&text).map(|found| found.get(1).or(found.get(2)).unwrap().as_str().to_owned()).collect()
}

/// Private types as well. Tests and their stand-ins have names of their own.
#[test]
fn a_name_stands_for_one_type() {
    let mut files: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (file, text) in sources() {
        for name in types(&file, &text) {
            files.entry(name).or_default().push(file.clone());
        }
    }
    assert!(files.len() > 800, "the sources are not read as they are written: {} types", files.len());
    files.retain(|_, files| files.len() > 1);
    assert!(files.is_empty(), "{files:#?}");
}

#[test]
fn the_types_of_a_file_are_read() {
    let text = "pub(in crate::job) struct A;\n#[derive(Args)]\n#[command(about)]\npub struct B {\n}\n\
                impl T for A {\n    type Item = A;\n    fn f() {\n        enum C {}\n    }\n}\n\
                type D<'a> = &'a A;\ntables! {\n    E, ES {\n    }\n}\nunion F {}\npub trait G {}\n";
    assert_eq!(types("job/list.rs", text), ["A", "B", "C", "D", "E", "F", "G"]);
    assert_eq!(types("cli/jobs.rs", text), ["A", "C", "D", "E", "F", "G"]);
}

#[test]
fn only_its_directory_knows_the_container_engines_client() {
    for (file, text) in sources() {
        assert!(file.starts_with("runtime/docker") || !text.contains("bollard"), "{file} names bollard");
    }
}

/// The other rooms ask a cluster for an ability (`Cluster::can`), or a `Runtime` to do what it can.
#[test]
fn only_the_runtime_and_the_inventory_ask_which_runtime_a_cluster_has() {
    let asks = Regex::new(r"RuntimeChoice::|\bRuntime::(Engine|Process|Batch)").unwrap();
    let sources = sources();
    let sites = sources.iter().filter(|(file, _)| !file.starts_with("runtime/"));
    let sites: Vec<(&String, usize)> =
        sites.map(|(file, text)| (file, asks.find_iter(text).count())).filter(|(_, sites)| *sites > 0).collect();
    let allowed = ["inventory/fields.rs", "inventory/mod.rs", "model/ability.rs"];
    assert_eq!(sites.iter().map(|(file, _)| file.as_str()).collect::<Vec<_>>(), allowed, "{sites:?}");
}

/// Other rooms name the options that users write, and `export` writes a script of its own.
#[test]
fn only_schedulers_know_the_commands_of_slurm() {
    let command = Regex::new(r#"(^|[^-.\w])(sbatch|squeue|scancel|sinfo|scontrol|sacct)\b[^:]"#).unwrap();
    for (file, text) in sources() {
        let may = ["schedule", "export", "cli"].contains(&room(&file)) || NAME_IN_MESSAGES.contains(&file.as_str());
        let found = text.lines().find(|line| command.is_match(line) && !line.contains("hvdctl export sbatch"));
        assert!(may || found.is_none(), "{file} names a command of Slurm: {}", found.unwrap_or_default());
    }
}

/// Files whose messages or documents say what a user gives to Slurm or did there.
const NAME_IN_MESSAGES: [&str; 5] = [
    "commands/start/export/inputs.rs",
    "commands/start/train/dry_run.rs",
    "model/fault.rs",
    "inventory/check.rs",
    "inventory/refusals.rs",
];

/// The text of each file below `src/scripts`, by its path.
fn scripts() -> BTreeMap<String, String> {
    let (mut found, mut left) = (BTreeMap::new(), vec![Path::new("src/scripts").to_owned()]);
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else {
            found.insert(path.to_str().unwrap().to_owned(), fs::read_to_string(&path).unwrap());
        }
    }
    found
}

/// NFSv4 locks only what is open for writing. A home directory may be there, and so may every directory that an inventory
/// names.
#[test]
fn locks_are_of_files_that_are_open_for_writing() {
    let locks = Regex::new(r"\bflock\b[^;|&]* ([0-9])\b").unwrap();
    let mut locked = 0;
    for (file, text) in scripts().iter().filter(|(file, _)| file.ends_with(".sh")) {
        for found in locks.captures_iter(text) {
            locked += 1;
            let opens = Regex::new(&format!(r"(^|[\s)]){}(<>?|>>?)[^&]", &found[1])).unwrap();
            let opened: Vec<String> = opens.captures_iter(text).map(|found| found[2].to_owned()).collect();
            assert!(!opened.is_empty() && !opened.contains(&"<".to_owned()), "{file}: {} {opened:?}", &found[0]);
        }
    }
    assert!(locked >= 6, "{locked}");
}

/// Scripts and programs are given the places: in a container, or in the directories of a login.
#[test]
fn programs_on_the_nodes_have_no_places_of_their_own() {
    let places = Regex::new(r#"(^|[\s'"=])(/workspace|/data|/root|/run/hvdctl)\b"#).unwrap();
    // the main processes of containers, and what looks for the mark of one
    let of_container = [
        "src/scripts/worker/start.sh",
        "src/scripts/worker/init.py",
        "src/scripts/programs/reap.py",
        "src/scripts/export/worker.sh",
        "src/scripts/slurm/nodes/main.sh",
        "src/scripts/slurm/nodes/restart.sh",
    ];
    let mut found = Vec::new();
    for (file, text) in scripts().iter().filter(|(file, _)| !of_container.contains(&file.as_str())) {
        let lines = text.lines().filter(|line| !line.trim_start().starts_with('#') && places.is_match(line));
        found.extend(lines.map(|line| format!("{file}: {line}")));
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn only_runtime_and_transport_run_the_engine() {
    for (file, text) in sources() {
        let may = ["runtime", "transport"].contains(&room(&file));
        assert!(may || !text.contains("RunAs::Engine"), "{file} runs the engine");
    }
}

#[test]
fn files_that_decide_do_no_input_or_output() {
    let sources = sources();
    for pure in PURE {
        let files: Vec<_> = sources.iter().filter(|(file, _)| file.starts_with(pure)).collect();
        assert!(!files.is_empty(), "there is no {pure}");
        for (file, text) in files.into_iter().filter(|(file, _)| !EXCEPTIONS.contains(&file.as_str())) {
            for name in IMPURE {
                assert!(!text.contains(name), "{file} names {name}");
            }
        }
    }
}

#[test]
fn temporary_directories_are_made_by_one_function_that_closes_them() {
    let open = Regex::new(r"tempfile::tempdir|TempDir::new|\btempfile::Builder::new\(\)[^;]*\.tempdir").unwrap();
    for (file, text) in sources() {
        assert!(!open.is_match(&text), "{file} makes a temporary directory without paths::private_directory");
    }
}

/// Scripts that work in a directory of the inventory and leave it to others to find out who can change that.
const UNEXAMINED: [(&str, &[&str]); 4] = [
    (
        "their commands observe the node first: facts.sh examines all directories, and check_permissions or a preflight \
         check refuses",
        &[
            "keys/push.sh",
            "keys/stage.sh",
            "keys/switch.sh",
            "keys/public_key.sh",
            "job/start.sh",
            "job/join.sh",
            "node/directories.sh",
            "node/drain.sh",
            "node/purge.sh",
            "slurm/nodes/describe.sh",
        ],
    ),
    (
        "they only read, what a job may have forged as well, below a directory that they open (job/directory.sh); and a job \
         can be stopped wherever it is",
        &[
            "bench/past_read.sh",
            "ledger/read.sh",
            "job/end.sh",
            "job/files.sh",
            "job/follow.sh",
            "job/list.sh",
            "job/outside.sh",
            "job/piece.sh",
            "job/read.sh",
            "job/result.sh",
            "job/size.sh",
            "job/stack.sh",
        ],
    ),
    ("it follows install.sh of the same command", &["mesh/state.sh"]),
    (
        "they follow key.sh of the same command, or only ask whether a file is there",
        &["slurm/nodes/given.sh", "slurm/nodes/has_key.sh"],
    ),
];

#[test]
fn scripts_that_work_in_a_directory_examine_who_can_change_it() {
    let composed = Regex::new(
        r#"const \w+: &str =\s*(concat!\(|process_script!\(|)((?:\s*(?:include_str!\()?"[^"]+\.sh"\)?,?)+)"#,
    )
    .unwrap();
    let part = Regex::new(r#""(?:\.\./)*(?:scripts/)?([^"]+\.sh)""#).unwrap();
    let variable =
        Regex::new(r"\b(ssh_dir|jobs_dir|projects_dir|data_dir|run_dir|state_dir)\b|^: directory\b").unwrap();
    let read = |script: &str| fs::read_to_string(Path::new("src/scripts").join(script)).unwrap();
    let variables = |text: &str| {
        let comment: Vec<&str> = text.lines().take_while(|line| line.starts_with('#')).collect();
        comment.join(" ").split_once("Variables").is_some_and(|(_, listed)| variable.is_match(listed))
    };
    let (mut examined, mut without) = (0, BTreeSet::new());
    for (_, text) in sources() {
        for found in composed.captures_iter(&text) {
            let mut parts: Vec<String> = part.captures_iter(&found[2]).map(|part| part[1].to_owned()).collect();
            if &found[1] == "process_script!(" {
                parts.insert(0, "process/common.sh".to_owned());
            }
            let texts: Vec<String> = parts.iter().map(|script| read(script)).collect();
            let names_a_directory = texts.iter().any(|text| variables(text));
            let examines = |text: &String| text.contains("\nrefuse_exposed \"") || text.contains("\nreport_exposed ");
            match texts.iter().any(examines) {
                true => examined += 1,
                false if names_a_directory => drop(without.insert(parts.pop().unwrap())),
                false => {}
            }
        }
    }
    assert!(examined > 20, "{examined}");
    let known: BTreeSet<String> =
        UNEXAMINED.iter().flat_map(|(_, scripts)| scripts.iter().map(|script| (*script).to_owned())).collect();
    assert_eq!(without, known, "who can change the directories of these scripts?");
}

/// Returns the dependencies of a table of Cargo.toml whose paths, macros or attributes no source names.
fn unused(table: &str, sources: &str) -> Vec<String> {
    let manifest: toml::Table = fs::read_to_string("Cargo.toml").unwrap().parse().unwrap();
    let names = manifest[table].as_table().unwrap().keys();
    let is_used = |name: &&String| {
        let name = name.replace('-', "_");
        Regex::new(&format!(r"(?m)(?:^|[^:\w]){name}::|^ *use {name}(?:;| as )")).unwrap().is_match(sources)
    };
    names.filter(|name| !is_used(name)).cloned().collect()
}

#[test]
fn every_dependency_is_used() {
    fn read(directory: &Path) -> String {
        let paths = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        let text = |path: std::path::PathBuf| match path.extension() {
            _ if path.is_dir() => read(&path),
            Some(extension) if extension == "rs" => fs::read_to_string(path).unwrap(),
            _ => String::new(),
        };
        paths.map(text).collect()
    }
    let product = sources().into_values().collect::<Vec<_>>().join("\n");
    assert_eq!(unused("dependencies", &product), [""; 0]);
    let all: String = ["src", "tests", "benches"].map(|directory| read(Path::new(directory))).concat();
    assert_eq!(unused("dev-dependencies", &all), [""; 0]);
    let without = product.replace("which::", "").replace("anyhow::", "");
    assert_eq!(unused("dependencies", &without), ["anyhow", "which"]);
}
