# The end of the lines that set up the environment of what runs as the login (process/main.sh): writes this environment to a file, for
# programs that are started in it later, and becomes the command. HVDCTL_PLACE is its directory.
directory=$HVDCTL_PLACE
# the start-up files of the login may have changed it
# shellcheck source=/dev/null
. "$directory/environment.given"
# without variables that a shell does not let a file set
(umask 077 && env -u UID -u EUID -u PPID -u SHELLOPTS -u BASHOPTS sh -c 'export -p' >"$directory/environment.new") &&
  mv "$directory/environment.new" "$directory/environment" || exit
# shellcheck source=/dev/null
. "$directory/command"
cd -P "$directory/workspace" || exit
exec "$@"
