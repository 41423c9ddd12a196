# Lists the jobs of this node: the contents of job.json, result.json, attempts.json, members.json and idle.RANK (waiting.py), each line
# after its path (an empty one for an empty file), how many ranks have started here, and the path of env.json, which is there until the
# job ends here. Variables: jobs_dir. Fails if a file cannot be read; one that is removed meanwhile is left out.
LC_ALL=C
export LC_ALL
[ -d "$jobs_dir" ] || exit 0
cd "$jobs_dir" || exit
list() {
  find . -ignore_readdir_race -mindepth 2 -maxdepth 2 \
    '(' -name job.json -o -name result.json -o -name attempts.json -o -name members.json -o -name 'idle.*' ')' \
    -exec grep -aH '' {} +
  find . -ignore_readdir_race -mindepth 2 -maxdepth 2 \
    '(' -name env.json -o -empty '(' -name job.json -o -name result.json ')' ')' -printf '%p:\n'
  find . -ignore_readdir_race -mindepth 2 -maxdepth 2 -name states -exec grep -aHc ' s $' {} +
}
# the exit codes do not help: grep fails without a match too
exec 3>&1
errors=$(list 2>&1 >&3 3>&- | grep -v ': No such file or directory$' | head -n 3)
[ -z "$errors" ] || {
  printf '%s\n' "$errors" >&2
  exit 1
}
