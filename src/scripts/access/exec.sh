# Runs the command in its arguments in a session of its own, with an empty input, as long as standard input is open. However hvdctl
# ends, that is closed; then the whole session gets SIGTERM, and SIGKILL after 5 s. The exit code is the command's.

# bash ends `read` after TMOUT seconds, which an image may set
unset TMOUT
command -v setsid >/dev/null || {
  echo "hvdctl: cannot run the command: setsid is missing (package util-linux)" >&2
  exit 127
}
exec 3<&0
# the shell says in its usual words that a command cannot be started, which setsid does otherwise in each distribution
# shellcheck disable=SC2016 # it is the inner shell's
setsid sh -c 'exec "$@"' sh "$@" </dev/null 3<&- &
command=$!
(
  while read -r _; do :; done
  # the group of a session leader has its process id; at first there is no session yet
  kill -TERM "-$command" || kill -TERM "$command"
  n=0
  while [ "$n" -lt 50 ]; do
    kill -0 "-$command" || exit 0
    sleep 0.1
    n=$((n + 1))
  done
  kill -KILL "-$command"
) <&3 3<&- >/dev/null 2>&1 &
watch=$!
exec 3<&-
wait "$command"
code=$?
# remaining processes of its session end when standard input closes
kill -0 "-$command" 2>/dev/null || kill "$watch" 2>/dev/null
exit "$code"
