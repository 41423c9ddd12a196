# The beginning of a worker: becomes its main process, init.py, which starts sshd by the other arguments. Arguments: the text of init.py, the
# seconds that it may take to end, the command that becomes sshd. An image without a Python that runs it has no ranks either, and its sshd
# is started nevertheless, so that hvdctl can say so.
hvdctl_init=$1 hvdctl_limit=$2
shift 2
hvdctl_needs='import contextlib, ctypes, os, signal, subprocess, sys, time'
set_aside_unless_needed python3 -I -c "$hvdctl_needs"
if python3 -I -c "$hvdctl_needs" 2>/dev/null; then
    # sshd is to have the whole environment of ranks, for its sessions
    exec python3 -I -c "$hvdctl_init" "$hvdctl_limit" sh -c "$hvdctl_give_back"'
exec "$@"' sh "$@"
fi
eval "$hvdctl_give_back"
exec "$@"
