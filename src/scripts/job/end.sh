# Ends the remaining processes of a job on this node, which the job supervisor did not end because it was killed or did not reach the
# node, and takes its directory back from the worker that jobs share. Appended to node/marked.sh, node/killed.sh, job/directory.sh and
# job/lend.sh. Prints the processes that are still there at the end, one a line: PID, where it waits in the kernel, and its arguments.
# Variables: id, grace (seconds), jobs_dir. A process belongs to the job if its environment has HVDCTL_JOB=ID: processes of other jobs
# and users are never touched. The programs come first and get the grace period (a last checkpoint); only then the supervisors and the
# launcher. Fails if a tool fails, so that an error is not mistaken for "nothing left".

# the shells and tools of this script have no such environment, so the lists become empty
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
# the programs themselves lead their process groups; they end their own helpers, before or after a last checkpoint
leaders() {
  all=$(programs) || return
  for p in $all; do
    # fields after the name: state, parent, process group (proc(5)). A process without the file has ended
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
# kills all and lists what is left: a program may have started another one meanwhile
killed_all() {
  all=$(mine) || return
  # shellcheck disable=SC2086
  signal KILL $all
  mine
}
signal() { # SIGNAL PID…; ignores processes that have ended
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

remove_environment() { # no rank starts any more, and the variables may be secret
  [ ! -d "$jobs_dir/$id" ] || (enter "$id" && rm -f env.json env.*.json nodes/*/env.json nodes/*/env.*.json inherited.json inherited.json.new \
    notebook_rank.json process.json first.json first.json.new nodes/*/own.json nodes/*/environment)
}

left=$(mine) || exit
if [ -z "$left" ]; then
  remove_environment && take_back "$id"
  exit
fi
found=$(leaders) || exit
asked=$(supervisors) || exit
# a killed supervisor does not pass the signal on
# shellcheck disable=SC2086
signal TERM ${asked:-$found}
# the supervisor of an ended program records how it ended, and exits by itself
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
remove_environment || failed=1
gone_within 5 killed_all || for p in $left; do
  argv=$(tr '\0\n' '  ' 2>/dev/null <"/proc/$p/cmdline" | head -c 200)
  [ -z "$argv" ] || printf '%s %s %s\n' "$p" "$(cat "/proc/$p/wchan" 2>/dev/null)" "$argv"
done
# not before: what ends may still write there
[ "$failed" = 0 ] && take_back "$id"
