# Appended to process/common.sh. Starts a process that was created, in a session of its own, so that it outlives this login. Variables:
# which (its name or id).
must_find "$which"
if is_running "$directory"; then exit 0; fi
# logind may be set to end what a login has started (logind.conf(5)); what the user's own manager runs stays if that lingers
by=
case $(id -u):$(busctl get-property org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager KillUserProcesses 2>/dev/null) in
0:*) ;;
*true)
  by='systemd-run --user --scope --quiet --'
  case $(loginctl show-user "$(id -un)" --property=Linger 2>/dev/null) in
  *yes) ;;
  *)
    echo "logind ends what a login has started (KillUserProcesses=yes), unless $(id -un) lingers: loginctl enable-linger" >&2
    exit 1
    ;;
  esac
  ;;
esac
rm -f "$directory/pid" "$directory/environment"
# shellcheck disable=SC2086 # the words of a command
setsid $by sh "$directory/main" "$directory" </dev/null >"$directory/output" 2>&1 &
tries=0
until [ -e "$directory/pid" ]; do
  tries=$((tries + 1))
  if [ "$tries" -gt 100 ]; then
    echo "it has not started within 10 s: $(tail -n 5 "$directory/output")" >&2
    exit 1
  fi
  sleep 0.1
done
