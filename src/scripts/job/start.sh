# Creates a job's directory. Variables: jobs_dir, id, files (a tar archive, in base64; its last file is called log), own (a text that
# is in the record of this job and of no other). Exits with 17 if another job has the directory: two operators may get the same id in the
# same second. This job's own may be there already, because a connection broke before the answer.
set -eu
umask 022
mkdir -p "${jobs_dir%/*}"
# the output of ranks may be confidential
umask 077
mkdir -p "$jobs_dir"
if ! error=$(mkdir "$jobs_dir/$id" 2>&1); then
  [ -d "$jobs_dir/$id" ] || { printf '%s\n' "$error" >&2; exit 1; }
  grep -qsF -e "$own" -- "$jobs_dir/$id/job.json" || { echo "another job has the id $id" >&2; exit 17; }
fi
cd "$jobs_dir/$id"
printf '%s' "$files" | base64 -d | tar -xpmf - --no-same-owner
# a pipeline has the exit code of its last program, and tar accepts empty input
[ -e log ]
