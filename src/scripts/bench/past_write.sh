# Replaces the bandwidths that this node keeps of earlier benchmarks: a reader sees the old or the new ones, never a part. Appended to
# node/close.sh and node/permissions.sh. Variables: jobs_dir, cluster, past.
set -eu
refuse_exposed "$jobs_dir"
umask 022
mkdir -p "${jobs_dir%/*}"
umask 077
mkdir -p "$jobs_dir"
temporary=$jobs_dir/.bench.$$@$cluster
trap 'rm -f "$temporary"' EXIT
rm -f "$temporary"
(set -C && printf '%s\n' "$past" >"$temporary")
mv -fT "$temporary" "$jobs_dir/.bench@$cluster"
