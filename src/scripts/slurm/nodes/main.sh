# The main process of the containers of the cluster's own Slurm. hslurm, where Slurm's jobs run as root, has munged, slurmd, and on the
# master slurmctld; of the node it has nothing else. hslurm-agent has munged, the container engine, and the programs that start and end what
# Slurm has decided on. Each is started again when it ends, so that jobs outlive a restart of one. Arguments: directory of its files, node,
# its address, and which container this is: `daemons` or `agent`, on the master followed by `controller`.
directory=$1 node=$2 address=$3 which=$4 role=${5:-}
# the image may be that of ranks
set_aside_unless_needed slurmd -V
cd / || exit
# of a container that was killed
rm -f /run/hvdctl-*.pid
mkdir -p /run/munge /var/log/munge /var/lib/munge /etc/slurm || exit
# munged runs as root: its own user may have the number of another one of the node, who could read the key
chown root: /etc/munge /run/munge /var/log/munge /var/lib/munge || exit
keep() { # NAME PROGRAM ARGUMENT…: runs it again and again
  name=$1
  shift
  while :; do
    "$@" &
    # restart.sh ends it. Numbers may be those of the node, where another process may get one that is free
    echo "$!" >"/run/hvdctl-$name.pid"
    wait "$!"
    code=$?
    rm -f "/run/hvdctl-$name.pid"
    echo "$name has ended with code $code" >&2
    sleep 1
  done
}
key_daemon() {
  rm -f /etc/munge/munge.key
  (umask 077 && base64 -d "$directory/munge.key" >/etc/munge/munge.key) || exit
  exec /usr/sbin/munged --force --foreground
}
# Slurm's own configuration, with what depends on its version: slurmd looks for control groups whatever the plugins are, and containers may
# not have them as it wants them
configure() {
  # `slurm 22.05.8`; the plugin that does nothing came with 24.05
  version=$(slurmd -V) && version=${version#* } || return
  case $version in
  2[0-3].* | 24.0[0-4].*) plugin=cgroup/v1 ;;
  *) plugin=disabled ;;
  esac
  for file in slurm gres; do
    cp "$directory/$file.conf" "/etc/slurm/$file.conf.$1" && mv -f "/etc/slurm/$file.conf.$1" "/etc/slurm/$file.conf" || return
  done
  echo "CgroupPlugin=$plugin" >"/etc/slurm/cgroup.conf.$1" && mv -f "/etc/slurm/cgroup.conf.$1" /etc/slurm/cgroup.conf
}
# Slurm listens on the address of this machine's name: in the cluster, and nowhere else (NoInAddrAny). The names of a container with the
# node's network are a copy of the node's, where the own name may be 127.0.1.1
listen_on_address() {
  name=$(uname -n) || return
  others=$(awk -v name="$name" '{ for (i = 2; i <= NF && $i !~ /^#/; i++) if ($i == name) next } { print }' /etc/hosts) || return
  printf '%s %s\n%s\n' "$address" "$name" "$others" >/etc/hosts
}
node_daemon() {
  configure slurmd || exit
  # gres.conf counts GPUs by these, which are nothing but null devices
  read -r gpus <"$directory/gpus"
  while [ "$gpus" -gt 0 ]; do
    gpus=$((gpus - 1))
    # without root on the machine, a plain file has to do
    [ -e "/run/hvdctl-gpu$gpus" ] || mknod "/run/hvdctl-gpu$gpus" c 1 3 2>/dev/null || : >"/run/hvdctl-gpu$gpus"
  done
  exec slurmd -D -N "$node"
}
controller() {
  configure slurmctld || exit
  exec slurmctld -D
}
listen_on_address || exit
keep munged key_daemon &
while [ ! -S /run/munge/munge.socket.2 ]; do sleep 0.1; done
case $which:$role in
daemons:controller) keep slurmctld controller & ;;
agent:controller) keep agent python3 -I -X utf8 "$directory/agent.py" & ;;
esac
case $which in
daemons) keep slurmd node_daemon & ;;
agent)
  # it begins with the files as they are
  rm -f "$directory/.restart"
  keep node python3 -I -X utf8 "$directory/node.py" &
  ;;
esac
end() {
  trap '' TERM INT
  # slurmctld saves the queue, and none is started again
  for file in /run/hvdctl-slurmctld.pid /run/hvdctl-slurmd.pid; do
    { read -r pid <"$file" && kill "$pid"; } 2>/dev/null || continue
    while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
  done
  # process 1 of a container cannot kill itself
  [ "$$" = 1 ] || kill -KILL 0
  exit 0
}
trap end TERM INT
wait
