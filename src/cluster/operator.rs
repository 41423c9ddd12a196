//! The operator: the user and the machine that run this command, and its clock.

use std::time::SystemTime;

/// Returns who runs this command, as `user@host`.
pub fn operator() -> String {
    let named = |variable| std::env::var(variable).ok().filter(|name| !name.is_empty());
    // cron, containers and services set no variable
    let by_id = || {
        let id = rustix::process::getuid().as_raw().to_string();
        let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let name = passwd.lines().find_map(|line| {
            let mut fields = line.split(':');
            let (name, _, uid) = (fields.next()?, fields.next()?, fields.next()?);
            (uid == id).then(|| name.to_owned())
        });
        name.unwrap_or(format!("uid{id}"))
    };
    let user = named("USER").or_else(|| named("LOGNAME")).unwrap_or_else(by_id);
    format!("{user}@{}", host_name())
}

/// Returns the host name of this machine.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Returns the seconds since the epoch by our clock.
pub fn now() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map(|d| d.as_secs_f64()).unwrap_or_default()
}
