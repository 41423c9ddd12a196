# Gives a node the key of the cluster's own Slurm. Appended to node/close.sh and node/permissions.sh. Variables: directory, key (in base64).
set -eu
umask 077
# a node that is not in it
[ -d "$directory" ] || exit 0
refuse_exposed "$directory"
# the daemons are to be started again, whatever becomes of this command (install.sh)
: >"$directory/.restart"
printf '%s' "$key" >"$directory/.key.new"
mv -fT -- "$directory/.key.new" "$directory/munge.key"
