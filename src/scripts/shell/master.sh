# The main process of a container like hmaster for a shell: the container lives as long as standard input is open. Arguments: the
# hostfile, and a wrapper of ssh that reaches the workers.

# bash ends `read` after TMOUT seconds, which an image may set
unset TMOUT
mkdir -p /run/hvdctl && printf '%s' "$1" >/root/hostfile && printf '%s' "$2" >/run/hvdctl/ssh &&
  chmod 755 /run/hvdctl/ssh || exit 1
echo ready
while read -r _; do :; done
