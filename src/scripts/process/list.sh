# Appended to process/common.sh. Prints the processes, one a line: id, when it was created, state, and its labels.
for file in "$run_dir"/*/labels; do
  [ -f "$file" ] || continue
  directory=${file%/labels}
  # what is not used for 30 days is removed from /var/tmp (systemd-tmpfiles(8))
  touch -ca -- "$directory" "$directory"/* 2>/dev/null
  { read -r id <"$directory/id" && IFS= read -r labels <"$file"; } 2>/dev/null || continue
  now=created
  [ ! -e "$directory/pid" ] || now=exited
  ! is_running "$directory" || now=running
  printf '%s %s %s %s\n' "$id" "$(stat -c %Y "$directory/labels")" "$now" "$labels"
done
