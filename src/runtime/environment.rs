//! Programs that hvdctl starts where ranks run are not in the environment of ranks: an image, a module or a virtualenv
//! may set variables there that keep a Python, sshd or ssh of the system from starting.

/// The text of a script that starts such programs, behind the functions for that.
macro_rules! environment_script {
    ($($part:literal),+) => {
        concat!(
            include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/scripts/programs/environment/environment.sh")),
            $(include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/scripts/", $part))),+
        )
    };
}
pub(crate) use environment_script;
