//! How root is had on a node, and what to say where it is not.

use super::script::Script;
use super::{Output, Transport};
use crate::error::{Error, Kind, NodeError};
use crate::event::Events;
use crate::inventory::Cluster;
use crate::secret::Secret;
use crate::text::failure;
use crate::transport::access;
use crate::transport::privileges::{Access, Root, Start};
use crate::transport::sudo::{PASSWORD_FILE, Sudo};
use zeroize::Zeroizing;

const ACCESS: &str = include_str!("../../scripts/access.sh");

impl Transport {
    /// Looks at what the login may do, and tries the password where one is needed: once, because accounts are locked for
    /// less.
    pub(super) async fn find_access(&self, cluster: &Cluster, sudo: &Sudo, events: &Events) -> Result<Access, Error> {
        let tried = "see how root is had";
        let said = self.script_as_login(&Script::new(ACCESS), tried).await?;
        let seen = access::Access::parse(&String::from_utf8_lossy(&said));
        if seen.user.is_empty() {
            return Err(NodeError::failed(&self.node, tried, "it answered nothing")
                .hint("does the login's start-up file (~/.bashrc) read standard input, or end the shell?")
                .into());
        }
        if !seen.missing_tools.is_empty() {
            let said = format!("{} is missing, or not GNU's", seen.missing_tools.join(", "));
            let packages = seen.missing_packages().join(" ");
            return Err(NodeError::failed(&self.node, "use the programs of its system", said)
                .hint(format!("install them there, on Debian and Ubuntu: apt-get install {packages}"))
                .into());
        }
        let way = seen.root(sudo.is_given());
        let root = match &way {
            access::Root::Login => Root::Login,
            access::Root::Sudo => Root::Sudo,
            access::Root::Engine => Root::Container { image: cluster.image.clone(), cluster: cluster.name.clone() },
            access::Root::Password => {
                let password = sudo.password(&self.node, events).await;
                let password = password
                    .map_err(|why| self.no_root(&seen.user, &format!("sudo asks for a password, and {why}")))?;
                match self.try_password(&password).await? {
                    Ok(()) => Root::Password(password),
                    Err(refusal) => {
                        return Err(NodeError::failed(&self.node, "get root by sudo", refusal)
                            .hint(format!(
                                "is it the password of {} there? It was tried once, and will not be again",
                                seen.user
                            ))
                            .into());
                    }
                }
            }
            access::Root::Unavailable(words) => return Err(self.no_root(&seen.user, words).into()),
        };
        Ok(Access { engine: seen.engine(&way), root, shell: seen.shell })
    }

    /// Has sudo take the password, and nothing else; sudo's words where it does not.
    async fn try_password(&self, password: &Secret) -> Result<Result<(), String>, NodeError> {
        // without -k a login that sudo remembers would pass with any password
        let argv = ["env", "LC_ALL=C", "sudo", "-k", "-S", "-p", "", "true"].map(str::to_owned).to_vec();
        let line = Zeroizing::new(format!("{}\n", password.expose()));
        let output =
            self.run(&Start { argv, ..Start::default() }, line.as_bytes(), "get root by sudo", self.limit).await?;
        if output.code == 0 {
            return Ok(Ok(()));
        }
        let said = output.complaint();
        // the line was the only attempt: that there was no second one is not worth reporting
        let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let refused = |line: &&&str| failure::sudo(line) == Some(failure::Sudo::PasswordRefused);
        let other = lines.iter().rev().find(|line| !refused(line));
        Ok(Err(match other {
            Some(line) if lines.iter().all(|line| !line.contains("incorrect password")) => (*line).to_owned(),
            _ => "sudo refused the password".to_owned(),
        }))
    }

    fn no_root(&self, user: &str, words: &str) -> NodeError {
        NodeError::failed(&self.node, "get root", words).kind(Kind::PrivilegesDenied).hint(format!(
            "hvdctl needs root on the node. Give the password: --ask-sudo-pass, or ${PASSWORD_FILE}; or let {user} run sudo \
             without one (NOPASSWD in /etc/sudoers.d); or add {user} to the group docker; or \
             set `user = \"root\"`"
        ))
    }

    /// Whether it was the way to root that failed, and not the program.
    pub(super) fn root_refused(&self, output: &Output, tried: &str) -> Result<(), NodeError> {
        if output.code == 0 {
            return Ok(());
        }
        let said = output.complaint();
        let find = |words: &[&str]| said.lines().find(|line| words.iter().any(|words| line.contains(words)));
        match &self.access.root {
            Root::Container { image, .. } => {
                let gone = find(&["Unable to find image", "No such image"]);
                gone.map_or(Ok(()), |line| {
                    Err(NodeError::failed(&self.node, tried, line).hint(format!(
                        "without sudo hvdctl has root there in a container of its image: docker pull {image} on the node, or \
                         docker save {image} | ssh NODE docker load"
                    )))
                })
            }
            _ => {
                use failure::Sudo::{NotAllowed, NotInstalled, PasswordRequired};
                let refused =
                    |line: &&str| matches!(failure::sudo(line), Some(PasswordRequired | NotAllowed | NotInstalled));
                said.lines().find(refused).map_or(Ok(()), |line| Err(self.no_root("the login", line)))
            }
        }
    }
}
