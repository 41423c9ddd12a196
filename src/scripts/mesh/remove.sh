# Removes the files of the encrypted network, and its interface. Appended to node/close.sh and node/permissions.sh. Variables:
# directory.
set -eu
[ -d "$directory" ] || exit 0
refuse_exposed "$directory"
# one of the kernel stays when its container is killed, and with it the keys and the ways to all nodes
if [ -e /sys/class/net/hmesh ]; then
  PATH=$PATH:/usr/sbin:/sbin
  # that of wireguard-go may go by itself just now
  ip link del hmesh || [ ! -e /sys/class/net/hmesh ]
fi
rm -rf -- "$directory"
rmdir -- "${directory%/*}" 2>/dev/null || :
echo removed
