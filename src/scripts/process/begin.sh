# The end of the lines that set up the environment of what runs as the login (process/main.sh): writes this environment to a file, for
# programs that are started in it later, and becomes the command. Argument: its directory.
directory=$1
# the start-up files of the login may have changed it
# shellcheck source=/dev/null
. "$directory/environment.given"
export HVDCTL_PLACE="$directory"
(umask 077 && export -p >"$directory/environment.new") && mv "$directory/environment.new" "$directory/environment" || exit
# shellcheck source=/dev/null
. "$directory/command"
cd -P "$directory/workspace" || exit
exec "$@"
