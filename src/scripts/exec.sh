# Runs the command that its arguments are, in a session of its own and with an empty input, for as long as standard input is open:
# whatever ends hvdctl closes that, and then the whole session gets SIGTERM, and SIGKILL after 5 s. The exit code is the command's.
command -v setsid >/dev/null || {
  echo "hvdctl: cannot run the command: setsid is missing (package util-linux)" >&2
  exit 127
}
exec 3<&0
# shellcheck disable=SC2016 # it is the inner shell's
setsid sh -c 'exec "$@"' sh "$@" </dev/null 3<&- &
command=$!
(
  while read -r _; do :; done
  # a session leader's group has its number; in the first moment there is no session yet
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
# what it left in its session goes with standard input
kill -0 "-$command" 2>/dev/null || kill "$watch" 2>/dev/null
exit "$code"
