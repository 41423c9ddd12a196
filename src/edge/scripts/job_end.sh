# Ends what is left of a run on this node, and says how many processes that were. Wants: id, grace (seconds), follower
# (a process id or empty). A process belongs to the run when its environment says HVDCTL_JOB=ID: other runs and other
# people's processes are never touched. The programs come first and get the grace time (a last checkpoint); only then
# the supervisors and the launcher, whose end takes the container with it.
mine() { grep -lzxF -e "HVDCTL_JOB=$id" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3; }
programs() { for p in $(mine); do if grep -qzx 'HVDCTL_PROGRAM=1' "/proc/$p/environ" 2>/dev/null; then echo "$p"; fi; done; }
# the shells and greps of this very script have no such environment, so the lists end up empty
signal() { # SIGNAL PID…
  s=$1
  shift
  for p; do kill "-$s" "$p" 2>/dev/null || :; done
}

found=$(programs)
# shellcheck disable=SC2086
signal TERM $found
# an ended program's supervisor writes down how it ended and goes by itself
tries=$((grace * 10))
while [ "$tries" -gt 0 ] && [ -n "$(programs)" ]; do
  sleep 0.1
  tries=$((tries - 1))
done
# shellcheck disable=SC2046
signal KILL $(programs)
[ -z "$found" ] || sleep 0.3
# shellcheck disable=SC2046
signal TERM $(mine)
tries=20
while [ "$tries" -gt 0 ] && [ -n "$(mine)" ]; do
  sleep 0.1
  tries=$((tries - 1))
done
# shellcheck disable=SC2046
signal KILL $(mine)
[ -z "$follower" ] || kill "$follower" 2>/dev/null || :
echo "$found" | grep -c . || :
