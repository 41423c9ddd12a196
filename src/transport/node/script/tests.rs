//! The variables of all scripts in `src/scripts`: what they state is what they read.

use super::*;
use regex::Regex;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn a_script_states_its_variables() {
    let source = "# Waits. Variables: port, targets (lines\n# \"NAME (ADDRESS)\", see job.rs), limit. More.\n\n\
                  # Appended. Variables:\n# id.\necho\n# the variables: none\n";
    assert_eq!(stated(source), set(&["id", "limit", "port", "targets"]));
    assert_eq!(stated("# Prints.\necho \"$HOME\"\n"), set(&[]));
    let script = Script::new("# Variables: b, a.\nexit\n").with("a", "").with("b", "x");
    assert_eq!(script.whole().as_str(), "a=''\nb='x'\n# Variables: b, a.\nexit\n");
}

#[test]
#[should_panic(expected = r#"states the variables {"id", "port"}, and was given {"id"}"#)]
fn a_variable_that_is_not_set_is_noticed() {
    Script::new("# Variables: id, port.\n").with("id", "1").whole();
}

#[test]
#[should_panic(expected = r#"states the variables {}, and was given {"id"}"#)]
fn a_variable_that_is_not_stated_is_noticed() {
    Script::new("echo\n").with("id", "1").whole();
}

/// Returns a shell script without its comments and without what is in single quotes.
fn code(source: &str) -> String {
    let mut code = String::new();
    // the ends of the substitutions and double quotes that are open
    let mut open = Vec::new();
    let mut rest = format!("\n{source}").chars().collect::<Vec<_>>().into_iter();
    while let Some(mut c) = rest.next() {
        let is_quoted = open.last() == Some(&'"');
        match c {
            '\\' => drop(rest.next()),
            '#' if !is_quoted && code.ends_with([' ', '\n', ';']) => {
                c = rest.by_ref().find(|c| *c == '\n').unwrap_or('\n');
            }
            '\'' if !is_quoted => drop(rest.by_ref().find(|c| *c == '\'')),
            '"' if !is_quoted => open.push('"'),
            '(' if !is_quoted || code.ends_with('$') => open.push(')'),
            _ if open.last() == Some(&c) => drop(open.pop()),
            _ => {}
        }
        code.push(c);
    }
    code
}

/// Returns the variables that a script reads, and those that it sets. Environment variables are in upper case.
fn used(source: &str) -> (BTreeSet<String>, BTreeSet<String>) {
    static READ: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\$\{?#?([a-z_]\w*)").unwrap());
    static ARITHMETIC: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\$\(\(((?:\$\([^()]*\)|[^()])*)\)\)").unwrap());
    static SUBSTITUTION: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\$\([^()]*\)|\$\w+").unwrap());
    static NAME: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\b[a-z_]\w*").unwrap());
    static ASSIGNED: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"(?m)(?:^|[\s;&|({])([a-z_]\w*)=").unwrap());
    static LISTED: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"\b(?:for|read)(?: -\w+| ')*((?: [a-z_]\w*)+)").unwrap());
    let code = code(source);
    let of = |regex: &Regex| regex.captures_iter(&code).map(|found| found[1].to_owned()).collect::<Vec<_>>();
    let words = |text: &str| NAME.find_iter(text).map(|name| name.as_str().to_owned()).collect::<Vec<_>>();
    let computed = of(&ARITHMETIC).into_iter().flat_map(|text| words(&SUBSTITUTION.replace_all(&text, "")));
    let read = of(&READ).into_iter().chain(computed).collect();
    let listed = of(&LISTED).into_iter().flat_map(|names| words(&names)).filter(|name| name != "in");
    (read, of(&ASSIGNED).into_iter().chain(listed).collect())
}

#[test]
fn the_variables_of_a_script_are_found() {
    let source = "# it's $no\na=1; b=\"$c 'x' $(grep -o '$no' \"$d/${e%/*}\" | wc -l)\" # $no\n\
                  f $((g + $(date +%s) - $h)) && while IFS= read -r -d '' i j; do :; done <${#k}\n\
                  for l in $m $HOME $1; do case $n in x) echo \"it's\";; esac; done\nO=\"${p:-\"$q\"}\" sh -c '$no'\n";
    let (read, sets) = used(source);
    assert_eq!(read, set(&["c", "d", "e", "g", "h", "k", "m", "n", "p", "q"]));
    assert_eq!(sets, set(&["a", "b", "i", "j", "l"]));
}

/// Returns every script that the sources put together from files, by the names of these.
fn scripts() -> BTreeMap<Vec<String>, String> {
    static WHOLE: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(
            r#"concat!\(\s*(?:include_str!\("[^"]+\.sh"\),?\s*)+\)|include_str!\("[^"]+\.sh"\)|(?:process|environment)_script!\([^)]+\)"#,
        )
        .unwrap()
    });
    static FILE: LazyLock<Regex> = LazyLock::new(|| Regex::new(r#"scripts/([\w./]+\.sh)""#).unwrap());
    static PART: LazyLock<Regex> = LazyLock::new(|| Regex::new(r#""([\w./]+\.sh)""#).unwrap());
    static MACRO: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"(?s)macro_rules! (?:process|environment)_script \{(.*?)\n\}").unwrap());
    let prepended = |source: &'static str| MACRO.captures(source).expect("the macro of these scripts").get(1).unwrap();
    let prepended = [
        ("process_script!", prepended(include_str!("../../../runtime/process.rs")).as_str()),
        ("environment_script!", prepended(include_str!("../../../runtime/environment.rs")).as_str()),
    ];
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut directories, mut found) = (vec![root.clone()], BTreeMap::new());
    while let Some(directory) = directories.pop() {
        let (below, files): (Vec<PathBuf>, Vec<PathBuf>) =
            fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).partition(|path| path.is_dir());
        directories.extend(below);
        for file in files.into_iter().filter(|file| file.extension().is_some_and(|extension| extension == "rs")) {
            let text = fs::read_to_string(file).unwrap();
            for whole in WHOLE.find_iter(&MACRO.replace(&text, "")) {
                let names = |regex: &Regex, text: &str| -> Vec<String> {
                    regex.captures_iter(text).map(|name| name[1].to_owned()).collect()
                };
                let whole = whole.as_str();
                let names = match prepended.iter().find(|(name, _)| whole.starts_with(name)) {
                    Some((_, parts)) => [names(&FILE, parts), names(&PART, whole)].concat(),
                    None => names(&FILE, whole),
                };
                let text = names.iter().map(|name| fs::read_to_string(root.join("scripts").join(name)).unwrap());
                found.insert(names.clone(), text.collect());
            }
        }
    }
    found
}

#[test]
fn scripts_state_exactly_the_variables_that_they_read_and_do_not_set() {
    let scripts = scripts();
    let known: BTreeSet<&str> = scripts.keys().flatten().map(String::as_str).collect();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/scripts");
    let files = |directory: &Path| fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    for file in files(&root).flat_map(|directory| files(&directory)) {
        let name = file.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
        assert!(!name.ends_with(".sh") || known.contains(name.as_str()), "no source includes {name}");
    }
    let mut faults = Vec::new();
    for (names, source) in &scripts {
        let ((read, sets), stated) = (used(source), stated(source));
        let given = &read - &sets;
        faults.extend(given.difference(&stated).map(|name| format!("{names:?} reads {name} and does not state it")));
        let wrongly = stated.difference(&given);
        faults.extend(wrongly.map(|name| format!("{names:?} states {name}, but sets it itself or does not read it")));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
