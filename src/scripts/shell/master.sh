# The main process of a container like hmaster for a shell: the container lives as long as standard input is open. Arguments: the
# hostfile, a wrapper of ssh that reaches the workers, the places of both: a file, and a directory; and ssh's
# configuration for that directory, or nothing.

# bash ends `read` after TMOUT seconds, which an image may set
unset TMOUT
mkdir -p "$4" && printf '%s' "$1" >"$3" && printf '%s' "$2" >"$4/ssh" && { [ -z "$5" ] || printf '%s' "$5" >"$4/ssh_config"; } &&
  chmod 755 "$4/ssh" || exit 1
echo ready
while read -r _; do :; done
