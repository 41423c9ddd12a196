# The main process of a worker that is a process of the login: becomes its sshd. Arguments: sshd's options. Whatever arrives through it runs
# in the worker's environment: sshd passes none of its own on.
for hvdctl_sshd in "$(command -v sshd)" /usr/sbin/sshd /usr/local/sbin/sshd /sbin/sshd /run/current-system/sw/bin/sshd; do
  [ ! -x "$hvdctl_sshd" ] || break
done
if [ ! -x "$hvdctl_sshd" ]; then
  echo "sshd: not found" >&2
  exit 127
fi
# without root, sshd needs no such directory
[ "$(id -u)" != 0 ] || mkdir -p /run/sshd || exit
# the login's own shell runs this line, whichever that is
# shellcheck disable=SC2016 # it is the session's
printf '%s\n' ". '$HVDCTL_PLACE/environment'" 'exec /bin/sh -c "$SSH_ORIGINAL_COMMAND"' >"$HVDCTL_PLACE/session" || exit
become "$hvdctl_sshd" "$@" -o ForceCommand="exec sh $HVDCTL_PLACE/session"
