# Removes the directories of these jobs. Appended to node/close.sh and node/permissions.sh. Variables: jobs_dir, ids (one a line).
set -eu
[ -d "$jobs_dir" ] || exit 0
refuse_exposed "$jobs_dir"
cd "$jobs_dir"
# a link first: what is left without it becomes a directory of a job again (job/lend.sh)
printf '%s' "$ids" | while read -r id; do rm -rf -- "./$id" .worker@*/"$id"; done
