# Prints the bandwidths that this node keeps of earlier benchmarks, or nothing if there are none. Variables: jobs_dir, cluster, most (bytes).
file=$jobs_dir/.bench@$cluster
if [ -e "$file" ]; then head -c "$most" "$file"; fi
