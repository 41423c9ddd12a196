# The main process of a container like hmaster for a shell: the container lives as long as standard input is open. Arguments: the
# hostfile, and a wrapper of ssh that reaches the workers.
# with it, which an image may set, bash ends `read` after some seconds
unset TMOUT
mkdir -p /run/hvdctl && printf '%s' "$1" >/root/hostfile && printf '%s' "$2" >/run/hvdctl/ssh &&
  chmod 755 /run/hvdctl/ssh || exit 1
echo ready
while read -r _; do :; done
