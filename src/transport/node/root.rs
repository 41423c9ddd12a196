//! Finds out how root is used on a node, and explains why it cannot be.

use super::script::Script;
use super::{Output, RunAs, Transport};
use crate::error::{Error, Kind, NodeError};
use crate::event::Events;
use crate::inventory::Cluster;
use crate::secret::Secret;
use crate::text::failure::{self, Sudo as Refusal};
use crate::transport::access::{Login, RootMethod};
use crate::transport::sudo::{PASSWORD_FILE, Sudo};
use zeroize::Zeroizing;

const ACCESS: &str = include_str!("../../scripts/access.sh");

impl Transport {
    /// Sets how root and the engine are used from now on, and returns the login. A password is tried where one is needed: once,
    /// because accounts are locked after several failures.
    pub(super) async fn find_access(
        &mut self,
        cluster: &Cluster,
        sudo: &Sudo,
        events: &Events,
    ) -> Result<Login, Error> {
        let operation = "check for root access";
        let report = self.script_as_login(&Script::new(ACCESS), operation).await?;
        let login = Login::parse(&String::from_utf8_lossy(&report));
        if login.user.is_empty() {
            return Err(NodeError::failed(&self.node, operation, "the access script printed nothing")
                .hint("check whether the login's start-up file (~/.bashrc) reads standard input, or ends the shell")
                .into());
        }
        if !login.missing_tools.is_empty() {
            let (tools, mut packages): (Vec<&str>, Vec<&str>) =
                login.missing_tools.iter().map(|(tool, package)| (tool.as_str(), package.as_str())).unzip();
            packages.sort_unstable();
            packages.dedup();
            let message = format!("{} is missing or not the GNU version", tools.join(", "));
            let hint = format!("install it on the node; on Debian and Ubuntu: apt-get install {}", packages.join(" "));
            return Err(NodeError::failed(&self.node, "find the required programs", message).hint(hint).into());
        }
        let root = login.root_method(sudo.is_given()).map_err(|message| self.no_root(&login.user, &message))?;
        if root == RootMethod::SudoWithPassword {
            let no_password = |why| self.no_root(&login.user, &format!("sudo asks for a password, and {why}"));
            let password = sudo.password(&self.node, events).await.map_err(no_password)?;
            self.try_password(&login.user, &password).await?;
            self.access.password = Some(password);
        }
        self.access.root = root;
        self.access.engine = login.engine(root);
        self.access.image = cluster.image.clone();
        self.access.cluster = cluster.name.clone();
        Ok(login)
    }

    /// Checks the password with sudo.
    async fn try_password(&self, user: &str, password: &Secret) -> Result<(), NodeError> {
        let operation = "get root with sudo";
        // without -k a login that sudo remembers would pass with any password
        let argv = ["env", "LC_ALL=C", "sudo", "-k", "-S", "-p", "", "true"];
        let line = Zeroizing::new(format!("{}\n", password.expose()));
        let output = self.run(RunAs::Login, &argv, line.as_bytes(), operation, self.limit).await?;
        if output.code == 0 {
            return Ok(());
        }
        let stderr = output.complaint();
        // the line was the only attempt: that there was no second one is not worth reporting
        let refused = |line: &&str| failure::sudo(line) == Some(Refusal::PasswordRefused);
        let other = stderr.lines().map(str::trim).rfind(|line| !line.is_empty() && !refused(line));
        let message = other.filter(|_| !stderr.contains("incorrect password")).unwrap_or("sudo refused the password");
        Err(NodeError::failed(&self.node, operation, message)
            .hint(format!("check that it is the password of {user} there; hvdctl tries a password only once")))
    }

    fn no_root(&self, user: &str, message: &str) -> NodeError {
        NodeError::failed(&self.node, "get root", message).kind(Kind::PrivilegesDenied).hint(format!(
            "hvdctl needs root on the node. Give the password: --ask-sudo-pass, or ${PASSWORD_FILE}; or let {user} run sudo \
             without one (NOPASSWD in /etc/sudoers.d); or add {user} to the group docker; or \
             set `user = \"root\"`"
        ))
    }

    /// Returns why a program did not run as root, if it was not the program that failed.
    pub(super) fn root_refusal(&self, output: &Output, operation: &str) -> Option<NodeError> {
        use Refusal::{NotAllowed, NotInstalled, PasswordRequired};
        if output.code == 0 {
            return None;
        }
        let stderr = output.complaint();
        if self.access.root == RootMethod::Container {
            let is_missing = |line: &&str| line.contains("Unable to find image") || line.contains("No such image");
            let image = &self.access.image;
            return stderr.lines().find(is_missing).map(|line| {
                NodeError::failed(&self.node, operation, line).hint(format!(
                    "without sudo, hvdctl becomes root in a container of the cluster's image, which this node lacks: \
                     docker pull {image} on the node, or docker save {image} | ssh NODE docker load"
                ))
            });
        }
        let is_refused =
            |line: &&str| matches!(failure::sudo(line), Some(PasswordRequired | NotAllowed | NotInstalled));
        stderr.lines().find(is_refused).map(|line| self.no_root("the login", line))
    }
}
