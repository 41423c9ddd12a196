# Removes the files of the encrypted network, and its interface. Appended to node/close.sh and node/permissions.sh. Variables:
# directory.
set -eu
[ -d "$directory" ] || exit 0
refuse_exposed "$directory"
PATH=$PATH:/usr/sbin:/sbin
for file in network.json made.json; do
  interface=$(sed -n 's/.*"interface": *"\(hmesh[a-z0-9_-]*\)".*/\1/p' "$directory/$file" 2>/dev/null || :)
  range=$(sed -n 's/.*"range": *"\([0-9./]*\)".*/\1/p' "$directory/$file" 2>/dev/null || :)
  if [ -z "$interface" ] || [ -z "$range" ]; then continue; fi
  # an interface of the kernel stays when its container is killed, and with it the keys and the ways to all nodes
  if [ -e "/sys/class/net/$interface" ]; then
    # that of wireguard-go may go by itself just now
    ip link del "$interface" || [ ! -e "/sys/class/net/$interface" ]
  fi
  # what keeps packets of other networks out, and those of this one in. A container that does not run has no nft for it.
  if command -v nft >/dev/null 2>&1; then nft delete table ip "hvdctl_$interface" 2>/dev/null || :; fi
  ip route del unreachable "$range" 2>/dev/null || :
done
rm -rf -- "$directory"
rmdir -- "${directory%/*}" 2>/dev/null || :
echo removed
