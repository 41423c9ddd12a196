# The shell that `hvdctl shell` opens in a container. HVDCTL_PATH: a directory whose programs go before all others. Its processes carry
# HVDCTL_SHELL, by which shell_guard.sh finds them; they are none of a job's.
[ -z "${HVDCTL_PATH:-}" ] || PATH=$HVDCTL_PATH:$PATH
unset HVDCTL_PATH HVDCTL_JOB
if command -v bash >/dev/null 2>&1; then exec bash; fi
exec sh
