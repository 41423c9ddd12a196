# The end of the lines that set up the environment of what runs as the login (process/main.sh): writes this environment to a file, for
# programs that are started in it later, and becomes the command. HVDCTL_PLACE is its directory.
hvdctl_directory=$HVDCTL_PLACE
# the start-up files of the login may have changed it
# shellcheck source=/dev/null
. "$hvdctl_directory/environment.given"
# without variables that a shell does not let a file set
(umask 077 && env -u UID -u EUID -u PPID -u SHELLOPTS -u BASHOPTS sh -c 'export -p' >"$hvdctl_directory/environment.new") &&
  mv "$hvdctl_directory/environment.new" "$hvdctl_directory/environment" || exit
# what ranks run as `python3`, for the comparison of workers (checks/python.rs)
grep -q '"hvdctl.role":"master"' "$hvdctl_directory/labels" || python3 -I -c '
import json, os, sys
path = sys.argv[1]
before = os.stat(path)
with open(path) as file:
    labels = json.load(file)
labels["hvdctl.python"] = "%d.%d.%d" % sys.version_info[:3] + " of %s (%s)" % (sys.prefix, os.path.realpath(sys.executable))
with open(path + ".new", "w") as file:
    print(json.dumps(labels), file=file)
os.utime(path + ".new", (before.st_atime, before.st_mtime))
os.rename(path + ".new", path)' "$hvdctl_directory/labels" 2>/dev/null </dev/null
# shellcheck source=/dev/null
. "$hvdctl_directory/command"
cd -P "$hvdctl_directory/workspace" || exit
exec "$@"
