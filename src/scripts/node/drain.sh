# Marks this node as drained, or removes the mark if `mark` is empty. Variables: jobs_dir, cluster, mark.
set -eu
umask 022
mkdir -p "${jobs_dir%/*}"
umask 077
mkdir -p "$jobs_dir"
file=$jobs_dir/.drained@$cluster
if [ -z "$mark" ]; then
  rm -f "$file"
else
  printf '%s\n' "$mark" >"$file.new"
  mv -fT "$file.new" "$file"
fi
