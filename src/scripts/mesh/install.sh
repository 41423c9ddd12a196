# Gives a node the files of its encrypted network, and prints `changed` if its programs are others than before. Appended to node/close.sh and
# node/permissions.sh. Variables: directory, files (a tar archive of the programs, in base64; or nothing), network (network.json as a
# line; or nothing).
set -eu
umask 077
refuse_exposed "$directory"
mkdir -p "${directory%/*}"
for part in '' /run; do
  [ -d "$directory$part" ] || mkdir "$directory$part"
  chmod 700 "$directory$part"
done
if [ -n "$files" ]; then
  new=$directory/.new
  rm -rf "$new"
  mkdir "$new"
  printf '%s' "$files" | base64 -d | tar -xpmf - -C "$new" --no-same-owner
  [ -e "$new/agent.py" ]
  changed=
  for file in "$new"/*; do
    old=$directory/run/${file##*/}
    cmp -s "$file" "$old" || {
      changed=1
      mv -fT -- "$file" "$old"
    }
  done
  rm -rf "$new"
  [ -z "$changed" ] || echo changed
fi
if [ -n "$network" ]; then
  printf '%s\n' "$network" >"$directory/.network.json"
  mv -fT -- "$directory/.network.json" "$directory/network.json"
fi
