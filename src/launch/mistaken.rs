//! Programs under a launcher that they were not written for, recognized by the last lines of a rank that failed.

use super::Launcher;
use crate::model::launcher::LauncherName;

/// What programs write that miss the variables of another launcher: the text, and that launcher.
const MISSING: &[(&str, LauncherName)] = &[
    // torch/distributed/rendezvous.py: RANK, WORLD_SIZE, MASTER_ADDR or MASTER_PORT
    ("expected, but not set", LauncherName::Torchrun),
    ("KeyError: 'RANK'", LauncherName::Torchrun),
    ("KeyError: 'LOCAL_RANK'", LauncherName::Torchrun),
    ("KeyError: 'WORLD_SIZE'", LauncherName::Torchrun),
    ("KeyError: 'MASTER_ADDR'", LauncherName::Torchrun),
    // DeepSpeed without these variables
    ("attempting to detect MPI environment", LauncherName::Torchrun),
    // jax/_src/distributed.py
    ("coordinator_address should be defined", LauncherName::Env),
    ("KeyError: 'TF_CONFIG'", LauncherName::Env),
];

/// How the last lines of a program begin that the image lacks something for.
const LACKING: &[&str] = &["ModuleNotFoundError: No module named", "ImportError: No module named"];

/// What programs write that may open no more files: the C library, and PyTorch's data loaders.
const OUT_OF_FILES: [&str; 3] =
    ["Too many open files", "received 0 items of ancdata", "unable to open shared memory object"];

/// What to do then.
const MORE_FILES: &str = "the rank may open too few files: set ulimits = { nofile = 1048576 } in [defaults] or this [[node]] of the \
                          inventory, then hvdctl up; for PyTorch's data loaders \
                          torch.multiprocessing.set_sharing_strategy(\"file_system\") helps, too";

/// What to do about what the image lacks.
const SETUP: &str = "what the image lacks is installed on all nodes by `setup` in hvdctl.toml, e.g. setup = [\"pip install NAME\"] \
                     (hvdctl image build --help)";

impl Launcher {
    /// Returns the warning about a job none of whose ranks had a connection to another one in so many seconds.
    pub fn isolation_warning(&self, seconds: u64) -> String {
        let other = match self.program {
            "torchrun" | "env" => "programs for Horovod need --launcher horovodrun",
            _ => "programs for PyTorch (DDP, Accelerate, Lightning) need --launcher torchrun",
        };
        format!(
            "no rank had a connection to another one in {seconds} s: each may do all of the work by itself\n  hint: {other}; if the \
             program does not communicate, ignore this"
        )
    }

    /// Returns a hint on the launcher for which a program was written, if the last lines of a rank that failed show it and it is not
    /// this one; or on a package that the image lacks.
    pub fn hint_on_output(&self, lines: &[String]) -> Option<String> {
        let is_in = |text: &str| lines.iter().any(|line| line.contains(text));
        if lines.iter().any(|line| LACKING.iter().any(|start| line.starts_with(start))) {
            return Some(SETUP.to_owned());
        }
        if OUT_OF_FILES.iter().any(|text| is_in(text)) {
            return Some(MORE_FILES.to_owned());
        }
        let (_, wanted) = MISSING.iter().find(|(text, _)| is_in(text))?;
        // `env` sets what torchrun sets, too
        let has_it = [*wanted, LauncherName::Env].iter().any(|name| name.to_string() == self.program);
        let example = match wanted {
            LauncherName::Torchrun => " (PyTorch DDP and FSDP, Accelerate, Lightning, DeepSpeed)",
            _ => "",
        };
        (!has_it).then(|| {
            format!(
                "the program was written for another launcher than {}: try --launcher {wanted}{example}",
                self.program
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::launch::launcher;
    use crate::model::launcher::{Controller, LauncherName};

    #[test]
    fn programs_of_another_launcher_are_recognized() {
        const TORCH: &str = "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK \
                             expected, but not set";
        let hint = |name, line: &str| {
            let lines =
                ["Traceback (most recent call last):".to_owned(), line.to_owned(), "[W1125] shutdown".to_owned()];
            launcher(name, Controller::Gloo).hint_on_output(&lines).unwrap_or_default()
        };
        for (name, line, expected) in [
            (LauncherName::Horovodrun, TORCH, "than horovodrun: try --launcher torchrun"),
            (LauncherName::Mpirun, TORCH, "than mpirun: try --launcher torchrun"),
            (LauncherName::Horovodrun, "KeyError: 'LOCAL_RANK'", "--launcher torchrun"),
            (LauncherName::Horovodrun, "ValueError: coordinator_address should be defined.", "--launcher env"),
            (LauncherName::Torchrun, "ValueError: coordinator_address should be defined.", "--launcher env"),
        ] {
            assert!(hint(name, line).contains(expected), "{name:?} {line}: {}", hint(name, line));
        }
        for (name, line) in [
            (LauncherName::Torchrun, TORCH),
            (LauncherName::Env, TORCH),
            (LauncherName::Env, "ValueError: coordinator_address should be defined."),
            (LauncherName::Horovodrun, "KeyError: 'RANKING'"),
            (LauncherName::Horovodrun, "RuntimeError: CUDA out of memory"),
        ] {
            assert_eq!(hint(name, line), "", "{name:?} {line}");
        }
        let warning = |name| launcher(name, Controller::Gloo).isolation_warning(60);
        assert!(
            warning(LauncherName::Horovodrun).contains("in 60 s")
                && warning(LauncherName::Mpirun).contains("--launcher torchrun")
        );
        assert!(warning(LauncherName::Torchrun).contains("--launcher horovodrun"));
        assert_eq!(launcher(LauncherName::Horovodrun, Controller::Mpi).hint_on_output(&[]), None);
        for line in [
            "OSError: [Errno 24] Too many open files: '/dev/null'",
            "RuntimeError: received 0 items of ancdata",
            "RuntimeError: unable to open shared memory object </torch_29919_1396182366> in read-write mode",
        ] {
            assert!(hint(LauncherName::Torchrun, line).contains("ulimits = { nofile = 1048576 }"), "{line}");
        }
        let lacking = hint(LauncherName::Env, "ModuleNotFoundError: No module named 'tiny'");
        assert!(lacking.contains("setup = [\"pip install NAME\"]"), "{lacking}");
    }
}
