# Removes the files of the encrypted network, and its interface. Appended to node/close.sh and node/permissions.sh. Variables:
# directory.
set -eu
[ -d "$directory" ] || exit 0
refuse_exposed "$directory"
# one of the kernel stays when its container is killed, and with it the keys and the ways to all nodes
interface=$(sed -n 's/.*"interface": *"\(hmesh[a-z0-9_-]*\)".*/\1/p' "$directory/network.json" 2>/dev/null || :)
if [ -n "$interface" ] && [ -e "/sys/class/net/$interface" ]; then
  PATH=$PATH:/usr/sbin:/sbin
  # that of wireguard-go may go by itself just now
  ip link del "$interface" || [ ! -e "/sys/class/net/$interface" ]
fi
rm -rf -- "$directory"
rmdir -- "${directory%/*}" 2>/dev/null || :
echo removed
