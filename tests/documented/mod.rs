//! Compares documents with the JSON Schema of their types.

use clap::{Command, CommandFactory};
use hvdctl::cli::Cli;
use hvdctl::commands::json::{self, *};
use hvdctl::keys::push::GenerateResult;
use hvdctl::render::json::Line;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};
use std::sync::OnceLock;

/// The fields that an object may have together: their schemas, and which of them are required.
#[derive(Clone, Default)]
pub struct Fields {
    /// The schema of each field by its name; several where a name comes from several flattened types.
    pub schemas: Vec<(String, Value)>,
    /// The fields that are always present.
    pub required: Vec<String>,
}

/// Follows a reference.
pub fn resolve<'a>(all: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str().and_then(|path| path.strip_prefix('#')) {
        Some(path) => all.pointer(path).unwrap_or_else(|| panic!("{path} is not defined")),
        None => schema,
    }
}

/// The alternatives of a schema: those of `oneOf` and `anyOf`, each with its own fields.
pub fn objects(all: &Value, schema: &Value) -> Vec<Fields> {
    let mut own = Fields::default();
    if let Some(properties) = schema["properties"].as_object() {
        own.schemas.extend(properties.iter().map(|(name, schema)| (name.clone(), schema.clone())));
    }
    own.required
        .extend(schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned));
    let mut found = vec![own];
    let mut cross = |alternatives: Vec<Fields>| {
        let both = |one: &Fields, other: &Fields| Fields {
            schemas: [&one.schemas[..], &other.schemas].concat(),
            required: [&one.required[..], &other.required].concat(),
        };
        found = found.iter().flat_map(|one| alternatives.iter().map(move |other| both(one, other))).collect();
    };
    if schema["$ref"].is_string() {
        cross(objects(all, resolve(all, schema)));
    }
    for part in schema["allOf"].as_array().into_iter().flatten() {
        cross(objects(all, part));
    }
    for key in ["oneOf", "anyOf"] {
        if let Some(parts) = schema[key].as_array() {
            cross(parts.iter().flat_map(|part| objects(all, part)).collect());
        }
    }
    found
}

/// In what a document differs from the type of this name: fields that are missing or too many, and types.
pub fn faults(all: &Value, name: &str, document: &Value) -> Vec<String> {
    let schema = &all["documents"][name];
    assert!(schema.is_object(), "there is no document {name}");
    check(all, schema, document, name)
}

/// Asserts that what a command wrote with `--json` has the fields of its types, no more and no less. `words`: the
/// command line.
#[track_caller]
pub fn hold(words: &[&str], out: &str) {
    for line in out.lines() {
        let document = serde_json::from_str(line).unwrap_or_else(|error| panic!("{words:?}: {error}\n{out}"));
        let name = name(words, &document);
        assert_eq!(faults(all(), &name, &document), [""; 0], "{words:?}: {document:#}");
    }
}

/// Returns [`schema`].
pub fn all() -> &'static Value {
    static SCHEMA: OnceLock<Value> = OnceLock::new();
    SCHEMA.get_or_init(schema)
}

/// The name of the document that a command line writes.
fn name(words: &[&str], document: &Value) -> String {
    let commands = Cli::command();
    let of = |command: &Command, words: &[&str]| {
        let at = words.iter().position(|word| command.find_subcommand(word).is_some())?;
        Some((command.find_subcommand(words[at])?.clone(), at))
    };
    let (command, at) = of(&commands, words).unwrap_or_else(|| panic!("no command in {words:?}"));
    let below = of(&command, &words[at + 1..]).filter(|(_, at)| *at == 0);
    let name = below
        .map_or(command.get_name().to_owned(), |(below, _)| format!("{}-{}", command.get_name(), below.get_name()));
    match name.as_str() {
        _ if document["event"].is_string() && document["event"] != "end" => "line".to_owned(),
        _ if document["error"].is_string() => "error".to_owned(),
        "train" | "run" | "attach" if document["dry_run"] == true => "dry-run".to_owned(),
        "train" | "run" | "notebook" | "attach" => "job-end".to_owned(),
        "logs" => "logs-end".to_owned(),
        "top" => "top-end".to_owned(),
        "man" if document["text"].is_null() => "dir".to_owned(),
        "completions" | "man" | "schema" => "text".to_owned(),
        "export-mpijob" | "export-jobset" | "export-sbatch" => "export".to_owned(),
        _ => name,
    }
}

fn check(all: &Value, schema: &Value, value: &Value, place: &str) -> Vec<String> {
    let types: Vec<Option<&str>> = match &schema["type"] {
        Value::Array(types) => types.iter().map(Value::as_str).collect(),
        one => vec![one.as_str()],
    };
    // a map, whose keys are no fields
    let each = &schema["additionalProperties"];
    if let Value::Object(object) = value
        && each.is_object()
        && schema["properties"].is_null()
    {
        return object.iter().flat_map(|(name, value)| check(all, each, value, &format!("{place}.{name}"))).collect();
    }
    if let Value::Object(object) = value {
        let all_faults = objects(all, schema).into_iter().map(|fields| check_object(all, &fields, object, place));
        return all_faults.min_by_key(Vec::len).unwrap_or_default();
    }
    if schema["$ref"].is_string() {
        return check(all, resolve(all, schema), value, place);
    }
    for key in ["oneOf", "anyOf"] {
        if let Some(parts) = schema[key].as_array() {
            return parts.iter().map(|part| check(all, part, value, place)).min_by_key(Vec::len).unwrap_or_default();
        }
    }
    let allowed = match schema {
        Value::Bool(any) => *any,
        _ if schema["const"] != Value::Null => schema["const"] == *value,
        _ if schema["enum"].is_array() => schema["enum"].as_array().unwrap().contains(value),
        _ => types.contains(&Some(kind(value))) || types.contains(&Some("integer")) && value.is_u64() | value.is_i64(),
    };
    if !allowed {
        return vec![format!("{place}: unexpected value {value}")];
    }
    let items = value.as_array().into_iter().flatten().enumerate();
    items.flat_map(|(i, value)| check(all, &schema["items"], value, &format!("{place}[{i}]"))).collect()
}

fn check_object(all: &Value, fields: &Fields, object: &Map<String, Value>, place: &str) -> Vec<String> {
    let missing = fields.required.iter().filter(|name| !object.contains_key(*name));
    let mut faults: Vec<String> = missing.map(|name| format!("{place}.{name}: missing")).collect();
    for (name, value) in object {
        let place = format!("{place}.{name}");
        let schemas = fields.schemas.iter().filter(|(other, _)| other == name);
        let found = schemas.map(|(_, schema)| check(all, schema, value, &place)).min_by_key(Vec::len);
        faults.extend(found.unwrap_or_else(|| vec![format!("{place}: unknown field")]));
    }
    faults
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Returns the JSON Schema of every document by its name, under `documents`, and of the types in them, under `$defs`.
pub fn schema() -> Value {
    let mut generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let mut documents = Map::new();
    macro_rules! add {
        ($($name:literal: $type:ty),* $(,)?) => {
            $(documents.insert($name.to_owned(), json::value(&generator.subschema_for::<Document<$type>>()));)*
        };
    }
    add! {
        "error": Failure,
        "init": InitDocument,
        "keys-generate": GenerateResult,
        "keys-push": Nodes<KeysPushNode>,
        "keys-status": KeysStatus,
        "keys-rotate": KeysRotate,
        "up": Nodes<UpNode>,
        "down": Nodes<DownNode>,
        "image-status": Nodes<ImageStatusNode>,
        "image-push": Nodes<ImagePushNode>,
        "image-pull": Nodes<ImagePullNode>,
        "image-build": ImageBuild,
        "image-prune": Nodes<ImagePruneNode>,
        "data-push": Nodes<DataPushNode>,
        "data-status": Nodes<DataStatusNode>,
        "data-rm": Nodes<DataRmNode>,
        "env-create": EnvCreateDocument,
        "env-list": Nodes<EnvListNode>,
        "env-rm": Nodes<EnvRmNode>,
        "disconnect": Nodes<DisconnectNode>,
        "drain": Nodes<DrainNode>,
        "grade": GradeDocument,
        "status": Nodes<NodeStatus>,
        "doctor": DoctorDocument,
        "verify": VerifyDocument,
        "bench": BenchDocument,
        "text": TextDocument,
        "dir": DirDocument,
        "job-end": JobEnd,
        "dry-run": DryRun,
        "logs-end": LogsEnd,
        "jobs": JobsDocument,
        "jobs-prune": JobsPrune,
        "stop": StopDocument,
        "top-end": TopEnd,
        "report": ReportDocument,
        "fetch": FetchDocument,
        "stack": StackDocument,
        "exec": ExecDocument,
        "shell": ShellDocument,
        "hosts": HostsDocument,
        "export": ExportDocument,
        "slurm-up": Nodes<SlurmUpNode>,
        "slurm-status": SlurmStatus,
        "slurm-exec": ExecDocument,
        "slurm-down": Nodes<SlurmDownNode>,
        "pool": PoolDocument,
        "pool-pick": PoolPickDocument,
        "lock-status": Nodes<LockStatusNode>,
        "lock-release": Nodes<LockReleaseNode>,
    }
    documents.insert("line".to_owned(), json::value(&generator.subschema_for::<Line<'_>>()));
    json!({ "documents": documents, "$defs": generator.take_definitions(true) })
}
