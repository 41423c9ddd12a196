# The shell that `hvdctl shell` opens in a container. HVDCTL_PATH: a directory to put first in PATH. Its processes have HVDCTL_SHELL in
# their environment, by which shell/guard.sh finds them, and not HVDCTL_JOB: they belong to no job.
[ -z "${HVDCTL_PATH:-}" ] || PATH=$HVDCTL_PATH:$PATH
unset HVDCTL_PATH HVDCTL_JOB
if command -v bash >/dev/null 2>&1; then exec bash; fi
exec sh
