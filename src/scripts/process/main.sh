# The main process of what runs as the login: sets up the environment and becomes the command. Argument: its directory. It keeps its
# process id, which hvdctl finds in the file `pid`.
set -u
HVDCTL_PLACE=$1
IFS= read -r hvdctl_stat </proc/$$/stat
# shellcheck disable=SC2086 # these are words
set -- ${hvdctl_stat##*) }
printf '%s %s %s\n' "$$" "${20}" "$(cat /proc/sys/kernel/random/boot_id)" >"$HVDCTL_PLACE/pid.new" &&
  mv "$HVDCTL_PLACE/pid.new" "$HVDCTL_PLACE/pid" || exit
# of the login that started it, which ends, and with it its directory in /run/user
unset SSH_CLIENT SSH_CONNECTION SSH_TTY SSH_AUTH_SOCK SSH_ORIGINAL_COMMAND XDG_RUNTIME_DIR XDG_SESSION_ID XDG_SESSION_TYPE \
  XDG_SESSION_CLASS DBUS_SESSION_BUS_ADDRESS
# shellcheck source=/dev/null
. "$HVDCTL_PLACE/environment.given"
read -r HVDCTL_PROCESS <"$HVDCTL_PLACE/id"
read -r hvdctl_mask <"$HVDCTL_PLACE/umask" && umask "$hvdctl_mask"
export HVDCTL_PLACE HVDCTL_PROCESS HVDCTL_MAIN="$$"
# `source` and modules need bash; its login shell has what the site sets up in /etc/profile.d. Without arguments, because what is sourced
# there would take them for its own
hvdctl_shell=bash
command -v bash >/dev/null || hvdctl_shell='sh'
exec "$hvdctl_shell" -l "$HVDCTL_PLACE/activate"
