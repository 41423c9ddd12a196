//! The rules for engines: variables that have no effect there; without root, limits that it cannot raise, and files that its containers cannot open.

use super::{Check, Finding, NodeView};
use crate::model::engine::{EngineName, VISIBLE_DEVICES, is_of_runtime};
use crate::text::quote;
use crate::text::units::human;

/// The number that Podman puts in the place of an unlimited number of open files.
const MOST_FILES: u64 = 1 << 20;
/// The most paths that a message names.
const SHOWN: usize = 4;

/// Variables of the inventory that have an effect on the creation of a container alone, and not even on that.
pub(super) fn variables(view: &NodeView<'_>) -> Vec<Finding> {
    let is_container = view.engine.is_some_and(|version| !version.is_empty());
    let given = view.node.container.env.keys().filter(|name| is_container && is_of_runtime(name));
    let finding = |name: &String| {
        let (why, hint) = match (name.as_str(), view.engine_name) {
            (VISIBLE_DEVICES, _) => {
                ("hvdctl gives containers the GPUs that `gpus` chooses", "set `gpus` instead, and remove the variable")
            }
            (name, EngineName::Podman) if name.starts_with("NVIDIA_") => (
                "with Podman, the node's CDI file decides what containers get of the driver",
                "remove the variable; `nvidia-ctk cdi generate` writes the file",
            ),
            _ => return None,
        };
        Some(view.warning(Check::Toolkit, format!("{name} in `env` has no effect")).explain(why, hint))
    };
    given.filter_map(finding).collect()
}

/// Limits of the inventory that are higher than those of the login, so that no container can be started.
pub(super) fn limits(view: &NodeView<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (name, limit) in &view.node.container.ulimits {
        let wanted = match (u64::try_from(limit.hard), name.as_str()) {
            (Ok(limit), _) => limit,
            (Err(_), "nofile") => MOST_FILES,
            // newer versions of Podman give what there is
            (Err(_), "nproc") => continue,
            (Err(_), _) => u64::MAX,
        };
        let Some(hard) = view.limits.get(name).filter(|hard| **hard < wanted) else { continue };
        let amount = |limit: u64| match (limit, name.as_str()) {
            (u64::MAX, _) => "unlimited".to_owned(),
            (limit, "memlock" | "core" | "data" | "fsize" | "rss" | "stack" | "msgqueue") => human(limit),
            (limit, _) => limit.to_string(),
        };
        let message = format!(
            "`ulimits` asks for {name} {}, but the hard limit of {} is {}",
            amount(wanted),
            view.user,
            amount(*hard)
        );
        let value = if wanted == u64::MAX { "infinity".to_owned() } else { wanted.to_string() };
        found.push(view.error(Check::Limits, message).explain(
            "without root, Podman cannot raise it, and no container can be started",
            format!(
                "the administrator raises it: sudo systemctl edit user@.service with the lines [Service] and \
                 Limit{}={value}, then sudo systemctl restart user@$(id -u {}).service, which ends the programs of that \
                 user; or set {name} = {hard} in `ulimits`",
                name.to_uppercase(),
                quote::readable(view.user),
            ),
        ));
    }
    found
}

/// Devices and directories of the inventory that containers of such an engine cannot open: they do not have the groups
/// of the login. Podman could keep these groups for a container's first process (`run.oci.keep_original_groups`), but
/// sshd gives them up for each session, and so for ranks.
pub(super) fn denied(view: &NodeView<'_>) -> Vec<Finding> {
    let of = |what: &str| -> Vec<String> {
        let found = view.facts.permissions.denied.iter().filter(|(denied, _)| denied == what);
        found.map(|(_, path)| quote::readable(path)).collect()
    };
    let finding = |check, what: &str, access: &str, why: &str| {
        let paths = of(what);
        let shown = paths[..paths.len().min(SHOWN)].join(" ");
        (!paths.is_empty()).then(|| {
            let more = if paths.len() > SHOWN { " and others" } else { "" };
            view.warning(check, format!("its containers cannot {access} {shown}{more}")).explain(
                why,
                format!(
                    "the administrator gives the user access without a group: sudo setfacl -m u:{}:{} {shown}",
                    quote::readable(view.user),
                    if what == "device" { "rw" } else { "rX" },
                ),
            )
        })
    };
    let groups = "containers of an engine without root do not have the groups of the login";
    let device = format!(
        "{groups}; programs that need the device fail, or compute on the CPU. Udev sets the rights of a \
        device anew at each start of the machine"
    );
    let found = [
        finding(Check::Accelerators, "device", "open", &device),
        finding(Check::Permissions, "directory", "read", groups),
    ];
    found.into_iter().flatten().collect()
}
