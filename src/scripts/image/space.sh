# Prints the free bytes of each directory's file system, or of its nearest existing parent's, as "BYTES DIRECTORY" lines. Variables:
# directories (one a line). Changes nothing.
printf '%s\n' "$directories" | while IFS= read -r directory; do
  until [ -d "$directory" ]; do directory=${directory%/*} directory=${directory:-/}; done
  table=$(df -Pk "$directory") || exit 1
  free=$(printf '%s\n' "$table" | awk 'NR == 2 { print $4 }')
  printf '%s %s\n' "$((free * 1024))" "$directory"
done
