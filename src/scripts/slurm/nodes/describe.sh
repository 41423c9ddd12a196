# Puts the description of a job where the cluster's own Slurm looks for it. Variables: directory, id, text.
set -eu
umask 077
mkdir -p "$directory/jobs"
printf '%s' "$text" >"$directory/jobs/.$id.new"
mv -fT -- "$directory/jobs/.$id.new" "$directory/jobs/$id.json"
