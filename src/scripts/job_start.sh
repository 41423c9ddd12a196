# Creates a job's directory. Variables: jobs_dir, id, files (a tar archive, in base64; its last file is called log).
set -eu
umask 022
mkdir -p "${jobs_dir%/*}"
# the output of ranks may be confidential
umask 077
mkdir -p "$jobs_dir/$id"
cd "$jobs_dir/$id"
printf '%s' "$files" | base64 -d | tar -xpmf - --no-same-owner
# a pipeline has the exit code of its last program, and tar accepts empty input
[ -e log ]
