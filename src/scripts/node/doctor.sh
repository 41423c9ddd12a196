# Prints details of a node for `doctor`, as "KEY VALUE" lines for checks/details.rs. Appended to node/nvidia_smi.sh. Variables: worker_pid
# (sshd in the worker, may be empty), docker_root (may be empty), addresses (of the other nodes, one a line). Changes nothing.
say() { printf '%s\n' "$*"; }
PATH=$PATH:/usr/sbin:/sbin

say kernel "$(uname -r)"
[ ! -d /dev/infiniband ] || say infiniband yes
# devices by which ranks on different nodes reach each other's memory
for device in /dev/infiniband/uverbs[0-9]* /dev/gdrdrv /dev/nvidia-caps-imex-channels/channel[0-9]*; do
  [ ! -e "$device" ] || say fabric "$device"
done
# adapters with a connected port, NAME LINK-LAYER; what cannot be read counts as connected. Those that programs make of an Ethernet card
# (rxe, siw) are none, and those of Azure's Ethernet cannot be used
vendor=
{ read -r vendor </sys/class/dmi/id/sys_vendor; } 2>/dev/null
for port in /sys/class/infiniband/*/ports/*/state; do
  [ -e "$port" ] || continue
  state='' layer=''
  { read -r state <"$port" && read -r layer <"${port%state}link_layer"; } 2>/dev/null
  adapter=${port#/sys/class/infiniband/}
  case ${adapter%%/*}:$layer:$vendor in rxe* | siw* | *:Ethernet:Microsoft*) continue ;; esac
  case $state in '' | *ACTIVE*) say adapter "${adapter%%/*}" "$layer" ;; esac
done
# where none can be listed, the devices count as adapters
set -- /sys/class/infiniband/*
if [ ! -e "$1" ]; then
  for device in /dev/infiniband/uverbs[0-9]*; do
    [ ! -e "$device" ] || say adapter "${device##*/}"
  done
fi
# unknown for an sshd with another configuration file; requires root
sessions=$(sshd -T 2>/dev/null </dev/null | sed -n 's/^maxsessions //p')
[ -z "$sessions" ] || say max-sessions "$sessions"
# a worker or an interface that has gone meanwhile is left out
if [ -n "$worker_pid" ]; then
  say memlock "$(sed -n 's/^Max locked memory  *\([^ ]*\).*/\1/p' "/proc/$worker_pid/limits" 2>/dev/null)"
  # the hard limit, which ranks get as their soft one
  say nofile "$(sed -n 's/^Max open files  *[^ ]*  *\([^ ]*\).*/\1/p' "/proc/$worker_pid/limits" 2>/dev/null)"
fi
# no process is started for each interface: machines with containers have hundreds
conf=/proc/sys/net/ipv4/conf
for interface in /sys/class/net/*; do
  name=${interface##*/} all=0 own=0
  { read -r mtu <"$interface/mtu" && say mtu "$name" "$mtu"; } 2>/dev/null
  # the kernel uses the larger of the two (ip-sysctl.rst, rp_filter)
  # dash takes the end of the first byte for that of the file, so `read` fails, but it has read the digit
  { read -r all <"$conf/all/rp_filter" || :; read -r own <"$conf/$name/rp_filter" || :; } 2>/dev/null
  case $all$own in 11 | 01 | 10) say strict "$name" ;; esac
done

# prints the last line of a tool's output as the reason why a check is impossible
unchecked() { # CHECK CODE OUTPUT
  reason=$(printf '%s\n' "$3" | grep . | tail -n 1)
  [ "$2" != 124 ] || reason="no answer within 20 s"
  say unchecked "$1" "${reason:-exit code $2}"
}
disk() { # WHAT DIRECTORY: the free space and inodes in the nearest existing parent
  directory=$2
  until [ -d "$directory" ]; do directory=${directory%/*} directory=${directory:-/}; done
  if table=$(df -Pk "$directory" 2>&1); then
    say disk "$1" "$(printf '%s\n' "$table" | awk 'NR == 2 { print $4 }')" "$directory"
  else
    unchecked disk $? "$table"
  fi
  if inodes=$(stat -f -c '%c %d' -- "$directory" 2>&1); then
    [ "${inodes%% *}" = 0 ] || say inodes "$1" "${inodes#* }" "$directory"
  else
    unchecked disk $? "$inodes"
  fi
}
[ -z "$docker_root" ] || disk images "$docker_root"

printf '%s' "$addresses" | while read -r address; do
  if route=$(ip -o route get "$address" 2>&1); then
    # "ADDRESS [via GATEWAY] dev INTERFACE src SOURCE …"; the node's own address begins with "local"
    interface=${route#* dev } source=${route#* src }
    say route "$address" "${interface%% *}" "${source%% *}"
  else
    say route "$address" - "$(printf '%s\n' "$route" | tail -n 1)"
  fi
done

# a node that does not know its own name: sudo complains with every command, and programs that ask for their own address fail
own=$(uname -n)
timeout 5 getent ahosts "$own" >/dev/null 2>&1 || say unresolved "$own"

# prints the job of a process of root (as node/marked.sh), from its environment
job_of() { # PID
  [ "$(stat -c %u "/proc/$1" 2>/dev/null)" = "$(id -u)" ] || return 0
  tr '\0' '\n' <"/proc/$1/environ" 2>/dev/null | sed -n 's/^HVDCTL_JOB=//p' | head -n 1
}
for program in nvidia-container-runtime-hook nvidia-container-runtime nvidia-ctk; do
  if command -v "$program" >/dev/null 2>&1; then
    say toolkit yes
    break
  fi
done
# sets `answer` to what nvidia-smi prints for a query, and `code` to its exit code: 124 if there is none in time
query() { # QUERY
  answer=$(limited 20 nvidia-smi "$1" --format=csv,noheader)
  code=$(printf '%s\n' "$answer" | sed -n '$s/^exit //p')
  code=${code:-124} answer=${answer%exit *}
}
if command -v nvidia-smi >/dev/null 2>&1; then
  query --query-gpu=driver_version
  [ "$code" != 0 ] || say driver "$(printf '%s\n' "$answer" | grep -m 1 '^[0-9]')"
  # a driver that does not answer is not asked again
  [ "$code" = 124 ] || query --query-compute-apps=pid,used_memory,gpu_uuid
  [ "$code" = 0 ] || unchecked gpu-users "$code" "$answer"
  printf '%s\n' "$answer" | while IFS= read -r line; do
    pid=${line%%,*}
    # the process may have ended; a line without a process id is a message
    case $pid in '' | *[!0-9]*) continue ;; esac
    [ -d "/proc/$pid" ] || continue
    program=-
    read -r program 2>/dev/null <"/proc/$pid/comm"
    job=$(job_of "$pid")
    say gpu-user "$(stat -c %U "/proc/$pid" 2>/dev/null)" "${job:--}" "$program, $line"
  done
fi
exit 0
