# What a machine is, a "KEY VALUE" line each: the beginning of facts.sh and probe.sh. Changes nothing.
say() { printf '%s\n' "$*"; }
# logins that are not root's may lack the directory of `ip`
PATH=$PATH:/usr/sbin:/sbin

# first and last: the commands between may be slow, and the clock must be known to lie between the two
say clock "$(date +%s.%N)"
say hostname "$(uname -n)"
# where nproc fails, getconf says why it does
cores=$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN) || exit
say cores "$cores"
# root had by sudo does not know how the login came
address=${SSH_CONNECTION:-}
address=${address% *}
address=${HVDCTL_ADDRESS:-${address##* }}
[ -z "$address" ] || say ssh "$address"
# without addresses keys would be accepted from everywhere
addresses=$(ip -o addr show up) || exit
printf '%s\n' "$addresses" | while read -r _ name family address _; do
  case $family in inet | inet6) say addr "$name $address" ;; esac
done
if command -v nvidia-smi >/dev/null 2>&1; then
  say nvidia-smi yes
  # a driver that hangs must not block the whole observation; one that fails lists no GPU, which the checks compare with the inventory
  timeout 20 nvidia-smi -L 2>/dev/null | while IFS= read -r line; do say gpu "$line"; done
fi
