# Prints this node's clock, boot, driver and the memory of its smallest GPU in MiB as "KEY VALUE" lines for record/ledger.rs, an empty line, and the node's ledger. Appended to
# ledger/system.sh. Variables: jobs_dir, cluster, most (bytes).
memory=
if command -v nvidia-smi >/dev/null 2>&1; then
  memory=$(timeout 20 nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits 2>/dev/null | grep -x '[0-9][0-9]*' | sort -n | head -n 1)
fi
printf 'clock %s\nbooted %s\nhost %s\nboot %s\ndriver %s\nmemory %s\n\n' "$now" "$booted" "$host" "$boot" "$driver" "$memory"
file=$jobs_dir/.ledger@$cluster
if [ -e "$file" ]; then
  # a pipe would be waited for
  [ -f "$file" ] || { echo "$file: not a regular file" >&2; exit 1; }
  tail -c "$most" "$file"
fi
