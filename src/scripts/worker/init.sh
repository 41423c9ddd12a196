# The beginning of a worker: becomes its main process, init.py, which starts sshd by the other arguments. Arguments: the text of init.py, the
# seconds that it may take to end, the command that becomes sshd. An image without a Python that runs it has no ranks either, and its sshd
# is started nevertheless, so that hvdctl can say so.
program=$1 limit=$2
shift 2
if python3 -I -c 'import contextlib, ctypes, os, signal, subprocess, sys, time' 2>/dev/null; then
    exec python3 -I -c "$program" "$limit" "$@"
fi
exec "$@"
