//! Logins that wait for a person: an agent asks for a confirmation, a security key for a touch, a server shows the
//! address of a page. As long as it is not known that nothing asks, logins go one after the other, so that the person
//! has one question at a time.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Time limit for a person; sshd itself gives two minutes (`LoginGraceTime`, sshd_config(5)).
pub(super) const PERSON: Duration = Duration::from_secs(150);
/// Time without an answer after which a login counts as waiting for a person.
pub(super) const ASKED: Duration = Duration::from_secs(1);

/// The phase of a login.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LoginPhase {
    /// It connects, or offers keys.
    Connecting,
    /// It waits for a signature: the server accepts the key.
    Signing,
    /// It waits for a page, which the server names.
    Page(String),
    /// It is logged in.
    LoggedIn,
}

/// Returns what ssh does, by its log at the level DEBUG3 and what it has written to its standard error, which has the
/// server's banner.
pub(super) fn phase(log: &str, stderr: &str) -> LoginPhase {
    let (mut phase, mut is_answered) = (LoginPhase::Connecting, false);
    for line in log.lines() {
        match line.split_once(": ") {
            Some(("debug1", line)) if line.starts_with("Server accepts key: ") => phase = LoginPhase::Signing,
            // the signature: SSH_MSG_USERAUTH_REQUEST (RFC 4252)
            Some(("debug3", "send packet: type 50")) => phase = LoginPhase::Connecting,
            Some(("debug1", line)) if line.starts_with("Authentications that can continue") => {
                (phase, is_answered) = (LoginPhase::Connecting, true);
            }
            _ if line.starts_with("Authenticated to ") => return LoginPhase::LoggedIn,
            _ => {}
        }
    }
    // the banner of a server that has said how to log in asks for nothing
    match stderr.lines().find(|line| !is_answered && line.contains("https://")) {
        Some(page) if phase == LoginPhase::Connecting => LoginPhase::Page(page.trim().to_owned()),
        _ => phase,
    }
}

/// Returns whether a line of a log at the level DEBUG3 says nothing of a failure.
pub(super) fn is_of_debugging(line: &str) -> bool {
    let beginnings = [
        "debug1: ",
        "debug2: ",
        "debug3: ",
        "OpenSSH_",
        "Authenticated to ",
        "Authenticated using ",
        "Transferred: sent ",
        "Bytes per second: sent ",
    ];
    beginnings.iter().any(|beginning| line.starts_with(beginning))
}

/// The turns of logins that may ask a person.
#[derive(Debug)]
pub(super) struct Turns {
    one: Semaphore,
    /// Number of logins that have passed their turn on because their nodes did not answer.
    passed_on: AtomicU32,
    /// Set if no one has confirmed the last login that waited for a person.
    is_unattended: AtomicBool,
}

impl Default for Turns {
    fn default() -> Turns {
        Turns { one: Semaphore::new(1), passed_on: AtomicU32::new(0), is_unattended: AtomicBool::new(false) }
    }
}

impl Turns {
    /// Waits for a turn; `None` where none is needed.
    pub(super) async fn take(&self, may_ask: bool) -> Option<SemaphorePermit<'_>> {
        if may_ask { self.one.acquire().await.ok() } else { None }
    }

    /// Lets all logins go at once: one has signed without a question.
    pub(super) fn open(&self) {
        self.one.close();
    }

    /// Returns for how long a login keeps its turn while its node does not answer: a second, and ever shorter times
    /// after other nodes did not.
    pub(super) fn patience(&self) -> Duration {
        ASKED / (1 + self.passed_on.load(Relaxed))
    }

    /// Notes that a login passes its turn on because its node does not answer.
    pub(super) fn pass_on(&self) {
        self.passed_on.fetch_add(1, Relaxed);
    }

    /// Notes whether someone has confirmed a login that waited for that.
    pub(super) fn note_person(&self, is_there: bool) {
        self.is_unattended.store(!is_there, Relaxed);
    }

    /// Returns whether the last login that waited for a person waited in vain. The next one need not.
    pub(super) fn is_unattended(&self) -> bool {
        self.is_unattended.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::timeout;

    #[test]
    fn the_log_tells_what_a_login_waits_for() {
        // OpenSSH 9.2
        let offered = "OpenSSH_9.2p1 Debian-2, OpenSSL 3.0.9\r\ndebug3: send packet: type 50\r\n\
                       debug1: Authentications that can continue: publickey\r\n\
                       debug1: Offering public key: root@vm ED25519 SHA256:x agent\r\ndebug3: send packet: type 50\r\n\
                       debug2: we sent a publickey packet, wait for reply\r\ndebug3: receive packet: type 60\r\n";
        let accepted = format!("{offered}debug1: Server accepts key: root@vm ED25519 SHA256:x agent\r\n");
        let signed = format!(
            "{accepted}debug3: sign_and_send_pubkey: signing using ssh-ed25519 SHA256:x\r\ndebug3: send packet: type 50\r\n"
        );
        let refused = format!("{accepted}debug1: Authentications that can continue: publickey\r\n");
        let done = format!("{signed}Authenticated to 127.0.0.1 ([127.0.0.1]:2299) using \"publickey\".\r\n");
        let banner =
            "# Tailscale SSH requires an additional check.\r\n# To authenticate, visit: https://login.example/a/1\r\n";
        for (log, stderr, expected) in [
            ("", "", LoginPhase::Connecting),
            (offered, "", LoginPhase::Connecting),
            (&accepted, "", LoginPhase::Signing),
            (&accepted, "Welcome to https://example.com\n", LoginPhase::Signing),
            // a server may be slow as well
            (&signed, "", LoginPhase::Connecting),
            (&refused, "", LoginPhase::Connecting),
            (offered, banner, LoginPhase::Connecting),
            (
                "debug1: SSH2_MSG_SERVICE_ACCEPT received\n",
                banner,
                LoginPhase::Page("# To authenticate, visit: https://login.example/a/1".into()),
            ),
            (&done, banner, LoginPhase::LoggedIn),
        ] {
            assert_eq!(phase(log, stderr), expected, "{log}");
        }
        assert!(done.lines().all(is_of_debugging));
        assert!(!is_of_debugging("ssh: connect to host h port 22: Connection refused"));
    }

    #[tokio::test]
    async fn one_login_asks_at_a_time_until_nothing_asks() {
        let (turns, moment) = (Turns::default(), Duration::from_millis(1));
        let first = turns.take(true).await;
        assert!(first.is_some() && timeout(moment, turns.take(true)).await.is_err(), "the others wait");
        assert!(turns.take(false).await.is_none(), "no agent has its key");
        drop(first);
        let second = turns.take(true).await;
        assert!(second.is_some());
        turns.open();
        assert!(turns.take(true).await.is_none(), "it need not wait");
    }

    #[test]
    fn nodes_that_do_not_answer_delay_others_for_some_seconds_at_most() {
        let turns = Turns::default();
        assert_eq!(turns.patience(), ASKED);
        let waited: Duration = (0..1000)
            .map(|_| {
                let patience = turns.patience();
                turns.pass_on();
                patience
            })
            .sum();
        assert!(waited < 8 * ASKED, "{waited:?}");
    }
}
