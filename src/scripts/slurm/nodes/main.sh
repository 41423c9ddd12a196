# The main process of a container of the cluster's own Slurm: munged, slurmd, and on the master slurmctld and the agent that starts jobs.
# Each is started again when it ends, so that jobs outlive a restart of one. Arguments: directory of its files, node, and `controller` on
# the master.
directory=$1 node=$2 role=${3:-}
cd / || exit
# of a container that was killed
rm -f /run/hvdctl-*.pid
mkdir -p "$directory/state" "$directory/spool" "$directory/log" /run/munge /var/log/munge /var/lib/munge || exit
# munged runs as root: its own user may have the number of another one of the node, who could read the key
chown root: /etc/munge /run/munge /var/log/munge /var/lib/munge || exit
keep() { # NAME PROGRAM ARGUMENT…: runs it again and again
  name=$1
  shift
  while :; do
    "$@" &
    # restart.sh ends it. Numbers are those of the node, where another process may get one that is free
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
# slurmd looks for control groups whatever the plugins are, and containers may not have them as it wants them
control_groups() {
  # `slurm 22.05.8`; the plugin that does nothing came with 24.05
  version=$(slurmd -V) && version=${version#* }
  case $version in
  2[0-3].* | 24.0[0-4].*) echo 'CgroupPlugin=cgroup/v1' ;;
  *) echo 'CgroupPlugin=disabled' ;;
  esac
}
control_groups >"$directory/cgroup.conf" || exit
node_daemon() {
  # gres.conf counts GPUs by these, which are nothing but null devices
  read -r gpus <"$directory/gpus"
  while [ "$gpus" -gt 0 ]; do
    gpus=$((gpus - 1))
    # without root on the machine, a plain file has to do
    [ -e "/run/hvdctl-gpu$gpus" ] || mknod "/run/hvdctl-gpu$gpus" c 1 3 2>/dev/null || : >"/run/hvdctl-gpu$gpus"
  done
  exec slurmd -D -N "$node"
}
keep munged key_daemon &
while [ ! -S /run/munge/munge.socket.2 ]; do sleep 0.1; done
if [ "$role" = controller ]; then
  keep slurmctld slurmctld -D &
  keep agent python3 "$directory/agent.py" &
fi
keep slurmd node_daemon &
end() {
  trap '' TERM INT
  # slurmctld saves the queue, and none is started again
  for file in /run/hvdctl-slurmctld.pid /run/hvdctl-slurmd.pid; do
    { read -r pid <"$file" && kill "$pid"; } 2>/dev/null || continue
    while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
  done
  kill -KILL 0
}
trap end TERM INT
wait
