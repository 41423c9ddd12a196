# The ssh that the launcher finds first in PATH. The launcher passes StrictHostKeyChecking=no; ssh takes the first value that it is
# given, so these options win: only the workers' pinned host keys are accepted, and no question is asked. The image's ssh_config does
# not apply, and the key is found also if root's home directory is another one in the image.
here=${0%/*}
# the job's file has the same keys for the port of its workers
known=$here/known_hosts
[ -f "$known" ] || known=$HVDCTL_KEYS/known_hosts
for ssh in /usr/bin/ssh /usr/local/bin/ssh /bin/ssh; do
  [ ! -x "$ssh" ] || break
done
if [ ! -x "$ssh" ]; then
  echo "hvdctl: there is no ssh in this image" >&2
  exit 127
fi
# the key exchange takes most of a login inside the cluster: a third of it with sntrup761, OpenSSH 9's first choice. An ssh that does
# not know the option keeps its default
kex=-oKexAlgorithms=^curve25519-sha256
(become "$ssh" -F /dev/null "$kex" -G localhost) >/dev/null 2>&1 || kex=-oBatchMode=yes
# OpenSSH 10.1 warns of that key exchange with three lines for each login (WarnWeakCrypto)
#
# HVDCTL_KEYS: the directory of the cluster's keys; HVDCTL_RUN: how the names of directories of sockets begin; HVDCTL_KEEP_ALIVE:
# seconds between keep-alive probes
#
# the launcher's test (`true`) whether a node answers goes over the job supervisor's connection. An ssh that starts ranks has a
# connection of its own: the launcher kills it when a rank has failed, and waits until its streams are closed, which a shared connection
# would keep open
path=none
case "$*" in
*' true') path=$HVDCTL_RUN-${here##*-}/%h ;;
esac
key=$HVDCTL_KEYS/id_ed25519
[ -f "$key" ] || key=$HVDCTL_KEYS/id_rsa
# the users of the nodes, where ranks are processes of logins
config=$here/ssh_config
[ -f "$config" ] || config=/dev/null
become "$ssh" -F "$config" "$kex" -o IdentityFile="$key" -o StrictHostKeyChecking=yes -o UserKnownHostsFile="$known" \
  -o GlobalKnownHostsFile=/dev/null -o UpdateHostKeys=no -o BatchMode=yes \
  -o IgnoreUnknown=WarnWeakCrypto -o WarnWeakCrypto=no -o ServerAliveInterval="${HVDCTL_KEEP_ALIVE:-15}" \
  -o ControlPath="$path" "$@"
