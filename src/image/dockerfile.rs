//! The external inputs of a Dockerfile: the images that it builds on, and the files of its context.

use std::collections::BTreeMap;

/// The external inputs of a Dockerfile.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dockerfile {
    /// The images of `FROM` and `COPY --from`, as far as their names are known.
    pub bases: Vec<String>,
    /// The files and directories of the context that it copies; `None`: any of them.
    pub sources: Option<Vec<String>>,
}

impl Dockerfile {
    /// Reads the text of a Dockerfile. What is not understood here, the engine refuses or explains.
    pub fn parse(text: &str) -> Dockerfile {
        let mut found = Dockerfile { bases: Vec::new(), sources: Some(Vec::new()) };
        let (mut stages, mut defaults) = (Vec::<String>::new(), BTreeMap::new());
        for instruction in instructions(text) {
            let (name, rest) = instruction.split_once(char::is_whitespace).unwrap_or((&instruction, ""));
            let (flags, rest) = flags(rest);
            match name.to_ascii_uppercase().as_str() {
                // those before the first stage are for the names of images
                "ARG" if stages.is_empty() => defaults.extend(rest.split_whitespace().filter_map(default)),
                "FROM" => {
                    let words: Vec<&str> = rest.split_whitespace().collect();
                    found.add_base(words.first().copied().unwrap_or_default(), &stages, &defaults);
                    stages.push(words.get(2).map(|stage| stage.to_ascii_lowercase()).unwrap_or_default());
                }
                "COPY" | "ADD" => match flags.iter().find_map(|flag| flag.strip_prefix("--from=")) {
                    Some(from) if from.parse::<usize>().is_ok() => {}
                    Some(from) => found.add_base(from, &stages, &defaults),
                    None => found.add_sources(rest),
                },
                _ => {}
            }
        }
        found
    }

    /// Adds an image that is neither an earlier stage nor empty.
    fn add_base(&mut self, name: &str, stages: &[String], defaults: &BTreeMap<String, String>) {
        let Some(name) = substituted(name, defaults) else { return };
        let is_stage = stages.contains(&name.to_ascii_lowercase());
        if !(name.is_empty() || name == "scratch" || is_stage || self.bases.contains(&name)) {
            self.bases.push(name);
        }
    }

    /// Adds the sources of a `COPY` or `ADD`, whose last argument is the target.
    fn add_sources(&mut self, arguments: &str) {
        let words: Option<Vec<String>> = match arguments.starts_with('[') {
            true => serde_json::from_str(arguments).ok(),
            false => Some(arguments.split_whitespace().map(str::to_owned).collect()),
        };
        let paths = words.as_deref().and_then(<[String]>::split_last).and_then(|(_, sources)| {
            let local = sources.iter().filter(|source| !source.contains("://"));
            local.map(|source| literal_path(source)).collect::<Option<Vec<String>>>()
        });
        match (&mut self.sources, paths) {
            (Some(sources), Some(paths)) => sources.extend(paths),
            _ => self.sources = None,
        }
    }
}

/// Returns the instructions, each in one line, without comments.
fn instructions(text: &str) -> Vec<String> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let directive = |line: &str| line.trim_start_matches('#').trim().strip_prefix("escape=").map(str::to_owned);
    let first = text.lines().take_while(|line| line.starts_with('#')).find_map(directive);
    let escape = first.and_then(|value| value.trim().chars().next()).unwrap_or('\\');
    let (mut all, mut open) = (Vec::new(), String::new());
    for line in text.lines().map(str::trim_end).filter(|line| !line.is_empty() && !line.trim_start().starts_with('#')) {
        open.push_str(line.strip_suffix(escape).unwrap_or(line));
        if !line.ends_with(escape) {
            all.push(std::mem::take(&mut open));
        }
    }
    all.extend((!open.is_empty()).then_some(open));
    all.iter().map(|instruction| instruction.trim().to_owned()).collect()
}

/// Splits the flags off the arguments of an instruction.
fn flags(arguments: &str) -> (Vec<&str>, &str) {
    let (mut flags, mut rest) = (Vec::new(), arguments.trim());
    while rest.starts_with("--") {
        let (flag, behind) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        flags.push(flag);
        rest = behind.trim_start();
    }
    (flags, rest)
}

/// Returns name and default value of an argument.
fn default(word: &str) -> Option<(String, String)> {
    let (name, value) = word.split_once('=')?;
    Some((name.to_owned(), value.trim_matches(['"', '\'']).to_owned()))
}

/// Returns the name of an image with the defaults of its arguments; `None` if it has others, or other expressions.
fn substituted(name: &str, defaults: &BTreeMap<String, String>) -> Option<String> {
    let (mut result, mut rest) = (String::new(), name);
    while let Some((before, behind)) = rest.split_once('$') {
        let (argument, after) = match behind.strip_prefix('{') {
            Some(braced) => braced.split_once('}')?,
            None => behind.split_at(behind.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(behind.len())),
        };
        result.extend([before, defaults.get(argument)?]);
        rest = after;
    }
    Some(result + rest)
}

/// Returns the path of a source in the context; `None` for the context itself, and for one that is no plain path.
fn literal_path(source: &str) -> Option<String> {
    if source.contains(['$', '*', '?', '[', '\\', '"', '\'', '<']) {
        return None;
    }
    let mut parts: Vec<&str> = Vec::new();
    for part in source.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    (!parts.is_empty()).then(|| parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> (Vec<String>, Option<Vec<String>>) {
        let Dockerfile { bases, sources } = Dockerfile::parse(text);
        (bases, sources)
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn images_and_files_from_outside_are_found() {
        let text = "# syntax=docker/dockerfile:1\nARG VERSION=2.6 EMPTY\nFROM --platform=linux/amd64 \
            pytorch/pytorch:$VERSION AS Build\n\
                    copy ./requirements.txt \\\n  # a comment\n  sub//wheels/ /x/\nRUN pip install \\\n -r \
                    /x/requirements.txt\n\
                    FROM scratch\nFROM build\nADD --chown=1:2 [\"a b\", \"/y\"]\nADD https://example.org/z.tar /z\n\
                    COPY --from=build /x /x\nCOPY --from=0 /x /x\nCOPY --from=nginx:1 /x /x\nONBUILD COPY later /\n";
        let expected =
            (names(&["pytorch/pytorch:2.6", "nginx:1"]), Some(names(&["requirements.txt", "sub/wheels", "a b"])));
        assert_eq!(parse(text), expected);
        assert_eq!(parse("FROM a\nRUN x\n"), (names(&["a"]), Some(Vec::new())));
        assert_eq!(parse("# escape=`\nFROM a`\n:1\n"), (names(&["a:1"]), Some(Vec::new())));
    }

    #[test]
    fn what_is_not_known_is_everything() {
        for copy in [
            "COPY . /app",
            "COPY ./ /app",
            "COPY *.txt /",
            "COPY $WHAT /",
            "COPY [broken /",
            "COPY x/.. /y",
            "ADD <<EOF /x",
        ] {
            assert_eq!(parse(&format!("FROM a\nCOPY b /b\n{copy}\n")).1, None, "{copy}");
        }
        for from in ["${A:-b}", "$MISSING", "x:${MISSING}"] {
            assert_eq!(parse(&format!("ARG A=1\nFROM {from}\n")).0, [""; 0], "{from}");
        }
        assert_eq!(parse("ARG A=\"r:5000\"\nFROM ${A}/x:$A-1\n").0, ["r:5000/x:r:5000-1"]);
    }
}
