# Prepended to the scripts that write the key directory. Runs one of them at a time, so that temporary files are those of an interrupted
# push or rotation, and are removed. The lock is next to the key directory, which containers have: whoever can open a file can lock it.
# It is open for writing, as NFSv4 demands.
# Variables: ssh_dir.
alone() {
  command -v flock >/dev/null || {
    echo "flock: not found (util-linux)" >&2
    exit 127
  }
  chmod 700 .
  (umask 077 && : >>"$ssh_dir.lock") || exit
  exec 9<>"$ssh_dir.lock" || exit
  flock -w 30 9 || {
    [ $? != 1 ] || echo "another hvdctl command is writing the key directory; run the same command again" >&2
    exit 1
  }
  rm -f ./.*.hvdctl.*
}
