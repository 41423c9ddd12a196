# Prints the bandwidths that this node keeps of earlier benchmarks, or nothing if there are none. Variables: jobs_dir, cluster, most (bytes).
file=$jobs_dir/.bench@$cluster
[ ! -h "$file" ] || { echo "$file: a link" >&2; exit 1; }
if [ -e "$file" ]; then head -c "$most" "$file"; fi
