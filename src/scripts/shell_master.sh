# The main process of an hmaster that is there for a shell alone: the container lives as long as standard input is open. Arguments:
# the hostfile, and the ssh that knows the workers.
mkdir -p /run/hvdctl && printf '%s' "$1" >/root/hostfile && printf '%s' "$2" >/run/hvdctl/ssh &&
  chmod 755 /run/hvdctl/ssh || exit 1
echo ready
while read -r _; do :; done
