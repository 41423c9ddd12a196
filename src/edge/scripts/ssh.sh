#!/bin/sh
# The ssh that the launcher finds first in PATH. Horovod says StrictHostKeyChecking=no; ssh takes the first value that
# it is given, so what stands here holds: only the workers' pinned host keys are accepted, and nothing is asked.
# the run's own file holds the same keys for the port of its own workers
here=${0%/*}
known=$here/known_hosts
[ -f "$known" ] || known=/root/.ssh/known_hosts
for ssh in /usr/bin/ssh /usr/local/bin/ssh /bin/ssh; do
  [ ! -x "$ssh" ] || break
done
if [ ! -x "$ssh" ]; then
  echo "hvdctl: there is no ssh in this image" >&2
  exit 127
fi
# of a log-in inside the cluster the key exchange takes longest: a third of it with what OpenSSH 9 begins with, sntrup761. An ssh
# that does not know the word stays with its own
kex=-oKexAlgorithms=^curve25519-sha256
"$ssh" "$kex" -G localhost >/dev/null 2>&1 || kex=-oBatchMode=yes
# the keeper's connections; where there is none, ssh makes its own
exec "$ssh" "$kex" -o ControlPath="/run/hvdctl-${here##*/}/%h" -o StrictHostKeyChecking=yes \
  -o UserKnownHostsFile="$known" -o GlobalKnownHostsFile=/dev/null -o UpdateHostKeys=no -o BatchMode=yes \
  -o ServerAliveInterval=15 "$@"
