# Marks this node as drained, or removes the mark if `mark` is empty, and does the same in the directories of its jobs, for reap.py.
# Appended to job/directory.sh. Variables: jobs_dir, cluster, mark.
set -eu
umask 022
mkdir -p "${jobs_dir%/*}"
umask 077
mkdir -p "$jobs_dir"
file=$jobs_dir/.drained@$cluster
# of a job that begins meanwhile, job/start.sh finds the mark
tell_jobs() {
  for job in "$jobs_dir"/*/env.json; do
    [ -e "$job" ] || continue
    job=${job%/env.json}
    (! enter "${job##*/}" 2>/dev/null || tell_job) || return
  done
}
tell_job() {
  regular job.json && grep -qF "\"cluster\":\"$cluster\"" job.json || return 0
  if [ -z "$mark" ]; then rm -rf drained; else put drained </dev/null; fi
}
if [ -z "$mark" ]; then
  tell_jobs
  rm -f "$file"
else
  (cd "$jobs_dir" && printf '%s\n' "$mark" | put ".drained@$cluster")
  tell_jobs || { rm -f "$file" && exit 1; }
fi
