# Follows a file of a job on this node (file: its log or samples) from a byte on, until standard input ends. Appended to job/directory.sh.
# Variables: jobs_dir, id, file, offset, pulse (seconds). The first line is the node's clock; a dot on standard error every few seconds shows that the node is alive.
# Exits when standard input closes, which happens when hvdctl exits.
{ enter "$id" && open_regular "$file"; } 2>/dev/null || { echo "the job has no $file here" >&2; exit 1; }
# tail would begin anew with a file that became shorter
[ "$(stat -L -c %s /proc/self/fd/5)" -ge "$offset" ] || { echo "the $file of the job is shorter than it was" >&2; exit 1; }
exec 3<&0
date +%s.%N
# exits when tail does, whose messages would count as a sign of life. It looks for itself, 50 times a second where it can: of a descriptor
# the kernel tells it nothing. That of busybox takes whole seconds only
if tail --version >/dev/null 2>&1; then set -- -s 0.02; else set --; fi
tail -c "+$((offset + 1))" "$@" -f /proc/self/fd/5 3<&- 2>/dev/null &
tail=$!
{
  cat <&3 >/dev/null
  kill "$tail"
} 2>/dev/null &
while sleep "$pulse" >/dev/null 2>&1 && kill -0 "$tail" 2>/dev/null; do printf .; done >&2 3<&- &
beats=$!
wait "$tail"
kill "$beats" 2>/dev/null
