# Behind killed.sh. Ends what is left of a run on this node: what the run's keeper could not end, because it was killed itself or did
# not reach the node. Says what is still there in the end, a line each: PID, where it waits in the kernel, and its words. Wants: id,
# grace (seconds), jobs_dir. A process belongs to the run when its environment says HVDCTL_JOB=ID: other runs and other people's
# processes are never touched. The programs come first and get the grace time (a last checkpoint); only then the supervisors and the
# launcher.
mine() { grep -lzxF -e "HVDCTL_JOB=$id" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3; }
# the shells and greps of this very script have no such environment, so the lists end up empty
programs() {
  grep -lzxF -e "HVDCTL_JOB=$id" /proc/[0-9]*/environ 2>/dev/null |
    xargs -r grep -lzxF -e HVDCTL_PROGRAM=1 2>/dev/null | cut -d/ -f3
}
# the programs themselves lead their process groups; their helpers are theirs to end, before or after a last checkpoint
leaders() {
  for p in $(programs); do
    group=$(ps -o pgid= -p "$p" 2>/dev/null) || continue
    [ "$((group))" != "$p" ] || echo "$p"
  done
}
# the ranks' supervisors pass SIGTERM on, and write down that the end was asked for
supervisors() {
  for p in $(mine); do
    # the name that rank.py takes; the process that the launcher started has the same command line
    [ "$(cat "/proc/$p/comm" 2>/dev/null)" != hvdctl-rank ] || echo "$p"
  done
}
# no grace time helps a program that was killed and is still there
alive() {
  for p in $(programs); do killed "$p" || echo "$p"; done
}
# what is there although it has just been killed: a program may have started another one meanwhile
killed_all() {
  # shellcheck disable=SC2046
  signal KILL $(mine)
  mine
}
signal() { # SIGNAL PID…
  s=$1
  shift
  for p; do kill "-$s" "$p" 2>/dev/null || :; done
}
gone_within() { # SECONDS COMMAND: waits until the command lists nothing
  end=$(($(date +%s) + $1))
  while [ -n "$($2)" ]; do
    [ "$(date +%s)" -lt "$end" ] || return 1
    sleep 0.1
  done
}

forget() { # nobody starts any more, and what it holds may be secret
  rm -f -- "$jobs_dir/$id/env.json"
}

if [ -z "$(mine)" ]; then
  forget
  exit
fi
found=$(leaders)
asked=$(supervisors)
# where a supervisor was killed, nobody passes the signal on
# shellcheck disable=SC2086
signal TERM ${asked:-$found}
# an ended program's supervisor writes down how it ended, and goes by itself
# shellcheck disable=SC2046
gone_within "$grace" alive || signal KILL $(programs)
[ -z "$found" ] || sleep 0.3
# shellcheck disable=SC2046
signal TERM $(mine)
gone_within 2 mine
forget
gone_within 5 killed_all || for p in $(mine); do
  words=$(tr '\0\n' '  ' <"/proc/$p/cmdline" 2>/dev/null | head -c 200)
  [ -z "$words" ] || printf '%s %s %s\n' "$p" "$(cat "/proc/$p/wchan" 2>/dev/null)" "$words"
done
