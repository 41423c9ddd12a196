# Writes the files of the cluster's own Slurm, and prints `changed` if the daemons have to be started again, now or since an earlier command
# that was cut off: restart.sh removes `.restart`. Appended to node/close.sh and node/permissions.sh. Variables: directory, files (a tar archive, in base64).
set -eu
umask 077
refuse_exposed "$directory"
mkdir -p "${directory%/*}"
for part in '' /jobs /state /spool /log; do
  [ -d "$directory$part" ] || mkdir "$directory$part"
  chmod 700 "$directory$part"
done
new=$directory/.new
rm -rf "$new"
mkdir "$new"
printf '%s' "$files" | base64 -d | tar -xpmf - -C "$new" --no-same-owner
[ -e "$new/slurm.conf" ]
for file in "$new"/*; do
  old=$directory/${file##*/}
  cmp -s "$file" "$old" || {
    : >"$directory/.restart"
    mv -fT -- "$file" "$old"
  }
done
rm -rf "$new"
[ ! -e "$directory/.restart" ] || echo changed
