# Prints this node's clock, boot and driver as "KEY VALUE" lines for grade/ledger.rs, an empty line, and the node's ledger.
# Appended to ledger/system.sh. Variables: jobs_dir, cluster, most (bytes).
printf 'clock %s\nbooted %s\nhost %s\nboot %s\ndriver %s\n\n' "$now" "$booted" "$host" "$boot" "$driver"
file=$jobs_dir/.ledger@$cluster
if [ -e "$file" ] || [ -h "$file" ]; then
  # a pipe would be waited for, and a link may lead to any file
  { [ -f "$file" ] && [ ! -h "$file" ]; } || { echo "$file: not a regular file" >&2; exit 1; }
  tail -c "$most" "$file"
fi
