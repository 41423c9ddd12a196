# Prints why a new key was made by which the daemons of the cluster's own Slurm know one another, or an empty line, and then the key, in
# base64. Who has it commands the daemons of all nodes: there is a new one when a node that had it has left, whose names are in the file
# `munge.nodes`. Those that have got the new one are in `munge.given` (given.sh). Appended to node/close.sh and node/permissions.sh.
# Variables: directory, nodes (one a line), renew (a reason to make a new one in any case).
set -eu
umask 077
refuse_exposed "$directory"
mkdir -p "${directory%/*}" "$directory"
why=$renew
if [ ! -s "$directory/munge.key" ]; then
  why=first
elif [ ! -e "$directory/munge.nodes" ]; then
  why=${why:-unknown}
else
  left=$(printf '%s\n' "$nodes" | grep -Fxv -f - -- "$directory/munge.nodes" || :)
  if [ -z "$renew" ] && [ -n "$left" ]; then why=left; fi
fi
if [ -n "$why" ]; then
  # the daemons are to be started again, whatever becomes of this command (install.sh)
  : >"$directory/.restart"
  rm -f "$directory/munge.given"
  head -c 128 /dev/urandom | base64 -w 0 >"$directory/.key.new"
  mv -fT -- "$directory/.key.new" "$directory/munge.key"
fi
if [ -z "$renew" ]; then
  printf '%s\n' "$nodes" >"$directory/.nodes.new"
  mv -fT -- "$directory/.nodes.new" "$directory/munge.nodes"
fi
[ -n "$why" ] || [ -e "$directory/munge.given" ] || why=unrecorded
printf '%s\n' "$why"
cat "$directory/munge.key"
