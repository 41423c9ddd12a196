# Prints basic facts about a machine as "KEY VALUE" lines. Prepended to node/facts.sh and node/probe.sh. Changes nothing.
say() { printf '%s\n' "$*"; }
newline='
'
# calls a function with the fields of each line. Not by `read`: a pipe would need two processes, and a here-document room in /tmp
each_line() { # FUNCTION LINES
  called=$1
  IFS=$newline
  set -f
  # shellcheck disable=SC2086 # each line is an argument
  set -- $2
  unset IFS
  for line; do
    # shellcheck disable=SC2086 # so is each field
    "$called" $line
  done
  set +f
}
# logins that are not root's may lack the directory of `ip`
PATH=$PATH:/usr/sbin:/sbin

# printed first and last, because the commands in between may be slow
say clock "$(date +%s.%N)"
# another program only where it is needed: each takes as long as all that the shell does by itself
{ read -r hostname </proc/sys/kernel/hostname; } 2>/dev/null || hostname=$(uname -n)
say hostname "$hostname"
# if nproc fails, getconf prints the reason
cores=$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN) || exit
say cores "$cores"
# sudo drops SSH_CONNECTION; HVDCTL_ADDRESS has the address then
address=${SSH_CONNECTION:-}
address=${address% *}
address=${HVDCTL_ADDRESS:-${address##* }}
[ -z "$address" ] || say ssh "$address"
# without addresses, keys would be accepted from anywhere
addresses=$(ip -o addr show up) || exit
report_address() { # NUMBER NAME FAMILY ADDRESS WORD…
  [ $# -ge 4 ] || return 0
  name=$2 family=$3 address=$4
  shift 4
  # an IPv4 address has a label, the last word before the backslash
  rest=$*
  rest=${rest%%\\*}
  case $family in
  inet) say addr "$name $address ${rest##* }" ;;
  inet6) say addr "$name $address" ;;
  esac
}
each_line report_address "$addresses"
