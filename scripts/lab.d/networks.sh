#!/usr/bin/env bash
# Puts nodes into networks of their own: routers with NAT, and an internet between them, made of network namespaces.
set -euo pipefail
# shellcheck source=scripts/lab.d/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
  cat <<'END'
usage: scripts/lab.d/networks.sh up TOPOLOGY PREFIX NODE…
       scripts/lab.d/networks.sh move KIND PREFIX NODE
       scripts/lab.d/networks.sh down PREFIX

up gives each NODE (the name of a network namespace, or pid:1234) an interface wan0. TOPOLOGY has the kind of each, separated
by commas:

  public      an address of the internet
  cone        behind a router that forwards the UDP port of the encrypted network ($NETWORKS_PORT, 51821)
  restricted  behind a router that lets in what answers the node
  symmetric   behind such a router that has another port for each destination
  blocked     behind a router that drops UDP
  same        behind the router of the node before it

mtu1280, slow and silent change the line to the internet: packets of at most 1280 bytes, 50 Mbit/s and 40 ms there and back,
and routers that do not say which packets are too large. They follow a kind, as in restricted+mtu1280+silent, or stand for
public+slow, restricted+mtu1280.

The namespaces that it makes are called PREFIX-net, PREFIX-r1 …. The internet is 198.51.100.0/24 and leads nowhere else. The nodes
accept no TCP on wan0, and on other interfaces nothing of each other. move gives a node another place, as `up` would.
down removes all of that. Needs root, ip and iptables, and python3 for slow.
END
}

readonly PORT=${NETWORKS_PORT:-51821}

# in_node NODE COMMAND…
in_node() {
  local -r node=$1
  shift
  case $node in
  pid:*) nsenter -t "${node#pid:}" -n "$@" ;;
  *) ip netns exec "$node" "$@" ;;
  esac
}

# The name by which `ip link` knows a node's namespace.
namespace_of() { printf '%s\n' "${1#pid:}"; }

# router NAME: a namespace that forwards packets
router() {
  ip netns add "$1"
  ip netns exec "$1" sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward; ip link set lo up'
}

# line KIND NAMESPACE INTERFACE: connects a namespace to the internet, and sets `address`
line() {
  local -r kind=$1 end=$2 interface=$3
  local -r here=$((place * 4)) far=up$place
  local mtu=1500
  address=198.51.100.$((here + 2))
  [[ $kind != *+mtu1280* ]] || mtu=1280
  ip link add "$far" mtu $mtu netns "$prefix-net" type veth peer name "$interface" mtu $mtu netns "$end"
  printf '%s\n' "addr add 198.51.100.$((here + 1))/30 dev $far" "link set $far up" | ip -n "$prefix-net" -batch -
  [[ $kind != *+silent* ]] || silent "$prefix-net"
  if [[ $kind = *+slow* ]]; then
    slow ip netns exec "$prefix-net" tc qdisc add dev "$far" root
    ip netns exec "$prefix-net" tc qdisc show dev "$far" | grep -q netem || delayed "$far"
  fi
  gateway=198.51.100.$((here + 1))
  place=$((place + 1))
}

silent() {
  ip netns exec "$1" iptables -w -C OUTPUT -p icmp --icmp-type fragmentation-needed -j DROP 2>/dev/null ||
    ip netns exec "$1" iptables -w -A OUTPUT -p icmp --icmp-type fragmentation-needed -j DROP
}

# slow COMMAND…: netem delays, too, but not every kernel has it
slow() { "$@" netem delay 20ms rate 50mbit limit 1000 2>/dev/null || "$@" tbf rate 50mbit burst 64kb latency 50ms; }

# delayed INTERFACE: lets packets wait for 20 ms in each direction, where netem does not
delayed() {
  local -r log=$LAB_RUN/delay.$prefix.$place
  printf '%s\n' '*mangle' "-A FORWARD -i $1 -j NFQUEUE --queue-num $place --queue-bypass" \
    "-A POSTROUTING -o $1 -j NFQUEUE --queue-num $place --queue-bypass" COMMIT |
    ip netns exec "$prefix-net" iptables-restore -w --noflush
  # it ends with its standard input
  setsid ip netns exec "$prefix-net" sh -c 'sleep infinity | python3 -I "$@" 0.02' sh "$LAB_SCRIPTS/bench.d/delay.py" "$place" \
    </dev/null >"$log" 2>&1 &
  wait_for 10 grep -qs ready "$log" || die "the delay does not start" "$(cat "$log")"
}

# The rules of a router, for iptables-restore.
rules() { # KIND NODE
  echo '*nat'
  [[ $1 != cone* ]] || echo "-A PREROUTING -i wan -p udp --dport $PORT -j DNAT --to-destination $2"
  if [[ $1 = symmetric* ]]; then echo '-A POSTROUTING -o wan -j MASQUERADE --random-fully'; else echo '-A POSTROUTING -o wan -j MASQUERADE'; fi
  printf '%s\n' COMMIT '*filter'
  # as a router at home: what it does not expect leaves no trace that would change the ports of later connections
  printf '%s\n' '-A INPUT -i wan -p udp -j DROP' '-A INPUT -i wan -p tcp -j DROP'
  [[ $1 != blocked* ]] || printf '%s\n' '-A FORWARD -p udp -j DROP'
  [[ $1 = cone* ]] || printf '%s\n' '-A FORWARD -i wan -m conntrack --ctstate NEW,INVALID -j DROP'
  [[ $1 != *+silent* ]] || echo '-A OUTPUT -p icmp --icmp-type fragmentation-needed -j DROP'
  echo COMMIT
}

# attach KIND NODE: gives a node its interface. `lan` is the network behind the last router, `host` its last address there.
attach() {
  local kind=$1
  local -r node=$2 end=$(namespace_of "$2")
  local address gateway
  case $kind in
  slow* | silent*) kind=public+$kind ;;
  mtu1280*) kind=restricted+$kind ;;
  esac
  case $kind in
  public*)
    line "$kind" "$end" wan0
    address+=/30
    if [[ $kind = *+slow* ]]; then slow in_node "$node" tc qdisc add dev wan0 root; fi
    ;;
  cone* | restricted* | symmetric* | blocked*)
    lan=$((lan + 1)) host=10
    router "$prefix-r$lan"
    line "$kind" "$prefix-r$lan" wan
    printf '%s\n' "link add lan type bridge" "addr add 192.168.$lan.1/24 dev lan" "link set lan up" \
      "addr add $address/30 dev wan" "link set wan up" "route add default via $gateway" | ip -n "$prefix-r$lan" -batch -
    rules "$kind" "192.168.$lan.$host" | ip netns exec "$prefix-r$lan" iptables-restore -w
    if [[ $kind = *+slow* ]]; then slow ip netns exec "$prefix-r$lan" tc qdisc add dev wan root; fi
    behind
    ;;
  same)
    [ "$lan" -gt 0 ] || die "same: the node before $node is behind no router"
    host=$((host + 1))
    behind
    ;;
  *) die "unknown kind of network: $kind" "try: $0 --help" ;;
  esac
  printf '%s\n' "addr add $address dev wan0" "link set wan0 up" "link set lo up" "route add 198.51.100.0/24 via $gateway" |
    in_node "$node" ip -batch -
  only_udp "$node"
}

# Connects the node to the router $lan.
behind() {
  ip link add "n$host" netns "$prefix-r$lan" type veth peer name wan0 netns "$end"
  printf '%s\n' "link set n$host master lan" "link set n$host up" | ip -n "$prefix-r$lan" -batch -
  address=192.168.$lan.$host/24 gateway=192.168.$lan.1
}

# Lets a node accept no TCP on wan0, and on its other interfaces nothing from their networks except from the gateway.
only_udp() {
  local name text gateway
  forget "$1"
  {
    printf '%s\n' '*filter' ':hvdctl-lab - [0:0]' '-I INPUT -j hvdctl-lab' '-A hvdctl-lab -i wan0 -p tcp -j DROP'
    in_node "$1" ip -o -4 addr show | while read -r _ name _ text _; do
      case $name in lo | wan0 | hmesh*) continue ;; esac
      gateway=$(in_node "$1" ip -4 route show default dev "$name" | sed -n 's/.*via \([0-9.]*\).*/\1/p' | head -n 1)
      [ -z "$gateway" ] || printf '%s\n' "-A hvdctl-lab -i $name -s $gateway -j RETURN"
      printf '%s\n' "-A hvdctl-lab -i $name -s $text -j DROP"
    done
    echo COMMIT
  } | in_node "$1" iptables-restore -w --noflush
}

forget() {
  in_node "$1" iptables -w -D INPUT -j hvdctl-lab 2>/dev/null || return 0
  in_node "$1" iptables -w -F hvdctl-lab
  in_node "$1" iptables -w -X hvdctl-lab
}

save() { printf '%s\n' "$place" "$lan" "$host" "${nodes[@]}" >"$LAB_RUN/networks.$prefix"; }

load() {
  local -a saved
  [ -e "$LAB_RUN/networks.$prefix" ] || return 1
  mapfile -t saved <"$LAB_RUN/networks.$prefix"
  place=${saved[0]} lan=${saved[1]} host=${saved[2]}
  nodes=("${saved[@]:3}")
}

up() {
  local -a kinds
  local index
  IFS=, read -ra kinds <<<"$1"
  prefix=$2
  shift 2
  [ "${#kinds[@]}" = $# ] || die "${#kinds[@]} kinds of networks for $# nodes"
  down "$prefix"
  nodes=("$@") place=0 lan=0 host=0
  mkdir -p "$LAB_RUN"
  save
  router "$prefix-net"
  for index in "${!kinds[@]}"; do attach "${kinds[index]}" "${nodes[index]}"; done
  save
}

move() {
  prefix=$2
  load || die "there are no networks $prefix"
  in_node "$3" ip link del wan0
  attach "$1" "$3"
  save
}

down() {
  local node name
  prefix=$1
  if load; then
    for node in "${nodes[@]}"; do
      { forget "$node" && in_node "$node" ip link del wan0; } 2>/dev/null || true
    done
  fi
  # another lab may be removing its own
  ip netns list 2>/dev/null | while read -r name _; do
    case $name in "$prefix-net" | "$prefix"-r[0-9]*) ;; *) continue ;; esac
    # those that delay packets
    ip netns pids "$name" | xargs -r kill 2>/dev/null || true
    ip netns del "$name"
  done
  rm -f "$LAB_RUN/networks.$prefix" "$LAB_RUN/delay.$prefix".*
}

case ${1-} in
up) [ $# -ge 4 ] || { usage >&2; exit 2; } ;;
move) [ $# = 4 ] || { usage >&2; exit 2; } ;;
down) [ $# = 2 ] || { usage >&2; exit 2; } ;;
-h | --help) usage; exit ;;
*) usage >&2; exit 2 ;;
esac
need_root "$@"
"$@"
