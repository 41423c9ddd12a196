# Lists the jobs of this node: the contents of job.json, result.json, attempts.json, members.json, queue, idle.RANK and place.RANK
# (waiting.py), each line after its path (an empty one for an empty file), in the same way the starts of ranks in states, and the path of
# env.json, which is there until the job ends here; first the time by this node's clock. Appended to job/directory.sh and job/lend.sh. Variables: jobs_dir.
# Fails if a file cannot be read; one that is removed meanwhile is left out.
LC_ALL=C
export LC_ALL
[ -d "$jobs_dir" ] || exit 0
cd "$jobs_dir" || exit
printf 'clock:%s\n' "$(date +%s.%N)"
newline='
'
start='^[0-9.]* [0-9]* s $'
list() { # DIRECTORY…
  # of the nodes that share the directory of a job under Slurm
  find -H "$@" -ignore_readdir_race -mindepth 3 -maxdepth 3 -type f -size -2048k -path './*/nodes/*' \
    '(' -name states -exec grep -aH "$start" {} + -o -size -8k '(' -name 'idle.[0-9]*' -o -name 'place.[0-9]*' ')' -exec grep -aH '' {} + ')' |
    sed 's:/nodes/[^/]*/states\(.[0-9.]* [0-9]* s \)$:/states\1:'
  set -- "$@" -ignore_readdir_race -mindepth 1 -maxdepth 1 -type f -size -2048k
  find -H "$@" '(' -name job.json -o -name result.json -o -name attempts.json -o -name members.json -o -name queue \
    -o -size -8k '(' -name 'idle.[0-9]*' -o -name 'place.[0-9]*' ')' ')' -exec grep -aH '' {} +
  find -H "$@" '(' -name env.json -o -empty '(' -name job.json -o -name result.json ')' ')' -printf '%p:\n'
  find -H "$@" -name states -exec grep -aH "$start" {} +
}
list_all() {
  # lent ones first: one that is taken back meanwhile must be found once
  set --
  for job in ./*; do
    [ -h "$job" ] || continue
    place=$(lent "${job#./}")
    [ -z "$place" ] || [ -h "$place" ] || set -- "$@" "$job"
  done
  [ $# = 0 ] || list "$@"
  lent=$newline
  for job; do lent=$lent$job$newline; done
  set --
  for job in ./*; do
    case $lent in *"$newline$job$newline"*) ;; *) [ -h "$job" ] || [ ! -d "$job" ] || set -- "$@" "$job" ;; esac
  done
  [ $# = 0 ] || list "$@"
}
# the exit codes do not help: grep fails without a match too
exec 3>&1
errors=$(list_all 2>&1 >&3 3>&- | grep -v ': No such file or directory$' | head -n 3)
[ -z "$errors" ] || {
  printf '%s\n' "$errors" >&2
  exit 1
}
