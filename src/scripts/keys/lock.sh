# Prepended to the scripts that write the key directory. Runs one of them at a time, so that temporary files are those of an interrupted
# push or rotation, and are removed. Closes the directory first.
alone() {
  command -v flock >/dev/null || {
    echo "flock: not found (util-linux)" >&2
    exit 127
  }
  # before the lock: whoever can open a directory can lock it
  chmod 700 .
  exec 9<.
  flock -w 30 9 || {
    echo "another hvdctl command is writing the key directory; run the same command again" >&2
    exit 1
  }
  rm -f ./.*.hvdctl.*
}
