//! Parses known-hosts files and ssh's messages about host keys.

use crate::text::public_key;
use regex::Regex;

/// A machine that was met for the first time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contact {
    /// Its name as known-hosts files have it: `node1` or `[10.0.0.1]:2222`.
    pub name: String,
    /// The kind of its key as ssh names it, and the fingerprint: `ED25519 SHA256:…`.
    pub key: String,
}

/// A machine whose host key is not the known one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangedHostKey {
    /// The name under which it is known.
    pub name: String,
    /// The new key, as [`Contact::key`].
    pub key: String,
    /// The known-hosts file with the old key.
    pub file: String,
    /// The line there, from 1.
    pub line: usize,
}

/// Parses a line of a known-hosts file (sshd(8), SSH_KNOWN_HOSTS FILE FORMAT): `NAMES TYPE KEY [COMMENT]`. Returns
/// `None` for comments, markers (`@revoked`) and lines without a key.
pub fn contact(line: &str) -> Option<Contact> {
    let (names, key) = line.trim_start().split_once([' ', '\t']).filter(|(names, _)| !names.starts_with(['#', '@']))?;
    let key = public_key::parse(key)?;
    let name = if names.starts_with("|1|") { "a host whose name is hashed" } else { names };
    let key = format!("{} {}", kind_of(key.algorithm().as_str()), public_key::fingerprint(&key));
    Some(Contact { name: name.to_owned(), key })
}

/// Returns ssh's own name of a kind: `ED25519` for `ssh-ed25519`.
fn kind_of(algorithm: &str) -> &str {
    match algorithm {
        "ssh-ed25519" => "ED25519",
        "ssh-rsa" => "RSA",
        "sk-ssh-ed25519@openssh.com" => "ED25519-SK",
        other if other.starts_with("ecdsa-") => "ECDSA",
        other => other,
    }
}

/// Parses ssh's message about a host key that is not the known one (sshconnect.c, `REMOTE HOST IDENTIFICATION HAS
/// CHANGED`).
pub fn changed(message: &str) -> Option<ChangedHostKey> {
    let lines: Vec<&str> = message.lines().map(str::trim).collect();
    let find = |pattern: &str| {
        let pattern = Regex::new(pattern).expect("a valid pattern");
        lines.iter().find_map(|line| pattern.captures(line))
    };
    find("IDENTIFICATION HAS CHANGED")?;
    let kind = find("^The fingerprint for the (.*) key sent by the remote host is$")?;
    let fingerprint = find(r"^(SHA256:.*?)\.*$")?;
    let place = find("^Offending .*? key in (.*):([0-9]+)$")?;
    // older versions name the kind first
    let name = find("^(?:Host|[^ ]* host) key for (.*?) has changed")?;
    Some(ChangedHostKey {
        name: name[1].to_owned(),
        key: format!("{} {}", &kind[1], &fingerprint[1]),
        file: place[1].to_owned(),
        line: place[2].parse().ok()?,
    })
}

/// Returns the first file of `UserKnownHostsFile` as `ssh -G` prints it: names joined by spaces and never quoted, so
/// that only `own`, which is known beforehand, may contain spaces.
pub fn first_file(files: &str, own: &str) -> Option<String> {
    if files.strip_prefix(own).is_some_and(|rest| rest.is_empty() || rest.starts_with(' ')) {
        return Some(own.to_owned());
    }
    let first = files.split(' ').next()?;
    (!matches!(first, "" | "none" | "/dev/null")).then(|| first.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_a_known_hosts_file() {
        let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJTyqYIOkkDxRjQoVAIwUpYHmzqDdzJYdHhGZ7cgBuzr";
        let found = contact(&format!("[10.0.0.1]:2222 {key} a comment")).unwrap();
        let fingerprint = public_key::fingerprint(&public_key::parse(key).unwrap());
        assert_eq!((found.name.as_str(), found.key), ("[10.0.0.1]:2222", format!("ED25519 {fingerprint}")));
        assert_eq!(contact(&format!("|1|salt=|hash= {key}")).unwrap().name, "a host whose name is hashed");
        for none in ["", "# a comment here", "name ssh-rsa", "a ssh-rsa no-base64", &format!("@revoked * {key}")] {
            assert_eq!(contact(none), None, "{none:?}");
        }
    }

    #[test]
    fn the_complaint_about_a_changed_key() {
        let said = "@@@@@@@@@@@\r\n@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\r\n@@@@@@@@@@@\r\n\
            IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!\r\n\
            The fingerprint for the ED25519 key sent by the remote host is\nSHA256:new.\r\n\
            Please contact your system administrator.\r\n\
            Add correct host key in /home/ana/.ssh/known_hosts to get rid of this message.\r\n\
            Offending ED25519 key in /home/ana/.ssh/known hosts:3\r\n  remove with:\r\n  ssh-keygen -f x -R y\r\n\
            Host key for [10.0.0.1]:2222 has changed and you have requested strict checking.\r\n\
            Host key verification failed.";
        let expected = ChangedHostKey {
            name: "[10.0.0.1]:2222".into(),
            key: "ED25519 SHA256:new".into(),
            file: "/home/ana/.ssh/known hosts".into(),
            line: 3,
        };
        assert_eq!(changed(said).as_ref(), Some(&expected));
        let older = said.replace("Host key for", "ED25519 host key for");
        assert_eq!(changed(&older).as_ref(), Some(&expected));
        let misleading = said.replace("/known hosts", "/Host key for x has changed");
        assert_eq!(changed(&misleading).map(|changed| changed.name), Some(expected.name));
        assert_eq!(changed("Host key verification failed."), None);
    }

    #[test]
    fn the_first_of_the_known_hosts_files() {
        assert_eq!(first_file("/a/b /c/d", "/own").as_deref(), Some("/a/b"));
        assert_eq!(first_file("/a b/c /d", "/a b/c").as_deref(), Some("/a b/c"));
        assert_eq!(first_file("/dev/null", "/own"), None);
    }
}
