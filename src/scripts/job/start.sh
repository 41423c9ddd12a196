# Creates a job's directory. Appended to job/directory.sh and job/lend.sh. Variables: jobs_dir, cluster, id, files (a tar archive, in base64;
# its last file is called log), own (a text that is in the record of this job and of no other), shared (not empty: its ranks here run in
# the worker that jobs share). Exits with 17 if another job has the directory: two operators may get the same id in the same second. This
# job's own may be there already, because a connection broke before the answer.
set -eu
umask 022
mkdir -p "${jobs_dir%/*}"
# the output of ranks may be confidential
umask 077
mkdir -p "$jobs_dir"
create() {
  if [ -n "$shared" ]; then lend_new "$cluster" "$id"; else mkdir "$jobs_dir/$id"; fi
}
if [ -n "$shared" ]; then take_back_others "$cluster" "$id"; fi
if ! error=$(create 2>&1); then
  [ -d "$jobs_dir/$id" ] || { printf '%s\n' "$error" >&2; exit 1; }
  (enter "$id" && regular job.json && grep -qsF -e "$own" job.json) || { echo "another job has the id $id" >&2; exit 17; }
  if [ -n "$shared" ]; then lend_again "$cluster" "$id"; fi
fi
enter "$id"
printf '%s' "$files" | base64 -d | tar -xpmf - --no-same-owner
# job/tool.sh has stored it; without it ranks have no stacks
if [ -e "$jobs_dir/.py-spy@$cluster" ]; then put py-spy <"$jobs_dir/.py-spy@$cluster" || rm -f py-spy; fi
# until outside.py has examined what the job wrote outside the mounts, its container is kept
[ -e outside ] || printf '?\n' | put outside
# a pipeline has the exit code of its last program, and tar accepts empty input
[ -e log ]
# node/drain.sh marks the jobs that it finds
if [ -e "$jobs_dir/.drained@$cluster" ]; then put drained </dev/null; else rm -rf drained; fi
