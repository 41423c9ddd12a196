# Lays a job's directory. Wants: jobs_dir, id, files (a tar archive, in base64; its last file is called log).
set -eu
umask 022
mkdir -p "${jobs_dir%/*}"
# what ranks print may be nobody else's business
umask 077
mkdir -p "$jobs_dir/$id"
cd "$jobs_dir/$id"
printf '%s' "$files" | base64 -d | tar -xpmf - --no-same-owner
# a pipe ends as its last program does, and tar takes nothing for an archive without files
[ -e log ]
