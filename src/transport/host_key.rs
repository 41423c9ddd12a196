//! What ssh and its known-hosts files say of machines' host keys, read.

/// A machine that was met for the first time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contact {
    /// Its name as known-hosts files have it: `node1` or `[10.0.0.1]:2222`.
    pub name: String,
    /// The kind of its key as ssh names it, `ED25519`.
    pub kind: String,
    /// `SHA256:…`
    pub fingerprint: String,
}

/// A machine whose host key is not the known one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    /// The name under which it is known.
    pub name: String,
    /// The kind of the new key.
    pub kind: String,
    /// The new key's fingerprint.
    pub fingerprint: String,
    /// The known-hosts file with the old key.
    pub file: String,
    /// The line there, from 1.
    pub line: usize,
}

/// Reads a line of a known-hosts file (sshd(8), SSH_KNOWN_HOSTS FILE FORMAT): `NAMES TYPE KEY [COMMENT]`. `fingerprint`
/// makes one of `TYPE KEY`. Comments, markers (`@revoked`) and lines that are no key give nothing.
pub fn contact(line: &str, fingerprint: impl Fn(&str) -> Option<String>) -> Option<Contact> {
    let mut words = line.split_ascii_whitespace();
    let (names, kind, key) = (words.next()?, words.next()?, words.next()?);
    if names.starts_with(['#', '@']) {
        return None;
    }
    let name = if names.starts_with("|1|") { "a host whose name is hashed" } else { names };
    let fingerprint = fingerprint(&format!("{kind} {key}"))?;
    Some(Contact { name: name.to_owned(), kind: kind_of(kind).to_owned(), fingerprint })
}

/// `ssh-ed25519` → `ED25519`, as ssh's own messages have it.
fn kind_of(algorithm: &str) -> &str {
    match algorithm {
        "ssh-ed25519" => "ED25519",
        "ssh-rsa" => "RSA",
        "sk-ssh-ed25519@openssh.com" => "ED25519-SK",
        other if other.starts_with("ecdsa-") => "ECDSA",
        other => other,
    }
}

/// Reads ssh's complaint about a host key that is not the known one (sshconnect.c, `REMOTE HOST IDENTIFICATION HAS CHANGED`).
pub fn changed(said: &str) -> Option<Changed> {
    let said: Vec<&str> = said.lines().map(str::trim).collect();
    said.iter().find(|line| line.contains("IDENTIFICATION HAS CHANGED"))?;
    let kind = said.iter().find_map(|line| {
        line.strip_prefix("The fingerprint for the ")?.strip_suffix(" key sent by the remote host is")
    })?;
    let fingerprint = said.iter().find(|line| line.starts_with("SHA256:"))?.trim_end_matches('.');
    let place = said.iter().find_map(|line| line.strip_prefix("Offending ")?.split_once(" key in "))?.1;
    let (file, line) = place.rsplit_once(':')?;
    let name = said.iter().find_map(|line| {
        // older ones name the kind first; a file's name, which other lines have, may hold anything
        let (kind, rest) = line.split_once("ost key for ")?;
        let (name, _) = rest.split_once(" has changed")?;
        (kind == "H" || kind.strip_suffix(" h").is_some_and(|kind| !kind.contains(' '))).then_some(name)
    })?;
    Some(Changed {
        name: name.to_owned(),
        kind: kind.to_owned(),
        fingerprint: fingerprint.to_owned(),
        file: file.to_owned(),
        line: line.parse().ok()?,
    })
}

/// The first file of `UserKnownHostsFile` as `ssh -G` prints it: names joined by spaces and never quoted, so that only
/// `own`, which is known beforehand, may have spaces itself.
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
        let told = |line: &str| contact(line, |key| Some(format!("of {key}")));
        let seen = told("[10.0.0.1]:2222 ssh-ed25519 AAAA a comment").unwrap();
        assert_eq!((seen.name.as_str(), seen.kind.as_str()), ("[10.0.0.1]:2222", "ED25519"));
        assert_eq!(seen.fingerprint, "of ssh-ed25519 AAAA");
        assert_eq!(told("|1|salt=|hash= ssh-rsa AAAA").unwrap().name, "a host whose name is hashed");
        for none in ["", "# a comment here", "@revoked * ssh-rsa AAAA", "name ssh-rsa"] {
            assert_eq!(told(none), None, "{none:?}");
        }
        assert_eq!(contact("a ssh-rsa no-base64", |_| None), None);
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
        let expected = Changed {
            name: "[10.0.0.1]:2222".into(),
            kind: "ED25519".into(),
            fingerprint: "SHA256:new".into(),
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
