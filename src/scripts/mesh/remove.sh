# Removes the files of the encrypted network. Appended to node/close.sh and node/permissions.sh. Variables: directory.
set -eu
[ -d "$directory" ] || exit 0
refuse_exposed "$directory"
rm -rf -- "$directory"
rmdir -- "${directory%/*}" 2>/dev/null || :
echo removed
