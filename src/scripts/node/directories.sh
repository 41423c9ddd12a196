# Appended to node/close.sh. Creates the directories that containers have or that projects need: the engine would create what it mounts with
# mode 755. Closes those of them that others may enter. Variables: jobs_dir, projects_dir, cluster, unclosed (one a line).
set -eu
umask 022
mkdir -p "${jobs_dir%/*}/" "$projects_dir"
umask 077
mkdir -p "$jobs_dir/.worker@$cluster"
chmod 700 "$jobs_dir" "$jobs_dir/.worker@$cluster"
printf '%s\n' "$unclosed" | while IFS= read -r directory; do
  # it may have been removed meanwhile
  if [ -h "$directory" ] || [ ! -d "$directory" ]; then continue; fi
  case $directory in
  */.*"@$cluster") chmod 700 "$directory" ;;
  "$jobs_dir") ;;
  *) close_directory "$directory" ;;
  esac
done
