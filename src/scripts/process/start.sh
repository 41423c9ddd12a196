# Appended to process/common.sh. Starts a process that was created, in a session of its own, so that it outlives this login. Variables:
# which (its name or id).
must_find "$which"
if is_running "$directory"; then exit 0; fi
find_manager
rm -f "$directory/pid" "$directory/environment"
# the process holds this lock until it ends (process/wait.sh)
exec 8>"$directory/lock" || exit
flock -n 8 2>/dev/null || : # not every file system has locks
# shellcheck disable=SC2086 # the words of a command
setsid $by sh "$directory/main" "$directory" </dev/null >"$directory/output" 2>&1 &
exec 8>&-
tries=0
until [ -e "$directory/pid" ]; do
  tries=$((tries + 1))
  if [ "$tries" -gt 500 ]; then
    echo "it has not started within 10 s: $(tail -n 5 "$directory/output")" >&2
    exit 1
  fi
  sleep 0.02
done
