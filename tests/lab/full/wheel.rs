//! The Python wheel of `scripts/package`, in fresh containers of Debian.

use super::machines::checkout;
use crate::process::{run, s};
use std::env;
use std::process::Command;

/// It compiles hvdctl as it is distributed, which takes minutes.
#[test]
fn the_wheel_is_installed_by_pip_uv_and_pipx() {
    let tools = tempfile::tempdir().unwrap();
    let mut venv = Command::new("python3");
    run(
        {
            venv.args(["-m", "venv"]).arg(tools.path());
            venv
        },
        s(120),
    )
    .ok();
    let bin = tools.path().join("bin");
    let mut pip = Command::new(bin.join("pip"));
    run(
        {
            pip.args(["install", "--quiet", "maturin"]);
            pip
        },
        s(300),
    )
    .ok();
    let mut package = Command::new(checkout().join("scripts/package"));
    let path = env::join_paths([bin].into_iter().chain(env::split_paths(&env::var_os("PATH").unwrap()))).unwrap();
    package.arg("--wheel").env("PATH", path);
    let out = run(package, s(5400)).ok();
    let version = concat!("hvdctl ", env!("CARGO_PKG_VERSION"));
    for suite in ["bookworm", "trixie"] {
        let (_, tried) = out.split_once(&format!("Debian {suite}:\n")).unwrap_or_else(|| panic!("{out}"));
        let lines: Vec<&str> = tried.lines().take(3).collect();
        assert_eq!(lines, ["pip", "uvx", "pipx"].map(|tool| format!("{tool}: {version}")), "{out}");
    }
}
