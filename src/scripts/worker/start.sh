# The main process of a worker: becomes its sshd. Arguments: sshd's full path and options. sshd passes none of its own environment on,
# so root's shell is a script that sets the image's: programs that arrive through sshd then see what those of `docker exec` see. It
# also takes the place of a shell that the image may have set for root and that runs no commands, such as nologin.
mkdir -p /run/sshd /run/hvdctl || exit
(umask 077 && export -p >/run/hvdctl/environment) || exit
printf '%s\n' '#!/bin/sh' 'unset LOGNAME MAIL SHELL USER' '. /run/hvdctl/environment' 'exec /bin/sh "$@"' >/run/hvdctl/sh &&
  chmod 755 /run/hvdctl/sh || exit
# /run may be mounted so that nothing there can be executed
{ /run/hvdctl/sh -c : && sed -i 's|^\(root:.*:\)[^:]*$|\1/run/hvdctl/sh|' /etc/passwd; } ||
  echo "hvdctl: cannot set root's shell; logins keep their environment" >&2
# a locked account, which sshd refuses, becomes one without a password
[ ! -e /etc/shadow ] || sed -i 's/^root:![^:]*:/root:*:/' /etc/shadow || echo "hvdctl: cannot unlock root in /etc/shadow" >&2
become "$0" "$@"
