//! The limits of this process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// More open files than commands on a thousand nodes need. Programs that hvdctl starts inherit the limit, and some
/// close every descriptor below it first, which takes seconds if the limit is a thousand million, as in containers.
const OPEN_FILES: u64 = 65_536;

/// Raises the number of files that this process may have open, as far as the system allows it. A process begins with
/// 1024 on most systems, for programs that do not use more.
pub(super) fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    if let Some(raised) = raised(limit) {
        // an error of a command that needs more names the limit
        let _ = setrlimit(Resource::Nofile, raised);
    }
}

fn raised(limit: Rlimit) -> Option<Rlimit> {
    let current = limit.maximum.unwrap_or(OPEN_FILES).min(OPEN_FILES);
    limit.current.is_some_and(|now| now < current).then_some(Rlimit { current: Some(current), ..limit })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_is_raised_and_never_lowered() {
        let raised = |current, maximum| raised(Rlimit { current, maximum }).map(|limit| (limit.current, limit.maximum));
        assert_eq!(raised(Some(1024), Some(4096)), Some((Some(4096), Some(4096))));
        assert_eq!(raised(Some(256), None), Some((Some(OPEN_FILES), None)));
        assert_eq!(raised(Some(1024), Some(1 << 30)), Some((Some(OPEN_FILES), Some(1 << 30))));
        for (current, maximum) in [(Some(12), Some(12)), (Some(1 << 20), Some(1 << 30)), (None, None)] {
            assert_eq!(raised(current, maximum), None, "{current:?} {maximum:?}");
        }
    }
}
