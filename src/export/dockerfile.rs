//! The Dockerfile of a job's image: what `setup` of hvdctl.toml adds to the cluster's image, and the project.

use crate::image::setup::{DIRECTORY, SETUP_SSH};
use crate::paths::WORKSPACE;
use serde_json::json;

/// The parts of an image that is built for an exported job.
#[derive(Debug, Clone, Copy)]
pub struct ImageRecipe<'a> {
    /// The image that it starts from.
    pub base: &'a str,
    /// The text of the project's own Dockerfile (`build`), which then makes what it starts from.
    pub build: Option<&'a str>,
    /// The steps of `setup`.
    pub steps: &'a [String],
    /// The files that they read, by their paths in the project.
    pub files: &'a [String],
    /// Set if it contains the project.
    pub has_project: bool,
    /// If set, OpenSSH is installed if it is missing: the launcher uses it to reach the workers.
    pub needs_ssh: bool,
}

/// Returns the Dockerfile, whose context is the project's directory. The steps run as in `train`: as root, with `sh`,
/// in a directory that has their files and is removed at the end.
pub fn dockerfile(recipe: &ImageRecipe<'_>) -> String {
    let ImageRecipe { base, build, steps, files, has_project, needs_ssh } = *recipe;
    let mut text = match build {
        Some(text) => format!("{}\n\n# added by hvdctl export\n", text.trim_end()),
        None => format!("FROM {base}\n"),
    };
    text.push_str("USER root\n");
    if needs_ssh {
        text.push_str("# OpenSSH, unless the image has it\n");
        text.push_str(&run(SETUP_SSH));
    }
    if !steps.is_empty() {
        text.push_str(&format!("WORKDIR {DIRECTORY}\n"));
        for file in files {
            text.push_str(&format!("COPY {}\n", json!([copied(file), format!("{DIRECTORY}/{file}")])));
        }
        text.extend(steps.iter().map(|step| run(step)));
        text.push_str(&format!("WORKDIR /\nRUN rm -rf {DIRECTORY}\n"));
    }
    if has_project {
        text.push_str(&format!("COPY . {WORKSPACE}\nWORKDIR {WORKSPACE}\n"));
    }
    text
}

/// Returns the line that runs a command with `sh`. One that a Dockerfile would not take as it is, is a list in JSON.
fn run(command: &str) -> String {
    let command = command.trim();
    let is_plain = !command.contains(['\n', '\r', '\\', '`'])
        && !command.contains("<<")
        && !command.starts_with(['[', '-'])
        && command.chars().all(|c| !c.is_control());
    match is_plain {
        true => format!("RUN {command}\n"),
        false => format!("RUN {}\n", json!(["sh", "-c", command])),
    }
}

/// Returns a path as COPY takes it, in which the characters of a pattern stand for themselves.
fn copied(path: &str) -> String {
    path.chars().map(|c| if "*?[\\".contains(c) { format!("\\{c}") } else { c.to_string() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::dockerfile::Dockerfile;

    #[test]
    fn steps_become_lines() {
        let steps = ["pip install -r requirements.txt", "set -e\necho \"a\" \\\n  b", "cat <<E"].map(str::to_owned);
        let files = ["requirements.txt".to_owned(), "a [1].txt".to_owned()];
        let recipe = ImageRecipe {
            base: "reg/app:1",
            build: None,
            steps: &steps,
            files: &files,
            has_project: true,
            needs_ssh: false,
        };
        let text = dockerfile(&recipe);
        assert_eq!(
            text,
            "FROM reg/app:1\nUSER root\nWORKDIR /opt/hvdctl/setup\n\
             COPY [\"requirements.txt\",\"/opt/hvdctl/setup/requirements.txt\"]\n\
             COPY [\"a \\\\[1].txt\",\"/opt/hvdctl/setup/a [1].txt\"]\n\
             RUN pip install -r requirements.txt\n\
             RUN [\"sh\",\"-c\",\"set -e\\necho \\\"a\\\" \\\\\\n  b\"]\nRUN [\"sh\",\"-c\",\"cat <<E\"]\n\
             WORKDIR /\nRUN rm -rf /opt/hvdctl/setup\nCOPY . /workspace\nWORKDIR /workspace\n"
        );
        assert_eq!(Dockerfile::parse(&text).bases, ["reg/app:1"]);
        let of_project =
            ImageRecipe { build: Some("FROM x AS y\nRUN z\n"), has_project: false, needs_ssh: true, ..recipe };
        let text = dockerfile(&of_project);
        assert!(text.starts_with("FROM x AS y\nRUN z\n\n# added by hvdctl export\nUSER root\n"), "{text}");
        assert!(text.contains("openssh-server") && !text.contains("COPY ."), "{text}");
    }
}
