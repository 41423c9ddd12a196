# Behind marked.sh and killed.sh. Ends what is left of a job on this node: what the job supervisor could not end, because it was killed
# itself or did not reach the node. Prints what is still there in the end, a line each: PID, where it waits in the kernel, and its
# arguments. Wants: id, grace (seconds), jobs_dir. A process belongs to the job if its environment says HVDCTL_JOB=ID: other jobs and
# other people's processes are never touched. The programs come first and get the grace period (a last checkpoint); only then the
# supervisors and the launcher. Fails if a tool does: that there is nothing left must be known.

# the shells and tools of this very script have no such environment, so the lists end up empty
mine() {
  files=$(marked "^HVDCTL_JOB=$id\$" /proc/[0-9]*/environ) || return
  for file in $files; do pid_of "$file"; done
}
programs() {
  files=$(marked "^HVDCTL_JOB=$id\$" /proc/[0-9]*/environ) || return
  # shellcheck disable=SC2086
  files=$(marked "^HVDCTL_PROGRAM=1\$" $files) || return
  for file in $files; do pid_of "$file"; done
}
# the programs themselves lead their process groups; their helpers are theirs to end, before or after a last checkpoint
leaders() {
  all=$(programs) || return
  for p in $all; do
    # what stands behind the name: state, parent, process group (proc(5)). One without has ended
    { read -r stat <"/proc/$p/stat"; } 2>/dev/null || continue
    stat=${stat##*) }
    stat=${stat#* * }
    [ "${stat%% *}" != "$p" ] || echo "$p"
  done
}
# the rank supervisors pass SIGTERM on, and record that the end was requested
supervisors() {
  all=$(mine) || return
  for p in $all; do
    # the name that rank_supervisor.py takes; its launcher shim has the same command line
    { read -r name <"/proc/$p/comm"; } 2>/dev/null || continue
    [ "$name" != hvdctl-rank ] || echo "$p"
  done
}
# no grace period helps a program that is still there after SIGKILL
alive() {
  all=$(programs) || return
  for p in $all; do killed "$p" || echo "$p"; done
}
# what is there although it has just been killed: a program may have started another one meanwhile
killed_all() {
  all=$(mine) || return
  # shellcheck disable=SC2086
  signal KILL $all
  mine
}
signal() { # SIGNAL PID…; who has ended meanwhile needs none
  s=$1
  shift
  for p; do kill "-$s" "$p" 2>/dev/null || :; done
}
gone_within() { # SECONDS COMMAND: waits until the command lists nothing
  end=$(($(date +%s) + $1))
  while left=$("$2") || exit; [ -n "$left" ]; do
    [ "$(date +%s)" -lt "$end" ] || return 1
    sleep 0.1
  done
}

forget() { # no rank starts any more, and what it holds may be secret
  rm -f -- "$jobs_dir/$id/env.json"
}

left=$(mine) || exit
if [ -z "$left" ]; then
  forget
  exit
fi
found=$(leaders) || exit
asked=$(supervisors) || exit
# if a supervisor was killed, nobody passes the signal on
# shellcheck disable=SC2086
signal TERM ${asked:-$found}
# an ended program's supervisor records how it ended, and goes by itself
gone_within "$grace" alive || {
  left=$(programs) || exit
  # shellcheck disable=SC2086
  signal KILL $left
}
[ -z "$found" ] || sleep 0.3
left=$(mine) || exit
# shellcheck disable=SC2086
signal TERM $left
gone_within 2 mine
failed=0
forget || failed=1
gone_within 5 killed_all || for p in $left; do
  words=$(tr '\0\n' '  ' 2>/dev/null <"/proc/$p/cmdline" | head -c 200)
  [ -z "$words" ] || printf '%s %s %s\n' "$p" "$(cat "/proc/$p/wchan" 2>/dev/null)" "$words"
done
[ "$failed" = 0 ]
