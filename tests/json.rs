//! The documents of commands that need no node have the fields of their types, and docs/reference/json.md describes
//! these types.

mod documented;

use serde_json::Value;
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
