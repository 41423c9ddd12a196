# Notes on the master which nodes have the key of the cluster's own Slurm. Variables: directory, nodes (one a line).
set -eu
umask 077
printf '%s\n' "$nodes" >"$directory/.given.new"
mv -fT -- "$directory/.given.new" "$directory/munge.given"
