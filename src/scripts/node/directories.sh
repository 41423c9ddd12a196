# Appended to node/close.sh. Creates the directories that containers have or that projects need: the engine would create what it mounts with
# mode 755. Closes those of them that others may enter. Variables: jobs_dir, projects_dir, data_dir, cluster,
# unclosed (one a line).
set -eu
umask 022
mkdir -p "${jobs_dir%/*}/" "$projects_dir"
umask 077
mkdir -p "$jobs_dir/.worker@$cluster"
chmod 700 "$jobs_dir" "$jobs_dir/.worker@$cluster"
printf '%s\n' "$unclosed" | while IFS= read -r directory; do
  # it may have been removed meanwhile
  if [ -h "$directory" ] || [ ! -d "$directory" ]; then continue; fi
  # only what is directly below a directory of projects or data
  case ${directory%/*} in "$projects_dir" | "$data_dir") ;; *) continue ;; esac
  case ${directory##*/} in
  . | ..) ;;
  .*"@$cluster") chmod 700 -- "$directory" ;;
  *)
    close_directory "$directory"
    # an earlier hvdctl kept such modes; who is in a directory already would still have them
    find "$directory" -xdev ! -type l -perm /022 -exec chmod go-w -- {} +
    ;;
  esac
done
