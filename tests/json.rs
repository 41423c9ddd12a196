//! The documents of commands that need no node have the fields of their types, and docs/reference/json.md describes
//! these types.

mod documented;

use hvdctl::launch::programs::{ON_EVERY_NODE, ON_FIRST_NODE};
use hvdctl::model::start_fault::StartFailure;
use hvdctl::record::files::{FILES, JobFile};
use hvdctl::record::frames::KINDS;
use hvdctl::record::{Attempt, JobResult, Record};
use schemars::generate::SchemaSettings;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

/// Runs it in a directory; exit code and what it wrote to standard output.
fn hvdctl(dir: &Path, args: &[&str]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hvdctl"));
    command.current_dir(dir).env("HOME", dir).env("XDG_RUNTIME_DIR", dir).arg("--json").args(args).stdin(Stdio::null());
    // in tests, $HOME is the home for ssh too
    let path = std::env::var("PATH").unwrap();
    command.env("PATH", format!("{}/tests/own_home:{path}", env!("CARGO_MANIFEST_DIR")));
    for name in ["HVDCTL_INVENTORY", "HVDCTL_IMAGE", "XDG_CONFIG_HOME"] {
        command.env_remove(name);
    }
    let done = command.output().unwrap();
    (done.status.code().unwrap(), String::from_utf8(done.stdout).unwrap())
}

#[test]
fn documents_have_the_fields_of_their_types() {
    let dir = tempfile::tempdir().unwrap();
    let inventory = "[cluster]\nname = \"lab\"\nconnect_timeout_s = 30\n[defaults]\nuser = \"nobody\"\nssh_port = \
        1\ngpus = 1\n\
                     [[node]]\nhost = \"127.0.0.1\"\n";
    std::fs::write(dir.path().join("refuses.toml"), inventory).unwrap();
    for (args, code) in [
        (&["completions", "fish"][..], 0),
        (&["man"], 0),
        (&["man", "--dir", "."], 0),
        (&["schema"], 0),
        (&["init", "-o", "unseen.toml", "nobody@127.0.0.1:1", "nobody@127.0.0.2:1"], 4),
        (&["keys", "push"], 2),
        (&["-i", "none.toml", "up"], 2),
        (&["-i", "refuses.toml", "up"], 4),
        (&["-i", "refuses.toml", "down"], 4),
        (&["-i", "refuses.toml", "keys", "status"], 4),
        (&["-i", "refuses.toml", "status"], 4),
        (&["-i", "refuses.toml", "doctor"], 4),
        (&["-i", "refuses.toml", "run", "-np", "9", "--", "true"], 2),
    ] {
        let (ended, out) = hvdctl(dir.path(), args);
        assert_eq!(ended, code, "{args:?}: {out}");
        assert_eq!(out.lines().count(), 1, "{args:?}: one document, one line: {out}");
        documented::hold(args, &out);
        let document: Value = serde_json::from_str(&out).unwrap();
        if document["error"].is_string() {
            assert_eq!(document["code"], code);
        }
    }
}

/// The line that begins the generated part of the page.
const MARK: &str = "<!-- generated from src/commands/json.rs -->\n";

#[test]
fn the_page_describes_every_document() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference/json.md");
    let old = std::fs::read_to_string(&path).unwrap();
    let (by_hand, _) = old.split_once(MARK).unwrap();
    let new = format!("{by_hand}{MARK}{}", page(&documented::schema()));
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, new).unwrap();
    } else {
        assert!(old == new, "docs/reference/json.md is out of date: UPDATE_DOCS=1 cargo test --test json");
    }
}

#[test]
fn the_page_describes_a_jobs_directory() {
    const MARK: &str = "<!-- generated from src/record -->\n";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference/on-the-nodes.md");
    let old = std::fs::read_to_string(&path).unwrap();
    let (by_hand, _) = old.split_once(MARK).unwrap();
    let new = format!("{by_hand}{MARK}{}", directory());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, new).unwrap();
    } else {
        assert!(old == new, "docs/reference/on-the-nodes.md is out of date: UPDATE_DOCS=1 cargo test --test json");
    }
}

/// The tables of the files of a job's directory, of the frames of its logs, and of the objects in them.
fn directory() -> String {
    let name = |name: &&str| if name.ends_with('.') { format!("`{name}RANK`") } else { format!("`{name}`") };
    let mut page = String::from(
        "\n## A job's directory\n\n| file | mode | written by | read by | contents |\n|---|---|---|---|---|\n",
    );
    for file in FILES {
        let names = file.names.iter().map(name).collect::<Vec<_>>().join(", ");
        let JobFile { mode, writer, reader, contents, .. } = file;
        page.push_str(&format!("| {names} | {mode:o} | {writer} | {reader} | {contents} |\n"));
    }
    for (place, programs) in [("every node", &ON_EVERY_NODE[..]), ("the launcher's node", &ON_FIRST_NODE)] {
        let names: Vec<String> = programs.iter().map(|(_, name, _)| format!("`{name}`")).collect();
        page.push_str(&format!("| {} | 644, `ssh` 755 | hvdctl | | the programs on {place} |\n", names.join(", ")));
    }
    page.push_str("\n### Frames\n\n| KIND | frame |\n|---|---|\n");
    page.extend(KINDS.iter().map(|(kind, frame)| format!("| `{kind}` | {frame} |\n")));
    let mut generator = SchemaSettings::draft2020_12().into_generator();
    let files = [
        ("job.json", generator.subschema_for::<Record>()),
        ("result.json", generator.subschema_for::<JobResult>()),
        ("attempts.json", generator.subschema_for::<Vec<Attempt>>()),
    ];
    generator.subschema_for::<StartFailure>();
    let all = serde_json::json!({ "$defs": generator.take_definitions(true) });
    page.push_str("\n### Fields\n\nThe `fault` of an attempt is a [Fault](#fault) too.\n\n");
    for (name, schema) in files {
        page.push_str(&format!("- `{name}`: {}\n", type_of(&schema.to_value())));
    }
    for (name, schema) in all["$defs"].as_object().unwrap() {
        let table = if name == "Fault" { kinds(&all, schema) } else { fields(&all, schema) };
        page.push_str(&format!("\n#### {name}\n\n{}{table}", about(schema)));
    }
    page
}

/// A table of the kinds of a tagged type with the facts of each.
fn kinds(all: &Value, schema: &Value) -> String {
    let mut table = String::from("| kind | | facts |\n|---|---|---|\n");
    for part in schema["oneOf"].as_array().or(schema["anyOf"].as_array()).unwrap() {
        let parts = part["oneOf"].as_array().map_or(std::slice::from_ref(part), Vec::as_slice);
        for part in parts.iter().filter(|part| part["properties"]["kind"].is_object()) {
            let all_fields = documented::objects(all, part).remove(0).schemas;
            let facts = all_fields.iter().filter(|(name, _)| name != "kind");
            let facts: Vec<String> = facts.map(|(name, schema)| format!("`{name}`: {}", comment(schema))).collect();
            let kind = type_of(&part["properties"]["kind"]);
            table.push_str(&format!("| {kind} | {} | {} |\n", comment(part), facts.join("<br>")));
        }
    }
    table
}

/// The files that programs and hvdctl name with `files.write("x"` and the like are in the list.
#[test]
fn each_file_of_a_jobs_directory_is_listed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let names = [
        r#"files\.(?:write|write_json|read|read_json|remove)\("([a-z_.]+)""#,
        r#"self\.open\("([a-z_.]+)"\)"#,
        r#"HERE, "([a-z_.]+)""#,
        r#""([a-z_]+\.json)""#,
        r#"job(?:\.|_)directory, "([a-z_.]+)""#,
    ];
    let mut found = BTreeSet::new();
    let mut search = |below: &str, patterns: &[&str]| {
        let mut directories = vec![root.join(below)];
        while let Some(directory) = directories.pop() {
            for entry in std::fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    directories.push(path);
                } else if path.file_name() != Some("tests.rs".as_ref())
                    && path.extension().is_some_and(|end| end == "py" || end == "rs")
                {
                    let text = std::fs::read_to_string(&path).unwrap();
                    for pattern in patterns {
                        let pattern = regex::Regex::new(pattern).unwrap();
                        found.extend(pattern.captures_iter(&text).map(|found| found[1].to_owned()));
                    }
                }
            }
        }
    };
    search("scripts/programs", &names);
    search("scripts/notebook", &names);
    search("start", &[r#"\(0o[0-7]+, "([a-z_.]+)""#, r#"stored::write(?:_checked)?\("([a-z_.]+)""#]);
    let programs = ON_EVERY_NODE.iter().chain(&ON_FIRST_NODE).map(|(_, name, _)| *name);
    let listed: BTreeSet<&str> = FILES.iter().flat_map(|file| file.names).copied().chain(programs).collect();
    // in the private directory of JupyterLab
    let private = ["page_config.json", "kernel.json"];
    let is_missing = |name: &&String| !listed.contains(name.as_str()) && !private.contains(&name.as_str());
    let missing: Vec<&String> = found.iter().filter(is_missing).collect();
    assert!(missing.is_empty() && found.len() > 20, "not in src/record/files.rs: {missing:?}");
}

/// The tables of all documents, and of the objects in them.
fn page(all: &Value) -> String {
    let documents = all["documents"].as_object().unwrap();
    let mut page = String::from("\n## Documents\n");
    let mut roots = Vec::new();
    for (name, schema) in documents {
        let target = documented::resolve(all, schema);
        roots.push(schema["$ref"].as_str().unwrap_or_default().rsplit('/').next().unwrap_or_default().to_owned());
        page.push_str(&format!("\n### {name}\n\n{}{}", about(target), fields(all, target)));
    }
    page.push_str("\n## Objects\n");
    for (name, schema) in all["$defs"].as_object().unwrap() {
        if !roots.contains(name) {
            page.push_str(&format!("\n### {name}\n\n{}{}", about(schema), fields(all, schema)));
        }
    }
    page
}

/// A comment on one line.
fn comment(schema: &Value) -> String {
    schema["description"].as_str().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
}

fn about(schema: &Value) -> String {
    let text = comment(schema);
    if text.is_empty() { String::new() } else { format!("{text}\n\n") }
}

/// A table of an object's fields, one for each of its alternatives; else its type.
fn fields(all: &Value, schema: &Value) -> String {
    let objects = documented::objects(all, schema);
    if objects.iter().all(|fields| fields.schemas.is_empty()) {
        return format!("{}\n", type_of(schema));
    }
    let tables = objects.iter().map(|fields| {
        let row = |(name, schema): &(String, Value)| {
            let optional = if fields.required.contains(name) { "" } else { " (may be missing)" };
            format!("| `{name}` | {}{optional} | {} |\n", type_of(schema), comment(schema))
        };
        format!("| field | type | |\n|---|---|---|\n{}", fields.schemas.iter().map(row).collect::<String>())
    });
    tables.collect::<Vec<_>>().join("\n")
}

fn type_of(schema: &Value) -> String {
    if let Some(path) = schema["$ref"].as_str() {
        let name = path.rsplit('/').next().unwrap();
        return format!("[{name}](#{})", name.to_lowercase());
    }
    if schema["const"] != Value::Null {
        return format!("`{}`", schema["const"].as_str().unwrap_or_default());
    }
    for key in ["oneOf", "anyOf", "enum"] {
        if let Some(parts) = schema[key].as_array() {
            let one = |part: &Value| part.as_str().map_or_else(|| type_of(part), |word| format!("`{word}`"));
            return parts.iter().map(one).collect::<Vec<_>>().join(" or ");
        }
    }
    match &schema["type"] {
        Value::Array(types) => {
            let one = |name: &Value| {
                let mut single = schema.clone();
                single["type"] = name.clone();
                type_of(&single)
            };
            types.iter().map(one).collect::<Vec<_>>().join(" or ")
        }
        Value::String(name) if name == "array" => format!("list of {}", type_of(&schema["items"])),
        Value::String(name) => name.clone(),
        _ => "any".to_owned(),
    }
}
